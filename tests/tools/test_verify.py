"""`kvtool verify`: what each level finds, what it leaves alone, and what quarantine does to a directory."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import GOLDEN, TINY
from kvformat.checkpoint import Checkpoint
from kvformat.prefix import text_key
from kvformat.shapes import FLASH, Shape
from kvformat.sidecar import update_sidecar
from kvformat.state import LayerState
from kvformat.writer import Contents
from kvtools.findings import Verdict
from kvtools.holding import Stamp
from kvtools.judging import Level, Wishes, judge, sampled
from kvtools.quarantining import set_aside
from strategies import built, patched
from tools_kit import codes, contents, kvtool, only, save
from zoo import Specimen, zoo

MODEL = GOLDEN / "models" / "tiny-q2.gguf"
RATIOS = ",".join(map(str, TINY.ratios))
EOS = "<｜end▁of▁sentence｜>".encode()
DAY = 86400


def age(path: Path, seconds: float) -> Path:
    os.utime(path, (time.time() - seconds,) * 2)
    return path


# ---- full


def test_golden_files_are_sound_but_for_the_keys_that_upstream_ends_in_an_unfed_eos(golden_kv: Path) -> None:
    folders = sorted({path.parent for part in ("kv", "current") for path in (golden_kv / part).rglob("*.kv")})
    reports = list(judge(folders, Wishes(Level.FULL, shape=TINY)))
    found = {report.path.parent.name: codes(report) for report in reports if report.verdict is not Verdict.OK}
    assert len(reports) > 60
    assert found.keys() == {"thinking_q2", "responses_q2"}
    assert all(codes == ["unfed-eos"] for codes in found.values())


@pytest.mark.parametrize("specimen", zoo(), ids=lambda specimen: specimen.name)
def test_full_never_thinks_better_of_a_file_than_quick(specimen: Specimen, tmp_path: Path) -> None:
    path = tmp_path / specimen.file_name
    path.write_bytes(specimen.data)
    quick, full = only(path, Level.QUICK), only(path)
    order = list(Verdict)
    assert quick.verdict is specimen.verdict
    assert order.index(full.verdict) >= order.index(quick.verdict)
    assert set(codes(quick)) <= set(codes(full))


def with_layers(
    path: Path, change: Callable[[int, str, np.ndarray], None], tokens: int = 130, **options: object
) -> Path:
    """A sound file whose layers went through `change(layer, name, array)`, which works in place."""
    made: Contents = contents(b"text", tokens, **options)  # type: ignore[arg-type]
    assert made.payload is not None
    for il, layer in enumerate(made.payload.layers):
        for name in LayerState.__dataclass_fields__:
            if (array := getattr(layer, name)) is not None:
                change(il, name, array)
    target = path / f"{text_key(b'text')}.kv"
    target.write_bytes(built(made))
    return target


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["raw", "attn_comp", "index_comp", "attn_state_kv", "index_state_kv"])
def test_a_number_that_is_none_in_a_live_row_is_damage_and_the_place_is_named(
    name: str, bad: float, tmp_path: Path
) -> None:
    def spoil(il: int, at: str, array: np.ndarray) -> None:
        if (il, at) == (1, name):
            array[1, 0] = bad

    report = only(with_layers(tmp_path, spoil))
    assert report.verdict is Verdict.DAMAGED
    [finding] = report.findings
    assert finding.code == "state-not-finite" and f"layer 1 {name}" in finding.message
    with Checkpoint.open(report.path) as checkpoint:
        span = getattr(checkpoint.layers[1], name)
        assert finding.offset is not None and span.offset <= finding.offset < span.end


@pytest.mark.parametrize("empty", [-1e30, -np.inf])
def test_dead_slots_may_be_empty_and_hold_anything(empty: float, tmp_path: Path) -> None:
    def clear(il: int, name: str, array: np.ndarray) -> None:  # 130 tokens: two pending in each compressor
        if name.endswith("_score"):
            array[6 if len(array) == 8 else 2 :] = empty
        elif name.endswith("_state_kv"):
            array[6 if len(array) == 8 else 2 :] = np.nan

    assert only(with_layers(tmp_path, clear)).verdict is Verdict.OK


@pytest.mark.parametrize(("slot", "layer"), [(5, 1), (1, 1), (0, 2), (1, 2)])
def test_a_live_slot_that_is_empty_is_damage(slot: int, layer: int, tmp_path: Path) -> None:
    def empty(il: int, name: str, array: np.ndarray) -> None:
        if (il, name) == (layer, "attn_state_score"):
            array[slot] = -1e30

    report = only(with_layers(tmp_path, empty))
    assert (report.verdict, codes(report)) == (Verdict.DAMAGED, ["frontier-empty"])


def test_the_frontier_that_upstreams_gpu_path_loses_is_named_once(tmp_path: Path) -> None:
    def lose(il: int, name: str, array: np.ndarray) -> None:
        if name.endswith("_score") and len(array) == 8:
            array[4:] = -np.inf

    report = only(with_layers(tmp_path, lose, shape=Shape("two", (4, 4, 128), 3, 2, 64, 8)))
    assert (report.verdict, codes(report)) == (Verdict.WARNING, ["gpu-frontier"])
    assert only(with_layers(tmp_path, lose, tokens=132)).verdict is Verdict.OK  # at a multiple of 4 nothing is lost


def test_an_eos_that_was_fed_is_fine_and_so_is_one_in_a_token_text(tmp_path: Path) -> None:
    for fed, kind, expected in (
        (1, "thinking-visible", []),
        (2, "thinking-visible", ["unfed-eos"]),
        (2, "token-text", []),
    ):
        path = save(tmp_path, b"visible" + EOS, ids=[3] * 129 + [fed], key_kind=kind)
        assert codes(only(path)) == expected


# ---- deep and prove


def test_tokens_that_render_to_another_text_are_damage(golden_kv: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    source = next(path for path in sorted((golden_kv / "kv/basic_q2").glob("*.kv")) if path.stat().st_size > 400_000)
    data = source.read_bytes()
    path = tmp_path / source.name
    path.write_bytes(data)
    assert only(path, Level.DEEP, tokenizer=MODEL).verdict is Verdict.OK
    with Checkpoint.open(path) as checkpoint:
        assert checkpoint.payload is not None
        last = checkpoint.payload.token_ids.end - 4
    path.write_bytes(patched(data, (last, (300).to_bytes(4, "little"))))
    report = only(path, Level.DEEP, tokenizer=MODEL)
    assert (report.verdict, codes(report)) == (Verdict.DAMAGED, ["rendering"])
    other = only(save(tmp_path, b"of another vocabulary"), Level.DEEP, tokenizer=MODEL)
    assert (other.verdict, codes(other)) == (Verdict.INCOMPATIBLE, ["other-vocabulary"])


def test_a_state_is_computed_anew_and_another_one_is_told_apart(golden_kv: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch").set_num_threads(1)
    from kvengine import Session, load

    source = min((golden_kv / "kv/basic_q2").glob("*.kv"), key=lambda path: path.stat().st_size)
    wishes = {"model": MODEL, "prove": True, "shape": TINY.ratios}
    foreign = only(source, Level.QUICK, **wishes)
    assert (foreign.verdict, codes(foreign)) == (Verdict.OK, ["proved"]) and "but for roundings" in foreign.findings[
        0
    ].message

    with Checkpoint.open(source, (TINY,)) as checkpoint:
        ids, text = list(checkpoint.token_ids()), checkpoint.text()
    session = Session(load(MODEL), 512)
    session.feed(ids)
    path = tmp_path / source.name
    state = session.state()
    path.write_bytes(built(Contents.from_state(state, text, reason="cold", quant_bits=2, now=1)))
    ours = only(path, Level.QUICK, **wishes)
    assert (ours.verdict, codes(ours)) == (Verdict.OK, ["proved"]) and "to the bit" in ours.findings[0].message

    swapped = replace(state, tokens=state.tokens[::-1].copy())
    path.write_bytes(built(Contents.from_state(swapped, text, reason="cold", quant_bits=2, now=1)))
    wrong = only(path, Level.QUICK, **wishes)
    assert wrong.verdict is Verdict.DAMAGED and "other-state" in codes(wrong)

    other = only(save(tmp_path, b"of another model"), Level.QUICK, model=MODEL)
    assert (other.verdict, codes(other)) == (Verdict.INCOMPATIBLE, ["other-model"])


@pytest.mark.parametrize(
    ("options", "says", "code"),
    [
        (["--deep"], "--deep needs --tokenizer", 2),
        (["--prove"], "--prove needs --model", 2),
        (["--subset", "10"], "is no share; give one such as 10%", 2),
        (["--deep", "--tokenizer", __file__], "cannot be used as a tokenizer", 3),
        (["--model", __file__], "cannot be used as a model", 3),
    ],
)
def test_a_wish_that_cannot_be_met_is_one_sentence(options: list[str], says: str, code: int, tmp_path: Path) -> None:
    run = kvtool("verify", save(tmp_path, b"text"), *options)
    assert run.code == code and says in run.err and "Traceback" not in run.err


# ---- directories


def test_quarantine_moves_what_is_broken_with_its_sidecar_and_nothing_else(tmp_path: Path) -> None:
    directory, ward = tmp_path / "kv", tmp_path / "ward"
    good, bad = save(directory, b"good"), save(directory, b"bad")
    update_sidecar(bad, label="mine")
    whole = bad.read_bytes()
    (directory / "notes.kv").write_bytes(b"not a checkpoint at all, but somebody's")
    for length in (900, 800):
        bad.write_bytes(whole[:length])
        run = kvtool("verify", directory, "--quarantine", ward, "--json")
        assert run.code == 1
        [moved] = [file for file in run.json["files"] if file["quarantined"]]
        assert moved["verdict"] == "truncated" and Path(moved["quarantined"]).stat().st_size == length
    assert sorted(path.name for path in ward.iterdir()) == [f"{bad.stem}.2.kv", bad.name, f"{bad.name}.json"]
    assert {path.name for path in directory.glob("*.kv")} == {good.name, "notes.kv"}
    assert ward.stat().st_mode & 0o77 == 0


@pytest.mark.parametrize("full", [False, True], ids=["moved", "disk full"])
def test_quarantine_on_another_file_system_is_private_all_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    bad = save(tmp_path / "kv", b"bad")
    bad.write_bytes(bad.read_bytes()[:900])
    copy, modes = shutil.copyfile, []

    def copied(source: Path, target: Path, **options: bool) -> None:
        copy(source, target, **options)
        modes.append(Path(target).stat().st_mode & 0o777)
        if full:
            raise OSError(errno.ENOSPC, "no space left on device")

    def elsewhere(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(shutil, "copyfile", copied)
    monkeypatch.setattr(os, "rename", elsewhere)
    before = os.umask(0)
    try:
        set_aside(bad, Stamp.of(bad), tmp_path / "ward")
    except OSError:
        assert full and bad.exists()
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert [path.name for path in (tmp_path / "ward").iterdir()] == ([] if full else [bad.name])


def test_left_overs_of_a_directory_are_orphans(tmp_path: Path) -> None:
    path = save(tmp_path, b"text")
    update_sidecar(path, label="x")
    for name in (f"{path.name}.tmp.4194305", f"{'0' * 40}.kv.json"):
        (tmp_path / name).write_bytes(b"{}")
        age(tmp_path / name, 3600)
    (tmp_path / f"{path.name}.tmp.{os.getpid()}").write_bytes(b"alive")
    (tmp_path / f"{'1' * 40}.kv.json").write_bytes(b"{}")  # young: its file may be about to come
    run = kvtool("verify", tmp_path, "--json")
    assert run.code == 0
    assert run.json["totals"] == {"ok": 1, "orphan": 2}


def test_an_empty_directory_and_a_missing_one(tmp_path: Path) -> None:
    empty = kvtool("verify", tmp_path, "--full", "--json")
    assert (empty.code, empty.json) == (0, {"files": [], "totals": {}})
    assert kvtool("verify", tmp_path / "nowhere").code == 3


def test_a_share_of_the_files_is_another_one_every_time(tmp_path: Path) -> None:
    files = [Path(str(n)) for n in range(50)]
    picks = [sampled(files, 0.1, seed) for seed in range(60)]
    assert {len(pick) for pick in picks} == {5}
    assert {path for pick in picks for path in pick} == set(files)
    assert all(pick == sorted(pick, key=files.index) for pick in picks)
    assert sampled([], 0.1) == [] and sampled(files[:1], 0.01) == files[:1]


def test_reports_come_in_order_and_as_lines(tmp_path: Path) -> None:
    names = sorted(save(tmp_path, b"text %d" % n, 1 + n).name for n in range(12))
    lines = kvtool("verify", tmp_path, "--full", "--jsonl", "--shape", "0,4,128").lines
    assert [Path(line["path"]).name for line in lines] == names
    assert {line["verdict"] for line in lines} == {"ok"}


def test_a_flash_file_is_looked_through_to_its_last_layer(tmp_path: Path) -> None:
    path = tmp_path / f"{text_key(b'flash')}.kv"
    made = contents(b"flash", 130, shape=replace(FLASH, vocab=FLASH.vocab), ctx=1024, ids=range(130))
    data = built(made)
    path.write_bytes(data)
    assert only(path).verdict is Verdict.OK
    with Checkpoint.open(path) as checkpoint:
        comp = checkpoint.layers[42].index_comp
        assert comp is not None
    path.write_bytes(patched(data, (comp.end - 4, b"\0\0\x80\x7f")))
    report = only(path)
    assert "layer 42 index_comp row 31" in report.findings[0].message
    assert json.loads(kvtool("verify", path, "--full", "--json").out)["files"][0]["findings"][0]["verdict"] == "damaged"
