"""Files of every other dialect, against all that a server or a verb could do to them: kept, counted and named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvformat.eviction import VALUES
from kvformat.policy import Reason
from kvtools.findings import Verdict
from store_kit import CTX, IDENTITY, SHAPE, bytes_in, open_store, plant
from strategies import random_state
from tools_kit import kvtool
from zoo import TEXT, Specimen, zoo

OTHERS = [specimen for specimen in zoo() if specimen.verdict is Verdict.OTHER_DIALECT]
SELECTORS = (
    *(["--max-size", "0", "--policy", policy] for policy in VALUES),
    *(["--max-age", "0s"], ["--min-hits", "99"], ["--superseded"], ["--orphans"], ["--damaged"]),
)


class Neighbour:
    """One file of another program among three of ours, all long unused."""

    def __init__(self, directory: Path, specimen: Specimen) -> None:
        self.directory = directory
        self.specimen = specimen
        self.ours = [plant(directory, "ours", tokens) for tokens in (100, 150, 200)]
        self.path = directory / specimen.file_name
        self.path.write_bytes(specimen.data)
        for path in (*self.ours, self.path):
            os.utime(path, (1_700_000_000,) * 2)

    def is_untouched(self) -> bool:
        return self.path.read_bytes() == self.specimen.data and self.path.stat().st_mtime == 1_700_000_000


@pytest.fixture(params=OTHERS, ids=lambda specimen: specimen.name)
def neighbour(request: pytest.FixtureRequest, tmp_path: Path) -> Neighbour:
    return Neighbour(tmp_path / "kv", request.param)


def test_a_start_with_a_full_budget_evicts_ours_only(neighbour: Neighbour) -> None:
    open_store(neighbour.directory, budget=1).room.trim()
    assert neighbour.is_untouched() and not any(path.exists() for path in neighbour.ours)


def test_a_save_with_a_full_budget_evicts_ours_only_and_counts_all(neighbour: Neighbour) -> None:
    full = bytes_in(neighbour.directory)
    store = open_store(neighbour.directory, budget=full + 1)
    assert store.catalog.used() == full
    saved = store.save(random_state(SHAPE, 150, CTX), b"a new conversation", Reason.EVICT)
    assert saved.status == "stored" and neighbour.is_untouched()
    assert not all(path.exists() for path in neighbour.ours)


def test_a_save_that_only_the_neighbour_could_make_room_for_is_declined(neighbour: Neighbour) -> None:
    for path in neighbour.ours:
        path.unlink()
    saved = open_store(neighbour.directory, budget=bytes_in(neighbour.directory)).save(
        random_state(SHAPE, 10, CTX), b"a new conversation", Reason.EVICT
    )
    assert saved.status == "declined" and neighbour.is_untouched()


def test_a_save_under_its_name_goes_elsewhere(neighbour: Neighbour) -> None:
    store = open_store(neighbour.directory)
    saved = store.save(random_state(SHAPE, 150, CTX), TEXT, Reason.EVICT)
    takes_the_name = neighbour.path.suffix == ".kv"
    assert saved.path is not None and saved.path.exists() and neighbour.is_untouched()
    assert saved.path.parent == (neighbour.directory / IDENTITY.name if takes_the_name else neighbour.directory)


def test_ls_names_and_counts_it(neighbour: Neighbour) -> None:
    found = kvtool("ls", neighbour.directory, "--json").json
    [entry] = [entry for entry in found["entries"] if entry["name"] == neighbour.path.name]
    assert entry["kind"] == "other-dialect" and entry["dialect"] and neighbour.specimen.says in entry["problem"]
    assert found["totals"]["bytes"] == bytes_in(neighbour.directory)
    if neighbour.specimen.data.startswith(b"KVC\1"):
        [line] = [line for line in kvtool("ls", neighbour.directory).out.splitlines() if neighbour.path.name in line]
        assert entry["header"]["tokens"] == 130 and "\t130\t" in line
    assert neighbour.is_untouched()


@pytest.mark.parametrize("level", ["--quick", "--full"])
def test_verify_names_it_and_quarantine_leaves_it(neighbour: Neighbour, level: str, tmp_path: Path) -> None:
    run = kvtool("verify", level, "--quarantine", tmp_path / "ward", neighbour.path, "--json")
    [report] = run.json["files"]
    assert (run.code, report["verdict"]) == (0, "other-dialect")
    assert neighbour.specimen.says in report["findings"][0]["message"]
    assert neighbour.is_untouched()


def test_no_selector_of_prune_takes_it(neighbour: Neighbour) -> None:
    for selector in SELECTORS:
        run = kvtool("prune", neighbour.directory, *selector, "--apply", "--json")
        assert neighbour.path.name not in {victim["name"] for victim in run.json["victims"]}, selector
        assert run.json["directory_bytes"] >= len(neighbour.specimen.data)
        assert neighbour.is_untouched(), selector
    assert not any(path.exists() for path in neighbour.ours)


def test_doctor_names_it_and_calls_nothing_damaged(neighbour: Neighbour) -> None:
    ailments = {
        ailment["code"]: ailment for ailment in kvtool("doctor", neighbour.directory, "--json").json["ailments"]
    }
    classes = ailments.keys() & {"other-models", "forks", "unknown-dialect"}
    assert len(classes) == 1 and "damaged" not in ailments
    assert ailments[classes.pop()]["files"] == [neighbour.path.name]
    assert neighbour.is_untouched()


def test_why_says_whose_it_is(neighbour: Neighbour, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt"
    prompt.write_bytes(TEXT + b" and more")
    found = kvtool("why", neighbour.directory, "--prompt", prompt, "--min-tokens", "1", "--json").json
    assert found["start"] is None
    if neighbour.specimen.data.startswith(b"KVC\1"):
        assert neighbour.specimen.says in found["losses"][0]["reason"]
    assert neighbour.is_untouched()


@pytest.mark.parametrize("specimen", [s for s in OTHERS if s.data.startswith(b"KVC\1")], ids=lambda s: s.name)
def test_text_and_ids_are_read_where_upstream_has_them(specimen: Specimen, tmp_path: Path) -> None:
    path = tmp_path / specimen.file_name
    path.write_bytes(specimen.data)
    text, tokens = kvtool("text", path), kvtool("tokens", path)
    assert (text.code, text.raw) == (0, TEXT)
    assert tokens.code in (0, 1)
    assert len(tokens.out.split()) == (130 if tokens.code == 0 else 0)
    assert tokens.code == 0 or "nobody has said where its token ids lie" in tokens.err
