"""Prompts that are set aside, because the environment hung or ended its process on them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from grouprl.core.json_types import State

AGAIN_AFTER = 64
"""Number of prompts after which one that is set aside is offered again, unless the stream reaches it first."""
OFFERS = 2
"""Number of times a prompt is offered before it is left out for good."""


@dataclass
class Aside:
    """The failures of one prompt."""

    prompt: str
    """Id of the prompt."""
    what: str
    """Description of the last failure of its environment."""
    times: int = 1
    """Number of such failures."""
    again: int = 0
    """Position of the stream from which it is offered again."""
    offered: bool = False
    """Whether it was offered again with an outcome that is not yet known."""


class SetAside:
    """The prompts that are set aside, by their number in the training split."""

    def __init__(self) -> None:
        self._known: dict[int, Aside] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def prompts(self) -> tuple[Aside, ...]:
        """All prompts that are set aside, in the order of their first failures."""
        return tuple(self._known.values())

    def failed(self, index: int, prompt: str, what: str, position: int) -> Aside:
        """Note that the environment of prompt `index` hung or ended its process; `position` is that of the stream."""
        own = self._known.get(index)
        if own is None:
            own = self._known[index] = Aside(prompt, what)
        else:
            own.what, own.times = what, own.times + 1
        own.offered, own.again = False, position + AGAIN_AFTER
        return own

    def came_through(self, index: int) -> Aside | None:
        """Note that prompt `index` was played without failing; if it was set aside, remove and return its entry."""
        return self._known.pop(index, None)

    def allows(self, index: int) -> bool:
        """Return whether prompt `index` may be offered; one that is set aside may be offered once more, which is
        noted.
        """
        own = self._known.get(index)
        if own is None:
            return True
        if own.times >= OFFERS:
            return False
        own.offered = True
        return True

    def due(self, position: int) -> list[int]:
        """Return the prompts that are to be offered again at this position of the stream."""
        return [i for i, own in self._known.items() if own.again <= position and own.times < OFFERS and not own.offered]

    @property
    def excluded(self) -> int:
        """Number of prompts that are never offered again."""
        return sum(own.times >= OFFERS for own in self._known.values())

    def state(self) -> State:
        """Return the state for a checkpoint as plain data."""
        return {str(index): asdict(own) for index, own in self._known.items()}

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        self._known = {int(index): Aside(**own) for index, own in state.items()}
