"""Rewards that never return, or have the parameters of another library, are refused before they are called."""

from pathlib import Path

import pytest

from grouprl.core.errors import InputError
from grouprl.rewards import load_reward

HEADS = {
    "trl": ("def right(prompts, completions, answer, **kwargs):\n    return [1.0 for _ in completions]\n", "TRL"),
    "verl": ("def right(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n", "verl"),
}


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    return f"{path}:right"


@pytest.mark.parametrize("form", HEADS)
def test_the_parameters_of_another_library_are_refused_with_how_to_write_them(tmp_path, form):
    text, library = HEADS[form]
    with pytest.raises(InputError, match=f"in the form of {library}") as caught:
        load_reward(written(tmp_path, text))
    assert "Write it as: def right(completion" in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        "score = float(completion == answer)",
        "print(completion)\n    return",
        "def inner():\n        return 1.0\n    inner()",
        "if completion:\n        score = 1.0",
    ],
)
def test_a_reward_that_never_returns_is_refused(tmp_path, body):
    spec = written(tmp_path, f"def right(completion, answer):\n    {body}\n")
    with pytest.raises(InputError, match="'right' never returns a value"):
        load_reward(spec)


@pytest.mark.parametrize(
    "text",
    [
        "def right(completion, answer):\n    return float(completion == answer)\n",
        "def right(completions, prompts=(), **columns):\n    return [1.0] * len(completions)\n",
        "async def right(completion):\n    return 1.0\n",
        "right = lambda completion: 1.0\n",
        "def right(completion):\n    if completion:\n        return 1.0\n",
        "def right(completion):\n    raise NotImplementedError\n",
        "class R:\n    def __call__(self, completion):\n        return 1.0\nright = R()\n",
    ],
)
def test_other_rewards_are_loaded(tmp_path, text):
    assert callable(load_reward(written(tmp_path, text)))
