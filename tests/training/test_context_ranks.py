"""Ranks that share rows give what one process gives, and models whose rows cannot be shared are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rank_runs
from ranks import run_on_ranks

SCRIPTS = Path(__file__).parents[1] / "support"
CARRIED = ("starcoder2", "gpt2+padded", "mistral", "mistral+padded", "qwen2+small")
"""Grouped heads, learned positions, windows in all layers or in some; packed, padded, and with masks in parts."""
REFUSED = {
    "gemma2": "its attention has softcap",
    "qwen3_next+padded": "layers of linear_attention",
    "bloom+padded": "no positions of its tokens",
    "gpt_neo": "gives other numbers on slices of rows",
    "llama": "embeddings of kind dynamic",
}


@pytest.mark.parametrize("ranks", [2, 3])
def test_models_give_the_numbers_of_whole_rows_or_are_refused(ranks: int, tmp_path: Path) -> None:
    said = run_on_ranks(SCRIPTS / "rank_context.py", ranks, str(tmp_path), *CARRIED, *(REFUSED if ranks == 2 else ()))
    found = json.loads(said.splitlines()[-1])
    for kind in CARRIED:
        assert found[kind]["outputs"] < 1e-12, kind
        assert found[kind]["gradients"] < 1e-12 * found[kind]["largest"], kind
    for kind in REFUSED if ranks == 2 else ():
        assert REFUSED[kind] in found[kind]
        assert found[kind].startswith("model.context_parallel = 2: ")
        assert "Set it to 1" in found[kind]


@pytest.mark.parametrize(
    ("ranks", "ways"),
    [
        (2, ("clip_cov+context", "ppo+lora+context+offload", "follow+context")),
        (4, ("dapo+context+anew", "intellect2+context+all", "follow+lora+context")),
    ],
)
def test_steps_are_those_of_one_process(ranks: int, ways: tuple[str, ...]) -> None:
    """On four ranks: two pairs with rows of their own, or all with a slice of each row."""
    found = json.loads(run_on_ranks(SCRIPTS / "rank_steps.py", ranks, *ways).splitlines()[-1])["found"]
    assert set(found) == set(ways)
    for way, apart in found.items():
        assert apart["moved"] > 1e-3, way
        for what in {"weights", "metrics", "logp", "state", "restored"} & apart.keys():
            assert apart[what] < 1e-12, (way, what, apart)


def test_a_run_is_that_of_one_process_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    config, shared = rank_runs.write_config(tmp_path), ["--set", "model.context_parallel=2"]
    rank_runs.train_on(1, config, tmp_path / "one", "-q")
    rank_runs.train_on(2, config, tmp_path / "two", "-q", *shared)
    for what, apart in rank_runs.apart(tmp_path / "one", tmp_path / "two").items():
        assert apart < 1e-12, what
    codes, said = rank_runs.on_ranks(2, config, tmp_path / "killed", "-q", *shared, fault="1 backward 9 kill")
    assert codes[0] == 3, said
    codes, said = rank_runs.on_ranks(2, config, tmp_path / "killed", "-q", "--resume")
    assert codes == [0, 0], said
    assert rank_runs.evidence(tmp_path / "killed") == rank_runs.evidence(tmp_path / "two"), "byte for byte"
    codes, said = rank_runs.on_ranks(2, config, tmp_path / "moved", "-q", *shared, fault="0 metrics 7 int")
    assert codes[0] == 130, said
    rank_runs.train_on(1, config, tmp_path / "moved", "--resume", "-q", "--set", "model.context_parallel=1")
    for what, apart in rank_runs.apart(tmp_path / "one", tmp_path / "moved").items():
        assert apart < 1e-12, what
