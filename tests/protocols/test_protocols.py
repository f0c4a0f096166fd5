"""The seam of sampling: every sample passes it, any engine may stand behind it, what it says of itself is believed."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from async_runs import run_config
from chat_policies import chatting
from grouprl.algorithms.sampling.papers.entropy_score import ScoredTemperature
from grouprl.config.run import Config, parse_config
from grouprl.core.errors import InputError
from grouprl.evaluation.evaluate import evaluate
from grouprl.orchestrator.asynchronous.resumable_sampling import Follower, InFlight
from grouprl.orchestrator.asynchronous.sampling_worker import WorkerSampler as ChildSampler
from grouprl.orchestrator.asynchronous.weights import SharedWeights
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.orchestrator.step import collect_rollout
from grouprl.policy import Tokens, load_policy
from grouprl.policy.teams.team_policy import TeamPolicy
from grouprl.protocols import Engine, Request, Sampler, Samples, SampleSource, WeightSync
from grouprl.rollout.in_flight import InFlightEpisodes
from grouprl.rollout.local import decode_loop
from grouprl.rollout.local.sampler import LocalSampler, as_rollout
from grouprl.rollout.prompt_stream import PromptStream
from grouprl.serve import BatchedSampling, SampleJob
from grouprl.tasks import load_task
from grouprl.testing import check_sampler, check_samples, check_source, check_sync
from grouprl.training.loop import batch_of, train
from grouprl.training.opening import start
from grouprl.training.session import Session
from policies import make_policy

PROMPTS = [(1, 4, 5, 13), (1, 9), (1, 6, 7, 8), (1, 9)]
REQUESTS = [Request(prompt, 8 + i % 3, 20 + i, 0.8 + 0.1 * (i % 2)) for i, prompt in enumerate(PROMPTS * 2)]
TINY = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}}


def own_logp(policy: Any) -> Callable[[Sequence[Request[Any]], Samples[Any]], np.ndarray]:
    """Scores by a full pass of `policy`, whose temperature is set to each request's."""

    def score(requests: Sequence[Request[Any]], samples: Samples[Any]) -> np.ndarray:
        found = torch.zeros(samples.logp_bt.shape, dtype=torch.float64)
        for i, (request, actions) in enumerate(zip(requests, samples.actions, strict=True)):
            policy.temperature = request.temperature
            found[i, : len(actions)] = policy.logp(Tokens.of([request.prompt], [actions]))[0].double()
        return found.numpy()

    return score


def tiny_policy(alphabet: str, seed: int = 0) -> Any:
    """A policy of one small layer."""
    return load_policy(
        "tiny", dtype="float64", alphabet=alphabet, seed=seed, hidden=16, layers=1, heads=2, intermediate=16
    )


class Changed:
    """A sampler that alters what the local one does: `requests` before, `samples` after."""

    def __init__(self, policy: Any, *, before: Any = None, after: Any = None, exact: bool | None = None) -> None:
        self.local, self.before, self.after = LocalSampler(policy), before, after
        self.exact = self.local.exact if exact is None else exact

    def sample(self, requests: Sequence[Request[Any]]) -> Samples[Any]:
        changed = list(requests) if self.before is None else self.before(list(requests))
        samples = self.local.sample(changed)
        samples = replace(samples, exact=self.exact)
        return samples if self.after is None else self.after(samples)

    def session(self) -> AbstractContextManager[Any]:
        return nullcontext(self)

    @property
    def version(self) -> int:
        return self.local.version

    def publish(self, version: int, policy: Any) -> None:
        self.local.publish(version, policy)


# --- conformance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["lean", "transformers"])
def test_the_local_sampler_is_one(engine: str) -> None:
    policy = make_policy("llama", torch.float64, engine=engine)
    check_sampler(LocalSampler(policy), REQUESTS, logp=own_logp(policy))
    sampler = LocalSampler(policy)
    check_sync(sampler, policy, sample=lambda: sampler.sample(REQUESTS))
    assert isinstance(sampler, Engine)


def test_a_sampler_of_half_precision_says_that_it_is_not_exact() -> None:
    policy = make_policy("llama", torch.bfloat16)
    assert not LocalSampler(policy).exact
    assert not LocalSampler(policy).sample(REQUESTS).exact


def test_the_sampler_of_the_sampler_process_is_one() -> None:
    policy = make_policy("llama", torch.float64)
    shared = SharedWeights.create(policy.trainable_state())
    shared.publish(3, policy.trainable_state())
    follower = Follower(policy, shared, lambda report: None, None)
    follower.refresh()
    for partial in (False, True):
        sampler = InFlight(follower, partial=partial)
        check_sampler(sampler, REQUESTS, logp=own_logp(policy))
        assert set(np.unique(sampler.sample(REQUESTS).version_bt)) <= {-1, 3}
        with sampler.session() as session:
            assert set(np.unique(session.sample(REQUESTS).version_bt)) <= {-1, 3}
        with pytest.raises(InputError, match="loads its weights from shared memory"):
            sampler.publish(4, policy)


def test_the_sampler_of_a_team_lets_each_agent_act() -> None:
    members = {name: tiny_policy("0123456789+=. ", seed=seed) for seed, name in enumerate(("a", "b"))}
    team = TeamPolicy(members)
    requests = [replace(request, agent=i % 2) for i, request in enumerate(REQUESTS)]
    check_sampler(LocalSampler(team), requests)
    whole = LocalSampler(team).sample(requests)
    for agent, member in enumerate(members.values()):
        own = LocalSampler(member).sample([r for r in requests if r.agent == agent])
        assert own.actions == whole.actions[agent::2]
        width = own.logp_bt.shape[1]
        np.testing.assert_array_equal(own.logp_bt, whole.logp_bt[agent::2, :width])


def _unfinished(samples: Samples[Any]) -> Samples[Any]:
    return replace(samples, truncated_b=np.ones(len(samples), dtype=bool))


def _back(samples: Samples[Any]) -> Samples[Any]:
    present = samples.logp_bt != 0
    falling = np.arange(samples.logp_bt.shape[1])[::-1][None].repeat(len(samples), 0)
    return replace(samples, version_bt=np.where(present, falling, -1))


def _shifted(samples: Samples[Any]) -> Samples[Any]:
    return replace(samples, logp_bt=np.where(samples.logp_bt != 0, samples.logp_bt - 0.3, 0.0))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one seed for all": ({"before": lambda rs: [replace(r, seed=0) for r in rs]}, "different seeds"),
    "neighbours matter": ({"before": lambda rs: [replace(r, seed=r.seed + len(rs)) for r in rs]}, "neighbours"),
    "order matters": ({"before": lambda rs: [replace(r, seed=r.seed + i) for i, r in enumerate(rs)]}, "order"),
    "pieces begin anew": ({"before": lambda rs: [replace(r, sampled=0) for r in rs]}, "pieces"),
    "the budget is exceeded": ({"before": lambda rs: [replace(r, budget=r.budget + 5) for r in rs]}, "1 to 8 actions"),
    "greedy is left out": ({"before": lambda rs: [replace(r, greedy=False) for r in rs]}, "greedy"),
    "a request is lost": ({"before": lambda rs: rs[:-1] or rs}, "one sample per request"),
    "everything is truncated": ({"after": _unfinished}, "used its budget"),
    "noise beyond the end": (
        {"after": lambda s: replace(s, logp_bt=np.where(s.logp_bt == 0, -1.0, s.logp_bt))},
        "0 beyond the end",
    ),
    "log-probs are not finite": ({"after": lambda s: replace(s, logp_bt=s.logp_bt - np.inf)}, "finite"),
    "versions go back": ({"after": _back}, "never go back"),
    "it says exact and is not": ({"after": _shifted}, "log-probs of an exact sampler"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_no_sampler_is_found_out(fault: str) -> None:
    policy = make_policy("llama", torch.float64)
    changes, words = WRONG[fault]
    with pytest.raises(AssertionError, match=words):
        check_sampler(Changed(policy, **changes), REQUESTS, logp=own_logp(policy))


def test_an_inexact_sampler_that_says_so_is_one() -> None:
    policy = make_policy("llama", torch.float64)
    check_sampler(Changed(policy, after=_shifted, exact=False), REQUESTS, logp=own_logp(policy))


def test_requests_that_cannot_show_anything_are_refused() -> None:
    sampler = LocalSampler(make_policy())
    for requests in (REQUESTS[:3], [replace(r, seed=1) for r in REQUESTS], [replace(r, greedy=True) for r in REQUESTS]):
        with pytest.raises(InputError, match="at least four"):
            check_sampler(sampler, requests)


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    logp_bt, truncated_b = np.zeros((2, 3)), np.zeros(2, dtype=bool)
    Samples(((1, 2, 3), (1,)), logp_bt, truncated_b, exact=True)
    for changes in ({"logp_bt": logp_bt[:, :2]}, {"entropy_bt": logp_bt[:1]}, {"truncated_b": truncated_b[:1]}):
        given: dict[str, Any] = {"logp_bt": logp_bt, "truncated_b": truncated_b, **changes}
        with pytest.raises(InputError, match=next(iter(changes))):
            Samples(((1, 2, 3), (1,)), exact=True, **given)


def test_actions_need_not_be_tokens() -> None:
    """A policy of another kind: two numbers are added to an observation, sampled from a normal distribution."""

    class Gaussian:
        exact = True

        def sample(self, requests: Sequence[Request[tuple[float, ...]]]) -> Samples[tuple[float, ...]]:
            moves = []
            for request in requests:
                mean = np.zeros(2) if request.greedy else np.random.default_rng(request.seed).normal(size=2)
                moves.append((tuple((mean * request.temperature + request.prompt[:2]).tolist()),))
            logp_bt = np.full((len(requests), 1), 0.7)  # a density: its log may be positive
            return Samples(tuple(moves), logp_bt, np.zeros(len(requests), dtype=bool), exact=True)

        def session(self) -> AbstractContextManager[Any]:
            return nullcontext(self)

    check_sampler(Gaussian(), [Request((0.5, -1.0), 1, seed) for seed in range(5)], pieces=False)


def test_requests_of_different_settings_are_answered_in_their_order() -> None:
    policy = make_policy("llama", torch.float64)
    sampler, mixed = (
        LocalSampler(policy),
        [
            replace(REQUESTS[0], greedy=True),
            REQUESTS[1],
            replace(REQUESTS[2], top_k=3),
            REQUESTS[3],
            replace(REQUESTS[4], stop=((9,),)),
        ],
    )
    whole = sampler.sample(mixed)
    check_samples(whole, mixed)
    for i, request in enumerate(mixed):
        alone = sampler.sample([request])
        assert alone.actions[0] == whole.actions[i]
        np.testing.assert_allclose(alone.logp_bt[0], whole.logp_bt[i, : len(alone.actions[0])], atol=1e-9)
    assert len(sampler.sample([])) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budget": 0}, "budget=0"),
        ({"temperature": 0.0}, "temperature=0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"top_k": -1}, "top_k=-1"),
        ({"stop": ((),)}, "empty stop sequence"),
        ({"stop_texts": ("",)}, "empty stop text"),
        ({"sampled": -1}, "sampled=-1"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(REQUESTS[0], **changes)


def test_a_temperature_that_follows_entropy_is_that_of_each_token() -> None:
    """Log-probs are those of softmax(logits / (T·(1 + tau·h))), entropies those at T."""
    policy = make_policy("llama", torch.float64)
    pivot, above, below = float(np.log(2.0)), 0.5, 0.9
    scaling = ScoredTemperature(0.4, (pivot, above, below))
    requests = [replace(request, temperature=0.8, entropy_scaling=scaling) for request in REQUESTS]
    sampled = as_rollout(requests, LocalSampler(policy).sample(requests))
    policy.temperature = 0.8
    torch.testing.assert_close(
        sampled.entropy_bt, policy.evaluate(sampled.tokens, ["entropy"])["entropy"], rtol=0, atol=1e-9
    )
    temperatures = set()
    for i, ids in enumerate(sampled.response_ids):
        for t in range(len(ids)):
            around = float(np.log(float(sampled.entropy_bt[i, t]))) - pivot
            h = around / (above if around > 0 else below)
            policy.temperature = 0.8 * (1 + 0.4 * float(np.clip(h, -1, 1)))
            one = policy.logp(Tokens.of([requests[i].prompt], [ids]))[0, t]
            assert float(one) == pytest.approx(float(sampled.logp_bt[i, t]), abs=1e-9)
            temperatures.add(round(policy.temperature, 6))
    assert len(temperatures) > 5


# --- every sample passes the seam -------------------------------------------------------------------------------------


class Counting(LocalSampler):
    """Counts what passes the seam, in sessions and outside."""

    passed = 0

    def _sample(self, requests: Any, *given: Any, **more: Any) -> Any:
        Counting.passed += len(requests)
        return super()._sample(requests, *given, **more)


@pytest.fixture
def rows_sampled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the local decoder wrote, call by call."""
    rows: list[int] = []
    write = decode_loop._Writer.write

    def counted(self: Any, decoder: Any, prompts: Any, *given: Any) -> None:
        rows.append(len(prompts))
        write(self, decoder, prompts, *given)

    monkeypatch.setattr(decode_loop._Writer, "write", counted)
    monkeypatch.setattr(Counting, "passed", 0)
    return rows


def small(task: Any, **changes: Any) -> Config:
    more = {
        "task": task,
        "model": TINY,
        "steps": 2,
        "run": {"threads": 1},
        "eval": {"every": 1, "final_prompts": 4, "prompts": 4},
    }
    return parse_config({**run_config(), **more, **changes})


def run_with(folder: Path, config: Config, engine: Any) -> Path:
    return train(config, folder=folder, console=Console(file=io.StringIO(), width=100), engine=engine).folder


@pytest.mark.parametrize(
    "config",
    [
        {"task": "addition"},
        {"task": {"name": "guess", "noise": 0.3}},
        {"task": "addition", "method": {"base": "grpo", "sampling": "entropy_temperature"}},
        {"task": "addition", "method": "remax", "batch": {"prompts": 4, "group_size": 4}},
        {"task": "addition", "run": {"threads": 1, "async_steps": 1}},
    ],
    ids=["single completions", "episodes", "a temperature rule", "a greedy baseline", "asynchronous"],
)
def test_a_run_samples_nothing_past_its_sampler(
    config: dict[str, Any], rows_sampled: list[int], tmp_path: Path
) -> None:
    run_with(tmp_path / "run", small(**config), Counting)
    assert sum(rows_sampled) == Counting.passed > 0


def noting(sample: Any, passed: list[int]) -> Any:
    """`sample` that writes down how many requests pass."""

    def noted(requests: Any, *given: Any, **more: Any) -> Any:
        passed.append(len(requests))
        return sample(requests, *given, **more)

    return noted


def test_the_sampler_process_samples_nothing_past_its_sampler(rows_sampled: list[int], monkeypatch: Any) -> None:
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    for task in ("addition", "guess"):
        config = small(task, run={"threads": 1, "async_steps": 1})
        policy = build_policy(resolve(config))
        shared = SharedWeights.create(policy.trainable_state())
        shared.publish(0, policy.trainable_state())
        hello = {"config": config.model_dump(mode="json"), "places": shared.places, "threads": 1, "weights": shared.fd}
        hello |= {"verdicts": None, "pace": None, "servers": None, "rows": {}}
        child = ChildSampler(hello, lambda report: None)
        passed: list[int] = []
        own = child.row_source.sampler
        assert isinstance(own, InFlight)
        monkeypatch.setattr(own, "_sample", noting(own._sample, passed))
        before = sum(rows_sampled)
        requests = PromptStream(child.row_source.task, 0, None).requests(2, 3)
        sampled = child.sample(requests)
        assert sum(rows_sampled) - before == sum(passed) >= len(sampled)
        assert set(np.unique(sampled.extras["version_bt"])) <= {-1, 0}


def test_an_evaluation_samples_nothing_past_its_sampler(rows_sampled: list[int]) -> None:
    for task in (load_task("addition", 0), load_task("guess", 0)):
        policy = tiny_policy(task.alphabet)
        before, passed = sum(rows_sampled), Counting.passed
        sampler = Counting(policy)
        found = evaluate(policy, task, prompts=3, samples=2, max_new_tokens=6, sampler=sampler)
        assert sum(rows_sampled) - before == Counting.passed - passed >= 9
        assert found == evaluate(policy, task, prompts=3, samples=2, max_new_tokens=6)


def test_a_server_samples_nothing_past_its_sampler(rows_sampled: list[int]) -> None:
    policy = chatting()
    drawing = BatchedSampling(policy, 8, Counting(policy))
    completions = [drawing.sample(SampleJob(tuple(policy.encode("Hello")), 50, seed)) for seed in range(3)]
    assert all(len(answer.result(30).ids) for answer in completions)
    drawing.close()
    assert sum(rows_sampled) == Counting.passed >= 3


# --- the engine may be exchanged -----------------------------------------------------------------------------------


def started(folder: Path, engine: Any, **changes: Any) -> Session:
    return start(small("addition", warmup={"steps": 0}, **changes), folder, engine)


@pytest.mark.parametrize("exact", [True, False])
def test_episodes_in_flow_are_exact_where_the_samples_of_their_turns_are(exact: bool, tmp_path: Path) -> None:
    """Each `Samples` says it itself; what is known of the sampler beforehand is the opposite here."""

    def said(samples: Samples[Any]) -> Samples[Any]:
        return replace(samples, exact=exact)

    config = small("guess", warmup={"steps": 0})
    session = start(config, tmp_path / "run", lambda policy: Changed(policy, after=said, exact=not exact))
    flow = InFlightEpisodes(session.row_source, lambda busy: False, lambda busy: True)
    for number in range(2):
        flow.request(number, session.source.requests(1, 3))
    done = {}
    while flow.busy:
        done |= dict(flow.advance(1.0))
    assert [done[number].rollout.exact for number in range(2)] == [exact, exact]
    session.close()
    session.leave()


@pytest.mark.parametrize("task", ["addition", "guess"])
@pytest.mark.parametrize("exact", [True, False])
def test_old_log_probs_are_computed_anew_unless_the_sampler_says_that_they_are_exact(
    task: str, exact: bool, tmp_path: Path
) -> None:
    """The weights are float32, so the type of the policy alone would have the sampler's log-probs taken as old ones."""
    plan = {"prompts": 2, "group_size": 2, "epochs": 2}
    config = small(task, warmup={"steps": 0}, batch=plan)
    session = start(config, tmp_path / "run", lambda policy: Changed(policy, after=_shifted, exact=exact))
    rollout = collect_rollout(session.context)
    assert rollout is not None
    batch = batch_of(session, rollout.wanted)
    assert batch is not None
    assert batch.old_bt is not None
    assert batch.behavior_bt is not None
    own_bt, mask_bt = session.policy.logp(rollout.wanted.tokens)[:, : batch.size[1]], batch.mask_bt
    torch.testing.assert_close(batch.behavior_bt[mask_bt], own_bt[mask_bt] - 0.3, atol=1e-4, rtol=0)
    old_bt = own_bt - 0.3 if exact else own_bt
    torch.testing.assert_close(batch.old_bt[mask_bt], old_bt[mask_bt], atol=1e-4, rtol=0)
    session.close()
    session.leave()


def test_a_whole_run_goes_by_another_engine_and_tells_it_of_each_version(tmp_path: Path) -> None:
    told: list[int] = []

    class Other(Changed):
        def publish(self, version: int, policy: Any) -> None:
            told.append(version)
            super().publish(version, policy)

    config = small("addition", warmup={"steps": 3, "batch": 4})
    run_with(tmp_path / "run", config, lambda policy: Other(policy, after=_shifted, exact=False))
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    gaps = [record["kl_behavior"] for record in records if record["phase"] == "train"]
    assert gaps == pytest.approx([-0.3, -0.3], abs=1e-4)
    assert told == [0, 1, 2]


def test_versions_never_go_back_and_belong_to_the_policy_in_training() -> None:
    policy, sampler = make_policy(), LocalSampler(make_policy())
    with pytest.raises(InputError, match="another policy's weights"):
        sampler.publish(0, policy)
    sampler.publish(2, sampler.policy)
    with pytest.raises(InputError, match="version 1 is published after version 2"):
        sampler.publish(1, sampler.policy)


# --- sources --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead", "samplers"), [(0, 1), (1, 1), (1, 0)])
def test_all_sources_of_samples_are_sources(ahead: int, samplers: int, tmp_path: Path) -> None:
    run = {"threads": 1, "async_steps": ahead, "samplers": samplers}
    session = started(tmp_path / "run", LocalSampler, steps=3, run=run)
    source = session.context.sample_source
    assert source.asynchronous == bool(ahead)
    assert isinstance(source, SampleSource)

    def groups(found: Any) -> Sequence[int]:
        return sorted(set(found[0].ordinal_b.tolist()))

    check_source(source, groups, count=session.context.prompts, steps=3)
    session.close()
    session.leave()


def test_a_source_that_returns_a_prompt_twice_is_found_out() -> None:
    class Twice:
        asynchronous = False

        def begin(self, say: Any) -> None: ...

        def round(self, count: int) -> list[int]:
            return [7]

        def advance(self, step: Any) -> dict[str, float]:
            return {}

        def state(self) -> dict[str, Any]:
            return {}

        def restore(self, state: Any) -> None: ...

        def close(self) -> None: ...

    with pytest.raises(AssertionError, match="no prompt is returned twice"):
        check_source(Twice(), list, count=4, steps=2)


def test_a_sync_that_forgets_or_goes_back_is_found_out() -> None:
    class Forgetful:
        version = -1

        def publish(self, version: int, policy: Any) -> None: ...

    class Backwards(Forgetful):
        def publish(self, version: int, policy: Any) -> None:
            self.version = version

    assert isinstance(Forgetful(), WeightSync)
    assert isinstance(LocalSampler(make_policy()), Sampler)
    with pytest.raises(AssertionError, match=r"after publish\(0"):
        check_sync(Forgetful(), None)
    with pytest.raises(AssertionError, match="a version below the last one"):
        check_sync(Backwards(), None)


def test_the_engine_of_the_page_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(block, names)
    policy = make_policy("llama", torch.float64)
    engine = names["Careful"](policy)
    assert isinstance(engine, Engine)
    names["check"](engine, policy, (1, 4, 5))
