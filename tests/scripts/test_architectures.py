"""The page of models says what its record holds."""

from __future__ import annotations

import json

import architectures


def test_the_page_is_of_the_record() -> None:
    record = json.loads(architectures.RECORD.read_text(encoding="utf-8"))
    assert architectures.counts(record) in architectures.PAGE.read_text(encoding="utf-8")


def test_a_type_that_is_built_is_compared() -> None:
    """One whose rows are padded, packed and shared, and one that is refused."""
    model = architectures.built("gpt2")
    assert max(architectures.compared(model)[name] for name in architectures.GAPS) < architectures.NEAR
    assert "refused" in architectures.compared(architectures.built("cpmant"))
    assert architectures.built("gemma3").startswith("ValueError")
