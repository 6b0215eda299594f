"""Both switches off, the engine computes what transformers' DeepseekV4ForCausalLM computes.

python -m pytest tests/engine/test_transformers.py
"""

from __future__ import annotations

import pytest
import torch

from engine.tiny import random_model, random_tokens
from kvengine import Model, Numerics, Session, load

TOLERANCE = 1e-4  # of the largest logit

# Seeds where no selection of rows or experts is nearer than 5e-6 to a tie. Of 18 seeds compared, half differ by up to
# 3e-2 after some tokens, and each of those has a selection nearer than 4e-6: within float32 noise either choice is right.
CONFIGURATIONS = {
    "flash pattern": (2000, 3, {}),
    "pro pattern": (
        2000,
        6,
        {
            "num_hidden_layers": 4,
            "compress_ratios": [128, 128, 4, 128],
            "num_hash_layers": 1,
            "sliding_window": 32,
            "index_n_heads": 32,
            "index_head_dim": 128,
            "index_topk": 64,
            "head_dim": 192,
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 2.5,
        },
    ),
    "two streams, no hash": (
        600,
        9,
        {
            "num_hidden_layers": 5,
            "compress_ratios": [0, 4, 4, 4, 0],
            "num_hash_layers": 0,
            "o_groups": 4,
            "hc_mult": 2,
            "index_topk": 32,
        },
    ),
}


def run(model: Model, tokens: torch.Tensor, chunk: int) -> torch.Tensor:
    """Our logits after every token."""
    session = Session(model, len(tokens) + 1, prefill_chunk=chunk)
    return torch.cat([model.logits(model.forward(part, session._memory)) for part in tokens.split(chunk)])


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_logits_agree_after_every_token(name, tmp_path):
    length, seed, sizes = CONFIGURATIONS[name]
    theirs = random_model(seed, **sizes)
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path, Numerics(kv_rounding=False))
    tokens = random_tokens(length)
    with torch.no_grad():
        wanted = theirs(tokens[None]).logits[0]
    bound = TOLERANCE * wanted.abs().max()
    for chunk, upto in ((length, length), (300, length), (1, 300)):
        assert (run(ours, tokens[:upto], chunk) - wanted[:upto]).abs().max() < bound, f"in chunks of {chunk}"


def test_both_decode_alike(tmp_path):
    """Chunked prefill and single steps on their side, too."""
    theirs = random_model(3)
    theirs.save_pretrained(tmp_path)
    session = Session(load(tmp_path, Numerics(kv_rounding=False)), 1024)
    tokens, cache = random_tokens(330), None
    for part in (tokens[:130], tokens[130:300], *tokens[300:].split(1)):
        with torch.no_grad():
            answer = theirs(part[None], cache=cache, use_cache=True)
        cache = answer.cache
        session.feed(part.tolist())
        wanted = answer.logits[0, -1]
        assert (session.logits - wanted).abs().max() < TOLERANCE * wanted.abs().max()


def test_bfloat16_stays_near_float32(tmp_path):
    random_model(0).save_pretrained(tmp_path)
    tokens = random_tokens(100)
    full, short = (run(load(tmp_path, Numerics(dtype)), tokens, 100) for dtype in (torch.float32, torch.bfloat16))
    correlation = torch.corrcoef(torch.stack([full.flatten(), short.flatten()]))[0, 1]
    assert short.dtype == torch.float32
    assert correlation > 0.9  # a random model amplifies every rounding by its selections
