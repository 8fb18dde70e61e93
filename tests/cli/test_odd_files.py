"""Our own files on a full disk, and with pipes in the place of all of them: commands go on, and never wait."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from doubles.empty_home import enter_empty_home, home_variables
from doubles.serve_process import ServeProcess, free_port, wait_until_ready

from eaglelocal import locations
from eaglelocal.catalog import catalog
from eaglelocal.client.running_servers import find_running_servers, find_stale_files
from eaglelocal.conversation import pictures
from eaglelocal.conversation.conversation_file import list_conversations, load_conversation
from eaglelocal.conversation.question_history import QuestionHistory
from eaglelocal.core.atomic_file import lock_folder
from eaglelocal.core.own_files import fingerprint, hold_lock
from eaglelocal.core.request import ChatRequest
from eaglelocal.drafters.lookup_memory import LookupMemory
from eaglelocal.errors import EagleLocalError
from eaglelocal.hub import model_library
from eaglelocal.hub.heads.requantized_copy import list_copies
from eaglelocal.hub.heads.versions import HeadVersions
from eaglelocal.hub.hub_cache import read_main_commit
from eaglelocal.hub.inflation import generated_files
from eaglelocal.hub.inventory import list_derived, list_imported
from eaglelocal.hub.pull_plan import read_pulled_reference
from eaglelocal.learning.drift import read_history, read_reports
from eaglelocal.learning.judgement import JudgedFile
from eaglelocal.learning.kept_answers import KeptAnswers, read_max_age_s, read_target
from eaglelocal.learning.learning_round import hold_folder, read_state
from eaglelocal.loading import calibration_store
from eaglelocal.probe import bandwidth
from eaglelocal.probe.probe import probe
from eaglelocal.settings import Settings, write_setting
from eaglelocal.training.conversations import read_conversations
from eaglelocal.training.self_questions import SelfQuestions
from eaglelocal.training.training_folder import enter_folder, list_folders

ROOT = Path(__file__).parents[2]
LIMIT_S = 20


def hold(block: object) -> None:
    with block:  # type: ignore[attr-defined]
        pass


# what reads or writes our files, by the file that is a pipe; {} is the folder of the test
USES: dict[str, Callable[[Path], object]] = {
    "config/eaglelocal/config.toml": lambda path: Settings.load({}, {}, path),
    "config/eaglelocal/settings.toml": lambda path: write_setting(path, "theme", "dark"),
    "state/eaglelocal/servers/a-1-1.json": lambda _: (find_running_servers(), find_stale_files()),
    "state/eaglelocal/calibrations/a.json": lambda _: calibration_store.list_stale_files(probe(), "b"),
    "state/eaglelocal/bandwidths/own": lambda path: bandwidth.load_bandwidth(probe()),
    "state/eaglelocal/drift/a.json": lambda path: (list(read_reports()), read_history(path)),
    "state/eaglelocal/heads/x/a.gguf": lambda _: list_imported(),
    "state/eaglelocal/learned/x/versions.json": lambda path: HeadVersions(path.parent).read(),
    "state/eaglelocal/learned/x/.lock": lambda path: hold(hold_lock(path)),
    "state/eaglelocal/learning/x/target": lambda path: read_target(path.parent),
    "state/eaglelocal/learning/x/max_age_s": lambda path: read_max_age_s(path.parent),
    "state/eaglelocal/learning/x/state.json": lambda path: read_state(path.parent),
    "state/eaglelocal/learning/x/.lock": lambda path: hold(hold_folder(path.parent)),
    "state/eaglelocal/learning/x/answers/o/1-1-0-a.answers": lambda path: read_answers(path.parents[1]),
    "state/eaglelocal/learning/x/1-2.judged": lambda path: JudgedFile(path.parent, 1, 2).add("a", None),
    "state/eaglelocal/lookups/a": lambda path: use_lookups(path),
    "state/eaglelocal/conversations/a.json": lambda path: load_conversation(path.parent, "a"),
    "state/eaglelocal/conversations/b.json": lambda path: list_conversations(path.parent),
    "state/eaglelocal/talks": lambda path: hold(lock_folder(path)),
    "state/eaglelocal/pictures.json": lambda path: pictures.find_digests(path),
    "state/eaglelocal/questions.jsonl": lambda path: QuestionHistory(path).add("hello"),
    "state/eaglelocal/pulled_drafts.json": lambda path: read_pulled_reference(path, "a/b"),
    "state/eaglelocal/training/x/answers.jsonl": lambda path: read_conversations(path),
    "state/eaglelocal/training/x/questions.jsonl": lambda path: SelfQuestions(
        path, seed=1, has_template=True, make_request=lambda talk: ChatRequest(id="", messages=talk)
    ),
    "state/eaglelocal/training/x/target": lambda path: (list_folders(), hold(enter_folder(path.parent, "a", "b"))),
    "cache/eaglelocal/profiles/a.json": lambda path: catalog.read_kept(path, []),
    "cache/eaglelocal/heads/a.gguf": lambda _: list_copies(),
    "cache/eaglelocal/generated/a@b.gguf": lambda _: list(list_derived()),
    "cache/eaglelocal/generated/.inflate.lock": lambda path: hold(generated_files.hold_folder(path.parent)),
    "hub/models--a--b/refs/main": lambda path: read_main_commit(path.parents[1]),
    "ollama/manifests/registry.ollama.ai/library/a/b": lambda path: list(
        model_library.list_ollama_models(path.parents[4])
    ),
    "head.gguf": lambda path: fingerprint(path),
}


def read_answers(folder: Path) -> None:
    answers = KeptAnswers(folder, max_bytes=1_000_000, max_age_s=1e9)
    assert answers.read() == [] and answers.size().num_answers == 0


def use_lookups(path: Path) -> None:
    memory = LookupMemory(path.parent, 1000, 100)
    own = memory._path("")
    path.rename(own)
    assert memory.read("") == []
    memory.append("", array("i", [1, 2, 3]))
    assert memory.has_failed and own.is_fifo()


@pytest.fixture
def limit() -> Iterator[None]:
    """Raise where the test waits for a pipe."""

    def fail(number: int, frame: object) -> None:
        raise AssertionError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", USES)
def test_a_pipe_in_place_of_a_file_makes_no_reader_wait(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: None
) -> None:
    enter_empty_home(monkeypatch, tmp_path)
    monkeypatch.setattr(locations, "light_heads_dir", lambda: tmp_path / "cache/eaglelocal/heads")
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    if name.endswith("bandwidths/own"):
        path.rename(path := bandwidth._make_path(probe()))
    try:
        USES[name](path)
    except (OSError, EagleLocalError) as problem:
        assert re.search("pipe|not a directory|no conversation named", str(problem), re.IGNORECASE), problem
    if path.name in ("questions.jsonl", "1-2.judged", "target"):
        assert path.is_fifo()  # nothing was written into it


# ---- full disks
def fill_disk() -> None:
    """Refuse every byte that the process writes into a file, as a full disk does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("EAGLELOCAL_", "XDG_"))}
    homes = home_variables(tmp_path)
    return {**plain, **homes, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}


def run(environ: dict[str, str], *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "eaglelocal", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environ, stdin=subprocess.DEVNULL, timeout=120, **options
    )  # type: ignore[call-overload, no-any-return]


def test_a_server_serves_where_it_can_write_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-P", "-m", "eaglelocal", "serve", "--no-tui", "--port", str(port)]
    command += ["--target", "demo@native", "--parallel", "1", "--learn", "--lookup-memory", "1000"]
    program = subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=fill_disk
    )
    try:
        server = ServeProcess(f"http://127.0.0.1:{port}", program)  # type: ignore[arg-type]
        wait_until_ready(server)
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
        assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    finally:
        program.terminate()
        _, said = program.communicate(timeout=60)
    assert program.returncode == 0, said
    assert "do not find this server" in said and "File too large" in said
    assert ": texts for lookups are no longer kept on disk: File too large" in said
    assert not [path for path in (tmp_path / "state").rglob("*.json") if path.stat().st_size]


@pytest.mark.parametrize("arguments", [("ps",), ("ls",), ("plan", "demo@native"), ("show", "demo@native"), ("heads",)])
def test_a_command_works_where_it_can_write_nothing(arguments: tuple[str, ...], environ: dict[str, str]) -> None:
    done = run(environ, *arguments, preexec_fn=fill_disk)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["show", "plan", "rm"])
@pytest.mark.parametrize("more", ["", "x"])  # an empty file, and the name of one that is not there
def test_a_name_makes_no_line_of_an_error(command: str, more: str, environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "x\nevil: yes\n#.gguf").touch()
    done = run(environ, command, f"x\nevil: yes\n#{more}.gguf", cwd=tmp_path)
    first, *others = done.stderr.splitlines()
    assert done.returncode and first.startswith("error: ") and "evil: yes" in first
    assert not any(line.startswith(("evil", " ", "#")) for line in others)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "folder", "loop"])
def test_commands_work_beside_odd_files_in_the_place_of_all_theirs(
    kind: str, environ: dict[str, str], tmp_path: Path
) -> None:
    chat = ("chat", "hello there", "--target", "demo@native", "--url", "none", "--max-tokens", "40", "--learn")
    assert run(environ, *chat, "--lookup-memory", "1000").returncode == 0
    paths = [path for path in tmp_path.rglob("*") if path.is_file() and "eaglelocal" in path.parts]
    assert len(paths) > 5
    for path in paths:
        path.unlink()
        {"pipe": os.mkfifo, "folder": os.mkdir, "loop": lambda path: path.symlink_to(path.name)}[kind](path)
    for arguments in (chat, ("plan", "demo@native"), ("ls",), ("doctor",), ("heads",), ("forget", "--yes")):
        done = run(environ, *arguments)
        assert done.returncode in ((0, 1) if arguments == ("doctor",) else (0,)), done.stderr
        assert "bug" not in done.stderr
