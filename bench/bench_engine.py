"""The engine beside transformers, save and restore beside bare loops, memory, and what unpacking weights costs.

    python bench/bench_engine.py [prefill|state|unpack]...        all three if none is named

Both engines run in this process on the same random weights, in float32, with the same threads; each figure is the best
of several runs, since other work on the machine can only make a run slower. The roundings of KV rows are off in the
comparison (transformers has none) and on, as by default, in the column that says so.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from rich.console import Console
from rich.table import Table

from kvengine import Model, Numerics, Session, load
from kvformat import writer
from kvformat.checkpoint import Checkpoint

SIZES = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "head_dim": 128,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 128,
    "o_groups": 2,
    "o_lora_rank": 64,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "num_hash_layers": 3,
    "compress_ratios": [0, 0, 4, 128, 4, 128],
    "sliding_window": 128,
    "index_n_heads": 16,
    "index_head_dim": 64,
    "index_topk": 64,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "max_position_embeddings": 1048576,
}
LENGTHS, ALONE = (128, 1024, 4096), 16384
LONG = 1 << 18  # tokens of the state that is saved and restored
DECODED = 32
FLASH_WEIGHTS_PER_TOKEN = {"gate and up": 43 * 6 * 2 * 2048 * 4096, "down": 43 * 6 * 2048 * 4096}
MIB = 1 << 20

console = Console(width=120)


def best(run: Callable[[], object], times: int) -> float:
    """Seconds of the fastest of several runs."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def table(title: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left")
    return made


# ---- prefill and decode


def random_pair(folder: Path):
    """transformers' model with random weights, and its checkpoint in `folder`."""
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    torch.manual_seed(0)
    model = DeepseekV4ForCausalLM(DeepseekV4Config(**SIZES)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(1.0 if "norm" in name else torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("tid2eid"):
                buffer.copy_(torch.rand(len(buffer), SIZES["n_routed_experts"]).argsort(1)[:, : buffer.shape[1]])
    model.save_pretrained(folder)
    return model


def our_speed(model: Model, ids: list[int], times: int) -> tuple[float, float]:
    """Tokens/s of prefill and of decode after it."""
    session = Session(model, len(ids) + DECODED + 1)

    def prefill() -> None:
        session.clear()
        session.feed(ids)

    prefilled = best(prefill, times)
    steps = iter(range(DECODED))
    return len(ids) / prefilled, 1 / best(lambda: session.feed([next(steps)]), DECODED)


@torch.no_grad()
def their_speed(model: Callable[..., object], ids: list[int], times: int) -> tuple[float, float]:
    prompt = torch.tensor([ids])
    prefilled = best(lambda: model(prompt, use_cache=True, logits_to_keep=1), times)
    cache = model(prompt, use_cache=True, logits_to_keep=1).cache
    steps = iter(range(DECODED))
    decoded = best(lambda: model(torch.tensor([[next(steps)]]), cache=cache, use_cache=True), DECODED)
    return len(ids) / prefilled, 1 / decoded


def bench_prefill() -> None:
    ids = torch.randint(0, SIZES["vocab_size"], (ALONE,), generator=torch.Generator().manual_seed(1)).tolist()
    with tempfile.TemporaryDirectory() as folder:
        theirs = random_pair(Path(folder))
        ours, rounded = load(folder, Numerics(kv_rounding=False)), load(folder)
    shown = table(
        "Tokens per second, float32",
        *("prompt", "prefill: ours", "transformers", "ratio", "decode: ours", "transformers", "ratio"),
        *("ours with KV rounding: prefill", "decode"),
    )
    for length in LENGTHS:
        times = min(max(3, 8192 // length), 16)
        mine, other = our_speed(ours, ids[:length], times), their_speed(theirs, ids[:length], min(times, 5))
        default = our_speed(rounded, ids[:length], times)
        cells = [f"{f:,.0f}" for pair in zip(mine, other, strict=True) for f in pair]
        ratios = [f"{a / b:.1f}x" for a, b in zip(mine, other, strict=True)]
        shown.add_row(
            f"{length:,}", *cells[:2], ratios[0], *cells[2:], ratios[1], f"{default[0]:,.0f}", f"{default[1]:,.0f}"
        )
    alone, default = our_speed(ours, ids, 2), our_speed(rounded, ids, 2)
    shown.add_row(
        f"{ALONE:,}", f"{alone[0]:,.0f}", "", "", f"{alone[1]:,.0f}", "", "", f"{default[0]:,.0f}", f"{default[1]:,.0f}"
    )
    console.print(shown)


# ---- the state


def bench_state() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_pair(folder)
        model = load(folder)
        before = anonymous_bytes()
        session = Session(model, 1 << 20)
        empty = anonymous_bytes()
        with session.incoming(LONG) as state:
            for _, array in state.arrays():
                array[...] = 1
        filled = anonymous_bytes()
        state = session.state()
        arrays = [array for _, array in state.arrays()]
        size = sum(array.nbytes for array in arrays)
        path, bare = folder / "0.kv", folder / "bare"
        contents = writer.Contents.from_state(state, b"text", reason="cold", quant_bits=2, now=0)

        shown = table(f"A state of {LONG:,} tokens, {size / MIB:.1f} MiB, page cache warm", "what", "ms", "MiB/s")

        def row(what: str, seconds: float, moved: int = size) -> None:
            shown.add_row(what, f"{1000 * seconds:.2f}", f"{moved / seconds / MIB:,.0f}")

        row("save, without fsync", best(lambda: writer.write(path, contents, durable=False), 7))
        row("bare loop: write every array to a new file", best(lambda: bare_write(bare, arrays), 7))
        row("save, durable", best(lambda: writer.write(path, contents), 5))
        with Checkpoint.open(path, [state.shape]) as checkpoint:
            row("restore into the session", best(lambda: restore(session, checkpoint), 7))
        targets = [np.zeros_like(array) for array in arrays]
        row("bare loop: readinto every array", best(lambda: bare_read(bare, targets), 7))
        mark = session.mark()
        row(f"mark ({mark.nbytes / MIB:.1f} MiB)", best(session.mark, 20), mark.nbytes)
        row("rewind", best(lambda: session.rewind(mark), 20), mark.nbytes)
        shown.add_row("lease of a mark", f"{1000 * best(lambda: session.lease(mark).release(), 20):.2f}", "")
    console.print(shown)
    if filled:
        console.print(
            f"Anonymous resident memory: a session for {1 << 20:,} tokens adds {(empty - before) / MIB:,.1f} MiB, the "
            f"{LONG:,} tokens then {(filled - empty) / MIB:,.1f} MiB.\n",
            soft_wrap=True,
        )


def bare_write(path: Path, arrays: list[np.ndarray]) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb", buffering=0) as file:
        for array in arrays:
            file.write(array)


def bare_read(path: Path, arrays: list[np.ndarray]) -> None:
    with path.open("rb", buffering=0) as file:
        for array in arrays:
            file.readinto(array)


def restore(session: Session, checkpoint: Checkpoint) -> None:
    with session.incoming(len(checkpoint.token_ids())) as state:
        checkpoint.read_into(state)


def anonymous_bytes() -> int:
    """Resident memory that no file backs; 0 where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon")), 0)


# ---- weights


def bench_unpack() -> None:
    rng = np.random.default_rng(0)
    shown = table("Unpacking weights with gguf-py", "type", "bits/weight", "packed MB/s", "million weights/s")
    speed = {}
    for kind in (Kind.F16, Kind.BF16, Kind.Q8_0, Kind.MXFP4, Kind.Q4_K, Kind.Q2_K, Kind.IQ2_XXS):
        block, block_bytes = GGML_QUANT_SIZES[kind]
        count = 1 << 21
        if kind.name in ("Q4_K", "Q2_K", "IQ2_XXS"):  # read-only types: any bytes will do
            data = rng.integers(0, 256, count // block * block_bytes, np.uint8).reshape(1024, -1)
        else:
            data = quantize(rng.standard_normal((1024, count // 1024), np.float32), kind)
        with np.errstate(all="ignore"):
            seconds = best(lambda data=data, kind=kind: dequantize(data, kind), 5)
        speed[kind] = count / seconds
        shown.add_row(
            kind.name,
            f"{8 * block_bytes / block:.2f}",
            f"{data.nbytes / seconds / 1e6:,.0f}",
            f"{count / seconds / 1e6:,.0f}",
        )
    console.print(shown)
    for name, gate_up, down in (("IQ2_XXS/Q2_K", Kind.IQ2_XXS, Kind.Q2_K), ("Q4_K", Kind.Q4_K, Kind.Q4_K)):
        weights = FLASH_WEIGHTS_PER_TOKEN
        seconds = weights["gate and up"] / speed[gate_up] + weights["down"] / speed[down]
        console.print(
            f"A real Flash file with {name} experts: 43 layers x 6 experts unpacked for one token take {seconds:,.0f} s "
            "when none is in the cache. kvengine is the reference for the format, not the way to run that model.",
            soft_wrap=True,
        )


def main() -> None:
    threads = torch.get_num_threads()
    console.print(f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}")
    console.print(f"model: {json.dumps({k: v for k, v in SIZES.items() if not isinstance(v, dict)})}\n", soft_wrap=True)
    benches = {"prefill": bench_prefill, "state": bench_state, "unpack": bench_unpack}
    for name in sys.argv[1:] or benches:
        benches[name]()


if __name__ == "__main__":
    main()
