"""A model's state of earlier tokens goes by the name that its own transformers gives it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn
from transformers import Cache

from grouprl import InputError
from grouprl.policy.language.model_checks import check_state, state_name


class BeforeItWasRenamed(nn.Module):
    def forward(self, input_ids, past_key_values: Cache | None = None): ...


class Recurrent(nn.Module):
    def forward(self, input_ids, cache_params=None): ...


class Renamed(nn.Module):
    def forward(self, input_ids, cache: Cache | None = None): ...


class RenamedAsText(nn.Module):
    def forward(self, input_ids, cache: "Cache | None" = None): ...  # noqa: UP037  # as under postponed annotations


class OwnDictionary(nn.Module):
    def forward(self, input_ids, cache: dict | None = None): ...


class Stateless(nn.Module):
    def forward(self, input_ids): ...


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (BeforeItWasRenamed, "past_key_values"),
        (Recurrent, "cache_params"),
        (Renamed, "cache"),
        (RenamedAsText, "cache"),
        (OwnDictionary, None),
        (Stateless, None),
    ],
)
def test_the_state_goes_by_the_name_in_the_signature(kind: type[nn.Module], name: str | None) -> None:
    assert state_name(kind()) == name


@pytest.mark.parametrize("kind", [OwnDictionary, Stateless])
def test_a_model_without_a_state_cannot_be_decoded_token_by_token(kind: type[nn.Module]) -> None:
    model = kind()
    model.config = SimpleNamespace()
    with pytest.raises(InputError, match="takes neither past_key_values nor cache_params nor cache"):
        check_state(model, "a folder")
