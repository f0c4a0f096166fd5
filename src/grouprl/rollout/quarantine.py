"""Prompts that are set aside, because the environment hung or ended its process on them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from grouprl.core.json_types import State

AGAIN_AFTER = 64
"""A prompt that is set aside is offered again behind so many others, or where the stream comes to it first."""
OFFERS = 2
"""So many times a prompt is offered before it is left out for good."""


@dataclass
class Aside:
    """What is known of one prompt."""

    prompt: str
    """Its id."""
    what: str
    """How its environment failed last."""
    times: int = 1
    """How often it has failed so."""
    again: int = 0
    """From which place of the stream on it is offered again."""
    offered: bool = False
    """Whether it was offered again and what came of that is not yet known."""


class SetAside:
    """The prompts that are set aside, by their number in the training split."""

    def __init__(self) -> None:
        self._known: dict[int, Aside] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def prompts(self) -> tuple[Aside, ...]:
        """All of them, in the order in which they failed first."""
        return tuple(self._known.values())

    def failed(self, index: int, prompt: str, what: str, position: int) -> Aside:
        """Note that the environment of prompt `index` hung or ended its process; the stream stands at `position`."""
        own = self._known.get(index)
        if own is None:
            own = self._known[index] = Aside(prompt, what)
        else:
            own.what, own.times = what, own.times + 1
        own.offered, own.again = False, position + AGAIN_AFTER
        return own

    def came_through(self, index: int) -> Aside | None:
        """Note that prompt `index` was played; returns what was known of it if it was set aside, and forgets it."""
        return self._known.pop(index, None)

    def allows(self, index: int) -> bool:
        """Whether prompt `index` may be offered; one that is set aside may be once more, which is noted."""
        own = self._known.get(index)
        if own is None:
            return True
        if own.times >= OFFERS:
            return False
        own.offered = True
        return True

    def due(self, position: int) -> list[int]:
        """Return the prompts that are to be offered again at this place of the stream."""
        return [i for i, own in self._known.items() if own.again <= position and own.times < OFFERS and not own.offered]

    @property
    def excluded(self) -> int:
        """How many are never offered again."""
        return sum(own.times >= OFFERS for own in self._known.values())

    def state(self) -> State:
        """Plain state for a checkpoint."""
        return {str(index): asdict(own) for index, own in self._known.items()}

    def restore(self, state: State) -> None:
        """Go on where `state` was taken."""
        self._known = {int(index): Aside(**own) for index, own in state.items()}
