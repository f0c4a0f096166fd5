"""Rewards that misbehave in every way, one deed per completion; tests let workers import this file."""

import asyncio
import contextlib
import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import time

from grouprl.rewards import known_examples


class Cursed:
    def __repr__(self):
        raise RuntimeError("do not look")


def endless():
    while True:
        pass


def die(how):
    os.kill(os.getpid(), how)
    time.sleep(60)


def child_that_returns():
    return 0.5 if os.fork() else 0.25


def child_that_stays():
    if os.fork() == 0:
        time.sleep(60)
    return 0.5


def swallow_everything():
    while True:
        with contextlib.suppress(BaseException):
            endless()


def no_files_left():
    for number in range(3, 4096):  # workers keep the numbers that files have in a busy trainer
        with contextlib.suppress(OSError):
            os.close(number)
    return 0.5


def interrupt():
    raise KeyboardInterrupt


def shout():
    print("x" * 5_000_000)
    return 0.5


def talk_into_the_replies():
    for number in range(3, 4096):  # workers keep the numbers that files have in a busy trainer
        with contextlib.suppress(OSError):
            os.write(number, b"nonsense\n")
    return 0.5


DEEDS = {
    "raise": lambda: {}["missing"],
    "raise much": lambda: int("9" * 10**6 + "x"),
    "nan": lambda: float("nan"),
    "inf": lambda: -float("inf"),
    "none": lambda: None,
    "string": lambda: "1.0",
    "list": lambda: [1.0],
    "cursed": Cursed,
    "nested": lambda: {"a": {"b": 1.0}},
    "sys.exit": lambda: sys.exit(7),
    "os._exit": lambda: os._exit(7),
    "interrupt": interrupt,
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: die(signal.SIGKILL),
    "stop": lambda: die(signal.SIGSTOP),
    "endless": endless,
    "endless in C": lambda: re.fullmatch("(a+)+b", "a" * 64),
    "swallow": swallow_everything,
    "gigabytes": lambda: len(bytearray(16 << 30)),
    "recursion": lambda: DEEDS["recursion"](),
    "megabytes": shout,
    "child returns": child_that_returns,
    "child stays": child_that_stays,
    "closes files": no_files_left,
    "nonsense": talk_into_the_replies,
    "stdin": lambda: float(sys.stdin.read() == "") / 2,
}


def moody(completion, **_):
    """Half a point for any text but the ones above."""
    if completion == "slow but fine":
        time.sleep(0.2)
    return DEEDS[completion]() if completion in DEEDS else {"half": 0.5, "correct": completion == "right"}


def leaves_a_child(completion, file):
    child = subprocess.Popen(["sleep", "60"])
    with open(file, "w") as out:
        out.write(str(child.pid))
    endless()
    return 0.0


def about(completion):
    return {"torch": "torch" in sys.modules, "pid": os.getpid(), "core": resource.getrlimit(resource.RLIMIT_CORE)[0]}


def rank(completions, **_):
    if "hang" in completions:
        endless()
    if "short" in completions:
        return [1.0]
    return [sorted(completions).index(text) / len(completions) for text in completions]


async def judge(completion):
    if completion == "block":
        endless()
    await asyncio.sleep(60 if completion == "never" else 0.2)
    if completion == "exit":
        sys.exit(1)
    return float(completion == "right")


@known_examples(("a", {}, True), ("b", {}, True))
def wrong_about_b(completion):
    return float(completion == "a")


@known_examples(("a", {}, True))
def hangs_on_a(completion):
    endless()
    return 0.0
