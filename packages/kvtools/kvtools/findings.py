"""What `kvtool verify` says: findings with stable codes, one verdict per file, for people and for programs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from kvformat.checkpoint import Checkpoint
from kvtools.output import safe


class Verdict(StrEnum):
    """The worst that was found, from best to worst."""

    OK = "ok"
    WARNING = "warning"  # readable, but something is not as a writer should leave it
    AMBIGUOUS = "ambiguous"
    ORPHAN = "orphan"  # a temp of a writer that is gone, a sidecar whose checkpoint is gone
    INCOMPATIBLE = "incompatible"  # sound, and not of the model that was named
    MISMATCH = "mismatch"  # the shape that was asked for is not the file's
    OTHER_DIALECT = "other-dialect"
    FOREIGN = "foreign"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth saying. `code` is stable; `offset` is in bytes from the start of the file; `verdict` is how bad it is."""

    code: str
    message: str
    offset: int | None = None
    verdict: Verdict = Verdict.WARNING


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in one file, and what was done with it."""

    path: Path
    verdict: Verdict
    findings: tuple[Finding, ...]
    sealed: bool = False
    quarantined: Path | None = None

    @classmethod
    def of(cls, path: Path, findings: Iterable[Finding]) -> Report:
        """The verdict is that of the worst finding."""
        found = tuple(findings)
        return cls(path, max((f.verdict for f in found), key=[*Verdict].index, default=Verdict.OK), found)


Check = Callable[[Checkpoint], Iterable[Finding]]


def report_fields(report: Report) -> dict[str, Any]:
    """One file's report for programs."""
    return {
        "path": str(report.path),
        "verdict": report.verdict.value,
        "findings": [asdict(finding) for finding in report.findings],
        "sealed": report.sealed,
        "quarantined": None if report.quarantined is None else str(report.quarantined),
    }


def print_report(report: Report) -> None:
    """One line for a sound file, one more for each finding."""
    click.echo(f"{report.verdict.value:<13} {safe(os.fsencode(report.path))}")
    for finding in report.findings:
        where = f" (byte {finding.offset})" if finding.offset is not None else ""
        click.echo(f"{'':<13}   {finding.code}: {finding.message}{where}")
    if report.quarantined:
        click.echo(f"{'':<13}   moved to {safe(os.fsencode(report.quarantined))}")


def totals(reports: Sequence[Report]) -> dict[str, int]:
    """Files per verdict, worst last."""
    counts = Counter(report.verdict for report in reports)
    return {verdict.value: counts[verdict] for verdict in Verdict if counts[verdict]}


def summary(reports: Sequence[Report]) -> str:
    """One sentence under the reports."""
    return f"{len(reports)} files: " + (
        ", ".join(f"{n} {verdict}" for verdict, n in totals(reports).items()) or "nothing to verify"
    )
