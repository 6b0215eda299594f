"""Train ds4-mini: python training/train.py FOLDER [--steps N]. Run it again to go on where it was interrupted.

FOLDER gets state.pt (every two minutes) and log.txt. The learning rate rises for 30 steps, stays, and falls to nothing
over the last 40 % of the steps. What is to be copied is found sooner where there is little else to look at, so dialogues
are short and plain first; then plain, but such that much is asked for again later, with few raw rows to find it in; then
as clients send them, a third of them thousands of tokens long, and positions jump in some by up to tens of thousands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from random import Random

import click
import torch
import torch.nn.functional as F
from generator import Dialogue, dialogues
from muon import optimisers
from network import Batch, Network
from parameters import MINI, initial
from tokenizer import tokenizer
from torch import Tensor

from kvprompt.markers import ASSISTANT, EOS, THINK, UNTHINK
from kvprompt.tokenizer import Tokenizer

SEED = 8
BATCH_TOKENS, LONG_TOKENS = 3072, 6144
SHORT, PLAIN = 660, 1386  # steps up to which dialogues are short, and plain
NARROW = (8, 16, 32)  # raw rows that are seen at times: what is further back is in compressed ones
FAR = 65_536  # positions that are left out at most
WARM_UP, DECAY = 30, 0.4
SAVE_EVERY = 120  # seconds
FAST = torch.cpu._is_avx512_bf16_supported()  # twice as fast, with bfloat16 products


@dataclass(frozen=True, slots=True)
class Example:
    """Tokens of one dialogue, and which of them the model is to say."""

    ids: list[int]
    said: list[bool]


class Examples:
    """From dialogues to batches, for ever, from one seed."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self.tokenizer = tokenizer
        self.random = Random(seed)
        self.marker = {text: tokenizer.encode_chat(text.encode())[0] for text in (ASSISTANT, EOS, THINK, UNTHINK)}

    def example(self, dialogue: Dialogue, bare: bool) -> Example:
        ids = self.tokenizer.encode_chat(dialogue.text(bare=bare))
        said, speaking = [], False
        for before, id in zip([-1, *ids], ids, strict=False):
            given = before == self.marker[ASSISTANT] and id in (self.marker[THINK], self.marker[UNTHINK])
            said.append(speaking and not given)
            if id == self.marker[ASSISTANT]:
                speaking = True
            elif id == self.marker[EOS]:
                speaking = False
        return Example(ids, said)

    def pool(self, step: int) -> list[Example]:
        """Dialogues that are sorted by length before they are cut into batches, all with tools or all without."""
        tools, draw, plain = self.random.random() < 0.7, self.random.random(), step < PLAIN
        exchanges, characters, count = (3, 8), (0, 0), 64
        if step < SHORT:
            exchanges, count = (1, 3), 256
        elif plain:
            exchanges, count = ((1, 6), 160) if tools else ((8, 30), 40)
        elif draw < 0.35:
            exchanges, characters, count = (6, 40), (500, 12_000), 12
        elif draw < 0.55:
            characters = (100, 2000)
        drawn = dialogues(self.random, tools=tools, exchanges=exchanges, characters=characters, plain=plain)
        examples = (self.example(dialogue, plain) for dialogue in islice(drawn, count))
        return [example for example in examples if len(example.ids) <= LONG_TOKENS]

    def batches(self, step: Callable[[], int]) -> Iterator[tuple[Batch, Tensor, Tensor]]:
        """Tokens, the places in the flattened rest that predict something said, and what they predict."""
        while True:
            now = step()
            examples = sorted(self.pool(now), key=lambda example: len(example.ids))
            groups = list(grouped(examples, BATCH_TOKENS if now < PLAIN else LONG_TOKENS))
            self.random.shuffle(groups)
            for group in groups[:4]:
                yield batch(group, self.window(now), 0 if now < PLAIN else self.jump())

    def window(self, step: int) -> int:
        """How many raw rows the next batch sees: few at times, once copying from raw ones had time to be found."""
        narrow = 0 if step < SHORT else 0.6 if step < PLAIN else 0.2
        return self.random.choice(NARROW) if self.random.random() < narrow else MINI.window

    def jump(self) -> int:
        """In one of three batches some thousand positions are left out."""
        return 128 * round((FAR / 128) ** self.random.random()) if self.random.random() < 0.3 else 0


def grouped(examples: list[Example], tokens: int) -> Iterator[list[Example]]:
    """Neighbours, as many as fit into a batch."""
    group: list[Example] = []
    for example in examples:
        if group and (len(group) + 1) * len(example.ids) > tokens:
            yield group
            group = []
        group.append(example)
    yield group


def batch(examples: list[Example], window: int, jump: int) -> tuple[Batch, Tensor, Tensor]:
    """What `batches` yields, from one group; the second half of the text is `jump` positions further on."""
    columns = zip(*[example.ids[:-2] for example in examples], strict=False)
    same = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    shared = same if len(examples) > 1 else same[:1]
    start, longest = len(shared), max(len(example.ids) for example in examples)
    rest = torch.zeros(len(examples), longest - start, dtype=torch.long)
    said = torch.zeros_like(rest, dtype=torch.bool)
    for row, example in enumerate(examples):
        rest[row, : len(example.ids) - start] = torch.tensor(example.ids[start:])
        said[row, : len(example.ids) - start] = torch.tensor(example.said[start:])
    positions = torch.arange(longest)
    positions[longest // 2 // 128 * 128 :] += jump
    places = said[:, 1:].nonzero()
    targets = rest[places[:, 0], places[:, 1] + 1]
    return (
        Batch(torch.tensor(shared, dtype=torch.long), rest, positions, window),
        places[:, 0] * rest.shape[1] + places[:, 1],
        targets,
    )


def rate(step: int, steps: int) -> float:
    """What the learning rates are multiplied with."""
    return min(1, (step + 1) / WARM_UP, (steps - step) / (steps * DECAY))


class Training:
    """The network, its optimisers, and how far they are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Network(MINI, initial(MINI, SEED))
        self.optimisers = optimisers(self.network.weights)
        self.rates = [optimiser.param_groups[0]["lr"] for optimiser in self.optimisers]
        self.step, self.seconds, self.tokens = 0, 0.0, 0
        if self.file.exists():
            self.resume()

    @property
    def file(self) -> Path:
        return self.folder / "state.pt"

    def resume(self) -> None:
        state = torch.load(self.file)
        with torch.no_grad():
            for name, weight in self.network.weights.items():
                weight.copy_(state["weights"][name])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step, self.seconds, self.tokens = state["progress"]

    def save(self) -> None:
        state = {
            "weights": {name: weight.detach() for name, weight in self.network.weights.items()},
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "progress": (self.step, self.seconds, self.tokens),
        }
        torch.save(state, self.file.with_suffix(".new"))
        self.file.with_suffix(".new").rename(self.file)

    def learn(self, data: Batch, places: Tensor, targets: Tensor, factor: float) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=FAST):
            logits = self.network.logits(self.network.streams(data)[places])
            loss = F.cross_entropy(logits, targets)
        torch.stack([loss, *self.network.lessons]).sum().backward()
        self.network.lessons.clear()
        for optimiser, lr in zip(self.optimisers, self.rates, strict=True):
            optimiser.param_groups[0]["lr"] = lr * factor
            optimiser.step()
            optimiser.zero_grad()
        self.tokens += len(data.tokens)
        return loss.item()

    def run(self, steps: int) -> None:
        """Go on to step `steps`."""
        examples = Examples(tokenizer(), SEED + self.step)
        saved, recent = time.monotonic(), []
        for data in examples.batches(lambda: self.step):
            if self.step >= steps:
                break
            began = time.monotonic()
            recent.append(self.learn(*data, rate(self.step, steps)))
            self.step += 1
            self.seconds += time.monotonic() - began
            if self.step % 20 == 0:
                self.report(sum(recent) / len(recent))
                recent.clear()
            if time.monotonic() - saved > SAVE_EVERY:
                self.save()
                saved = time.monotonic()
        self.save()

    def report(self, loss: float) -> None:
        line = f"step {self.step}  loss {loss:.4f}  {self.tokens} tokens  {self.seconds:.0f} s"
        print(line, flush=True)
        with (self.folder / "log.txt").open("a") as log:
            print(line, file=log)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--steps", default=4300, show_default=True)
def main(folder: Path, steps: int) -> None:
    torch.set_num_threads(1)  # two wait for each other when the machine has other work
    folder.mkdir(parents=True, exist_ok=True)
    Training(folder).run(steps)


if __name__ == "__main__":
    main()
