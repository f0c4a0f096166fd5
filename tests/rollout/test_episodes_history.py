"""Chat templates that rewrite what was said in earlier turns."""

from __future__ import annotations

from typing import Any

import pytest

import toy_envs
from chat_policies import CHATML, FORGETFUL
from episode_runs import run_config
from grouprl import InputError
from grouprl.config.run import parse_config
from grouprl.plan.plan import plan
from grouprl.policy import load_policy
from grouprl.rollout.episode_rows import measured
from grouprl.rollout.episodes import Start, play
from grouprl.rollout.turn_text import TurnText
from grouprl.tasks import Example


def policy(template: str) -> Any:
    alphabet = "".join(chr(c) for c in range(32, 127)) + "\n"
    made = load_policy("tiny", alphabet=alphabet, hidden=16, layers=1, heads=2, intermediate=16)
    made.tokenizer.chat_template = template
    return made


def played(template: str, history: Any, *words: str) -> Any:
    own = policy(template)
    prefix = tuple((*own.encode(word), own.eos_ids[0]) for word in words)
    start = Start(Example("q", "?", {"turns": len(words)}), 0, prefix=prefix, train_prefix=True)
    episodes = play(own, toy_envs.Counting, [start], max_turns=9, max_new_tokens=30, history=history)
    texts = ["".join(own.tokenizer.convert_ids_to_tokens(ids)) for ids in episodes.rollout.response_ids]
    prompts = ["".join(own.tokenizer.convert_ids_to_tokens(ids)) for ids in episodes.rollout.prompt_ids]
    return episodes, prompts, texts


WORDS = ("x</think>b", "plain", "y</think>d", "z")


def test_split_begins_a_row_where_something_is_rewritten() -> None:
    episodes, prompts, texts = played(FORGETFUL, "split", *WORDS)
    u = "<eos><|user|>{}<eos><|assistant|>".format
    assert prompts[0] == "<|user|>?????<eos><|assistant|>"
    assert texts[0] == "x</think>b<eos>"
    assert prompts[1] == prompts[0] + "b" + u("ab")
    assert texts[1] == "plain" + u("abab") + "y</think>d<eos>"
    assert prompts[2] == prompts[1] + "plain" + u("abab") + "d" + u("ababab")
    assert texts[2] == "z<eos>"
    assert episodes.turns_b.tolist() == [1, 2, 1]
    assert episodes.context_b.tolist() == [0, 1, 2]
    assert episodes.caller_b.tolist() == [-1, -1, -1]
    assert episodes.agent_b.tolist() == [0, 0, 0]
    assert episodes.outcomes[0]["turn_rewards"] == 4.0
    assert [verdict["turn_rewards"] for verdict in episodes.verdicts] == [1.0, 2.0, 1.0]


@pytest.mark.parametrize("template", [CHATML, FORGETFUL])
def test_append_keeps_what_was_written(template: str) -> None:
    _, prompts, texts = played(template, "append", *WORDS)
    assert prompts == ["<|user|>?????<eos><|assistant|>"]
    u = "<eos><|user|>{}<eos><|assistant|>".format
    assert texts == [f"x</think>b{u('ab')}plain{u('abab')}y</think>d{u('ababab')}z<eos>"]


def test_a_template_that_keeps_history_is_never_split() -> None:
    assert played(CHATML, "split", *WORDS)[1:] == played(CHATML, "append", *WORDS)[1:]


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(InputError, match="Did you mean 'split'"):
        TurnText(policy(CHATML), "splitt")  # type: ignore[arg-type]


def test_the_plan_shows_the_difference() -> None:
    task = toy_envs.AskTask()
    requested = [task.example("train", i) for i in range(4)]
    for history, effect in (("refuse", "counts as failed"), ("append", "stays in the row"), ("split", "a new row")):
        found = measured(policy(FORGETFUL), task, requested, 4, history)
        (note,) = found.notes
        assert not found.complaints
        assert "of a turn with thinking, the chat template rewrites history: what was '<think>" in note
        assert effect in note
        assert f"sampling.history {history}" in note
    (idle,) = measured(policy(CHATML), task, requested, 4, "split").notes
    assert "sampling.history split has no effect" in idle
    assert not measured(policy(CHATML), task, requested, 4).notes


def test_single_completions_have_no_history() -> None:
    made = plan(parse_config(run_config(task="addition", sampling={"history": "append"})))
    assert "sampling.history has no effect: the task has a single turn" in made.idle
