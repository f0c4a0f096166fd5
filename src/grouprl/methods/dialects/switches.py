"""Gives a dialect the switches that its library has for every loss, under that library's names and defaults."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace

from grouprl.algorithms.method import Method
from grouprl.methods.card import Card
from grouprl.methods.registry import entry

Core = Callable[..., Method]


def dialect(
    name: str,
    core: Core,
    card: Card,
    switches: Core,
    sources: Mapping[str, str],
) -> None:
    """Register the composing function `core` as entry `name`, with the settings of `switches` besides its own.

    `switches(method, **settings)` turns the parts on; `sources` says where its defaults come from. A setting that both
    functions have is passed to both, with the default of `core`. A dialect that builds on another is an `entry` with
    that one as its base.
    """
    own = inspect.signature(core).parameters
    shared = dict(list(inspect.signature(switches).parameters.items())[1:])
    whole = {**shared, **own}
    hints = {f: typing.get_type_hints(f, include_extras=True) for f in (core, switches)}

    def compose(**settings: object) -> Method:
        chosen = {key: p.default for key, p in {**shared, **own}.items()} | settings
        method = core(**{key: chosen[key] for key in own})
        return switches(method, **{key: chosen[key] for key in shared})

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in {**own, **whole}.values()]
    compose.__signature__ = inspect.Signature(parameters, return_annotation=Method)  # type: ignore[attr-defined]
    types = {key: hints[core].get(key, hints[switches].get(key)) for key in whole}
    compose.__annotations__ = {**types, "return": Method}
    compose.__module__, compose.__name__, compose.__doc__ = core.__module__, core.__name__, core.__doc__
    told = {key: card.defaults.get(key, sources.get(key, "")) for key in {**own, **whole}}
    entry(name, compose, replace(card, defaults=told))
