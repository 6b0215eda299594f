"""Relatives are recognised and named, broken files are called what they are, and none of them is ever changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvformat.header import Header
from kvformat.scan import Kind, examine
from kvtools.findings import Verdict
from kvtools.inspecting import inspect_file
from kvtools.listing import fields_of
from kvtools.verifying import verify
from zoo import Specimen, zoo


@pytest.fixture(params=zoo(), ids=lambda specimen: specimen.name)
def specimen(request: pytest.FixtureRequest) -> Specimen:
    return request.param


@pytest.fixture
def path(specimen: Specimen, tmp_path: Path) -> Path:
    path = tmp_path / specimen.file_name
    path.write_bytes(specimen.data)
    return path


def test_verify_gives_the_verdict_and_the_reason(specimen: Specimen, path: Path) -> None:
    report = verify(path)
    assert report.verdict is specimen.verdict
    if specimen.verdict is Verdict.WARNING:
        assert specimen.says in [finding.code for finding in report.findings]
    else:
        assert specimen.says in " ".join(finding.message for finding in report.findings)
    assert path.read_bytes() == specimen.data


def test_scan_sees_its_kind(specimen: Specimen, path: Path) -> None:
    entry = examine(str(path.parent), path.name)
    assert entry is not None
    assert (entry.kind, entry.size) == (specimen.kind, len(specimen.data))


def test_inspect_shows_the_header_whatever_follows_it(specimen: Specimen, path: Path) -> None:
    report = inspect_file(path)
    entry = examine(str(path.parent), path.name)
    assert entry is not None
    if len(specimen.data) >= 52 and specimen.data[:3] == b"KVC":
        shown = fields_of(Header.decode(specimen.data), entry.dialect)
        assert shown, "at least the version"
        for name, place in (("tokens", slice(8, 12)), ("payload_bytes", slice(40, 48))):
            stands_there = int.from_bytes(specimen.data[place], "little")
            assert report["header"][name] == (stands_there if name in shown else None)
    refused = entry.kind not in (Kind.GOOD, Kind.STRIPPED)
    assert report.get("error", {}).get("code") == (specimen.verdict.value if refused else None)


def test_names_are_unique() -> None:
    names = [specimen.name for specimen in zoo()]
    assert len(set(names)) == len(names) >= 50
