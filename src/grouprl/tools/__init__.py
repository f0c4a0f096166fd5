"""Tools for models: typed functions, calls in text, and environments made of them."""

from grouprl.chat.calls import FORMS, Call, Form, FormName, Malformed, Result, Said
from grouprl.tools.definition import Tool, ToolError, as_tool, tool
from grouprl.tools.environment import ToolEnvironment
from grouprl.tools.python import PythonTool
from grouprl.tools.toolbox import Toolbox

__all__ = [
    "FORMS",
    "Call",
    "Form",
    "FormName",
    "Malformed",
    "PythonTool",
    "Result",
    "Said",
    "Tool",
    "ToolEnvironment",
    "ToolError",
    "Toolbox",
    "as_tool",
    "tool",
]
