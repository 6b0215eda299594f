"""A session that was restored, rewound or interrupted is the session that never was, to the bit.

python -m pytest tests/engine/test_session.py
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from engine.helpers import CTX, state_bytes
from kvengine import EngineError, Session
from kvformat.errors import Mismatch
from kvformat.state import empty_state

LAST = 300


@pytest.fixture(params=["q2", "q4"])
def plain(request, model):
    """Both golden models in float32 with the roundings of KV rows, the engine's default."""
    return model(request.param, int8_activations=False)


def copied(state):
    """A state that shares nothing with the session."""
    copy = empty_state(state.shape, len(state.tokens), state.ctx)
    for (_, to), (_, source) in zip(copy.arrays(), state.arrays(), strict=True):
        to[...] = source
    return copy


def test_at_every_boundary_restoring_and_rewinding_change_no_bit(plain, prompt):
    """Three runs cut alike: one that never stops, one that marks, leases, runs ahead and rewinds, one restored there."""
    never, walker, restored = (Session(plain, CTX) for _ in range(3))
    for boundary in range(1, LAST + 1):
        token, ahead = prompt[boundary - 1 : boundary], prompt[boundary : boundary + 7]
        never.feed(token)
        walker.feed(token)
        assert torch.equal(walker.logits, never.logits)
        here = state_bytes(walker.state())
        mark = walker.mark()
        lease = walker.lease(mark)

        restored.restore(lease.state)
        assert state_bytes(restored.state()) == here
        for run in (walker, restored):
            run.feed(ahead[:5])
            run.feed(ahead[5:])
        assert state_bytes(walker.state()) == state_bytes(restored.state())
        assert state_bytes(lease.state) == here
        walker.rewind(mark)
        assert state_bytes(walker.state()) == here
        lease.release()
    assert state_bytes(never.state()) == state_bytes(walker.state())


def test_cuts_and_interruptions_make_the_same_chunks(session, prompt):
    """A feed with cuts is bit-equal to feeds that end there, wherever prefill_chunk puts its own borders."""
    session.prefill_chunk = 64
    marks = []
    session.feed(prompt[:LAST], cuts=[10, 100, 128, 299], progress=lambda done, total: marks.append(done))
    assert marks == [10, 64, 100, 128, 192, 256, 299, 300]
    other = Session(session.model, CTX, prefill_chunk=64)
    for first, last in pairwise([0, 10, 100, 128, 299, 300]):
        other.feed(prompt[first:last])
    assert state_bytes(other.state()) == state_bytes(session.state())


def test_stop_leaves_a_complete_session(session, prompt):
    session.prefill_chunk = 32
    asked = iter([False, False, True])
    assert session.feed(prompt[:200], stop=lambda: next(asked)) == 64
    other = Session(session.model, CTX, prefill_chunk=32)
    other.feed(prompt[:64])
    assert state_bytes(session.state()) == state_bytes(other.state())


def test_any_chunking_gives_the_same_bits_with_int8_activations(model, prompt):
    one = Session(model("q2"), CTX, prefill_chunk=CTX)
    one.feed(prompt[:LAST])
    rng = np.random.default_rng(5)
    for size in (1, 2, 7, 64, 129, None):
        borders = sorted({0, LAST, *rng.integers(1, LAST, 12)}) if size is None else [*range(0, LAST, size), LAST]
        other = Session(one.model, CTX, prefill_chunk=CTX)
        for first, last in pairwise(borders):
            other.feed(prompt[first:last])
        assert state_bytes(other.state()) == state_bytes(one.state()), size


@pytest.mark.parametrize("kind", ["q2", "q4"])
def test_any_chunking_gives_the_same_greedy_token_in_plain_float32(model, prompt, kind):
    plain = model(kind, int8_activations=False, kv_rounding=False)

    def logits(chunk: int) -> np.ndarray:
        session, rows = Session(plain, CTX, prefill_chunk=chunk), []
        for first in range(0, LAST, chunk):
            rows.append(
                plain.logits(plain.forward(torch.tensor(prompt[first : first + chunk][:LAST]), session._memory))
            )
        return torch.cat(rows)[:LAST].numpy()

    whole = logits(LAST)
    top = np.partition(whole, -2)[:, -2:]
    clear = top[:, 1] - top[:, 0] > 1e-3
    assert clear.sum() > 280
    for chunk in (1, 5, 64, 100):
        assert np.array_equal(logits(chunk).argmax(1)[clear], whole.argmax(1)[clear])


# ---- what comes from elsewhere


def test_a_reader_that_fails_leaves_the_session_alone(session, prompt):
    session.feed(prompt[:77])
    mark, before = session.mark(), state_bytes(session.state())
    with pytest.raises(OSError, match="disk"), session.incoming(200) as state:
        state.layers[0].raw[...] = 7
        raise OSError("disk")
    assert state_bytes(session.state()) == before
    session.rewind(mark)
    assert state_bytes(session.state()) == before


def test_logits_that_were_not_saved_are_those_of_the_last_token_fed_again(plain, prompt):
    """At every boundary, those where a window closes among them; nothing else of the state changes."""
    source, restored = Session(plain, CTX), Session(plain, CTX)
    for boundary in range(1, LAST + 1):
        source.feed(prompt[boundary - 1 : boundary])
        bare = copied(source.state())
        bare.logits[...] = 0
        restored.restore(bare)
        assert state_bytes(restored.state()) == state_bytes(source.state())


def test_restore_reuses_two_sets_of_buffers(session, prompt):
    session.feed(prompt[:90])
    saved = copied(session.state())
    first = session._memory
    session.restore(saved)
    second = session._memory
    session.restore(saved)
    assert session._memory is first
    session.restore(saved)
    assert session._memory is second


def test_a_foreign_state_is_refused(session, prompt):
    session.feed(prompt[:20])
    before = state_bytes(session.state())
    state = copied(session.state())
    state.tokens[3] = 640
    with pytest.raises(EngineError, match="vocabulary"):
        session.restore(state)
    other = empty_state(type(state.shape)("other", (0, 4), 64, 32, 10, 8), 5, CTX)
    with pytest.raises(Mismatch, match="another model"):
        session.restore(other)
    assert state_bytes(session.state()) == before


def test_what_does_not_fit_is_refused_in_a_sentence(session, prompt):
    with pytest.raises(EngineError, match="empty"):
        session.state()
    with pytest.raises(EngineError, match="empty"):
        session.lease()
    with pytest.raises(EngineError, match="do not fit"):
        session.feed([1] * CTX)
    with pytest.raises(EngineError, match="vocabulary"):
        session.feed([640])
    with pytest.raises(EngineError, match="does not fit"), session.incoming(CTX):
        pass
    assert session.feed([]) == 0 and len(session) == 0


def test_a_failing_model_leaves_an_empty_session(session, prompt, monkeypatch):
    session.feed(prompt[:30])
    mark = session.mark()
    monkeypatch.setattr(type(session.model.layers[3].experts), "__call__", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.feed(prompt[30:40])
    assert len(session) == 0
    with pytest.raises(EngineError, match="has left"):
        session.rewind(mark)
