"""Metrics of time and memory."""

from grouprl.monitor.glossary.entry import define

define(
    "speed",
    {
        "tokens_per_second": ("tokens/s", "tokens of the step divided by its wall-clock time", "steady"),
        "seconds_rollout": ("s", "time spent sampling completions", "usually the largest share"),
        "seconds_score": ("s", "time spent in reward functions", "small; if not, verify in parallel"),
        "seconds_update": ("s", "time spent on log-probs, gradients and the optimiser", "steady"),
        "seconds_wait": (
            "s",
            "time the trainer waited for the sampler's process (asynchronous runs)",
            "near 0 when sampling is the faster half; else the sampler is what to make faster",
        ),
        "seconds_sampler_idle": (
            "s",
            "time the sampler's process waited for prompts that it may sample (asynchronous runs)",
            "near 0 when training is the faster half; else the trainer is what to make faster, or async_steps to raise",
        ),
        "seconds_sync": ("s", "time spent on handing weights to the sampler's process", "small"),
        "workers_restarted": (
            "count",
            "workers of the cluster that were lost and replaced since the step before",
            "0; a cluster that loses workers in every step lacks memory, or its code ends them: look at the messages",
        ),
        "work_redone": (
            "count",
            "pieces of work (shares of requests, completions to score, calls of environments) that were done again "
            "because their worker was lost",
            "0, or a few for each worker that was lost",
        ),
        "staleness_mean": (
            "steps",
            "mean number of steps by which the policy that sampled a token lags behind the one trained on it "
            "(asynchronous runs)",
            "at most run.async_steps; smaller is better for learning, larger hides more waiting",
        ),
        "staleness_max": ("steps", "the oldest token of the step, in steps", "never above run.async_steps"),
        "staleness/*": ("share", "share of the step's tokens that are so many steps old", "adds up to 1"),
        "spanning_fraction": (
            "share",
            "share of completions that were sampled by more than one version of the policy",
            "0 with run.partial false; with it as many as were in progress when weights changed",
        ),
        "groups_ahead": (
            "groups",
            "prompts under way: requested, and not yet trained on",
            "below what the rule allows",
        ),
        "canary_gap": (
            "nats",
            "largest difference between the sampler's and the trainer's log-probs of fixed sequences after the last "
            "exchange of weights",
            "rounding: 1e-6 to 1e-4 in float32. Larger ones stop the run",
        ),
        "memory_mb": ("MiB", "peak memory of the process (GPU: of the device) so far", "levels off"),
    },
)
