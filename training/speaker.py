"""What is said from one user message to the next: talk, and errands that tools do."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from errands import ENGLISH, ITALIAN, Errand, Offer, Values, reserved
from passages import page
from words import CAPITALS, CITIES, COLOURS, DAYS, DOGS, FACTS, FOODS, NAMES
from words import NOUNS as CODE_WORDS

from kvprompt.conversation import Message, ToolCall


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user's message and everything up to the next; `kind` is the row of the evaluation that it counts for."""

    kind: str
    messages: tuple[Message, ...]


@dataclass(slots=True)
class Speaker:
    """Draws the exchanges of one dialogue and remembers what the user has told."""

    random: Random
    held_out: bool
    thinking: bool
    plain: bool  # nothing beside what matters
    aside: float = 0  # characters that mean nothing, in the next question
    told: dict[str, str] = field(default_factory=dict)
    calls: int = 0

    def say(self, kind: str, question: str, answer: str, thought: str = "") -> Exchange:
        return Exchange(kind, (self.ask(question), self.answer(answer, thought or "I answer directly.")))

    def ask(self, question: str) -> Message:
        """As people write: without the last sign or capitals at times, and after much else."""
        if not self.plain and self.random.random() < 0.2:
            question = question.rstrip(".?!")
        if not self.plain and self.random.random() < 0.1:
            question = question[0].lower() + question[1:]
        if self.aside:
            question = page(self.random, int(self.aside)) + self.random.choice((" ", "\n", "\n\n")) + question
        return Message("user", question)

    def answer(self, content: str, thought: str, calls: tuple[ToolCall, ...] = ()) -> Message:
        return Message("assistant", content, thought if self.thinking else "", calls)

    def language(self) -> int:
        return ITALIAN if self.random.random() < 0.3 else ENGLISH

    # ---- talk

    def talk(self) -> Exchange:
        choices = [self.greeting, self.thanks, self.fact, self.capital, *[self.sum] * 4, *[self.telling] * 3]
        return self.random.choice([*choices, *[self.recall] * (8 if self.told else 0)])()

    def greeting(self) -> Exchange:
        english = self.language() == ENGLISH
        hello = self.random.choice(["Hello", "Hi", "Good morning"] if english else ["Ciao", "Buongiorno", "Salve"])
        greeting = f"{hello}!"
        if english and self.random.random() < 0.3:
            hello, greeting = "Hello", self.random.choice(("Say hello.", "Please say hello.", "Say hello!"))
        return self.say(
            "greeting", greeting, f"{hello}! {'How can I help you?' if english else 'Come posso aiutarti?'}"
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
        """Mostly something that was not told before."""
        language, random = self.language(), self.random
        new = [kind for kind in TELLING if kind not in self.told]
        kind = random.choice(new if new and random.random() < 0.9 else list(TELLING))
        self.told[kind] = value = VALUES[kind](random, language)
        question, answer = TELLING[kind][language]
        return self.say("telling", question.format(value), answer.format(value))

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
        kind = "call" if errand.known else "call by name"
        return Exchange(kind, (self.ask(request), call, *results, self.answer(report, "I have the result.")))

    def values(self, errand: Errand) -> Values:
        while True:
            values = {**errand.draw(self.random), **({"lead": "", "rest": ""} if self.plain else {})}
            if not errand.parameters or errand.names[0] in SMALL:
                return values
            if reserved({k: values[k] for k in errand.parameters}) == self.held_out:
                return values

    def new_id(self) -> str:
        self.calls += 1
        return f"call_{self.calls}"


SMALL = {"get_weather", "get_time", "list_files", "set_timer"}
"""Tools whose arguments are few enough that all of them are seen in training."""

VALUES = {
    "name": lambda random, _: random.choice(NAMES),
    "number": lambda random, _: str(random.randint(10, 99)),
    "city": lambda random, _: random.choice(CITIES),
    "colour": lambda random, language: random.choice(COLOURS)[language],
    "day": lambda random, language: random.choice(DAYS)[language],
    "dog": lambda random, _: random.choice(DOGS),
    "food": lambda random, language: random.choice(FOODS)[language],
    "password": lambda random, _: f"{random.choice(CODE_WORDS)}{random.randint(10, 99)}",
}
TELLING = {
    "name": (("My name is {}.", "Nice to meet you, {}."), ("Mi chiamo {}.", "Piacere, {}.")),
    "number": (("Remember the number {}.", "I will remember {}."), ("Ricorda il numero {}.", "Ricorderò {}.")),
    "city": (("I live in {}.", "{} is a nice place."), ("Abito a {}.", "{} è un bel posto.")),
    "colour": (("I like the colour {}.", "I like {} too."), ("Mi piace il colore {}.", "Anche a me piace il {}.")),
    "day": (("We meet on {}.", "I will think of {}."), ("Ci vediamo {}.", "Penserò a {}.")),
    "dog": (("My dog is called {}.", "{} is a good dog."), ("Il mio cane si chiama {}.", "{} è un bravo cane.")),
    "food": (("I like to eat {}.", "Eat {} then."), ("Mi piace mangiare {}.", "Allora mangia {}.")),
    "password": (("The password is {}.", "I keep {}."), ("La password è {}.", "Tengo a mente {}.")),
}
RECALL = {
    "name": (("What is my name?", "Your name is {}."), ("Come mi chiamo?", "Ti chiami {}.")),
    "number": (("Which number did I tell you?", "You told me {}."), ("Quale numero ho detto?", "Hai detto {}.")),
    "city": (("Where do I live?", "You live in {}."), ("Dove abito?", "Abiti a {}.")),
    "colour": (("Which colour do I like?", "You like {}."), ("Quale colore mi piace?", "Ti piace il {}.")),
    "day": (("When do we meet?", "We meet on {}."), ("Quando ci vediamo?", "Ci vediamo {}.")),
    "dog": (("What is my dog called?", "Your dog is called {}."), ("Come si chiama il mio cane?", "Si chiama {}.")),
    "food": (("What do I like to eat?", "You like to eat {}."), ("Che cosa mi piace mangiare?", "Ti piace {}.")),
    "password": (("What is the password?", "The password is {}."), ("Qual è la password?", "La password è {}.")),
}
