"""Metrics of the policy's movement."""

from grouprl.monitor.glossary.entry import define

define(
    "policy",
    {
        "entropy": (
            "nats/token",
            "mean entropy of the next-token distribution at the sampled positions, when they were sampled",
            "falls slowly. Near 0 early: exploration is over. Rising far above its start: the policy turns to noise",
        ),
        "kl_old": (
            "nats/token",
            "how far the policy has moved from the start of this update, KL(old || new) by the k3 estimator",
            "0.0001 to 0.05. Above 0.2 the update is too large for its own trust region",
        ),
        "kl_ref": (
            "nats/token",
            "distance of the policy to the frozen reference model: estimated on the sampled tokens (k1 or k3)",
            "grows slowly from 0. Exactly 0 after many steps: the reference moves with the policy",
        ),
        "kl_behavior": (
            "nats/token",
            "distance between the sampler's distribution and the trainer's for the same weights",
            "0 up to rounding. Above 0.01 the training data is not from the policy that is being trained",
        ),
        "logp_gap_mean": (
            "nats",
            "mean |log-prob by the sampler - log-prob by the trainer| of the sampled tokens, before the update",
            "below 0.001 for the built-in sampler, below 0.02 for a half-precision engine. A jump means stale weights",
        ),
        "logp_gap_max": (
            "nats",
            "largest such gap of a single token in the step",
            "below 1. Single tokens with a large gap are what importance caps are for",
        ),
    },
)
