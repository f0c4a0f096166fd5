"""Gymnasium environments of other people: vector environments, and ones that break the rules, by import path."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv


class Walk(gymnasium.Env):
    """Shows how many actions were taken, times `scale`; ends after `length` of them.

    `wrong` breaks a rule at the second action: "nan", "shape", "spelt", "reward", "many", "single", "text", "digits",
    "huge", "unpaid", "ended", "cut", "four" or "info"; "added" and "barred" are masks that are none or forbid all;
    "alone" and "silent" at the reset, "close" at the end.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 3, scale: float = 1.0, wrong: str = "") -> None:
        self.observation_space = spaces.Box(-1e9, 1e9, (1,), np.float32)
        self.length, self.scale, self.wrong, self.time = length, scale, wrong, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        shown = np.array([0.0], np.float32)
        return shown if self.wrong == "alone" else (shown, None if self.wrong == "silent" else {})

    def close(self) -> None:
        if self.wrong == "close":
            raise RuntimeError("the door is stuck")

    def step(self, action: Any) -> Any:
        self.time += 1
        shown, reward = np.array([self.time * self.scale], np.float32), float(self.time)
        if self.time == 2 and self.wrong:
            seen: Any = {"nan": np.array([np.nan], np.float32), "shape": np.zeros(3, np.float32), "spelt": ["2"]}
            paid: Any = {"reward": float("nan"), "many": np.array([1.0, 2.0]), "text": "good"}
            paid |= {"single": np.array([1.0])}
            paid |= {"digits": "1", "huge": 10**400, "unpaid": None}
            shown, reward = seen.get(self.wrong, shown), paid.get(self.wrong, reward)
            ended, cut = "False" if self.wrong == "ended" else False, None if self.wrong == "cut" else False
            masks = {"added": np.array([0.0, -np.inf]), "barred": np.zeros(2, np.int8)}
            info: Any = {"action_mask": masks[self.wrong]} if self.wrong in masks else {}
            info = None if self.wrong == "info" else info
            return (shown, reward, ended, info) if self.wrong == "four" else (shown, reward, ended, cut, info)
        return shown, reward, self.time >= self.length, False, {}


class Seedless(Walk):
    """Begins as it likes."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class Spent(Walk):
    """Allows nothing once it has ended."""

    def step(self, action: Any) -> Any:
        shown, reward, ended, cut, _ = super().step(action)
        return shown, reward, ended, cut, {"action_mask": np.full(2, not ended)}


class OneNumber(Walk):
    """An action is one real number, without a dimension, and pays itself."""

    action_space = spaces.Box(-1, 1, ())

    def step(self, action: Any) -> Any:
        shown, _, *rest = super().step(action)
        return shown, float(action), *rest


class Entries(Walk):
    """Returns fewer entries than it has: "dict", "array", "tuple"."""

    def __init__(self, kind: str = "dict") -> None:
        super().__init__()
        inner = {"at": spaces.Box(-1, 1, (1,)), "which": spaces.Discrete(3)}
        self.observation_space = spaces.Tuple(list(inner.values())) if kind == "tuple" else spaces.Dict(inner)
        self.kind = kind

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"dict": {"at": np.zeros(1)}, "array": np.zeros(2), "tuple": (np.zeros(1),)}[self.kind], {}


class Slow(Walk):
    """Never closes."""

    def close(self) -> None:
        time.sleep(3600)


class Waiting(Walk):
    """Is never made."""

    def __init__(self) -> None:
        time.sleep(3600)


class Told(SyncVectorEnv):
    """A vector environment that states something of all places together in its infos."""

    def __init__(self) -> None:
        super().__init__([Walk])

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], {"round": np.array(3), "nothing": [], "many": [1, 2]}


def vector(num_envs: int = 1, mode: str = "NextStep", length: int = 3) -> VectorEnv:
    return SyncVectorEnv([lambda: Walk(length)] * num_envs, autoreset_mode=AutoresetMode(mode))


def spaces_within(kind: str) -> gymnasium.Env:
    """An environment whose observations are in several spaces."""
    found = Walk()
    found.observation_space = {
        "dict": spaces.Dict(at=spaces.Box(-1, 1, (2,)), which=spaces.Discrete(3)),
        "tuple": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)]),
        "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "text": spaces.Text(4),
        "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), None),
        "sequence": spaces.Sequence(spaces.Discrete(3)),
        "same": spaces.Dict({"at.x": spaces.Discrete(2), "at": spaces.Dict(x=spaces.Discrete(3))}),
        "nothing": spaces.Dict({}),
        "several": spaces.Dict(at=spaces.Box(-1, 1, (2,)), said=spaces.Text(4)),
    }[kind]
    return found


def nothing() -> int:
    return 3


class Spaceless(Walk):
    """States no actions."""

    action_space = None


class Shut(Walk):
    """Refuses to be wrapped and made by id."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise KeyError("5x5")


def broken() -> gymnasium.Env:
    raise RuntimeError("no licence")


class Arms(gymnasium.Env):  # type: ignore[misc]
    """One choice of three arms: they pay 1, 0.6 and 0, and cost 1, 0.2 and 0 (info["cost"])."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(1, np.float32), [1.0, 0.6, 0.0][action], True, False, {"cost": [1.0, 0.2, 0.0][action]}
