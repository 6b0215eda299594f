"""One answer, token by token: sample, show, feed. Knows when it is over, not what becomes of the state."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from kvengine import Mark, Sampled, Sampler, Session
from kvprompt.conversation import Conversation, Dialect, Turn
from kvprompt.dsml import Recogniser
from kvprompt.events import BlockEnd, CallStart, Event, Reasoning, Text, WasReasoning, collect
from kvprompt.render import RenderedPrompt
from kvprompt.tokenizer import Tokenizer

from .wire import Call, Finish, Finished, Job, Logprob, Piece, Shown, Usage

MARK_EVERY = 64  # tokens between two marks: the most that has to be fed again to end at another token


class Draw(Protocol):
    """What the sampler must be able to do; tests bring one that spells a given text."""

    def draw(self, logits: Tensor, *, greedy: bool = False, top: int = 0) -> Sampled: ...


class Shower:
    """Sampled bytes to pieces: the recogniser for chats, plain text for completions, and what a stop string may not show."""

    def __init__(self, job: Job, prompt: RenderedPrompt, new_id: Callable[[], str]) -> None:
        conversation = job.conversation
        tools = bool(conversation.tools.schemas)
        self.raw = bytearray()
        self.events: list[Event] = []
        self.ids: list[str] = []
        self.stop: str | None = None
        self.tokens = 0
        self.reasoning = 0  # of the tokens
        self._thinking = prompt.opens_thinking  # still, as far as is known
        self._streams = conversation.stream
        self._new_id = new_id
        self._plain = (
            codecs.getincrementaldecoder("utf-8")("replace") if conversation.dialect is Dialect.COMPLETION else None
        )
        self._recogniser = Recogniser(thinking=prompt.opens_thinking, tools=tools)
        self._stops = [(stop.encode("utf-8", "surrogateescape"), stop) for stop in conversation.sampling.stop]
        self._held = max((len(stop) for stop, _ in self._stops), default=1) - 1
        # What is held back for a stop string must not hold back the grammar, which decides how to sample.
        self._watch = Recogniser(thinking=prompt.opens_thinking, tools=tools) if self._stops else self._recogniser
        self._shown = 0

    @property
    def greedy(self) -> bool:
        return self._plain is None and self._watch.syntax

    @property
    def block_done(self) -> bool:
        return self._plain is None and self._watch.done

    def feed(self, data: bytes) -> list[Piece]:
        """The pieces that a token's bytes complete. `stop` is set, and nothing is shown from it on, when a stop string is met."""
        self.tokens += 1
        pieces = self._read(data)
        if self._thinking:
            self.reasoning = self.tokens
        return pieces

    def finish(self) -> list[Piece]:
        """What is still held back."""
        pieces = self._show(len(self.raw))
        if self._plain is not None:
            return pieces + self._pieces([Text(self._plain.decode(b"", final=True))])
        return pieces + self._pieces(self._recogniser.finish())

    def turn(self) -> Turn:
        ids = iter(self.ids)
        return collect(self.events, lambda: next(ids))

    def _read(self, data: bytes) -> list[Piece]:
        searched = max(0, len(self.raw) - self._held)
        self.raw += data
        if self._watch is not self._recogniser:
            self._watch.feed(data)
        found = [(at, text) for stop, text in self._stops if (at := self.raw.find(stop, searched)) >= 0]
        if found:
            at, self.stop = min(found, key=lambda hit: hit[0])
            del self.raw[at:]
            return self._show(len(self.raw))
        return self._show(len(self.raw) if self.block_done else len(self.raw) - self._held)

    def _show(self, end: int) -> list[Piece]:
        if end <= self._shown:
            return []
        data, self._shown = bytes(self.raw[self._shown : end]), end
        return self._pieces([Text(self._plain.decode(data))] if self._plain else self._recogniser.feed(data))

    def _pieces(self, events: list[Event]) -> list[Piece]:
        if WasReasoning() in events:
            events = self._reconsidered(events)
        self.events += events
        if events:
            self._thinking = isinstance(events[-1], Reasoning)
        return [Piece(shown) for event in events if (shown := self._shown_as(event)) is not None]

    def _reconsidered(self, events: list[Event]) -> list[Event]:
        """What was streamed as content stays content, so that the turn is the one that the client has."""
        if self._streams:
            return [event for event in events if event != WasReasoning()]
        self.reasoning = self.tokens
        return events

    def _shown_as(self, event: Event) -> Shown | None:
        match event:
            case CallStart(index, name):
                self.ids.append(self._new_id())
                return Call(index, self.ids[-1], name)
            case BlockEnd() | WasReasoning():
                return None
            case Text(text) | Reasoning(text) if not text:
                return None
            case _:
                return event


@dataclass(slots=True)
class Answer:
    """What generation leaves behind: the tokens that were fed, why it ended, and marks at some positions on the way."""

    tokens: list[int] = field(default_factory=list)
    finish: Finish = "length"
    marks: list[tuple[int, Mark]] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    shown: int = 0  # of the log-probabilities


def generate(
    job: Job,
    session: Session,
    sampler: Draw,
    tokenizer: Tokenizer,
    shower: Shower,
    eos: int,
    limit: int,
    stopping: Callable[[], bool],
) -> Answer:
    """Sample up to `limit` tokens and feed each; pieces go to the job as they come. EOS is neither shown nor fed."""
    answer = Answer()
    while len(answer.tokens) < limit:
        if job.cancelled.is_set() or stopping():
            answer.finish = "error"
            break
        sampled = sampler.draw(session.logits, greedy=shower.greedy, top=job.logprobs or 0)
        if sampled.token == eos:
            answer.finish = "stop"
            break
        pieces = shower.feed(tokenizer.token_bytes[sampled.token])
        for piece in _with_logprobs(job, tokenizer, sampled, pieces, answer):
            job.send(piece)
        answer.tokens.append(sampled.token)
        session.feed([sampled.token])
        if len(answer.tokens) % MARK_EVERY == 0:
            answer.marks = [*answer.marks[-1:], (len(session), session.mark())]
        if shower.stop is not None:
            answer.finish = "stop"
            break
        if shower.block_done:
            answer.finish = "tool_calls"
            break
    return answer


def _with_logprobs(
    job: Job, tokenizer: Tokenizer, sampled: Sampled, pieces: list[Piece], answer: Answer
) -> Iterator[Piece]:
    """Log-probabilities go with the first piece that their tokens complete; until then they wait."""
    if job.logprobs is None:
        yield from pieces
        return
    top = tuple((tokenizer.token_bytes[token], logprob) for token, logprob in sampled.top)
    answer.logprobs.append(Logprob(tokenizer.token_bytes[sampled.token], sampled.logprob, top))
    for piece in pieces:
        waiting, answer.shown = tuple(answer.logprobs[answer.shown :]), len(answer.logprobs)
        yield replace(piece, logprobs=waiting)


def finished(answer: Answer, shower: Shower, usage: Usage) -> Finished:
    """The last message of a job."""
    turn = shower.turn()
    finish = answer.finish
    if turn.calls:
        finish = "tool_calls"
    elif finish == "tool_calls":
        finish = "stop"  # the block turned out to be empty or broken
    usage = replace(usage, completion=len(answer.tokens), reasoning=shower.reasoning)
    return Finished(turn, finish, usage, shower.stop, tuple(answer.logprobs))


def sampler_of(conversation: Conversation) -> Sampler:
    """The sampler that the client asked for; what no sampler can do is taken for the nearest that it can."""
    wish = conversation.sampling
    return Sampler(
        temperature=1.0 if wish.temperature is None else max(0.0, wish.temperature),
        top_k=wish.top_k or 0,
        top_p=1.0 if wish.top_p is None else min(max(wish.top_p, 1e-6), 1.0),
        min_p=0.05 if wish.min_p is None else min(max(wish.min_p, 0.0), 1.0),
        seed=wish.seed or None,
    )
