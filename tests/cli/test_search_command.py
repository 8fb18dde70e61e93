"""`search`: the plans of models found by words, long output through a pager, and messages that quote long values."""

from __future__ import annotations

import io
import json
import os
import pydoc
from pathlib import Path

import pytest
from doubles.commands import run_command

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.cli.output import Output
from eaglelocal.errors import MAX_CHARS, EagleLocalError


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(variable, str(tmp_path))


@pytest.mark.parametrize("words", [("GPT-OSS", "mxfp4"), ("gpt-oss mxfp4",)])
def test_rows_have_all_the_words_and_say_what_fits(words: tuple[str, ...]) -> None:
    shown = run_command("search", *words, "--machine", "rtx-3060").stdout
    machine, table, _ = shown.split("\n\n")
    heading, *rows = table.splitlines()
    assert machine == "machine  RTX 3060 12GB" and heading.split()[:2] == ["model", "quant"]
    assert [row.split()[:3] for row in rows] == [["gpt-oss-20b", "MXFP4", "11.3"], ["gpt-oss-120b", "MXFP4", "59.0"]]
    assert "no room" in rows[1] and "no room" not in rows[0]


def test_the_best_model_for_the_machine_is_marked() -> None:
    lines = run_command("search", "qwen3-8b", "--machine", "rtx-3090").stdout.splitlines()
    (best,) = [line for line in lines if line.endswith("best")]
    assert best.split()[:2] == ["qwen3-8b", "Q8_0"]
    assert "best" not in run_command("search", "gpt-oss", "mxfp4", "--machine", "rtx-3060").stdout


def test_without_words_each_model_is_listed_once_best_first() -> None:
    lines = run_command("search", "--machine", "cpu-16gb").stdout.split("\n\n")[1].splitlines()[1:]
    names = [line.split()[0] for line in lines]
    assert len(names) == len(set(names)) == len(load_catalog().targets) and lines[0].endswith("best")
    rooms = ["no room" in line for line in lines]
    assert rooms == sorted(rooms) and any(rooms)


def test_its_object_has_size_speed_and_place() -> None:
    shown = run_command("search", "qwen3-8b:q4_k_m", "--machine", "rtx-3090", "--json").stdout
    (model,) = json.loads(shown)["models"]
    assert model["reference"] == "qwen3-8b:Q4_K_M" and model["fits"] and not model["is_here"]
    assert model["tok_s"] > 40 and model["size_bytes"] > 4e9


def test_words_that_no_model_has_get_the_nearest_name() -> None:
    shown = run_command("search", "qwen3-9b").stderr
    assert "has qwen3-9b in its name" in shown and "hint: eaglelocal search qwen3" in shown


class TerminalText(io.StringIO):
    """A terminal of 24 lines."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


@pytest.mark.parametrize(("num_lines", "is_paged"), [(23, False), (24, True), (3000, True)])
def test_what_a_terminal_cannot_show_at_once_is_paged(
    num_lines: int, is_paged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    paged: list[str] = []
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    monkeypatch.setattr(pydoc, "pager", paged.append)
    stdout = TerminalText()
    Output(stdout=stdout, stderr=io.StringIO(), environ={"TERM": "xterm"}).page(["line\x1b"] * num_lines)
    shown = paged[0] if is_paged else stdout.getvalue()
    assert bool(paged) == is_paged and shown.count("\n") == num_lines and "\x1b" not in shown


def test_piped_output_is_never_paged() -> None:
    stdout = io.StringIO()
    Output(stdout=stdout, stderr=io.StringIO(), environ={"TERM": "xterm"}).page(["line"] * 3000)
    assert stdout.getvalue().count("\n") == 3000


@pytest.mark.parametrize("value", ["a" * 5000, "a b " * 2000])
def test_a_message_shows_the_ends_of_a_long_value(value: str) -> None:
    message = EagleLocalError(f"--ctx must be a number, not {value!r}").message
    assert len(message) < MAX_CHARS and message.startswith("--ctx must be a number, not 'a") and message.endswith("'")
