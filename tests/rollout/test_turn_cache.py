"""Keys and values kept between turns: the same tokens and log-probs as when everything is read anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import toy_envs
from grouprl.policy import load_policy
from grouprl.rollout.episodes import Start, play
from grouprl.rollout.local import turn_cache as kept_module
from grouprl.rollout.local.lean_decoder import LeanDecoder
from grouprl.rollout.local.sampler import LocalSampler, generate
from grouprl.rollout.local.turn_cache import TurnCache
from grouprl.tasks import Example
from policies import kept_rows


def policy(kv_heads: int = 2, dtype: torch.dtype = torch.float64) -> Any:
    sizes = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": kv_heads, "intermediate": 16, "seed": 1}
    made = load_policy("tiny", alphabet=toy_envs.AskTask.alphabet, **sizes)
    made.model.to(dtype)
    return made


def played(own: Any, cache_gb: float, task: Any = None, count: int = 24, turns: int = 5) -> Any:
    if task is None:
        starts = [Start(Example(f"q{i}", "?", {"turns": 1 + i % turns}), 0, action_seed=i) for i in range(count)]
        return play(
            own, toy_envs.Counting, starts, max_turns=9, max_new_tokens=5, sampler=LocalSampler(own, cache_gb=cache_gb)
        )
    starts = [Start(task.example("train", i // 8), i, action_seed=i) for i in range(count)]
    limits = {"max_turns": task.max_turns, "max_new_tokens": 3, "agents": task.agents}
    return play(own, task.environment, starts, **limits, sampler=LocalSampler(own, cache_gb=cache_gb))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("task", [None, toy_envs.AskTask(), toy_envs.TeamTask()])
def test_episodes_are_the_same_with_and_without(kv_heads: int, task: Any) -> None:
    own = policy(kv_heads)
    anew, known = played(own, 0.0, task), played(own, 1.0, task)
    assert anew.rollout.response_ids == known.rollout.response_ids
    torch.testing.assert_close(anew.rollout.logp_bt, known.rollout.logp_bt, atol=1e-12, rtol=0)
    torch.testing.assert_close(anew.rollout.entropy_bt, known.rollout.entropy_bt, atol=1e-12, rtol=0)


def test_log_probs_are_the_policys_own() -> None:
    own = policy(2, torch.float32)
    episodes = played(own, 1.0)
    logp_bt = own.logp(episodes.rollout.tokens)
    mask_bt = torch.from_numpy(episodes.mask_bt)
    torch.testing.assert_close(episodes.rollout.logp_bt[mask_bt], logp_bt[mask_bt], atol=2e-5, rtol=0)


def test_only_what_is_new_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    own, read = policy(), []
    for name in ("_read", "_read_on"):
        whole = getattr(LeanDecoder, name)

        def counted(self: Any, prompts: Any, *rest: Any, whole: Any = whole) -> Any:
            read.append(sum(map(len, prompts)))
            return whole(self, prompts, *rest)

        monkeypatch.setattr(LeanDecoder, name, counted)
    anew = played(own, 0.0)
    without = sum(read)
    read.clear()
    played(own, 1.0)
    prompts = {(p, len(p)) for p in anew.rollout.prompt_ids}
    between = int((anew.rollout.tokens.present_bt().numpy() & ~anew.mask_bt).sum())
    later = int(anew.turns_b.sum()) - len(anew)
    assert sum(read) <= sum(length for _, length in prompts) + between + later
    assert sum(read) < 0.5 * without


def test_beyond_the_limit_everything_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    own = policy()
    anew = played(own, 0.0)
    monkeypatch.setattr(kept_module, "GIB", 20_000)
    some = played(own, 1.0)
    assert some.rollout.response_ids == anew.rollout.response_ids
    torch.testing.assert_close(some.rollout.logp_bt, anew.rollout.logp_bt, atol=1e-12, rtol=0)


def test_a_row_that_was_changed_is_read_anew() -> None:
    own, held = policy(), TurnCache(1.0)
    first = own.encode_prompt("abc?")
    settings: dict[str, Any] = {"n": 1, "max_new_tokens": 4, "seeds": [3, 4]}
    sampled = kept_rows(own, [first, first], held, ["x", "y"], **settings)
    grown = [[*first, *ids, *own.encode("kk")] for ids in sampled.response_ids]
    grown[1][2] = own.encode("-")[0]
    past = held.past(["x", "y"], grown)
    assert set(past._held) == {tuple(grown[0])}
    again = kept_rows(own, [first, first], held, ["x", "y"], **settings)
    assert again.response_ids == sampled.response_ids
    one = generate(own, grown, **settings)
    two = kept_rows(own, grown, held, ["x", "y"], **settings)
    assert one.response_ids == two.response_ids
    torch.testing.assert_close(one.logp_bt, two.logp_bt, atol=1e-12, rtol=0)
