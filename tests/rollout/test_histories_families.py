"""Histories of current families' templates, judged per episode by the real rendering; calls in each syntax."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chat_families import CHAT_FAMILIES, family_policy
from chat_policies import chatting
from grouprl.chat.turn_content import Call
from grouprl.envs.environment import Observation, Step
from grouprl.policy import Tokens
from grouprl.policy.language.call_syntax import call_syntax
from grouprl.policy.language.chat_template import template_of
from grouprl.records.examples import Chat
from grouprl.rewards import exact_match
from grouprl.rewards.contract import Failure
from grouprl.rollout.episodes import Episodes, Start, play
from grouprl.rollout.template_check import check_template
from grouprl.tasks import Example
from grouprl.tools import Toolbox, ToolEnvironment, tool


@tool(seconds=None)
def add(first: int, second: int = 10) -> int:
    """Add two numbers.

    Args:
        first: one number
        second: the other one
    """
    return first + second


BOX = Toolbox([add])
PROMPT = ({"role": "system", "content": "Be exact."}, {"role": "user", "content": "1+2?"})
SUM = Example("sum", PROMPT, {"answer": "3"})  # type: ignore[arg-type]
FAMILIES = [name for name in CHAT_FAMILIES if name not in ("mistral nemo", "gemma 3", "phi 4", "llama 3")]


class Told:
    """Answers every action with a user's message, three times."""

    def __init__(self) -> None:
        self.left = 3

    def reset(self, example: Example, seed: int) -> Observation:
        return Observation("say", messages=tuple(example.prompt), tools=example.columns.get("tools", ()))  # type: ignore[arg-type]

    def step(self, action: str) -> Step:
        self.left -= 1
        return Step(Observation(f"more {self.left}"), 1.0, terminated=not self.left)

    def score(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


def with_tools() -> ToolEnvironment:
    return ToolEnvironment(BOX, exact_match, max_turns=6)


def played(name: str, turns: list[str], history: Any, make: Any = with_tools, example: Example = SUM) -> Episodes:
    """Play one episode whose turns are given, then two sampled tokens more."""
    policy = family_policy(name)
    form, ends = call_syntax(policy.tokenizer), list(CHAT_FAMILIES[name].ends)
    one, two = Call("add", {"first": 1, "second": 2}), Call("add", {"first": 5})
    texts = {
        "call": form.write_all([one]),
        "think, call": form.think("hm") + form.write_all([one]),
        "calls": form.write_all([one, two]),
        "malformed": form.write_all([one]).replace("add", "").replace("2", "", 1),
        "answer": form.answer("3"),
        "think, answer": form.think("hm") + form.answer("3"),
        "spaces": f" {form.answer('3')} \n",
    }
    last = ends[-1] if name == "gpt-oss" else ends[0]
    prefix = tuple(
        (*policy.encode(texts[turn]), policy.tokenizer.convert_tokens_to_ids(ends[0] if "call" in turn else last))
        for turn in turns
    )
    start = Start(example, 0, prefix=prefix, train_prefix=True)
    return play(policy, make, [start], max_turns=len(turns), max_new_tokens=300, history=history)


def outcome(episodes: Episodes) -> Any:
    (found,) = episodes.outcomes
    return found.what if isinstance(found, Failure) else found


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("history", ["split", "append"])
def test_calls_are_made_and_their_results_are_shown_in_every_family(name: str, history: str) -> None:
    episodes = played(name, ["think, call", "calls", "answer"], history)
    found = outcome(episodes)
    assert found["correct"] == 1.0, found
    assert (found["#tool_calls"], found["#malformed_calls"]) == (3.0, 0.0)
    policy = family_policy(name)
    decode = policy.tokenizer.decode
    rows = [
        decode([*prompt, *ids])
        for prompt, ids in zip(episodes.rollout.prompt_ids, episodes.rollout.response_ids, strict=True)
    ]
    assert "adder" not in rows[-1]
    assert "add" in rows[0]
    assert "15" in rows[-1], "the result of the second call of the second turn"
    if history == "append":
        assert len(rows) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_a_malformed_call_is_answered_with_what_is_wrong(name: str) -> None:
    found = outcome(played(name, ["malformed", "call", "answer"], "split"))
    assert found["#malformed_calls"] == 1.0
    assert found["correct"] == 1.0


KEPT = {
    "llama 3": ("call", "think, call", "calls"),
    "llama 3.1": ("call", "think, call", "calls"),
    "qwen 2.5": ("call", "think, call", "calls", "malformed"),
    "qwen 3": ("call", "think, call", "calls", "malformed"),
    "gemma 2": ("call", "calls"),
    "gemma 3": ("call", "calls"),
    "mistral 0.1": ("call", "think, call"),
    "phi 3": ("call", "think, call"),
    "phi 4 mini": ("call", "think, call"),
    "smollm 3": ("call", "think, call"),
    "olmo 2": ("call", "think, call"),
    "deepseek 3": ("call", "calls"),
    "deepseek 3.1": ("call", "calls"),
    "granite 3": ("call", "think, call", "calls"),
    "gpt-oss": ("call", "think, call"),
}
"""Turns with calls that each template leaves as they were written."""


@pytest.mark.parametrize(("name", "turn"), [(name, turn) for name, turns in KEPT.items() for turn in turns])
def test_what_is_not_rewritten_is_one_row_by_default(name: str, turn: str) -> None:
    episodes = played(name, [turn, "call", "answer"], "refuse")
    assert not isinstance(episodes.outcomes[0], Failure), outcome(episodes)
    assert len(episodes) == 1


REWRITTEN = [
    ("qwen 3", "think, answer", with_tools, False),  # the end of the episode: nothing follows
    ("qwen 3", "think, answer", Told, True),
    ("qwen 3", "answer", Told, False),
    ("deepseek 3", "think, answer", Told, True),
    ("llama 3", "spaces", Told, True),
    ("llama 3.1", "spaces", Told, True),
    ("gemma 2", "spaces", Told, True),
    ("gemma 3", "spaces", Told, True),
    ("gemma 2", "answer", Told, False),
    ("qwen 2.5", "spaces", Told, False),
    ("smollm 2", "spaces", Told, False),
    ("gpt-oss", "answer", Told, True),  # <|return|> becomes <|end|>
    ("mistral 0.3", "call", with_tools, True),  # calls get ids
    ("mistral nemo", "call", with_tools, True),
    ("glm 4.5", "answer", Told, True),  # an empty thought is put in front
]


@pytest.mark.parametrize(("name", "turn", "make", "rewritten"), REWRITTEN)
def test_what_is_rewritten_is_seen(name: str, turn: str, make: Any, rewritten: bool) -> None:
    turns = [turn, "answer"]
    refused, split, kept = (played(name, turns, history, make) for history in ("refuse", "split", "append"))
    assert isinstance(refused.outcomes[0], Failure) is rewritten, outcome(refused)
    assert not split.failures
    assert not kept.failures
    if rewritten:
        assert "the chat template rewrites history: what was" in outcome(refused)
        assert "sampling.history" in outcome(refused)
        assert len(split) > 1
    assert len(kept) == 1


def test_tools_that_move_to_the_last_user_message_are_seen() -> None:
    example = Example("moved", ({"role": "user", "content": "go"},), {"tools": BOX.schemas})  # type: ignore[arg-type]
    refused = played("mistral 0.3", ["answer", "answer"], "refuse", Told, example)
    assert "what was 'AVAILABLE_TOOLS" in outcome(refused)
    split = played("mistral 0.3", ["answer", "answer"], "split", Told, example)
    decode = family_policy("mistral 0.3").tokenizer.decode
    first, second = (decode(ids) for ids in split.rollout.prompt_ids)
    assert first.startswith("<s>[AVAILABLE_TOOLS] [")
    assert second.startswith("<s>[INST] go[/INST]")
    assert "[AVAILABLE_TOOLS] [" in second


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_what_the_template_renders(name: str) -> None:
    """Whatever the setting allows as one row is the rendering of its conversation, to the last action."""
    policy = family_policy(name)
    starts = [Start(SUM, seed, action_seed=7 * seed) for seed in range(2)]
    episodes = play(policy, Told, starts, max_turns=3, max_new_tokens=4, history="split")
    template, rollout = template_of(policy.tokenizer), episodes.rollout
    for row, (prompt, ids) in enumerate(zip(rollout.prompt_ids, rollout.response_ids, strict=True)):
        assert policy.tokenizer.decode(prompt) == template.render(episodes.prompts[row])  # type: ignore[arg-type]
        if episodes.turns_b[row] < 2:
            continue
        record, talk = episodes.records[row], list(episodes.prompts[row])
        for turn in record.turns[:-1]:
            talk += [{"role": "assistant", "content": turn.action}, {"role": "user", "content": turn.seen}]  # type: ignore[list-item]
        last = [i for i in range(len(ids)) if episodes.turn_bt[row, i] == episodes.turns_b[row] - 1]
        assert policy.tokenizer.decode([*prompt, *ids[: last[0]]]) == template.render(Chat(talk))


TEN = (
    "llama 3.1",
    "qwen 2.5",
    "qwen 3",
    "gemma 2",
    "mistral 0.3",
    "phi 3",
    "smollm 3",
    "olmo 2",
    "granite 3",
    "gpt-oss",
)
"""Ten families of templates, each over a model of its own architecture."""


@pytest.mark.parametrize("name", TEN)
@pytest.mark.parametrize("history", ["split", "append"])
def test_tokens_in_are_tokens_out(name: str, history: Any) -> None:
    """Ids, masks and log-probs of every row are those that the policy sampled, over ten families of models."""
    policy, sampled = family_policy(name), []
    decoded = policy.decode_all
    policy.decode_all = lambda rows: sampled.extend(map(tuple, rows)) or decoded(rows)  # type: ignore[method-assign, func-returns-value]
    starts = [Start(SUM, seed, action_seed=31 * seed) for seed in range(3)]
    make = with_tools if name != "olmo 2" else Told
    episodes = play(policy, make, starts, max_turns=3, max_new_tokens=5, history=history)
    assert not episodes.failures
    rollout, trained = episodes.rollout, []
    for row, ids in enumerate(rollout.response_ids):
        for turn in range(episodes.turns_b[row]):
            trained.append(tuple(ids[i] for i in range(len(ids)) if episodes.turn_bt[row, i] == turn))
    assert sorted(trained) == sorted(sampled), "every sampled turn is trained on as it was sampled, once"
    assert episodes.mask_bt.sum() == sum(map(len, sampled))
    logp_bt = policy.logp(Tokens(rollout.prompt_ids, rollout.response_ids))
    mask = torch.from_numpy(episodes.mask_bt)
    assert torch.allclose(logp_bt[mask], rollout.logp_bt[mask], atol=2e-5)


def test_a_plan_is_told_what_the_template_rewrites() -> None:
    plain, tools = Chat(PROMPT), Chat(PROMPT, BOX.schemas)
    for history, effect in (
        ("refuse", "counts as failed"),
        ("split", "a new row begins"),
        ("append", "stays in the row"),
    ):
        found = check_template(family_policy("mistral 0.3"), [tools], history, turns=True)  # type: ignore[arg-type]
        assert found.refusals == ()
        (note,) = [each for each in found.notes if "of a turn such as '[TOOL_CALLS] [{" in each]
        assert 'becomes \', "id":' in note
        assert effect in note
    always = chatting("{% for m in messages %}{{ m.role[0] }}{{ m.content }}{{ loop.length }}{% endfor %}a")
    assert "the chat template rewrites history" in check_template(always, [plain], turns=True).refusals[0]
    assert check_template(always, [plain], "split", turns=True).refusals == ()
    for name in KEPT:
        assert check_template(family_policy(name), [tools], turns=True).refusals == (), name
    (note,) = check_template(family_policy("qwen 3"), [plain], turns=True).notes
    assert note.startswith("of a turn with thinking, the chat template rewrites history")
    assert check_template(family_policy("qwen 3"), [tools], turns=True).notes == ()
    assert "white space at its ends" in check_template(family_policy("llama 3.1"), [plain], turns=True).notes[-1]
    idle = check_template(family_policy("qwen 2.5"), [plain], "split", turns=True).notes
    assert idle == ("sampling.history split has no effect: nothing rewrites what was said in earlier turns",)


class Late(Told):
    """Says something new in the system's name after the first turn."""

    def step(self, action: str) -> Step:
        step = super().step(action)
        messages = ({"role": "system", "content": "zlate"}, {"role": "user", "content": "zmore"})
        return Step(Observation("zmore", messages=messages), 1.0, terminated=step.terminated)


@pytest.mark.parametrize("name", CHAT_FAMILIES)
@pytest.mark.parametrize("history", ["append", "split"])
def test_a_later_system_message_is_in_the_row_after_what_came_before(name: str, history: Any) -> None:
    found = played(name, ["answer", "answer"], history, make=Late)
    assert not found.failures
    tokenizer = family_policy(name).tokenizer
    texts = [
        tokenizer.decode([*prompt, *ids])
        for prompt, ids in zip(found.rollout.prompt_ids, found.rollout.response_ids, strict=True)
    ]
    last = texts[-1]
    assert last.count("zlate") >= 1
    assert 0 <= last.index("1+2?") < last.index("zlate") < last.index("zmore"), last


def test_a_template_whose_calls_nothing_reads_is_refused_until_a_syntax_is_set() -> None:
    family = CHAT_FAMILIES["qwen 2.5"]
    odd = family.template.replace('<tool_call>\n{"name": ', '[CALL "').replace("\n</tool_call>", "]")
    odd = odd.replace("<tool_call></tool_call>", "[CALL]")
    assert odd != family.template
    policy = family_policy("qwen 2.5")
    policy.tokenizer.chat_template = odd
    prompt = Chat(PROMPT, BOX.schemas)  # type: ignore[arg-type]
    (refusal,) = check_template(policy, [prompt], turns=True).refusals
    assert "writes calls of tools as" in refusal
    assert "which no known syntax reads: set sampling.tool_calls" in refusal
    assert check_template(policy, [Chat(PROMPT)], turns=True).refusals == ()  # type: ignore[call-arg,arg-type]
    assert not any("no known syntax" in each for each in check_template(policy, [prompt], calls="hermes").refusals)
