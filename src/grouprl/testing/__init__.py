"""Conformance tests: whatever stands behind a protocol of `grouprl.protocols` can be held against them.

Call them from your own tests: `check_sampler(my_sampler, requests)`. Each raises AssertionError, saying what does not
hold.
"""

from grouprl.testing.samplers import check_sampler, check_samples, check_source, check_sync

__all__ = ["check_sampler", "check_samples", "check_source", "check_sync"]
