"""Variables of a chat template that conversations set differently: shares, findings, and runs that have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import grouprl
from chat_policies import chatting
from grouprl.core.finding import RunFinding
from grouprl.monitor.health import examine
from grouprl.monitor.history import HealthFacts
from grouprl.records.examples import Chat
from grouprl.records.template_shares import LONGEST, MOST, template_shares

ASKED = [{"role": "user", "content": "1+1"}]
THINKS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"
)
CODE = '''
from grouprl.records.examples import Chat, Example
from grouprl.tasks.task import Task

class Asks(Task):
    """Sums whose conversations set enable_thinking as `train` and `held_out` say, row by row."""

    name, max_new_tokens = "asks", 2
    train, held_out = (False,), (False,)
    reward = staticmethod(lambda completion: float(len(completion) % 2))

    def size(self, split):
        return 64

    def example(self, split, index):
        own = self.train if split == "train" else self.held_out
        wanted = own[index % len(own)]
        variables = {} if wanted is None else {"enable_thinking": wanted}
        return Example(f"{split}/{index}", Chat([{"role": "user", "content": f"{index}+1"}], (), variables), {})

class Apart(Asks):
    held_out = (None,)

class Mixed(Asks):
    train = held_out = (False, None)

class Plain(Asks):
    train = held_out = (None,)
'''


def test_shares_are_those_of_the_prompts_that_set_a_value() -> None:
    prompts = ["plain", Chat(ASKED), Chat(ASKED, (), {"enable_thinking": False}), Chat(ASKED, (), {"date": "3 May"})]
    assert template_shares(prompts) == {"template/enable_thinking/false": 0.25, "template/date/3_May": 0.25}
    assert template_shares(prompts[:2]) == {}
    (long,) = template_shares([Chat(ASKED, (), {"documents": [{"text": "<b>" * 99}]})])
    assert len(long) == len("template/documents/") + LONGEST
    assert len(template_shares([Chat(ASKED, (), {f"v{n}": n for n in range(40)})])) == MOST


def found(train: dict[str, float], held_out: dict[str, float] | None, prompts: int = 32) -> RunFinding | None:
    steps = [{"phase": "train", "step": n, "reward_mean": 0.5, **train} for n in range(1, 9)]
    tests = [] if held_out is None else [{"phase": "eval", "step": 8, "eval/prompts": prompts, **held_out}]
    codes = {each.code: each for each in examine([*steps, *tests], HealthFacts())}
    return codes.get("template_variables")


OFF = "template/enable_thinking/false"


def test_a_difference_between_training_and_evaluation_is_a_warning() -> None:
    apart = found({OFF: 1.0}, {})
    assert apart is not None
    assert (apart.severity, apart.key) == ("warning", OFF)
    assert "in 100 % of the conversations in training and in 0 % of the held-out ones" in apart.text
    other = found({}, {f"eval/{OFF}": 1.0})
    assert other is not None
    assert "in 0 % of the conversations in training" in other.text
    assert found({OFF: 1.0}, {f"eval/{OFF}": 1.0}) is None
    assert found({OFF: 1.0}, {}, prompts=15) is None, "too few to say"
    assert found({OFF: 1.0}, None) is None


def test_a_difference_between_rows_is_a_note() -> None:
    mixed = found({OFF: 0.4}, {f"eval/{OFF}": 0.5})
    assert mixed is not None
    assert mixed.severity == "note"
    assert "40 %" in mixed.text
    assert found({OFF: 0.02}, None) is None


@pytest.mark.parametrize(
    ("name", "severity"), [("Asks", None), ("Plain", None), ("Apart", "warning"), ("Mixed", "note")]
)
def test_runs_whose_conversations_differ_are_told(name: str, severity: str | None, tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(CODE)
    chatting(THINKS, max_positions=128).save(tmp_path / "base")
    settings: dict[str, Any] = {
        "task": f"{tmp_path / 'asks.py'}:{name}",
        "model": {"name": str(tmp_path / "base")},
        "batch": {"prompts": 4, "group_size": 2},
        "steps": 6,
        "warmup": {"steps": 0},
        "eval": {"every": 0, "final_prompts": 16},
        "run": {"threads": 1, "check_model": False},
    }
    run = grouprl.train(settings, folder=tmp_path / "run")
    assert run is not None
    health = {each["code"]: each for each in json.loads((run.folder / "health.json").read_text())}
    assert health.get("template_variables", {}).get("severity") == severity
