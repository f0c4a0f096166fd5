"""Serving a policy: requests of many clients sampled together, their exact tokens recorded."""

from grouprl.serve.retention import Retention
from grouprl.serve.rows import Row, Rows
from grouprl.serve.sampling import BatchedSampling, SampledTurn, SampleJob
from grouprl.serve.service import Service

__all__ = ["BatchedSampling", "Retention", "Row", "Rows", "SampleJob", "SampledTurn", "Service"]
