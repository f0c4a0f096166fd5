"""WebShop's text environment: search a catalogue, choose options, and buy the requested product."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from grouprl.envs.environment import Observation, Step, misused

if TYPE_CHECKING:
    import random

    from web_agent_site.envs import WebAgentTextEnv

    from grouprl.records.examples import Example

PROMPT = ">"
SEARCH = "search["


class WebShopEnvironment:
    """An episode of WebShop: an action is `search[words]` or `click[label on the page]`.

    The example's column `goal` describes the product to buy. The reward is WebShop's score of the purchase, from 0 to
    1; a score of 1 is `correct`. An action that the page does not offer is invalid: it costs a turn and the reward
    `invalid`.
    """

    def __init__(
        self, make: Callable[[str], object], *, max_turns: int, shown: bool = True, invalid: float = 0.0
    ) -> None:
        """Prepare an episode.

        Args:
            make: returns a `WebAgentTextEnv` whose sessions have this prefix.
            max_turns: actions after which the episode is cut off.
            shown: whether the clickable labels are listed.
            invalid: reward of an action that the page does not offer.
        """
        self._make, self._max_turns, self._shown, self._invalid = make, max_turns, shown, invalid
        self._env: WebAgentTextEnv = None
        self._phase, self._turns, self._reward = "new", 0, 0.0
        self._searchable = False
        self._clicks: tuple[str, ...] = ()

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the episode. Raises InputError if the object was used before."""
        if self._phase != "new":
            raise misused("reset() was called twice")
        self._env, self._phase = self._make(uuid.uuid4().hex), "playing"
        return self._observe(self._env.reset(session=int(example.columns["goal"]))[0])

    def step(self, action: str) -> Step:
        """Apply an action. Raises InputError before `reset` and after the end."""
        if self._phase != "playing":
            raise misused(f"step({action!r}) was called when no episode was under way")
        self._turns += 1
        said = action.strip()
        valid = self._offered(said)
        text, reward, done = self._env.step(said)[:3]
        self._reward += float(reward)
        late = self._turns >= self._max_turns and not done
        if done or late:
            self._phase = "ended"
        earned = float(reward) + (0.0 if valid else self._invalid)
        return Step(self._observe(text), earned, terminated=bool(done), truncated=late, valid=valid)

    def score(self) -> dict[str, float]:
        """Return `correct`: whether the purchase fulfils the whole request."""
        return {"correct": float(self._reward >= 1.0)}

    def close(self) -> None:
        """Forget the session."""
        if self._env is not None:
            self._env.server.user_sessions.pop(self._env.session, None)
            self._env.close()
        self._env, self._phase = None, "closed"

    def demonstrate(self, rng: random.Random) -> str:
        """Return a random action that the page offers, which shows only how actions are spelt."""
        words = str(self._env.instruction_text).split()
        if self._searchable:
            return f"{SEARCH}{' '.join(rng.sample(words, min(3, len(words))))}]"
        return f"click[{rng.choice(self._clicks)}]"

    def _offered(self, action: str) -> bool:
        if action.startswith(SEARCH) and action.endswith("]"):
            return self._searchable and len(action) > len(SEARCH) + 1
        return action.startswith("click[") and action.endswith("]") and action[6:-1].lower() in self._clicks

    def _observe(self, text: str) -> Observation:
        offered = self._env.get_available_actions() if self._phase == "playing" else {}
        self._searchable = bool(offered.get("has_search_bar"))
        self._clicks = tuple(each for each in offered.get("clickables", ()) if each != "search")
        lines = [f"{SEARCH}words]"] * self._searchable + [f"click[{each}]" for each in self._clicks]
        legal = () if self._searchable else tuple(f"click[{each}]" for each in self._clicks)
        return Observation("\n".join([text, *(lines if self._shown else ()), PROMPT]), legal=legal)
