"""`eaglelocal chat` with the real engine on models with random weights: streams, exit codes, the object."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from doubles.image_files import write_image
from doubles.programs import Programs, output_of
from doubles.random_models import TargetShape, write_agreeing_head, write_target
from doubles.timeouts import wait_until

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import Conversation, Turn

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A target and a head that often agrees with it."""
    folder = tmp_path_factory.mktemp("models")
    shape = TargetShape(layer_gain=0.05)
    target = write_target(folder / "target.gguf", shape)
    return str(target), str(write_agreeing_head(folder / "head.gguf", target, shape))


@pytest.fixture
def chat(models: tuple[str, str], tmp_path: Path) -> Iterator[Start]:
    target, head = models
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EAGLELOCAL_")}
    environ = {**plain, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path), "EAGLELOCAL_TEMPERATURE": "0"}

    def start(*arguments: str, draft: str = head, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "eaglelocal", "chat", *arguments, "--target", target, "--draft", draft]
        return programs.start(command, stdin=stdin, env=environ)

    with Programs() as programs:
        yield start


def ended(program: subprocess.Popen[bytes], stdin: bytes | None = None) -> tuple[int, bytes, str]:
    """Exit code, stdout, stderr."""
    code, stdout, stderr = output_of(program, stdin, patience_s=PATIENCE_S)
    return code, stdout, stderr.decode()


def test_text_on_stdout_and_figures_on_stderr(chat: Start) -> None:
    code, stdout, stderr = ended(chat("hi", "--max-tokens", "12"))
    assert code == 0
    assert stdout.endswith(b"\n")
    assert "EAGLE-3 head" in stderr
    assert "first token" in stderr
    assert "cut at 12 tokens" in stderr
    assert b"tok/s" not in stdout


def test_json_is_the_only_line_and_speculation_changes_no_text(chat: Start) -> None:
    drafted = ended(chat("hi", "--max-tokens", "12", "--json", "--spec", "3"))
    plain = ended(chat("hi", "--max-tokens", "12", "--json", "--spec", "off"))
    assert (drafted[0], drafted[1].count(b"\n")) == (0, 1)
    with_draft, without = json.loads(drafted[1]), json.loads(plain[1])
    assert with_draft["text"] == without["text"]
    assert with_draft["finish_reason"] == "length"
    assert with_draft["usage"]["completion_tokens"] == 12
    assert with_draft["speculation"]["state"] == "on"
    assert 0 < with_draft["speculation"]["drafts"] < 12
    assert (without["draft"], without["speculation"]["state"]) == ("none", "off")
    assert without["speculation"]["reason"] == "switched off"


def test_stdin_follows_the_prompt(chat: Start) -> None:
    arguments = ("--max-tokens", "8", "--json")
    piped = ended(chat("Summarise:", *arguments, stdin=subprocess.PIPE), b"some text\n")
    typed = ended(chat("Summarise:\n\nsome text", *arguments))
    assert json.loads(piped[1])["text"] == json.loads(typed[1])["text"]
    assert json.loads(piped[1])["usage"] == json.loads(typed[1])["usage"]


def test_a_dash_is_stdin(chat: Start) -> None:
    arguments = ("--max-tokens", "8", "--json")
    piped = ended(chat("-", *arguments, stdin=subprocess.PIPE), b"some text\n")
    typed = ended(chat("some text", *arguments))
    assert json.loads(piped[1])["usage"] == json.loads(typed[1])["usage"]
    code, _, stderr = ended(chat("-", stdin=subprocess.PIPE), b"")
    assert code == 2 and "there is no question" in stderr


def test_a_prompt_that_does_not_fit_is_an_error_of_the_input(chat: Start) -> None:
    code, stdout, stderr = ended(chat("word " * 500, "--ctx", "64"))
    assert (code, stdout) == (1, b"")
    assert "\nerror: " in stderr
    assert "64" in stderr.partition("error: ")[2]


def test_ctrl_c_ends_with_130_and_what_was_said(chat: Start) -> None:
    program = chat("hi")
    assert program.stdout is not None
    first = program.stdout.read(1)
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does: the whole group
    code, rest, stderr = ended(program)
    assert code == 130
    assert (first + rest).endswith(b"\n")
    assert "stopped" in stderr
    assert "Traceback" not in stderr


def test_an_engine_that_is_killed_is_an_error(chat: Start) -> None:
    program = chat("hi")
    assert program.stdout is not None
    program.stdout.read(1)
    (engine,) = psutil.Process(program.pid).children()
    engine.kill()
    code, _, stderr = ended(program)
    assert code == 1
    assert "\nerror: the engine process" in stderr
    assert "\nhint: " in stderr
    assert "Traceback" not in stderr


def test_a_reader_that_leaves_ends_it_quietly_and_leaves_no_engine(chat: Start) -> None:
    program = chat("hi")
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.read(1)
    engines = psutil.Process(program.pid).children()
    program.stdout.close()
    stderr = program.stderr.read().decode()
    assert program.wait(PATIENCE_S) == 0
    assert "error" not in stderr
    assert "Traceback" not in stderr
    wait_until(lambda: not any(engine.is_running() for engine in engines), "the engine ends")


def test_images_need_a_vision_model_and_a_valid_file(chat: Start, tmp_path: Path) -> None:
    cat = write_image(tmp_path / "cat.png")
    code, stdout, stderr = ended(chat("what is it?", "--image", str(cat)))
    assert (code, stdout) == (2, b"")
    assert "reads no images" in stderr and "--mmproj FILE" in stderr
    cat.write_bytes(b"no picture")
    code, stdout, stderr = ended(chat("what is it?", "--image", str(cat)))
    assert (code, stdout) == (2, b"")
    assert "cat.png is not a PNG, JPEG" in stderr and "loading" not in stderr


def test_a_question_goes_on_with_the_last_conversation(chat: Start, tmp_path: Path) -> None:
    code, _, stderr = ended(chat("and?", "--continue"))
    assert (code, "error: no conversation is saved yet" in stderr) == (2, True)
    folder = tmp_path / "eaglelocal" / "conversations"
    begun = Conversation(system="be brief", turns=[Turn("one", "first"), Turn("two", "second")])
    conversation_file.save(begun, folder / "numbers.json", target="m")
    arguments = ("--max-tokens", "4", "--json")
    alone = json.loads(ended(chat("and?", *arguments))[1])
    code, stdout, _ = ended(chat("and?", "--continue", *arguments))
    answer = json.loads(stdout)
    assert code == 0
    assert answer["usage"]["prompt_tokens"] > alone["usage"]["prompt_tokens"]
    kept = conversation_file.load_last(folder)
    assert (kept.name, kept.system, len(kept.turns)) == ("numbers", "be brief", 3)
    assert (kept.turns[2].question, kept.turns[2].answer) == ("and?", answer["text"])
    assert ended(chat("and?", "--continue", "--no-save", *arguments))[0] == 0
    assert len(conversation_file.load_last(folder).turns) == 3
