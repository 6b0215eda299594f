"""kvtool as its users meet it: exit codes, one sentence for bad input, output that is safe to print and to parse."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kvformat import checkpoint as checkpoint_module
from kvformat import scan as scan_module
from kvformat.prefix import text_key
from kvtools.cli import kvtool, main
from strategies import patched, plain_file
from zoo import TEXT, zoo

DOCS = Path(__file__).parents[2] / "docs/kvtool.md"
FINE, PROBLEMS, USAGE, UNREADABLE, INTERRUPTED = 0, 1, 2, 3, 130


def run(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """A real process, as a shell would start it."""
    command = [sys.executable, "-m", "kvtools", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def call(*args: object) -> tuple[int, str, str]:
    """The same in this process: exit code, stdout, stderr."""
    result = CliRunner().invoke(kvtool, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / f"{text_key(TEXT)}.kv"
    path.write_bytes(plain_file().data)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Every specimen of the zoo."""
    folder = tmp_path / "zoo"
    for specimen in zoo():
        place = folder / specimen.name.replace("/", "_")
        place.mkdir(parents=True)
        (place / specimen.file_name).write_bytes(specimen.data)
    return folder


# ---- exit codes


def test_a_sound_file_is_fine(good: Path) -> None:
    for verb in ("inspect", "verify"):
        assert call(verb, good)[0] == FINE
    assert call("ls", good.parent)[0] == FINE


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_the_worst_file_decides_the_exit_code(good: Path, verb: str) -> None:
    short = good.with_name("short.kv")
    short.write_bytes(good.read_bytes()[:-1])
    missing = good.with_name("missing.kv")
    assert call(verb, good, short)[0] == PROBLEMS
    assert call(verb, good, short, missing)[0] == UNREADABLE


def test_what_is_merely_not_ours_is_no_problem(good: Path) -> None:
    good.write_bytes(patched(plain_file().data, (3, b"\2")))
    assert call("verify", good)[0] == FINE


@pytest.mark.parametrize("args", [[], ["ls"], ["ls", "--bogus", "."], ["inspect", "--shape", "0,5", "x"], ["verify"]])
def test_usage_errors(args: list[str]) -> None:
    done = run(*args)
    assert done.returncode == USAGE
    assert "Usage:" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(("wrong", "right"), [("inspekt", "inspect"), ("verfy", "verify"), ("lss", "ls")])
def test_a_slip_is_answered_with_the_verb_that_was_meant(wrong: str, right: str) -> None:
    done = run(wrong, "x")
    assert done.returncode == USAGE and f"Did you mean '{right}'?" in done.stderr


def test_interruption(good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvtools.listing.list_directory", interrupted)
    monkeypatch.setattr(sys, "argv", ["kvtool", "ls", str(good.parent)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == INTERRUPTED
    assert capsys.readouterr().err.strip() == "interrupted"


def test_help_and_version() -> None:
    for flag in ("-h", "--help"):
        done = run(flag)
        assert done.returncode == FINE and "Usage:" in done.stdout
    assert re.fullmatch(r"kvtool, version \d+\.\d+\.\d+\n", run("--version").stdout)


def test_every_verb_and_option_has_its_help_and_its_place_in_the_docs() -> None:
    page = DOCS.read_text()
    for name, verb in kvtool.commands.items():
        assert verb.help, name
        assert f"## kvtool {name}" in page, name
        for option in verb.params:
            if isinstance(option, click.Option):
                assert option.help, (name, option.name)


# ---- bad input: one sentence, the right code, no traceback


def assert_one_sentence(done: subprocess.CompletedProcess[str], code: int, says: str) -> None:
    assert done.returncode == code
    said = [line for line in (done.stdout + done.stderr).splitlines() if says in line]
    assert len(said) == 1, done
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_empty_hostile_missing_pipe_and_directory(tmp_path: Path, verb: str) -> None:
    empty, hostile, missing, pipe = (tmp_path / f"{name}.kv" for name in ("empty", "hostile", "missing", "pipe"))
    empty.touch()
    hostile.write_bytes(patched(plain_file().data[:60], (48, b"\xff" * 4)))
    os.mkfifo(pipe)
    inside = tmp_path / "inside"
    (inside / "directory.kv").mkdir(parents=True)
    assert_one_sentence(run(verb, empty), PROBLEMS, "too short for a header")
    assert_one_sentence(run(verb, hostile), PROBLEMS, "ends inside the text")
    assert_one_sentence(run(verb, missing), UNREADABLE, "no such file or directory")
    assert_one_sentence(run(verb, pipe), UNREADABLE, "is not a regular file")
    assert_one_sentence(run(verb, inside), UNREADABLE, "is not a regular file")
    assert_one_sentence(run(verb, inside / "directory.kv"), FINE, "o")  # a directory without files: nothing to do


def test_ls_of_what_is_no_directory(good: Path) -> None:
    assert_one_sentence(run("ls", good), UNREADABLE, "not a directory")
    assert_one_sentence(run("ls", good.with_name("missing")), UNREADABLE, "no such file or directory")


@pytest.fixture
def unreadable(good: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Permission denied, also for root, who reads everything."""
    real = os.open

    def refuse(path: Any, *args: Any, **options: Any) -> int:
        if os.fspath(path) == str(good):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    return good


def test_an_unreadable_file(unreadable: Path) -> None:
    for verb in ("inspect", "verify"):
        code, out, _ = call(verb, unreadable)
        assert (code, out.count("permission denied")) == (UNREADABLE, 1)
    code, out, _ = call("ls", "--json", unreadable.parent)
    assert (code, json.loads(out)["entries"][0]["problem"]) == (FINE, "permission denied")


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_a_file_that_shrinks_while_it_is_read(good: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    real = checkpoint_module.Checkpoint.text_key

    def shrink(self: checkpoint_module.Checkpoint) -> str:
        good.write_bytes(plain_file().data[:55])
        return real(self)

    monkeypatch.setattr(checkpoint_module.Checkpoint, "text_key", shrink)
    code, out, _ = call(verb, good)
    assert (code, out.count("became shorter while it was read")) == (PROBLEMS, 1)


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_a_file_that_vanishes_after_the_listing_is_left_out(
    good: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    real = scan_module.scan

    def listed(directory: Path) -> Iterator[Any]:
        entries = list(real(directory))
        good.unlink()
        yield from entries

    monkeypatch.setattr("kvtools.opening.scan", listed)
    code, out, _ = call(verb, good.parent)
    assert (code, good.name in out) == (FINE, False)


def test_a_reader_that_has_seen_enough(good: Path) -> None:
    command = [sys.executable, "-m", "kvtools", "verify", *[str(good)] * 50]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, "Traceback" in done.stderr) == (FINE, False)


def test_a_wrong_shape_is_the_users_fault_not_the_files(good: Path) -> None:
    for shape in ("0,4", "0,4,4"):
        for verb in ("inspect", "verify"):
            code, out, _ = call(verb, "--shape", shape, good)
            assert (code, out.count("--shape")) == (PROBLEMS, 1)


# ---- output that is safe to print and to parse

TEXTS = [
    "città 今天".encode()[:-2],
    b"\x1b]0;title\x07\x1b[31mred",
    b"a\0b",
    "right-to-left \u202e mark".encode(),
    b"\xff\xfe\n\n\r\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_shown_as_printable_lines(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "odd.kv"
    sample = plain_file()
    header = sample.contents.header.with_sizes(len(text), sample.contents.header.payload_bytes)
    path.write_bytes(header.encode() + text + sample.data[52 + len(TEXT) :])
    for args in (["inspect", path], ["inspect", "--hex", path], ["verify", path], ["inspect", "--json", path]):
        done = run(*args)
        assert done.returncode == FINE
        assert all(c.isprintable() or c in "\n\t" for c in done.stdout), done.stdout


@pytest.mark.parametrize("name", [b"\xff.kv", b"\x1b[31m\n.kv"])
def test_any_name_is_shown_and_parsed(tmp_path: Path, name: bytes) -> None:
    try:
        (tmp_path / os.fsdecode(name)).write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    for verb in ("ls", "inspect", "verify"):
        for encoding in ("utf-8", "ascii"):
            environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
            shown = run(verb, tmp_path, env=environment)
            assert "Traceback" not in shown.stderr
            assert all(c.isprintable() or c in "\n\t" for c in shown.stdout)
            found = run(verb, "--jsonl", tmp_path, env=environment)
            row = json.loads(found.stdout)
            assert os.fsencode(row.get("name") or Path(row["path"]).name) == name


def keys_of(value: Any) -> Iterator[str]:
    """Every key in a JSON value, except those that are data: verdicts and kinds."""
    if isinstance(value, list):
        for item in value:
            yield from keys_of(item)
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from keys_of(item)


@pytest.mark.parametrize("verb", ["ls", "inspect", "verify"])
def test_every_json_key_is_documented(directory: Path, verb: str) -> None:
    documented = set(re.findall(r"`([^`\n]+)`", DOCS.read_text()))
    printed: set[str] = set()
    for place in directory.iterdir():
        whole = json.loads(call(verb, "--json", place)[1])
        printed |= set(keys_of(whole))
        lines = [json.loads(line) for line in call(verb, "--jsonl", place)[1].splitlines()]
        assert lines == whole["entries" if verb == "ls" else "files"]
    assert len(printed) > 5
    assert printed <= documented


def test_every_verdict_kind_and_finding_is_documented(directory: Path) -> None:
    documented = set(re.findall(r"`([^`\n]+)`", DOCS.read_text()))
    for place in directory.iterdir():
        for report in json.loads(call("verify", "--json", place)[1])["files"]:
            assert {report["verdict"], *(finding["code"] for finding in report["findings"])} <= documented
    assert {*scan_module.Kind} <= documented
