"""The resources of a cluster, read by a separate process: with a wrong address Ray may hang or end its process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import util

from grouprl.core.errors import InputError, MissingExtra

PATIENCE = 90.0
"""Seconds that a cluster may take to answer."""
REACHED = 5.0
"""Seconds that a connection to an address may take."""
START = "start one with `ray start --head` (and `ray start --address=HOST:6379` on other machines)"
PROGRAM = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
nodes = [node for node in ray.nodes() if node["Alive"]]
facts = {
    "address": ray.get_runtime_context().gcs_address,
    "version": ray.__version__,
    "nodes": [{name: node["Resources"].get(name, 0.0) for name in ("CPU", "GPU")} for node in nodes],
    "free": {name: ray.available_resources().get(name, 0.0) for name in ("CPU", "GPU")},
}
print("\\n" + json.dumps(facts))
"""


@dataclass(frozen=True)
class ClusterFacts:
    """A running cluster: its address, and the processors and GPUs of its nodes."""

    address: str
    version: str
    nodes: Sequence[Mapping[str, float]]
    free: Mapping[str, float]
    """Unreserved resources, summed over all nodes."""

    def total(self, name: str) -> float:
        """Return the amount of a resource, summed over all nodes."""
        return sum(node.get(name, 0.0) for node in self.nodes)

    def places(self, bundle: Mapping[str, float]) -> int:
        """Return how many such reservations fit on the nodes when they are empty."""
        return sum(
            min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in bundle.items()) for node in self.nodes
        )

    def words(self) -> str:
        """Describe the cluster in one line."""
        count, gpus = len(self.nodes), self.total("GPU")
        nodes = "one node" if count == 1 else f"{count} nodes"
        return f"Ray {self.version} at {self.address}: {nodes}, {self.total('CPU'):g} CPUs, {gpus:g} GPUs"


def look(address: str, setting: str = "cluster.ray") -> ClusterFacts:
    """Return the resources of the cluster at `address`; `auto`: the cluster of RAY_ADDRESS, or the one on this
    machine. Errors name the `setting` that has the address.

    Raises:
        MissingExtra: Ray is not installed.
        InputError: there is no cluster, or it does not answer.
    """
    if util.find_spec("ray") is None:
        raise MissingExtra("ray", "ray", f"{setting}: {address}")
    stated = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    if ":" in stated and "//" not in stated:
        _check_reached(stated, setting)
    with tempfile.TemporaryFile() as output:
        try:
            code = subprocess.run(
                [sys.executable, "-c", PROGRAM, address], stdout=output, stderr=subprocess.STDOUT, timeout=PATIENCE
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        output.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines()
    if code is None:
        raise InputError(f"{setting} = {address}", f"nothing answered as Ray does within {PATIENCE:g} s", START)
    if code:
        why = _why(said)
        rule = "no Ray runs on this machine" if address == "auto" and "Could not find" in why else f"Ray says: {why}"
        raise InputError(f"{setting} = {address}", rule, START)
    return ClusterFacts(**json.loads(said[-1]))


def _check_reached(address: str, setting: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED).close()
    except (OSError, OverflowError, ValueError) as error:
        raise InputError(f"{setting} = {address}", f"nothing answers there: {error}", START) from None


def _why(said: list[str]) -> str:
    """Return the last error of a process's output."""
    raised = [line for line in said if "Error" in line.partition(":")[0] and not line.startswith(" ")]
    return (raised or said or ["nothing"])[-1][:500]
