"""How a token is chosen: uniform numbers by counter, inversion of the distribution, top-k and top-p."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.rollout.local.token_sampling import keep_top_k, keep_top_p, sample, uniforms


def reference_splitmix(state):
    mask = 2**64 - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_splitmix_known_value():
    assert reference_splitmix(0) == 0xE220A8397B1DCDAF  # first output of splitmix64 seeded with 0


@given(st.integers(0, 2**64 - 1), st.integers(1, 5))
def test_uniforms_equal_plain_integer_arithmetic(seed, position):
    key = reference_splitmix(seed)
    state = (key + position * 0x9E3779B97F4A7C15) % 2**64
    assert uniforms([seed], 5)[0, position - 1] == (reference_splitmix(state) >> 16) / 2**48


def test_uniforms_of_a_row_depend_on_its_seed_alone():
    together = uniforms([3, 2**63 + 5, -1], 7)
    for row, seed in enumerate([3, 2**63 + 5, 2**64 - 1]):
        assert np.array_equal(together[row], uniforms([seed], 9)[0, :7])


def test_uniforms_are_uniform_and_uncorrelated():
    u = uniforms(range(2000), 50)
    assert u.min() >= 0
    assert u.max() < 1
    counts, _ = np.histogram(u, bins=20, range=(0, 1))
    chi2 = ((counts - 5000) ** 2 / 5000).sum()
    assert chi2 < 43.8  # 19 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(u[:, 0], u[:, 1])[0, 1]) < 0.08
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.08


def test_sampling_inverts_the_distribution():
    p = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25, 0.0]).expand(8, -1)
    u = torch.tensor([0.0, 0.4999, 0.5, 0.7499, 0.75, 0.9999, 1 - 2.0**-48, 0.25], dtype=torch.float64)
    assert sample(p, u).tolist() == [1, 1, 3, 3, 4, 4, 4, 1]


def test_sampling_needs_no_normalisation():
    assert sample(torch.tensor([[1.0, 3.0]]), torch.tensor([0.26], dtype=torch.float64)).item() == 1
    assert sample(torch.tensor([[1.0, 3.0]]), torch.tensor([0.24], dtype=torch.float64)).item() == 0


def test_sampled_frequencies():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    u = torch.from_numpy(uniforms([11], 20_000)[0])
    counts = torch.bincount(sample(p.expand(len(u), -1), u), minlength=4)
    chi2 = ((counts - len(u) * p) ** 2 / (len(u) * p)).sum().item()
    assert chi2 < 16.3  # 3 degrees of freedom, p = 0.001


LOGP = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]]).log()


def kept(logp):
    return [[i for i, x in enumerate(row) if x > -math.inf] for row in logp.tolist()]


@pytest.mark.parametrize(
    ("k", "expected"), [(0, [0, 1, 2, 3]), (1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3])]
)
def test_top_k(k, expected):
    assert kept(keep_top_k(LOGP, k))[0] == expected


@pytest.mark.parametrize(
    ("p", "expected"),
    [(1.0, [0, 1, 2, 3]), (0.39, [1]), (0.41, [1, 3]), (0.69, [1, 3]), (0.71, [1, 2, 3]), (1e-9, [1])],
)
def test_top_p(p, expected):
    assert kept(keep_top_p(LOGP, p))[0] == expected


def test_top_p_after_top_k_is_a_share_of_what_is_left():
    both = keep_top_p(keep_top_k(LOGP, 2), 0.55)  # of 0.4 and 0.3: 0.4 / 0.7 = 0.571
    assert kept(both)[0] == [1]


def test_top_p_of_ties_keeps_the_first():
    assert kept(keep_top_p(LOGP, 0.5))[1] == [0, 1]
