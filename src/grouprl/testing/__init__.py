"""Conformance tests for any implementation of a protocol of `grouprl.protocols`.

Call them from your own tests: `check_policy(my_policy, my_inputs)`. Each raises AssertionError with the rule that does
not hold.
"""

from grouprl.testing.policies import check_inputs, check_policy, check_trainable, check_value_learner
from grouprl.testing.runtimes import check_runtime
from grouprl.testing.samplers import check_sampler, check_samples, check_source, check_sync
from grouprl.testing.sources import check_environment, check_prompt_source, check_stored_rows, check_task

__all__ = [
    "check_environment",
    "check_inputs",
    "check_policy",
    "check_prompt_source",
    "check_runtime",
    "check_sampler",
    "check_samples",
    "check_source",
    "check_stored_rows",
    "check_sync",
    "check_task",
    "check_trainable",
    "check_value_learner",
]
