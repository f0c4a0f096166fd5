"""Serving a policy: requests of many clients sampled together, their exact tokens recorded."""

from grouprl.serve.rows import Row, Rows
from grouprl.serve.sampling import BatchedSampling, Line, SampledTurn
from grouprl.serve.service import Service
from grouprl.serve.shelves import Keeping

__all__ = ["BatchedSampling", "Keeping", "Line", "Row", "Rows", "SampledTurn", "Service"]
