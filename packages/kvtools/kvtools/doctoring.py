"""`kvtool doctor`: what is wrong with a whole directory, and the command that mends it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from kvformat.errors import Unreadable
from kvtools.output import safe
from kvtools.surveying import Standing, Survey


class Severity(StrEnum):
    """A problem costs answers, time or disk now; a note may, under another server than yours."""

    PROBLEM = "problem"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Ailment:
    """One thing, with a stable code, one sentence, what to type, and the entries that it is about."""

    code: str
    severity: Severity
    message: str
    remedy: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Patient:
    """A directory and its disk, as they are now. Sizes in bytes."""

    seen: Survey
    free: int
    budget: int

    @property
    def directory(self) -> Path:
        return self.seen.directory

    @property
    def used(self) -> int:
        return self.seen.used


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that was found. `disposable`: nothing but a cache of ours or ds4's lies there, so deleting it costs prefills only."""

    patient: Patient
    ailments: tuple[Ailment, ...]
    disposable: bool

    @property
    def has_problems(self) -> bool:
        return any(ailment.severity is Severity.PROBLEM for ailment in self.ailments)


Examination = Callable[[Patient], Iterable[Ailment]]


def diagnose(seen: Survey, budget: int, examinations: Iterable[Examination]) -> Diagnosis:
    """Run every examination over one directory. Raises Unreadable if its disk does not answer."""
    try:
        free = shutil.disk_usage(seen.directory).free
    except OSError as error:
        raise Unreadable(f"its disk does not answer: {error}", path=seen.directory) from None
    patient = Patient(seen, free, budget)
    found = sorted(_all(patient, examinations), key=lambda ailment: ailment.severity is Severity.NOTE)
    return Diagnosis(patient, tuple(found), not seen.of(Standing.AGENT, Standing.DIALECT))


def _all(patient: Patient, examinations: Iterable[Examination]) -> Iterator[Ailment]:
    for examination in examinations:
        yield from examination(patient)


def diagnosis_fields(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis for programs."""
    patient = diagnosis.patient
    return {
        "directory": str(patient.directory),
        "directory_bytes": patient.used,
        "free_bytes": patient.free,
        "budget_bytes": patient.budget,
        "disposable": diagnosis.disposable,
        "ailments": [asdict(ailment) for ailment in diagnosis.ailments],
    }


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Each ailment with its remedy, and the last resort."""
    for ailment in diagnosis.ailments:
        click.echo(f"{ailment.severity.value:<8} {ailment.code}: {safe(os.fsencode(ailment.message))}")
        click.echo(f"{'':<8}   → {safe(os.fsencode(ailment.remedy))}")
    if not diagnosis.ailments:
        click.echo("nothing is wrong with it")
    elif diagnosis.disposable:
        click.echo(
            "It is a cache: with the server stopped the whole directory may be deleted, which costs prefills only."
        )
    else:
        agent = "ds4-agent keeps conversations in it"
        who = agent if diagnosis.patient.seen.of(Standing.AGENT) else "other programs keep files in it"
        click.echo(f"{who}: do not delete the whole directory.")
