"""Agent programs as environments: trained without changing them."""

from __future__ import annotations

import io
import json
import sys
import threading
from pathlib import Path

import pytest
import torch
from rich.console import Console

from chat_policies import chatting, scripted
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, MissingExtra
from grouprl.envs import Demonstrator, Environment
from grouprl.envs.check import check_environment
from grouprl.envs.environment_pool_choice import open_stage
from grouprl.monitor.metrics import call_metrics
from grouprl.policy import Tokens
from grouprl.rollout.episodes import Start, play
from grouprl.tasks import Example, load_task
from grouprl.training.loop import train

pytest.importorskip("openai", reason="openai is not installed: pip install 'grouprl[dev]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'grouprl[serve]'")

PROGRAMS = Path(__file__).parents[1] / "support" / "agent_programs.py"
SUM = Example("sum", "3+4=", {"answer": "7"})


def program(function, **options):
    return load_task({"name": f"program:{PROGRAMS}:{function}", "examples": "summands", "reward": exactly, **options})


exactly = f"{__file__}:seven"


def seven(result, answer):
    return float(result == answer)


def begun(function, **options):
    environment = program(function, **options).environment()
    return environment, environment.reset(SUM, 0)


def test_a_program_asks_and_is_answered():
    environment, first = begun("answer_once")
    assert (first.text, first.messages) == ("3+4=", ({"role": "user", "content": "3+4="},))
    assert isinstance(environment, Environment)
    assert not isinstance(environment, Demonstrator)
    last = environment.step("7")
    assert (last.terminated, last.valid, last.reward) == (True, True, 0.0)
    assert environment.score() == {"outcome": 1.0, "correct": 1.0}
    environment.close()
    environment.close()
    environment, _ = begun("answer_once")
    environment.step("8")
    assert environment.score() == {"outcome": 0.0, "correct": 0.0}
    environment.close()


def test_what_goes_on_holds_only_what_is_new():
    environment, first = begun("two_turns")
    assert [message["role"] for message in first.messages] == ["system", "user"]
    second = environment.step(" 8 ").observation
    assert (second.messages, second.fresh) == (({"role": "user", "content": "Sure?"},), False)
    assert environment.step("7").terminated
    assert environment.score()["correct"] == 1.0
    environment.close()


def test_another_conversation_is_fresh():
    environment, first = begun("two_conversations")
    assert not first.fresh
    second = environment.step("7").observation
    assert (second.fresh, second.text) == (True, "Unrelated")
    assert environment.step("x").terminated
    assert environment.score()["correct"] == 1.0
    environment.close()


def test_tools_are_announced_called_and_answered():
    environment, first = begun("tool_loop")
    assert [tool["function"]["name"] for tool in first.tools] == ["add"]
    called = environment.step('<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>').observation
    assert called.text == "7"
    assert called.messages[0]["role"] == "tool"
    assert called.tools == ()
    assert not called.fresh
    assert environment.step("7").terminated
    assert environment.score()["correct"] == 1.0
    environment.close()


def test_a_stop_text_is_not_shown_to_the_program():
    environment, _ = begun("with_stop")
    environment.step("7. And more")
    assert environment.score()["correct"] == 1.0
    environment.close()


def test_what_cannot_be_trained_is_refused_in_words():
    environment, _ = begun("unsupported", reward=f"{__file__}:complaints")
    environment.step("x")
    assert environment.score()["correct"] == 1.0
    environment.close()


def complaints(result):
    return float("an episode is one path" in result and "logprobs are set by the trainer" in result)


def packed_counts(result):
    """Four numbers of tokens below 1,000 as one, and the sum that is told as well."""
    (one, two, three), (four, five, six) = json.loads(result)
    assert (three, six) == (one + two, four + five)
    return float(one + 1e3 * two + 1e6 * four + 1e9 * five)


@pytest.mark.parametrize("template", [True, False])
def test_usage_counts_the_tokens_that_were_read_and_sampled(template):
    policy, task = chatting(*([] if template else [None])), program("counting", reward=f"{__file__}:packed_counts")
    episodes = play(policy, task.environment, [Start(SUM, 0)], max_turns=4, max_new_tokens=6)
    ((prompt, turns),) = zip(episodes.rollout.prompt_ids, episodes.turn_bt.tolist(), strict=True)
    first, second, before = turns.count(0), turns.count(1), len(prompt) + turns.index(1)
    assert episodes.outcomes[0]["outcome"] == len(prompt) + 1e3 * first + 1e6 * before + 1e9 * second
    assert before > len(prompt) + first, "the question in between was read, too"


def served_after_all(result):
    return float(result == "chat.completion")


def test_parameters_that_a_trainer_cannot_apply():
    strict = program("wishing").environment()
    with pytest.raises(InputError, match=r"frequency_penalty = 0\.5 is not supported"):
        strict.reset(SUM, 0)
    strict.close()
    lenient = program("wishing", unknown_parameters="ignore", reward=f"{__file__}:served_after_all").environment()
    lenient.reset(SUM, 0)
    lenient.step("7")
    assert lenient.score()["correct"] == 1.0
    lenient.close()


def test_a_crash_is_a_failure_or_earns_nothing():
    environment, _ = begun("crashing")
    with pytest.raises(RuntimeError, match="the program failed: ValueError: cannot read the answer"):
        environment.step("7")
    environment.close()
    environment, _ = begun("crashing", on_crash="zero")
    last = environment.step("7")
    assert (last.terminated, last.valid) == (True, False)
    assert environment.score() == {"correct": 0.0}
    environment.close()


def test_a_program_that_hangs_is_named():
    environment, _ = begun("hanging", timeout=0.3)
    with pytest.raises(TimeoutError, match=r"neither sent a request nor ended within 0\.3 seconds"):
        environment.step("7")
    environment.close()


def test_a_program_that_asks_nothing_is_refused():
    with pytest.raises(InputError, match="ended without a request to the model"):
        begun("silent")


def test_an_episode_that_is_cut_off_ends_the_program():
    before = set(threading.enumerate())
    environment, _ = begun("two_turns")
    environment.step("8")
    assert environment.score() == {"correct": 0.0}
    (thread,) = [each for each in threading.enumerate() if each.name == "program" and each not in before]
    environment.close()
    thread.join(10)
    assert not thread.is_alive()  # its last request was refused


def command(*more):
    return " ".join([sys.executable, str(PROGRAMS), "{prompt}", *more])


def test_a_command_is_a_program():
    task = load_task({"name": f"program:{command()}", "examples": "summands", "reward": f"{__file__}:it_is"})
    environment = task.environment()
    assert environment.reset(SUM, 0).text == "3+4="
    assert environment.step("7").terminated
    assert environment.score() == {"outcome": 1.0, "correct": 1.0}
    environment.close()


def it_is(result, answer):
    return float(result == f"It is {answer}")


def test_a_command_that_fails_says_what_it_said_last():
    task = load_task({"name": f"program:{command('fail')}", "examples": "summands"})
    environment = task.environment()
    environment.reset(SUM, 0)
    with pytest.raises(RuntimeError, match=r"exit code 1: (?s:.*)no luck"):
        environment.step("7")
    environment.close()


def test_a_command_is_killed_with_its_episode():
    task = load_task({"name": f"program:{command()}", "examples": "summands"})
    environment = task.environment()
    environment.reset(SUM, 0)
    environment.close()
    assert not [t for t in threading.enumerate() if t.name == "program" and (t.join(10) or t.is_alive())]


@pytest.mark.parametrize("function", ["answer_once", "two_turns", "two_conversations"])
def test_the_environments_are_sound(function):
    task = program(function)
    report = check_environment(task.environment, lambda number: task.example("train", number), episodes=8)
    assert report.problems == ()


@pytest.mark.parametrize("function", ["two_turns", "tool_loop", "two_conversations"])
def test_rows_are_what_the_policy_sampled(function):
    """Token-in token-out: log-probs of the rows are the policy's own, and rows go on where conversations do."""
    policy, task = chatting(), program(function)
    starts = [Start(SUM, seed, action_seed=100 * seed) for seed in range(3)]
    episodes = play(policy, task.environment, starts, max_turns=4, max_new_tokens=6)
    rollout = episodes.rollout
    rows_each = 2 if function == "two_conversations" else 1
    assert episodes.episode_b.tolist() == [i for i in range(3) for _ in range(rows_each)]
    logp_bt = policy.logp(Tokens(rollout.prompt_ids, rollout.response_ids))
    mask = torch.from_numpy(episodes.mask_bt)
    assert torch.allclose(logp_bt[mask], rollout.logp_bt[mask], atol=1e-5)
    begins = "".join(policy.tokenizer.convert_ids_to_tokens(rollout.prompt_ids[0]))
    expected = {
        "two_turns": "<|system|>Add.<eos><|user|>3+4=<eos><|assistant|>",
        "tool_loop": "<|tools|>add;<eos><|user|>3+4=<eos><|assistant|>",
        "two_conversations": "<|user|>3+4=<eos><|assistant|>",
    }
    assert begins == expected[function]
    if function == "two_turns":
        between = [i for i, own in zip(rollout.response_ids[0], episodes.mask_bt[0], strict=False) if not own]
        text = "".join(policy.tokenizer.convert_ids_to_tokens(between))
        assert text.removeprefix("<eos>") == "<|user|>Sure?<eos><|assistant|>"


def test_calls_of_tools_are_counted(monkeypatch):
    policy, call = chatting(), '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    monkeypatch.setattr("grouprl.rollout.local.sampler.decode", scripted(policy, iter([call, call, "1", "x", "y"])))
    episodes = play(policy, program("tool_loop").environment, [Start(SUM, 0)], max_turns=4, max_new_tokens=80)
    assert [turn.calls for turn in episodes.records[0].turns] == [['add({"a": 1})'], ['add({"a": 1})'], []]
    assert call_metrics(episodes.records) == {"calls_mean": 2.0, "repeated_calls": 0.5}
    without = play(policy, program("two_turns").environment, [Start(SUM, 0)], max_turns=4, max_new_tokens=80)
    assert call_metrics(without.records) == {}, "no tools are announced"


def test_a_program_played_again_is_the_same():
    policy, task = chatting(), program("tool_loop")
    starts = [Start(SUM, seed, action_seed=seed) for seed in range(4)]
    one, two = (play(policy, task.environment, part, max_turns=3, max_new_tokens=9) for part in (starts, starts[2:]))
    assert one.rollout.response_ids[2:] == two.rollout.response_ids
    assert one.transcripts[2:] == two.transcripts


def test_programs_wait_at_the_same_time():
    task = program("together")
    episodes = play(chatting(), task.environment, [Start(SUM, i) for i in range(8)], max_turns=2, max_new_tokens=2)
    assert not episodes.failures


def test_programs_in_worker_processes():
    task = program("two_turns")
    stage, _ = open_stage(task, 1)
    try:
        episodes = play(chatting(), task.environment, [Start(SUM, 0)], max_turns=3, max_new_tokens=5, stage=stage)
    finally:
        stage.close()
    assert not episodes.failures
    assert episodes.ended == ("terminated",)


def test_without_a_template_the_contents_are_the_text():
    policy, task = chatting(None), program("two_turns")
    episodes = play(policy, task.environment, [Start(SUM, 0)], max_turns=4, max_new_tokens=6)
    assert episodes.rollout.prompt_ids[0] == tuple(policy.encode_prompt("Add.3+4="))


def test_demonstrations_are_an_experts():
    task = program("answer_once", expert=f"{PROGRAMS}:expert")
    environment = task.environment()
    assert isinstance(environment, Demonstrator)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "program:nowhere.py:run", "examples": "summands"}, "nowhere.py"),
        ({"name": f"program:{PROGRAMS}:answer_one", "examples": "summands"}, "answer_one"),
        ({"name": f"program:{PROGRAMS}:answer_once"}, "lacks its option 'examples'"),
        ({"name": f"program:{PROGRAMS}:answer_once", "examples": "guess"}, "which has an environment"),
        ({"name": "program:sh -c '", "examples": "summands"}, "is not a command line"),
        ({"name": f"program:{PROGRAMS}:answer_once", "examples": "sumands"}, "no task 'sumands'"),
    ],
)
def test_errors_in_words(spec, message):
    with pytest.raises(InputError, match=message):
        load_task(spec)


def test_a_command_that_is_not_there():
    task = load_task({"name": "program:no-such-program-here --fast", "examples": "summands"})
    with pytest.raises(InputError, match="'no-such-program-here' cannot be started"):
        task.environment().reset(SUM, 0)


def test_without_the_server(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[serve\]"):
        program("answer_once")


def words(result):
    return result.count("a") / max(1, len(result))


def test_a_program_is_trained(tmp_path):
    """GRPO on a program that knows nothing of it: the letter that pays is what its conversations come to be made of."""
    task = {
        "name": f"program:{PROGRAMS}:twice",
        "examples": "summands",
        "reward": f"{__file__}:words",
        "turns": 2,
        "tokens": 4,
        "characters": "abcdefgh0123456789+-=?",
    }
    config = parse_config(
        {
            "task": task,
            "model": {"name": "tiny", "tiny": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 32}},
            "batch": {"prompts": 2, "group_size": 8},
            "optim": {"lr": 3e-2},
            "steps": 12,
            "eval": {"every": 0, "final_prompts": 2},
        }
    )
    summary = train(config, folder=tmp_path / "run", console=Console(file=io.StringIO()))
    lines = [json.loads(line) for line in (summary.folder / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward_mean"] for line in lines if line["phase"] == "train"]
    assert rewards[0] < 0.25
    assert sum(rewards[-3:]) / 3 > 0.5


FORGETFUL = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' and not loop.last else m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize("history", ["split", "append"])
def test_a_template_that_rewrites_history_is_handled_as_set(history):
    """The same setting as for every environment: go on in a new row, or keep what was written all the same."""
    policy = chatting(FORGETFUL)
    prefix = ((*policy.encode("hm</think>8"), policy.eos_ids[0]),)
    start = Start(SUM, 0, prefix=prefix, train_prefix=True)
    episodes = play(policy, program("two_turns").environment, [start], max_turns=2, max_new_tokens=5, history=history)
    first = "<|system|>Add.<eos><|user|>3+4=<eos><|assistant|>"
    texts = ["".join(policy.tokenizer.convert_ids_to_tokens(ids)) for ids in episodes.rollout.prompt_ids]
    if history == "split":
        assert texts == [first, f"{first}8<eos><|user|>Sure?<eos><|assistant|>"]
    else:
        assert texts == [first]
    refused = play(policy, program("two_turns").environment, [start], max_turns=2, max_new_tokens=5)
    assert "rewrites history: what was 'hm</think>8" in refused.failures[0].what
    spoken = [Start(SUM, 0, prefix=((*policy.encode("8"), policy.eos_ids[0]),))]
    assert not play(policy, program("two_turns").environment, spoken, max_turns=2, max_new_tokens=5).failures


def by_agent(result, answer):
    return {"boss": float(result == answer), "clerk": 0.25, "correct": float(result == answer)}


def test_agents_are_told_apart_by_the_model_they_ask_for():
    environment, first = begun("boss_and_clerk", agents=["boss", "clerk", "idle"], reward=f"{__file__}:by_agent")
    assert (first.agent, first.text, first.fresh) == ("boss", "3+4=", False)
    told = environment.step("what is 3+4?").observation
    assert (told.agent, told.text, told.fresh) == ("clerk", "what is 3+4?", False)
    back = environment.step("7").observation
    assert (back.agent, back.text, back.fresh) == ("boss", "7", False)  # goes on where the boss was
    again = environment.step("are you sure?").observation
    assert (again.agent, again.text, again.fresh) == ("clerk", "are you sure?", True)  # knows nothing of the first call
    last = environment.step("7")
    assert last.terminated
    assert environment.scores() == {
        "boss": {"outcome": 1.0, "correct": 1.0},
        "clerk": {"outcome": 0.25, "correct": 1.0},
        "idle": {"outcome": 0.0, "correct": 1.0},
    }
    environment.close()


def test_a_reward_that_names_no_agent_is_everybodys():
    environment, _ = begun("answer_once", agents=["boss", "clerk"])
    environment.step("7")
    assert environment.scores() == {name: {"outcome": 1.0, "correct": 1.0} for name in ("boss", "clerk")}
    environment.close()


def test_the_rows_of_agents_carry_their_own_rewards():
    policy = chatting()
    task = program("boss_and_clerk", agents=["boss", "clerk"], reward=f"{__file__}:by_agent")
    prefix = tuple((*policy.encode(text), policy.eos_ids[0]) for text in ("ask", "5", "ask", "7"))
    start = Start(SUM, 0, prefix=prefix, train_prefix=True)
    found = play(policy, task.environment, [start], max_turns=8, max_new_tokens=5, agents=task.agents)
    assert not found.failures
    assert [row.agent for row in found.records] == ["boss", "clerk", "clerk"]
    assert [verdict["outcome"] for verdict in found.verdicts] == [1.0, 0.25, 0.25]


def test_whoever_is_not_there_cannot_ask():
    environment, _ = begun("boss_and_clerk", agents=["boss", "secretary"])
    with pytest.raises(
        RuntimeError, match="There is no model 'clerk'; this server has 'policy', or 'boss', or 'secretary'"
    ):
        environment.step("?")
    environment.close()


@pytest.mark.parametrize("agents", [["boss", "boss"], ["boss", ""], ["policy"], ["correct"]])
def test_names_of_agents(agents):
    with pytest.raises(InputError, match="Names must differ"):
        program("boss_and_clerk", agents=agents)


def test_a_column_may_bear_the_name_of_the_prompt():
    example = Example("sum", "3+4=", {"answer": "7", "prompt": "3+4=", "base_url": "nowhere"})
    environment = program("answer_once").environment()
    try:
        assert "3+4=" in environment.reset(example, 0).text
    finally:
        environment.close()
