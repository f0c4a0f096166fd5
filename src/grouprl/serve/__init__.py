"""Serving a policy: requests of many clients drawn together, their exact tokens recorded."""

from grouprl.serve.drawing import Drawing, Drawn, Line
from grouprl.serve.rows import Row, Rows
from grouprl.serve.service import Service

__all__ = ["Drawing", "Drawn", "Line", "Row", "Rows", "Service"]
