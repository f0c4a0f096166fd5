"""The terminal: commands of an episode in one folder, and tests that cannot be fooled."""

import json
import random

import pytest

from grouprl.core.errors import InputError
from grouprl.envs.playing import total_reward
from grouprl.envs.terminal import PROMPT, Shell, command_of, cut_in_the_middle
from grouprl.records.examples import Example
from grouprl.runtimes import SandboxRuntime
from grouprl.tasks import load_task
from grouprl.tasks.builtin.agents.terminal_kinds import KINDS
from grouprl.testing import check_environment
from grouprl.tools.shell import ShellTools

TESTS = [{"file": "answer.txt", "content": "42"}]


def played(columns, actions, turns=8, **settings):
    """Return the steps of an episode, and its score."""
    env = Shell(SandboxRuntime, turns, **settings)
    env.reset(Example("t", f"Do it{PROMPT}", {"files": {}, "tests": TESTS, **columns}), 0)
    steps = []
    for action in actions:
        steps.append(env.step(action))
        if steps[-1].terminated or steps[-1].truncated:
            break
    score = env.score()
    env.close()
    return steps, score


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_solved_and_is_not_solved_for_nothing(kind):
    task = load_task({"name": "terminal", "kinds": [kind], "turns": 3})
    for example in (*(task.example("train", n) for n in range(3)), task.example("eval", 0)):
        assert total_reward(task.environment(), example, task.solve(example).splitlines()) == 1
        out = next((test["file"] for test in example.columns["tests"] if "file" in test), "x")
        for lazy in (["done"], ["ls", "done"], [f"touch {out}", "done"], ["cp * x", "done"], ["rm -rf *", "done"]):
            assert total_reward(task.environment(), example, lazy) == 0


def test_held_out_jobs_are_other_jobs():
    for level in range(1, 7):
        task = load_task({"name": "terminal", "level": level})
        train, held = ({task.example(split, n).prompt for n in range(80)} for split in ("train", "eval"))
        assert not train & held
        assert min(len(train), len(held)) > 40


def test_files_last_from_command_to_command_and_nothing_else_does():
    steps, _ = played({}, ["mkdir a; cd a; echo hi > b; X=1; sleep 99 &", "pwd; cat a/b; echo [$X]; jobs"])
    assert [step.observation.text for step in steps] == ["$ ", f"/box\nhi\n[]{PROMPT}"]


def test_what_is_shown_of_a_command():
    steps, score = played({}, ["echo out; echo err >&2; exit 3", "printf 'a\\001\\303\\251'", "seq 9999", "  ", "``"])
    assert steps[0].observation.text == f"out\nerr\n[exit status 3]{PROMPT}"
    assert steps[0].observation.messages[0]["content"] == "out\nerr\n[exit status 3]"
    assert steps[1].observation.text == f"a??{PROMPT}"
    assert "characters left out" in steps[2].observation.text
    assert [step.valid for step in steps] == [True, True, True, False, False]
    assert (score["#commands"], score["#failed_commands"]) == (3, 1)


def test_a_command_that_takes_too_long_is_stopped():
    steps, _ = played({}, ["echo 42 > answer.txt; sleep 60", "done"], seconds=0.5)
    assert steps[0].observation.text == f"[stopped: timeout]{PROMPT}"
    assert steps[1].reward == 1


def test_the_verdict_comes_with_the_last_turn_too():
    steps, score = played({}, ["ls", "echo 42 > answer.txt"], turns=2)
    assert (steps[1].reward, steps[1].terminated, steps[1].truncated) == (1, False, True)
    assert score["correct"] == 1


def test_a_chat_policy_is_told_what_to_reply():
    env = Shell(SandboxRuntime, 2, system="Be brief.")
    first = env.reset(Example("t", f"Do it{PROMPT}", {"files": {}, "tests": TESTS}), 0)
    assert [dict(message) for message in first.messages] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Do it"},
    ]


def test_tests_are_nowhere_while_the_agent_works():
    secret = "quite-secret-731"
    columns = {"files": {"a": "1\n"}, "tests": [{"file": "answer.txt", "content": secret}]}
    looks = [
        "ls -la / /tmp /box; env; set; cat /proc/*/cmdline /proc/self/environ 2>&1",
        f"grep -rl {secret} / --exclude-dir=usr --exclude-dir=lib 2>/dev/null; echo looked",
        "find / -newer a -type f 2>/dev/null | head; cat /dev/stdin | head -c 100",
    ]
    steps, _ = played(columns, looks, shown=10**6)
    assert not any(secret in step.observation.text for step in steps)


CHEATS = {
    "verdict files": [
        "echo 1 > reward.txt; mkdir -p /tmp/tests logs; echo pass | tee /tmp/tests/ok logs/verdict",
        "done",
    ],
    "a process that stays": ["(sleep 2; echo 42 > answer.txt) & disown; echo", "done"],
    "a link to nowhere": ["ln -s /dev/stdin answer.txt", "done"],
    "a folder of the name": ["mkdir answer.txt; echo 42 > answer.txt/x", "done"],
    "shell start files": ["echo 'echo 42 > answer.txt' | tee .bashrc .profile .bash_profile .bash_logout", "done"],
    "a test program on the path": ["printf '#!/bin/sh\\nexit 0' > python3; chmod +x python3 ; cp python3 sh", "done"],
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_no_cheat_wins(cheat):
    assert played({}, CHEATS[cheat])[1]["correct"] == 0


def test_a_program_of_the_agents_is_tested_from_outside():
    tests = [{"run": "python3 double.py", "stdin": "4\n", "stdout": "8"}]
    right = "echo 'print(2*int(input()))' > double.py"
    assert played({"tests": tests}, [right, "done"])[1]["correct"] == 1
    for wrong in ("import os; os._exit(0)", 'print(open("/proc/self/cmdline").read())', "print(4)", "exit(0)"):
        assert played({"tests": tests}, [f"echo '{wrong}' > double.py", "done"])[1]["correct"] == 0


def test_episodes_are_reproducible():
    example = Example("t", f"Do it{PROMPT}", {"files": {"b": "x", "a": "y"}, "tests": TESTS})
    actions = ["ls -la", "echo $$; ls -i", "mkdir c; touch c/d; ls -lR", "find . -newer a", "done"]
    check_environment(lambda: Shell(SandboxRuntime, 8, shown=4000), example, actions)


def test_a_command_is_taken_out_of_what_surrounds_it():
    for action in ("ls -l", "$ ls -l", "`ls -l`", "```bash\nls -l\n```", "I would do\n```\nls -l\n```\nthen stop"):
        assert command_of(action) == "ls -l"
    assert command_of("```sh\nfor f in *; do\n  echo $f\ndone\n```") == "for f in *; do\n  echo $f\ndone"


def test_long_texts_lose_their_middle():
    assert cut_in_the_middle("abc", 3) == "abc"
    text = cut_in_the_middle("a" * 60 + "b" * 60, 30)
    assert text == "a" * 20 + "\n[... 90 characters left out ...]\n" + "b" * 10


def test_demonstrations_slip_and_often_succeed():
    task = load_task({"name": "terminal", "noise": 0.3})
    results = []
    for number in range(12):
        example = task.example("train", number)
        results.append(total_reward(task.environment(), example, task.demonstration(example, number).splitlines()))
    assert 0 < sum(results) < 12


def test_wrong_options_are_refused_in_words():
    with pytest.raises(InputError, match="There is no kind 'cuont'"):
        load_task({"name": "terminal", "kinds": ["cuont"]})
    with pytest.raises(InputError, match="must have one of the keys"):
        played({"tests": [{"fiel": "x"}]}, ["done"])
    with pytest.raises(InputError, match="no tests"):
        played({"tests": []}, ["done"])


def test_luck_of_the_demonstrator_comes_from_its_generator():
    task = load_task("terminal")
    example = task.example("train", 0)
    env = task.environment()
    env.reset(example, 0)
    assert env.demonstrate(random.Random(1)) == env.demonstrate(random.Random(1))
    env.close()


def test_the_same_jobs_with_tools():
    task = load_task({"name": "terminal", "actions": "tools", "kinds": ["count", "replace"]})
    for number in range(3):
        example = task.example("train", number)
        assert total_reward(task.environment(), example, task.solve(example).splitlines()) == 1
        assert total_reward(task.environment(), example, ["The answer is 5."]) == 0
        assert total_reward(task.environment(), example, task.solve(example).splitlines()[:1] * 3) in (0, 1)


def called(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_the_tools_of_a_terminal():
    env = ShellTools(SandboxRuntime, 8)
    first = env.reset(Example("t", f"Do it{PROMPT}", {"files": {"a": "hi\n"}, "tests": TESTS}), 0)
    assert [tool["function"]["name"] for tool in first.tools] == ["shell", "write_file", "read_file"]
    assert first.messages[-1]["content"] == "Do it"
    said = [
        (called("shell", command="cat a; exit 2"), "hi\n[exit status 2]", True),
        (called("read_file", path="a"), "hi\n", True),
        (called("read_file", path="../x"), "error: The path '../x' is not inside the working folder", True),
        (called("shell", command=" "), "error: there is no command", True),
        (called("write_file", path="answer.txt", content="42"), "written", True),
        (called("shell"), "shell: command: Field required", False),
    ]
    for action, expected, valid in said:
        step = env.step(action)
        assert (step.observation.messages[0]["content"], step.valid) == (expected, valid)
    last = env.step("done")
    assert (last.reward, last.terminated, env.score()["correct"]) == (1, True, 1)
    env.close()


def test_tools_are_judged_at_the_last_turn_too():
    env = ShellTools(SandboxRuntime, 1)
    env.reset(Example("t", f"Do it{PROMPT}", {"files": {}, "tests": TESTS}), 0)
    step = env.step(called("write_file", path="answer.txt", content="42"))
    assert (step.reward, step.truncated, step.terminated) == (1, True, False)
    env.close()


def test_solved_jobs_are_shown_first_and_are_right():
    task = load_task({"name": "terminal", "kinds": ["count", "select"], "solved": 3})
    env = task.environment()
    messages = env.reset(task.example("train", 0), 0).messages
    env.close()
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 6, "user"]
    assert [message["content"].split()[2] for message in messages[1:-1:4]] == ["number", "lines", "number"]
    assert {message["content"] for message in messages[4:-1:4]} == {"done"}
    assert messages == task.environment().reset(task.example("train", 0), 0).messages
    plain = load_task({"name": "terminal", "kinds": ["count", "select"]})
    assert plain.example("train", 0).prompt == task.example("train", 0).prompt
    with pytest.raises(InputError, match="Solved jobs are shown as commands"):
        load_task({"name": "terminal", "solved": 1, "actions": "tools"})


def test_a_prompt_of_several_jobs_is_solved_by_all_of_them_and_by_no_fewer():
    task = load_task(
        {"name": "terminal", "kinds": ["count", "match", "permission", "script"], "jobs": 2, "turns": 3, "solved": 1}
    )
    for example in (task.example("train", number) for number in range(6)):
        assert ", then " in example.prompt
        first, second, done = task.solve(example).splitlines()
        assert total_reward(task.environment(), example, [first, second, done]) == 1
        assert total_reward(task.environment(), example, [second, first, done]) == 1
        assert total_reward(task.environment(), example, [first, "done"]) == 0
        assert total_reward(task.environment(), example, [second, "done"]) == 0
    assert [each["role"] for each in task.shown_first()] == ["user", "assistant"] * 3
    with pytest.raises(InputError, match="look at the whole folder"):
        load_task({"name": "terminal", "kinds": ["count", "find"], "jobs": 2})
    with pytest.raises(InputError, match="Set turns: 4"):
        load_task({"name": "terminal", "jobs": 3, "turns": 3})
