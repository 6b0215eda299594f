"""Sizes, ages and shares as people type them: 8G, 30d, 10%."""

from __future__ import annotations

import re
from typing import Any

import click

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z%]*)")
SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Size(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """Bytes, in powers of 1024: 500M, 8G, 8GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number, unit = _split(value)
        unit = unit.removesuffix("b").removesuffix("i")
        if number is None or unit not in SIZES:
            self.fail(f"{value!r} is no size; give one such as 500M or 8G", param, ctx)
        return int(number * SIZES[unit])


class Age(click.ParamType):  # type: ignore[type-arg]
    """Seconds: 90m, 12h, 30d, 2w."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number, unit = _split(value)
        if number is None or unit not in AGES:
            self.fail(f"{value!r} is no age; give one such as 12h or 30d", param, ctx)
        return number * AGES[unit]


class Share(click.ParamType):  # type: ignore[type-arg]
    """A part of the whole, above 0 and at most 1: 10%."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        number, unit = _split(value)
        if number is None or unit != "%" or not 0 < number <= 100:
            self.fail(f"{value!r} is no share; give one such as 10%", param, ctx)
        return number / 100


def _split(value: str) -> tuple[float | None, str]:
    found = _NUMBER.fullmatch(value.strip().lower())
    return (float(found[1]), found[2]) if found else (None, "")
