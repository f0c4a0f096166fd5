"""Adapter to PettingZoo."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError, MissingExtra, suggest
from grouprl.core.importing import working_directory_importable
from grouprl.core.json_types import JsonObject
from grouprl.core.timeout import imported_in_time
from grouprl.envs.adapters.common_spaces import agent_names
from grouprl.envs.adapters.gymnasium_calls import closed, made_in_time, not_made
from grouprl.envs.adapters.pettingzoo import PettingZooEnvironment, shown_space
from grouprl.envs.spaces import action_numbers, number_words, signs
from grouprl.envs.success import Success
from grouprl.tasks.adapters.gym import NUMBER_SIGNS
from grouprl.tasks.adapters.gymnasium_makers import label, own_maker
from grouprl.tasks.environments import SeededTask
from grouprl.tasks.registry import register_task

if TYPE_CHECKING:
    from pettingzoo import AECEnv

MAKERS = ("env", "parallel_env")
MOVED = {"mpe": "mpe2", "magent": "magent2"}
"""Parts of pettingzoo whose games are now in separate packages."""
ROOMS = ("atari", "butterfly", "classic", "sisl", *MOVED)


@register_task("pettingzoo", argument="id")
class PettingZoo(SeededTask):
    """Act as every agent of a PettingZoo environment: pettingzoo:classic.tictactoe_v3.

    A prompt is a seed for the beginning of an episode. One policy plays all agents, each with its own context.
    Observations and actions are numbers separated by spaces. Demonstrations are random actions, which show only how
    actions are spelt.
    """

    id: str = Field(
        min_length=1,
        description="a module of pettingzoo, or any other that has env or parallel_env; or a class or function of "
        "yours, path/to/file.py:name or pkg.module:name, that returns an environment",
    )
    config: JsonObject = Field(default_factory=dict, description="arguments of its env or parallel_env, or of yours")
    instructions: str = Field("", description="text before the first observation of each agent")
    decimals: int = Field(2, ge=0, le=6, description="decimals of the numbers of a Box observation")
    turns: int = Field(100, ge=1, description="the largest number of turns of all agents together")
    success: float | None = Field(None, description="the lowest total reward of a correct agent; none: any above 0")
    invalid: float = Field(-1.0, description="reward of an action that is not understood; the environment sees none")
    random: tuple[str, ...] = Field((), description="agents that choose any legal action and are not trained")

    _agents: tuple[str, ...] = PrivateAttr()
    _signs: str = PrivateAttr()
    _longest: int = PrivateAttr()

    needs_clock: ClassVar[bool] = True
    """True: the environment comes from PettingZoo or from elsewhere."""

    def model_post_init(self, context: object) -> None:
        """Make the environment once and check its spaces.

        Raises:
            MissingExtra: if pettingzoo, or what this environment needs, is not installed.
            InputError: if there is no such environment, or its spaces cannot be written out.
        """
        with made_in_time(self.id):
            env = self._make()
        possible = agent_names(env)
        wrong = next((agent for agent in self.random if agent not in possible), None)
        if wrong is not None:
            raise InputError(f"'{self.id}' has no agent '{wrong}'", remedy=suggest(wrong, possible))
        self._agents = tuple(agent for agent in possible if agent not in self.random)
        if not self._agents:
            raise InputError(f"All agents of '{self.id}' choose at random", "the policy must play at least one")
        self._signs, self._longest = "", 0
        for agent in self._agents:
            space, words = env.action_space(agent), number_words(env.action_space(agent))
            own = max(map(len, words)) if words else action_numbers(space) * NUMBER_SIGNS
            self._longest = max(self._longest, own)
            self._signs += signs(shown_space(env.observation_space(agent)))
        closed(env, self.id)

    def _make(self) -> AECEnv:
        try:
            from pettingzoo import ParallelEnv
            from pettingzoo.utils.conversions import parallel_to_aec
        except ImportError as error:
            raise MissingExtra("pettingzoo", "agents", f"The task 'pettingzoo:{self.id}'") from error
        maker = own_maker(self.id) or self._of_module()
        try:
            made: AECEnv = maker(**self.config)
        except ImportError as error:
            raise self._lacking(error) from error
        except TypeError as error:
            raise InputError(
                f"'{self.id}' cannot be made with {self.config}", str(error), "See task.config."
            ) from error
        except (Exception, SystemExit) as error:
            raise not_made(self.id, error) from error
        if hasattr(made, "agent_iter"):
            return made
        if not isinstance(made, ParallelEnv):
            raise InputError(f"'{self.id}' makes {type(made).__name__}", "it makes a pettingzoo.AECEnv or .ParallelEnv")
        agent_names(made)  # the conversion reads them
        with warnings.catch_warnings():  # the games are not displayed
            warnings.filterwarnings("ignore", message=".*render_mode", category=UserWarning)
            return parallel_to_aec(made)

    def _of_module(self) -> Callable[..., object]:
        module = self._module()
        maker = next((getattr(module, name) for name in MAKERS if hasattr(module, name)), None)
        if maker is None:
            raise InputError(f"The module '{self.id}' has no environment", f"it must have one of {', '.join(MAKERS)}")
        return maker

    def _module(self) -> object:
        try:
            with warnings.catch_warnings():  # naming a module is pettingzoo's older way to select an environment
                warnings.simplefilter("ignore", DeprecationWarning)
                return importlib.import_module(f"pettingzoo.{self.id}")
        except ImportError as error:
            missing = getattr(error, "name", None)
            if missing is None or not f"pettingzoo.{self.id}".startswith(missing):
                raise self._lacking(error) from error
        try:
            with working_directory_importable(), imported_in_time(self.id):
                return importlib.import_module(self.id)
        except ImportError as error:
            package = self.id.partition(".")[0]
            elsewhere = package not in ROOMS and importlib.util.find_spec(package) is None
            raise InputError(
                f"There is no environment '{self.id}'",
                "it is a module of pettingzoo, such as classic.tictactoe_v3, or one that can be imported",
                f"Try pip install {package} where that package has it." if elsewhere else str(error),
            ) from error

    def _lacking(self, error: ImportError) -> InputError | MissingExtra:
        """Return the error for a game that pettingzoo has only with another package, or no longer has."""
        room, _, game = self.id.partition(".")
        if room in MOVED:
            other = MOVED[room]
            rule = f"pettingzoo's {room} games are in the package {other}"
            return InputError(
                f"There is no environment '{self.id}'", rule, f"Try pip install {other}, and name it {other}.{game}"
            )
        return MissingExtra(
            getattr(error, "name", None) or str(error), room, f"The environment '{self.id}'", "pettingzoo"
        )

    @property
    def name(self) -> str:
        """The id after "pettingzoo:", without the folder of a file."""
        return f"pettingzoo:{label(self.id)}"

    @property
    def description(self) -> str:
        """A sentence with the environment and its agents."""
        return f"PettingZoo's {self.id}, agents {', '.join(self._agents)}."

    @property
    def agents(self) -> tuple[str, ...]:
        """The environment's possible agents."""
        return self._agents

    @property
    def max_turns(self) -> int:
        """The option `turns`."""
        return self.turns

    @property
    def max_new_tokens(self) -> int:
        """The length of the longest action, its end, and one spare token."""
        return self._longest + 2

    @property
    def alphabet(self) -> str:
        """The characters of instructions, observations and actions."""
        return "".join(sorted({*self.instructions, *self._signs, *"0123456789.-+e >!"}))

    def environment(self) -> PettingZooEnvironment:
        """Return a fresh episode."""
        return PettingZooEnvironment(
            self._make,
            max_turns=self.turns,
            instructions=self.instructions,
            decimals=self.decimals,
            success=Success.of(self.success),
            invalid=self.invalid,
            others=self.random,
        )
