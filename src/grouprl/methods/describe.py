"""Catalogue entries as plain data, for cards, `--json`, the terminal and the documentation pages."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grouprl.algorithms.method import Method
from grouprl.algorithms.part import Part
from grouprl.core.json_types import JsonObject
from grouprl.methods.card import Golden, Reduction
from grouprl.methods.compose import LISTS, STAGES, part_data
from grouprl.methods.recorded_evidence import shown
from grouprl.methods.registry import CATALOGUE, Entry


@dataclass(frozen=True)
class Claim:
    """A paper that claims a name, and the catalogue entry of its method ('' if there is none)."""

    title: str
    reference: str
    entry: str = ""

    @property
    def known(self) -> bool:
        """True if the catalogue has the method."""
        return self.entry in CATALOGUE

    def data(self) -> dict[str, str]:
        """Return the claim as plain data; the entry is '' if the catalogue lacks it."""
        return {"title": self.title, "reference": self.reference, "entry": self.entry if self.known else ""}


AMBIGUOUS: Mapping[str, tuple[Claim, ...]] = {
    "apo": (
        Claim("Asymmetric Policy Optimization (View-R1)", "arXiv:2506.21655", "apo_asymmetric"),
        Claim("Accelerated Preference Optimization", "arXiv:2410.06293", "accelerated_dpo"),
        Claim("Anchored Preference Optimization (zero and down)", "arXiv:2408.06266", "apo_zero"),
    ),
    "arpo": (
        Claim("Agentic Replay Policy Optimization, for GUI agents", "arXiv:2505.16282", "arpo_replay"),
        Claim("Agentic Reinforced Policy Optimization (entropy branching)", "arXiv:2507.19849", "arpo_branch"),
    ),
    "dapo": (
        Claim("Decoupled Clip and Dynamic sAmpling Policy Optimization", "arXiv:2503.14476", "dapo"),
        Claim("Direct Advantage Policy Optimization", "arXiv:2412.18279", "dapo_direct"),
    ),
    "dcpo": (
        Claim("Dynamic Clipping Policy Optimization", "arXiv:2509.02333", "dcpo_clip"),
        Claim("Distribution-Centric Policy Optimization", "arXiv:2601.12730", "dcpo_distribution"),
    ),
    "dpo": (
        Claim("Direct Preference Optimization", "arXiv:2305.18290", "dpo"),
        Claim("Discovered Policy Optimisation", "arXiv:2210.05639", "discovered_drift"),
    ),
    "gtpo": (
        Claim("Trajectory-Based Policy Optimization", "arXiv:2508.03772", "gtpo_trajectory"),
        Claim("Group Token Policy Optimization (entropy-weighted)", "arXiv:2508.04349", "gtpo_entropy"),
    ),
    "mdpo": (
        Claim("Mirror Descent Policy Optimization", "arXiv:2005.09814", "mdpo"),
        Claim("mDPO: Conditional Preference Optimization for Multimodal LLMs", "arXiv:2406.11839", "mdpo_multimodal"),
    ),
    "p3o": (
        Claim("Pairwise Proximal Policy Optimization", "arXiv:2310.00212", "p3o"),
        Claim("Policy-on Policy-off Policy Optimization", "arXiv:1905.01756", "p3o_off_policy"),
    ),
    "rpo": (
        Claim("Relative Preference Optimization", "arXiv:2402.10958", "relative_po"),
        Claim("Reverse Preference Optimization", "arXiv:2505.22172", "rpo_reverse"),
        Claim("Iterative Reasoning Preference Optimization", "arXiv:2404.19733", "rpo_iterative"),
    ),
    "s_grpo": (
        Claim("Stochastic GRPO, for memory constraints", "arXiv:2504.20834", "s_grpo_memory"),
        Claim("Suggestion-aware GRPO (GUI-Critic-R1)", "arXiv:2506.04614", "s_grpo_suggestion"),
    ),
    "sapo": (
        Claim("Soft Adaptive Policy Optimization", "arXiv:2511.20347", "sapo"),
        Claim("Segment-Aligned Policy Optimization", "arXiv:2605.01327", "sapo_segment"),
    ),
    "srpo": (
        Claim("SRPO: large-scale RL across domains (Kwai)", "arXiv:2504.14286", "srpo_history"),
        Claim("Self-Improving Robust Preference Optimization", "arXiv:2406.01660", "srpo_robust"),
        Claim("SRPO: reflection-aware RL for multimodal models", "arXiv:2506.01713", "srpo_reflection"),
    ),
}
"""Names that several papers claim. A claim without an entry names the one that it would get."""


def other_claims(name: str) -> list[Claim]:
    """Return the other papers that call their method `name`."""
    return [claim for claim in AMBIGUOUS.get(name, ()) if claim.entry != name]


def describe(entry: Entry) -> JsonObject:
    """Return the catalogue's data on an entry as plain data."""
    card, method = entry.card, entry.build()
    return {
        "name": entry.name,
        "family": entry.family,
        "dialect_of": entry.dialect_of,
        "title": card.title,
        "papers": [dataclasses.asdict(p) for p in card.papers],
        "year": year(entry),
        "recorded": dataclasses.asdict(shown(entry.name)),
        "summary": card.summary,
        "formula": card.formula,
        "parts": parts_of(method),
        "settings": settings_of(entry),
        "differs": list(card.differs),
        "reduces": [reduction_words(r) for r in card.reduces],
        "needs": needs_of(entry, method),
        "confidence": card.confidence,
        "uncertain": card.uncertain,
        "source": card.source,
        "notes": list(card.notes),
        "recommended": dict(card.recommended),
        "golden": [golden_data(g) for g in card.golden],
        "also_claimed_by": [c.data() for c in other_claims(entry.name)],
    }


def families(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the entries by family: GRPO's first, dialects last."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.family, []).append(entry)
    return dict(sorted(found.items(), key=lambda item: (item[0] == "dialects", item[0] != "group_relative")))


def family_words(entry: Entry) -> str:
    """Return the first line of the family's folder, which says what its methods share."""
    package = sys.modules.get(entry.function.__module__.rpartition(".")[0])
    return (getattr(package, "__doc__", None) or entry.family).strip().splitlines()[0]


def year(entry: Entry) -> int:
    """Return the year of the entry's first paper, 0 if it has none."""
    return next((p.year for p in entry.card.papers), 0)


def listing() -> list[dict[str, object]]:
    """Return the catalogue's line on each method, family by family, as `grouprl methods` lists them."""
    return [
        {
            "name": entry.name,
            "family": entry.family,
            "family_words": family_words(entry),
            "title": entry.card.title,
            "summary": entry.card.summary,
            "year": year(entry),
            "confidence": entry.card.confidence,
            "recorded": shown(entry.name).verdict,
            "learned": shown(entry.name).learned,
        }
        for members in families(CATALOGUE.values()).values()
        for entry in members
    ]


def parts_of(method: Method) -> list[JsonObject]:
    """Return stage, name, description, formula and settings of each part, in the order in which they act."""
    return [row for stage, part in staged(method) for row in _rows(stage, part)]


def _rows(stage: str, part: Part) -> list[JsonObject]:
    """Return rows of a part and of the parts that it holds: 'objective', 'objective.link'."""
    inner = part.nested()
    settings = {name: value for name, value in part_data(part).items() if name != "part" and name not in inner}
    row = {"stage": stage, "part": part.name, "words": part.words(), "formula": part.formula(), "settings": settings}
    return [row, *(each for name, held in inner.items() for each in _rows(f"{stage}.{name}", held))]


def staged(method: Method) -> list[tuple[str, Part]]:
    """Return (stage, part) in the order in which the parts act."""
    order = {id(part): i for i, part in enumerate(method.parts())}
    pairs = [(s, p) for s in STAGES for p in (getattr(method, s) if s in LISTS else (getattr(method, s),))]
    return sorted(((s, p) for s, p in pairs if p is not None), key=lambda pair: order[id(pair[1])])


def settings_of(entry: Entry) -> list[dict[str, object]]:
    """Return name, default, type as text, and source of each setting."""
    hints = typing.get_type_hints(entry.compose, include_extras=True)
    types, sources = {name: type_words(hints.get(name, Any)) for name in entry.settings}, entry.card.defaults
    return [
        {"name": name, "default": default, "type": types[name], "source": sources.get(name, "")}
        for name, default in entry.settings.items()
    ]


def needs_of(entry: Entry, method: Method) -> list[str]:
    """Return what a run must offer: the card's sentences, then the batch fields that the parts read."""
    fields = method.needs()
    return [*entry.card.needs, *([f"batch fields: {', '.join(fields)}"] if fields else [])]


def type_words(hint: object) -> str:
    """Return a type annotation as text: 'number in [0, 1]', 'sample_std | none', 'number > 0, or none'."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        limits = [word for field in args[1:] for word in _limits(field)]
        return " ".join([type_words(args[0]), *[" and ".join(limits)] * bool(limits)])
    if origin is Literal:
        return " | ".join(str(a) for a in args)
    if origin in (typing.Union, types.UnionType):
        return ", or ".join(type_words(a) for a in args)
    if isinstance(hint, type) and issubclass(hint, Part):
        return f"a part of kind {hint.kind}"
    if hint is types.NoneType:
        return "none"
    plain: dict[object, str] = {
        Any: "anything",
        float: "number",
        int: "whole number",
        bool: "true | false",
        str: "text",
    }
    return plain.get(hint, inspect.formatannotation(hint))


def _limits(field: object) -> list[str]:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    bounds = getattr(field, "metadata", [field])
    return [f"{s} {getattr(m, a):g}" for m in bounds for a, s in signs.items() if getattr(m, a, None) is not None]


_WHEN = {
    "always": "always",
    "on_policy": "the policy is the sampler (one update per rollout)",
    "equal_lengths": "all completions have the same length",
    "one_group": "the step holds one group",
    "binary_rewards": "rewards are 0 or 1",
    "mixed_groups": "every group holds right and wrong completions",
    "two_completions": "groups hold two completions",
    "one_token_turns": "every turn is one token",
    "no_turn_rewards": "turns earn nothing by themselves",
    "all_sampled": "all completions were sampled for this step",
    "one_turn": "every completion is one turn",
    "distinct_states": "no state comes twice",
    "all_valid": "every turn is valid",
    "equal_durations": "all actions take equally long",
    "known_worth": "Q is the reward and V is 0",
    "format_alone": "one agent acts and is paid for its format alone",
    "accuracy_alone": "the reward is the accuracy",
    "one_agent": "one agent acts",
    "no_opponents": "no opponent's completions are among the rows",
    "one_data_group": "all pairs are of one data group",
    "one_strategy": "the policy has one strategy",
    "all_apart": "no two completions have the same final answer",
    "none_prefixed": "no completion stands after a prefixed prompt",
    "no_penalty": "the weights of the penalties are 0",
    "same_values": "both critics have the same values",
}


def reduction_words(reduction: Reduction) -> str:
    """Return a reduction as one sentence."""
    ours = _given(reduction.settings)
    when = " and ".join(_WHEN[c] for c in reduction.when) or "always"
    factor = {None: ", up to a factor", 1.0: ""}.get(reduction.scale, f", times {reduction.scale or 0:g}")
    why = f": {reduction.why}" if reduction.why else ""
    return f"{ours + ' ' if ours else ''}equals {reduction.to}{_given(reduction.other)} when {when}{factor}{why}"


def _given(settings: Mapping[str, object]) -> str:
    return f"({', '.join(f'{k}={v}' for k, v in settings.items())})" if settings else ""


def golden_data(golden: Golden) -> dict[str, object]:
    """Return a golden example without its empty fields."""
    return {k: v for k, v in dataclasses.asdict(golden).items() if v not in (None, {}, "")}
