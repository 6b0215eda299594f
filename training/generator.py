"""Dialogues of the trained kind, as the conversations that kvprompt renders: python training/generator.py prints some.

A dialogue is a chain of exchanges. Each exchange knows what it tests, so that the evaluation can ask for it again; those
with values that `reserved` keeps apart are drawn for the evaluation only. Between what matters there can be pages that
do not: in the system prompt, around questions, and as tools that nobody asks for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from errands import ERRANDS_KNOWN, Errand, Offer, offer
from foreign import foreign
from passages import page
from speaker import Exchange, Speaker

from kvprompt.conversation import Conversation, Dialect, Message, Thinking, Tools
from kvprompt.markers import Preamble, tools_section
from kvprompt.render import Style, render

HEAD, TAIL = tools_section(Preamble.AUGUST, "\0").encode().split(b"\0")
SYSTEMS = ("You are a helpful assistant.", "You are a coding agent.", "Be brief.")


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One conversation, complete with its answers."""

    system: str
    tools: Tools
    thinking: Thinking
    exchanges: tuple[Exchange, ...]

    def conversation(self, upto: int | None = None) -> Conversation:
        """The request whose answer is message `upto`, or the whole."""
        messages = [message for exchange in self.exchanges for message in exchange.messages][:upto]
        system = (Message("system", self.system),) if self.system else ()
        return Conversation(Dialect.CHAT, "ds4-mini", (*system, *messages), self.tools, self.thinking)

    def text(self, *, bare: bool = False) -> bytes:
        """As it is rendered; `bare` leaves out what the tool preamble says around the schemas."""
        text = render(self.conversation(), Style()).text
        return text.replace(HEAD, b"").replace(TAIL, b"") if bare else text


def dialogue(
    random: Random, exchanges: int, *, tools: bool, held_out: bool = False, characters: int = 0, plain: bool = False
) -> Dialogue:
    """One dialogue of so many exchanges, with about so many characters that mean nothing; with `tools`, two in three
    exchanges are errands. `plain` ones have nothing beside what matters, and only tools that the training knows."""
    speaker = Speaker(random, held_out, random.random() < 0.4, plain)
    offered = [offer(random, errand) for errand in _wanted(random, exchanges, plain)] if tools else []
    crowd = (
        [offer(random, foreign(random, 5)) for _ in range(_crowd(random, characters))] if tools and not plain else []
    )
    shares = [characters * random.random() * 2 / (exchanges + 1) for _ in range(exchanges + 1)]
    said: list[Exchange] = []
    for number, share in enumerate(shares[1:], 1):
        speaker.aside = share if share > 40 else 0
        if offered and (number == 1 or random.random() < 0.67):
            said.append(speaker.errand(random.choice(offered)))
        else:
            said.append(speaker.talk())
    schemas = random.sample([*offered, *crowd], len(offered) + len(crowd))
    return Dialogue(_system(random, shares[0]), _tools(random, schemas, plain), _effort(speaker), tuple(said))


def distant(random: Random, characters: int) -> Dialogue:
    """Something is told and asked for again, with three other exchanges and about so many characters in between."""
    speaker = Speaker(random, held_out=True, thinking=random.random() < 0.4, plain=False)
    told = speaker.telling()
    speaker.aside = characters / 3
    between = [speaker.fact() for _ in range(3)]
    speaker.aside = 0
    return Dialogue("", Tools(), _effort(speaker), (told, *between, speaker.recall()))


def _effort(speaker: Speaker) -> Thinking:
    return Thinking.HIGH if speaker.thinking else Thinking.OFF


def _wanted(random: Random, exchanges: int, plain: bool) -> list[Errand]:
    known = random.sample(ERRANDS_KNOWN, random.randint(1, min(4, exchanges)))
    return [foreign(random) if not plain and random.random() < 0.25 else errand for errand in known]


def _crowd(random: Random, characters: int) -> int:
    """How many tools nobody asks for: some where the dialogue is long, mostly none where it is short."""
    return random.randint(0, 2 + characters // 600) if random.random() < (0.7 if characters else 0.2) else 0


def _system(random: Random, characters: float) -> str:
    system = random.choice(["", "", *SYSTEMS])
    return " ".join([system, page(random, int(characters))]).strip() if characters > 40 else system


def _tools(random: Random, offered: list[Offer], plain: bool) -> Tools:
    key = random.choice(["parameters", "input_schema"])
    separators = random.choice([(",", ":"), (", ", ": ")])
    return Tools("\n".join(json.dumps(offer.schema(random, key, plain), separators=separators) for offer in offered))


def dialogues(
    random: Random,
    *,
    tools: bool,
    held_out: bool = False,
    exchanges: tuple[int, int] = (3, 8),
    characters: tuple[int, int] = (0, 0),
    plain: bool = False,
) -> Iterator[Dialogue]:
    """Without end."""
    while True:
        count, aside = random.randint(*exchanges), random.randint(*characters)
        yield dialogue(random, count, tools=tools, held_out=held_out, characters=aside, plain=plain)


if __name__ == "__main__":
    for with_tools in (False, True):
        for _ in range(3):
            print(dialogue(Random(), 4, tools=with_tools).text().decode(), end="\n\n----\n\n")
    print(dialogue(Random(), 8, tools=True, characters=3000).text().decode())
