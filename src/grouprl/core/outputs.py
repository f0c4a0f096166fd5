"""Names of a model's outputs: `log_prob`, `value`, or with a parameter after an @, `cross@1.2`."""

from __future__ import annotations

import math
from collections.abc import Iterable

LOG_PROB = "log_prob"
"""[B,T]: log-prob, or log-density, of the action taken."""
ENTROPY = "entropy"
"""[B,T]: entropy in nats of the distribution that the action came from."""
VALUE = "value"
"""[B,T]: value of the state in which the action was taken."""
CROSS = "cross@"
"""[B,T]: cross-entropy between the distribution at the temperature after the @, held constant, and the policy's."""
READINGS = ("certainty", "collision", "logp@")
"""[B,T] each: statistics of a language model's distributions, see `grouprl.policy.language.statistics.READINGS`."""
TEACHER_KL = "teacher_kl"
"""[B,T]: KL of the distribution that the action came from to the teacher's at the same position, in nats."""
LANGUAGE_OUTPUTS = (LOG_PROB, ENTROPY, VALUE, CROSS, TEACHER_KL, *READINGS)
"""The outputs of a language model, which has the value only with a critic, and the KL only beside a teacher."""
OBSERVATION_ERROR = "observation_error"
"""[B,T]: mean squared error of the next observation that the model foresees; 0 where the row shows none."""
TO_GO_ERROR = "to_go_error"
"""[B,T]: squared error of the return to go after the action that the model foresees."""
LATENT_ERROR = "latent_error"
"""[B,T]: mean squared error of an agent's next latent that is foreseen from the team's; 0 where the row ends."""
MASKED_ERROR = "masked_error"
"""[B,T]: mean squared error of an agent's observation as read from the others' latents alone; 0 without others."""
FORESEEN_REWARD = "foreseen_reward"
"""[B,T]: the reward of the action that is foreseen from the team's latents."""
AHEAD_ERROR = "ahead_error"
"""[B,T]: 2 - 2·cosine between an agent's latents of the next steps and those foreseen; 0 where the row ends."""
FORESIGHT = "foresight"
"""Beginning of the names of those parameters of a policy that only foresee, and do not act."""
SCORE = "score"
"""[B]: score of the whole row, prompt and completion, such as that of a reward model."""
HEAD = "score@"
"""[B]: one of several scores of the whole row; the number after the @ says which, from 1."""
PREFERENCE = "preference@"
"""[B]: a coordinate of the vector by which a row is preferred to others; the number after the @ says which, from 1."""
DRAWN_SCORE = "drawn_score"
"""[B]: score of the whole row for a user drawn from the model's belief about them, not for the belief's mean."""
USER_KL = "user_kl"
"""[B]: KL of the model's belief about a row's user from its belief without any of the user's judgements, in nats."""
CONTEXT_SCORE = "context_score"
"""[B]: minus the distance of a trajectory's context from the one that acts, which is held constant."""
GOAL_SCORE = "goal_score"
"""[B]: minus the same distance, but the trajectory's context is held constant and the one that acts is not."""
CONTEXT_SIZE_ERROR = "context_size_error"
"""[B]: squared difference of the length of a trajectory's context from 1."""
HINDSIGHT_ERROR = "hindsight_error"
"""[B,T]: error of the action that the policy reads from the context of the whole trajectory: the mean square for
vectors, -log-prob for numbered actions."""
OF_ROWS = (SCORE, HEAD, PREFERENCE, DRAWN_SCORE, USER_KL, CONTEXT_SCORE, GOAL_SCORE, CONTEXT_SIZE_ERROR)
"""The outputs with one number for each row."""


def stem(name: str) -> str:
    """Return the name without its parameter but with the @: "cross@" for "cross@1.2", "value" for "value"."""
    before, mark, _ = name.partition("@")
    return before + mark


def parameter(name: str) -> float:
    """Return the number after the @ of a name; nan if there is none."""
    try:
        return float(name.partition("@")[2])
    except ValueError:
        return math.nan


def numbered(base: str, count: int) -> tuple[str, ...]:
    """Return the names of `count` outputs whose number stands after the @ of `base`."""
    return tuple(f"{base}{number}" for number in range(1, count + 1))


def count_of(outputs: Iterable[str], base: str) -> int:
    """Return the largest number after the @ of those `outputs` that begin with `base`; 0 without any."""
    return max((int(parameter(name)) for name in outputs if "@" in name and stem(name) == base), default=0)


def has_output(outputs: Iterable[str], name: str) -> bool:
    """Return whether `name` is one of `outputs`, where "cross@" stands for "cross@" with any positive number."""
    outputs = tuple(outputs)
    if "@" not in name or (name in outputs and not name.endswith("@")):
        return name in outputs
    return stem(name) in outputs and 0 < parameter(name) < math.inf
