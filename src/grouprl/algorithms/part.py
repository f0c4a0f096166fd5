"""A part: a small frozen record of settings with one formula, registered under a name.

A part of kind *objective* is called with `(logp_bt, batch)`, *reward_transform* with `(batch)` and so on (see `KINDS`).
Besides its formula a part states what it does, which batch fields it reads, and when it has no effect; `grouprl plan`
prints and checks these. If they are the same for every setting, or contain only settings' values, they are class
attributes, with settings in braces::

    @grouprl.part("token_weight")
    class Sharpen(grouprl.TokenWeight):
        power: float = 1.0
        says = "weigh each token by its entropy to the power {power:g}"
        equation = "× H_t^{power:g}"
        reads = ("entropy_bt",)

        def __call__(self, batch):
            return batch.need("entropy_bt", self.name) ** self.power

Where the sentence itself depends on the settings, the part overrides `words`, `formula` or `needs`.
"""

from __future__ import annotations

import os
import string
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, TypeVar, cast

import pydantic
from typing_extensions import dataclass_transform

from grouprl.algorithms import BASES
from grouprl.algorithms.part_checks import check_members, check_outputs, guard
from grouprl.algorithms.references import ReferenceRule
from grouprl.core.discovery import Discovered, part_homes, snake_case
from grouprl.core.errors import InputError, suggest
from grouprl.core.metric import Metric, declare

KINDS: dict[str, str] = {
    "reward_transform": "Batch -> Batch: changes rewards",
    "filter": "Batch -> Batch: takes rows or tokens out of the loss or the group statistics",
    "advantage": "Batch -> advantage_bt",
    "advantage_transform": "(advantage_bt, Batch) -> advantage_bt",
    "prune": "Batch -> Batch: takes rows out of the loss once they have advantages",
    "token_weight": "Batch -> multiplier_bt: detached factors of the policy loss",
    "token_gate": "(logp_bt, Batch) -> factors [B,T] of the policy loss, anew at each optimiser step",
    "objective": "(logp_bt, Batch) -> losses of tokens, rows, pairs or groups",
    "aggregate": "Batch -> weight_bt: how token losses become one number",
    "regularize": "(logp_bt, Batch) -> further losses of tokens, rows, pairs or groups",
    "critic": "(value_bt, Batch) -> value losses [B,T]",
    "curriculum": "which prompts are sampled next",
    "allocation": "how many completions each prompt gets",
    "sampling": "how tokens are sampled: temperature and budget, prompt by prompt or token by token",
    "augment": "scored rows -> scored rows: adds or replaces some (hints, demonstrations, continuations)",
    "refill": "which groups to sample anew before an update",
    "buffer": "which stored rows join the new ones",
    "pretrain": "what happens once, between the warm-up and the first step",
    "update": "how a prepared rollout becomes optimiser steps",
}

NESTED: dict[str, str] = {
    "score": "(logp_bt, Batch) -> [B]: the number by which completions of a pair are compared",
    "link": "([E] differences of scores, [E] margins) -> [E] losses of pairs",
    "margin": "(Batch, [E,2] pairs) -> [E]: by how much a pair must differ",
    "pair_weight": "(logp_bt, Batch, [E,2] pairs) -> [E]: detached factors of the losses of pairs",
    "pairing": "(Batch, [E,2] pairs) -> [E] bool: which pairs are compared",
}
"""Kinds of parts that other parts hold as settings."""

RULES = KINDS | NESTED
"""Signature of the formula of each kind of part, and its meaning."""

TEMPLATES = {
    "says": "words",
    "equation": "formula",
    "reads": "needs",
    "asks": "outputs",
    "fills": "supplies",
    "plain": "code",
}
"""Class attributes of a part that are templates, and the method that fills the settings into each."""

PARTS: dict[str, Discovered[type[Part]]] = {
    kind: Discovered(lambda kind=kind: part_homes().get(kind, {}))  # type: ignore[misc]
    for kind in RULES
}


@dataclass(frozen=True)
class RunFacts:
    """Facts about the run for which a part is planned."""

    updates_per_rollout: int = 1
    group_size: int = 8
    has_reference: bool = True
    named_reference: bool = True
    """Whether the frozen reference is a model that the run names, not the policy as it began."""
    exact_sampler: bool = True
    rounded: bool = False
    """Whether weights or products have half precision."""
    max_length: int = 0
    prompts: int = 32
    """Prompts per rollout."""
    steps: int = 200
    examples: int | None = None
    """Number of training prompts; None if they never end."""
    demonstrations: bool = True
    """Whether the task has correct completions to show."""
    forms: int = 2
    """Number of answer formats that the task tells apart."""
    alphabet: str = ""
    """Characters of the task's prompts and completions; '' if unknown."""
    environment: bool = False
    """Whether episodes have turns, played in an environment."""
    turns: int = 1
    """Largest number of turns of an episode."""
    agents: int = 1
    """Number of agents that act."""
    async_steps: int = 0
    """Number of steps by which completions may be sampled ahead of their update; 0: the current policy samples every
    completion.
    """
    fresh_old: bool = True
    """Whether old log-probs are the policy's own at the start of the update, not those of an earlier sampler."""
    stored: bool = False
    """Whether the task has its completions stored, so that asking for completions of a prompt gives these."""
    compares: bool = True
    """Whether the run's reward compares two completions, as methods with `by: judge` need."""
    judges_groups: bool = False
    """Whether what a completion is worth depends on the others of its group: it is compared or ranked."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Number of different values of 'level' and of each column of the prompts, among a few prompts of the run."""
    variants: int | None = None
    """Number of forms of a prompt (wordings, or strategies that the policy is told of); None if unknown."""
    vectors: bool | None = None
    """Whether strategies are told by vectors, between which there are others; None if unknown."""
    cases: int | None = None
    """Number of settings of the environment that prompts differ by; None if unknown."""


class Part:
    """Base of all parts: settings are its fields, the formula is `__call__`."""

    kind: ClassVar[str] = ""
    name: ClassVar[str] = ""
    couples: ClassVar[str] = "sequence"
    """Rows that the formula must see together: 'sequence' (a row alone), 'group' or 'batch'."""
    needs_text: ClassVar[bool] = False
    """Whether the part works on texts or tokens, so that only a language model can be trained by it."""
    one_policy: ClassVar[bool] = False
    """Whether the part looks inside a single model, so that agents cannot have models of their own."""
    in_parts: ClassVar[bool] = False
    """Whether a part that looks inside a single model can do so where several ranks each hold a part of it."""
    needs_policy: ClassVar[tuple[type, str] | None] = None
    """The protocol that a policy must implement to be trained by the part, and the name of a model that does; None: any
    policy.
    """
    blind: ClassVar[str] = ""
    """What the part rewards in place of a verdict on right and wrong: "certainty", "the majority's answer"; '' if
    it leaves the verdict as it is.
    """
    own_samples: ClassVar[str] = ""
    """Property that the formula has only for completions that the policy samples: "its gradient is that of the
    expected reward"; '' if it is right for any completions, such as stored ones.
    """
    only_own_samples: ClassVar[bool] = False
    """Whether the formula means nothing without this property, so that runs on stored completions are refused."""
    reads_gradients: ClassVar[bool] = False
    """Whether an update part reads or changes `.grad` itself, so that the policy cannot be sharded
    over several ranks.
    """
    metrics: ClassVar[Mapping[str, Metric]] = {}
    """Metrics of the part that the glossary lacks, by name; they are added to it when the part is registered."""
    log_probs: ClassVar[bool] = True
    """Whether a formula of the loss reads log-probs of tokens; if not, it reads the outputs that it asks for."""
    own_policies: ClassVar[bool] = False
    """Whether the part works on the models of single agents, so that agents cannot share one."""

    says: ClassVar[str] = ""
    """The effect of the part, in one plain sentence; settings are in braces: "at most {rounds} rounds"."""
    equation: ClassVar[str] = ""
    """The part's formula in plain symbols, settings in braces; '' if the words say everything."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Names of the Batch fields that the part reads besides mask, group and reward: ("old_bt",), ("{against}_bt",)."""
    asks: ClassVar[tuple[str, ...]] = ()
    """Names of the policy's current outputs besides log-probs that a formula of the loss reads: ("entropy",). Outputs
    other than entropies are in `batch.stats`, and those of whole rows in `batch.row_outputs`, with gradient.
    """

    idle_at: ClassVar[tuple[str, object, str] | None] = None
    """A setting, the value at which it leaves the part without effect, and the sentence that says so, settings in
    braces: ("coef", 0, "{name} has no effect: its coefficient is 0").
    """
    plain: ClassVar[str] = ""
    """The part in lines of plain torch (see `code`), settings in braces: "adv_bt = {scale!r} * adv_bt"."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Let the nearest definition count: a class attribute replaces the method of a class that it derives from."""
        super().__init_subclass__(**kwargs)
        for attribute, method in (*TEMPLATES.items(), ("idle_at", "idle")):
            if attribute in vars(cls) and method not in vars(cls):
                setattr(cls, method, next(vars(c)[method] for c in reversed(cls.__mro__) if method in vars(c)))

    def words(self) -> str:
        """Return one plain sentence on what the part does with these settings: `says` with the settings inserted."""
        if not self.says:
            raise NotImplementedError(f"{type(self).__name__} must say what it does: says = '…'")
        return self._filled(self.says)

    def formula(self) -> str:
        """Return the part's formula in plain symbols: `equation` with the settings inserted."""
        return self._filled(self.equation)

    def needs(self) -> tuple[str, ...]:
        """Return the names of the Batch fields that these settings make the part read: `reads` with the settings
        inserted.
        """
        return tuple(self._filled(name) for name in self.reads)

    def outputs(self) -> tuple[str, ...]:
        """Return the names of the policy's outputs that these settings make the part read: `asks` with the settings
        inserted.
        """
        return tuple(self._filled(name) for name in self.asks)

    def code(self) -> str:
        """Return the part as lines of plain torch, for `grouprl methods show NAME --code`: `plain` with the settings
        inserted; '' if it has none. The lines read and assign the variables that `grouprl.methods.as_function` names.
        """
        return self._filled(self.plain)

    def references(self) -> Mapping[str, ReferenceRule]:
        """Return the references that the part reads as `batch.refs`, by names of its choice, each with its rule."""
        return {}

    def _filled(self, template: str) -> str:
        """Return `template` with the part's settings in place of the names in braces."""
        return template.format_map({name: getattr(self, name) for name in names_in(template)})

    def idle(self, run: RunFacts) -> list[str]:
        """Return one sentence for each setting that has no effect in such a run, by default that of `idle_at`."""
        if self.idle_at is None:
            return []
        setting, value, why = self.idle_at
        return [self._filled(why)] if getattr(self, setting) == value else []

    def refuse(self, run: RunFacts) -> list[str]:
        """Return one sentence for each reason why the part cannot work in such a run; none if it can."""
        return []

    def settings(self) -> dict[str, object]:
        """Return the part's settings by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def nested(self) -> dict[str, Part]:
        """Return the parts that the part holds as settings, by the setting's name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Part)}

    def whole(self) -> Iterator[Part]:
        """Yield the part, then the parts that it holds, and the parts that those hold."""
        yield self
        for each in self.nested().values():
            yield from each.whole()


P = TypeVar("P", bound=type)


@dataclass_transform(frozen_default=True)
def part(kind: str, name: str = "") -> Callable[[P], P]:
    """Return a class decorator that makes a frozen, type-checked record of settings and registers it by its snake-case
    name.
    """

    def decorate(cls: P) -> P:
        _check_class(kind, cls)
        own = not cls.__module__.startswith("grouprl.")
        if own:
            check_members(cls, kind)
        config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True, validate_default=own)
        made = cast("type[Part]", pydantic.dataclasses.dataclass(frozen=True, config=config)(cls))
        made.kind, made.name = kind, name or snake_case(cls.__name__)
        _check_templates(made)
        if own:
            check_outputs(made, kind)
            guard(made)
        _check_free(made)
        declare(f"the {kind} part '{made.name}'", made.metrics)
        PARTS[kind][made.name] = made
        return cast(P, made)

    return decorate


def _check_class(kind: str, cls: type) -> None:
    """Raise InputError if the kind does not exist, or the class does not derive from the base class of its kind."""
    if kind not in RULES:
        raise InputError(f"{cls.__name__}: there are no parts of kind '{kind}'", remedy=suggest(kind, RULES))
    if not issubclass(cls, Part):
        raise InputError(
            f"{cls.__name__} is not a part",
            f"a part of kind {kind} ({RULES[kind]}) derives from grouprl.{BASES[kind]}",
            f"See docs/extend/{kind}.md, and grouprl parts --kind {kind}",
        )


def _check_free(made: type[Part]) -> None:
    """Refuse a name that another class has: a method must not change because of an import."""
    parts = PARTS[made.kind]
    ours = made.__module__.startswith("grouprl.")  # then the names of our sources are not read: a test holds them apart
    known = parts[made.name] if not ours and parts.home(made.name) else parts.loaded().get(made.name)
    if known is not None and _written(known) != _written(made):
        raise InputError(
            f"there are two {made.kind} parts '{made.name}': in {known.__module__} and in {made.__module__}",
            "a part's name means one thing",
            f'Choose another name: @part("{made.kind}", "my_{made.name}")',
        )


def _written(cls: type) -> tuple[str, str]:
    """Return file and name of a class, so that a file imported as a module and by its path counts as one."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return os.path.realpath(file) if file else cls.__module__, cls.__qualname__


def names_in(template: str) -> list[str]:
    """Return the names in braces of `template`. Raises InputError if it is not a valid template."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(
            f"'{template}': {error}", "names of settings are written in braces", "Write {{ or }} for a brace"
        ) from None
    return [name for _, name, _, _ in parsed if name is not None]


def _check_templates(made: type[Part]) -> None:
    """Raise InputError if a class attribute of a part names a setting that the part does not have."""
    known = [f.name for f in fields(made)]  # type: ignore[arg-type]
    for attribute, template in _templates(made):
        for name in names_in(template):
            if name not in known and not hasattr(made, name):
                where = f"{attribute} of the part '{made.name}' names '{{{name}}}'"
                raise InputError(where, "it must be one of the part's settings", suggest(name, known))


def _templates(made: type[Part]) -> Iterator[tuple[str, str]]:
    """Yield each template of a part with the name of its attribute."""
    for attribute in TEMPLATES:
        value = getattr(made, attribute, "")
        yield from ((attribute, each) for each in ((value,) if isinstance(value, str) else value))
    if made.idle_at is not None:
        setting, _, why = made.idle_at
        yield "idle_at", f"{{{setting}}}{why}"
