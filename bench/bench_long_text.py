"""A text of 20 MB that does not fit: how long until it is refused, what memory that takes, and who waits meanwhile.

With the context of the first rows it cannot fit, with the large one it has to be tokenised to know. The rival gives the whole
text to the tokenizer package in one call, as `kvserve` did. Short requests run one after the other, alone and beside it.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from e2e.process import MODEL, Server

MB = 1_000_000
KINDS = {"words": b"pass ", "letters": b"abcdefghij"}
CONTEXTS = (32_768, 1_048_576)
SHORT = {"model": "m", "messages": [{"role": "user", "content": "2+2?"}], "max_tokens": 1, "temperature": 0}
AT_ONCE = """
import sys, time
from kvprompt.gguf_header import read_gguf
from kvprompt.splitting import ALPHABET, DS4_PATTERN
import json, resource, tokenizers
tokens, merges = (read_gguf(sys.argv[1]).metadata["tokenizer.ggml." + name] for name in ("tokens", "merges"))
vocabulary = {token: id for id, token in enumerate(tokens)}
engine = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [tuple(merge.split(" ", 1)) for merge in merges]))
engine.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(DS4_PATTERN), "isolated")
text = sys.stdin.read().replace(" ", ALPHABET[32])
before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
engine.encode(text).ids
print(time.perf_counter() - started, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a process, in MB: now, and at most so far."""

    resident: float
    peak: float

    @classmethod
    def of(cls, pid: int) -> Memory:
        kib = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()))
        return cls(*(int(kib[name]) * 1024 / MB for name in ("VmRSS", "VmHWM")))


def ask(server: Server, body: object) -> tuple[float, str]:
    """Seconds until the answer or the refusal is read, and the refusal."""
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(body).encode())
    started, refusal = time.perf_counter(), ""
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            response.read()
    except urllib.error.HTTPError as error:
        refusal = json.load(error)["error"]["message"]
    return time.perf_counter() - started, refusal


def beside(server: Server, text: str) -> tuple[float, str, list[float]]:
    """The same for a long text, and the seconds of each short request that began meanwhile."""
    over, waits = threading.Event(), list[float]()

    def short() -> None:
        while not over.is_set():
            waits.append(ask(server, SHORT)[0])

    thread = threading.Thread(target=short)
    thread.start()
    seconds, refusal = ask(server, SHORT | {"messages": [{"role": "user", "content": text}]})
    over.set()
    thread.join()
    return seconds, refusal, waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=20)
    size = parser.parse_args().mb * MB
    print(f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {MODEL.name}, {size:,} bytes")
    print(
        f"\n{'':34} {'refused in':>10} {'memory':>8} {'peak':>8} {'after':>8}   a short request: alone, beside (most)"
    )
    for kind, unit in KINDS.items():
        text = (unit * (size // len(unit))).decode()
        row = [sys.executable, "-c", AT_ONCE, str(MODEL)]
        seconds, before, peak = map(
            float, subprocess.run(row, input=text.encode(), capture_output=True, check=True).stdout.split()
        )
        print(
            f"{f'{kind}, in one call (the rival)':34} {seconds:8.2f} s {before * 1024 / MB:5,.0f} MB {peak * 1024 / MB:5,.0f} MB"
        )
        for context in CONTEXTS:
            with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "log", "-c", str(context)) as server:
                ask(server, SHORT)
                alone = min(ask(server, SHORT)[0] for _ in range(20))
                idle = Memory.of(server.process.pid)
                seconds, refusal, waits = beside(server, text)
                after = Memory.of(server.process.pid)
                assert "too long" in refusal, refusal
                print(
                    f"{f'{kind}, context {context:,}':34} {seconds:8.2f} s {idle.resident:5,.0f} MB {after.peak:5,.0f} MB"
                    f" {after.resident:5,.0f} MB   {alone * 1e3:.0f} ms, {max(waits) * 1e3:.0f} ms ({len(waits)} asked)"
                )
                server.stop()


if __name__ == "__main__":
    main()
