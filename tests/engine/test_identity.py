"""What a GGUF says of itself without being loaded: whose checkpoints are its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import GOLDEN, TINY
from kvengine import EngineError, identify

MODELS = GOLDEN / "models"


@pytest.mark.parametrize("bits", [2, 4])
def test_shape_and_quant_bits_are_those_of_ds4s_own_files(bits: int) -> None:
    found = identify(MODELS / f"tiny-q{bits}.gguf")
    assert (found.shape.ratios, found.shape.head_dim, found.shape.vocab) == (TINY.ratios, TINY.head_dim, TINY.vocab)
    assert found.quant_bits == bits


def test_the_fingerprint_is_the_content_s_and_not_the_name_s(tmp_path: Path) -> None:
    data = bytearray((MODELS / "tiny-q2.gguf").read_bytes())
    copy, tuned = tmp_path / "copy.gguf", tmp_path / "tuned.gguf"
    copy.write_bytes(data)
    data[-1] ^= 1
    tuned.write_bytes(data)
    same, other = identify(copy).fingerprint, identify(tuned).fingerprint
    assert same == identify(MODELS / "tiny-q2.gguf").fingerprint != other


def test_a_model_without_experts_has_no_quant_bits(tmp_path: Path) -> None:
    path = tmp_path / "dense.gguf"
    path.write_bytes((MODELS / "tiny-q2.gguf").read_bytes().replace(b"ffn_gate_exps", b"ffn_gate_none"))
    with pytest.raises(EngineError, match="no routed experts"):
        identify(path)
