"""The base of every section, and the kinds of its values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from grouprl.config.yaml_files import check_plain

POWER_OF_TEN = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
"""Numbers such as 1e-3 and 1.5e3, which YAML 1.1 reads as text."""


def _number(value: object) -> object:
    """Refuse true and false, which Python treats as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is given where a number is expected")
    return value


Int = Annotated[int, pydantic.BeforeValidator(_number)]
Float = Annotated[float, pydantic.BeforeValidator(_number)]
WrittenCount = Annotated[Int, Field(ge=1, le=10**9)]
WrittenWhole = Annotated[Int, Field(ge=0, le=10**9)]
Seed = Annotated[Int, Field(ge=0, lt=2**63)]
Workers = Annotated[Int, Field(ge=0, le=1024)]
"""Number of processes; more than the largest would only overload a machine."""
WrittenName = Annotated[str, Field(min_length=1)]
WrittenPositive = Annotated[Float, Field(gt=0)]
WrittenNonNegative = Annotated[Float, Field(ge=0)]
WrittenShare = Annotated[Float, Field(ge=0, le=1)]
SWITCH = {True: "on", False: "off"}
"""YAML reads on and off as true and false."""
Switch = Annotated[
    Literal["auto", "on", "off"], pydantic.BeforeValidator(lambda x: SWITCH[x] if isinstance(x, bool) else x)
]

SwitchOrOffload = Annotated[
    Literal["auto", "on", "off", "offload"], pydantic.BeforeValidator(lambda x: SWITCH[x] if isinstance(x, bool) else x)
]


def as_number(value: object) -> object:
    """Return a text that is a number by `POWER_OF_TEN` as that number; anything else as it is."""
    return float(value) if isinstance(value, str) and POWER_OF_TEN.fullmatch(value) else value


class Section(pydantic.BaseModel):
    """A closed, frozen group of settings."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: object, info: pydantic.ValidationInfo) -> object:
        """Refuse what config.yaml could not hold unchanged, and read nothing as "" where that is a text's default.

        `key=` of `--set`, and `key:` of YAML, are nothing.
        """
        field = cls.model_fields[str(info.field_name)]
        if value is None and field.annotation is str and field.default == "":
            return ""
        if isinstance(value, str | Mapping | list):
            check_plain(value)
        return value
