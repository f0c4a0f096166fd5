"""Adapters that servers of vLLM load by themselves, a name for each version, against a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grouprl.config.sections import Vllm
from grouprl.core.errors import InputError, RunError
from grouprl.protocols import Request
from grouprl.records.tokens import Tokens
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.rollout.vllm.engine import VllmEngine
from served_policies import REQUESTS, moved, small_policy
from vllm_stand_in import MadeUp, StandIn, standing_in

Tiny = Any


@pytest.fixture
def policy() -> Tiny:
    return small_policy()


LORA = {"r": 2, "alpha": 4, "target_modules": "all-linear"}


class Adapted(MadeUp):
    """Completions as a policy makes them whose adapters are those of the folder that a request names."""

    def __init__(self, policy: Tiny) -> None:
        self.policy = policy.copied(trainable=False)
        self.sampler, self.stuck = LocalSampler(self.policy), False

    def adapt(self, folder: str) -> None:
        from peft.utils import load_peft_weights, set_peft_model_state_dict

        if not self.stuck:
            set_peft_model_state_dict(self.policy.model, load_peft_weights(folder))

    def complete(self, ids: list[int], settings: dict[str, Any]) -> tuple[list[int], list[float], str]:
        samples = self.sampler.sample([Request(tuple(ids), settings["max_tokens"], settings["seed"])])
        why = "length" if samples.truncated_b[0] else "stop"
        return list(samples.actions[0]), samples.logp_bt[0].tolist(), why

    def score(self, ids: list[int]) -> list[float]:
        return self.policy.logp(Tokens.of([ids[:1]], [ids[1:]]))[0].tolist()


@pytest.fixture
def adapted() -> Tiny:
    pytest.importorskip("peft")
    return small_policy(lora=LORA)


def test_adapters_are_loaded_under_a_name_for_each_version(adapted: Tiny, tmp_path: Path) -> None:
    server = StandIn(Adapted(adapted))
    with standing_in(server) as address:
        engine = VllmEngine(adapted, Vllm(addresses=(address,), adapters="loaded", folder=str(tmp_path)))
        seen = []
        for version in range(7):
            moved(adapted, version, 0.5)
            engine.publish(version, adapted)
            assert engine.gap < 1e-4
            found = engine.sample(REQUESTS)
            assert set(found.version_bt[:, 0].tolist()) == {version}
            seen.append(found.actions)
        assert len(set(seen)) == 7, "other weights, other completions"
        names = [f"{engine.run}.{version}" for version in range(3, 7)]
        assert sorted(server.adapters) == names, "four versions have a name"
        assert sorted(path.name for path in tmp_path.iterdir()) == names
        assert not any(path in ("/update_weights", "/pause?mode=keep") for path, _ in server.got)
        engine.close()
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_adapters_that_do_not_arrive_are_noticed(adapted: Tiny) -> None:
    server = StandIn(Adapted(adapted))
    with standing_in(server) as address:
        engine = VllmEngine(adapted, Vllm(addresses=(address,), adapters="loaded"))
        engine.publish(0, adapted)
        server.brain.stuck = True
        moved(adapted, 1, 0.5)
        with pytest.raises(RunError, match="did not take version 1 of the weights, twice"):
            engine.publish(1, adapted)
        assert server.label == f"{engine.run}.0", "the new version is told to nobody"
        engine.close()


def test_a_server_that_lost_its_adapters_gets_them_anew(adapted: Tiny) -> None:
    server = StandIn(Adapted(adapted))
    with standing_in(server) as address:
        engine = VllmEngine(adapted, Vllm(addresses=(address,), adapters="loaded"))
        said: list[str] = []
        engine.say = said.append
        engine.publish(3, adapted)
        whole = engine.sample(REQUESTS)
        server.adapters.clear()
        assert engine.sample(REQUESTS).actions == whole.actions
        assert "it gets them anew" in said[0]
        worker = VllmEngine.attach(adapted, engine.attachment, engine.settings)
        assert worker.sample(REQUESTS).actions == whole.actions
        moved(adapted, 1, 0.5)
        engine.publish(4, adapted)
        assert set(worker.sample(REQUESTS).version_bt[:, 0].tolist()) == {4}, "whoever is attached asks which is newest"
        worker.close()
        engine.close()


def test_adapters_that_cannot_be_loaded_are_refused(policy: Tiny, adapted: Tiny) -> None:
    with pytest.raises(InputError, match="The model has no adapters"):
        VllmEngine(policy, Vllm(addresses=("http://127.0.0.1:9",), adapters="loaded"))
    next(p for n, p in adapted.model.named_parameters() if "lora_" not in n).requires_grad_(True)
    with pytest.raises(InputError, match="is trained"):
        VllmEngine(adapted, Vllm(addresses=("http://127.0.0.1:9",), adapters="loaded"))
