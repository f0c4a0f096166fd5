"""Workers as actors of Ray; each kind has its own placement group."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol, cast

from grouprl.config.sections import Placing
from grouprl.core.errors import MissingExtra, RunError
from grouprl.core.network import is_own
from grouprl.orchestrator.on_ray.cluster_info import ClusterFacts
from grouprl.orchestrator.on_ray.worker_host import Hello, Kind, Reply, Shared, Ticket, WorkerLost, WorkerRoom
from grouprl.processes.current_ranks import placed_by
from grouprl.processes.liveness import PeerWatch

PATIENCE = 20.0
"""Seconds without an answer after which Ray's head counts as gone; a restarted head takes less."""
GRACE = 30.0
"""Seconds that the run then has to end by itself before it is killed."""
RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""The variable with the seconds after which Ray kills a process that has lost the head, without a message from
grouprl.
"""


class _Method(Protocol):
    def remote(self, method: str, arguments: tuple[object, ...]) -> Ticket: ...


class _Actor(Protocol):
    call: _Method


class _Group(Protocol):
    def wait(self, seconds: float) -> bool: ...


@dataclass(frozen=True)
class ObjectInStore:
    """A value in Ray's object store, in the shared memory of each node that has read it."""

    reference: object

    def get(self) -> object:
        """Return the value; large arrays are views of the shared memory."""
        import ray

        found: object = ray.get(self.reference)
        return found


class RayHost:
    """A host that places workers through the Ray at `cluster.ray`; `counts` is the number of workers of each kind.

    Actors belong to this process and end with it, however it ends. Ray itself restarts none, because it would not know
    what work was lost; the pool does that.

    Raises:
        MissingExtra: Ray is not installed.
        RunError: the cluster cannot be reached, or has no room for them within `cluster.start_timeout`.
    """

    def __init__(self, cluster: Placing, counts: Mapping[Kind, int], hello: Mapping[Kind, Hello]) -> None:
        # Ten times as long as the own watch needs, so that the run ends with a message before Ray kills it without
        # one.
        os.environ.setdefault(RECONNECT, str(round(10 * (PATIENCE + GRACE))))
        ray = imported_ray()
        self.settings = cluster
        self._hello: dict[Kind, ObjectInStore] = {}
        try:
            connect(placed_by() or cluster.ray)
        except Exception as error:  # Ray raises what it likes, ConnectionError and RuntimeError among others
            raise RunError(f"Ray at {cluster.ray} cannot be reached: {error}") from error
        self._groups: dict[Kind, _Group] = {}
        self.head = watched_head(own_cluster())
        try:
            self._hello = {kind: ObjectInStore(ray.put(hello[kind])) for kind in counts}
            self._reserve(counts)
        except BaseException:
            self.close()
            raise

    def _reserve(self, counts: Mapping[Kind, int]) -> None:
        ray = imported_ray()
        strategy = self.settings.strategy.upper()
        for kind, count in counts.items():
            bundles = [bundle_of(self.settings, kind)] * count
            self._groups[kind] = ray.util.placement_group(bundles, strategy=strategy)
        for kind, group in self._groups.items():
            if not group.wait(self.settings.start_timeout):
                wanted = f"{counts[kind]} × {words(bundle_of(self.settings, kind))} ({kind})"
                raise RunError(
                    f"Ray at {self.settings.ray} found no room for {wanted} within cluster.start_timeout = "
                    f"{self.settings.start_timeout:g} s, because others use it. Ask for fewer workers, or wait"
                )

    def start(self, kind: Kind, number: int) -> object:
        """Begin to start a worker in its place of the group; Ray moves a group that lost a node."""
        self.head.check()
        ray = imported_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = bundle_of(self.settings, kind)
        actor = ray.remote(WorkerRoom).options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._groups[kind], number),
        )
        worker: object = actor.remote(kind, self._hello[kind])
        return worker

    def call(self, worker: object, method: str, arguments: tuple[object, ...]) -> Ticket:
        """Begin a call of an actor."""
        return cast("_Actor", worker).call.remote(method, arguments)

    def ready(self, calls: Sequence[Ticket], seconds: float) -> list[Ticket]:
        """Return the calls that have ended, after waiting at most `seconds` for the first."""
        ray = imported_ray()
        first, _ = ray.wait(list(calls), num_returns=1, timeout=seconds)
        self.head.check()
        # The first wait returns at most one; this one takes all the others that have ended by now.
        over: list[Ticket] = first and list(ray.wait(list(calls), num_returns=len(calls), timeout=0)[0])
        return over

    def reply(self, call: Ticket) -> Reply:
        """Return the result of a call. Raises WorkerLost if the actor is dead or the reply is lost."""
        ray = imported_ray()
        try:
            found: Reply = ray.get(call)
        except ray.exceptions.RayTaskError as error:
            return Reply(failed=str(error))
        except ray.exceptions.RayError as error:
            raise WorkerLost(_cause(error)) from error
        return found

    def end(self, worker: object) -> None:
        """Kill an actor."""
        ray = imported_ray()
        if self.head.gone:
            return  # only the head could say so; without it Ray's nodes end by themselves
        with contextlib.suppress(Exception):  # it may be dead
            ray.kill(worker, no_restart=True)

    def share(self, value: object) -> Shared:
        """Copy a value into the object store once, for any number of readers."""
        self.head.check()
        return ObjectInStore(imported_ray().put(value))

    def close(self) -> None:
        """Release the groups, with the actors in them, and leave the cluster."""
        ray = imported_ray()
        self.head.close()
        if self.head.gone:
            return
        if ray.is_initialized():
            for group in self._groups.values():
                with contextlib.suppress(Exception):
                    ray.util.remove_placement_group(group)
            self._groups.clear()
            self._hello = {}
            ray.shutdown()


def imported_ray() -> ModuleType:
    """Return Ray's module. Raises MissingExtra if it is not installed."""
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise MissingExtra("ray", "ray", "cluster.ray") from error
    return ray


def connect(address: str) -> None:
    """Connect this process to a running cluster through a node of this machine.

    By default Ray takes any node whose process it sees, the head first. It may also see nodes of other machines, as in
    containers that share process numbers, and objects stored through such a node never arrive.
    """
    ray = imported_ray()
    ray.init(**connection(address))
    if is_own(ray.util.get_node_ip_address()):
        return
    others = [str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]]
    if own := next(filter(is_own, others), None):
        ray.shutdown()
        ray.init(**connection(address), _node_ip_address=own)


def connection(address: str) -> dict[str, object]:
    """Return the arguments of `ray.init` for connecting to a running cluster.

    Workers get this process's import paths, so that they find the same package and the same plugins.
    """
    paths = [os.getcwd() if entry == "" else entry for entry in sys.path]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false"}
    variables |= {name: os.environ[name] for name in ("OMP_NUM_THREADS", "HF_HOME") if name in os.environ}
    return {
        "address": address,
        "log_to_driver": False,
        "logging_level": "ERROR",
        "runtime_env": {"env_vars": variables},
    }


def watched_head(address: str) -> PeerWatch:
    """Return a watch that notices when the head of a cluster is gone, for which Ray itself would wait silently."""
    gone = (
        f"the head of Ray at {address} is gone: it has not answered for {PATIENCE:g} s. The run's files are intact: "
        "start Ray again and continue with --resume, on this cluster or another (--set cluster.ray=…)"
    )
    return PeerWatch(address, gone, PATIENCE, GRACE)


def own_cluster() -> str:
    """Return the address of the cluster that this process is connected to; "here" if there is none."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return "here"
    return str(ray.get_runtime_context().gcs_address)


def own_address() -> str:
    """Return the address of this node of the cluster; without a cluster, the machine's loopback address."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return "127.0.0.1"
    return str(ray.util.get_node_ip_address())


def bundle_of(cluster: Placing, kind: Kind) -> dict[str, float]:
    """Return the resources that a worker of a kind reserves."""
    if kind == "learner":
        return {"CPU": cluster.learner_cpus} | ({"GPU": cluster.learner_gpus} if cluster.learner_gpus else {})
    return {"CPU": cluster.cpus} | ({"GPU": cluster.gpus} if kind == "sampler" and cluster.gpus else {})


def short_of(counts: Mapping[Kind, int], cluster: Placing, facts: ClusterFacts) -> Iterator[str]:
    """Yield a sentence for each resource of which a cluster has too little for these workers, even when it is idle."""
    needed: dict[str, float] = {}
    for kind, count in counts.items():
        bundle = bundle_of(cluster, kind)
        for name, amount in bundle.items():
            needed[name] = needed.get(name, 0.0) + count * amount
        if facts.places(bundle) < count:
            yield (
                f"cluster: {count} × {words(bundle)} ({kind}) are wanted, and the nodes have room for "
                f"{facts.places(bundle)}. {facts.words()}. Ask for less, or add nodes"
            )
    for name, amount in needed.items():
        if amount > facts.total(name) + 1e-9:
            there = f"{facts.total(name):g}. {facts.words()}"
            yield f"cluster: workers want {amount:g} {name}s in all, and there are {there}. Ask for less, or add nodes"


def words(bundle: Mapping[str, float]) -> str:
    """Describe a reservation, such as "1 CPU, 0.5 GPU"."""
    return ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())


def _cause(error: Exception) -> str:
    """Return why an actor is dead, extracted from Ray's message."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = next((line for line in lines if line.startswith("The actor is dead because")), "")
    told = told or next((line for line in lines if line), type(error).__name__)
    return told.removeprefix("The actor is dead because ").partition(" Worker exit detail")[0].rstrip(".")
