"""JSON to be written: an object by a schema, and a tool call."""

from __future__ import annotations

import json
import random
from typing import ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward
from grouprl.rewards.by_task.structured import json_after_thought, tool_calls
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

NAMES = ("al", "bo", "cy", "di", "ed", "jo", "mo", "vi")
FIELDS = ("a", "d", "f", "r", "s", "w")
TOOLS = ("add", "book", "call", "find", "mail", "play")


@register_task("schema")
class Schema(GeneratedTask):
    """Put facts into a JSON object that has exactly the requested fields.

    The prompt is "a17 wbo r53;w,a>", the completion 'wboa17|{"w":"bo","a":17}': the requested fields, then the object.
    A demonstration sometimes leaves a field out, mistakes a value or forgets a bracket.
    """

    levels = tuple(
        {"facts": facts, "fields": fields} for facts, fields in ((2, 1), (2, 2), (3, 2), (4, 3), (5, 4), (6, 5))
    )

    facts: int = Field(3, ge=1, le=6, description="facts in the text")
    fields: int = Field(2, ge=1, le=6, description="requested fields")
    noise: float = Field(0.5, ge=0, le=1, description="chance that a demonstration has a slip")

    @property
    def max_new_tokens(self) -> int:
        """The token budget: all fields with names, the brackets, the end, and a few more."""
        return 12 * self.fields + 6

    @property
    def alphabet(self) -> str:
        """The letters of fields and names, digits, and the signs of facts and JSON."""
        return "".join(sorted(set("".join((*NAMES, *FIELDS))))) + '0123456789 ,;>{}":|'

    @property
    def reward(self) -> Reward:
        """The reward: 1 for the right object, and less for a partly right one."""
        return json_after_thought

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return facts and the requested fields."""
        names = rng.sample(FIELDS, self.facts)
        facts = {name: rng.choice(NAMES) if name == "w" else rng.randrange(10, 100) for name in names}
        asked = rng.sample(names, min(self.fields, self.facts))
        told = " ".join(f"{name}{value}" for name, value in facts.items())
        answer = json.dumps({name: facts[name] for name in asked}, separators=(",", ":"))
        return f"{told};{','.join(asked)}>", {"answer": answer}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Write the object, sometimes with a slip."""
        right = self.solve(example)
        if rng.random() >= self.noise:
            return right
        fields, thought = json.loads(example.columns["answer"]), right.partition("|")[0]
        key = rng.choice(list(fields))
        slip = rng.choice(["drop", "value", "bracket"])
        if slip == "bracket":
            return right[:-1]
        fields = {name: value for name, value in fields.items() if name != key or slip == "value"}
        if slip == "value":
            fields[key] = rng.randrange(10, 100)
        return f"{thought}|{json.dumps(fields, separators=(',', ':'))}"

    def solve(self, example: Example) -> str:
        """Return the requested fields, and the object."""
        answer = str(example.columns["answer"])
        return "".join(f"{name}{value}" for name, value in json.loads(answer).items()) + f"|{answer}"


@register_task("toolcall")
class ToolCall(GeneratedTask):
    """Call the requested tool, with its parameters, in the tags that a program reads.

    The prompt is "mail 3 to 41>", the completion a <tool_call> block with
    '{"name":"mail","parameters":{"a":3,"b":41}}'. A demonstration sometimes has a slip: another tool, another value, a
    parameter left out, no closing tag.
    """

    levels = tuple(
        {"parameters": parameters, "digits": digits}
        for parameters, digits in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (4, 3))
    )

    parameters: int = Field(1, ge=1, le=4, description="parameters of a call")
    digits: int = Field(2, ge=1, le=3, description="digits of a value, at most")
    noise: float = Field(0.5, ge=0, le=1, description="chance that a demonstration has a slip")

    alphabet: ClassVar[str] = 'abcdefghijklmnopqrstuvwxyz0123456789 <>/_{}":,\n'
    """Small letters, digits, and the signs of JSON and tags."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the tags, the longest call, the end, and a few more."""
        return 60 + (6 + self.digits) * self.parameters

    @property
    def reward(self) -> Reward:
        """The reward for the format and the calls, at most 4."""
        return tool_calls

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a request and the call that it needs."""
        tool = rng.choice(TOOLS)
        values = [rng.randrange(10**self.digits) for _ in range(self.parameters)]
        return f"{tool} {' to '.join(map(str, values))}>", {
            "answer": _call(tool, dict(zip("abcd", values, strict=False)))
        }

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Call the tool, sometimes with a slip."""
        right = json.loads(str(example.columns["answer"]))
        tool, values = right["name"], dict(right["parameters"])
        slip = rng.choice(["tool", "value", "parameter", "tag"]) if rng.random() < self.noise else ""
        if slip == "tool":
            tool = rng.choice(TOOLS)
        key = rng.choice(list(values))
        if slip == "value":
            values[key] = rng.randrange(10**self.digits)
        if slip == "parameter":
            del values[key]
        block = f"<tool_call>\n{_call(tool, values)}\n</tool_call>"
        return block.removesuffix("</tool_call>") if slip == "tag" else block

    def solve(self, example: Example) -> str:
        """Return the block with the call."""
        return f"<tool_call>\n{example.columns['answer']}\n</tool_call>"


def _call(tool: str, parameters: dict[str, int]) -> str:
    return json.dumps({"name": tool, "parameters": parameters}, separators=(",", ":"))
