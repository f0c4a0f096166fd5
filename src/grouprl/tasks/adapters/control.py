"""Gymnasium environments for policies over arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.envs.adapters.control import ControlEnvironment
from grouprl.envs.adapters.gymnasium_calls import closed, closed_if_refused, made_in_time
from grouprl.envs.adapters.gymnasium_spaces import spaces_of
from grouprl.protocols import Spaces
from grouprl.records.examples import Example
from grouprl.tasks.adapters.gymnasium_makers import Wrapper, label, limit_of, made
from grouprl.tasks.environments import SeededTask
from grouprl.tasks.registry import register_task

if TYPE_CHECKING:
    import gymnasium


@register_task("control", argument="id")
class Control(SeededTask):
    """Act in a Gymnasium environment by numbers and arrays: control:CartPole-v1, control:Pendulum-v1.

    A prompt is a seed for the beginning of an episode; later chance events differ between its samples. The task is for
    policies such as `model: mlp`; a language model acts in the same environments as text (gym:CartPole-v1). An episode
    is correct if its total reward reaches `success`, by default the environment's reward threshold, unless episodes are
    shorter than those that the threshold is meant for. Without a threshold, rewards are graded.
    """

    id: str = Field(
        min_length=1,
        description="what gymnasium.make takes, a module before a colon included; or a class or function of yours, "
        "path/to/file.py:name or pkg.module:name, that returns an environment, also a vector environment of one place",
    )
    config: JsonObject = Field(default_factory=dict, description="further arguments of gymnasium.make or of yours")
    wrappers: tuple[Wrapper, ...] = Field(
        (),
        description="import paths of wrappers, the first innermost (gymnasium.wrappers:FlattenObservation); one with "
        "arguments is {name: path, argument: …}",
    )
    turns: int | None = Field(None, ge=1, description="most actions; none: the environment's own limit")
    horizon: int | None = Field(
        None,
        ge=1,
        description="actions that each environment takes per step of training; its episode then continues in the next "
        "step (n_steps elsewhere). None: every episode is played to its end",
    )
    success: float | None = Field(None, description="total reward from which an episode is correct")

    _spaces: Spaces = PrivateAttr()
    _limit: int = PrivateAttr()
    _threshold: float | None = PrivateAttr()

    max_new_tokens: ClassVar[int] = 1
    """1, because a turn is one action."""
    needs_clock: ClassVar[bool] = True
    """True: the environment comes from Gymnasium or from elsewhere."""

    def model_post_init(self, context: object) -> None:
        """Make the environment once and check its spaces.

        Raises:
            MissingExtra: gymnasium is not installed.
            InputError: there is no such environment or wrapper, it has no end, or its values are not arrays of numbers.
        """
        with made_in_time(self.id):
            env = self._make()
        with closed_if_refused(env, self.id):
            self._look_at(env)
        closed(env, self.id)

    def _look_at(self, env: gymnasium.Env) -> None:
        self._spaces = spaces_of(self.id, env)
        own = limit_of(env)
        limit = self.turns or own
        if limit is None:
            raise InputError(f"'{self.id}' has no limit of steps", "an episode must end", "Set the option turns")
        self._limit = limit
        whole = limit >= (own or limit)
        threshold = getattr(env.spec, "reward_threshold", None) if whole else None
        self._threshold = self.success if self.success is not None else threshold

    @property
    def name(self) -> str:
        """The id after "control:", without the folders of a file."""
        return f"control:{label(self.id)}"

    @property
    def spaces(self) -> Spaces:
        """The spaces of the environment."""
        return self._spaces

    @property
    def max_turns(self) -> int:
        """The option, or the environment's own limit."""
        return self._limit

    @property
    def actions_per_step(self) -> int | None:
        """The option `horizon`."""
        return self.horizon

    def first_text(self, example: Example) -> str:
        """Return the beginning of the episode as text for a reader."""
        return f"{label(self.id)}, seed {example.columns['seed']}"

    def environment(self) -> ControlEnvironment:
        """Return a fresh episode."""
        return ControlEnvironment(self._make, success=self._threshold)

    def _make(self) -> gymnasium.Env:
        return made(self.id, self.config, f"The task 'control:{self.id}'", self.wrappers)
