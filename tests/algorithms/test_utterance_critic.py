"""ArCHer: the critic of utterances finds what is true where that is known, and the run around it keeps its promises."""

from __future__ import annotations

import copy
import io
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import toy_envs
from fake_context import CharacterPolicy, FakeContext, judged_of
from grouprl import method
from grouprl.algorithms.advantage.papers.utterance_advantage import UtteranceAdvantage
from grouprl.algorithms.buffer.papers.stored_turns import add_turns, read_turns, turns_stored
from grouprl.algorithms.buffer.papers.utterance_replay import APART, UtteranceReplay
from grouprl.algorithms.critic.papers.text_encoders import GRUEncoder, NamedEncoder, TrunkEncoder, build_encoder
from grouprl.algorithms.critic.papers.utterance_baseline import TokenBaselineCritic
from grouprl.algorithms.critic.papers.utterance_critic import UtteranceCritic, follow, prepared, td_losses
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.papers.late_start import LateStart
from grouprl.algorithms.update.update import TwoPhase
from grouprl.config.run import parse_config
from grouprl.core.batch import SOURCES
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples, to_batch
from grouprl.records.text_samples import TextSamples
from grouprl.records.tokens import Tokens
from grouprl.training.loop import train
from killed_runs import evidence
from single_runs import launch, records, run_config
from small import near, small
from updates import learner_of, make_batch, make_policy

SIZES = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}


class Table(nn.Module):
    """A critic that knows S states and A actions by number, in float64."""

    def __init__(self, states: int, actions: int) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.zeros(2, states, actions, dtype=torch.float64))
        self.v = nn.Parameter(torch.zeros(2, states, dtype=torch.float64))

    def forward(self, seen: list[int], done: list[int]) -> tuple[Tensor, Tensor]:
        return self.q[:, seen, done], self.values(seen)

    def values(self, seen: list[int]) -> Tensor:
        return self.v[:, seen]


ARRIVES, EARNS = ((0, 1), (1, 0)), ((0.0, 1.0), (0.0, 3.0))
"""Two states, two actions: action 1 goes to the other state, and pays 1 from state 0, 3 from state 1."""
PAIRS = list(itertools.product((0, 1), (0, 1)))


def converged(policy: Any, gamma: float, steps: int = 400) -> Table:
    """The table after full sweeps over all state-action pairs; `policy(state)` samples a fresh action."""
    table = Table(2, 2)
    target = copy.deepcopy(table)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.8)
    seen, done = [s for s, _ in PAIRS], [a for _, a in PAIRS]
    reward_n = torch.tensor([EARNS[s][a] for s, a in PAIRS], dtype=torch.float64)
    later, over_n = [ARRIVES[s][a] for s, a in PAIRS], torch.zeros(4, dtype=torch.bool)
    for _ in range(steps):
        fresh = [policy(s) for s in seen]
        q_loss, v_loss = td_losses(table, target, seen, done, reward_n, later, over_n, fresh, gamma)
        optimizer.zero_grad()
        (q_loss + v_loss).backward()
        optimizer.step()
        follow(target, table, 0.5)
    return table


def test_a_chain_of_two_states_converges_to_the_best_values_under_the_best_policy() -> None:
    table = converged(lambda state: 1, gamma=0.5)
    best = [(1 + 0.5 * 3) / (1 - 0.25), (3 + 0.5 * 1) / (1 - 0.25)]  # V(0) = 1 + γV(1), V(1) = 3 + γV(0)
    want = [[0.5 * best[0], best[0]], [0.5 * best[1], best[1]]]
    for head in (0, 1):
        near(table.v[head].detach(), best, 1e-6)
        near(table.q[head].detach(), want, 1e-6)


def test_a_random_policy_has_the_mean_of_its_actions_as_value() -> None:
    turns = itertools.cycle((0, 1, 1, 0, 0, 1, 1, 0))  # every pair of sweeps samples both actions in both states
    table = converged(lambda state: next(turns), gamma=0.5, steps=1500)
    # V(s) = mean_a Q(s,a), Q(s,a) = r + γV(s'): V0 = ½(γV0 + 1 + γV1), V1 = ½(γV1 + 3 + γV0)
    want = torch.linalg.solve(torch.tensor([[0.75, -0.25], [-0.25, 0.75]]), torch.tensor([0.5, 1.5]))
    near(table.v.detach().mean(0), want.tolist(), 0.25)
    near(table.q.detach().mean((0, 2)) - table.v.detach().mean(0), [0.0, 0.0], 0.25)


def test_without_a_future_each_turn_is_a_bandit() -> None:
    table = converged(lambda state: 1, gamma=0.0)
    near(table.q[0].detach(), [[0.0, 1.0], [0.0, 3.0]], 1e-6)
    near(table.v[0].detach(), [1.0, 3.0], 1e-6)


def test_nothing_follows_the_end_and_targets_get_no_gradient() -> None:
    table, target = Table(2, 2), Table(2, 2)
    with torch.no_grad():
        target.v += 10.0
        target.q[:, 0, 1] += 7.0
    reward_n = torch.tensor([1.0, 1.0], dtype=torch.float64)
    losses = td_losses(table, target, [0, 0], [0, 1], reward_n, [1, 1], torch.tensor([True, False]), [0, 1], 0.5)
    near(losses[0], 2 * (1.0 + 36.0) / 2)  # both heads; aims 1 and 1 + 5
    near(losses[1], 2 * (0.0 + 49.0) / 2)
    (losses[0] + losses[1]).backward()
    assert target.q.grad is None
    assert target.v.grad is None
    near(table.q.grad[0, 0], [-1.0, -6.0])


def test_the_lesser_of_two_estimates_is_believed() -> None:
    table = Table(1, 2)
    with torch.no_grad():
        table.q[:, 0] = torch.tensor([[1.0, 5.0], [2.0, 3.0]])
        table.v[:, 0] = torch.tensor([0.5, 0.25])
    q_n, v_n = prepared(table, [0, 0], [0, 1])
    near(q_n, [1.0, 3.0])
    near(v_n, [0.25, 0.25])


def test_the_target_follows_by_tau() -> None:
    slow, fast = Table(1, 1), Table(1, 1)
    with torch.no_grad():
        fast.q += 1.0
    for left in (0.9, 0.81):
        follow(slow, fast, 0.1)
        near(slow.q.detach()[0, 0], [1 - left])


# --- encoders -------------------------------------------------------------------------------------------------------


def tiny(seed: int = 1) -> CausalPolicy:
    return CausalPolicy(*build_tiny("abcd ?!", **SIZES, seed=seed))


def small_bert(folder: Path) -> str:
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd?!"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt"), model_max_length=8).save_pretrained(folder)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=8, **sizes)).save_pretrained(folder)
    return str(folder)


def small_roberta(folder: Path) -> str:
    """A RoBERTa of random weights whose tokenizer splits text into bytes, both saved as transformers saves them."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import RobertaConfig, RobertaModel, RobertaTokenizerFast

    folder.mkdir()
    vocab = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(ByteLevel.alphabet())]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocab)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    files = {"vocab": str(folder / "vocab.json"), "merges": str(folder / "merges.txt")}
    RobertaTokenizerFast(**files, model_max_length=30).save_pretrained(folder)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=len(vocab), max_position_embeddings=32, pad_token_id=1, initializer_range=0.5, **sizes
    )
    RobertaModel(config).save_pretrained(folder)
    return str(folder)


MADE = {"bert": small_bert, "roberta": small_roberta}


@pytest.mark.parametrize("kind", ["gru", "policy", "bert", "roberta"])
def test_a_row_is_encoded_alike_whatever_stands_beside_it(kind: str, tmp_path: Path) -> None:
    policy = tiny()
    name = MADE[kind](tmp_path / kind) if kind in MADE else kind
    encoder = build_encoder(name, policy, 8)
    assert isinstance(encoder, {"gru": GRUEncoder, "policy": TrunkEncoder}.get(kind, NamedEncoder))
    rows = [policy.encode(text) for text in ("a b", "c", "d d a b c d?", "a b")]
    states_nd = encoder(rows)
    assert states_nd.shape == (4, encoder.width)
    for row, ids in enumerate(rows):
        near(encoder([ids])[0].detach(), states_nd[row].detach(), 1e-5)
    assert not torch.allclose(states_nd[0], states_nd[1], atol=1e-4)
    states_nd.square().sum().backward()
    assert sum(float(p.grad.abs().sum()) for p in encoder.parameters() if p.grad is not None) > 0


def test_the_trunk_is_a_copy_that_learns_by_itself() -> None:
    policy = tiny()
    before = [p.detach().clone() for p in policy.parameters()]
    critic = UtteranceCritic(build_encoder("policy", policy, 8))
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.5)
    critic([[4, 5]], [[6]])[0].sum().backward()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_a_critic_of_text_learns_rewards_of_actions() -> None:
    """With gamma 0 the network itself finds Q = r, and V = what the fresh actions earn."""
    policy = tiny()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        critic = UtteranceCritic(build_encoder("gru", policy, 16))
    target, optimizer = copy.deepcopy(critic), torch.optim.Adam(critic.parameters(), lr=1e-2)
    seen = [policy.encode(text) for text in ("ab", "ab", "ba", "ba")]
    done = [policy.encode(text) for text in "cdcd"]
    reward_n, over_n = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.ones(4, dtype=torch.bool)
    for _ in range(200):
        losses = td_losses(critic, target, seen, done, reward_n, seen, over_n, [done[0]] * 4, 0.9)
        optimizer.zero_grad()
        (losses[0] + losses[1]).backward()
        optimizer.step()
        follow(target, critic, 0.2)
    q_n, v_n = prepared(critic, seen, done)
    near(q_n, reward_n.tolist(), 0.05)
    near(v_n, [1.0, 1.0, 0.0, 0.0], 0.05)


# --- the store of turns ---------------------------------------------------------------------------------------------


def played() -> tuple[FakeContext, ScoredSamples]:
    """Two episodes: prompt 1 2, actions 7 7 | 7 with 9 between them; prompt 3, action 8."""
    context = FakeContext(completions=1)
    rows = context.sample([context.request(0), context.request(1)])
    rollout = Rollout(
        Tokens(((1, 2), (3,)), ((7, 7, 9, 7), (8,))), torch.zeros(2, 4), torch.zeros(2, 4), torch.tensor([False] * 2)
    )
    mask = np.array([[True, True, False, True], [True, False, False, False]])
    rows = TextSamples(**{**vars(rows), "rollout": rollout, "extras": {}}).with_extras(
        mask_bt=mask,
        turn_bt=np.where(mask, np.array([[0, 0, -1, 1], [0, -1, -1, -1]]), -1),
        turn_reward_bs=np.array([[0.5, 0.0], [0.0, 0.0]]),
    )
    rows.scores.reward_b[:] = [2.0, 0.25]
    return context, rows


def test_turns_come_back_as_they_were_played() -> None:
    context, rows = played()
    store: dict[str, Any] = {}
    add_turns(store, rows, context.batch(rows), 10, None)
    add_turns(store, rows, context.batch(rows), 10, None)
    assert turns_stored(store) == 6
    turns = read_turns(store, [0, 1, 2, 3, 4, 5])
    assert turns.seen[:3] == turns.seen[3:] == [[1, 2], [1, 2, 7, 7, 9], [3]]
    assert turns.done[:3] == turns.done[3:] == [[7, 7], [7], [8]]
    assert turns.later[:3] == [[1, 2, 7, 7, 9], [1, 2, 7, 7, 9], [3]]
    assert turns.over_n.tolist()[:3] == [False, True, True]
    near(turns.reward_n[:3].double(), [0.5, 1.5, 0.25])  # what an episode earns besides is earned in its last turn
    assert turns.prompt_n.tolist()[:3] == [0, 0, 1]
    assert turns.take(np.array([4])).seen == [[1, 2, 7, 7, 9]]


@pytest.mark.parametrize(("capacity", "left"), [(5, 4), (4, 4), (3, 3), (2, 1), (1, 1)])
def test_the_oldest_rows_are_forgotten_whole(capacity: int, left: int) -> None:
    context, rows = played()
    store: dict[str, Any] = {}
    for _ in range(2):
        add_turns(store, rows, context.batch(rows), capacity, None)
    whole: dict[str, Any] = {}
    for _ in range(2):
        add_turns(whole, rows, context.batch(rows), 100, None)
    assert turns_stored(store) == left
    kept, all_of_them = read_turns(store, range(left)), read_turns(whole, range(6 - left, 6))
    assert (kept.seen, kept.done, kept.later) == (all_of_them.seen, all_of_them.done, all_of_them.later)
    assert torch.equal(kept.reward_n, all_of_them.reward_n)
    assert len(store["ids"]) == {4: 2 + 6 + 2, 3: 6 + 2, 1: 2}[left]


def test_turns_without_room_for_another_action_are_left_out() -> None:
    context, rows = played()
    store: dict[str, Any] = {}
    add_turns(store, rows, context.batch(rows), 10, 4)
    assert read_turns(store, range(turns_stored(store))).seen == [[1, 2], [3]]


# --- the part -------------------------------------------------------------------------------------------------------


class Config:
    vocab_size = 200

    def get_text_config(self) -> Config:
        return self


class Model:
    config = Config()


class Letters(CharacterPolicy):
    model, device, max_positions = Model(), torch.device("cpu"), None


class ActingContext(FakeContext):
    """Fresh actions are 'right' or 'wrong' by the parity of their seed."""

    def act(self, beginnings: Any, seeds: Any) -> Rollout:
        done = tuple((7 + seed % 2,) for seed in seeds)
        zero_bt = torch.zeros(len(done), 1)
        return Rollout(
            Tokens(tuple(map(tuple, beginnings)), done), zero_bt, zero_bt, torch.zeros(len(done), dtype=torch.bool)
        )


SMALL = {"critic_steps": 20, "critic_batch": 32, "pool": 64, "critic_lr": 1e-2, "width": 16, "warmup": 2}


def stepped(context: FakeContext, part: UtteranceReplay) -> ScoredSamples:
    rows = part.mix(context.sample([context.request(i) for i in range(4)]), context)
    assert rows is not None
    context.finish(rows, part, prepared=judged_of(context, rows) if context.step < part.warmup else None)
    return rows


def test_completions_of_one_turn_get_the_advantage_of_their_reward() -> None:
    """A -> r - V(o): correct completions (token 7, in half of the samples) earn 1, so V is one half."""
    context = ActingContext((0.5,) * 4, policy=Letters(), prompts=4, completions=8, lengths=lambda i, number: 1)
    part = UtteranceReplay(**SMALL)
    for _ in range(12):
        rows = stepped(context, part)
    right_b = np.array([ids == (7,) for ids in rows.rollout.response_ids])
    assert 8 < right_b.sum() < 24
    near(torch.from_numpy(rows.extras["past.q"]), right_b.astype(float).tolist(), 0.1)
    near(torch.from_numpy(rows.extras["past.v"]), [0.5] * 32, 0.25)
    assert context.notes["turns_stored"] == sum(32 * step for step in range(1, 13))  # this context adds the steps up
    assert context.notes["critic_q_loss"] < 0.05


def test_rows_are_those_sampled_until_the_critic_is_warm() -> None:
    context, part = (
        ActingContext((0.5,) * 4, policy=Letters(), prompts=4, completions=2),
        UtteranceReplay(**SMALL, actions=5),
    )
    for step in range(3):
        rows = stepped(context, part)
        warm = step >= 2
        assert len(rows) == (5 if warm else 8)
        assert set(rows.source_b.tolist()) == {SOURCES["extra" if warm else "sampled"]}
        assert (rows.extras["past.q"] != 0).any() == warm
    assert rows.group_b.tolist() == [APART + i for i in range(5)]
    assert rows.prompts == tuple(context.decode(rows.rollout.prompt_ids))
    batch = method("archer").prepare(to_batch(rows, max_length=4))
    gap_b = torch.from_numpy(rows.extras["past.q"] - rows.extras["past.v"])
    near(batch.advantage_bt[:, 0].double(), gap_b.tolist(), 1e-6)


def test_a_resumed_run_goes_on_with_the_same_critic() -> None:
    def context_of() -> ActingContext:
        return ActingContext((0.5,) * 4, policy=Letters(), prompts=4, completions=2)

    part, whole, resumed = UtteranceReplay(**SMALL), context_of(), context_of()
    for _ in range(3):
        stepped(whole, part)
        stepped(resumed, part)
    resumed.memory = copy.deepcopy(resumed.memory)
    resumed._caches.clear()
    ours, theirs = stepped(whole, part), stepped(resumed, part)
    assert ours.rollout.response_ids == theirs.rollout.response_ids
    assert np.array_equal(ours.extras["past.q"], theirs.extras["past.q"])
    for name, values in whole.state_of(part)["critic"].items():
        assert torch.equal(values, resumed.state_of(part)["critic"][name]), name


def test_a_policy_waits_for_its_critic() -> None:
    policy = make_policy()
    batch = make_batch(policy)
    ready = method("reinforce").compute_advantages(batch)
    learner = learner_of(policy, method("reinforce"))
    before = [p.detach().clone() for p in policy.parameters()]
    assert list(LateStart(start=5)(learner, ready.replace(step=4))) == []
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    assert len(list(LateStart(start=5)(learner, ready.replace(step=5)))) == 1
    assert not all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_a_baseline_of_tokens_is_fitted_to_the_advantage_of_the_utterance() -> None:
    batch = small([0, 0], [2, 1], past={"q": torch.tensor([1.0, 0.0]), "v": torch.tensor([0.25, 0.5])})
    batch = batch.replace(value_bt=torch.tensor([[0.5, 1.0], [-0.5, 0.0]], dtype=torch.float64))
    near(UtteranceAdvantage(baseline=True)(batch), [[0.25, -0.25], [0.0, 0.0]])
    critic = TokenBaselineCritic(coef=2.0)
    assert critic.targets(batch).tolist() == [[0.75, 0.75], [-0.5, 0.0]]
    loss = critic(batch.value_bt, batch.replace(return_bt=critic.targets(batch)))
    near(loss.loss_bt, [[0.125, 0.125], [0.0, 0.0]])


def test_what_cannot_act_is_said() -> None:
    part = UtteranceReplay(gamma=0.9, warmup=20)
    assert part.idle(RunFacts(steps=50, turns=3)) == []
    assert "one turn" in part.idle(RunFacts(steps=50, turns=1))[0]
    assert any("never learns" in sentence for sentence in part.idle(RunFacts(steps=20, turns=3)))
    assert "12,800 actions a step for the critic, and 256 for the policy" in part.extra_samples(RunFacts())
    assert LateStart(start=0).idle(RunFacts())
    assert (LateStart(start=5).first_step(), TwoPhase().first_step()) == (5, 0)
    assert not LateStart(start=3).idle(RunFacts(steps=4))


# --- the run --------------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {
    "task": f"{toy_envs.__file__}:AskTask",
    "method": {"name": "archer", "critic_steps": 3, "critic_batch": 8, "actions": 6, "warmup": 1, "width": 8},
    "batch": {"prompts": 2, "group_size": 2, "minibatches": 1},
    "steps": 3,
}


@pytest.mark.parametrize("more", [{}, {"baseline": True, "encoder": "policy"}])
def test_a_run_learns_from_fresh_actions(more: dict[str, Any], tmp_path: Path) -> None:
    folder = launch(tmp_path / "run", **{**RUN, "method": {**RUN["method"], **more}}).folder
    train = records(folder, "train")
    assert [r["rows_used"] for r in train] == [4, 6, 6]
    assert [r["grad_norm"] > 0 for r in train] == [False, True, True]
    stored = [r["turns_stored"] for r in train]
    assert stored[0] >= 4
    assert stored == sorted(stored)
    assert all(r["critic_q_loss"] > 0 and r["critic_v_loss"] > 0 for r in train)
    assert ("value_loss" in train[1]) == ("baseline" in more)
    assert 0 <= train[1]["kl_old"] < 1e-8  # log-probs are those the fresh actions were sampled with


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_run_with_an_encoder_of_transformers_goes_on_as_if_never_killed(kind: str, tmp_path: Path) -> None:
    name = MADE[kind](tmp_path / kind)
    settings = {**RUN, "method": {**RUN["method"], "encoder": name}, "steps": 4}
    settings |= {"run": {"checkpoint_every": 2, "keep": 9, "threads": 1}}
    whole = launch(tmp_path / "whole", **settings).folder
    copied = Path(shutil.copytree(whole, tmp_path / "copy"))
    shutil.rmtree(sorted((copied / "checkpoints").glob("step-*"))[-1])
    train(parse_config(run_config(**settings)), folder=copied, resume=True, console=Console(file=io.StringIO()))
    assert evidence(copied) == evidence(whole)
    early, late = (critic_of(checkpoint) for checkpoint in sorted((whole / "checkpoints").glob("step-*"))[-2:])
    learnt = {key for key in early if not torch.equal(early[key], late[key])}
    assert any("encoder.encoder" in key and "attention" in key for key in learnt), "the encoder learns with the heads"
    assert any("q_heads" in key for key in learnt)
    for mine, theirs in zip(records(copied, "train"), records(whole, "train"), strict=True):
        assert mine["critic_q"] == theirs["critic_q"] if "critic_q" in theirs else theirs["step"] <= 1


def critic_of(checkpoint: Path) -> dict[str, Tensor]:
    """The weights of the critic that a checkpoint holds."""
    data = torch.load(checkpoint / "data.pt", weights_only=True)
    found = [each["critic"] for each in _dicts(data) if "critic" in each]
    (critic,) = found
    return critic


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _dicts(each)
