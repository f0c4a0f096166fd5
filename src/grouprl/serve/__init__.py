"""Serving a policy: the requests of many clients are sampled together and their exact tokens recorded."""

from grouprl.serve.joint_sampling import BatchedSampling, SampleJob, ServedTurn
from grouprl.serve.retention import Retention
from grouprl.serve.rows import Row, ServedRows
from grouprl.serve.service import Service

__all__ = ["BatchedSampling", "Retention", "Row", "SampleJob", "ServedRows", "ServedTurn", "Service"]
