"""Episodes of several agents: rows, rewards, callers, groups, and everything that counts rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import toy_envs
from episode_runs import launch, records, resumed_is_the_same, run_config
from grouprl.config.run import parse_config
from grouprl.core.batch import Batch
from grouprl.envs import Observation, Step
from grouprl.evaluation.evaluate import evaluate
from grouprl.plan.plan import plan
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny
from grouprl.records.joining import join
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, sort_by_group, subset, to_batch
from grouprl.records.serialize import pack, unpack
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.episodes import Episodes, Start, demonstrate, play
from grouprl.rollout.kinds.row_kinds import open_rows
from grouprl.training.warmup import demonstration_batch

TEAM = f"{toy_envs.__file__}:TeamTask"


def policy() -> Any:
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}
    return CausalPolicy(*build_tiny(toy_envs.AskTask.alphabet, **sizes, seed=1))


def script(*words: str) -> tuple[tuple[int, ...], ...]:
    """Turns as token ids, each with its end."""
    own = policy()
    return tuple((*own.encode(word), own.eos_ids[0]) for word in words)


def acted(task: Any, words: tuple[str, ...], **of_prompt: Any) -> Episodes:
    """Play an episode whose turns are all given."""
    example = task.example("train", 0)
    example.columns.update(of_prompt)
    start = Start(example, 0, prefix=script(*words), train_prefix=True)
    limits = {"max_turns": len(words), "max_new_tokens": 2, "agents": task.agents}
    return play(policy(), task.environment, [start], **limits)


def test_each_agent_and_each_fresh_call_has_a_row() -> None:
    found = acted(toy_envs.TeamTask(), ("k", "b", "k", "a", "a"), letter="a")
    assert found.prompts == ("?", "a!", "a!")
    assert found.agent_b.tolist() == [1, 0, 0]
    assert found.context_b.tolist() == [0, 1, 2]
    assert found.caller_b.tolist() == [-1, 0, 0]
    assert found.episode_b.tolist() == [0, 0, 0]
    decode = policy().tokenizer.convert_ids_to_tokens
    boss, helper, _ = found.rollout.response_ids
    assert [len(boss), len(helper)] == [2 + 1 + 2 + 1 + 2, 2]
    assert [decode(i) for i in boss if i not in policy().eos_ids] == ["k", "b", "k", "a", "a"]
    assert found.mask_bt[0].tolist() == [True, True, False, True, True, False, True, True]
    assert found.turn_bt[0].tolist() == [0, 0, -1, 1, 1, -1, 2, 2]
    assert found.turn_bt[1].tolist() == [0, 0, *[-1] * 6]
    assert [turn.number for turn in found.records[0].turns] == [0, 2, 4]
    assert [turn.number for turn in found.records[2].turns] == [3]


def test_rewards_go_to_who_earned_them() -> None:
    found = acted(toy_envs.TeamTask(), ("k", "b", "k", "a", "a"), letter="a")
    np.testing.assert_allclose(found.turn_reward_bs, [[-0.1, -0.1, 0.5], [0, 0, 0], [1.5, 0, 0]])
    assert found.verdicts[0] == {"turn_rewards": pytest.approx(0.3), "correct": 1.0, "thrift": -0.02}
    assert found.verdicts[2] == {"turn_rewards": 1.5, "correct": 1.0}
    assert found.outcomes == ({"turn_rewards": 1.5, "correct": 1.0},)
    assert found.transcripts[0] == "boss> k\na!\nhelper> b\nb\nboss> k\na!\nhelper> a\na\nboss> a\n!"
    assert found.texts[1] == "helper> b\nb"


def test_a_reward_waits_for_the_first_turn_of_who_has_not_acted_yet() -> None:
    class Late(toy_envs.Team):
        def step(self, action: str) -> Step:
            if self.acting == "boss" and not self.made:
                self.made, self.acting = 1, "helper"
                return Step(Observation("a!", agent="helper"), rewards={"helper": 2.0})
            return super().step(action)

    task = toy_envs.TeamTask()
    task.environment = Late  # type: ignore[method-assign]
    found = acted(task, ("k", "a", "a"), letter="a")
    np.testing.assert_allclose(found.turn_reward_bs, [[0, 0.5], [2 + 1 + 0.5, 0]])
    assert found.caller_b.tolist() == [-1, -1]
    alone = acted(task, ("k",), letter="a")
    assert len(alone) == 1
    assert alone.outcomes[0]["turn_rewards"] == 2.0
    assert alone.ended == ("out_of_turns",)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Step(Observation("", agent="cook")), "names the agent 'cook'; the task's agents are 'helper', 'boss'"),
        (Step(Observation("", agent="boss"), rewards={"cook": 1.0}), "names the agent 'cook'"),
        (Step(Observation("", agent="boss"), rewards={"boss": float("nan")}), "reward nan, not a finite number"),
        (Step(Observation("", agent="boss"), rewards=[1.0]), "but they must be given by agent"),  # type: ignore[arg-type]
    ],
)
def test_strange_agents_and_rewards_are_named(wrong: Step, said: str) -> None:
    class Odd(toy_envs.Team):
        def step(self, action: str) -> Step:
            return wrong

    task = toy_envs.TeamTask()
    task.environment = Odd  # type: ignore[method-assign]
    (failure,) = acted(task, ("k",)).failures
    assert said in failure.what
    assert "prompt 'team" in failure.what or "prompt 'ask" in failure.what


@pytest.mark.parametrize("scores", [{"cook": {}}, {"boss": 1.0}, {"boss": {"reward": 1.0}}, 3])
def test_strange_scores_are_named(scores: Any) -> None:
    class Odd(toy_envs.Team):
        def scores(self) -> Any:
            return scores

    task = toy_envs.TeamTask()
    task.environment = Odd  # type: ignore[method-assign]
    (failure,) = acted(task, ("a",)).failures
    assert "scores() must return" in failure.what or "names the agent 'cook'" in failure.what


def samples(completions: int = 3, **config: Any) -> ScoredSamples:
    task = toy_envs.TeamTask()
    source = open_rows(parse_config(run_config(**config)), task, policy(), task.reward, 2, ErrorPolicy())
    requests = [
        RolloutRequest(ordinal, ordinal, task.example("train", ordinal), completions, first=0) for ordinal in (4, 7)
    ]
    return source.rows(requests)


def test_groups_are_of_prompt_and_agent() -> None:
    rows = samples()
    assert set(rows.ordinal_b.tolist()) == {4, 7}
    np.testing.assert_array_equal(rows.group_b, rows.ordinal_b * 2 + rows.extras["agent_b"])
    assert len(set(rows.row_keys)) == len(rows)
    assert rows.first_b.sum() == 6
    assert len(rows) > 6
    names = [("helper", "boss")[agent] for agent in rows.extras["agent_b"]]
    assert [record.agent for record in rows.records] == names


def test_callers_are_found_wherever_rows_go() -> None:
    rows = samples()
    mixed = sort_by_group(subset(rows, np.random.default_rng(0).permutation(len(rows))))
    batch = to_batch(mixed, max_length=99)
    found = 0
    for row, parent in enumerate(batch.parent_b.tolist()):
        if parent >= 0:
            found += 1
            assert batch.keys["episode"][row] == batch.keys["episode"][parent]
            assert batch.keys["context"][parent] == batch.keys["caller"][row]
        else:
            assert batch.keys["caller"][row] == -1
    assert found == int((batch.keys["caller"] >= 0).sum()) > 0


def test_rows_of_a_batch_keep_their_callers() -> None:
    batch = Batch(
        mask_bt=torch.ones(4, 1, dtype=torch.bool),
        group_b=torch.zeros(4, dtype=torch.int64),
        reward_b=torch.zeros(4),
        parent_b=torch.tensor([-1, 0, 0, 1]),
    )
    assert batch.rows(torch.tensor([3, 1, 0])).parent_b.tolist() == [1, 2, -1]
    assert batch.rows(torch.tensor([True, False, True, True])).parent_b.tolist() == [-1, 0, -1]


def test_stored_and_joined_rows_are_the_same() -> None:
    rows = samples()
    again = unpack(pack(rows), toy_envs.TeamTask())
    assert again.records == rows.records
    assert again.texts == rows.texts
    both = join([subset(rows, rows.ordinal_b == 4), subset(rows, rows.ordinal_b == 7)])
    one, two = to_batch(both, max_length=9), to_batch(rows, max_length=9)
    for name in ("mask_bt", "turn_bt", "turn_reward_bs", "state_bs", "agent_b", "parent_b", "group_b", "behavior_bt"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name


class FragileTeam(toy_envs.TeamTask):
    """Every second prompt has an environment that raises when the helper is asked."""

    def environment(self) -> Any:
        class Falling(toy_envs.Team):
            def reset(self, example: Any, seed: int) -> Observation:
                self.seed, self.even = seed, int(example.id.rsplit("/", 1)[1]) % 2 == 0
                return super().reset(example, seed)

            def step(self, action: str) -> Step:
                if self.even and self.seed % 4 == 0 and self.made == 0:
                    raise ValueError("nobody there")
                return super().step(action)

        return Falling()


@pytest.mark.parametrize("mode", ["drop_row", "drop_group", "zero"])
def test_an_episode_is_dropped_whole_and_counts_once(mode: Any) -> None:
    task = FragileTeam()
    errors = ErrorPolicy(mode, max_fraction=1.0)
    source = open_rows(parse_config(run_config()), task, policy(), task.reward, 2, errors)
    rows = source.rows([RolloutRequest(i, i, task.example("train", i), 12) for i in range(2)])
    failed_b = rows.scores.failed_b
    bad = set(rows.extras["keys.episode"][failed_b].tolist())
    assert bad
    assert errors.state_dict()["recent"].count(1) == len(bad)
    assert len(errors.state_dict()["recent"]) == 24
    of_bad_b = np.isin(rows.extras["keys.episode"], list(bad))
    if mode == "zero":
        assert rows.valid_b.all()
        assert not rows.scores.reward_b[failed_b].any()
    else:
        gone_b = of_bad_b if mode == "drop_row" else rows.ordinal_b == 0
        np.testing.assert_array_equal(rows.valid_b, ~gone_b)


def test_evaluation_counts_episodes() -> None:
    found = evaluate(policy(), toy_envs.TeamTask(), prompts=5, samples=2, k=(1, 2), max_new_tokens=2)
    assert found.prompts == 5
    assert found.pass_at[2].value == 1.0
    assert found.samples[0].completion.startswith("boss> ")


def test_demonstrations_may_have_more_rows_than_prompts() -> None:
    task = toy_envs.TeamTask()
    numbered_examples = [(i, task.example("train", i)) for i in range(12)]
    batch = demonstration_batch(policy(), task, numbered_examples, 0)
    assert batch.size[0] > 12
    assert set(batch.group_b.tolist()) == set(range(12))
    starts = [Start(example, 0) for _, example in numbered_examples]
    shown = demonstrate(policy(), task.environment, starts, max_turns=7, max_new_tokens=2, agents=task.agents)
    assert not shown.failures


def test_a_team_is_planned_and_trained(tmp_path: Path) -> None:
    assert not plan(parse_config(run_config(task=TEAM))).refusals
    run = {"threads": 1, "checkpoint_every": 2}
    changes: dict[str, Any] = {"task": TEAM, "steps": 4, "batch": {"prompts": 4, "group_size": 8, "minibatches": 2}}
    folder = launch(tmp_path / "run", warmup={"steps": 3, "batch": 8}, eval={"final_prompts": 8}, run=run, **changes)
    last = records(folder, "train")[-1]
    assert last["rows_per_episode"] > 1
    assert {"agent_reward/boss", "agent_reward/helper"} <= set(last)
    assert last["grad_norm"] > 0
    rows = pq.read_table(folder / "rollouts" / "step-000004.parquet").to_pylist()
    for row in rows:
        assert row["agent"] in ("boss", "helper")
        assert row["ended"] in ("terminated", "out_of_turns")
        assert row["row"] == 0 or row["caller"] >= 0
        acted = [turn for turn, own in zip(row["turn"], row["mask"], strict=True) if own]
        assert set(acted) == set(range(len(row["turns"])))
        assert sum(turn["reward"] for turn in row["turns"]) == pytest.approx(dict(row["components"])["turn_rewards"])
    names = {(row["group"], row["sample"], row["row"]) for row in rows}
    assert len(names) == len(rows)
    resumed_is_the_same(folder, tmp_path, changes)
