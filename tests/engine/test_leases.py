"""Leases: a file that is written while the session goes on never mixes two timelines.

python -m pytest tests/engine/test_leases.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.helpers import CTX, state_bytes
from kvengine import EngineError, Session
from kvformat import writer
from kvformat.checkpoint import Checkpoint
from kvformat.state import empty_state

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 40), st.integers(0, 479)),
        st.tuples(st.just("mark"), st.just(0), st.just(0)),
        st.tuples(st.just("rewind"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("lease"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("restore"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    ),
    min_size=4,
    max_size=24,
)


@given(operations=OPERATIONS)
@settings(max_examples=settings.default.max_examples // 4, deadline=None)
def test_leases_outlive_every_change_of_the_session(model, prompt, tmp_path_factory, operations):
    """Whatever happens to the session, a file written late from a lease is the state of that lease's moment, and the
    session is what a fresh one becomes by the same chunks."""
    session = Session(model("q2", int8_activations=False), CTX)
    chunks: list[list[int]] = []  # the session's history
    marks, leases = [], []  # with the history at their moment
    for name, number, place in operations:
        if name == "feed" and len(session) + number < CTX:
            chunks.append(prompt[place : place + number])
            session.feed(chunks[-1])
        elif name == "mark" and chunks:
            marks.append((session.mark(), list(chunks)))
        elif name in ("rewind", "lease") and number < len(marks):
            mark, then = marks[number]
            try:
                if name == "rewind":
                    session.rewind(mark)
                    chunks = list(then)
                else:
                    leases.append((session.lease(mark), then))
            except EngineError:
                assert chunks[: len(then)] != then or mark not in session._memory.marks
        elif name == "restore" and number < len(leases):
            lease, then = leases[number]
            session.restore(lease.state)
            chunks = list(then)
        elif name == "clear":
            session.clear()
            chunks = []
    for number, (lease, then) in enumerate(leases):
        assert state_bytes(written_and_read(lease, tmp_path_factory.mktemp("kv"), number)) == replayed(session, then)
    if chunks:
        assert state_bytes(session.state()) == replayed(session, chunks)


def replayed(session: Session, chunks: list[list[int]]) -> bytes:
    fresh = Session(session.model, CTX)
    for chunk in chunks:
        fresh.feed(chunk)
    return state_bytes(fresh.state())


def written_and_read(lease, folder, number):
    path = folder / f"{number:040x}.kv"
    with lease as state:
        contents = writer.Contents.from_state(state, b"text", reason="cold", quant_bits=2, now=0)
        writer.write(path, contents, durable=False)
        read = empty_state(state.shape, len(state.tokens), state.ctx)
    with Checkpoint.open(path, [state.shape]) as checkpoint:
        checkpoint.read_into(read)
    return read


def test_saving_in_the_background_while_the_session_rewinds_below(session, prompt, tmp_path):
    session.feed(prompt[:130])
    low = session.mark()
    session.feed(prompt[130:290])
    here = state_bytes(session.state())
    lease = session.lease()
    rows = lease.memory.layers[2].attn.rows
    with ThreadPoolExecutor(1) as saver:
        session.rewind(low)  # before the save can have ended: only a lease that is held makes it take other buffers
        assert session._memory.layers[2].attn.rows is not rows
        read = saver.submit(written_and_read, lease, tmp_path, 1)
        session.feed(prompt[:200])
        assert state_bytes(read.result()) == here


def test_without_a_lease_a_rewind_keeps_its_buffers(session, prompt):
    session.feed(prompt[:50])
    low, memory = session.mark(), session._memory
    session.feed(prompt[50:100])
    with session.lease() as state:
        assert len(state.tokens) == 100
    session.rewind(low)
    assert session._memory is memory


def test_a_mark_is_small_and_dies_with_its_rows(session, prompt):
    session.feed(prompt[:200])
    early = session.mark()
    session.feed(prompt[200:300])
    late = session.mark()
    assert early.nbytes == late.nbytes
    session.rewind(early)
    with pytest.raises(EngineError, match="has left"):
        session.rewind(late)
    with pytest.raises(EngineError, match="has left"):
        session.lease(late)
    session.rewind(early)  # still there
    session.clear()
    with pytest.raises(EngineError, match="has left"):
        session.rewind(early)
