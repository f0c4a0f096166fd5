"""Staleness of a step's tokens: the difference between the version that trains and the version that sampled."""

from __future__ import annotations

import numpy as np

from grouprl.protocols import NO_VERSION
from grouprl.records.samples import ScoredSamples, subset

VERSIONS = "version_bt"
"""The column of `ScoredSamples.extras` [B,T] int64 with the version that sampled each token; -1 for tokens that the
policy did not sample."""


def with_versions(samples: ScoredSamples, version: int) -> ScoredSamples:
    """Add the version that sampled each of the policy's tokens; `version` if the sampler recorded none."""
    acted_bt, known_bt = samples.acted_bt, samples.rollout.version_bt
    version_bt = np.full(acted_bt.shape, version) if known_bt is None else known_bt.numpy()
    return samples.with_extras(version_bt=np.where(acted_bt, version_bt[:, : acted_bt.shape[1]], NO_VERSION))


def ages(samples: ScoredSamples, version: int) -> np.ndarray:
    """Return [N] int64: for each token of the policy, the number of versions by which its sampler was older than
    `version`.
    """
    acted_bt = samples.acted_bt
    return version - samples.extras[VERSIONS][:, : acted_bt.shape[1]][acted_bt]


def oldest_b(samples: ScoredSamples, version: int) -> np.ndarray:
    """Return [B] int64: the age of the oldest token of each row; 0 if the policy wrote none."""
    acted_bt = samples.acted_bt
    version_bt = np.where(acted_bt, samples.extras[VERSIONS][:, : acted_bt.shape[1]], version)
    return version - version_bt.min(1, initial=version)


def spanning_b(samples: ScoredSamples) -> np.ndarray:
    """Return [B] bool: rows sampled by more than one version."""
    acted_bt = samples.acted_bt
    version_bt = samples.extras[VERSIONS][:, : acted_bt.shape[1]]
    first_b = np.where(acted_bt, version_bt, np.iinfo(np.int64).max).min(1, initial=np.iinfo(np.int64).max)
    return first_b < np.where(acted_bt, version_bt, -1).max(1, initial=-1)


def staleness_metrics(samples: ScoredSamples, version: int) -> dict[str, float]:
    """Return the mean and the largest age of the tokens, the share of each age, and the share of rows with several
    versions.
    """
    age_n = ages(samples, version)
    if not len(age_n):
        return {}
    values, counts = np.unique(age_n, return_counts=True)
    shares = {f"staleness/{age}": float(n) / len(age_n) for age, n in zip(values.tolist(), counts, strict=True)}
    return {
        "staleness_mean": float(age_n.mean()),
        "staleness_max": float(age_n.max()),
        "spanning_fraction": float(spanning_b(samples).mean()),
        **shares,
    }


def split(samples: ScoredSamples, count: int) -> tuple[ScoredSamples, ScoredSamples | None]:
    """Return the rows of the first `count` prompts, and those of the others; None if there are none."""
    ordinals = list(dict.fromkeys(samples.ordinal_b.tolist()))
    if len(ordinals) <= count:
        return samples, None
    first_b = np.isin(samples.ordinal_b, ordinals[:count])
    return subset(samples, first_b), subset(samples, ~first_b)
