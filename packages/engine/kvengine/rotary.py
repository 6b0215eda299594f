"""Rotary positions on interleaved pairs of a head's tail.

    (x[2i] + j·x[2i+1]) <- (x[2i] + j·x[2i+1]) · e^(j·p·f_i)         f_i = base^(-2i/r)

Layers without a compressor use `rope_base`. All others (queries, keys, compressed rows, indexer) use the compressed base
with YaRN by parts: frequencies slower than beta_slow turns of the trained context are divided by the factor, those
faster than beta_fast are kept, with a linear ramp in between and no change of magnitude. A compressed row has the
position of the first token of its window. After attention the tail is turned back by the query's own position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .config import Config, Numerics


def rotate_(x: Tensor, turn: Tensor) -> None:
    """Turn the last 2r values of each row of x [..., d] in place by `turn` [..., r], complex."""
    tail = x[..., x.shape[-1] - 2 * turn.shape[-1] :]
    pairs = torch.view_as_complex(tail.to(turn.real.dtype).unflatten(-1, (-1, 2)))
    tail.copy_(torch.view_as_real(pairs * turn).flatten(-2))


@dataclass(frozen=True, slots=True)
class Rotary:
    """The angles of one kind of layer."""

    base: float
    blend: np.ndarray  # [r], float32: what YaRN multiplies each frequency with
    running: bool  # ds4's CPU path multiplies the angle up pair by pair in float32, and its files remember that
    dtype: torch.dtype  # complex
    device: torch.device

    @classmethod
    def of(cls, config: Config, numerics: Numerics, compressed: bool, device: torch.device) -> Rotary:
        base = config.compressed_rope_base if compressed else config.rope_base
        blend = yarn_blend(config) if compressed else np.ones(config.rope_dim // 2, np.float32)
        dtype = torch.complex128 if numerics.int8_activations else torch.complex64
        return cls(base, blend, numerics.int8_activations, dtype, device)

    def turns(self, positions: Tensor) -> Tensor:
        """e^(j·angle) of each position [S] -> [S, r]."""
        angles = self._angles(positions).double()  # a float32 cosine may depend on how many are computed at once
        return torch.complex(angles.cos().float(), angles.sin().float()).to(self.dtype)

    def _angles(self, positions: Tensor) -> Tensor:
        pairs = len(self.blend)
        if self.running:
            steps = np.full((len(positions), pairs), self.base ** (-1 / pairs), np.float32)
            steps[:, 0] = positions.cpu().numpy()
            angles = np.multiply.accumulate(steps, axis=1) * self.blend
            return torch.from_numpy(angles).to(self.device)
        frequencies = (self.base ** (-np.arange(pairs) / pairs)).astype(np.float32) * self.blend
        return positions.float()[:, None] * torch.from_numpy(frequencies).to(self.device)


def yarn_blend(config: Config) -> np.ndarray:
    """[r] float32: 1 for fast pairs, 1/factor for slow ones, a ramp from pair `low` to pair `high`."""

    def pair_of(turns: float) -> float:  # the pair that makes so many turns over the trained context
        wavelength = config.yarn_context / (turns * 2 * math.pi)
        return config.rope_dim * math.log(wavelength) / (2 * math.log(config.compressed_rope_base))

    low = max(math.floor(pair_of(config.yarn_beta_fast)), 0)
    high = min(math.ceil(pair_of(config.yarn_beta_slow)), config.rope_dim - 1)
    ramp = np.clip((np.arange(config.rope_dim // 2) - low) / max(high - low, 1e-3), 0, 1)
    return (1 - ramp + ramp / config.yarn_factor).astype(np.float32)
