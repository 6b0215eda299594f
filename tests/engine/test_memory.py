"""Buffers that grow, and states that are copied in: what CUDA needs, shown on the CPU; and the CUDA path where there is one.

python -m pytest tests/engine/test_memory.py
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.helpers import state_bytes
from kvengine import Numerics, Session, load
from kvengine.memory import Memory, Window

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
CTX = 512


@pytest.fixture
def session(model) -> Session:
    return Session(model("q2", int8_activations=False), CTX)


def test_a_window_keeps_order_however_it_is_filled():
    window = Window(8, chunk=5, dim=1, device=torch.device("cpu"))
    rows = torch.arange(200.0)[:, None]
    start = 0
    for size in [5, 1, 1, 1, 3, 5, 5, 2, 1, 4] * 6:
        seen = window.append(rows[start : start + size])
        assert torch.equal(seen, rows[max(0, start - 7) : start + size])
        start += size
        assert torch.equal(window.last(min(8, start)), rows[max(0, start - 8) : start])


def test_rows_that_grow_change_nothing(session, prompt):
    session.feed(prompt[:300])
    growing = Session(session.model, CTX)
    for layer in growing._memory.layers:
        for stream in layer.streams:
            stream.rows = stream.rows[:0].clone()
    growing.feed(prompt[:100])
    mark = growing.mark()
    growing.feed(prompt[100:300])
    growing.rewind(mark)
    growing.feed(prompt[100:300])
    other = Session(session.model, CTX)
    other.feed(prompt[:300], cuts=[100])
    assert state_bytes(growing.state()) == state_bytes(other.state())
    assert len(growing._memory.layers[2].attn.rows) < CTX // 4


def test_a_state_that_is_copied_in_is_the_state(session, prompt):
    session.feed(prompt[:150])
    memory = Memory(session.model.config.shape, CTX, 8, torch.device("cpu"))
    memory.reset(150)
    memory.load(session.state())
    assert state_bytes(memory.state(150, memory.logits, memory.fixed())) == state_bytes(session.state())


def test_the_payload_has_the_size_that_the_shape_says(session, prompt):
    for length in (1, 15, 16, 17, 127, 128, 300):
        session.clear()
        session.feed(prompt[:length])
        state = session.state()
        state.check()
        counted = 52 + 8 * state.shape.layers + sum(array.nbytes for _, array in state.arrays())
        assert counted == state.shape.payload_bytes(length)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_computes_the_same(model, prompt):
    plain = model("q2", int8_activations=False, kv_rounding=False)
    device = load(GOLDEN / "tiny-q2.gguf", Numerics(kv_rounding=False), device="cuda")
    here, there = Session(plain, CTX), Session(device, CTX)
    for run in (here, there):
        run.feed(prompt[:300])
    torch.testing.assert_close(there.logits.cpu(), here.logits, rtol=1e-3, atol=1e-3)
    mark = there.mark()
    saved = state_bytes(there.state())
    there.feed(prompt[:50])
    there.rewind(mark)
    there.restore(there.state())
    assert state_bytes(there.state()) == saved
