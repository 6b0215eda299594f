"""The commands of the README are run where it says they are, and print what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from console import Step, steps

README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.fixture
def place(restart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kv` as the real server found it at a restart, `later` at the next one, `tools` with tool calls, and a changed request."""
    for name, golden in (("kv", "basic_q2_run2"), ("later", "basic_q2_run3"), ("tools", "tools_q2_run2")):
        (tmp_path / name).symlink_to(restart / golden / "kv")
    requests = json.loads((restart / "basic_q2_run2/run.json").read_bytes())["requests"]
    body = next(json.dumps(row["request"]) for row in requests if row["name"] == "A3_again")
    (tmp_path / "today.json").write_text(body.replace("a helpful assistant", "a careful assistant"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("step", steps(README), ids=lambda step: step.command.split()[1])
def test_it_prints_what_the_readme_says(step: Step) -> None:
    step.check()
