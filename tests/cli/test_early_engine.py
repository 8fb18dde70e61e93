"""The engine's process that `serve` and `chat` start before planning: if that fails, nothing of it is left."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from doubles.timeouts import wait_until

from eaglelocal import locations
from eaglelocal.cli import chat, serve
from eaglelocal.cli.early_engine import loads_model
from eaglelocal.cli.output import standard_output
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.settings import Settings
from eaglelocal.worker.child import SpareProcess


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were started early."""
    pids: list[int] = []

    class Watched(SpareProcess):
        def __init__(self, builder: str) -> None:
            super().__init__(builder)
            assert self.pid is not None
            pids.append(self.pid)

    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr(chat, "SpareProcess", Watched)
    monkeypatch.setattr(serve, "SpareProcess", Watched)
    return pids


@pytest.mark.parametrize(
    ("command", "is_early"),
    [
        ("serve", True),
        ("serve --target x --parallel 8", True),
        ("serve --help", False),
        ("chat hi", True),
        ("chat", False),
        ("chat --plain", False),
        ("chat hi -h", False),
        ("chat hi --url http://there", False),
        ("chat hi --url=none", False),
        ("plan", False),
        ("", False),
    ],
)
def test_commands_that_load_a_model_start_its_process(
    command: str, is_early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert loads_model(command.split()) is is_early


def test_a_chat_that_a_server_may_answer_starts_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = locations.servers_dir()
    folder.mkdir(parents=True)
    (folder / "here-1-8000.json").touch()
    assert not loads_model(["chat", "hi"])
    assert loads_model(["chat", "hi", "--target", "x"])


def test_a_chat_without_its_model_leaves_no_process(started: list[int]) -> None:
    settings = Settings(url="none", target="./nowhere.gguf")
    with pytest.raises(EagleLocalError, match="nowhere"):
        chat.open_session(settings, standard_output(), ModelChoice())
    assert started and not any(map(psutil.pid_exists, started))


def test_a_server_without_its_model_leaves_no_process(started: list[int]) -> None:
    output = standard_output()
    with pytest.raises(EagleLocalError, match="nowhere"), serve.SpareProcess(serve.ENGINE) as spare:
        serve.run_server(Settings(target="./nowhere.gguf"), output, spare)
    assert started and not any(map(psutil.pid_exists, started))


def test_a_server_that_cannot_start_ends_the_engine_that_loads(
    started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine has its plan by then."""

    def refuse(*_: object) -> None:
        raise UsageError("no server today")

    monkeypatch.setattr("eaglelocal.server.app.create_app", refuse)
    with pytest.raises(UsageError, match="no server today"), serve.SpareProcess(serve.ENGINE) as spare:
        serve.run_server(Settings(target="demo@native", port=0), standard_output(), spare)
    wait_until(lambda: not any(map(psutil.pid_exists, started)), "the end of the engine")
    assert started
