"""What a shell completes: the values of options."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from doubles.commands import run_command

from eaglelocal.cli import completion
from eaglelocal.client.running_servers import describe_this_server, keep_announced

ROOT = Path(__file__).parents[2]


def completed(words: str, tmp_path: Path) -> list[str]:
    """Complete as bash does; a blank at the end begins a new word."""
    number = len(words.split()) - (not words.endswith(" "))
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("EAGLELOCAL_")},
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(tmp_path),
        "_EAGLELOCAL_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(number),
    }
    done = run_command(environ=environ)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("eaglelocal plan --goal ", ["speed", "balanced", "quality"]),
        ("eaglelocal plan --goal q", ["quality"]),
        ("eaglelocal chat --kv-type q", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]),
        ("eaglelocal serve --log ", ["text", "json"]),
        ("eaglelocal chat --draft n", ["ngram", "none"]),
        ("eaglelocal chat --draft ./h.gguf,", ["./h.gguf,ngram", "./h.gguf,lookahead"]),
        ("eaglelocal chat --draft ngram,", ["ngram,lookahead"]),
    ],
)
def test_words_of_options(words: str, expected: list[str], tmp_path: Path) -> None:
    assert completed(words, tmp_path) == expected


def test_machines_and_models(tmp_path: Path) -> None:
    assert "rtx-3090" in completed("eaglelocal plan --machine rtx-3", tmp_path)
    assert "demo" in completed("eaglelocal chat --target ", tmp_path)
    assert "qwen3-8b" in completed("eaglelocal plan qwen3", tmp_path)


def test_machines_after_a_comma() -> None:
    assert "rtx-4090,rtx-3090" in completion.complete_machine("rtx-4090,rtx-3")
    assert completion.complete_machine("lis") == ["list"]
    assert completion.complete_machine("rtx-3090,lis") == []  # it goes alone
    assert "rtx-3090,rtx-3090" not in completion.complete_machine("rtx-3090,rtx-3")


def test_paths_end_in_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name in ("a.gguf", "a.txt", "models/b.gguf"):
        (tmp_path / name).touch()
    assert completion.complete_target("./a") == ["./a.gguf"]
    assert completion.complete_target("./") == ["./a.gguf", "./models/"]
    assert completion.complete_on_disk(f"{tmp_path}/models/") == [f"{tmp_path}/models/b.gguf"]
    assert completion.complete_target(".") == ["./"]
    assert completion.complete_target("./nowhere/") == []


def test_a_catalog_that_cannot_be_read_completes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "eaglelocal" / "machines"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("[")
    assert completion.complete_machine("rtx") == []


def test_servers_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with keep_announced(describe_this_server("127.0.0.1", 8499, target="demo")):
        assert completion.complete_port("8") == ["8499"]
        assert completion.complete_port("") == ["8499", "all"]
        assert completion.complete_server("http") == ["http://127.0.0.1:8499"]
