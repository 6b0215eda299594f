"""Longer runs against ds4, within the noise that a rounding flip makes: teacher-forced, and from a cold prefill.

python -m pytest tests/engine/test_golden_runs.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.helpers import all_logits, read_payload
from kvengine import Numerics, Sampler, Session, load
from kvformat.checkpoint import Checkpoint

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
CTX = 8192
CLEAR = 1.0  # a margin that a flipped rounding does not overturn; a flipped expert moves logits by about half of it


@dataclass(frozen=True, slots=True)
class Step:
    """Our logits where ds4 chose `token`; `margin` is ds4's own where it is known."""

    name: str
    logits: np.ndarray
    token: int
    margin: float | None
    theirs: np.ndarray | None = None

    @property
    def clear(self) -> bool:
        second, first = np.partition(self.logits, -2)[-2:]
        return (first - second if self.margin is None else self.margin) > CLEAR

    @property
    def agrees(self) -> bool:
        return int(self.logits.argmax()) == self.token


def forced(session: Session, ids: list[int]) -> np.ndarray:
    """Logits at which each of ids would be chosen: those of the state, then those after each but the last."""
    return np.concatenate([session.logits[None].numpy().copy(), all_logits(session, ids[:-1])])


def session_steps(model, golden) -> Iterator[Step]:
    for kind in ("q2", "q4"):
        session = Session(model(kind), CTX)
        runs = {run["name"]: run for run in json.loads((golden / kind / "index.json").read_text())}
        for file in sorted((golden / kind).glob("*.forced64_logits_strict.npy")):
            run = runs[file.name.split(".")[0]]
            session.restore(read_payload(golden / kind / f"{run['name']}.payload", session.model.config.shape))
            steps = zip(forced(session, run["greedy64"]), run["greedy64"], run["margins"], np.load(file), strict=False)
            for logits, token, margin, theirs in steps:
                yield Step(run["name"], logits, token, margin, theirs)


def file_steps(model, golden_kv, index: str, folder: str, ids: str, margins: str | None) -> Iterator[Step]:
    sessions = {bits: Session(model(f"q{bits}"), CTX) for bits in (2, 4)}
    for entry in json.loads((golden_kv / index).read_text()):
        with Checkpoint.open(golden_kv / folder / entry["file"], [sessions[2].model.config.shape]) as checkpoint:
            session = sessions[checkpoint.header.quant_bits]
            with session.incoming(len(checkpoint.token_ids())) as state:
                checkpoint.read_into(state)
        known = entry[margins] if margins else [None] * len(entry[ids])
        for logits, token, margin in zip(forced(session, entry[ids]), entry[ids], known, strict=True):
            yield Step(entry["file"], logits, token, margin)


def check(steps: list[Step], at_least: int) -> None:
    clear = [step for step in steps if step.clear]
    assert len(clear) >= at_least
    wrong = [(step.name, step.token, step.margin) for step in clear if not step.agrees]
    assert not wrong


def test_forced_runs_stay_at_the_noise_floor(model, golden):
    steps = list(session_steps(model, golden))
    check(steps, 480)
    differences = [np.sqrt(np.mean((step.logits - step.theirs) ** 2)) for step in steps]
    assert np.mean(np.array(differences) < 0.1) > 0.9


def test_files_of_abi_0_continue_as_in_ds4(model, golden_kv):
    check(list(file_steps(model, golden_kv, "kv/index.json", "kv", "greedy32_after_load", None)), 500)


def test_files_of_abi_2_continue_as_in_ds4(model, golden_kv):
    args = "current/kv_index.json", "current/kv", "greedy16_after_load", "greedy16_margins"
    check(list(file_steps(model, golden_kv, *args)), 200)


def test_int8_activations_give_ds4s_token_more_often(golden_kv):
    args = "current/kv_index.json", "current/kv", "greedy16_after_load", None
    agreed = {}
    for on in (False, True):
        models = {kind: load(GOLDEN / f"tiny-{kind}.gguf", Numerics(int8_activations=on)) for kind in ("q2", "q4")}
        steps = list(file_steps(models.__getitem__, golden_kv, *args))
        agreed[on] = sum(step.agrees for step in steps) / len(steps)
    assert agreed[True] > 0.97 > agreed[False] > 0.9


def test_a_cold_prompt_gives_ds4s_64_tokens(model, golden):
    """Of the prompts on which four builds of ds4 agree for 64 greedy ids, at least one gives them here, too."""
    same = []
    for kind in ("q2", "q4"):
        for prompt in json.loads((golden / kind / "agree_prompts.json").read_text()):
            session = Session(model(kind), CTX)
            session.feed(prompt["ids"])
            drawn = []
            while len(drawn) < 64:
                drawn.append(session.sample(Sampler(), greedy=True).token)
                session.feed(drawn[-1:])
            same.append(drawn == prompt["greedy64"])
    assert any(same)
