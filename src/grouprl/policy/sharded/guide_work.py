"""The work of ranks on a reference of other weights than the policy's: each builds, averages and reads its own part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from grouprl.policy.sharded.pieces import local, piece_of
from grouprl.policy.sharded.rank_work import BUILD, BUILD_REFERENCE, POLICY, REFERENCE, Builders, fill_whole
from grouprl.policy.sharded.ranks import Station
from grouprl.storage.model_files import StoredTensors

SOUP = "average"
"""Name of a rank's pieces of an average of weights, while it is added up."""
WHOLE_REFERENCE = "whole reference"
"""Name of a rank's full copy of the reference, beside that of the policy."""


def build_reference(station: Station, builders: Builders) -> None:
    """Build the rank's part of a model, as the reference."""
    for name in (REFERENCE, WHOLE_REFERENCE):  # before there are two
        station.kept.pop(name, None)
    station.kept[BUILD_REFERENCE] = builders
    station.kept[REFERENCE] = builders.part(station)


def copy_reference(station: Station, name: str) -> None:
    """Keep a full copy of the reference that is kept as `name`, with its weights, on every rank."""
    if WHOLE_REFERENCE not in station.kept:
        builders: Builders = station.kept.get(BUILD_REFERENCE, station.kept[BUILD])
        station.kept[WHOLE_REFERENCE] = builders.whole(station)
        station.kept[WHOLE_REFERENCE].model.requires_grad_(False)
    fill_whole(station.kept[name], station.kept[WHOLE_REFERENCE])


def teach(station: Station, name: str) -> None:
    """Make the model called `name` the teacher of the policy."""
    station.kept[POLICY].teacher = station.kept[name]


@dataclass(frozen=True)
class Addend:
    """A model whose weights are added to an average, and the share that they have in it."""

    name: str
    share: float


@torch.no_grad()
def add_to_average(station: Station, share: Addend) -> None:
    """Add this rank's pieces of a model's weights, in float64, to those of an average."""
    sums = station.kept.setdefault(SOUP, {})
    for name, parameter in station.kept[share.name].named_parameters():
        piece = share.share * local(parameter).double()
        sums[name] = sums[name] + piece if name in sums else piece


@torch.no_grad()
def keep_average(station: Station, share: None) -> None:
    """Give the reference the weights that were added up."""
    sums = station.kept.pop(SOUP)
    for name, parameter in station.kept[REFERENCE].named_parameters():
        if name in sums:
            local(parameter).copy_(sums[name])


@dataclass(frozen=True)
class FromFile:
    """A safetensors file with the weights of the model called `name`; every rank reads it."""

    name: str
    path: Path


@torch.no_grad()
def read_file(station: Station, share: FromFile) -> None:
    """Copy this rank's pieces out of a file, which is mapped into memory tensor by tensor."""
    held = dict(station.kept[share.name].named_parameters())
    for name, whole in StoredTensors(share.path)():
        parameter = held[name]
        local(parameter).copy_(piece_of(whole, parameter))
