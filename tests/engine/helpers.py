"""Payloads, states and logits for the engine's tests."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch

from kvengine import Session
from kvformat.shapes import Shape
from kvformat.state import SessionState, empty_state

CTX = 1024


def read_payload(path: Path, shape: Shape) -> SessionState:
    """A bare DSV4 payload."""
    data = path.read_bytes()
    words = struct.unpack_from("<13I", data)
    state = empty_state(shape, words[7], words[2])
    offset = 52
    for name, array in state.arrays():
        if name == "layer0.raw":
            offset += 8 * shape.layers  # the counts, which follow from the number of tokens
        array[...] = np.frombuffer(data, array.dtype, array.size, offset).reshape(array.shape)
        offset += array.nbytes
    assert offset == len(data)
    return state


def all_logits(session: Session, tokens: list[int]) -> np.ndarray:
    """Logits after each of the tokens, fed as one chunk."""
    return session.model.logits(session.model.forward(torch.tensor(tokens), session._memory)).numpy()


def state_bytes(state: SessionState) -> bytes:
    return b"".join(array.tobytes() for _, array in state.arrays())
