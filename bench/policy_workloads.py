"""Synthetic agent workloads for bench_policy.py: seeded scripts of requests, stops, kills and budget cuts.

Knows no cache and no policy: a workload is what clients and operators do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Some tokens after a parent's: two texts share a prefix exactly as far as they share blocks."""

    parent: Block | None
    end: int  # tokens from the start of the text

    def grow(self, tokens: int) -> Block:
        return Block(self, self.end + tokens)

    def chain(self) -> Iterator[Block]:
        block: Block | None = self
        while block:
            yield block
            block = block.parent

    def at(self, position: int) -> Block:
        """The block that holds the last token of the first `position`."""
        return next(b for b in self.chain() if b.parent is None or b.parent.end < position)


@dataclass(frozen=True, slots=True)
class Event:
    """At `at` seconds: a request, or a stop of the server, or a new budget in bytes."""

    at: float
    prompt: Block | None = None
    answer: Block | None = None  # the prompt and what was generated; None: killed on the way
    anchor: int = 0  # tokens
    killed_at: int = 0  # tokens of the prompt that were reached
    stop: bool = False  # clean
    budget: int = 0


@dataclass(slots=True)
class Script:
    """Builds a workload: a clock, a seeded die, and the events so far."""

    rng: random.Random
    budget: int
    now: float = 1.7e9
    events: list[Event] = field(default_factory=list)
    start_budget: int = field(init=False)

    def __post_init__(self) -> None:
        self.start_budget = self.budget

    def wait(self, low: float, high: float) -> None:
        self.now += self.rng.uniform(low, high)

    def system(self, low: int, high: int) -> Block:
        return Block(None, self.rng.randint(low, high))

    def turn(
        self,
        text: Block,
        anchor: Block | None,
        new: tuple[int, int],
        answer: tuple[int, int] = (50, 400),
        kill: float = 0.0,
    ) -> Block:
        """One request that appends to `text`; returns the text after the answer.

        With probability `kill` the server dies while it prefills, and the client sends the request again.
        """
        prompt = text.grow(self.rng.randint(*new))
        after = prompt.grow(self.rng.randint(*answer))
        start = anchor.end if anchor else 0
        if self.rng.random() < kill:
            self.events.append(Event(self.now, prompt, None, start, killed_at=self.rng.randint(1, prompt.end)))
            self.wait(60, 600)
        self.events.append(Event(self.now, prompt, after, start))
        self.wait(10, 120)
        return after

    def one_shot(self, low: int, high: int) -> None:
        self.turn(Block(None, 30), None, (low, high), (20, 60))

    def stop(self) -> None:
        self.events.append(Event(self.now, stop=True))
        self.wait(60, 600)


def agents(s: Script) -> None:
    """Eight conversations under three system prompts take turns for a working day; finished ones are replaced."""
    systems = [s.system(4000, 14000) for _ in range(3)]
    texts = [s.rng.choice(systems) for _ in range(8)]
    roots = list(texts)
    for _ in range(120):
        i = s.rng.randrange(8)
        for _ in range(s.rng.randint(1, 4)):
            texts[i] = s.turn(texts[i], roots[i], (200, 3000))
        if texts[i].end > s.rng.randint(20000, 80000):
            texts[i] = roots[i] = s.rng.choice(systems)


def sub_agents(s: Script) -> None:
    """A main session sends out sub-agents that share a system prompt and never come back."""
    root, shared = s.system(8000, 14000), s.system(3000, 7000)
    main = root
    for _ in range(40):
        main = s.turn(main, root, (300, 2500))
        for _ in range(s.rng.randint(0, 3)):
            text = shared
            for _ in range(s.rng.randint(1, 5)):
                text = s.turn(text, shared, (300, 4000))


def one_shots(s: Script) -> None:
    """Two chats among titles (small) and summaries (giant) that nobody will ask for again."""
    root = s.system(3000, 9000)
    chats = [root, root]
    for _ in range(80):
        i = s.rng.randrange(2)
        chats[i] = s.turn(chats[i], root, (300, 1500))
        if s.rng.random() < 0.5:
            s.one_shot(400, 1800)
        if s.rng.random() < 0.15:
            s.one_shot(20000, 60000)


def restarts(s: Script) -> None:
    """Four conversations, some begin with a book; the server is stopped now and then, and killed in mid-prefill."""
    root = s.system(5000, 12000)
    texts = [root] * 4
    for _ in range(90):
        i = s.rng.randrange(4)
        for _ in range(s.rng.randint(1, 3)):
            book = texts[i] is root and s.rng.random() < 0.3
            texts[i] = s.turn(texts[i], root, (30000, 70000) if book else (300, 4000), kill=0.5 if book else 0.04)
        if s.rng.random() < 0.08:
            s.stop()
        if texts[i].end > 90000:
            texts[i] = root


def long_session(s: Script) -> None:
    """One session grows to some 200,000 tokens, with titles in between and a few kills."""
    root = s.system(9000, 15000)
    main = root
    while main.end < 200000:
        main = s.turn(main, root, (500, 5000), (100, 1500), kill=0.04)
        if s.rng.random() < 0.25:
            s.one_shot(400, 1800)


def edits(s: Script) -> None:
    """Five chats whose users go back a few turns now and then and ask again from there."""
    root = s.system(3000, 10000)
    chats = [[root] for _ in range(5)]
    for _ in range(100):
        turns = s.rng.choice(chats)
        if s.rng.random() < 0.3:
            del turns[max(1, len(turns) - s.rng.randint(1, 4)) :]
        for _ in range(s.rng.randint(1, 3)):
            turns.append(s.turn(turns[-1], root, (200, 2500), (100, 1000)))
        if turns[-1].end > 80000:
            del turns[1:]


def budget_cut(s: Script) -> None:
    """Weeks: prompts used weekly among daily one-shots, under four times the budget until it is cut."""
    s.start_budget = 4 * s.budget
    roots = [s.system(2500, 8000) for _ in range(6)]
    for week in range(10):
        if week == 6:
            s.events.append(Event(s.now, budget=s.budget))
        for root in roots:
            text = root
            for _ in range(s.rng.randint(1, 6)):
                text = s.turn(text, root, (300, 3000))
            s.one_shot(2000, 60000)
            s.wait(0.5 * 86400, 86400)
        s.wait(86400, 2 * 86400)


WORKLOADS = (agents, sub_agents, one_shots, restarts, long_session, edits, budget_cut)
