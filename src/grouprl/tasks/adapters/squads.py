"""PettingZoo's parallel environments for policies over arrays."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, cast

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError, MissingExtra
from grouprl.core.importing import own_is_named, working_directory_importable
from grouprl.core.json_types import JsonObject
from grouprl.core.timeout import imported_in_time
from grouprl.envs.adapters.gymnasium_calls import closed, closed_if_refused, made_in_time, not_made
from grouprl.envs.adapters.squads import PettingZooWorld
from grouprl.envs.joint_world import InTurns, Together
from grouprl.protocols import Spaces
from grouprl.records.examples import Example
from grouprl.tasks.adapters.gymnasium_makers import label, own_maker
from grouprl.tasks.environments import SeededTask
from grouprl.tasks.registry import register_task

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv


@register_task("squad", argument="id")
class Squad(SeededTask):
    """Act as every agent of a parallel PettingZoo environment by numbers and arrays: squad:mpe2.simple_spread_v3.

    The agents share one policy, which reads their number; each has a row of its own. One that sees fewer numbers than
    another is shown zeros after them, one that has fewer actions has a mask. A prompt is a seed for the beginning of an
    episode. With `parents` an agent sees what those before it in the round have chosen. With `together`
    all agents are one row, whose action has a number for each: for values of joint actions (method: gmah, model:
    team_values).
    """

    id: str = Field(
        min_length=1,
        description="a module that has parallel_env; or a class or function of yours, path/to/file.py:name or "
        "pkg.module:name, that returns a ParallelEnv",
    )
    config: JsonObject = Field(default_factory=dict, description="arguments of its parallel_env, or of yours")
    rounds: int = Field(25, ge=1, description="rounds, in which every agent acts once, after which it is cut off")
    parents: str | dict[str, tuple[str, ...]] = Field(
        "", description="by agent: those whose choices of the round it sees; 'all': every earlier one"
    )
    together: bool = Field(
        False, description="whether a row is that of the whole team, for methods that value joint actions"
    )
    success: float | None = Field(None, description="the agents' mean return from which an episode is correct")

    _agents: tuple[str, ...] = PrivateAttr()
    _spaces: Spaces = PrivateAttr()
    _filled: str = PrivateAttr()

    max_new_tokens: ClassVar[int] = 1
    """1, because a turn is one action."""
    needs_clock: ClassVar[bool] = True
    """True: the environment comes from PettingZoo or from elsewhere."""

    def model_post_init(self, context: object) -> None:
        """Make the environment once and check its spaces.

        Raises:
            MissingExtra: pettingzoo is not installed.
            InputError: there is no such environment, agents' spaces are of different kinds, or parents act together.
        """
        if self.together and self.parents:
            raise InputError(
                f"task.together with task.parents = {self.parents}",
                "agents that act together do not see each other's choices",
                "Leave one of them out",
            )
        with made_in_time(self.id):
            world = self._world()
        with closed_if_refused(world, self.id):
            self._agents, self._spaces = world.agents, self._played(world).spaces
            self._filled = world.filled
        closed(world, self.id)

    def _played(self, world: PettingZooWorld) -> InTurns | Together:
        return Together(world) if self.together else InTurns(world, parents=self.parents)

    def _world(self) -> PettingZooWorld:
        return PettingZooWorld(self._make, rounds=self.rounds, success=self.success)

    def _make(self) -> ParallelEnv:
        try:
            from pettingzoo import ParallelEnv
        except ImportError as error:
            raise MissingExtra("pettingzoo", "teams", f"The task '{self.name}'") from error
        maker = own_maker(self.id) or self._of_module()
        try:
            made = maker(**self.config)
        except TypeError as error:
            raise InputError(f"'{self.id}' cannot be made with {self.config}", str(error), "See task.config") from error
        except (Exception, SystemExit) as error:
            raise not_made(self.id, error) from error
        if not isinstance(made, ParallelEnv):
            raise InputError(
                f"'{self.id}' makes {type(made).__name__}",
                "agents of a squad act at once: it makes a pettingzoo.ParallelEnv",
                f"Play agents that act in turn as text: pettingzoo:{self.id.removeprefix('pettingzoo.')}",
            )
        return made

    def _of_module(self) -> Callable[..., object]:
        try:
            with working_directory_importable(), imported_in_time(self.id):
                module = importlib.import_module(self.id)
        except ImportError as error:
            package = self.id.partition(".")[0]
            raise InputError(
                f"There is no environment '{self.id}'",
                str(error),
                f"Install it, if {package} has it: pip install {package}. {own_is_named(self.id, 'function')}",
            ) from error
        if not hasattr(module, "parallel_env"):
            raise InputError(
                f"The module '{self.id}' has no parallel_env",
                "agents of a squad act at once",
                f"Play it turn by turn as text: pettingzoo:{self.id.removeprefix('pettingzoo.')}",
            )
        return cast("Callable[..., object]", module.parallel_env)

    @property
    def name(self) -> str:
        """The id after "squad:", without the folder of a file."""
        return f"squad:{label(self.id)}"

    @property
    def description(self) -> str:
        """A sentence with the environment and its agents, and what those with smaller spaces than others are shown."""
        return f"{self.id} over arrays, agents {', '.join(self._agents)}{self._filled}."

    @property
    def agents(self) -> tuple[str, ...]:
        """The environment's possible agents; one that has no name if they act together."""
        return ("",) if self.together else self._agents

    @property
    def spaces(self) -> Spaces:
        """The spaces of an agent, with its number and what it sees of others' choices; or those of the whole team."""
        return self._spaces

    @property
    def max_turns(self) -> int:
        """One turn of every agent in each round, or one of all together."""
        return self.rounds * len(self.agents)

    def first_text(self, example: Example) -> str:
        """Return the beginning of the episode as text for a reader."""
        return f"{self.id}, seed {example.columns['seed']}"

    def environment(self) -> InTurns | Together:
        """Return a fresh episode."""
        return self._played(self._world())
