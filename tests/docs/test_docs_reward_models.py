"""What docs/reward_models.md shows works: the run, the runs that are paid by it, and the lines of Python."""

import json
import re
from pathlib import Path

import yaml

from grouprl.config.run import parse_config
from grouprl.plan.plan import plan
from grouprl.training.loop import train

PAGE = (Path(__file__).parents[2] / "docs" / "reward_models.md").read_text(encoding="utf-8")
TINY = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}}


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_page_works_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sums = [(a, b) for a in range(100) for b in range(0, 100, 25)]
    pairs = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a + b + 1)} for a, b in sums]
    Path("pairs.jsonl").write_text("".join(json.dumps(pair | {"margin": 1.5}) + "\n" for pair in pairs))
    ratings = [{"prompt": f"{a}+{b}=", "response": str(a + b), "helpfulness": a, "verbosity": b} for a, b in sums]
    Path("ratings.jsonl").write_text("".join(json.dumps(rating) + "\n" for rating in ratings))
    Path("prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": pair["prompt"], "answer": ""}) + "\n" for pair in pairs)
    )
    first, rated, compared, users, paid, ensemble, measured, blended, judge, judged = map(
        yaml.safe_load, blocks("yaml")
    )
    small = {"model": TINY, "steps": 1, "eval": {"prompts": 2, "final_prompts": 2}}
    train(parse_config(first | small | {"method": {"name": "bradley_terry", "margin": True, "center": 0.01}}))
    train(parse_config(rated | small))
    train(parse_config(compared | small))
    for seed in range(3):
        Path(f"runs/rm{seed}").symlink_to(Path("runs/rm").resolve())
    judge["model"] = TINY | {"tiny": TINY["tiny"] | {"max_positions": 2048}}
    for config in (users, paid, ensemble, measured, blended, judge, judged):
        assert plan(parse_config(config)).refusals == ()
    names = {}
    for code in blocks("python"):
        exec(code, names)
    assert names["reward"].models[0].trainable_state().keys() == names["model"].trainable_state().keys()
    record = [json.loads(line) for line in Path("runs/rm/metrics.jsonl").read_text().splitlines()]
    assert any("center_scores_loss" in each for each in record)
