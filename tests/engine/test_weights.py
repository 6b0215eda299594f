"""Weights of every kind unpack to what they mean, and what is wrong with a file is said in a sentence.

python -m pytest tests/engine/test_weights.py
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from engine.tiny import as_numbers, random_model, random_tokens, write_gguf
from kvengine import EngineError, Numerics, Session, load
from kvengine.config import Config
from kvformat.shapes import FLASH, PRO
from kvprompt.errors import BadModelFile

GOLDEN = Path(__file__).parents[1] / "golden" / "models"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random checkpoint as transformers saves it, and `as.gguf` beside it."""
    path = tmp_path_factory.mktemp("hf")
    random_model(0, num_hidden_layers=4, compress_ratios=[0, 4, 128, 4, 0], num_hash_layers=1).save_pretrained(path)
    return path


def logits(path: Path, **options) -> torch.Tensor:
    model = load(path, Numerics(kv_rounding=False), **options)
    session = Session(model, 256)
    return model.logits(model.forward(random_tokens(200), session._memory))


def test_safetensors_and_gguf_give_the_same_logits(folder, tmp_path):
    config, tensors = as_numbers(folder)
    write_gguf(tmp_path / "as.gguf", config, tensors)
    assert torch.equal(logits(tmp_path / "as.gguf"), logits(folder))


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.BF16, Kind.MXFP4])
def test_a_quantised_gguf_gives_the_logits_of_its_values(folder, tmp_path, kind):
    """Whatever gguf-py dequantises can stand for any projection: experts, dense weights, the embedding."""
    config, tensors = as_numbers(folder)
    packed, values = dict(tensors), dict(tensors)
    for name in ("token_embd.weight", "output.weight", "blk.1.attn_q_b.weight", "blk.2.ffn_down_exps.weight"):
        data = quantize(tensors[name].astype(np.float32), kind)
        packed[name] = (data, kind)
        values[name] = dequantize(data, kind).reshape(tensors[name].shape)
    write_gguf(tmp_path / "packed.gguf", config, packed)
    write_gguf(tmp_path / "values.gguf", config, values)
    assert torch.equal(logits(tmp_path / "packed.gguf"), logits(tmp_path / "values.gguf"))


def test_fp8_and_fp4_blocks_give_the_logits_of_their_values(folder, tmp_path):
    """DeepSeek's own encodings: dense weights in FP8 with 128x128 scales, experts in FP4 with scales of 32."""
    packed, values = load_file(folder / "model.safetensors"), load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(7)

    def scales(*shape: int) -> torch.Tensor:
        return torch.exp2(torch.randint(-6, -2, shape, generator=generator).float())

    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    for name, weight in list(values.items()):
        rows, columns = weight.shape if weight.ndim == 2 else (0, 0)
        scale_name = name.removesuffix("weight") + "scale"
        if "wq_b.weight" in name:
            scale = scales(-(-rows // 128), -(-columns // 128))
            packed[name] = weight.to(torch.float8_e4m3fn)
            packed[scale_name] = scale.to(torch.float8_e8m0fnu)
            spread = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
            values[name] = packed[name].float() * spread
        elif ".experts." in name and "shared" not in name:
            scale = scales(rows, columns // 32)
            codes = torch.randint(0, 16, (rows, columns), generator=generator, dtype=torch.uint8)
            packed[name] = (codes[:, 0::2] | codes[:, 1::2] << 4).view(torch.int8)
            packed[scale_name] = scale.to(torch.float8_e8m0fnu)
            signed = table[(codes & 7).long()] * torch.where(codes > 7, -1.0, 1.0)
            values[name] = signed * scale.repeat_interleave(32, 1)
    for target, tensors in (("packed", packed), ("values", values)):
        (tmp_path / target).mkdir()
        shutil.copy(folder / "config.json", tmp_path / target)
        save_file(tensors, tmp_path / target / "model.safetensors")
    assert torch.equal(logits(tmp_path / "packed"), logits(tmp_path / "values"))


def test_the_expert_cache_is_bounded_and_changes_nothing(folder):
    model = load(folder, Numerics(kv_rounding=False))
    cache = model.layers[0].experts.routed.__closure__  # one cache for all layers
    cache = next(cell.cell_contents for cell in cache if hasattr(cell.cell_contents, "cache")).cache
    wide = logits(folder)
    assert torch.equal(wide, logits(folder, expert_cache_bytes=1))
    cache.limit = 3 * 128 * 64 * 4 * 5
    model.forward(random_tokens(200), Session(model, 256)._memory)
    assert 0 < cache.nbytes <= cache.limit
    assert len(cache.experts) == 5


# ---- sizes come from the metadata


def test_config_of_a_gguf():
    config = load(GOLDEN / "tiny-q2.gguf").config
    assert config.ratios == (0, 0, 4, 128, 4)
    assert (config.head_dim, config.window, config.top_k, config.experts) == (192, 16, 8, 8)
    assert config.shape.payload_bytes(1) == 285024


def test_published_and_saved_hf_configs_mean_the_same(folder):
    saved = json.loads((folder / "config.json").read_text())
    published = saved | {
        "compress_ratios": [0, 4, 128, 4, 0],
        "num_hash_layers": 1,
        "rope_scaling": {"factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536},
    }
    for key in ("layer_types", "mlp_layer_types", "rope_parameters"):
        del published[key]
    assert Config.from_hf(published) == Config.from_hf(saved)


@pytest.mark.parametrize(("shape", "heads"), [(FLASH, 64), (PRO, 128)])
def test_the_shapes_of_the_real_models_are_recognised(folder, shape, heads):
    saved = json.loads((folder / "config.json").read_text())
    real = saved | {
        "num_hidden_layers": shape.layers,
        "compress_ratios": [*shape.ratios, 0],
        "head_dim": 512,
        "num_attention_heads": heads,
        "index_head_dim": 128,
        "vocab_size": 129280,
        "sliding_window": 128,
    }
    assert Config.from_hf(real).shape is shape


# ---- wrong or incomplete files


def test_incomplete_weights(folder, tmp_path):
    config, tensors = as_numbers(folder)
    del tensors["blk.1.attn_kv.weight"]
    write_gguf(tmp_path / "x.gguf", config, tensors)
    with pytest.raises(EngineError, match=r"x.gguf: the weights lack blk.1.attn_kv.weight; .*incomplete"):
        load(tmp_path / "x.gguf")


def test_weights_of_another_size(folder, tmp_path):
    config, tensors = as_numbers(folder)
    tensors["blk.0.attn_norm.weight"] = np.ones(64, np.float32)
    write_gguf(tmp_path / "x.gguf", config, tensors)
    with pytest.raises(EngineError, match=r"attn_norm.weight does not fit .*expected \(128,\), found \(64,\)"):
        load(tmp_path / "x.gguf")


def test_a_truncated_gguf(tmp_path):
    data = (GOLDEN / "tiny-q2.gguf").read_bytes()
    (tmp_path / "x.gguf").write_bytes(data[: len(data) // 2])
    with pytest.raises(BadModelFile, match="would end at byte"):
        load(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": "llama"}, "another model"),
        ({"head_dim": None}, "lacks head_dim"),
        ({"compress_ratios": [0, 4, 64, 4]}, "ratios"),
        ({"o_groups": 3}, "groups"),
        ({"qk_rope_head_dim": 256}, "rotated tail"),
    ],
)
def test_wrong_config(folder, tmp_path, change, sentence):
    saved = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(saved | change))
    with pytest.raises(EngineError, match=sentence):
        load(tmp_path)


def test_broken_safetensors(folder, tmp_path):
    with pytest.raises(EngineError, match=r"config\.json"):
        load(tmp_path)
    shutil.copy(folder / "config.json", tmp_path)
    with pytest.raises(EngineError, match="lack token_embd"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(EngineError, match="not a sound safetensors file"):
        load(tmp_path)


def test_an_encoding_that_gguf_py_does_not_know(folder, tmp_path):
    config, tensors = as_numbers(folder)
    tensors["output.weight"] = (np.zeros(tensors["output.weight"].shape, np.int8), Kind.I8)
    write_gguf(tmp_path / "x.gguf", config, tensors)
    with pytest.raises(EngineError, match="cannot unpack I8 weights"):
        load(tmp_path / "x.gguf")


def test_a_table_of_experts_that_do_not_exist(folder, tmp_path):
    config, tensors = as_numbers(folder)
    tensors["blk.0.ffn_gate_tid2eid.weight"] = np.full((config.vocab, config.experts_used), 8, np.int32)
    write_gguf(tmp_path / "x.gguf", config, tensors)
    with pytest.raises(EngineError, match="names an expert that does not exist"):
        load(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        (
            "model.layers.1.attn.wq_b.weight",
            lambda w: w.to(torch.float8_e4m3fn),
            "has one byte per value and no .*scale",
        ),
        ("model.layers.1.ffn.experts.3.w1.weight", lambda w: w[:32].clone(), "different sizes"),
        ("model.layers.1.ffn.experts.3.w1.weight", None, r"expected \(8, 64, 128\), found \(7, 64, 128\)"),
    ],
)
def test_safetensors_that_contradict_themselves(folder, tmp_path, name, change, sentence):
    tensors = load_file(folder / "model.safetensors")
    weight = tensors.pop(name)
    if change is not None:
        tensors[name] = change(weight)
    shutil.copy(folder / "config.json", tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(EngineError, match=sentence):
        load(tmp_path)


def test_heads_that_the_roundings_cannot_divide(folder, tmp_path):
    random_model(0, num_hidden_layers=1, compress_ratios=[0], head_dim=96).save_pretrained(tmp_path)
    load(tmp_path, Numerics(kv_rounding=False))
    with pytest.raises(EngineError, match="blocks of the KV roundings"):
        load(tmp_path)


def test_without_the_extra_one_sentence_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None\nimport kvengine"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'ds4kv[engine]'" in done.stderr.splitlines()[-1]
