"""What we know about a checkpoint that its bytes must not carry: `<sha1>.kv.json` beside it, which ds4 never reads.

One JSON object with the keys of `Sidecar`, absent where empty; unknown keys survive. Written atomically, removed with its
checkpoint, swept when orphaned.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvformat.durable import remove_durably, replace_durably
from kvformat.errors import Damaged

SUFFIX = ".json"
MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Sidecar:
    """`fingerprint` of the weights that made the state; `checksum` of the parts that never change; a person's `pin` and `label`."""

    fingerprint: str = ""
    checksum: str = ""
    pin: bool = False
    label: str = ""


def sidecar_path(checkpoint: Path) -> Path:
    return checkpoint.with_name(checkpoint.name + SUFFIX)


def read_sidecar(checkpoint: Path) -> Sidecar:
    """The sidecar of a checkpoint; an empty one if there is none. Raises Damaged for one that is no JSON object."""
    known = _read(sidecar_path(checkpoint))
    return Sidecar(**{f.name: known[f.name] for f in fields(Sidecar) if isinstance(known.get(f.name), type(f.default))})


def update_sidecar(checkpoint: Path, **changes: Any) -> Sidecar:
    """Change some fields and keep the rest, unknown keys included. A sidecar that says nothing any more goes."""
    path = sidecar_path(checkpoint)
    known = _read(path) | changes
    empty = [f.name for f in fields(Sidecar) if not known.get(f.name)]
    if said := {key: known[key] for key in known if key not in empty}:
        data = json.dumps(said, ensure_ascii=False).encode()
        replace_durably(path, len(data), lambda file: file.write(data))
    else:
        remove_durably(path)
    return read_sidecar(checkpoint)


def remove_sidecar(checkpoint: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        sidecar_path(checkpoint).unlink()


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            known = json.loads(file.read(MAX_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Damaged(f"the sidecar cannot be read: {error}", path=path, remedy="delete it") from None
    if not isinstance(known, dict):
        raise Damaged("the sidecar is not a JSON object", path=path, remedy="delete it")
    return known
