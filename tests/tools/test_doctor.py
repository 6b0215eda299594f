"""`kvtool doctor`: each ailment is found, named with its files, and not found where it is not."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from kvformat.durable import LOCK_NAME
from kvformat.sidecar import update_sidecar
from kvtools import doctoring, examinations, mounts
from kvtools.doctoring import Ailment, Diagnosis
from kvtools.surveying import survey
from strategies import plain_file
from tools_kit import kvtool, save, save_many
from zoo import zoo

GIB = 1 << 30
DEAD = 4_194_305  # above every process id of Linux and macOS


@pytest.fixture
def kv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A healthy directory: private, and, as far as the doctor can see, not in a temporary place."""
    monkeypatch.setattr(examinations, "why_volatile", lambda directory: None)
    directory = tmp_path / "kv"
    directory.mkdir(mode=0o700)
    save(directory, b"sound")
    return directory


def diagnosed(directory: Path, budget: int = 4 * GIB) -> Diagnosis:
    return doctoring.diagnose(survey(directory, time.time()), budget, examinations.ALL)


def found(directory: Path, budget: int = 4 * GIB) -> dict[str, Ailment]:
    return {ailment.code: ailment for ailment in diagnosed(directory, budget).ailments}


def old(path: Path, data: bytes = b"{}") -> Path:
    path.write_bytes(data)
    os.utime(path, (time.time() - 3600,) * 2)
    return path


def test_a_healthy_directory_and_an_empty_one(kv: Path) -> None:
    update_sidecar(next(kv.glob("*.kv")), pin=True)
    assert found(kv) == {}
    run = kvtool("doctor", kv)
    assert (run.code, run.out) == (0, "nothing is wrong with it\n")
    shutil.rmtree(kv)
    assert kvtool("doctor", kv).code == 3
    kv.mkdir(mode=0o700)
    assert found(kv) == {}


def test_prompts_that_others_can_read(kv: Path) -> None:
    for path in kv.glob("*.kv"):
        path.chmod(0o644)
    assert found(kv) == {}  # nobody gets through the directory
    kv.chmod(0o750)
    ailment = found(kv)["permissions"]
    assert "750" in ailment.message and ailment.files == tuple(path.name for path in kv.glob("*.kv"))
    subprocess.run(ailment.remedy, shell=True, check=True)
    assert found(kv) == {}


@pytest.mark.parametrize(
    ("table", "place", "kind"),
    [
        ("/dev/vda / ext4 rw\ntmpfs /mnt/fast tmpfs rw\n", "/mnt/fast/kv", "tmpfs"),
        ("/dev/vda / ext4 rw\ntmpfs /mnt tmpfs rw\n/dev/vdb /mnt/disk xfs rw\n", "/mnt/disk/kv", "xfs"),
        ("/dev/vda / ext4 rw\ntmpfs /mnt/two\\040words tmpfs rw\n", "/mnt/two words/kv", "tmpfs"),
        ("/dev/vda /mnt ext4 rw\ntmpfs /mnt tmpfs rw\n", "/mnt/kv", "tmpfs"),
        ("/dev/vda / ext4 rw\ntmpfs /mnt tmpfs rw\n", "/mntx/kv", "ext4"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(table: str, place: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(table)
    assert mounts.file_system(Path(place), tmp_path / "mounts") == kind


def test_without_a_mount_table_only_the_place_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mounts.file_system(tmp_path, tmp_path / "none") is None
    monkeypatch.setattr(mounts, "file_system", lambda place: None)
    monkeypatch.setattr(mounts.tempfile, "gettempdir", lambda: str(tmp_path))
    assert f"below {tmp_path}" in str(mounts.why_volatile(tmp_path / "kv"))
    monkeypatch.setattr(mounts.tempfile, "gettempdir", lambda: "/nowhere")
    assert mounts.why_volatile(Path("/home/somebody/kv")) is None


def test_a_temporary_place_is_a_problem(kv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examinations, "why_volatile", mounts.why_volatile)
    monkeypatch.setattr(mounts, "file_system", lambda place: "tmpfs")
    assert "restart" in found(kv)["volatile"].message


def test_the_budget_against_what_lies_there_and_against_the_disk(kv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = found(kv, budget=1 << 10)["over-budget"]
    assert "kvtool prune" in over.remedy
    monkeypatch.setattr(doctoring.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1 << 20))
    assert "1.00 MiB left" in found(kv)["disk-full"].message
    assert kvtool("doctor", kv, "--budget", "500K").code == 0


def test_bytes_that_no_budget_counts(kv: Path) -> None:
    (kv / "notes.txt").write_bytes(bytes(1 << 20))
    (kv / "sub").mkdir()
    (kv / "sub" / "file").write_bytes(bytes(1 << 20))
    ailment = found(kv)["uncounted"]
    assert "2.00 MiB" in ailment.message and set(ailment.files) == {"notes.txt", "sub"}
    assert kvtool("doctor", kv).code == 0  # a note


def test_left_overs_and_damage_and_what_mends_them(kv: Path) -> None:
    sound = next(kv.glob("*.kv"))
    lost = {old(kv / f"{'1' * 40}.kv.tmp.{DEAD}"), old(kv / f"{'2' * 40}.kv.json")}
    cut = old(kv / f"{'3' * 40}.kv", sound.read_bytes()[:-9])
    ailments = found(kv)
    assert set(ailments["orphans"].files) == {path.name for path in lost}
    assert ailments["damaged"].files == (cut.name,)
    assert kvtool("doctor", kv).code == 1
    assert kvtool("prune", kv, "--orphans", "--damaged", "--apply").code == 0
    assert found(kv) == {} and sound.exists()


def test_two_writers_show_by_their_temps_or_by_our_lock(kv: Path) -> None:
    temp = kv / f"{'1' * 40}.kv.tmp.{os.getpid()}"
    temp.write_bytes(b"x")
    assert "two-writers" not in found(kv)
    with (kv / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert str(os.getpid()) in found(kv)["two-writers"].message
    assert "two-writers" not in found(kv)
    temp.with_name(f"{'2' * 40}.kv.tmp.{os.getppid()}.abcd").write_bytes(b"x")
    assert "at once" in found(kv)["two-writers"].message
    temp.with_name(f"{'2' * 40}.kv.tmp.{os.getppid()}.abcd").rename(temp.with_name(f"{'2' * 40}.kv.tmp.{DEAD}"))
    assert "two-writers" not in found(kv)


def test_the_lock_of_a_store_of_ours_with_its_own_temp_is_no_second_writer(kv: Path) -> None:
    (kv / f"{'1' * 40}.kv.tmp.{os.getpid()}.abcd").write_bytes(b"x")
    with (kv / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "two-writers" not in found(kv)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_several_users_and_a_directory_of_another(kv: Path) -> None:
    os.chown(next(kv.glob("*.kv")), 12345, -1)
    assert "12345" in found(kv)["two-users"].message
    os.chown(kv, 12345, -1)
    assert "owner" in found(kv)


def test_times_in_the_future(kv: Path) -> None:
    ahead = int(time.time()) + 86400
    early = save(kv, b"early", created=ahead)
    touched = save(kv, b"touched", last_used=ahead)
    copied = save(kv, b"copied")
    os.utime(copied, (ahead, ahead))
    near = save(kv, b"near", last_used=int(time.time()) + 60)
    ailment = found(kv)["clock"]
    assert set(ailment.files) == {early.name, touched.name, copied.name} and near.name not in ailment.files


def test_builds_models_and_contexts_that_do_not_go_together(kv: Path) -> None:
    sound = next(kv.glob("*.kv"))
    may = kv / plain_file(0).name
    may.write_bytes(plain_file(0).data)
    ailments = found(kv)
    assert ailments["mixed-builds"].files == (may.name,)
    assert "512 to 1024" in ailments["mixed-contexts"].message
    sound.unlink()
    assert found(kv).keys() == {"old-build", "uncounted"}
    save(kv, b"other", quant_bits=4, ctx=512)
    assert "model 0 at 2 bits, model 0 at 4 bits" in found(kv)["mixed-models"].message


def test_files_of_others_are_named_by_class_and_never_with_a_delete(kv: Path) -> None:
    others = [specimen for specimen in zoo() if specimen.verdict == "other-dialect"]
    for number, specimen in enumerate(others):
        (kv / f"{number:040x}.{specimen.file_name.rpartition('.')[2]}").write_bytes(specimen.data)
    ailments = found(kv)
    classes = [ailments[code] for code in ("other-models", "forks", "unknown-dialect")]
    assert (
        sum(len(ailment.files) for ailment in classes)
        == len({name for a in classes for name in a.files})
        == len(others)
    )
    for ailment in classes:
        assert ailment.severity == "note" and not {"prune", "rm", "delete"} & set(ailment.remedy.split())
    assert "reads them, counts them" in ailments["other-models"].message
    for who in ("Entrpi's ds4", "ds4-dfm", "zhc105's ds4", "pulsar"):
        assert who in ailments["forks"].message
    assert "may be deleted" not in kvtool("doctor", kv).out


def test_a_build_that_deletes_what_it_cannot_read(kv: Path) -> None:
    theirs = [specimen for specimen in zoo() if specimen.name.startswith("zhc105")]
    assert len(theirs) == 3
    for specimen in theirs:
        for path in kv.iterdir():
            path.unlink()
        path = kv / f"{'e' * 40}.{specimen.file_name.rpartition('.')[2]}"
        path.write_bytes(specimen.data)
        assert "deletes-others" not in found(kv)  # among its own
        sound = save(kv, b"ours")
        warning = found(kv)["deletes-others"]
        assert (warning.severity, warning.files) == ("problem", (sound.name,))


def test_files_that_no_running_build_can_read(kv: Path) -> None:
    one_day = plain_file(0).contents.header._replace(model_id=1)
    (kv / f"{'f' * 40}.kv").write_bytes(one_day.encode() + plain_file(0).data[52:])
    assert found(kv)["no-build"].files == (f"{'f' * 40}.kv",)


def test_what_the_system_hides(kv: Path) -> None:
    (kv / f"{'1' * 40}.kv").symlink_to(kv / f"{'1' * 40}.kv")
    assert found(kv)["unreadable"].files == (f"{'1' * 40}.kv",)


def test_a_directory_with_conversations_is_not_called_disposable(kv: Path) -> None:
    kv.chmod(0o755)
    assert diagnosed(kv).disposable and "may be deleted" in kvtool("doctor", kv).out
    save(kv, b"session", reason=6)
    assert not diagnosed(kv).disposable and "do not delete the whole directory" in kvtool("doctor", kv).out


def test_five_thousand_files(kv: Path) -> None:
    save_many(kv, (b"text %d" % n for n in range(5000)))
    assert found(kv).keys() <= {"clock", "mixed-contexts"}  # the kit's files are of 2027


def test_lines_for_programs(kv: Path) -> None:
    kv.chmod(0o755)
    (kv / "notes.txt").write_text("x")
    run = kvtool("doctor", kv, "--jsonl")
    assert [(line["severity"], line["code"]) for line in run.lines] == [
        ("problem", "permissions"),
        ("note", "uncounted"),
    ]
    assert kvtool("doctor", kv, "--json").json["ailments"] == run.lines
