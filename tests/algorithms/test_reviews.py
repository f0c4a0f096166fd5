"""Reviews written by the policy: how they are asked and read, and what follows from them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import toy_envs
from chat_policies import TOOLS
from episode_runs import launch, records, run_config
from grouprl import InputError
from grouprl.algorithms.advantage_transform.papers.reviewed import AdvantageOfReviewed, AmplifyPositive
from grouprl.algorithms.augment.papers.reflect_retry import ReflectRetry
from grouprl.algorithms.augment.papers.regenerate import CutAndRegenerate
from grouprl.algorithms.augment.papers.retrospect import Retrospect
from grouprl.algorithms.augment.papers.review_model import ReviewModel
from grouprl.algorithms.augment.papers.reviewing import ALONE
from grouprl.algorithms.augment.review_forms import CompactReview, JsonReview, Review, review_form
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.regularize.papers.observation_likelihood import ObservationLikelihood
from grouprl.algorithms.reward_transform.papers.outcome_gated_process import OutcomeGatedProcess
from grouprl.algorithms.warmup_examples import Lesson, Shown
from grouprl.config.run import load_config, parse_config
from grouprl.core.hashing import generator
from grouprl.envs import Observation, Step
from grouprl.plan.plan import plan
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny
from grouprl.records.episode_records import Turn
from grouprl.records.examples import Chat
from grouprl.records.samples import ScoredSamples, subset
from grouprl.tasks import Example
from grouprl.training.loop import batch_of
from grouprl.training.opening import start
from grouprl.training.session import Session
from grouprl.training.warmup import demonstration_batch
from killed_runs import assert_goes_on_equally, evidence
from small import f64, near, small


class Toss:
    """Three turns; the reward is 1 where the last action begins with one of half the letters, which the prompt says.

    Each turn shows the first letter of the action.
    """

    def __init__(self) -> None:
        self.turn, self.right = 0, False

    def reset(self, example: Example, seed: int) -> Observation:
        self.wanted = example.columns["wanted"]
        return Observation(str(example.prompt))

    def step(self, action: str) -> Step:
        self.turn += 1
        self.right = action[:1] in self.wanted and action != ""
        done = self.turn == 3
        return Step(Observation(f"/{action[:1]}"), float(done and self.right), terminated=done)

    def score(self) -> dict[str, float]:
        return {"correct": float(self.right), "#density": 0.5 * self.right}

    def close(self) -> None:
        pass

    def demonstrate(self, rng: Any) -> str:
        return rng.choice("abcdefgh")


class TossTask(toy_envs.AskTask):
    """As above."""

    name = "toss"
    alphabet = "abcdefgh/:"
    max_turns = 3
    max_new_tokens = 3

    def example(self, split: Any, index: int) -> Example:
        rng = generator(split, index)
        return Example(f"toss/{split}/{index}", f"{rng.choice('ab')}:", {"wanted": "abcdefgh/:"[index % 2 :: 2]})

    def environment(self) -> Any:
        return Toss()


class Fixed(CompactReview):
    """A form that reads in any text that turn 1 went wrong."""

    retry: ClassVar[int | None] = 1

    def read(self, text: str, turns: int) -> Review | None:
        return Review(self.retry, "9")

    def guided(self, first: Any, advice: Sequence[str]) -> Any:
        return super().guided(first, ["9" for _ in advice])


class FromTheStart(Fixed):
    """The same of turn 0."""

    retry = 0


class Content(Fixed):
    """Finds nothing wrong."""

    retry = None


class FixedJson(JsonReview):
    """The prompts of the JSON form; reads in any text that turn 1 went wrong."""

    tokens = 16

    def read(self, text: str, turns: int) -> Review | None:
        return Review(1, "try b")


class Unreadable(CompactReview):
    """Understands nothing."""

    def read(self, text: str, turns: int) -> Review | None:
        return None


def form(cls: type) -> str:
    return f"{__file__}:{cls.__name__}"


def session_of(tmp_path: Path, method: Any, **changes: Any) -> Session:
    settings = {"task": f"{__file__}:TossTask", "warmup": {"steps": 0}, "batch": {"prompts": 4, "group_size": 4}}
    return start(parse_config(run_config(**settings, **changes, method=method)), tmp_path / "run")


def explored(tmp_path: Path, method: Any, **changes: Any) -> tuple[ScoredSamples, ScoredSamples, Session]:
    """One step's rows before and after the method's augment part."""
    session = session_of(tmp_path, method, **changes)
    plain = session.context.sample(session.context.take(4))
    (part,) = session.method.augment
    return plain, part(plain, session.context), session


def of_source(rows: ScoredSamples, code: int) -> ScoredSamples:
    return subset(rows, rows.source_b == code)


def acted(rows: ScoredSamples, row: int, turn: int) -> tuple[int, ...]:
    """Token ids of a turn of a row, whether trained or not."""
    ids = np.array(rows.rollout.response_ids[row])
    return tuple(ids[rows.extras["turn_bt"][row, : len(ids)] == turn].tolist())


SAMPLED, GUIDED, EXTRA, REVIEW = 0, 1, 6, 7


# --- forms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "turns", "read"),
    [
        ("ok", 3, Review(None)),
        (" ok ", 3, Review(None)),
        ("2", 3, Review(2, "2")),
        ("0 left", 3, Review(0, "0 left")),
        ("3", 3, None),
        ("-1", 3, None),
        ("", 3, None),
        ("ok!", 3, None),
        ("2left", 3, None),
        ("99999999999999999999", 3, None),
    ],
)
def test_compact_reviews_are_read(text: str, turns: int, read: Review | None) -> None:
    assert CompactReview().read(text, turns) == read


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"verdict": "perfect"}', Review(None)),
        ('Well: {"retry_from_step": 1, "diagnosis": "lost", "advice": "go left"} .', Review(1, "lost go left")),
        ('{"retry_from_step": 3}', None),
        ('{"retry_from_step": true}', None),
        ('{"retry_from_step": "1"}', None),
        ('{"retry_from_step": 1', None),
        ("[1]", None),
        ("{" * 10_000 + "}", None),
        ("none", None),
    ],
)
def test_json_reviews_are_read(text: str, read: Review | None) -> None:
    assert JsonReview().read(text, 3) == read


def test_advice_with_half_a_character_is_no_review() -> None:
    assert JsonReview().read(r'{"retry_from_step": 0, "advice": "\ud800"}', 3) is None
    assert JsonReview().read(r'{"retry_from_step": 0, "advice": "\ud83d\ude00"}', 3) == Review(0, "\U0001f600")


@pytest.mark.parametrize("made", [CompactReview(), JsonReview()])
def test_what_a_form_writes_it_reads(made: Any) -> None:
    assert made.read(made.write(Review(None)), 3) == Review(None)
    assert made.read(made.write(Review(2, "up")), 3).retry == 2
    assert "up" in made.read(made.write(Review(2, "up")), 3).advice
    letters = set(made.letters) | set("up>@")
    shown = made.prompt("@>", [Turn(0, "", "up", seen=">")], 0.25)
    assert set(shown + made.write(Review(2, "up")) + made.guided("@>", ["2 up"])) <= letters


def test_prompts_hold_the_transcript() -> None:
    turns = [Turn(0, "", "up", seen="wall"), Turn(1, "", "left", seen="")]
    assert CompactReview().prompt("go:", turns, 0.5) == "go: 0 upwall 1 left =0.5?"
    assert CompactReview().guided("go:", ["1 up", "ok"]) == "1 up|ok|go:"
    assert "Step 1: left" in JsonReview().prompt("go:", turns, 0.5)


def test_chat_prompts_keep_messages_and_tools() -> None:
    chat = Chat(({"role": "system", "content": "s"}, {"role": "user", "content": "go"}), [{"name": "t"}])
    guided = JsonReview().guided(chat, ["turn left"])
    assert guided[0] == chat[0]
    assert guided[1]["content"].startswith("go\n")
    assert "turn left" in guided[1]["content"]
    assert guided.tools == chat.tools
    (requested,) = JsonReview().prompt(chat, [], 0.0)
    assert requested["role"] == "user"
    assert "go" in requested["content"]


def test_forms_are_found_by_name_and_by_path() -> None:
    class Talks:
        chat_template = "x"

    class Policy:
        tokenizer = Talks()

    assert isinstance(review_form("auto"), CompactReview)
    assert isinstance(review_form("auto", Policy()), JsonReview)
    assert review_form(form(Fixed)).read("", 3) == Review(1, "9")
    with pytest.raises(InputError, match=r"unknown form of reviews .jsn.[^§]*json"):
        review_form("jsn")
    with pytest.raises(InputError, match="is not a form of reviews"):
        review_form(f"{__file__}:Toss")


def test_the_form_of_the_documentation_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reviews.md").read_text(encoding="utf-8")
    (tmp_path / "my_reviews.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    terse = review_form(f"{tmp_path / 'my_reviews.py'}:Terse")
    assert terse.prompt("go", [Turn(0, "", "up")], 1.0) == "go 1 turns =1?"
    assert [terse.read(text, 2) for text in ("!", "1", "2", "x")] == [Review(None), Review(1, "1"), None, None]
    assert terse.guided("go", [terse.write(Review(1))]) == "1|go"
    yaml = page.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "run.yaml").write_text(yaml)
    assert not plan(load_config(str(tmp_path / "run.yaml"))).refusals


# --- parts ------------------------------------------------------------------------------------------------------------


def test_positive_advantages_are_amplified_and_perfect_ones_are_one() -> None:
    batch = small([1, 0, 0, 0.4])
    adv_bt = f64([[0.65], [-0.35], [-0.35], [0.05]])
    near(AmplifyPositive()(adv_bt, batch), [[1.0], [-0.35], [-0.35], [0.15]])
    near(AmplifyPositive(perfect=None)(adv_bt, batch), [[1.95], [-0.35], [-0.35], [0.15]])
    near(AmplifyPositive(factor=1.0, perfect=None)(adv_bt, batch), adv_bt)


def test_a_group_of_perfect_completions_goes_on_learning() -> None:
    batch = small([1, 1], [2, 1])
    near(AmplifyPositive()(torch.zeros(2, 2).double(), batch), [[1.0, 1.0], [1.0, 0.0]])


def test_a_review_has_the_advantage_of_what_came_of_it() -> None:
    keys = {"review": torch.tensor([4, 9, 9, 4])}
    batch = small([1, 0, 0, 1], [2, 1, 2, 1], source_b=[0, 6, 7, 7], keys=keys)
    given = f64([[0.5, 0.5], [-2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    near(AdvantageOfReviewed()(given, batch), [[0.5, 0.5], [-2.0, 0.0], [-2.0, -2.0], [0.5, 0.0]])


def test_process_pays_only_with_the_outcome() -> None:
    batch = small([1, 0, 1]).replace(rewards={"#density": f64([0.5, 1.0, float("nan")])})
    near(OutcomeGatedProcess()(batch).reward_b, [1.5, 0.0, 1.0])
    near(OutcomeGatedProcess(coef=0.5)(batch).reward_b, [1.25, 0.0, 1.0])
    assert OutcomeGatedProcess(coef=0.0)(batch) is batch
    with pytest.raises(InputError, match="rewards"):
        OutcomeGatedProcess(component="#other")(batch)


def said_batch(more: int) -> Any:
    """Two rows with three tokens of the environment and `more` tokens of the policy behind them."""
    mask_bt = torch.tensor([[True, False, False] + [True] * more, [True, False, True] + [True] * more])
    said_bt = torch.tensor([[False, True, True] + [False] * more, [False, True, False] + [False] * more])
    batch = small([1, 0], [3 + more] * 2, mask_bt=mask_bt, marks={"said": said_bt})
    return batch.replace(weight_bt=mask_bt / mask_bt.sum())


@pytest.mark.parametrize("more", [0, 1, 30])
def test_what_is_said_has_a_denominator_of_its_own(more: int) -> None:
    """Three tokens at log-probs -1, -2, -6: 0.1·3 however many tokens the policy wrote."""
    term = ObservationLikelihood()
    batch = term.compute_loss_weights(said_batch(more))
    logp_bt = torch.full(batch.mask_bt.shape, -50.0).double()
    logp_bt[0, 1], logp_bt[0, 2], logp_bt[1, 1] = -1.0, -2.0, -6.0
    near((term.weights(batch) * term(logp_bt, batch).loss_bt).sum(), 0.3)


def test_rows_outside_the_loss_say_nothing() -> None:
    batch = said_batch(1)
    batch = batch.replace(weight_bt=batch.weight_bt * f64([[1.0], [0.0]]))
    term = ObservationLikelihood()
    weighted = term.compute_loss_weights(batch)
    near(term.weights(weighted).sum(1), [1.0, 0.0])
    assert term.zero_rows(weighted).tolist() == [False, True]
    assert ObservationLikelihood(coef=0.0).idle(RunFacts())


# --- R³L --------------------------------------------------------------------------------------------------------------


def test_second_attempts_share_the_beginning_and_neither_trains_it(tmp_path: Path) -> None:
    plain, rows, session = explored(tmp_path, {"name": "r3l", "form": form(Fixed), "perfect": 1.0})
    second = of_source(rows, EXTRA)
    assert len(second) == len(plain) == 16
    for row in range(len(second)):
        base = int(np.flatnonzero(plain.group_b == second.group_b[row])[0]) + row % 4
        assert acted(second, row, 0) == acted(plain, base, 0)
        assert second.prompts[row] == plain.prompts[base]
        assert second.rollout.prompt_ids[row] == plain.rollout.prompt_ids[base]
    batch = session.context.batch(subset(rows, rows.valid_b))
    attempts_b = np.isin(batch.source_b.numpy(), (SAMPLED, EXTRA))
    assert not (batch.active_bt & (batch.turn_bt == 0))[attempts_b].any()
    assert ((batch.turn_bt > 0) & batch.mask_bt == batch.active_bt)[attempts_b].all()
    assert second.foreign_b.all()
    assert not of_source(rows, SAMPLED).foreign_b.any()


def test_a_pivot_at_the_start_leaves_the_masks(tmp_path: Path) -> None:
    _, rows, session = explored(tmp_path, {"name": "r3l", "form": form(FromTheStart)})
    batch = session.context.batch(rows)
    assert torch.equal(batch.active_bt, batch.mask_bt)


def test_old_log_probs_of_second_attempts_are_those_without_the_advice(tmp_path: Path) -> None:
    _, rows, session = explored(tmp_path, {"name": "r3l", "form": form(Fixed)})
    wanted = subset(rows, rows.valid_b)
    batch = batch_of(session, wanted)
    assert batch is not None
    logp_bt = session.policy.logp(wanted.tokens)
    torch.testing.assert_close(batch.old_bt[batch.mask_bt], logp_bt[batch.mask_bt], rtol=1e-5, atol=1e-5)
    extra_bt = batch.from_source("extra")[:, None] & batch.mask_bt
    assert not torch.allclose(batch.behavior_bt[extra_bt], logp_bt[extra_bt], atol=1e-4), "they were sampled advised"


def test_what_led_to_success_is_imitated(tmp_path: Path) -> None:
    plain, rows, session = explored(tmp_path, {"name": "r3l", "form": form(Fixed)})
    guided, reviews, second = (of_source(rows, code) for code in (GUIDED, REVIEW, EXTRA))
    notes = session.context.read_notes()
    better = np.flatnonzero((second.scores.reward_b >= 1) & (plain.scores.reward_b < 1))
    assert 0 < len(better) == notes["retries_good"] == len(guided) == len(reviews)
    assert notes["retry_gain"] == pytest.approx((second.scores.reward_b - plain.scores.reward_b).mean())
    assert all(prompt.startswith("9|") for prompt in guided.prompts)
    assert guided.rollout.response_ids == tuple(second.rollout.response_ids[i] for i in better)
    assert not guided.foreign_b.any()
    for own in (guided, reviews):
        assert (own.scores.reward_b == 1).all()
        assert (own.group_b >= ALONE).all()
    assert len(set(rows.row_keys)) == len(rows)
    assert len(set(rows.extras["keys.episode"].tolist())) == len(rows)
    alone = np.concatenate([guided.group_b, reviews.group_b])
    assert len(set(alone.tolist())) == len(alone)
    prepared = session.method.compute_advantages(session.context.batch(subset(rows, rows.valid_b)))
    won_b = prepared.from_source("guided", "review")
    assert (prepared.advantage_bt[won_b] == prepared.mask_bt[won_b].to(prepared.dtype)).all()


def test_only_true_praise_is_learnt_from(tmp_path: Path) -> None:
    plain, rows, session = explored(tmp_path, {"name": "r3l", "form": form(Content)})
    assert 0 < len(of_source(rows, REVIEW)) == int((plain.scores.reward_b >= 1).sum()) < len(plain)
    notes = session.context.read_notes()
    assert notes["reviews_content"] == 1
    assert notes["retries"] == 0


def test_models_that_chat_are_asked_and_advised_in_messages(tmp_path: Path) -> None:
    model = {"name": "tiny", "tiny": {**run_config()["model"]["tiny"], "max_positions": 2048}}
    session = session_of(tmp_path, {"name": "r3l", "form": form(FixedJson), "perfect": -1.0}, model=model)
    session.policy.tokenizer.chat_template = TOOLS
    plain = session.context.sample(session.context.take(4))
    (part,) = session.method.augment
    rows = part(plain, session.context)
    second, reviews = of_source(rows, EXTRA), of_source(rows, REVIEW)
    assert len(second) == 16
    assert second.prompts[0] == plain.prompts[0] == ({"role": "user", "content": plain.examples[0].prompt},)
    assert second.rollout.prompt_ids[0] == plain.rollout.prompt_ids[0]
    assert "Step 1:" in reviews.prompts[0][0]["content"]
    guided = of_source(rows, GUIDED)
    assert "From an earlier attempt: try b" in guided.prompts[0][-1]["content"]
    text = session.context.text.decode([guided.rollout.prompt_ids[0]])[0]
    assert text.startswith("<|user|>")
    assert "try b" in text
    assert acted(second, 0, 0) == acted(plain, 0, 0)


@pytest.mark.parametrize("name", ["r3l", "search_r2"])
def test_reviews_that_cannot_be_read_are_counted_and_change_nothing(tmp_path: Path, name: str) -> None:
    plain, rows, session = explored(tmp_path, {"name": name, "form": form(Unreadable)})
    notes = session.context.read_notes()
    assert notes["reviews"] == notes["reviews_unread"] == 16
    episodes = of_source(rows, SAMPLED)
    assert episodes.rollout.response_ids == plain.rollout.response_ids
    assert len(rows) - len(episodes) == (16 if name == "search_r2" else 0), "R³L does not learn from them"
    batch = session.context.batch(rows)
    assert torch.equal(batch.active_bt, batch.mask_bt)


@pytest.mark.parametrize("name", ["r3l", "search_r2", "retroformer"])
def test_episodes_that_leave_no_room_are_counted(tmp_path: Path, name: str) -> None:
    model = run_config()["model"]
    model = {"name": "tiny", "tiny": {**model["tiny"], "max_positions": 20}}
    method = {"name": name, "actor": "policy"} if name == "retroformer" else name
    plain, rows, session = explored(tmp_path, method, model=model)
    notes = session.context.read_notes()
    assert notes["reviews"] == 0
    wrong = int((~plain.scores.correct_b).sum())
    assert notes["reviews_no_room"] == (16 if name != "retroformer" else wrong) > 0
    assert rows.rollout.response_ids == plain.rollout.response_ids
    assert rows.valid_b.all() == (name != "retroformer")


# --- Search-R2 --------------------------------------------------------------------------------------------------------


def test_a_refiner_that_accepts_everything_leaves_the_episodes(tmp_path: Path) -> None:
    plain, rows, session = explored(tmp_path, {"name": "search_r2", "form": form(Content), "process": 0.0})
    episodes = of_source(rows, SAMPLED)
    assert episodes.rollout.response_ids == plain.rollout.response_ids
    prepared = session.method.compute_advantages(session.context.batch(rows))
    alone = session.method.with_parts(advantage_transform=()).compute_advantages(session.context.batch(episodes))
    sampled_b = prepared.from_source("sampled")
    width = alone.mask_bt.shape[1]
    torch.testing.assert_close(prepared.advantage_bt[sampled_b][:, :width], alone.advantage_bt)
    assert len(of_source(rows, REVIEW)) == 16


def test_rejected_episodes_give_way_to_new_endings(tmp_path: Path) -> None:
    plain, rows, session = explored(tmp_path, {"name": "search_r2", "form": form(Fixed)})
    second, reviews = of_source(rows, EXTRA), of_source(rows, REVIEW)
    assert not len(of_source(rows, SAMPLED))
    assert len(second) == len(reviews) == 16
    assert second.rollout.response_ids != plain.rollout.response_ids
    for row in range(16):
        assert acted(second, row, 0) == acted(plain, row, 0)
        assert second.prompts[row] == plain.prompts[row]
    prepared = session.method.compute_advantages(session.context.batch(rows))
    extra_b = prepared.from_source("extra")
    assert (prepared.active_bt & (prepared.turn_bt == 0))[extra_b].any(1).all(), "the beginning is trained too"
    logp_bt = session.policy.logp(rows.tokens)
    torch.testing.assert_close(prepared.old_bt[prepared.mask_bt], logp_bt[prepared.mask_bt], rtol=1e-5, atol=1e-5)
    adv_of = dict(
        zip(prepared.keys["review"][extra_b].tolist(), prepared.advantage_bt[extra_b, 0].tolist(), strict=True)
    )
    review_b = prepared.from_source("review")
    for key, adv_t in zip(prepared.keys["review"][review_b].tolist(), prepared.advantage_bt[review_b], strict=True):
        assert float(adv_t[0]) == adv_of[key]
    assert any(adv_of.values())
    assert (reviews.scores.reward_b == second.scores.reward_b).all()


# --- Retroformer ------------------------------------------------------------------------------------------------------


def test_reviews_earn_what_they_bring(tmp_path: Path) -> None:
    method = {"name": "retroformer", "form": form(Fixed), "trials": 3, "actor": "policy"}
    session = session_of(tmp_path, method)
    plain = session.context.sample(session.context.take(4))
    trials = [plain]
    sample = session.context.sample

    def noted(requests: Any, **more: Any) -> ScoredSamples:
        trials.append(sample(requests, **more))
        return trials[-1]

    session.context.sample = noted  # type: ignore[method-assign]
    (part,) = session.method.augment
    rows = part(plain, session.context)
    reviews = subset(rows, rows.valid_b)
    assert len(trials) == 4
    assert set(reviews.source_b.tolist()) == {REVIEW}
    assert len(reviews) == sum(int((~trial.scores.correct_b).sum()) for trial in trials[:-1])
    last = dict(zip(plain.extras["keys.episode"].tolist(), plain.scores.reward_b.tolist(), strict=True))
    for trial in trials[1:]:
        last |= dict(zip(trial.extras["keys.review"].tolist(), trial.scores.reward_b.tolist(), strict=True))
    for key, before in zip(plain.extras["keys.episode"].tolist(), plain.scores.reward_b, strict=True):
        own = reviews.extras["keys.review"] == key
        assert reviews.scores.reward_b[own].sum() == pytest.approx(last[key] - before), "the differences telescope"
        assert own.any() == (before == 0), "what ended well is left alone"
    assert [trial.prompts[0].count("|") for trial in trials[1:]] == [1, 2, 3]
    assert all(prompt.endswith(":") for prompt in trials[3].prompts)
    assert reviews.scores.reward_b.any()
    assert set(reviews.group_b.tolist()) <= set(plain.group_b.tolist())


def test_a_frozen_actor_acts_as_before_the_first_step(tmp_path: Path) -> None:
    method = {"name": "retroformer", "form": form(Fixed)}
    session = session_of(tmp_path, method)
    (part,) = session.method.augment
    plain = session.context.sample(session.context.take(4))
    sampled: list[ScoredSamples] = []
    sample = session.context.sample

    def noted(requests: Any, **more: Any) -> ScoredSamples:
        sampled.append(sample(requests, **more))
        return sampled[-1]

    session.context.sample = noted  # type: ignore[method-assign]
    before = part(plain, session.context)
    with torch.no_grad():
        for parameter in session.policy.parameters():
            parameter.mul_(1.5)
    after = part(plain, session.context)
    assert sampled[0].rollout.response_ids == sampled[2].rollout.response_ids, "first trials of the frozen actor"
    assert sampled[1].rollout.response_ids == sampled[3].rollout.response_ids, "and advised ones"
    texts = [subset(rows, rows.valid_b).texts for rows in (before, after)]
    assert texts[0] != texts[1], "the policy itself writes other reviews now"
    assert session.row_source.policy is session.policy
    assert session.context.read_notes()["actor_reward"] == pytest.approx(sampled[0].scores.reward_b.mean())


def model_of(store: dict[str, Any], seed: int = 0) -> ReviewModel:
    policy = CausalPolicy(*build_tiny("abcd?", hidden=8, layers=1, heads=2, intermediate=8))
    context = SimpleNamespace(policy=policy, text=SimpleNamespace(policy=policy))
    return ReviewModel(store, context, "gru", 16, 1e-2, seed)  # type: ignore[arg-type]


def test_a_reward_model_learns_what_reviews_bring_and_is_kept() -> None:
    store: dict[str, Any] = {}
    model = model_of(store)
    prompts, reviews = [[3, 4], [3, 4], [4, 3], [4, 3]], [[5], [6], [5], [6]]
    gain_n = np.array([1.0, 0.0, -1.0, 0.5])
    model.add(prompts[:2], reviews[:2], gain_n[:2])
    model.add(prompts[2:], reviews[2:], gain_n[2:])
    assert [gain for _, gain in store["tried"]] == gain_n.tolist()
    before = np.square(model(prompts, reviews) - gain_n).mean()
    model.fit(150, 16, np.random.default_rng(0))
    assert np.square(model(prompts, reviews) - gain_n).mean() < 0.05 < before
    again = model_of(copy.deepcopy(store), seed=1)
    assert again(prompts, reviews).tolist() == model(prompts, reviews).tolist()
    model.fit(1, 4, np.random.default_rng(1))
    again.fit(1, 4, np.random.default_rng(1))
    assert again(prompts, reviews).tolist() == model(prompts, reviews).tolist(), "the optimiser is kept, too"


@pytest.mark.parametrize("pilot", [0, 1])
def test_a_reward_model_rewards_tried_and_imagined_reviews(pilot: int, tmp_path: Path) -> None:
    method = {"name": "retroformer", "form": form(Fixed), "actor": "policy", "imagined": 2, "pilot": pilot}
    session = session_of(tmp_path, method)
    (part,) = session.method.augment
    plain = session.context.sample(session.context.take(4))
    wrong = int((~plain.scores.correct_b).sum())
    rows = part(plain, session.context)
    reviews = subset(rows, rows.valid_b)
    notes = session.context.read_notes()
    store = session.context.state_of(part)["model"]
    assert len(store["tried"]) == notes["retries"] == wrong > 0
    assert notes["review_model_error"] > 0
    if pilot:
        assert len(reviews) == notes["reviews"] == wrong
        assert set(reviews.scores.reward_b.tolist()) <= {0.0, 1.0}, "the differences themselves"
        return
    assert len(reviews) == notes["reviews"] == 3 * wrong
    _, counts = np.unique(reviews.group_b, return_counts=True)
    assert counts.tolist() == [3] * wrong
    for group in set(reviews.group_b.tolist()):
        same = reviews.group_b == group
        assert len({prompt for prompt, one in zip(reviews.prompts, same, strict=True) if one}) == 1
        assert len(set(reviews.extras["keys.review"][same].tolist())) == 1
    model = session.context.cache_of(part)["model"]
    said = model(reviews.rollout.prompt_ids, reviews.rollout.response_ids)
    assert np.allclose(reviews.scores.reward_b, said, atol=1e-6)
    assert len(set(reviews.row_keys)) == len(reviews)


def test_a_reward_model_that_is_never_asked_is_idle() -> None:
    assert "rewards nothing" in Retrospect(imagined=1, pilot=5).idle(RunFacts(steps=5))[0]
    assert Retrospect(imagined=1, pilot=4).idle(RunFacts(steps=5)) == Retrospect(pilot=5).idle(RunFacts(steps=5)) == []


# --- warm-up ----------------------------------------------------------------------------------------------------------


def shown(reward: float, *actions: str) -> Shown:
    turns = tuple(Turn(i, "", action, seen="/") for i, action in enumerate(actions))
    return Shown(Lesson("p:", (5, 6), (True, True)), turns, reward, reward >= 1)


class Letters:
    eos_ids = (2,)
    tokenizer = None

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [[ord(c) for c in text] for text in texts]


def test_lessons_are_hindsight() -> None:
    def said(lesson: Lesson) -> tuple[Any, str]:
        return lesson.prompt, "".join(map(chr, lesson.response_ids[:-1]))

    praise, review, guided = ReflectRetry().lessons(shown(1.0, "a", "c"), shown(0.0, "a", "b"), Letters())
    assert said(praise) == ("p: 0 a/ 1 c/ =1?", "ok")
    assert said(review) == ("p: 0 a/ 1 b/ =0?", "1 c")
    assert guided == Lesson("1 c|p:", (5, 6), (True, True))
    assert review.response_ids[-1] == 2
    _, plain = CutAndRegenerate().lessons(shown(0.0, "a", "b"), shown(1.0, "a", "c"), Letters())
    assert said(plain) == ("p: 0 a/ 1 b/ =0?", "1")
    assert Retrospect().lessons(shown(1.0, "a"), shown(1.0, "a"), Letters()) == []
    (advised,) = Retrospect().lessons(shown(0.0, "a"), shown(0.0, "b"), Letters())
    assert advised.prompt == "0 b|p:"


def test_a_warm_up_shows_lessons_behind_the_demonstrations(tmp_path: Path) -> None:
    session = session_of(tmp_path, "r3l")
    numbered_examples = [(0, session.task.example("train", 0)), (1, session.task.example("train", 1))]
    given = (session.policy, session.task, numbered_examples, 0)
    without, taught = demonstration_batch(*given), demonstration_batch(*given, teachers=session.method.augment)
    assert len(taught.group_b) > 4
    assert torch.equal(taught.mask_bt[:2, : without.mask_bt.shape[1]], without.mask_bt)
    assert taught.inputs.rows([0, 1]).response_ids == without.inputs.response_ids
    present_bt = taught.inputs.present_bt()
    assert not (taught.mask_bt & ~present_bt).any()
    assert session.context.text.decode([taught.inputs.prompt_ids[-1]])[0]


# --- runs -------------------------------------------------------------------------------------------------------------

SMALL = {"warmup": {"steps": 4, "batch": 8, "lr": 1e-2}, "batch": {"prompts": 4, "group_size": 4}}
SMALL |= {"eval": {"final_prompts": 8, "samples": 2}}


IMAGINED = {"name": "retroformer", "imagined": 2, "pilot": 1}


@pytest.mark.parametrize("name", ["r3l", "search_r2", "retroformer", "echo", "imagined"])
def test_killed_and_resumed_ends_equally(tmp_path: Path, name: str) -> None:
    method = IMAGINED if name == "imagined" else name
    settings = {**SMALL, "task": f"{__file__}:TossTask", "method": method, "steps": 4}
    settings |= {"run": {"checkpoint_every": 2, "keep": 9, "threads": 1}}
    whole = launch(tmp_path / "whole", **settings)
    assert_goes_on_equally(whole, tmp_path / "copy", run_config(**settings))
    last = records(whole, "train")[-1]
    assert last["grad_norm"] > 0
    if name == "echo":
        assert last["observation_likelihood_loss"] > 0
    else:
        assert 0 < last["reviews"] <= (48 if name == "imagined" else 16)


def test_a_step_without_a_review_teaches_nothing(tmp_path: Path) -> None:
    model = {"name": "tiny", "tiny": {**run_config()["model"]["tiny"], "max_positions": 20}}
    settings = {**SMALL, "task": f"{__file__}:TossTask", "model": model, "warmup": {"steps": 0}}
    for record in records(launch(tmp_path / "run", **settings, method="retroformer"), "train"):
        assert record["grad_norm"] == 0
        assert record["reviews"] == 0
        assert record["reviews_no_room"] > 0


def test_without_its_second_loss_echo_is_grpo(tmp_path: Path) -> None:
    settings = {**SMALL, "task": f"{__file__}:TossTask"}
    ours = launch(tmp_path / "a", **settings, method={"name": "echo", "observation_coef": 0.0})
    theirs = launch(tmp_path / "b", **settings, method="grpo")
    assert evidence(ours)["policy.safetensors"] == evidence(theirs)["policy.safetensors"]


def test_echo_learns_what_the_environment_says(tmp_path: Path) -> None:
    """The environment repeats the action's letter: the more likely that is found, the smaller the loss."""
    settings = {**SMALL, "task": f"{__file__}:TossTask", "warmup": {"steps": 0}, "optim": {"lr": 1e-2}}
    folder = launch(tmp_path / "run", **settings, method={"name": "echo", "observation_coef": 1.0}, steps=20)
    losses = [record["observation_likelihood_loss"] for record in records(folder, "train")]
    assert losses[-1] < 0.5 * losses[0]


def test_the_plan_tells_of_reviews() -> None:
    found = plan(parse_config(run_config(method="r3l")))
    assert not found.refusals
    assert "reflect_retry: up to 64 reviews and 64 second attempts per rollout" in found.extra_samples[0]
    assert any("reviews each episode" in stage.words for stage in found.stages)
    single = plan(parse_config(run_config(task="addition", method="retroformer"))).refusals
    assert any("continues episodes between turns" in reason for reason in single)
    assert "unknown form of reviews 'jsn'" in ReflectRetry(form="jsn").refuse(RunFacts(environment=True))[0]
    for part in (ReflectRetry(), CutAndRegenerate(), Retrospect()):
        assert "2 agents" in part.refuse(RunFacts(environment=True, agents=2))[0]
