"""A real Ray of three logical nodes of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import ray
from ray.cluster_utils import Cluster

STORE = 80 * 2**20
"""Bytes of a node's object store."""


@contextlib.contextmanager
def three_nodes(cpus: int, store: int = STORE) -> Iterator[Cluster]:
    """A head without processors for anybody, and two nodes with `cpus` each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": store})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=cpus, object_store_memory=store)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()
        cluster.shutdown()
