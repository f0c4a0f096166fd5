"""Tasks: questions by number, rewards, demonstrations; built-in ones and adapters."""

from grouprl.tasks.arithmetic import Addition
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import TaskDescription, describe_tasks, load_task, register_task, task_names
from grouprl.tasks.task import Message, Question, Split, Task

__all__ = [
    "Addition",
    "GeneratedTask",
    "Message",
    "Question",
    "Split",
    "Task",
    "TaskDescription",
    "describe_tasks",
    "load_task",
    "register_task",
    "task_names",
]
