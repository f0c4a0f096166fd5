"""Serving a policy: requests of many clients sampled together, their exact tokens recorded."""

from grouprl.serve.rows import Row, ServedRows
from grouprl.serve.sampling import BatchedSampling, Line, ServedTurn
from grouprl.serve.service import Service
from grouprl.serve.shelves import ShelfLimits

__all__ = ["BatchedSampling", "Line", "Row", "ServedRows", "ServedTurn", "Service", "ShelfLimits"]
