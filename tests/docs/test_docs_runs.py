"""The configurations that README and docs show can be run: each is planned as it stands, models by name made tiny."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from grouprl.config.run import parse_config
from grouprl.core.errors import MissingExtra
from grouprl.plan.plan import plan

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("environments", "from_trl", "from_verl", "preferences", "recipes", "reviews")),
    *(f"docs/{name}.md" for name in ("sandbox", "teams", "tools")),
)
FRAGMENTS = ("model: {agents: shared}", "method: {base: m_grpo, augment: []")
"""How blocks begin that are not whole: choices of one key, and what another configuration is changed by."""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def shown() -> list[tuple[str, str]]:
    return [(page, block) for page in PAGES for block in blocks(page, "yaml") if not block.startswith(FRAGMENTS)]


@pytest.mark.parametrize(("page", "block"), shown())
def test_a_configuration_of_a_page_can_be_run(
    page: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"pear {n}", "question": f"pear {n}", "answer": str(4 * n)} for n in range(8)]
    Path("questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pairs = [{"prompt": f"pear {n}", "chosen": "yes", "rejected": "no"} for n in range(40)]
    Path("preferences.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    own = [code for code in blocks(page, "python") if code.startswith("# my_rewards.py")]
    polite = "def polite(completion):\n    return 1.0\n"
    Path("my_rewards.py").write_text("\n\n".join([blocks("README.md", "python")[0], polite, *own]))
    Path("my_tools.py").write_text("\n\n".join(code for code in blocks("docs/tools.md", "python") if "def " in code))
    Path("nim.py").write_text(blocks("docs/environments.md", "python")[0])
    config: dict[str, Any] = {"task": "addition", **yaml.safe_load(block)}
    if isinstance(config.get("model"), str) and "/" in config["model"]:
        config["model"] = {"name": "tiny", "tiny": {"max_positions": 8192}}
    try:
        found = plan(parse_config(config))
    except MissingExtra as error:
        pytest.skip(str(error))
    assert found.refusals == ()
