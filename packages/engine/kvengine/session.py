"""A session: one conversation's state in a model, which is exactly what a DSV4 payload holds.

    feed     tokens in, logits out; chunks end at multiples of prefill_chunk and at the cuts that the caller names
    mark     a copy of the fixed part (raw window, frontiers, logits); rewind returns to it exactly
    lease    a mark with the rows under it: a complete state that stays as it is while the session goes on
    incoming a state that a reader fills in spare buffers; the session changes only when the reader has succeeded

Compressed rows are append-only. That is why a mark needs no copy of them, and why a lease holds until someone wants to
write over its rows: a rewind below it, a restore or a clear then takes other buffers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from kvformat.errors import Mismatch
from kvformat.state import SessionState, empty_state

from .errors import EngineError
from .memory import Memory
from .model import Model
from .sampling import Sampled, Sampler


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Mark:
    """A point of a session to which it can return while its rows are there."""

    length: int
    logits: Tensor
    fixed: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        return self.logits.nbytes + sum(part.nbytes for part in self.fixed)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Lease:
    """A complete state for a reader in the background. Use it as a context, or drop it, to give the rows back."""

    state: SessionState
    memory: Memory

    def __post_init__(self) -> None:
        self.memory.leases[id(self)] = len(self.state.tokens)
        weakref.finalize(self, self.memory.leases.pop, id(self), None)

    def release(self) -> None:
        self.memory.leases.pop(id(self), None)

    def __enter__(self) -> SessionState:
        return self.state

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Session:
    """At most ctx - 1 tokens, since a payload must hold fewer than its context. Not for several threads at once;
    only leases may be read and released elsewhere."""

    def __init__(self, model: Model, ctx: int, prefill_chunk: int = 512) -> None:
        if ctx < 2 or prefill_chunk < 1:
            raise EngineError("a session needs a context of at least 2 tokens and a chunk of at least 1")
        self.model = model
        self.ctx = ctx
        self.prefill_chunk = min(prefill_chunk, ctx)
        self._memory = self._new_memory()
        self._spare: Memory | None = None

    # ---- what it holds

    def __len__(self) -> int:
        return self._memory.length

    @property
    def tokens(self) -> list[int]:
        return list(map(int, self._memory.tokens[: len(self)]))

    @property
    def logits(self) -> Tensor:
        """[V] float32, after the last token."""
        self._needs_tokens()
        return self._memory.logits

    def state(self) -> SessionState:
        """The payload: views of the session's own buffers (copies on CUDA), good until it is fed or changed."""
        self._needs_tokens()
        return self._memory.state(len(self), self._memory.logits, self._memory.fixed())

    # ---- forward

    def feed(
        self,
        tokens: Iterable[int],
        *,
        cuts: Iterable[int] = (),
        progress: Callable[[int, int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> int:
        """Process tokens and return how many were; fewer only if `stop` said so, which is asked before each chunk.

        A chunk ends at each position in `cuts` (session lengths), so that a mark can be taken there: `progress(done,
        total)` is called after each chunk with the session complete up to it. If the model fails the session is empty.
        """
        ids = torch.as_tensor(list(tokens), dtype=torch.long)
        start, end = len(self), len(self) + len(ids)
        if end >= self.ctx:
            raise EngineError("the tokens do not fit", expected=f"at most {self.ctx - 1}", found=end)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.model.config.vocab:
            raise EngineError("a token id is outside the vocabulary", expected=f"below {self.model.config.vocab}")
        for first, last in self._chunks(start, end, cuts):
            if stop is not None and stop():
                return first - start
            self._step(ids[first - start : last - start])
            if progress is not None:
                progress(last - start, end - start)
        return end - start

    def sample(self, sampler: Sampler, *, greedy: bool = False, top: int = 0) -> Sampled:
        """Draw the next token; it is not fed. `greedy` overrides the sampler this time (protocol syntax)."""
        return sampler.draw(self.logits, greedy=greedy, top=top)

    # ---- back

    def mark(self) -> Mark:
        """Remember this point. The cost is one copy of the fixed part, whatever the length."""
        memory = self._memory
        mark = Mark(memory.length, memory.logits.clone(), tuple(part.clone() for part in memory.fixed()))
        memory.marks.add(mark)
        return mark

    def rewind(self, mark: Mark) -> None:
        """Return to the mark exactly. Raises EngineError if the session has since gone back below it or was replaced."""
        if mark not in self._memory.marks:
            raise EngineError("this mark belongs to a state that the session has left")
        if max(self._memory.leases.values(), default=0) > mark.length:
            self._leave_for_copy(mark.length)
        memory = self._memory
        memory.reset(mark.length)
        memory.logits.copy_(mark.logits)
        for mine, marked in zip(memory.fixed(), mark.fixed, strict=True):
            mine.copy_(marked)
        for later in [other for other in memory.marks if other.length > mark.length]:
            memory.marks.discard(later)

    def clear(self) -> None:
        """Forget everything."""
        if self._memory.leases:
            self._memory, self._spare = self._take_spare(), self._memory
        self._memory.marks.clear()
        self._memory.reset(0)

    def lease(self, mark: Mark | None = None) -> Lease:
        """The complete state at the mark (now, if none is given), to be saved in the background."""
        mark = mark or self.mark()
        if mark not in self._memory.marks:
            raise EngineError("this mark belongs to a state that the session has left")
        self._needs_tokens()
        return Lease(self._memory.state(mark.length, mark.logits, mark.fixed), self._memory)

    # ---- from elsewhere

    @contextmanager
    def incoming(self, length: int) -> Iterator[SessionState]:
        """A state of `length` tokens to be filled by a reader; when the block ends without an error the session is it.

        Logits that are all zero were not saved: the last token is fed again for them.

        with session.incoming(len(checkpoint.token_ids())) as state:
            checkpoint.read_into(state)
        """
        if not 0 < length < self.ctx:
            raise EngineError("the state does not fit", expected=f"1..{self.ctx - 1} tokens", found=length)
        spare = self._take_spare()
        spare.reset(length)
        through_views = self.model.device.type == "cpu"
        views = spare.state(length, spare.logits, spare.fixed()) if through_views else None
        state = views or empty_state(spare.shape, length, self.ctx)
        yield state
        if int(state.tokens.max()) >= self.model.config.vocab:
            raise EngineError("the state holds a token outside the vocabulary", found=int(state.tokens.max()))
        if not through_views:
            spare.load(state)
        if not spare.logits.any():
            with spare.again():
                self._forward(torch.from_numpy(state.tokens[-1:].astype(np.int64)), spare)
        self._memory, self._spare = spare, self._memory

    def restore(self, state: SessionState) -> None:
        """Become a copy of `state`. Raises Mismatch, and stays as it is, if the state is of another shape."""
        state.check()
        if state.shape.ratios != self._memory.shape.ratios:
            raise Mismatch(
                "the state is of another model", expected=self._memory.shape.ratios, found=state.shape.ratios
            )
        with self.incoming(len(state.tokens)) as target:
            for (_, mine), (name, theirs) in zip(target.arrays(), state.arrays(), strict=True):
                if mine.shape != theirs.shape:
                    raise Mismatch(f"{name} is of another model", expected=mine.shape, found=theirs.shape)
                np.copyto(mine, theirs)

    # ---- inside

    def _chunks(self, start: int, end: int, cuts: Iterable[int]) -> Iterator[tuple[int, int]]:
        # Multiples of the chunk, not distances from the start: where a run was interrupted must not move later borders.
        regular = range(start // self.prefill_chunk * self.prefill_chunk, end, self.prefill_chunk)
        borders = sorted({start, end, *(p for p in (*regular, *cuts) if start < p < end)})
        return pairwise(borders)

    def _step(self, ids: Tensor) -> None:
        memory = self._memory
        memory.tokens[len(self) : len(self) + len(ids)] = ids.numpy()
        try:
            self._forward(ids, memory)
        except BaseException:
            self.clear()  # some layers have seen the chunk and some have not
            raise

    def _forward(self, ids: Tensor, memory: Memory) -> None:
        streams = self.model.forward(ids.to(self.model.device), memory)
        memory.logits.copy_(self.model.logits(streams[-1:])[0])

    def _needs_tokens(self) -> None:
        if not len(self):
            raise EngineError("the session is empty")

    def _new_memory(self) -> Memory:
        return Memory(self.model.config.shape, self.ctx, self.prefill_chunk, self.model.device)

    def _take_spare(self) -> Memory:
        """Buffers that nobody reads. Kept from the last swap where possible, since fresh pages are dear."""
        spare, self._spare = self._spare, None
        if spare is None or spare.leases:
            return self._new_memory()
        spare.marks.clear()
        return spare

    def _leave_for_copy(self, length: int) -> None:
        """Go on in other buffers that agree with these up to `length`, and take the marks up to there along."""
        old, new = self._memory, self._take_spare()
        new.reset(length)
        new.copy_rows(old, length)
        new.marks.update(mark for mark in old.marks if mark.length <= length)
        self._memory, self._spare = new, old
