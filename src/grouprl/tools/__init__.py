"""Tools for models: typed functions, calls in text, and environments made of them."""

from grouprl.chat.calls import Form
from grouprl.chat.syntaxes import FORMS, form_named
from grouprl.chat.turn_content import Call, Malformed, Result, Said, Spoken
from grouprl.tools.definition import Tool, ToolError, as_tool, tool
from grouprl.tools.environment import ToolEnvironment
from grouprl.tools.python import PythonTool
from grouprl.tools.toolbox import Toolbox

__all__ = [
    "FORMS",
    "Call",
    "Form",
    "Malformed",
    "PythonTool",
    "Result",
    "Said",
    "Spoken",
    "Tool",
    "ToolEnvironment",
    "ToolError",
    "Toolbox",
    "as_tool",
    "form_named",
    "tool",
]
