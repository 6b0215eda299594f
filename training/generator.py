"""Dialogues of the trained kind, as the conversations that kvprompt renders: python training/generator.py prints some.

A dialogue is a chain of exchanges. Each exchange knows what it tests, so that the evaluation can ask for it again; those
with values that `reserved` keeps apart are drawn for the evaluation only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from errands import ENGLISH, ERRANDS_KNOWN, ITALIAN, Errand, Offer, Values, offer, reserved
from words import CAPITALS, CITIES, COLOURS, DAYS, FACTS, FILLER, NAMES

from kvprompt.conversation import Conversation, Dialect, Message, Thinking, ToolCall, Tools
from kvprompt.markers import Preamble, tools_section
from kvprompt.render import Style, render

HEAD, TAIL = tools_section(Preamble.AUGUST, "\0").encode().split(b"\0")
SYSTEMS = ("You are a helpful assistant.", "You are a coding agent.", "Be brief.")


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is said from one user message to the next; `kind` is the row of the evaluation that it counts for."""

    kind: str
    messages: tuple[Message, ...]


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


@dataclass(slots=True)
class _Speaker:
    """Draws the exchanges of one dialogue and remembers what the user has told."""

    random: Random
    held_out: bool
    thinking: bool
    told: dict[str, str] = field(default_factory=dict)
    calls: int = 0

    def say(self, kind: str, question: str, answer: str, thought: str = "") -> Exchange:
        return Exchange(kind, (Message("user", question), self.answer(answer, thought or "I answer directly.")))

    def answer(self, content: str, thought: str, calls: tuple[ToolCall, ...] = ()) -> Message:
        return Message("assistant", content, thought if self.thinking else "", calls)

    def language(self) -> int:
        return ITALIAN if self.random.random() < 0.3 else ENGLISH

    # ---- talk

    def talk(self) -> Exchange:
        choices = [self.greeting, self.fact, self.capital, self.sum, self.sum, self.telling, self.telling, self.thanks]
        return self.random.choice([*choices, *[self.recall] * (4 if self.told else 0)])()

    def greeting(self) -> Exchange:
        english = self.language() == ENGLISH
        hello = self.random.choice(["Hello", "Hi", "Good morning"] if english else ["Ciao", "Buongiorno", "Salve"])
        return self.say(
            "greeting", f"{hello}!", f"{hello}! {'How can I help you?' if english else 'Come posso aiutarti?'}"
        )

    def thanks(self) -> Exchange:
        english = self.language() == ENGLISH
        return self.say("greeting", *(("Thank you!", "You are welcome.") if english else ("Grazie!", "Prego.")))

    def fact(self) -> Exchange:
        language = self.language()
        return self.say("fact", *self.random.choice(FACTS)[2 * language : 2 * language + 2])

    def capital(self) -> Exchange:
        country, paese, city, capitale = self.random.choice(CAPITALS)
        if self.language() == ENGLISH:
            return self.say("fact", f"What is the capital of {country}?", f"The capital of {country} is {city}.")
        return self.say("fact", f"Qual è la capitale: {paese}?", f"La capitale è {capitale}.")

    def sum(self) -> Exchange:
        a, b = self.random.randint(0, 20), self.random.randint(0, 20)
        sign = self.random.choice("+-")
        a, b = (a, b) if sign == "+" else (max(a, b), min(a, b))
        term = f"{a} {sign} {b}"
        answer = f"{term} = {a + b if sign == '+' else a - b}"
        question = f"What is {term}?" if self.language() == ENGLISH else f"Quanto fa {term}?"
        return self.say("arithmetic", question, answer, f"{answer}.")

    def telling(self) -> Exchange:
        language, random = self.language(), self.random
        kind = random.choice(["name", "number", "city", "colour", "day"])
        value = {
            "name": random.choice(NAMES),
            "number": str(random.randint(10, 99)),
            "city": random.choice(CITIES),
            "colour": random.choice(COLOURS)[language],
            "day": random.choice(DAYS)[language],
        }[kind]
        self.told[kind] = value
        question, answer = TELLING[kind][language]
        question = question.format(value)
        if random.random() < 0.15:
            sentences = random.choices(
                FILLER, k=random.randint(10, 50) if random.random() < 0.2 else random.randint(1, 8)
            )
            question = " ".join([*sentences, question, *random.choices(FILLER, k=2)])
        return self.say("telling", question, answer.format(value))

    def recall(self) -> Exchange:
        kind = self.random.choice(list(self.told))
        question, answer = RECALL[kind][self.language()]
        value = self.told[kind]
        return self.say("recall", question, answer.format(value), f"The user said {value}.")

    # ---- tools

    def errand(self, offer: Offer) -> Exchange:
        """Asked for two cities at once, the model makes two calls in one block."""
        language, errand = self.language(), offer.errand
        count = 2 if "city" in errand.parameters and self.random.random() < 0.2 else 1
        values = [self.values(errand) for _ in range(count)]
        request = self.random.choice(errand.requests[language]).format(**values[0])
        if count == 2:
            joint = " and in " if language == ENGLISH else " e a "
            request = request.replace(values[0]["city"], values[0]["city"] + joint + values[1]["city"], 1)
        calls = tuple(ToolCall(self.new_id(), offer.name, offer.arguments(v)) for v in values)
        results = [
            Message("tool", errand.result.format(**v), result_ids=(c.id,)) for v, c in zip(values, calls, strict=True)
        ]
        report = " ".join(errand.answers[language].format(**v) for v in values)
        call = self.answer("", f"I need {offer.name}.", calls)
        return Exchange("call", (Message("user", request), call, *results, self.answer(report, "I have the result.")))

    def values(self, errand: Errand) -> Values:
        while True:
            values = errand.draw(self.random)
            if errand.names[0] in SMALL or reserved({k: values[k] for k in errand.parameters}) == self.held_out:
                return values

    def new_id(self) -> str:
        self.calls += 1
        return f"call_{self.calls}"


SMALL = {"get_weather", "get_time", "list_files", "set_timer"}
"""Tools whose arguments are few enough that all of them are seen in training."""

TELLING = {
    "name": (("My name is {}.", "Nice to meet you, {}."), ("Mi chiamo {}.", "Piacere, {}.")),
    "number": (("Remember the number {}.", "I will remember {}."), ("Ricorda il numero {}.", "Ricorderò {}.")),
    "city": (("I live in {}.", "{} is a nice place."), ("Abito a {}.", "{} è un bel posto.")),
    "colour": (("I like the colour {}.", "I like {} too."), ("Mi piace il colore {}.", "Anche a me piace il {}.")),
    "day": (("We meet on {}.", "I will think of {}."), ("Ci vediamo {}.", "Penserò a {}.")),
}
RECALL = {
    "name": (("What is my name?", "Your name is {}."), ("Come mi chiamo?", "Ti chiami {}.")),
    "number": (("Which number did I tell you?", "You told me {}."), ("Quale numero ho detto?", "Hai detto {}.")),
    "city": (("Where do I live?", "You live in {}."), ("Dove abito?", "Abiti a {}.")),
    "colour": (("Which colour do I like?", "You like {}."), ("Quale colore mi piace?", "Ti piace il {}.")),
    "day": (("When do we meet?", "We meet on {}."), ("Quando ci vediamo?", "Ci vediamo {}.")),
}


def dialogue(random: Random, exchanges: int, *, tools: bool, held_out: bool = False) -> Dialogue:
    """One dialogue of so many exchanges; with `tools`, two in three of them are errands."""
    thinking = random.random() < 0.4
    speaker = _Speaker(random, held_out, thinking)
    count = random.randint(1, min(4, exchanges)) if tools else 0
    offered = [offer(random, errand) for errand in random.sample(ERRANDS_KNOWN, count)]
    said = tuple(
        speaker.errand(random.choice(offered)) if offered and random.random() < 0.67 else speaker.talk()
        for _ in range(exchanges)
    )
    system = random.choice(["", "", *SYSTEMS])
    if system and random.random() < 0.3:
        system = " ".join([system, *random.choices(FILLER, k=random.randint(1, 6))])
    return Dialogue(system, _tools(random, offered), Thinking.HIGH if thinking else Thinking.OFF, said)


def dialogues(
    random: Random, *, tools: bool, held_out: bool = False, exchanges: tuple[int, int] = (3, 8)
) -> Iterator[Dialogue]:
    """Without end."""
    while True:
        yield dialogue(random, random.randint(*exchanges), tools=tools, held_out=held_out)


def _tools(random: Random, offered: list[Offer]) -> Tools:
    key = random.choice(["parameters", "input_schema"])
    separators = random.choice([(",", ":"), (", ", ": ")])
    return Tools("\n".join(json.dumps(offer.schema(random, key), separators=separators) for offer in offered))


if __name__ == "__main__":
    for with_tools in (False, True):
        for _ in range(3):
            print(dialogue(Random(), 4, tools=with_tools).text().decode(), end="\n\n----\n\n")
