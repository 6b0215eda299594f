"""The roundings of stored rows and of activations, against their definitions.

python -m pytest tests/engine/test_rounding.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvengine.linear import int8_blocks_of_32, int8_blocks_of_256
from kvengine.rounding import fp4, fp8, hadamard

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
E4M3 = sorted(
    {m / 8 * 2.0**-6 for m in range(8)} | {(1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8)} - {480.0}
)
BLOCK_OF = {"fp8": (fp8, 64, 448.0, 1e-4, E4M3), "fp4": (fp4, 32, 6.0, 6 * 2.0**-126, E2M1)}

finite = st.floats(-(2.0**40), 2.0**40, width=32)


def nearest(value: float, grid: list[float]) -> float:
    """The grid's nearest value; of two equally near, the one with the even code."""
    code = min(range(len(grid)), key=lambda code: (abs(grid[code] - abs(value)), code % 2))
    return math.copysign(grid[code], value)


@pytest.mark.parametrize("name", BLOCK_OF)
@given(data=st.data())
def test_blocks_round_to_the_nearest_code_under_a_power_of_two(name, data):
    rounded, size, top, floor, grid = BLOCK_OF[name]
    block = data.draw(arrays(np.float32, size, elements=finite))
    scale = 2.0 ** math.ceil(math.log2(np.float32(max(np.abs(block).max(), np.float32(floor))) / np.float32(top)))
    expected = [nearest(max(-top, min(top, float(v) / scale)), grid) * scale for v in block]
    np.testing.assert_array_equal(rounded(torch.from_numpy(block)).numpy(), np.array(expected, np.float32))


@given(block=arrays(np.float32, 64, elements=finite))
def test_rounding_twice_is_rounding_once(block):
    once = fp8(torch.from_numpy(block))
    assert torch.equal(fp8(once), once)


def test_every_code_and_every_tie_of_fp4():
    grid = torch.tensor([*E2M1, *[-v for v in E2M1]])
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 2)
    assert torch.equal(fp4(torch.cat([grid, grid]))[:16], grid)
    assert fp4(torch.cat([ties, ties]))[:8].tolist() == [0, 1, 1, 2, 2, 4, 4, 6]


def test_hadamard_is_symmetric_orthogonal_and_in_natural_order():
    matrix = hadamard(128, torch.float64, torch.device("cpu"))
    assert torch.equal(matrix, matrix.T)
    torch.testing.assert_close(matrix @ matrix, torch.eye(128, dtype=torch.float64))
    signs = torch.tensor([[(-1) ** (i & j).bit_count() for j in range(128)] for i in range(128)])
    assert torch.equal(matrix.sign(), signs.double())


@given(block=arrays(np.float32, 256, elements=st.integers(-(10**6), 10**6).map(lambda v: v / 1000)))
def test_int8_grids(block):
    x = torch.from_numpy(block)
    for rounded, size in ((int8_blocks_of_32, 32), (int8_blocks_of_256, 256)):
        y = rounded(x)
        steps = x.unflatten(0, (-1, size)).abs().amax(-1, keepdim=True).double() / 127
        assert y.dtype == torch.float64
        assert ((y - x).abs().unflatten(0, (-1, size)) <= steps * 0.501 + 1e-30).all()
