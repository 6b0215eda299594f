"""Every row of the real loader's verdicts as a lookup: same options, same prompt, same context; ours differs where listed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY
from kvformat.errors import KVError
from kvformat.identity import Identity
from kvformat.room import Options
from kvformat.state import SessionState, empty_state
from kvformat.store import Store
from strategies import mutate

# Loaded by the real one, not by ours. The May loader looks at neither byte 7 nor byte 20; an empty key matches everything.
OTHER_MODEL = {*(f"hdr_flip_byte7_bit{bit}" for bit in (0, 2, 3, 5, 6)), "hdr_reserved7=1"}
OTHER_ABI = {*(f"hdr_flip_byte20_bit{bit}" for bit in (0, 1, 3, 4, 6, 7)), "hdr_reserved20=1", "hdr_reserved20=255"}
NOT_OURS = OTHER_MODEL | OTHER_ABI | {"empty_text_key"}

# Loaded by ours, refused by the real one as incompatible, never as damaged.
LARGER_CTX = re.compile(  # written under a larger context than the reader's, yet its tokens fit
    r"hdr_flip_byte1[6-9]_bit\d|hdr_ctx=(4097|8192)|session_ctx=(96|1024|2048|2049|1024_hdr_ctx=1024)"
    r"|payload_u32\[2\]_flip_bit\d+"
)
OTHER_CHUNK = re.compile(r"payload_u32\[3\]_flip_bit\d+")  # upstream itself dropped this check on 2026-05-23
INCOMPATIBLE = {
    LARGER_CTX: {"", "KV checkpoint does not fit current context"},
    OTHER_CHUNK: {"KV checkpoint graph chunk layout does not match current runtime"},
}


@dataclass(frozen=True, slots=True)
class Row:
    """One file, what the real loader restored (tokens, 0: nothing; its reason) and what ours did."""

    name: str
    real: int
    complaint: str
    ours: int
    unchanged: bool


def restore(store: Store, prompt: bytes) -> SessionState | None:
    """What a server does: the first usable candidate that really loads."""
    for match in store.candidates(prompt):
        if match.usable:
            try:
                with store.open(match, prompt) as checkpoint:
                    state = empty_state(TINY, checkpoint.header.tokens, store.ctx)
                    checkpoint.read_into(state)
                    return state
            except KVError:
                continue
    return None


@pytest.fixture(scope="module")
def rows(golden_kv: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    table = json.loads((golden_kv / "edge/kvc_mutations.json").read_bytes())
    base = (golden_kv / f"edge/base_{table['base']}").read_bytes()
    prompt = (golden_kv / "edge/prompt.txt").read_bytes()
    root = tmp_path_factory.mktemp("lookup")
    return list(look_up_all(table, base, prompt, root))


def look_up_all(table: dict[str, Any], base: bytes, prompt: bytes, root: Path) -> Iterator[Row]:
    for number, row in enumerate(table["rows"]):
        mutation = row["mutation"]
        path = root / str(number) / mutation.get("file_name", table["base"])
        path.parent.mkdir()
        path.write_bytes(data := mutate(base, mutation))
        reject, min_tokens, *_ = map(int, row["opts"].split())
        identity = Identity(TINY, quant_bits=2, reject_other_quant=bool(reject))
        store = Store(path.parent, identity, row["ctx"], Options(min_tokens=min_tokens))
        asked = bytes.fromhex(mutation["prompt_hex"]) if "prompt_hex" in mutation else prompt
        state = restore(store, asked)
        complaint = re.fullmatch(r".*: kv cache load failed \S+: (.*) load=.*|.*", row["log"])
        assert complaint
        yield Row(
            row["name"],
            row["loaded"],
            complaint[1] or "",
            0 if state is None else len(state.tokens),
            path.read_bytes() == data,
        )
        path.unlink()


def test_ours_restores_what_the_real_one_restored(rows: list[Row]) -> None:
    assert len(rows) == 667
    assert sum(row.real > 0 for row in rows) > 150
    differing = {row.name for row in rows if row.real and row.ours != row.real}
    assert differing == NOT_OURS
    assert (len(OTHER_MODEL), len(OTHER_ABI)) == (6, 8)


def test_ours_restores_nothing_that_the_real_one_refused_as_damaged(rows: list[Row]) -> None:
    more = [row for row in rows if row.ours and not row.real]
    for row in more:
        complaints = next((c for pattern, c in INCOMPATIBLE.items() if pattern.fullmatch(row.name)), None)
        assert complaints is not None and row.complaint in complaints, row
        assert row.ours == 87
    assert sum(LARGER_CTX.fullmatch(row.name) is not None for row in more) == 47
    assert sum(OTHER_CHUNK.fullmatch(row.name) is not None for row in more) == 22


def test_a_lookup_changes_no_file(rows: list[Row]) -> None:
    assert all(row.unchanged for row in rows)
