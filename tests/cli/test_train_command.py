"""`eaglelocal train` as a process: stopped at any time, it resumes, and the new head drafts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from doubles.commands import run_command
from doubles.random_models import TargetShape, write_head, write_target
from doubles.timeouts import wait_until

pytest.importorskip("torch")

from eaglelocal.core.own_package import suggest_extra
from eaglelocal.hub.target_resolver import demo_sources
from eaglelocal.training.training_folder import ANSWERS, TARGET, enter_folder

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0
SMALL = ("--tokens", "2500", "--epochs", "8", "--ctx", "256", "--threads", "1")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The embedded model as a file of somebody's, who has no head for it."""
    return Path(shutil.copy(demo_sources()[0], tmp_path / "guide.gguf"))


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, environ=environ)


@contextmanager
def started(environ: dict[str, str], log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", "eaglelocal", "train", *arguments]
    with log.open("wb") as output:
        program = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environ)
        try:
            yield program
        finally:
            program.kill()
            program.wait()


def stopped_by(
    number: signal.Signals, program: subprocess.Popen[bytes], log: Path, *when: Callable[[], bool]
) -> tuple[int, str]:
    """Exit code and all output; no process stays behind. `when`: one after the other."""
    for is_so in when:
        wait_until(lambda is_so=is_so: is_so() or program.poll() is not None, "it came so far")
    children = psutil.Process(program.pid).children(recursive=True)
    program.send_signal(number)
    code = program.wait(PATIENCE_S)
    wait_until(lambda: not any(map(psutil.Process.is_running, children)), "no process stays behind")
    return code, log.read_text()


def keys(folder: Path) -> list[str]:
    """Of questions that were answered, in whole lines."""
    path = folder / ANSWERS
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line)["key"] for line in lines if line]


@pytest.mark.slow
def test_killed_while_asking_and_stopped_while_learning_it_goes_on_to_a_head_that_drafts(
    environ: dict[str, str], target: Path, tmp_path: Path
) -> None:
    work, log = tmp_path / "work", tmp_path / "log"
    command = ("--target", str(target), *SMALL, "--work", str(work), "--json")
    with started(environ, log, *command) as program:
        code, _ = stopped_by(signal.SIGKILL, program, log, lambda: len(keys(work)) >= 5)
    saved = keys(work)
    assert code == -signal.SIGKILL and not list(work.glob("*.checkpoint"))

    with started(environ, log, *command) as program:
        stages = [lambda mark=mark: mark in log.read_text() for mark in ("the target", "held out before", "step 1/")]
        code, output = stopped_by(signal.SIGTERM, program, log, *stages)
    assert (code, "Traceback" in output) == (128 + signal.SIGTERM, False)
    assert output.endswith("stopped: the same command resumes here\n")
    answered = keys(work)
    assert answered[: len(saved)] == saved and len(set(answered)) == len(answered)
    assert [path.suffix for path in sorted(work.iterdir())].count(".checkpoint") == 1

    done = run(environ, "train", *command)
    assert done.returncode == 0, done.stderr
    assert "head: resumes at step " in done.stderr
    assert keys(work) == answered
    assert sorted(path.name for path in work.iterdir()) == [ANSWERS, TARGET]
    (line,) = done.stdout.splitlines()
    told_at_end = json.loads(line)
    assert told_at_end["kept"] and Path(told_at_end["file"]).is_file()
    before, after = (told_at_end["held_out"][when]["acceptance_length"] for when in ("before", "after"))
    assert 1.0 <= before < after

    answer = run(environ, "chat", "What is a head?", "--target", str(target), "--json", "--max-tokens", "20")
    assert "trained-here" in json.loads(answer.stdout.splitlines()[-1])["draft"]
    listed = json.loads(run(environ, "ls", "--json").stdout)["models"]
    assert [one["path"] for one in listed if one["origin"] == "trained head"] == [told_at_end["file"]]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_stopped_while_asking_it_ends_as_other_commands_do(
    number: signal.Signals, code: int, environ: dict[str, str], target: Path, tmp_path: Path
) -> None:
    work, log = tmp_path / "work", tmp_path / "log"
    with started(environ, log, "--target", str(target), *SMALL, "--tokens", "90000", "--work", str(work)) as program:
        found, output = stopped_by(number, program, log, lambda: len(keys(work)) >= 2)
    assert (found, "Traceback" in output) == (code, False)
    assert "stopped: the same command resumes here" in output


def test_one_at_a_time_in_a_folder(environ: dict[str, str], target: Path, tmp_path: Path) -> None:
    with enter_folder(tmp_path / "work", "guide", "f"):
        done = run(environ, "train", "--target", str(target), *SMALL, "--work", str(tmp_path / "work"))
    assert (done.returncode, "another `eaglelocal train` is using" in done.stderr) == (1, True)
    assert max(len(line) for line in done.stdout.splitlines() if str(tmp_path) not in line) <= 80


def test_without_torch_the_way_to_it_is_reported(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('none here')")
    without = {**environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-P", "-m", "eaglelocal", "train", "--target", "demo@native"]
    done = subprocess.run(command, capture_output=True, text=True, env=without, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: training needs torch\n\nhint: {suggest_extra('train')}\n"


FEW = "one\n" * 60
TAKEN = "{folder}/questions.txt"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "eaglelocal train --target file.gguf"),
        (("--target", "{folder}/none.gguf"), 1, "does not exist"),
        (("--target", "{folder}/head.gguf"), 1, "is a draft head"),
        (("--target", "{folder}/flat.gguf"), 1, "has 3 layers; a head reads three"),
        (("--target", "demo@native", "--from", "ngram"), 2, "is no eagle head"),
        (("--target", "demo@native", "--from", "mtp"), 1, "no mtp layer"),
        (("--target", "demo@native", "--from", "nobody"), 2, "unknown draft 'nobody'"),
        (("--target", "demo@native", "--from", "{folder}/head.gguf"), 1, "does not fit"),
        (("--target", "demo@native", "--from", "{folder}/flat.gguf"), 1, "does not fit"),
        (("--target", "demo@native", "--prompts", TAKEN), 2, "too few different questions"),
        (("--target", "demo@native", "--prompts", "{folder}/none.txt"), 2, "cannot read the prompts"),
        (("--target", "demo@native", "--prompts", "{folder}/head.gguf"), 2, "cannot read the prompts"),
        (("--target", "demo@native", "--type", "q4_0"), 2, "--type must be one of"),
        (
            ("--target", "demo@native", "--kind", "other"),
            2,
            "--kind must be one of eagle, p-eagle, medusa, not 'other'",
        ),
        (("--target", "demo@native", "--kind", "medusa", "--from", "x.gguf"), 2, "a medusa head is trained anew"),
        (("--target", "demo@native", "--tokens", "10"), 2, "--tokens"),
        (("--target", "demo@native", "--taps", "4"), 2, "keeps the layers that it reads"),
        (("--target", "demo@native", "--from", "none", "--taps", "two"), 2, "--taps takes a number of layers"),
        (("--target", "demo@native", "--from", "none", "--taps", "3,2"), 2, "each after the one before, not '3,2'"),
        (("--target", "demo@native", "--from", "none", "--taps", "0,99"), 2, "layers of 1 to"),
        (("--target", "demo@native", "--from", "none", "--taps", "9"), 2, "--taps takes 1 to 8 layers, not 9"),
        (("--target", "demo@native", "--from", "none", "--taps", "0"), 2, "--taps takes 1 to 8 layers, not 0"),
        (("--target", "demo@native", "--from", "none", "--taps", "5"), 2, "6 layers are too few to spread 5 taps"),
        (("--target", "demo@native", "--epochs", "0"), 2, "--epochs"),
        (("--target", "demo@native", "--torch-device", "tpu"), 2, "--torch-device must be one of"),
        (("--target", "demo@native", "--out", TAKEN), 2, "exists and is not a head"),
        (("--target", "demo@native", "--out", f"{TAKEN}/x"), 1, "cannot write"),
        (("--target", "demo@native", "--work", f"{TAKEN}/x"), 1, "cannot write"),
    ],
)
def test_wrong_words_are_reported_before_anything_is_loaded(
    arguments: tuple[str, ...], code: int, says: str, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "questions.txt").write_text(FEW)
    write_target(tmp_path / "flat.gguf", TargetShape(n_layer=3))
    write_head(tmp_path / "head.gguf")
    done = run(environ, "train", *(argument.replace("{folder}", str(tmp_path)) for argument in arguments))
    assert (done.returncode, "Traceback" in done.stderr, "this is a bug" in done.stderr) == (code, False, False)
    assert says in done.stderr.lower()
    assert "loading" not in done.stderr


def test_few_tokens_are_gathered_until_the_answers_are_enough(
    environ: dict[str, str], target: Path, tmp_path: Path
) -> None:
    (tmp_path / "questions.txt").write_text("\n".join(f"What is {number}?" for number in range(200)))
    prompts = ("--prompts", str(tmp_path / "questions.txt"))
    command = ("train", "--target", str(target), *SMALL, "--epochs", "1", *prompts)
    done = run(environ, *command, "--tokens", "1000")
    assert "answers are too few" not in done.stderr and "held out at the end" in done.stderr


def test_where_no_question_fits_it_is_reported(environ: dict[str, str], target: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("\n".join(f"{'word ' * 300}{number}" for number in range(40)))
    done = run(environ, "train", "--target", str(target), *SMALL, "--prompts", str(tmp_path / "long.txt"))
    assert done.returncode == 2
    assert "0 answers are too few to train on (40 questions did not fit" in done.stderr
