"""MAH-DPO: the mean over objectives by hand, what each objective's rows reach, and runs with heads on one trunk."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import grouprl
from grouprl import Batch, InputError
from grouprl.algorithms.aggregate.papers.agent_mean import AgentMean
from grouprl.algorithms.part import RunFacts
from grouprl.config.run import parse_config
from grouprl.plan.plan import plan
from grouprl.policy import Tokens, load_policy
from grouprl.policy.teams import shared_trunk
from grouprl.policy.teams.shared_trunk import SharedTrunk
from grouprl.rollout.text_sampling import TextSampling
from grouprl.tasks import load_task
from grouprl.tasks.builtin.single_turn.preferences import own_letter
from grouprl.training.export import load_trained
from pretraining_runs import config, cut_at, records, run
from small import f64, near, small

METHOD = {"name": "mah_dpo"}
APART: dict[str, Any] = {
    "task": {"name": "preferences", "longest": 3, "annotators": 2, "apart": True},
    "warmup": {"steps": 20, "batch": 16, "lr": 1e-2},
    "batch": {"prompts": 6, "group_size": 2},
    "eval": {"every": 0, "final_prompts": 4, "samples": 1},
    "data": {"prompts": 24},
}


def with_heads(agents: str = "heads", **changes: Any) -> dict[str, Any]:
    return APART | {"model": config("mah_dpo")["model"] | {"agents": agents}} | changes


def logistic(z: float) -> float:
    return math.log1p(math.exp(-z))


def batch_of(gaps: list[float], agents: list[int]) -> tuple[Any, torch.Tensor]:
    """Pairs of one token each whose better row is `gap` likelier than under the reference."""
    logp_bt = f64([[x - 1.0] for gap in gaps for x in (gap, 0.0)])
    groups, agent_b = [i // 2 for i in range(2 * len(gaps))], torch.tensor([a for a in agents for _ in range(2)])
    batch = small([1.0, 0.0] * len(gaps), groups=groups, ref_bt=[[-1.0]] * 2 * len(gaps), agent_b=agent_b)
    return batch, logp_bt.requires_grad_()


def loss_and_gradient(name: str, gaps: list[float], agents: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    method, (batch, logp_bt) = grouprl.method(name), batch_of(gaps, agents)
    value = method.loss(logp_bt, method.prepare(batch)).value
    return value.detach(), torch.autograd.grad(value, logp_bt)[0]


def test_every_objective_with_pairs_weighs_the_same():
    """Three pairs of objective 0, one of objective 2; objective 1 has none and does not count."""
    value, grad_bt = loss_and_gradient("mah_dpo", [1.0, -2.0, 3.0, 4.0], [0, 0, 0, 2])
    near(value, ((logistic(0.1) + logistic(-0.2) + logistic(0.3)) / 3 + logistic(0.4)) / 2)
    slopes = [0.1 / (1 + math.exp(0.1 * gap)) for gap in (1.0, -2.0, 3.0, 4.0)]
    weights = [1 / 6, 1 / 6, 1 / 6, 1 / 2]
    near(grad_bt[::2, 0], f64([-w * s for w, s in zip(weights, slopes, strict=True)]))
    near(grad_bt[1::2], -grad_bt[::2])


def test_one_objective_is_dpo_and_equal_shares_are_dpo():
    gaps = [0.5, -3.0, 50.0, -500.0]
    for agents in ([0] * 4, [2] * 4, [0, 1, 1, 0]):
        for one, other in zip(
            loss_and_gradient("mah_dpo", gaps, agents), loss_and_gradient("dpo", gaps, [0] * 4), strict=True
        ):
            near(one, other)


def test_the_names_of_objectives_and_the_order_of_pairs_do_not_matter():
    value, _ = loss_and_gradient("mah_dpo", [1.0, -2.0, 3.0], [0, 0, 1])
    near(loss_and_gradient("mah_dpo", [3.0, -2.0, 1.0], [0, 5, 5])[0], value)


def test_rows_that_are_left_out_do_not_count():
    part = AgentMean()
    batch = small([1.0, 0.0, 1.0, 0.0], lengths=[2, 1, 1, 1], agent_b=torch.tensor([0, 0, 1, 1]))
    near(part(batch), f64([[1 / 8, 1 / 8], [1 / 4, 0], [1 / 4, 0], [1 / 4, 0]]))
    kept = batch.replace(loss_mask_bt=batch.mask_bt & (torch.arange(4) < 2)[:, None])
    near(part(kept), f64([[1 / 4, 1 / 4], [1 / 2, 0], [0, 0], [0, 0]]))
    assert not part(batch.replace(loss_mask_bt=torch.zeros_like(batch.mask_bt))).any()
    near(part(batch.replace(agent_b=None)), f64([[1 / 8, 1 / 8], [1 / 4, 0], [1 / 4, 0], [1 / 4, 0]]))
    assert part.idle(RunFacts(agents=1))
    assert not part.idle(RunFacts(agents=2))


def test_heads_learn_opposite_verdicts_on_the_same_pairs() -> None:
    """Two objectives order the same six pairs in opposite ways: each head comes to rank all of its own right."""
    team = shared_trunk.with_heads(
        load_policy("tiny", hidden=16, layers=1, heads=2, intermediate=32, seed=3), ["one", "other"]
    )
    drawn = torch.Generator().manual_seed(0)
    prompts, words = torch.randint(4, 60, (6, 3), generator=drawn), torch.randint(4, 60, (12, 4), generator=drawn)
    tokens = Tokens.of([prompt for prompt in prompts.tolist() for _ in range(2)], words.tolist())
    frozen = [team.members[name].copied(trainable=False).logp(tokens) for name in team.members]
    batch = Batch(
        mask_bt=torch.ones(24, 4, dtype=torch.bool),
        group_b=torch.arange(24) // 2,
        reward_b=torch.tensor([1.0, 0.0] * 6 + [0.0, 1.0] * 6),
        agent_b=torch.arange(24) // 12,
        ref_bt=torch.cat(frozen),
    )
    method = grouprl.method("mah_dpo")
    ready, optimizer = method.prepare(batch), torch.optim.Adam(team.parameters(), lr=1e-2)
    for _ in range(60):
        own = [team.members[name].evaluate(tokens, ["log_prob"], grad=True)["log_prob"] for name in team.members]
        optimizer.zero_grad()
        method.loss(torch.cat(own), ready).value.backward()
        optimizer.step()
    gain_b = (torch.cat(own).detach() - batch.ref_bt).sum(1)
    margin_n = gain_b[0::2] - gain_b[1::2]
    assert bool((margin_n[:6] > 0).all())
    assert bool((margin_n[6:] < 0).all())


def test_a_run_begins_at_log_2_and_resumes_to_the_bit(tmp_path):
    changes = with_heads()
    whole = run(tmp_path / "run", METHOD, **changes)
    steps = records(whole, "train")
    assert steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert all(step["grad_norm"] > 0 for step in steps)
    cut = cut_at(whole, tmp_path / "cut", "step-000001")
    assert records(run(cut, METHOD, resume=True, **changes), "train") == steps
    for name in ("annotator_0", "annotator_1"):
        one, other = (load_file(each / "model" / name / "model.safetensors") for each in (whole, cut))
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_each_objective_is_saved_whole_and_reads_back(tmp_path):
    folder = run(tmp_path / "run", METHOD, **with_heads(steps=2))
    assert sorted(each.name for each in (folder / "model").iterdir()) == ["annotator_0", "annotator_1"]
    trained = load_trained(folder, 2).model
    assert isinstance(trained, SharedTrunk)
    final = load_trained(folder).policy
    rows = load_task(APART["task"])
    prompts = [rows.example("train", n).prompt for n in range(4)]
    tokens = Tokens.of(trained.encode_prompts(prompts), trained.encode_all(["ab", "c", "ha", "gg"]))
    for agents in ([0] * 4, [1] * 4, [0, 1, 1, 0]):
        torch.testing.assert_close(trained.logp(tokens.of_agents(agents)), final.logp(tokens.of_agents(agents)))
    assert not torch.equal(trained.logp(tokens.of_agents([0] * 4)), trained.logp(tokens.of_agents([1] * 4)))


def test_an_evaluation_asks_the_head_of_the_prompts_objective(tmp_path, monkeypatch):
    """The number of the agent that each request names is that of the prompt's annotator."""
    wanted: list[int] = []
    asked: list[int] = []
    generate, sampled = TextSampling.generate, TextSampling._sampled

    def generating(self, rows, **options):
        wanted.extend(request.example.columns["annotator"] for request, _ in rows)
        return generate(self, rows, **options)

    def sampling(self, requests):
        asked.extend(request.agent for request in requests)
        return sampled(self, requests)

    monkeypatch.setattr(TextSampling, "generate", generating)
    monkeypatch.setattr(TextSampling, "_sampled", sampling)
    run(tmp_path / "run", METHOD, **with_heads(steps=1, eval={"every": 0, "final_prompts": 8, "samples": 1}))
    assert set(wanted) == {0, 1}
    assert asked == wanted


def test_the_truth_of_annotators_apart_is_that_of_their_own():
    task = load_task(APART["task"])
    for n in range(8):
        example = task.example("eval", n)
        own = example.columns["wanted"][example.columns["annotator"]]
        other = example.columns["wanted"][1 - example.columns["annotator"]]
        assert task.agent_of(example) == example.columns["annotator"]
        assert own_letter(own * 3 + other, wanted=example.columns["wanted"], annotator=task.agent_of(example)) == 0.75
        assert task.solution(example) == own
    assert task.reward is own_letter


def test_objectives_of_a_file_are_agents(tmp_path):
    rows = [
        {"prompt": "ab", "chosen": "a", "rejected": "b", "goal": "short"},
        {"prompt": "cd", "chosen": "d", "rejected": "c", "goal": "polite"},
        {"prompt": "ef", "chosen": "e", "rejected": "f", "goal": "short"},
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows * 4))
    task = load_task({"name": f"pairs:{path}", "objective": "goal"})
    assert task.agents == ("polite", "short")
    assert [task.agent_of(task.example("train", n)) for n in range(2)] == [
        task.agents.index(task.example("train", n).columns["goal"]) for n in range(2)
    ]
    plain = load_task(f"pairs:{path}")
    assert plain.agents == ("",)
    assert plain.agent_of(plain.example("train", 0)) == 0
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text(json.dumps({**rows[0], "prompt": "gh", "goal": "brief"}))
    other = load_task({"name": f"pairs:{path}", "objective": "goal", "eval": str(held_out)})
    with pytest.raises(InputError, match="'brief'"):
        other.agent_of(other.example("eval", 0))
    with pytest.raises(InputError, match=r"no objective in the column 'gaol'"):
        load_task({"name": f"pairs:{path}", "objective": "gaol"})
    changes = {"task": {"name": f"pairs:{path}", "objective": "goal"}, "data": {}, "warmup": {"steps": 0}}
    steps = records(run(tmp_path / "run", METHOD, **with_heads(**changes, steps=2)), "train")
    assert steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model": {"name": "tiny", "agents": "heads", "lora": {"r": 2}}}, r"model\.lora"),
        ({"task": {"name": "preferences", "apart": True}}, "annotators"),
        ({"task": {"name": "preferences", "judge": "cyclic", "annotators": 2}}, "cyclic"),
    ],
)
def test_what_cannot_have_heads_is_refused(changes, match):
    with pytest.raises(InputError, match=match):
        grouprl.train(config(METHOD, **with_heads(**changes)))


def test_one_objective_needs_no_heads():
    told = plan(parse_config(config(METHOD, **with_heads(task={"name": "preferences"}))))
    assert any("model.agents heads has no effect" in each.text for each in told.findings)
