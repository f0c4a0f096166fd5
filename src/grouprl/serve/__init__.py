"""Serving a policy: requests of many clients drawn together, their exact tokens recorded."""

from grouprl.serve.rows import Row, Rows
from grouprl.serve.sampling import Drawing, Drawn, Line
from grouprl.serve.service import Service
from grouprl.serve.shelves import Keeping

__all__ = ["Drawing", "Drawn", "Keeping", "Line", "Row", "Rows", "Service"]
