"""Coverage-guided fuzzing of everything that reads a file: python tests/fuzz/fuzz_checkpoint.py -max_total_time=60

Needs the extra `fuzz`. Starts from the saved corpus, which --seed writes anew; what it finds goes to a directory that is
named first on the command line, else it is forgotten. Any exception but KVError, and any file that does not come back byte
for byte, is a finding.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
sys.path.insert(0, str(HERE.parent))

try:
    import atheris
except ModuleNotFoundError:
    sys.exit("fuzzing needs atheris: pip install -e '.[fuzz]'")

with atheris.instrument_imports(include=["kvformat", "kvtools", "construct"]):
    from kvformat.checkpoint import Checkpoint
    from kvformat.errors import KVError
    from kvformat.scan import examine
    from kvformat.shapes import Shape
    from kvformat.toolmap import encode_tool_map, find_tool_map, read_tool_map
    from kvformat.writer import Contents, build
    from kvtools.inspecting import inspect_file
    from kvtools.verifying import verify

SMALL = Shape("small", (0, 4, 128), 3, 2, 16, 8)  # the shape of the corpus
FILE = Path(tempfile.mkdtemp(prefix="fuzz-")) / "input.kv"


def test_one_input(data: bytes) -> None:
    FILE.write_bytes(data)
    examine(str(FILE.parent), FILE.name)
    for shapes in ((), (SMALL,)):
        round_trip(data, shapes)
    inspect_file(FILE)
    verify(FILE)
    tool_map(data)


def round_trip(data: bytes, shapes: tuple[Shape, ...]) -> None:
    """What opens comes back byte for byte."""
    try:
        with Checkpoint.open(FILE, shapes) as checkpoint:
            checkpoint.text()
            for _ in checkpoint.tool_pairs():
                pass
            again = io.BytesIO()
            build(Contents.of(checkpoint), again)
            assert again.getvalue() == data, "built other bytes than it parsed"
            checkpoint.token_ids()
            checkpoint.views()
    except KVError:
        pass


def tool_map(data: bytes) -> None:
    """The entries of a map, written again, are the same entries."""
    pairs = list(read_tool_map(io.BytesIO(data), find_tool_map(io.BytesIO(data), 0, len(data))))
    written = encode_tool_map(pairs)
    assert list(read_tool_map(io.BytesIO(written), find_tool_map(io.BytesIO(written), 0, len(written)))) == pairs


def seed() -> None:
    """Write the corpus: the zoo, one short file of each kind of header, payload and trailer, without their long tensors."""
    from strategies import built, plain_state
    from zoo import CALL, TEXT, zoo

    for old in CORPUS.glob("*"):
        old.unlink()
    state = plain_state(Shape("short", (0, 4), 3, 2, 16, 8), tokens=5, ctx=64)
    for generation in (0, 2):
        contents = Contents.from_state(
            state, TEXT, reason="cold", quant_bits=2, now=1, generation=generation, tool_map=CALL
        )
        (CORPUS / f"generation-{generation}").write_bytes(built(contents))
    for specimen in zoo():
        if len(specimen.data) < 500:
            (CORPUS / specimen.name.replace(" ", "-").replace("^", "")).write_bytes(specimen.data)
    (CORPUS / "tool-map").write_bytes(encode_tool_map(CALL))


def main() -> None:
    if sys.argv[1:] == ["--seed"]:
        seed()
        return
    named = [arg for arg in sys.argv[1:] if not arg.startswith("-")]
    places = named or [tempfile.mkdtemp(prefix="fuzz-corpus-")]
    options = [arg for arg in sys.argv[1:] if arg.startswith("-")]
    atheris.Setup([sys.argv[0], *options, *places, str(CORPUS)], test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
