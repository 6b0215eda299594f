"""Ask the finished model held-out dialogues, with our engine at its default numerics: make evaluate

Each dialogue is played up to its last exchange, and what the model says there is compared with what it was to say, word
for word. Tool arguments are combinations that the training never showed, where a tool has so many. Far prompts are
longer than what the indexers let through, so that these have to choose.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import click
import numpy as np
import torch
from generator import Dialogue, dialogues, distant

from kvengine import Sampler, Session
from kvprompt.conversation import Message, Thinking, Turn
from kvprompt.dsml import Recogniser
from kvprompt.events import collect
from kvprompt.markers import EOS
from kvprompt.render import Style, render
from kvserver.loading import BUILT_IN, Loaded, load_gguf

SEED = 2026
LONGEST = 160  # tokens of an answer
CONTEXT = 16_384
FAR = (1000, 4000, 8000)  # tokens between what is told and the question
CHARACTERS = 4.8  # of a token, about, in pages


class Trial:
    """One model, and how many of its answers were right, by what they were tested for."""

    def __init__(self, loaded: Loaded, temperature: float) -> None:
        self.loaded = loaded
        self.temperature = temperature
        self.eos = loaded.tokenizer.encode_chat(EOS.encode())[0]
        self.asked: Counter[str] = Counter()
        self.right: Counter[str] = Counter()

    def note(self, row: str, right: bool) -> None:
        self.asked[row] += 1
        self.right[row] += right

    def ask(self, dialogue: Dialogue, suffix: str = "") -> None:
        """Every answer of the last exchange."""
        before = sum(len(exchange.messages) for exchange in dialogue.exchanges[:-1])
        last = dialogue.exchanges[-1]
        for at, expected in enumerate(last.messages):
            if expected.role == "assistant":
                self.judge(last.kind + suffix, expected, self.answer(dialogue, before + at))

    def judge(self, kind: str, expected: Message, said: Turn) -> None:
        if expected.calls:
            names = [call.name for call in said.calls]
            self.note(f"{kind}: well formed", bool(said.calls) and not said.faults)
            self.note(f"{kind}: right name", names == [call.name for call in expected.calls])
            self.note(f"{kind}: right name and arguments", _calls(said) == _calls(expected))
        else:
            row = f"{kind}: result used" if kind.startswith("call") else kind
            self.note(row, said.content == expected.content and not said.calls)
        if expected.reasoning:
            self.note("thinking", said.reasoning == expected.reasoning)

    def answer(self, dialogue: Dialogue, upto: int) -> Turn:
        conversation = dialogue.conversation(upto)
        session = self.session()
        session.feed(self.loaded.tokenizer.encode_chat(render(conversation, Style()).text))
        recogniser = Recogniser(thinking=dialogue.thinking is not Thinking.OFF, tools=bool(dialogue.tools.schemas))
        events, sampler = [], Sampler(temperature=self.temperature, seed=SEED)
        for token in self.sampled(session, sampler, recogniser):
            events += recogniser.feed(self.loaded.tokenizer.token_bytes[token])
        return collect([*events, *recogniser.finish()])

    def sampled(self, session: Session, sampler: Sampler, recogniser: Recogniser) -> Iterator[int]:
        for _ in range(LONGEST):
            token = session.sample(sampler, greedy=recogniser.syntax).token
            if token == self.eos or recogniser.done:
                return
            yield token
            session.feed([token])

    def restore(self, dialogue: Dialogue) -> None:
        """The same greedy tokens, whether the prompt was fed at once or one half of it came from a saved state."""
        ids = self.loaded.tokenizer.encode_chat(render(dialogue.conversation(-1), Style()).text)
        half = len(ids) // 2
        through, first, second = self.session(), self.session(), self.session()
        through.feed(ids, cuts=[half])
        first.feed(ids[:half])
        second.restore(first.state())
        second.feed(ids[half:])
        self.note("greedy equality after a restore", _greedy(through) == _greedy(second))

    def session(self) -> Session:
        return Session(self.loaded.model, CONTEXT, prefill_chunk=2048)


def _calls(turn: Turn | Message) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in turn.calls]


def _greedy(session: Session, count: int = 20) -> list[int]:
    said = []
    for _ in range(count):
        said.append(int(np.argmax(session.logits)))
        session.feed(said[-1:])
    return said


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True), default=BUILT_IN)
@click.option(
    "--count", default=150, show_default=True, help="Dialogues with tools, as many without, and a fifth far ones."
)
@click.option("--temperature", default=0.0, show_default=True, help="0 is greedy; 1 is what clients get by default.")
@click.option("--seed", default=SEED, show_default=True, help="Other dialogues.")
def main(model: Path, count: int, temperature: float, seed: int) -> None:
    torch.set_num_threads(1)
    trial = Trial(load_gguf(model), temperature)
    for tools in (True, False):
        for number, dialogue in enumerate(islice(dialogues(Random(seed), tools=tools, held_out=True), count)):
            trial.ask(dialogue)
            if number % 10 == 0:
                trial.restore(dialogue)
    far = Random(seed)
    for tokens in FAR:
        for _ in range(count // 5):
            trial.ask(distant(far, int(tokens * CHARACTERS)), f", {tokens:,} tokens back")
    long = dialogues(far, tools=True, held_out=True, exchanges=(1, 1), characters=(10_000, 30_000))
    for dialogue in islice(long, count // 5):
        trial.ask(dialogue, ", long prompt")
    print(f"{model.name}, {2 * count + 4 * (count // 5)} held-out dialogues, temperature {temperature:g}")
    for row, asked in sorted(trial.asked.items()):
        print(f"{row:<52} {trial.right[row]:>4} of {asked:>4}  {trial.right[row] / asked:>6.1%}")


if __name__ == "__main__":
    main()
