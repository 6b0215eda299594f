"""What each room imports: the tools start at once, and the format works where the engine and the server are not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from strategies import plain_file

EXTRAS = ("torch", "tokenizers", "sanic", "gguf", "safetensors")
HEAVY = ("numpy", *EXTRAS)
MODEL = Path(__file__).parent / "golden" / "models" / "tiny-q2.gguf"

# Run in a fresh interpreter: a verb as a shell would run it, then the heavy modules that it pulled in.
REPORT = """
import sys
from kvtools.cli import main
sys.argv[0] = "kvtool"
try:
    main()
except SystemExit as done:
    print(done.code, *sorted({name.partition(".")[0] for name in sys.modules} & set(%r)), file=sys.stderr)
"""

# The same where the other extras are not installed.
BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in %r:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def run(code: str, *args: object) -> tuple[str, str]:
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr.splitlines()[-1] if done.stderr else ""


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of 1,000 files."""
    folder = tmp_path_factory.mktemp("thousand")
    for number in range(999):
        (folder / f"{number:040x}.kv").write_bytes(plain_file().data)
    (folder / plain_file().name).write_bytes(plain_file().data)
    return folder


def test_help_imports_nothing_heavy() -> None:
    out, last = run(REPORT % (HEAVY,), "--help")
    assert "Usage:" in out
    assert last == "0"


@pytest.mark.parametrize("style", [[], ["--json"]])
def test_ls_of_a_thousand_files_imports_nothing_heavy(thousand: Path, style: list[str]) -> None:
    out, last = run(REPORT % (HEAVY,), "ls", *style, thousand)
    assert out.count(".kv") == 1000
    assert last == "0"


def test_the_report_would_show_a_heavy_import() -> None:
    assert run("import numpy\n" + REPORT % (HEAVY,), "--help")[1] == "0 numpy"


@pytest.mark.parametrize("verb", ["ls", "inspect", "verify"])
def test_the_verbs_work_without_the_other_extras(thousand: Path, verb: str) -> None:
    target = thousand if verb == "ls" else thousand / plain_file().name
    out, last = run(BLOCK % (EXTRAS,) + REPORT % (EXTRAS,), verb, target)
    assert plain_file().name in out
    assert last == "0"


def test_a_request_is_read_without_the_other_extras(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text('{"messages": [{"role": "user", "content": "Hello"}]}')
    out, last = run(BLOCK % (EXTRAS,) + REPORT % (EXTRAS,), "why", tmp_path, "--request", request)
    assert "everything is prefilled" in out
    assert last == "1"


@pytest.mark.parametrize(
    ("verb", "option", "lacking", "extra"),
    [("tokens", "--tokenizer", "tokenizers", "prompt"), ("verify", "--model", "torch", "engine")],
)
def test_an_option_whose_extra_is_lacking_is_one_sentence(
    verb: str, option: str, lacking: str, extra: str, tmp_path: Path
) -> None:
    file = tmp_path / "file.kv"
    file.write_bytes(plain_file().data)
    code = BLOCK % ((lacking,),) + "from kvtools.cli import main\nmain()"
    ran = subprocess.run([sys.executable, "-c", code, verb, file, option, MODEL], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr.count("\n")) == (3, 1)
    assert f"'{lacking}'" in ran.stderr and ran.stderr.endswith(f"pip install 'ds4kv[{extra}]'\n")


def test_kvformat_writes_and_reads_without_the_other_extras(tmp_path: Path) -> None:
    code = BLOCK % ((*EXTRAS, "click", "rich"),)
    code += """
import pkgutil, importlib, kvformat
for module in pkgutil.iter_modules(kvformat.__path__):
    importlib.import_module(f"kvformat.{module.name}")
from kvformat.checkpoint import Checkpoint
from kvformat.writer import Contents, write
path = sys.argv[1]
with Checkpoint.open(path) as checkpoint:
    write(checkpoint.path.with_name("copy.kv"), Contents.of(checkpoint))
"""
    path = tmp_path / "file.kv"
    path.write_bytes(plain_file().data)
    run(code, path)
    assert (tmp_path / "copy.kv").read_bytes() == plain_file().data


@pytest.mark.parametrize("lacking", ["sanic", "torch"])
def test_kvserve_without_its_extra_is_one_sentence(lacking: str) -> None:
    code = f"import sys; sys.modules[{lacking!r}] = None; from kvserver.entry import main; sys.argv = ['kvserve', '--help']; main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    if lacking == "sanic":
        assert ran.returncode == 2
        assert ran.stderr == "kvserve: the package 'sanic' is needed; install it with: pip install 'ds4kv[server]'\n"
    else:
        assert ran.returncode == 0, "torch is not needed to show the options"
