"""Options: one declaration, four sources, and wrong values answered with the right ones."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvformat.policy import Knobs
from kvserver import settings
from kvserver.main import sentence
from kvserver.settings import TOLD, Settings, read_settings

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text()


def read(*arguments: str) -> Settings:
    """The settings of a command line that is no mere question for help."""
    found = read_settings(arguments)
    assert isinstance(found, Settings)
    return found


def refused(*arguments: str) -> str:
    """The sentence that a command line is refused with."""
    with pytest.raises(click.ClickException) as refusal:
        read_settings(arguments)
    return sentence(refusal.value)


def test_nothing_said_is_the_defaults() -> None:
    assert read() == Settings()


def test_the_defaults_of_the_cache_are_those_of_kvformat() -> None:
    ours, knobs = Settings(), Knobs()
    assert knobs == Knobs(
        min_tokens=ours.kv_cache_min_tokens,
        cold_max=ours.kv_cache_cold_max_tokens,
        interval=ours.kv_cache_continued_interval_tokens,
        trim=ours.kv_cache_boundary_trim_tokens,
        align=ours.kv_cache_boundary_align_tokens,
        order=ours.kv_cache_boundary_order,
    )


@pytest.mark.parametrize("name", TOLD)
def test_every_option_has_help_a_section_and_a_row_in_the_page(name: str) -> None:
    told = TOLD[name]
    assert told.help.endswith(".") and told.section
    default = {field.name: field.default for field in fields(Settings)}[name]
    shown = ",".join(default) if isinstance(default, tuple) else str(default)
    shown = "" if default is None else "off" if default is False else shown
    flag = f"`{told.short}`, `--{name}`" if told.short else f"`--{name}`"
    assert f"| {flag.replace('_', '-')} | {shown} |" in PAGE


def test_help_shows_the_sections_in_order() -> None:
    shown = CliRunner().invoke(settings.command(), ["--help"]).stdout
    headings = ["Model:", "HTTP:", "Checkpoints on disk:", "Prompt:", "Log:", "Other:"]
    assert [line for line in shown.splitlines() if line in headings] == headings
    for name in TOLD:
        assert f"--{name.replace('_', '-')}" in shown


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"]])
def test_a_question_is_answered_with_exit_code_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert read_settings(arguments) == 0
    assert "kvserve" in capsys.readouterr().out or "--port" in capsys.readouterr().out


class TestSources:
    @pytest.fixture
    def config(self, tmp_path: Path) -> str:
        path = tmp_path / "kvserve.toml"
        path.write_text('port = 1\nctx = 1000\nsessions = 3\nkv-abi = 2\nkv_cache_policy = "lru"\n')
        return str(path)

    def test_command_line_then_environment_then_file_then_default(
        self, config: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KVSERVE_PORT", "2")
        monkeypatch.setenv("KVSERVE_CTX", "2000")
        found = read("--config", config, "--port", "3")
        assert (found.port, found.ctx, found.sessions, found.mark_memory_mb) == (3, 2000, 3, 512)
        assert (found.kv_abi, found.kv_cache_policy) == (2, "lru")

    def test_the_file_may_be_named_in_the_environment(self, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KVSERVE_CONFIG", config)
        assert read().port == 1

    @pytest.mark.parametrize("name", TOLD)
    def test_every_option_can_come_from_each(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text, value = _other_than_default(name, tmp_path)
        path = tmp_path / "kvserve.toml"
        path.write_text(f"{name.replace('_', '-')} = {'true' if value is True else repr(text)}\n")
        assert getattr(read("--config", str(path)), name) == value
        flag = f"--{name.replace('_', '-')}"
        assert getattr(read(*([flag] if value is True else [flag, text])), name) == value
        monkeypatch.setenv(f"KVSERVE_{name.upper()}", text)
        assert getattr(read(), name) == value

    def test_volatile_lines_may_be_a_list_or_none(self, tmp_path: Path) -> None:
        path = tmp_path / "kvserve.toml"
        path.write_text('strip-volatile = ["date", "billing"]')
        assert read("--config", str(path)).strip_volatile == ("date", "billing")
        path.write_text("strip-volatile = []")
        assert read("--config", str(path)).strip_volatile == ()
        assert read("--strip-volatile", "none").strip_volatile == ()


def _other_than_default(name: str, tmp_path: Path) -> tuple[str, object]:
    """Some good value as text and as what it is read as."""
    words = {
        "kv_cache_boundary_order": "trim-then-align",
        "kv_cache_policy": "upstream",
        "tool_preamble": "2026-05",
        "host": "::1",
        "api_key": "k",
        "cors": "*",
    }
    default = {field.name: field.default for field in fields(Settings)}[name]
    if name in words:
        return words[name], words[name]
    if name == "kv_abi":
        return "0", 0
    if name == "strip_volatile":
        return "date", ("date",)
    if default is None:
        path = tmp_path / name
        path.touch() if name == "model" else None
        return str(path), path
    return ("true", True) if default is False else ("77", 77)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--kv-cache-policy", "x"], "--kv-cache-policy: 'x' is not one of 'ours', 'upstream', 'lru'."),
        (["--kv-abi", "1"], "--kv-abi: '1' is not one of 'auto', '0', '2'."),
        (["--port", "99999"], "--port: 99999 is not in the range 0<=x<=65535."),
        (["--ctx", "many"], "--ctx: 'many' is not a valid number."),
        (["--strip-volatile", "x,date"], "'x' is not one of 'billing', "),
        (["-m", "/nowhere.gguf"], "--model: Path '/nowhere.gguf' does not exist."),
        (["--kv-disk-spaces-mb", "1"], "--kv-disk-space-mb"),
        (["extra"], "extra"),
    ],
)
def test_a_wrong_value_is_answered_with_the_right_ones(arguments: list[str], sentence: str) -> None:
    assert sentence in refused(*arguments)


def test_a_wrong_value_in_the_environment_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSERVE_PORT", "eighty")
    assert refused() == "--port (KVSERVE_PORT): 'eighty' is not a valid number."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 1", "there is no option prot; did you mean port?"),
        ("zzzzzz = 1", "there is no option zzzzzz; see kvserve --help"),
        ("port = 'x'", "--port"),
        ("port = true", "--port"),
        ("ctx = 2.5", "--ctx"),
        ("[http]\nport = 1", "there is no option http"),
        ("port = ", "cannot be read as TOML"),
        ("port = '\xff'", "cannot be read as TOML"),
    ],
)
def test_a_wrong_file_is_answered_with_what_is_wrong(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "kvserve.toml"
    path.write_bytes(text.encode("latin-1"))
    assert sentence in refused("--config", str(path))
