"""From logits to a token.

    p = softmax(logits / temperature);  keep the top k;  of those the smallest set of mass top_p;  of those all with
    p >= min_p · max p;  draw.  Temperature 0 is greedy.

Log-probabilities are those of the model itself, before temperature and cuts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .errors import EngineError


@dataclass(frozen=True, slots=True)
class Sampled:
    """One drawn token, its log-probability, and the most likely tokens with theirs, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sampler:
    """The settings of one request, and its own random numbers: the same seed draws the same tokens."""

    temperature: float = 1.0
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    min_p: float = 0.05
    seed: int | None = None
    generator: torch.Generator = field(default_factory=torch.Generator, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise EngineError("a sampling setting is out of range", found=self)
        if self.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(self.seed)

    def draw(self, logits: Tensor, *, greedy: bool = False, top: int = 0) -> Sampled:
        """A token for logits [V]. `greedy` takes the most likely one this time and leaves the random numbers alone."""
        logits = logits.float().cpu()
        if greedy or self.temperature == 0:
            token = int(logits.argmax())
        else:
            token = int(torch.multinomial(self.probabilities(logits), 1, generator=self.generator))
        logprobs = logits.log_softmax(-1)
        values, ids = logprobs.topk(top)
        return Sampled(token, float(logprobs[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))

    def probabilities(self, logits: Tensor) -> Tensor:
        """[V], not normalised: zero for what the cuts remove."""
        p = (logits / self.temperature).softmax(-1)
        if 0 < self.top_k < len(p):
            p = p.where(p >= p.topk(self.top_k).values[-1], 0)
        if self.top_p < 1:
            ranked, order = p.sort(descending=True, stable=True)
            before = ranked.cumsum(-1) - ranked  # mass of everything more likely; the first always stays
            p[order[before >= self.top_p * ranked.sum()]] = 0
        return p.where(p >= self.min_p * p.max(), 0)
