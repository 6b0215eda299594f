"""One request from its conversation to its answer: render, plan, take the state up, prefill, generate, keep.

Runs in the engine's thread. What it leaves for the next request are points: the places where clients come back, each with the
text that they will then send.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvformat.errors import KVError
from kvformat.policy import Knobs, Reason
from kvformat.store import Match, Store
from kvprompt.conversation import Conversation, Dialect
from kvprompt.keys import Key
from kvprompt.markers import EOS
from kvprompt.render import RenderedPrompt
from kvprompt.replay import Source

from .errors import Refused
from .generation import Answer, Draw, Shower, finished, generate
from .keeping import Keeper, Told
from .loading import Loaded
from .places import cold_points, frontiers, returns
from .plan import SHORT, Plan, decide
from .prompting import Prompts
from .slots import Slot, Slots
from .stopwatch import Stopwatch
from .trace import Trace
from .track import Track
from .window import Window
from .wire import Failed, Finished, Job, Metric, Started, Usage

log = logging.getLogger("kvserver")


@dataclass(frozen=True, slots=True)
class Work:
    """A request under way. `suffix` are the tokens that the state still lacks; `track` maps bytes to tokens from its start."""

    job: Job
    prompt: RenderedPrompt
    plan: Plan
    suffix: list[int]
    track: Track
    usage: Usage
    continues: bool  # the client sent results only; the rest of the prompt is what the slot knows

    @property
    def slot(self) -> Slot:
        return self.plan.target


class Serving:
    """All that outlives a request: slots, store, prompts, counters."""

    def __init__(
        self,
        loaded: Loaded,
        slots: Slots,
        store: Store | None,
        prompts: Prompts,
        knobs: Knobs,
        draw: Callable[[Conversation], Draw],
        trace: Trace | None,
    ) -> None:
        self.tokenizer = loaded.tokenizer
        self.slots = slots
        self.store = store
        self.prompts = prompts
        self.context = prompts.style.context
        self.window = Window(loaded.tokenizer, self.context)
        self.knobs = knobs
        self.keeper = Keeper(slots, store, knobs, loaded.tokenizer, prompts)
        self.sources: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self._draw = draw
        self._trace = trace
        (self._eos,) = self.tokenizer.encode_chat(EOS.encode())

    def serve(self, job: Job, stopping: Callable[[], bool]) -> None:
        """Answer one job. Raises Refused for what the client must be told; any other error is a fault of ours."""
        watch = Stopwatch()
        prompt, continues = self.prompts.render(job.conversation, self.slots)
        work = self._take_up(job, prompt, continues)
        watch.lap()
        job.send(Started(work.usage))
        work = self._prefill_or_retry(work, stopping)
        watch.lap()
        answer, done = self._answer(work, stopping)
        job.send(done)
        watch.lap()
        self._keep(work, answer, done)
        self._report(work, answer, done, watch)

    def count_tokens(self, conversation: Conversation) -> int:
        """How many tokens the prompt would have. Any thread may ask."""
        prompt, _ = self.prompts.render(conversation, self.slots)
        return self.tokenizer.count_chat(prompt.text)

    def read_ahead(self, conversation: Conversation) -> None:
        """Tokenise a prompt in the caller's thread; the engine's will find it done. Raises Refused if it cannot fit."""
        prompt, _ = self.prompts.render(conversation, self.slots)
        self.window.read_ahead(prompt.text)

    def metrics(self) -> Iterator[Metric]:
        """Counters since the start. Any thread may ask: what the saver counts is copied before it is read."""
        yield Metric("requests_total", "Requests by where they started.", dict(self.sources), "source")
        yield Metric("tokens_total", "Tokens cached, prefilled and generated.", dict(self.tokens), "kind")
        saves = {f"{reason} {status}": count for (reason, status), count in self.keeper.outcomes.copy().items()}
        yield Metric("saves_total", "Checkpoints by reason and outcome.", saves, "save")
        if self.store is not None:
            written = {reason.name.lower(): count for reason, count in self.store.ledger.written.copy().items()}
            yield Metric("written_bytes_total", "Bytes of checkpoints written, by reason.", written, "reason")
            yield Metric("evicted_total", "Checkpoints deleted to make room.", {"": self.store.room.evicted})

    # ---- the state

    def _take_up(self, job: Job, prompt: RenderedPrompt, continues: bool) -> Work:
        """Decide where to start, and go there. A file that is still being written is waited for, one that fails is left out."""
        while True:
            plan = decide(prompt.text, self.slots, self.store)
            if self.keeper.catch_up(prompt.text, plan.start):
                continue
            suffix = self.window.fit(prompt.text, start=plan.start_bytes, cached=plan.start)
            try:
                self._go_to(plan, prompt.text)
            except KVError as error:
                if plan.match is None:
                    raise
                self._give_up(plan.match, error.problem)
                continue
            if plan.disk:
                log.info("%s", plan.disk)
            slot = plan.target
            slot.dialect = job.conversation.dialect
            track = Track(len(slot), plan.start_bytes)
            track.extend(len(self.tokenizer.token_bytes[id]) for id in suffix)
            return Work(job, prompt, plan, suffix, track, Usage(track.tokens, plan.start), continues)

    def _give_up(self, match: Match, why: str) -> None:
        assert self.store is not None
        if match.path.exists():  # one that vanished may come back
            self.store.mark_bad(match, why)

    def _go_to(self, plan: Plan, prompt: bytes) -> None:
        """Bring the target slot to the plan's start. What it held is saved first where that would be lost."""
        slot, point = plan.target, plan.point
        if plan.displaces:
            self.keeper.evict(slot, prompt)
        if plan.source in ("live", "rewind"):
            assert point is not None
            if len(slot) != point.length:
                slot.rewind(point)
        else:
            self._fill(plan, prompt)
        if len(prompt) > SHORT:
            self.slots.promote(slot)
        self.slots.touch(slot, slot.end)

    def _fill(self, plan: Plan, prompt: bytes) -> None:
        if plan.match is not None:
            self._restore(plan.target, plan.match, prompt)
        elif plan.origin is not None and plan.point is not None:
            self.slots.copy(plan.origin, plan.point, plan.target)
        else:
            plan.target.clear()

    def _restore(self, slot: Slot, match: Match, prompt: bytes) -> None:
        """Read a file straight into spare buffers; the session becomes it only when all is good."""
        assert self.store is not None
        with self.store.open(match, prompt) as checkpoint:
            with slot.session.incoming(len(checkpoint.token_ids())) as state:
                checkpoint.read_into(state)
            pairs = list(checkpoint.tool_pairs())
            text = checkpoint.text()
        self.store.touched(match)
        slot.forget()
        if text.endswith(EOS.encode()) and slot.session.tokens[-1] != self._eos:
            slot.session.feed([self._eos])  # upstream's visible keys promise an EOS that was never fed
        self.slots.add(slot, text)
        slot.asked = match.tokens
        self.prompts.remember(((id.decode("utf-8", "surrogateescape"), block) for id, block in pairs), Source.DISK)

    # ---- prefill

    def _prefill_or_retry(self, work: Work, stopping: Callable[[], bool]) -> Work:
        """Prefill; if that fails right after a restore, the file is to blame: again without it."""
        while True:
            try:
                self._prefill(work, stopping)
                return work
            except (KVError, RuntimeError):
                work.slot.clear()
                if work.plan.match is None:
                    raise
                self._give_up(work.plan.match, "the prefill after its restore failed")
            work = self._take_up(work.job, work.prompt, work.continues)

    def _prefill(self, work: Work, stopping: Callable[[], bool]) -> None:
        """Feed the suffix; at the places where someone may come back, leave a point, and save where that is due."""
        slot, base = work.slot, len(work.slot)
        saves = self._saves(work)
        places = {*returns(work.prompt, work.track), *saves}

        def at_border(done: int, _: int) -> None:
            position = base + done
            if position in places:
                text = work.prompt.text[: work.track.byte(position)]
                # Only a retry returns to an opened answer: with thinking, no next request begins with it.
                point = self.slots.add(slot, text, certain=position < work.track.tokens)
                if position in saves:
                    self.keeper.save(slot, point, saves[position], work.prompt.text)

        def stop() -> bool:
            return stopping() or work.job.cancelled.is_set()

        fed = slot.session.feed(work.suffix, cuts=places, progress=at_border, stop=stop)
        self.tokens["prefilled"] += fed
        if fed < len(work.suffix):
            if len(slot):
                self.slots.add(slot, work.prompt.text[: work.track.byte(len(slot))])  # a retry goes on here
            why = "the server is stopping" if stopping() else "the client has gone"
            log.info(
                "%s source=%s start=%d prefilled=%d of %d: %s",
                work.job.conversation.dialect, work.plan.source, work.plan.start, fed, len(work.suffix), why,
            )  # fmt: skip
            raise Refused(Failed(503, why))

    def _saves(self, work: Work) -> dict[int, Reason]:
        if self.store is None:
            return {}
        cold = cold_points(work.prompt.text, work.track, self.knobs, cached=len(work.slot))
        for skipped in cold.skipped:
            log.info(
                "kv cache skipped tokens=%d reason=cold because %s (%s)", skipped.tokens, skipped.because, skipped.knob
            )
        continued = dict.fromkeys(frontiers(len(work.slot), work.track.tokens, self.knobs), Reason.CONTINUED)
        return continued | dict.fromkeys(cold.saves, Reason.COLD)

    # ---- the answer

    def _answer(self, work: Work, stopping: Callable[[], bool]) -> tuple[Answer, Finished]:
        job, conversation, session = work.job, work.job.conversation, work.slot.session
        prefix = "toolu_" if conversation.dialect is Dialect.ANTHROPIC else "call_"
        shower = Shower(job, work.prompt, lambda: prefix + secrets.token_hex(16))
        limit = session.ctx - 1 - len(session)
        if conversation.sampling.max_tokens is not None:
            limit = min(limit, conversation.sampling.max_tokens)
        answer = generate(job, session, self._draw(conversation), self.tokenizer, shower, self._eos, limit, stopping)
        for piece in shower.finish():
            job.send(piece)
        self.tokens["generated"] += len(answer.tokens)
        return answer, finished(answer, shower, work.usage)

    def _keep(self, work: Work, answer: Answer, done: Finished) -> None:
        """Leave the slot where the client will come back, under the text that it will send."""
        slot, conversation = work.slot, work.job.conversation
        if answer.finish == "error":
            return  # nobody knows how much of it was seen; the prompt's end is where a retry starts
        ids = [call.id for call in done.turn.calls]
        self.prompts.remember((id, done.turn.block) for id in ids)
        if answer.finish == "stop" and done.stop is None and len(slot) < slot.session.ctx - 1:
            slot.session.feed([self._eos])
            answer.tokens.append(self._eos)
        work.track.extend(len(self.tokenizer.token_bytes[id]) for id in answer.tokens)
        sampled = self.tokenizer.decode(answer.tokens)
        if work.continues:
            everything = work.prompt.text + sampled  # a client of results only sends results again
            keys = (Key(everything, len(everything)), set[Key]())
        else:
            keys = self.prompts.next_keys(conversation, work.prompt, done.turn, sampled)
        slot.call_ids = frozenset(ids)
        told = Told(work.track.tokens - len(answer.tokens), answer.tokens, answer.marks)
        self.keeper.end_at(slot, *keys, work.track, told)
        self.keeper.continued(slot)

    # ---- the report

    def _report(self, work: Work, answer: Answer, done: Finished, watch: Stopwatch) -> None:
        """One line per request, and what the disk had to do with it."""
        plan, usage = work.plan, done.usage
        self.sources[plan.source] += 1
        self.tokens["cached"] += usage.cached
        gone = answer.finish == "error" and work.job.cancelled.is_set()
        log.info(
            "%s source=%s start=%d prefilled=%d generated=%d finish=%s restore=%.0fms prefill=%.0fms decode=%.0fms",
            work.job.conversation.dialect, plan.source, plan.start, len(work.suffix), usage.completion,
            "cancelled" if gone else done.finish, *watch.laps(),
        )  # fmt: skip
        if self._trace is not None:
            self._trace.request(work.job.conversation, work.prompt, plan, done, self.tokenizer.decode(answer.tokens))
