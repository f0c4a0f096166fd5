"""References by name: those that follow the policy, mixtures, log-probs kept by row, checkpoints, the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grouprl import Batch, method
from grouprl.algorithms.references import FROZEN, Iterates, Mixture, references_of
from grouprl.algorithms.regularize.iterates import KLIterates
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.plan.plan import plan
from grouprl.policy import Tokens
from grouprl.policy.language.reference import FrozenPolicy
from grouprl.training.references import KnownRows, References
from killed_runs import evidence
from policies import make_policy, make_tokens
from pretraining_runs import config, cut_at, records, run

TOKENS = make_tokens([3, 6], 3, 5)
TERM = {"part": "kl_iterates", "coef": 0.05, "every": 2, "share": 0.5, "initial": 0.25}
FOLLOWED = {"base": "grpo", "regularize": [TERM]}


class Counting:
    """A scorer that remembers how many rows it scored."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.rows = policy, 0

    def logp(self, inputs: Tokens, /) -> torch.Tensor:
        self.rows += len(inputs)
        return self.policy.logp(inputs)


def disturbed(policy: Any, by: float) -> None:
    with torch.no_grad():
        for number, parameter in enumerate(policy.parameters()):
            parameter.add_(by * torch.sin(torch.arange(parameter.numel()) + number).view_as(parameter))


# ---- rows that come again --------------------------------------------------------------------------------------------


def test_a_known_row_has_the_same_bits_and_is_not_scored_again() -> None:
    scorer, known = Counting(make_policy()), KnownRows()
    first = known.logp(scorer, TOKENS)
    assert torch.equal(first, scorer.policy.logp(TOKENS))
    assert scorer.rows == len(TOKENS)
    mixed = Tokens.of([*TOKENS.prompt_ids[2:4], [1, 5]], [*TOKENS.response_ids[2:4], [4, 4]])
    again = known.logp(scorer, mixed)
    assert scorer.rows == len(TOKENS) + 1
    for row, ids in enumerate(mixed.response_ids[:2]):
        assert torch.equal(again[row, : len(ids)], first[2 + row, : len(ids)])
        assert not again[row, len(ids) :].any()
    torch.testing.assert_close(again[2], scorer.policy.logp(mixed)[2], rtol=0, atol=1e-5)


def test_restored_rows_are_compared_with_the_reference_once() -> None:
    known, scorer = KnownRows(), Counting(make_policy())
    first = known.logp(scorer, TOKENS)
    again = KnownRows()
    again.restore(known.state(), 1e-3)
    assert torch.equal(again.logp(scorer, TOKENS), first)
    assert scorer.rows == len(TOKENS) + 1, "one row was scored once more"
    assert torch.equal(again.logp(scorer, TOKENS), first)
    assert scorer.rows == len(TOKENS) + 1


def test_a_reference_that_changed_since_the_checkpoint_ends_the_run_in_words() -> None:
    known, policy = KnownRows(), make_policy()
    known.logp(policy, TOKENS)
    again = KnownRows()
    again.restore(known.state(), 1e-3)
    disturbed(policy, 0.1)
    with pytest.raises(RunError, match=r"reference is not the one of the checkpoint.*differs by .* nats"):
        again.logp(policy, TOKENS)


def test_rows_that_were_read_longest_ago_go_first() -> None:
    scorer, known = Counting(make_policy()), KnownRows(positions=8)
    three = Tokens.of([[1, 4]] * 3, [[4, 5, 6], [5, 5, 5, 5], [6]])
    known.logp(scorer, three)
    known.logp(scorer, three.rows([0]))
    known.logp(scorer, Tokens.of([[1, 4]], [[7, 7]]))  # ten positions: the row of four goes
    scorer.rows = 0
    known.logp(scorer, three.rows([0, 2]))
    assert scorer.rows == 0
    known.logp(scorer, three.rows([1]))
    assert scorer.rows == 1


def test_fingerprints_tell_rows_apart() -> None:
    rows = Tokens.of([[1, 2], [1], [1, 2], [1, 2]], [[3], [2, 3], [3], [3, 0]])
    prints = rows.fingerprints()
    assert prints[0] == prints[2]
    assert len(set(prints)) == 3  # where the prompt ends matters, and so does a zero at the end
    assert len(set(rows.of_agents([0, 0, 1, 0]).fingerprints())) == 4


def test_another_policy_has_other_numbers_at_once() -> None:
    """A frozen reference that is renewed, and one that follows the policy, forget what was known."""
    policy = make_policy()
    references = References({"iterates": Iterates()}, rows_return=True)
    references.freeze(policy.reference())
    references.begin(policy)
    before = policy.logp(TOKENS)
    for name in (FROZEN, "iterates"):
        assert torch.equal(references.logp(name, TOKENS), before)
    disturbed(policy, 0.05)
    for name in (FROZEN, "iterates"):
        assert torch.equal(references.logp(name, TOKENS), before)
    references.follow(0)
    references.freeze(FrozenPolicy(policy))
    for name in (FROZEN, "iterates"):
        assert torch.equal(references.logp(name, TOKENS), policy.logp(TOKENS))
        assert not torch.equal(references.logp(name, TOKENS), before)


# ---- rules -----------------------------------------------------------------------------------------------------------


def test_an_average_of_iterates_moves_by_its_share_when_it_is_due() -> None:
    policy = make_policy(dtype=torch.float64)
    references = References({"iterates": Iterates(every=2, share=0.25)})
    references.begin(policy)
    weights = [policy.trainable_state()]
    for step in range(4):
        disturbed(policy, 0.05)
        weights.append(policy.trainable_state())
        references.follow(step)
    for name, found in references.followers["iterates"].trainable_state().items():
        first = 0.75 * weights[0][name] + 0.25 * weights[1][name]  # after step 0, then after step 2
        torch.testing.assert_close(found, 0.75 * first + 0.25 * weights[3][name], rtol=1e-12, atol=1e-14)


def test_a_mixture_has_the_mean_of_the_probabilities() -> None:
    policy = make_policy(dtype=torch.float64)
    references = References({"iterates": Iterates(), "mixed": Mixture({"iterates": 0.75, FROZEN: 0.25})})
    references.freeze(policy.reference())
    disturbed(policy, 0.1)
    references.begin(policy)
    wanted = 0.75 * policy.logp(TOKENS).exp() + 0.25 * references.logp(FROZEN, TOKENS).exp()
    present_bt, found = TOKENS.present_bt(), references.logp("mixed", TOKENS)
    torch.testing.assert_close(found[present_bt].exp(), wanted[present_bt], rtol=1e-10, atol=1e-12)
    assert not found[~present_bt].any()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Iterates(every=0), "move every 1 or more steps"),
        (lambda: Iterates(share=0.0), "0 < share <= 1"),
        (lambda: Mixture({"a": 0.5}), "sum to 1"),
        (lambda: references_of([KLIterates(), KLIterates(every=3)]), "Another part defines it"),
    ],
)
def test_rules_that_cannot_be_are_refused(make: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


def test_a_mixture_of_what_nobody_names_is_refused() -> None:
    class Odd(KLIterates):
        def references(self) -> Any:
            return {"mixed": Mixture({"elsewhere": 1.0})}

    with pytest.raises(InputError, match="a mixture with 'elsewhere'"):
        references_of([Odd()])


# ---- the term --------------------------------------------------------------------------------------------------------


def test_the_term_is_the_estimate_against_the_named_reference() -> None:
    """At d = ±ln 2, k3 = e^-d - 1 + d: 0.5 - 1 + 0.6931 = 0.1931, 2 - 1 - 0.6931 = 0.3069."""
    logp_bt = torch.tensor([[-1.0, -1.0]], dtype=torch.float64)
    ref_bt = logp_bt - torch.tensor([[1.0, -1.0]]) * torch.log(torch.tensor(2.0, dtype=torch.float64))
    batch = Batch(
        mask_bt=torch.ones(1, 2).bool(),
        group_b=torch.tensor([0]),
        reward_b=torch.tensor([1.0]).double(),
        refs={"iterates": ref_bt},
    )
    out = KLIterates(coef=2.0)(logp_bt, batch)
    assert out.loss_bt[0].tolist() == pytest.approx([2 * 0.1931472, 2 * 0.3068528], abs=1e-6)
    cut = batch.rows(torch.tensor([0])).trim(2)
    assert torch.equal(cut.refs["iterates"], ref_bt)
    with pytest.raises(InputError, match=r"refs\['iterates'\] has shape"):
        batch.replace(refs={"iterates": ref_bt[:, :1]})
    with pytest.raises(InputError, match=r"kl_iterates needs batch\.refs\.iterates"):
        KLIterates()(logp_bt, batch.replace(refs={}))


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_from_a_checkpoint_with_references_that_follow(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", FOLLOWED, steps=4)
    moved = [record["kl_iterates"] for record in records(whole, "train")]
    assert abs(moved[0]) < 1e-6  # the references are the policy itself
    assert all(abs(x) > 1e-4 for x in moved[1:])
    for at in ("step-000001", "step-000002"):
        cut = cut_at(whole, tmp_path / at, at)
        run(cut, FOLLOWED, resume=True, steps=4)
        assert evidence(cut) == evidence(whole)


def test_stored_rows_are_scored_once_for_each_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "pairs.jsonl", []
    lines = [f'{{"prompt": "{a}+1=", "chosen": "{a + 1}", "rejected": "{a}"}}' for a in range(8)]
    path.write_text("\n".join(lines))
    real = FrozenPolicy.logp
    monkeypatch.setattr(FrozenPolicy, "logp", lambda self, tokens: (seen.append(len(tokens)), real(self, tokens))[1])
    changes: dict[str, Any] = {
        "task": f"pairs:{path}",
        "batch": {"prompts": 2, "group_size": 2},
        "warmup": {"steps": 0},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "data": {},
        "eval": {"every": 0, "final_prompts": 2},
    }
    whole = run(tmp_path / "whole", {"name": "grpo", "kl_coef": 0.05}, steps=12, **changes)
    held_out = sum(seen)
    assert 0 < held_out <= 16  # twelve steps read 48 rows
    cut = cut_at(whole, tmp_path / "cut", "step-000006")
    run(cut, {"name": "grpo", "kl_coef": 0.05}, resume=True, steps=12, **changes)
    assert evidence(cut) == evidence(whole)


def test_the_plan_counts_references_and_refuses_what_cannot_be(tmp_path: Path) -> None:
    found = plan(parse_config(config(FOLLOWED)))
    assert not found.refusals
    costs = {cost.what: cost.bytes for cost in found.costs}
    assert costs["references that follow"] == costs["reference copy"] == costs["weights"]
    alone = plan(parse_config(config({"base": "grpo", "regularize": [{**TERM, "initial": 0.0}]})))
    assert "reference copy" not in {cost.what for cost in alone.costs}
    model = {**config("grpo")["model"], "reference": "none"}
    (said,) = plan(parse_config(config(FOLLOWED, model=model))).refusals
    assert "mixes in the initial policy" in said


def test_a_method_lists_its_references() -> None:
    chosen = method("grpo")
    assert chosen.references() == {}
    two = replace(chosen, regularize=(KLIterates(), KLIterates(initial=0.5)))
    assert set(two.references()) == {"iterates", "mixed"}
