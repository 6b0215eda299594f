"""Commands in a page of the documentation, and what it says that they print: both are run, so that they cannot drift apart."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from tools_kit import kvtool


@dataclass(frozen=True, slots=True)
class Step:
    """One command of the page and the lines that it must print, in their order, among others."""

    command: str
    lines: tuple[str, ...]

    def check(self) -> None:
        """Run it in the current directory."""
        tool, *arguments = shlex.split(self.command)
        assert tool == "kvtool"
        run = kvtool(*arguments)
        assert "Traceback" not in run.err
        printed = iter((run.out + run.err).splitlines())
        for line in self.lines:
            found = any(_pattern(line).fullmatch(candidate) for candidate in printed)
            assert found, f"{line!r} is not, or not in this order, in:\n{run.out}{run.err}"


def steps(text: str) -> list[Step]:
    """The commands of all ```console blocks."""
    found: list[Step] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            found.append(Step(command, tuple(line for line in lines if line != "…")))
    return found


def _pattern(line: str) -> re.Pattern[str]:
    """`…` stands for anything, white space for any white space, since a pipe gets tabs."""
    parts = (r"\s+".join(map(re.escape, part.split(" "))) for part in re.sub(r"\s+", " ", line.strip()).split("…"))
    return re.compile(r"\s*" + ".*".join(parts) + r"\s*")
