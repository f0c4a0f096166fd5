"""Adapter to WebShop, which is installed from its own repository, with its data."""

from __future__ import annotations

import importlib.util
import json
import threading
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from grouprl.core.errors import InputError, raised
from grouprl.envs.adapters.webshop import WebShopEnvironment
from grouprl.records.examples import Example, Split
from grouprl.rewards import KnownExample, Reward
from grouprl.tasks.environments import EpisodeReward
from grouprl.tasks.options import BoundedTurns, OptionTask
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import check_request

if TYPE_CHECKING:
    from web_agent_site.envs import WebAgentTextEnv
    from web_agent_site.envs.web_agent_text_env import SimServer

TEST, DEVELOPMENT = 500, 1500
"""Its authors evaluate on goals 0 to 499, select models on 500 to 1499, and train on the others."""
_servers: dict[str, SimServer] = {}
_lock = threading.Lock()


@register_task("webshop")
class WebShop(BoundedTurns, OptionTask):
    """Buy requested products in WebShop; its package `web_agent_site` and its data must be installed.

    Goals are numbered: as its authors do, the first 500 are held out, and those from number 1,500 on are trained on.
    With fewer goals, a tenth is held out.
    """

    observation: Literal["text", "text_rich"] = Field(
        "text_rich", description="the form in which pages are written out"
    )
    products: int | None = Field(1000, ge=1, description="size of its catalogue, as its setup made it; none: all")
    human_goals: bool = Field(True, description="whether goals were written by people")
    show_actions: bool = Field(True, description="whether the clickable labels are listed")
    turns: int = Field(15, ge=1, description="the largest number of actions of an episode")
    tokens: int = Field(64, ge=1, description="token budget of one turn, its end included")
    invalid: float = Field(0.0, description="reward of an action that the page does not offer")

    name: ClassVar[str] = "webshop"
    """The name of the task."""
    needs_clock: ClassVar[bool] = True
    """True: the pages are not part of this package."""

    def model_post_init(self, context: object) -> None:
        """Load the catalogue.

        Raises:
            InputError: if WebShop or its data is missing.
        """
        self._server()

    def _server(self) -> SimServer:
        """Return the catalogue and its search, loaded once per process."""
        key = json.dumps([self.products, self.human_goals])
        with _lock:
            if key not in _servers:
                _servers[key] = _text_env()(
                    observation_mode=self.observation, num_products=self.products, human_goals=self.human_goals
                ).server
            return _servers[key]

    @property
    def reward(self) -> Reward:
        """The sum of the rewards for the actions, one per line."""
        return EpisodeReward(self)

    def _goals(self, split: Split) -> range:
        count = len(self._server().goals)
        tenth = max(1, count // 10)
        first, rest = (TEST, DEVELOPMENT) if count > DEVELOPMENT else (tenth, tenth)
        return range(first) if split == "eval" else range(rest, count)

    def size(self, split: Split) -> int:
        """Return how many goals a split has."""
        check_request(self.name, split, 0, None)
        return len(self._goals(split))

    def example(self, split: Split, index: int) -> Example:
        """Return goal `index` of a split."""
        check_request(self.name, split, index, self.size(split))
        goal = self._goals(split)[index]
        return Example(f"webshop/{goal}", str(self._server().goals[goal]["instruction_text"]), {"goal": goal})

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return nothing, because no right actions are known."""
        return ()

    def environment(self) -> WebShopEnvironment:
        """Return a fresh session."""
        return WebShopEnvironment(self._make, max_turns=self.turns, shown=self.show_actions, invalid=self.invalid)

    def _make(self, prefix: str) -> WebAgentTextEnv:
        return _text_env()(observation_mode=self.observation, server=self._server(), session_prefix=prefix)


def _text_env() -> type[WebAgentTextEnv]:
    """Return WebShop's class. Raises InputError if it, or a package that it needs, is missing."""
    if importlib.util.find_spec("web_agent_site") is None:
        raise InputError(
            "WebShop's package 'web_agent_site' is not installed",
            "it comes from its repository (princeton-nlp/WebShop), with its data and its search index (setup.sh)",
            "Set it up there, and put its folder on PYTHONPATH.",
        )
    try:
        from web_agent_site.envs import WebAgentTextEnv
    except Exception as error:
        what = f"WebShop cannot be loaded: {raised(error)}"
        raise InputError(what, remedy="Its setup.sh fetches its data and installs what it needs.") from error
    return WebAgentTextEnv
