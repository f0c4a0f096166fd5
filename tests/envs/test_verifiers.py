"""Environments of verifiers by name, in process: those before 0.4 and tasksets of 0.4 (`make worlds` installs one)."""

from __future__ import annotations

import importlib.metadata
import os
import signal

import pytest

from chat_policies import chatting
from grouprl.core.errors import InputError
from grouprl.envs.async_methods import awaited
from grouprl.envs.environment_pool_choice import open_stage
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.rewards.contract import Failure
from grouprl.rollout.episodes import Start, play
from grouprl.rollout.group_scores import with_group_scores
from grouprl.tasks import load_task

pytest.importorskip("verifiers", reason="verifiers is not installed: pip install 'grouprl[verifiers]'")
NEWER = tuple(map(int, importlib.metadata.version("verifiers").split(".")[:2])) >= (0, 4)
classic = pytest.mark.skipif(NEWER, reason="verifiers 0.4 has no load_environment")
newer = pytest.mark.skipif(not NEWER, reason="verifiers before 0.4 is installed")


def letters(kind="single", **options):
    args = {"kind": kind, **options.pop("args", {})}
    return load_task({"name": "verifiers:vf-letters", "args": args, "tokens": 6, **options})


def played(task, answers, index=0):
    """Return the observations, the last step and the score of an episode with these answers."""
    environment = task.environment()
    try:
        seen = [awaited(environment.reset(task.example("train", index), 1))]
        step = None
        for answer in answers:
            step = awaited(environment.step(answer))
            seen.append(step.observation)
        return seen, step, environment.score()
    finally:
        awaited(environment.close())


@classic
def test_a_single_turn_with_system_prompt_examples_and_weights():
    task = letters()
    assert (task.size("train"), task.size("eval"), task.max_turns) == (10, 2, 1)
    example = task.example("train", 0)
    seen, step, score = played(task, ["ax"])
    assert [message["content"] for message in seen[0].messages] == ["Say letters.", "Copy b", "b", "Copy ab"]
    assert tuple(message["content"] for message in example.prompt) == ("Say letters.", "Copy b", "b", "Copy ab")
    assert (example.columns["answer"], example.columns["info"]) == ("ab", {"size": 2})
    assert (step.terminated, step.truncated, step.valid) == (True, False, True)
    assert score == {"exact": 0.0, "overlap": 0.25, "#length": 2.0, "#num_turns": 1.0, "correct": 0.0}
    right = {"exact": 1.0, "overlap": 0.5, "#length": 2.0, "#num_turns": 1.0, "correct": 1.0}
    assert played(task, ["ab"])[2] == right


@classic
def test_several_turns_end_as_the_environment_says_or_are_cut_off_by_it():
    task = letters("turns")
    seen, step, score = played(task, ["bb", "ab"])
    assert [message["content"] for message in seen[1].messages] == ["1 right"]
    assert not seen[1].fresh
    assert (step.terminated, score["exact"], score["fewer_tries"]) == (True, 1.0, 0.5)
    _, step, score = played(task, ["bb"] * 4)
    assert (step.terminated, step.truncated) == (False, True)
    assert score["fewer_tries"] == 0.25  # what the rubric pays for a rollout that its own limit ended


@classic
@pytest.mark.parametrize(("kind", "call", "result"), [("tool", "add", "3"), ("owned", "secret", "b")])
def test_tools_are_announced_and_called(kind, call, result):
    arguments = '{"a": 1, "b": 2}' if kind == "tool" else '{"position": 1}'
    text = f'<tool_call>\n{{"name": "{call}", "arguments": {arguments}}}\n</tool_call>'
    seen, step, score = played(letters(kind), [text, "ab"])
    assert [tool["function"]["name"] for tool in seen[0].tools] == [call]
    assert "word" not in seen[0].tools[0]["function"]["parameters"]["properties"]
    assert [(message["role"], message["content"]) for message in seen[1].messages] == [("tool", result)]
    assert (step.terminated, score["exact"]) == (True, 1.0)


@classic
def test_what_was_said_is_never_encoded_again():
    policy, task = chatting(), letters("turns")
    starts = [Start(task.example("train", i % 3), i, action_seed=i) for i in range(6)]
    found = play(policy, task.environment, starts, max_turns=4, max_new_tokens=6)
    assert not found.failures
    assert len(found) == 6  # one row each: every request continues the one before
    for ids, mask, record in zip(found.rollout.response_ids, found.mask_bt, found.records, strict=True):
        own = [token for token, mine in zip(ids, mask, strict=False) if mine and token not in policy.eos_ids]
        assert policy.decode_all([own])[0] == "".join(turn.action for turn in record.turns)


@classic
def test_a_group_is_scored_together():
    task = letters("group")
    assert not task.needs_clock
    starts = [Start(task.example("train", i // 4), i, action_seed=i) for i in range(8)]
    bare = play(chatting(), task.environment, starts, max_turns=1, max_new_tokens=6)
    found = with_group_scores(task, bare, starts, [i // 4 for i in range(8)])
    sizes = [len(record.turns[0].action) for record in found.records]
    for first in (0, 4):
        said = {i: sizes[i] for i in range(first, first + 4) if found.records[i].turns[0].valid}
        for i, size in said.items():
            assert found.verdicts[i]["shortest"] == float(size == min(said.values()))
            assert found.outcomes[i]["exact"] == float(
                found.records[i].turns[0].action.strip() == starts[i].example.columns["answer"]
            )
    with pytest.raises(InputError, match="compare the episodes of a group"):
        open_stage(task, 2)


@classic
def test_an_empty_answer_has_earned_nothing_and_is_no_failure():
    _, step, score = played(letters(), [""])
    assert (step.terminated, step.valid, score) == (True, False, {"correct": 0.0})


@classic
def test_a_reward_function_that_raises_is_a_failure_and_not_a_zero():
    with pytest.raises(RuntimeError, match=r"Error calling reward function broken: no such column"):
        played(letters("broken"), ["ab"])
    with pytest.raises(RuntimeError, match=r"InfraError: the server is gone"):
        played(letters("turns"), ["fail"])


@classic
def test_one_that_hangs_takes_no_other_with_it():
    task = letters("turns")
    stage = WorkerStage(task, 1, timeout=60.0, memory_gb=4.0)
    try:
        stage.call("reset", [(i, (task.example("train", i), i)) for i in range(3)])
        steps = stage.call("step", [(0, ("bb",)), (1, ("hang",)), (2, ("bb",))])
        assert [isinstance(step, Failure) for step in steps] == [False, True, False], steps
        assert steps[1].lost
        assert [steps[i].observation.messages[0]["content"] for i in (0, 2)] == ["1 right", "1 right"]
        assert not isinstance(stage.call("step", [(0, ("ab",))])[0], Failure)
    finally:
        stage.close()


@classic
def test_what_is_wrong_is_said(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    said = {
        "verifiers:vf-leters": "Did you mean 'vf-letters'",
        "verifiers:os": "'os' is not an environment of verifiers",
        "env:verifiers:a b": "is not the name of an environment",
    }
    for name, words in said.items():
        with pytest.raises(InputError, match=words):
            load_task(name)
    kinds = {"judge": "no API key", "silent": "no function with a weight", "nope": "there is no kind 'nope'"}
    for kind, words in kinds.items():
        with pytest.raises(InputError, match=words):
            letters(kind)
    with pytest.raises(InputError, match=r"has no argument 'words_'. Did you mean 'words'"):
        letters(args={"words_": []})
    with pytest.raises(InputError, match="takes arguments only"):
        letters(settings={"agent": {}})


@classic
def test_data_that_cannot_be_fetched_is_named():
    code = (
        "from grouprl.tasks import load_task\n"
        "try: load_task({'name': 'verifiers:vf-letters', 'args': {'kind': 'hub'}})\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    assert "InputError" in ran(code)


def ran(code):
    """Return what a program prints that is told there is no connection."""
    import subprocess
    import sys

    path = os.pathsep.join(sys.path)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=300)
    assert "fetched from a hub" in done.stdout, done.stdout + done.stderr
    return done.stdout


@classic
def test_held_out_rows_are_not_trained_on():
    task = letters(args={"held_out": False})
    rows = {
        split: {task.example(split, i).columns["answer"] for i in range(task.size(split))}
        for split in ("train", "eval")
    }
    assert len(rows["train"]) == 9
    assert not rows["train"] & rows["eval"]
    with pytest.raises(InputError, match="in its data for evaluation, too"):
        letters(args={"words": ["ab", "aabb"]})
    assert letters(args={"words": ["ab", "aabb"]}, drop_overlap=True).size("train") == 1


@classic
def test_the_librarys_signal_handlers_do_not_stay():
    before = signal.getsignal(signal.SIGTERM)
    letters(args={"words": ["ab", "ba", "aa"]})
    assert signal.getsignal(signal.SIGTERM) is before


@newer
def test_a_taskset_is_played_in_process():
    task = load_task("verifiers:verifiers-letters")
    assert (task.size("train"), task.size("eval")) == (7, 1)
    seen, step, score = played(task, ["a", "b"])
    assert [each.messages[0]["content"] for each in seen[:2]] == ["a?", "b?"]
    assert (seen[1].fresh, step.terminated, score) == (False, True, {"share": 1.0, "correct": 1.0})
    assert played(task, ["a", ""])[2] == {"share": 0.5, "correct": 1.0}


@newer
def test_episodes_of_a_taskset_are_rows():
    policy, task = chatting(), load_task("verifiers:verifiers-letters")
    starts = [Start(task.example("train", 0), i, action_seed=i) for i in range(4)]
    found = play(policy, task.environment, starts, max_turns=2, max_new_tokens=4)
    assert not found.failures
    assert found.turns_b.tolist() == [2, 2, 2, 2]
    for record, verdict in zip(found.records, found.verdicts, strict=True):
        replies = [turn.action for turn in record.turns]
        assert verdict["share"] == sum(letter in reply for letter, reply in zip("ab", replies, strict=True)) / 2


@newer
def test_what_is_wrong_with_a_taskset_is_said():
    with pytest.raises(InputError, match="lettrs"):
        load_task({"name": "verifiers:verifiers-letters", "args": {"lettrs": "x"}})
    with pytest.raises(InputError, match="nope"):
        load_task({"name": "verifiers:verifiers-letters", "settings": {"agent": {"harness": {"id": "nope"}}}})
