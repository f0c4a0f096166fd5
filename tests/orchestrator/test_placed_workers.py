"""Workers of a cluster, on a host in this process: called, lost at any moment, replaced; work is done again, once."""

from __future__ import annotations

import pickle
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import toy_envs
from grouprl import InputError, RunError
from grouprl.config.run import parse_config
from grouprl.config.sections import Acting
from grouprl.config.sections import Reward as RewardSettings
from grouprl.envs.environment_pool import HereStage
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.on_ray import worker_host as host_module
from grouprl.orchestrator.on_ray.placed_counts import whole_copies
from grouprl.orchestrator.on_ray.pool import PlacedJob, PoolLimits, WorkerPool
from grouprl.orchestrator.on_ray.remote_environments import PlacedStage, stage_hello
from grouprl.orchestrator.on_ray.reward import PlacedReward, reward_hello
from grouprl.orchestrator.on_ray.sampler import PlacedSampler, SamplerSettings
from grouprl.orchestrator.on_ray.weights import pack_tensors, unpack_tensors
from grouprl.orchestrator.on_ray.worker_host import WorkerRoom, hello_of
from grouprl.orchestrator.resolve import resolve
from grouprl.policy.sharded.ranks import Station
from grouprl.protocols import Request
from grouprl.records.tokens import Tokens
from grouprl.rewards import load_reward
from grouprl.rewards.contract import Failure
from grouprl.rewards.validation import verdicts_of
from grouprl.rollout.sharded.rank_sampler import RankSampler
from grouprl.rollout.sharded.request_shards import SharesHere, deal_requests
from grouprl.tasks import load_task
from grouprl.testing import check_sampler, check_sync
from placed_runs import Held, HostHere, at_random

PATIENT = PoolLimits(restarts=1000)
ASK = f"{toy_envs.__file__}:AskTask"


class Echo:
    """A worker that doubles numbers, refuses 13, breaks at 14, and remembers how many calls it had."""

    def __init__(self, values: object) -> None:
        self.calls = 0

    def double(self, number: int) -> int:
        self.calls += 1
        if number == 13:
            raise InputError("13", "it brings bad luck", "Take 12")
        if number == 14:
            raise ValueError("no such number")
        return 2 * number

    def so_far(self) -> int:
        self.calls += 1
        return self.calls


@pytest.fixture
def echoes(monkeypatch):
    """Makes a pool of workers that echo, with a host that loses them as `lose` says."""
    monkeypatch.setitem(host_module.WORKERS, "reward", f"{__name__}:Echo")
    said: list[str] = []

    def make(count: int, lose: object = None, limits: PoolLimits = PATIENT, **settings: object) -> WorkerPool:
        pool = WorkerPool(HostHere({"reward": hello_of(None)}, lose, **settings), "reward", count, limits, said.append)
        pool.said = said
        return pool

    return make


def doubles(numbers) -> list[PlacedJob]:
    return [PlacedJob("double", lambda life, number=number: (number,)) for number in numbers]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [1, 3])
def test_every_piece_of_work_is_answered_once_and_in_order(echoes, seed, count):
    pool = echoes(count, at_random(seed, 0.3))
    numbers = [number for number in range(40) if number not in (13, 14)]
    assert pool.run(doubles(numbers)) == [2 * number for number in numbers]


def test_work_is_counted_that_is_done_again_and_workers_that_are_replaced(echoes):
    lost = iter(["", "before", "done", *[""] * 20])
    pool = echoes(1, lambda actor, call: "" if call.method == "present" else next(lost))
    assert pool.run(doubles([1, 2, 3])) == [2, 4, 6]
    assert (pool.restarted, pool.redone, pool.life(0)) == (2, 2, 3)
    assert len(pool.said) == 2
    assert "reward 0 was lost (it was killed): a replacement starts and repeats its work" in pool.said[0]


def test_jobs_of_one_worker_stay_with_it(echoes):
    pool = echoes(3)
    jobs = [PlacedJob("so_far", lambda life: (), number) for number in (0, 1, 2, 1, 1)]
    assert pool.run(jobs) == [1, 1, 1, 2, 3]


def test_work_that_ends_every_worker_ends_the_run_in_words(echoes):
    pool = echoes(2, lambda actor, call: "before" if call.method == "double" else "", PoolLimits(restarts=3))
    with pytest.raises(RunError, match=r"lost 4 times in a row .cluster\.restarts is 3.* --resume"):
        pool.run(doubles([1]))


def test_a_worker_that_cannot_start_ends_the_run_in_words(echoes):
    pool = echoes(1, lambda actor, call: "before", PoolLimits(restarts=2))
    with pytest.raises(RunError, match="lost 3 times in a row"):
        pool.run(doubles([1]))


def test_a_worker_that_hangs_is_replaced(echoes):
    hung = {("reward", 0)}

    def cured(actor, call):
        hung.clear()
        return ""

    pool = echoes(2, cured, PoolLimits(timeout=0.0, start_timeout=0.0, restarts=1000), hang=hung)
    assert pool.run(doubles(range(6))) == [0, 2, 4, 6, 8, 10]


def test_errors_of_workers_are_told_and_do_not_replace_them(echoes):
    pool = echoes(1)
    with pytest.raises(InputError, match="bad luck"):
        pool.run(doubles([1, 13, 2]))
    with pytest.raises(RunError, match=r"reward 0: (.|\n)*ValueError: no such number"):
        pool.run(doubles([14]))
    assert pool.restarted == 0
    assert pool.run(doubles([4])) == [8]


def test_what_was_abandoned_is_not_taken_for_what_is_wanted(echoes):
    pool = echoes(2)
    with pytest.raises(InputError):
        pool.run(doubles([13, 1, 2, 3]))
    assert pool.run(doubles([5, 6])) == [10, 12]


def test_a_worker_that_cannot_be_made_says_why():
    room = WorkerRoom("reward", Held(pickle.dumps(hello_of("nothing that a worker understands"))))
    assert "AttributeError" in room.call("present", ()).failed


# ------------------------------------------------------------------------------------------------------- samplers


@pytest.fixture(scope="module")
def run():
    size = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 32}
    model = {"name": "tiny", "tiny": size}
    return resolve(parse_config({"task": "addition", "model": model, "seed": 3, "run": {"threads": 1}}))


@pytest.fixture
def policy(run):
    torch.manual_seed(run.config.seed)
    return build_policy(run)


def placed_sampler(run, policy, count=2, lose=None, shares=1):
    settings = SamplerSettings(run.config.model_dump(mode="json"), 1, "cpu")
    host = HostHere({"sampler": hello_of(settings)}, lose)
    return PlacedSampler(policy, WorkerPool(host, "sampler", count, PATIENT, lambda sentence: None), shares)


def requests_for(policy, count, budget=8, **more):
    prompts = policy.encode_prompts([f"{i % 5}+{i}=" for i in range(count)])
    return [Request(tuple(ids), budget, 100 + i, **more) for i, ids in enumerate(prompts)]


def same(a, b):
    assert a.actions == b.actions
    for name in ("logp_bt", "entropy_bt", "version_bt", "truncated_b"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert a.exact == b.exact


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_shares_are_completed_elsewhere_as_they_are_here(run, policy, seed):
    here, there = SharesHere(policy, 2), placed_sampler(run, policy, 2, None if seed is None else at_random(seed, 0.4))
    for version in (0, 1):
        for engine in (here, there):
            engine.publish(version, policy)
        same(here.sample(requests_for(policy, 9)), there.sample(requests_for(policy, 9)))
        with torch.no_grad():
            next(iter(policy.parameters())).add_(0.3)
    assert seed is None or there.pool.restarted


class RanksHere:
    """Ranks of this process, each with the same whole copy."""

    def __init__(self, policy, count):
        self.count, self.policy = count, policy
        self.stations = [Station(r, count, policy.device, None, None, kept={"whole": policy}) for r in range(count)]
        self.station = self.stations[0]

    def call(self, work, shares):
        return [work(station, share) for station, share in zip(self.stations, shares, strict=True)]

    def each(self, work, share=None):
        return self.call(work, [share] * self.count)


def ranked_sampler(policy, ranks, shares):
    """What samples on ranks that all have this policy."""
    sharded = SimpleNamespace(
        ranks=RanksHere(policy, ranks), copy_everywhere=lambda whole: None, precision="float32", dtype=policy.dtype
    )
    sampler = RankSampler(sharded, shares)
    sampler.policy = policy  # whose weights are published
    return sampler


@pytest.mark.parametrize(("ranks", "samplers"), [(2, 1), (2, 2), (2, 3), (3, 2)])
def test_shares_are_the_same_on_ranks_and_on_a_cluster_that_ranks_use(run, policy, ranks, samplers):
    shares = max(ranks, samplers)
    engines = [SharesHere(policy, shares), ranked_sampler(policy, ranks, samplers)]
    engines.append(placed_sampler(run, policy, samplers, None, ranks))
    assert [engine.count for engine in engines] == [shares] * 3
    found = [[engine.publish(0, policy), engine.sample(requests_for(policy, 9))][1] for engine in engines]
    same(found[0], found[1])
    same(found[0], found[2])
    turns = [turns_of(engine, policy) for engine in engines]
    for one, two, three in zip(*turns, strict=True):
        same(one, two)
        same(one, three)


@pytest.mark.parametrize(
    ("changes", "copies"),
    [
        ({}, 1),
        ({"run": {"async_steps": 1}}, 2),
        ({"cluster": {"samplers": 2}}, 2),
        ({"cluster": {}, "sampling": {"engine": "vllm", "vllm": {"addresses": ["http://127.0.0.1:1"]}}}, 0),
        ({"cluster": {}, "task": "preferences", "method": "bradley_terry"}, 0),
    ],
)
def test_ranks_keep_whole_copies_only_where_they_sample(changes, copies):
    cluster = {"ray": "auto", "samplers": 2}
    run = resolve(parse_config({"task": "addition", "model": "tiny", "seed": 3, "cluster": cluster} | changes))
    assert whole_copies(run, 2) == copies


@pytest.mark.parametrize("seed", range(4))
def test_a_session_is_brought_back_to_the_bit(run, policy, seed):
    here, there = SharesHere(policy, 2), placed_sampler(run, policy, 2, at_random(seed, 0.3))
    compare(here, there, policy)


def test_a_session_is_brought_back_whose_shares_have_one_worker(run, policy):
    compare(SharesHere(policy, 3), placed_sampler(run, policy, 2, at_random(5, 0.3), 3), policy)


@pytest.mark.parametrize("place", range(1, 6))
def test_a_share_that_is_done_when_its_worker_is_lost_with_another_is_brought_back(run, policy, place):
    """One worker has both shares: what it kept of the first is gone with it, whichever call of the second it was."""
    calls = iter(range(100))

    def second(actor, call):
        return "before" if call.method == "sample_in_session" and next(calls) == place else ""

    compare(SharesHere(policy, 2), placed_sampler(run, policy, 1, second, 2), policy)


def turns_of(engine, policy):
    """Three turns of a session, some requests with a pause."""
    with engine.session() as session:
        requests, turns = requests_for(policy, 6, budget=4), []
        requests = [Request(r.prompt, r.budget, r.seed, name=i) for i, r in enumerate(requests)]
        for _ in range(3):
            turns.append(session.sample(requests))
            requests = [
                Request((*r.prompt, *ids, 5, 6), 4, r.seed, sampled=r.sampled + len(ids), name=r.name)
                for r, ids in zip(requests, turns[-1].actions, strict=True)
            ][: 4 if len(turns) == 1 else 6]
    return turns


def compare(here, there, policy):
    """Hold the turns of two engines to each other."""
    for engine in (here, there):
        engine.publish(0, policy)
    found = [turns_of(engine, policy) for engine in (here, there)]
    for a, b in zip(*found, strict=True):
        same(a, b)


def test_one_share_is_what_the_local_sampler_gives(run, policy):
    local, placed = run.engine(policy), placed_sampler(run, policy, 1)
    for engine in (local, placed):
        engine.publish(0, policy)
    same(local.sample(requests_for(policy, 7)), placed.sample(requests_for(policy, 7)))


def fresh(policy, requests, samples):
    rows = Tokens(tuple(request.prompt for request in requests), samples.actions)
    return policy.logp(rows).numpy()


def test_placed_samplers_conform(run, policy):
    for count in (1, 3):
        engine = placed_sampler(run, policy, count)
        check_sampler(engine, requests_for(policy, 8), logp=partial(fresh, policy))
        check_sync(engine, policy)


def test_weights_are_written_once_however_many_read_them(run, policy):
    engine = placed_sampler(run, policy, 3)
    for version in range(3):
        engine.publish(version, policy)
        engine.sample(requests_for(policy, 6))
        engine.sample(requests_for(policy, 6))
    assert engine.pool.host.shared == 3


def test_other_weights_than_were_published_are_noticed(run, policy):
    engine = placed_sampler(run, policy, 1)
    engine.publish(0, policy)
    sent = engine._weights
    engine._weights = type(sent)(sent.exchange, sent.version, sent.checksum ^ 1, sent.packed)
    with pytest.raises(RunError, match="version 0 of the weights is not what was published"):
        engine.sample(requests_for(policy, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_tensors_travel_without_copies(dtype):
    state = {"a": torch.arange(6).reshape(2, 3).to(dtype), "empty": torch.zeros(0, 4, dtype=dtype)}
    packed = pack_tensors(state)
    there = unpack_tensors(packed)
    assert all(torch.equal(there[name], state[name]) and there[name].dtype == dtype for name in state)
    assert there["a"].data_ptr() == packed["a"][2].__array_interface__["data"][0] == state["a"].data_ptr()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shares_hold_every_request_once_and_prompts_together(policy, count):
    prompts = policy.encode_prompts(["1+1=", "12+34=", "5+5="])
    requests = [Request(tuple(ids), 8, i) for ids in prompts for i in range(4)]
    dealt = deal_requests(requests, count)
    assert sorted(row for share in dealt for row in share) == list(range(12))
    if count == 2:
        assert all(len({share // 4 for share in own}) <= 2 for own in dealt)


def test_a_publication_by_others_or_of_before_is_refused(run, policy):
    engine = placed_sampler(run, policy, 1)
    engine.publish(4, policy)
    with pytest.raises(InputError, match="another policy"):
        engine.publish(5, build_policy(run))
    with pytest.raises(InputError, match="Versions never go back"):
        engine.publish(3, policy)


# -------------------------------------------------------------------------------------------------------- rewards


def batch_lengths(completions):
    return [float(len(completions)) for _ in completions]


@pytest.mark.parametrize("seed", range(3))
def test_verdicts_are_those_of_this_process(seed):
    reward = load_reward("exact_match")
    texts, columns = [f"{i}" for i in range(30)], [{"answer": str(i // 2 * 2)} for i in range(30)]
    ids = [f"p#{i}" for i in range(30)]
    hello = {"reward": hello_of(reward_hello(reward, RewardSettings(workers=0)))}
    pool = WorkerPool(HostHere(hello, at_random(seed, 0.3)), "reward", 3, PATIENT, lambda sentence: None)
    assert PlacedReward(reward, pool).verdicts(texts, columns, ids) == verdicts_of(reward, texts, columns, ids)
    assert PlacedReward(reward, pool).verdicts([], [], []) == []


def test_a_reward_of_whole_batches_gets_them_whole(tmp_path):
    path = tmp_path / "lengths.py"
    path.write_text("def lengths(completions):\n    return [float(len(completions)) / 10 for _ in completions]\n")
    reward = load_reward(f"{path}:lengths")
    hello = {"reward": hello_of(reward_hello(reward, RewardSettings(workers=0)))}
    pool = WorkerPool(HostHere(hello), "reward", 3, PATIENT, lambda sentence: None)
    found = PlacedReward(reward, pool).verdicts(["a"] * 9, [{}] * 9, list("123456789"))
    assert [verdict.reward for verdict in found] == [0.9] * 9


# --------------------------------------------------------------------------------------------------- environments


def placed_stage(task, lose=None, count=2):
    hello = {"environment": hello_of(stage_hello(task, Acting(workers=0)))}
    return PlacedStage(WorkerPool(HostHere(hello, lose), "environment", count, PATIENT, lambda sentence: None))


def played(stage, task):
    """What the environments of a few episodes say, turn by turn."""
    found = [stage.call("reset", [(n, (task.example("train", n % 3), n)) for n in range(7)])]
    for text in ("k", "a"):
        stage.send("step", [(n, (text,)) for n in range(7)])
        heard: dict[int, object] = {}
        while len(heard) < 7:
            heard |= dict(stage.receive(0.0))
        found.append([heard[n] for n in range(7)])
    found.append(stage.call("score", [(n, ()) for n in range(7)]))
    found.append(stage.call("close", [(n, ()) for n in range(7)]))
    return found


@pytest.mark.parametrize("seed", [None, *range(5)])
def test_environments_say_elsewhere_what_they_say_here(seed):
    task = load_task(ASK)
    there = placed_stage(task, None if seed is None else at_random(seed, 0.4))
    assert repr(played(there, task)) == repr(played(HereStage(task.environment), task))
    assert seed is None or there.pool.restarted
    assert not there._journal
    assert not there._home


def test_an_environment_that_does_not_come_back_the_same_has_failed(tmp_path):
    path = tmp_path / "moody.py"
    path.write_text(
        "from pathlib import Path\nfrom grouprl.envs import Observation, Step\n"
        "class Moody:\n"
        "    def reset(self, example, seed):\n"
        f"        log = Path({str(tmp_path / 'log')!r})\n"
        "        log.write_text((log.read_text() if log.exists() else '') + 'x')\n"
        "        return Observation(log.read_text())\n"
        "    def step(self, action):\n        return Step(Observation('!'))\n"
        "    def score(self):\n        return {'correct': 1.0}\n"
        "    def close(self):\n        pass\n"
    )
    task = load_task(f"env:{path}:Moody", seed=0)
    calls = iter(["", "before", *[""] * 20])
    stage = placed_stage(task, lambda actor, call: "" if call.method == "present" else next(calls), count=1)
    stage.call("reset", [(0, (task.example("train", 0), 1))])
    (found,) = stage.call("step", [(0, ("a",))])
    assert isinstance(found, Failure)
    assert "not reproducible" in found.what
    assert stage.call("close", [(0, ())]) == [None]


def test_a_play_that_is_broken_off_leaves_nothing_behind():
    task = load_task(ASK)
    stage = placed_stage(task)
    stage.send("reset", [(n, (task.example("train", n), n)) for n in range(4)])
    stage.clear()
    assert stage.receive(0.0) == []
    assert repr(played(stage, task)) == repr(played(HereStage(task.environment), task))
