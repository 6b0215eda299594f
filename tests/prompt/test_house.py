"""kvprompt knows no torch and no HTTP, and says in one sentence which extra is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = "import sys; sys.modules.update(dict.fromkeys({names!r}))\n"


def run(script: str, *blocked: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED.format(names=blocked) + script], capture_output=True, text=True, check=False
    )


def test_rendering_needs_no_other_package():
    script = (
        "import json, kvprompt.keys, kvprompt.dsml, kvprompt.tokenizer\n"
        "from kvprompt.dialects import parse_chat\n"
        "from kvprompt.render import Style, render\n"
        'print(len(render(parse_chat(b\'{"messages":[{"content":"a"}]}\'), Style()).text))'
    )
    names = ("torch", "sanic", "tokenizers", "gguf", "numpy", "kvformat", "kvtools", "kvengine", "kvserver")
    done = run(script, *names)
    assert (done.stderr, done.returncode) == ("", 0)
    assert int(done.stdout) > 20


@pytest.mark.parametrize(
    ("package", "script"),
    [
        ("tokenizers", "from kvprompt.tokenizer import Tokenizer; f = lambda: Tokenizer.from_file('x')"),
        ("gguf", "from kvprompt.gguf_header import read_gguf; f = lambda: read_gguf(sys.argv[1])"),
    ],
)
def test_a_missing_extra_is_a_sentence(package: str, script: str):
    from prompt.conftest import MODEL

    catch = (
        "\nimport sys\nfrom kvprompt.errors import MissingExtra\n"
        f"sys.argv[1:] = [{str(MODEL)!r}]\n"
        "try:\n    f()\nexcept MissingExtra as missing:\n    print(missing)"
    )
    done = run("import sys; " + script + catch, package)
    assert done.stderr == ""
    assert "pip install 'ds4kv[prompt]'" in done.stdout
    assert done.stdout.count("\n") == 1
