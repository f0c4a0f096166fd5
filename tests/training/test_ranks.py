"""Several ranks take the optimiser step of one process: guarantee 1 of split-invariance, on ranks."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import rank_memory
import rank_runs
from grouprl.policy.sharded.sharded_model import PIECE
from grouprl.storage.model_files import StoredTensors
from grouprl.storage.shards import WEIGHTS, read_whole
from grouprl.training.export import export
from ranks import run_on_ranks

SCRIPTS = Path(__file__).parents[1] / "support"
METHODS = ("grpo", "dapo", "dr_grpo", "grpo@nemo_rl", "intellect2", "ppo", "clip_cov", "nca_rewards", "infonca")
"""Sequence mean, token mean, constant, KL, entropy bonus, value head, an objective that sees all rows at once; and
losses of lists."""
WAYS = ("dapo+tensor", "clip_cov+tensor+anew", "ppo+lora+offload", "grpo+compiled+anew")
"""Matrices cut by both ranks; layers computed anew; adapters, a value head, parts in main memory; compiled."""
MIXED = ("grpo+mixed+small", "grpo+mixed+small+tensor")
"""Products in bfloat16 of float32 weights, at a learning rate whose updates bfloat16 weights would lose."""


def test_a_step_is_the_same_on_two_ranks_as_on_one() -> None:
    found = json.loads(run_on_ranks(SCRIPTS / "rank_steps.py", 2, *METHODS, *WAYS, *MIXED, "resume").splitlines()[-1])
    assert found["ranks"] == 2
    resumed = found["found"].pop("resume")
    assert resumed["whole"] < 1e-12
    assert resumed["parts"] < 1e-12
    for name in MIXED:
        mixed = found["found"].pop(name)
        assert 1e-6 < mixed["moved"] < 1e-5, "bfloat16 weights would not have moved"
        assert mixed["of the way"] < 0.3, "one process and two round products of bfloat16 differently"
        assert mixed["metrics"] < 0.1
    assert set(found["found"]) == {*METHODS, *WAYS}
    for name, apart in found["found"].items():
        assert apart["moved"] > 1e-3, name
        for what in ("weights", "metrics", "logp"):
            assert apart[what] < 1e-12, (name, what, apart)
        assert apart["whole"] < 1e-6, "the copies that are sampled from, through the lean engine"
        assert apart["update_ratio"] < 1e-8


A_PASS = 50 * 2**20
"""Activations of 64 tokens and their logits, two layers (14 MiB) once more as they arrive, and what the allocator keeps
of blocks below a MiB."""


def test_no_rank_holds_a_whole_model(tmp_path: Path) -> None:
    model = rank_memory.write_model(tmp_path, "20M", torch.bfloat16)
    said = run_on_ranks(SCRIPTS / "rank_memory.py", 2, str(model), "save")
    (found,) = json.loads(said.splitlines()[-1]).values()
    assert found["weights"] > 70 * 2**20
    for what, most in rank_memory.bounds(found, 2, A_PASS).items():
        assert max(found[what]) < most, (what, most, found)
    kept = rank_memory.bounds(found, 2, A_PASS)["step"]
    assert found["save"][0] < kept + 2 * PIECE, "rank 0 gathers a few tensors at a time"
    assert found["save"][1] < kept
    assert max(found["load"]) < kept
    assert found["alike"], "transformers reads from the folder what the ranks hold"


def test_servers_get_the_weights_of_all_ranks_and_no_rank_has_a_copy() -> None:
    found = json.loads(run_on_ranks(SCRIPTS / "rank_servers.py", 2).splitlines()[-1])
    assert set(found) == {"plain", "adapters"}
    for apart in found.values():
        assert apart["wholes"] == 0
        assert apart["logp"] < 1e-5
        assert apart["canary"] < 1e-5


def test_references_follow_a_policy_on_two_ranks_as_on_one() -> None:
    ways = ("follow", "follow+tensor", "follow+lora")
    found = json.loads(run_on_ranks(SCRIPTS / "rank_steps.py", 2, *ways).splitlines()[-1])["found"]
    assert set(found) == set(ways)
    for way, apart in found.items():
        assert apart["moved"] > 1e-3, way
        for what in ("logp", "state", "restored"):
            assert apart[what] < 1e-12, (way, what, apart)


def test_a_rank_that_dies_is_told_and_one_process_goes_on(tmp_path: Path) -> None:
    config, run = rank_runs.write_config(tmp_path), tmp_path / "run"
    code, said = rank_runs.launch(2, config, run, "-q", fault="1 passes 8 kill")
    assert code == 3, said
    assert "rank 1 of 2 is gone" in said
    assert "rank 1 was ended by SIGKILL" in said
    assert "Traceback" not in said
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-000000", "step-000002"]
    shards = run / "checkpoints" / "step-000002" / "shards"
    assert shards.is_dir()
    assert export(run, tmp_path / "out", 2) == "checkpoint 2"
    written = dict(StoredTensors(tmp_path / "out")())
    for name, weight in read_whole(shards, WEIGHTS).items():
        assert torch.equal(written.pop(name), weight), name
    assert written == {}
    rank_runs.train_on(1, config, run, "--resume", "-q")
    found = [record["step"] for record in rank_runs.metrics(run) if record["phase"] == "train"]
    assert found == [1, 2, 3, 4]
    assert not (run / "checkpoints" / "step-000004" / "shards").exists()


ENGINE = """from grouprl.rollout.local.sampler import LocalSampler


class Elsewhere(LocalSampler):
    closed = 0

    def publish(self, version, policy):
        self.scale = float(next(policy.model.parameters()).detach().abs().sum())
        super().publish(version, policy)

    def metrics(self):
        return {"canary_gap": self.scale}

    def close(self):
        print("the engine was closed")
"""


def test_an_engine_of_its_own_gets_whole_weights_on_the_leading_rank(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(ENGINE)
    sampling = {"engine": str(tmp_path / "elsewhere.py:Elsewhere")}
    config = rank_runs.write_config(tmp_path, sampling=sampling, steps=2)
    rank_runs.train_on(1, config, tmp_path / "one", "-q")
    codes, said = rank_runs.on_ranks(2, config, tmp_path / "two", "-q")
    assert codes == [0, 0], said
    assert "the engine was closed" in said
    apart = rank_runs.apart(tmp_path / "one", tmp_path / "two")
    assert apart["samples"] == 0.0
    assert apart["metrics"] < 1e-12, "what the engine saw of the weights is among them"
    assert apart["weights"] < 1e-12
    seen = [line["canary_gap"] for line in rank_runs.metrics(tmp_path / "two") if line["phase"] == "train"]
    assert len(set(seen)) == 2, "each version arrived"


def test_ranks_train_on_what_is_sampled_ahead(tmp_path: Path) -> None:
    run = {"checkpoint_every": 2, "rank_timeout": 60, "async_steps": 1}
    model = {"name": str(rank_runs.save_cut_model(tmp_path)), "dtype": "float64", "tensor_parallel": 2}
    config, folder = rank_runs.write_config(tmp_path, run=run, model=model), tmp_path / "run"
    codes, said = rank_runs.on_ranks(2, config, folder, "-q", fault="1 passes 8 kill")
    assert codes[0] == 3, said
    assert "rank 1 of 2 is gone" in said
    assert "newest checkpoint" in export(folder, tmp_path / "out"), "of halves of matrices, by one process"
    rank_runs.train_on(2, config, folder, "--resume", "-q")
    steps = [line for line in rank_runs.metrics(folder) if line["phase"] == "train"]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert max(line["staleness_max"] for line in steps) == 1
    assert max(line["canary_gap"] for line in steps) < 1e-6, "the sampling process has the weights of all ranks"
    assert sum(line["rows_trained"] for line in steps) > 0


def test_ranks_continue_what_they_left_unfinished_also_after_a_kill(tmp_path: Path) -> None:
    """The checkpoint holds completions of the steps to come, sampled by the weights of earlier ones."""
    changes = {
        "run": {"checkpoint_every": 2, "rank_timeout": 60, "async_steps": 2, "samplers": 0},
        "batch": {"prompts": 1, "group_size": 2},
        "sampling": {"max_new_tokens": 48},
        "warmup": {"steps": 0},
        "steps": 6,
    }
    config = rank_runs.write_config(tmp_path, **changes)
    codes, said = rank_runs.on_ranks(2, config, tmp_path / "whole", "-q")
    assert codes == [0, 0], said
    codes, said = rank_runs.on_ranks(2, config, tmp_path / "cut", "-q", fault="1 passes 4 kill")
    assert codes[0] == 3, said
    rank_runs.train_on(2, config, tmp_path / "cut", "--resume", "-q")
    assert rank_runs.apart(tmp_path / "whole", tmp_path / "cut") == {"samples": 0.0, "metrics": 0.0, "weights": 0.0}
    steps = [line for line in rank_runs.metrics(tmp_path / "cut") if line["phase"] == "train"]
    assert [line["staleness_max"] for line in steps] == [0, 1, 2, 0, 1, 2]


def test_a_run_that_torchrun_starts_again_continues(tmp_path: Path) -> None:
    config = rank_runs.write_config(tmp_path)
    rank_runs.train_on(2, config, tmp_path / "whole", "-q")
    code, said = rank_runs.torchrun(2, config, tmp_path / "run", "-q", fault="1 step begins 6 kill", restarts=1)
    assert code == 0, said
    assert rank_runs.evidence(tmp_path / "run") == rank_runs.evidence(tmp_path / "whole"), "byte for byte"


def test_torchrun_continues_the_run_that_it_has_begun_itself_and_no_other(tmp_path: Path) -> None:
    """In a folder that nobody names the second start finds the first one's run; a folder that was there is refused."""
    config = rank_runs.write_config(tmp_path)
    rank_runs.train_on(2, config, tmp_path / "whole", "-q")
    fault = "1 step begins 6 kill"
    code, said = rank_runs.torchrun(2, config, None, "-q", fault=fault, restarts=1, place=tmp_path)
    assert code == 0, said
    (run,) = (tmp_path / "runs").iterdir()
    assert rank_runs.evidence(run) == rank_runs.evidence(tmp_path / "whole"), "byte for byte"
    interrupted = tmp_path / "earlier"
    codes, said = rank_runs.on_ranks(2, config, interrupted, "-q", fault="0 metrics 3 int")
    assert codes[0] == 130, said
    code, said = rank_runs.torchrun(2, config, interrupted, "-q", restarts=1)
    assert code == 1, said
    assert len(rank_runs.metrics(interrupted)) < len(rank_runs.metrics(run)), "a stranger's run is left as it is"
