"""`kvtool prune`, `pin` and `unpin`: what goes, what never goes, and what it says."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY
from kvformat.inplace import touch
from kvformat.policy import Reason
from kvformat.prefix import text_key
from kvformat.scan import Kind
from kvformat.sidecar import read_sidecar, sidecar_path, update_sidecar
from kvtools.pruning import CONSUMED_UNTIL, Criteria, Plan, plan
from kvtools.surveying import survey
from strategies import built
from tools_kit import SMALL, Run, contents, kvtool, save, save_many
from zoo import Specimen, zoo

NOW = 1_800_000_000
DAY = 86400
TALK = b"A conversation that goes on and on, from one waypoint to the next. " * 20


def planned(directory: Path, now: float = NOW, **criteria: Any) -> Plan:
    return plan(survey(directory, now), Criteria(**criteria))


def names(plan: Plan) -> list[str]:
    return [victim.entry.name for victim in plan.victims]


def prune(directory: Path, *options: object) -> Run:
    return kvtool("prune", directory, *options)


def old(path: Path) -> Path:
    os.utime(path, (time.time() - 3600,) * 2)
    return path


# ---- what goes


def test_a_dry_run_says_what_would_go_and_changes_nothing(tmp_path: Path) -> None:
    paths = [save(tmp_path, b"text %d" % n, last_used=NOW + n, created=NOW) for n in range(4)]
    before = {path: path.stat() for path in tmp_path.iterdir()}
    size = 2 * paths[0].stat().st_size
    run = prune(tmp_path, "--max-size", size, "--policy", "lru", "--json")
    assert run.code == 0 and not run.json["applied"]
    assert [victim["name"] for victim in run.json["victims"]] == [path.name for path in paths[:2]]
    assert {victim["outcome"] for victim in run.json["victims"]} == {None}
    assert {path: path.stat() for path in tmp_path.iterdir()} == before
    assert "--apply does it" in prune(tmp_path, "--max-size", size).err

    applied = prune(tmp_path, "--max-size", size, "--policy", "lru", "--apply", "--json").json
    assert [victim["outcome"] for victim in applied["victims"]] == ["deleted"] * 2
    assert sorted(tmp_path.glob("*.kv")) == sorted(paths[2:])


def test_every_byte_counts_towards_the_size_and_what_cannot_be_reached_is_said(tmp_path: Path) -> None:
    path = save(tmp_path, b"text")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other").write_bytes(bytes(10_000))
    wish = planned(tmp_path, max_size=9_000)
    assert names(wish) == [path.name] and wish.over == 1_000
    assert any("remain above --max-size" in note for note in wish.notes)


def test_age_counts_from_the_last_use_or_from_the_creation(tmp_path: Path) -> None:
    stale = save(tmp_path, b"stale", created=NOW - 40 * DAY, last_used=NOW - 31 * DAY)
    never = save(tmp_path, b"never", created=NOW - 31 * DAY, last_used=0)
    save(tmp_path, b"fresh", created=NOW - 40 * DAY, last_used=NOW - 29 * DAY)
    assert set(names(planned(tmp_path, max_age=30 * DAY))) == {stale.name, never.name}


def test_hits_that_mean_nothing_are_said_and_left(tmp_path: Path) -> None:
    long = {"shape": replace(SMALL, ratios=(0, 4)), "tokens": 30_001, "ctx": 40_000}
    few = save(tmp_path, b"few", hits=1)
    save(tmp_path, b"many", hits=2)
    consumed = save(tmp_path, b"long and old", created=int(CONSUMED_UNTIL) - 1, **long)
    recent = save(tmp_path, b"long and new", created=int(CONSUMED_UNTIL), **long)
    wish = planned(tmp_path, min_hits=2)
    assert set(names(wish)) == {few.name, recent.name}
    assert any("hits of 1 files mean nothing" in note for note in wish.notes)
    assert "unknown" in prune(tmp_path, "--file", consumed.name).out


def waypoints(directory: Path, **last: Any) -> list[Path]:
    lengths = (300, 600, 900, 1200)
    made = [save(directory, TALK[:n], n // 4, reason=2) for n in lengths[:-1]]
    return [*made, save(directory, TALK[:1200], 300, reason=3, **last)]


def test_waypoints_go_for_a_longer_file_that_stays_and_serves_their_readers(tmp_path: Path) -> None:
    first, second, third, last = waypoints(tmp_path)
    wish = planned(tmp_path, superseded=True)
    assert set(names(wish)) == {first.name, second.name, third.name}
    assert {victim.covered_by for victim in wish.victims} == {last.name}
    assert sorted(victim.rebuild for victim in wish.victims) == [75, 150, 225] and wish.rebuild == 225

    touch(second, NOW)
    touch(second, NOW)  # two hits: somebody else starts there
    assert second.name not in names(planned(tmp_path, superseded=True))
    # The last one goes itself, so the third must do for the first.
    wish = planned(tmp_path, superseded=True, names=(last.name,))
    assert {v.entry.name: v.covered_by for v in wish.victims} == {first.name: third.name, last.name: None}


@pytest.mark.parametrize("other", [{"ctx": 2048}, {"quant_bits": 4}, {"payload_abi": 0}])
def test_a_longer_file_that_some_reader_cannot_take_supersedes_nothing(other: dict[str, int], tmp_path: Path) -> None:
    *_, last = waypoints(tmp_path)
    if "payload_abi" in other:
        made = contents(TALK[:1200], 300, reason=3)
        assert made.payload is not None
        words = made.payload.words._replace(version=1)
        made = replace(made, header=made.header._replace(**other), payload=replace(made.payload, words=words))
        last.write_bytes(built(made))
    else:
        save(tmp_path, TALK[:1200], 300, reason=3, **other)
    third = text_key(TALK[:900]) + ".kv"
    assert {victim.covered_by for victim in planned(tmp_path, superseded=True).victims} == {third}


def test_left_overs_and_damaged_files_go_when_they_have_settled(tmp_path: Path) -> None:
    good = save(tmp_path, b"good")
    update_sidecar(good, label="stays")
    dead = tmp_path / f"{good.name}.tmp.4194305"
    lonely, cut = tmp_path / f"{'0' * 40}.kv.json", tmp_path / f"{'1' * 40}.kv"
    for path in (dead, lonely):
        path.write_bytes(b"{}")
    cut.write_bytes(good.read_bytes()[:-1])
    live = tmp_path / f"{good.name}.tmp.{os.getpid()}"
    live.write_bytes(b"x")
    young = prune(tmp_path, "--orphans", "--damaged", "--json").json
    assert young["victims"] == [] and any("1 damaged files stay" in note for note in young["notes"])
    for path in (dead, lonely, cut, live):
        old(path)
    run = prune(tmp_path, "--orphans", "--damaged", "--apply", "--json")
    assert {victim["name"]: victim["outcome"] for victim in run.json["victims"]} == dict.fromkeys(
        (dead.name, lonely.name, cut.name), "deleted"
    )
    assert {path.name for path in tmp_path.iterdir()} == {good.name, f"{good.name}.json", live.name, ".ds4kv.lock"}


# ---- what never goes


def test_only_a_name_chooses_other_dialects_foreign_files_and_conversations(tmp_path: Path) -> None:
    kinds = {}
    for number, specimen in enumerate(zoo()):
        path = tmp_path / f"{number:040x}{Path(specimen.file_name).suffix}"
        path.write_bytes(specimen.data)
        kinds[old(path).name] = specimen
    session = save(tmp_path, b"a saved session", reason=6)
    greedy = planned(
        tmp_path, time.time(), max_size=0, max_age=0.0, min_hits=9, superseded=True, orphans=True, damaged=True
    )
    chosen = set(names(greedy))
    assert session.name not in chosen
    for name, specimen in kinds.items():
        others = specimen.kind in (Kind.OTHER_DIALECT, Kind.FOREIGN)
        agents = specimen.kind is Kind.STRIPPED or "agent" in specimen.name
        assert (name in chosen) == (not others and not agents), specimen.name
    dialect = next(name for name, specimen in kinds.items() if specimen.kind is Kind.OTHER_DIALECT)
    assert prune(tmp_path, "--file", dialect, "--apply").code == 0
    assert not (tmp_path / dialect).exists() and session.exists()


@pytest.mark.parametrize("specimen", [s for s in zoo() if s.name.startswith("rot in the")], ids=lambda s: s.name)
def test_rot_is_damage_though_it_looks_like_another_dialect(specimen: Specimen, tmp_path: Path) -> None:
    path = tmp_path / specimen.file_name
    path.write_bytes(specimen.data)
    old(path)
    chosen = names(planned(tmp_path, time.time(), damaged=True))
    assert chosen == ([] if specimen.kind is Kind.GOOD else [path.name])


def test_a_pin_keeps_a_file_from_everything_and_its_bytes_as_they_are(tmp_path: Path) -> None:
    path, other = save(tmp_path, b"mine", reason=2), save(tmp_path, b"mine and more")
    bytes_before = path.read_bytes()
    assert kvtool("pin", path, "--json").json == {"files": [{"path": str(path), "pin": True}]}
    everything = {"max_size": 0, "max_age": 0.0, "min_hits": 9, "superseded": True, "names": (path.name,)}
    wish = planned(tmp_path, **everything)
    assert names(wish) == [other.name] and any("1 pinned files stay" in note for note in wish.notes)
    assert path.read_bytes() == bytes_before
    assert kvtool("unpin", path).code == 0
    assert set(names(planned(tmp_path, **everything))) == {path.name, other.name}


def test_pin_keeps_what_a_sidecar_says_and_refuses_what_is_no_checkpoint(tmp_path: Path) -> None:
    path = save(tmp_path, b"text")
    update_sidecar(path, fingerprint="ab", checksum="xxh3-128:00")
    for verb in ("pin", "unpin"):
        assert kvtool(verb, path).code == 0
        assert read_sidecar(path) == replace(
            read_sidecar(path), fingerprint="ab", checksum="xxh3-128:00", pin=verb == "pin"
        )
    assert kvtool("pin", tmp_path / "nowhere.kv").code == 3
    (tmp_path / "note.txt").write_text("x")
    assert kvtool("pin", tmp_path / "note.txt").code == 3


def test_a_sidecar_that_cannot_be_read_counts_as_a_pin(tmp_path: Path) -> None:
    path = save(tmp_path, b"text")
    sidecar_path(path).write_bytes(b"{")
    assert names(planned(tmp_path, max_size=0)) == []


# ---- directories


def test_five_thousand_files(tmp_path: Path) -> None:
    save_many(tmp_path, (b"text %d" % n for n in range(5000)))
    size = next(tmp_path.glob("*.kv")).stat().st_size
    run = prune(tmp_path, "--max-size", 10 * size, "--policy", "lru", "--apply", "--json")
    assert run.code == 0 and len(run.json["victims"]) in (4989, 4990)
    left = {path.name for path in tmp_path.glob("*.kv")}
    assert left <= {f"{text_key(b'text %d' % n)}.kv" for n in range(4989, 5000)}
    assert run.json["directory_bytes"] - run.json["victim_bytes"] <= 10 * size


def test_an_empty_directory_a_missing_one_and_no_wish(tmp_path: Path) -> None:
    run = prune(tmp_path, "--max-size", "8G", "--orphans", "--apply")
    assert run.code == 0 and "nothing to delete" in run.err
    assert list(tmp_path.iterdir()) == []
    assert prune(tmp_path / "nowhere", "--orphans").code == 3
    nothing = prune(tmp_path)
    assert nothing.code == 2 and "say what should go" in nothing.err


@pytest.mark.parametrize(("option", "value"), [("--max-size", "8 gallons"), ("--max-age", "30"), ("--max-age", "soon")])
def test_what_is_no_size_or_age_is_one_sentence(option: str, value: str, tmp_path: Path) -> None:
    run = prune(tmp_path, option, value)
    assert run.code == 2 and "give one such as" in run.err


def test_golden_directories(golden_kv: Path) -> None:
    for directory in (golden_kv / "kv/basic_q2", golden_kv / "kv/tools_q2"):
        wish = planned(directory, superseded=True, policy="upstream")
        lengths = {victim.entry.name: victim.entry.header.tokens for victim in wish.victims if victim.entry.header}
        assert lengths and all(tokens % 64 == 0 for tokens in lengths.values()), TINY
        assert all(victim.entry.header and victim.entry.header.reason == Reason.CONTINUED for victim in wish.victims)
