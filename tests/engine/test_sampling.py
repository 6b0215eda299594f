"""Sampling: each cut keeps what it says, a seed repeats, greedy is greedy.

python -m pytest tests/engine/test_sampling.py
"""

from __future__ import annotations

import pytest
import torch

from kvengine import EngineError, Sampler

LOGITS = torch.log(torch.tensor([0.5, 0.2, 0.15, 0.1, 0.04, 0.01]))


def kept(**settings) -> list[int]:
    return Sampler(**{"min_p": 0.0} | settings).probabilities(LOGITS).nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 100}, [0, 1, 2, 3, 4, 5]),
        ({"top_p": 0.5}, [0]),
        ({"top_p": 0.69}, [0, 1]),
        ({"top_p": 0.001}, [0]),
        ({"min_p": 0.25}, [0, 1, 2]),
        ({"min_p": 1.0}, [0]),
        ({"min_p": 0.05}, [0, 1, 2, 3, 4]),
        ({"top_k": 4, "top_p": 0.8, "min_p": 0.35}, [0, 1]),
    ],
)
def test_cuts(settings, tokens):
    assert kept(**settings) == tokens


def test_defaults_are_ds4s():
    assert (Sampler().temperature, Sampler().top_k, Sampler().top_p, Sampler().min_p) == (1.0, 0, 1.0, 0.05)


def test_a_seed_repeats_and_frequencies_follow_the_probabilities():
    draws = [[sampler.draw(LOGITS).token for _ in range(4000)] for sampler in (Sampler(seed=7), Sampler(seed=7))]
    assert draws[0] == draws[1]
    assert abs(draws[0].count(0) / 4000 - 0.5 / 0.99) < 0.03
    assert 5 not in draws[0]  # below min_p of the largest


def test_temperature_sharpens():
    p = Sampler(temperature=0.5, min_p=0.0).probabilities(LOGITS)
    torch.testing.assert_close(p[0] / p[1], torch.tensor(6.25))


def test_greedy_leaves_the_random_numbers_alone():
    one, other = Sampler(seed=3), Sampler(seed=3)
    for _ in range(20):
        assert one.draw(LOGITS, greedy=True).token == 0
        assert one.draw(LOGITS).token == other.draw(LOGITS).token
    assert Sampler(temperature=0).draw(LOGITS).token == 0


def test_logprobs_are_the_models_own():
    drawn = Sampler(temperature=3, seed=1).draw(LOGITS, top=2)
    assert drawn.logprob == pytest.approx(float(LOGITS[drawn.token]), abs=1e-6)
    assert [token for token, _ in drawn.top] == [0, 1]
    assert drawn.top[0][1] == pytest.approx(float(LOGITS[0]), abs=1e-6)


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"min_p": 1.5}])
def test_settings_out_of_range(wrong):
    with pytest.raises(EngineError, match="out of range"):
        Sampler(**wrong)
