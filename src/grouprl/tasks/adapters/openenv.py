"""Adapter to OpenEnv servers."""

from __future__ import annotations

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError, suggest
from grouprl.envs.adapters.openenv import OpenEnvEnvironment, OpenEnvWording, action_fields
from grouprl.envs.success import Success
from grouprl.tasks.environments import SeededTask
from grouprl.tasks.options import BoundedTurns, KnownCharacters
from grouprl.tasks.registry import register_task


@register_task("openenv", argument="url")
class OpenEnv(BoundedTurns, KnownCharacters, SeededTask):
    """Act in the environment of an OpenEnv server: openenv:http://127.0.0.1:8000.

    A prompt is a seed that is passed to the server's reset; the completions of a group share it. The server must accept
    as many sessions at a time as there are episodes in a step.
    """

    url: str = Field(pattern=r"https?://", description="the address of the server")
    show: str | None = Field(None, description="the field of observations that is shown; none: the only one, or JSON")
    field: str | None = Field(
        None,
        description="the field of actions that holds the text; none: the only one, otherwise actions are JSON objects",
    )
    reset_data: dict[str, object] = Field(default_factory=dict, description="further data of the server's reset")
    instructions: str = Field("", description="text before the first observation")
    turns: int = Field(16, ge=1, description="most turns of an episode")
    tokens: int = Field(64, ge=1, description="token budget of one turn, its end included")
    success: float | None = Field(None, description="the lowest total reward of a correct episode; none: any above 0")
    invalid: float = Field(0.0, description="reward of an action that cannot be read")
    timeout: float = Field(30.0, gt=0, description="seconds that the server may take to answer")
    characters: str = Field("", description="the characters that texts and actions are made of, if known")

    _wording: OpenEnvWording = PrivateAttr()

    def model_post_init(self, context: object) -> None:
        """Ask the server for the fields of its actions.

        Raises:
            InputError: if the server cannot be reached, or its actions have no such field.
        """
        fields = action_fields(self.url, self.timeout)
        if self.field is not None and self.field not in fields:
            raise InputError(f"Actions of {self.url} have no field '{self.field}'", remedy=suggest(self.field, fields))
        name = self.field or (next(iter(fields)) if len(fields) == 1 else None)
        self._wording = OpenEnvWording(self.show, name, fields.get(name or "", "object"))

    @property
    def name(self) -> str:
        """The server's address, after "openenv:"."""
        return f"openenv:{self.url}"

    @property
    def description(self) -> str:
        """A sentence with the server and the form of actions."""
        how = "JSON objects" if self._wording.field is None else f"the field '{self._wording.field}'"
        return f"The OpenEnv server {self.url}, actions are {how}."

    def environment(self) -> OpenEnvEnvironment:
        """Return a fresh session."""
        return OpenEnvEnvironment(
            self.url,
            self._wording,
            max_turns=self.turns,
            instructions=self.instructions,
            options=self.reset_data,
            success=Success.of(self.success),
            invalid=self.invalid,
            timeout=self.timeout,
        )
