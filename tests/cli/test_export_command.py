"""`eaglelocal export` as people run it, on the embedded head: what it writes is imported again as the same head."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from doubles.commands import run_command
from doubles.deadly_calls import Fault, write_program

from eaglelocal.cli.completion import complete_head
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.hub.target_resolver import demo_sources

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
TARGET, HEAD = demo_sources()
REPO = "somebody/guide"


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, environ=environ)


def assert_embedded(path: Path) -> None:
    ours, theirs = read_header(HEAD), read_header(path)
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name in ours.tensors:
        np.testing.assert_array_equal(read_tensor(ours, name), read_tensor(theirs, name))
    info = EagleInfo.from_header(theirs)
    assert (info.target_layers, info.fc_norm, info.norm_output, info.norm_before_residual) == ((1, 3, 5), 1, 1, 1)


def test_a_head_goes_out_and_comes_back_and_is_found_by_its_name(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "Guide Eagle"
    done = run(environ, "export", str(HEAD), "--target-repo", REPO, "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["head"]["kind"] == "EAGLE-3.1" and report["target"] == REPO and report["type"] == "bf16"
    words = shlex.split(report["next"])
    assert words[:3] == ["vllm", "serve", REPO]
    assert json.loads(words[-1]) == {"method": "eagle3", "model": str(out), "num_speculative_tokens": 3}

    done = run(environ, "import", str(out), "--target", "demo@native", "--no-trial", "--json")
    assert done.returncode == 0, done.stderr
    file = Path(json.loads(done.stdout.splitlines()[-1])["file"])
    assert_embedded(file)
    monkeypatch.setenv("XDG_STATE_HOME", environ["XDG_STATE_HOME"])
    assert complete_head("Gui") == [file.stem]
    for name in (file.stem, "Guide Eagle"):
        done = run(environ, "export", name, "--format", "specforge", "--out", str(tmp_path / name / "out"))
        assert done.returncode == 0, done.stderr
        assert "SGLang does not read norm_before_residual" in " ".join(done.stdout.split())
        assert (tmp_path / name / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (("{head}",), 2, "--out is missing", "eaglelocal export HEAD --out ./my-head"),
        (("{head}", "--out", "{out}"), 2, "does not say which repository", "--target-repo USER/REPO"),
        (
            ("{head}", "--out", "{out}", "--target-repo", "qwen"),
            2,
            "neither a repository nor a folder",
            "--target-repo",
        ),
        (("{head}", "--out", "{out}", "--format", "onnx"), 2, "--format must be one of", ""),
        (("{head}", "--out", "{out}", "--type", "q8_0"), 2, "--type must be one of", ""),
        (("{head}", "--out", "{head}"), 2, "exists and is not a folder", "--out"),
        (("{target}", "--out", "{out}"), 1, "is a model, which neither format knows", "EAGLE-3"),
        (("./nowhere.gguf", "--out", "{out}"), 1, "does not exist", "eaglelocal ls"),
        (("nobody", "--out", "{out}"), 2, "no head is named 'nobody'", "eaglelocal ls"),
        (("{head}", "--out", "{head}/out", "--format", "specforge"), 1, "cannot write", "--out"),
    ],
)
def test_what_cannot_be_exported_is_one_clear_line(
    arguments: tuple[str, ...], code: int, message: str, hint: str, environ: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    places = {"{head}": str(HEAD), "{target}": str(TARGET), "{out}": str(out)}
    for placeholder, place in places.items():
        arguments = tuple(argument.replace(placeholder, place) for argument in arguments)
    done = run(environ, "export", *arguments)
    assert done.returncode == code, done.stderr
    error, _, rest = done.stderr.partition("\n")
    assert error.startswith("error: ") and message in error and hint in rest
    assert not out.exists()


def test_a_folder_is_replaced_if_that_is_asked_for(environ: dict[str, str], tmp_path: Path) -> None:
    arguments = ("export", str(HEAD), "--format", "specforge", "--out", str(tmp_path / "out"))
    assert run(environ, *arguments).returncode == 0
    done = run(environ, *arguments)
    assert done.returncode == 2 and "`--force` replaces it" in done.stderr
    assert run(environ, *arguments, "--force", "--type", "f32").returncode == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "float32"
    assert sorted(path.name for path in tmp_path.glob(".*out*")) == []


@pytest.mark.parametrize(
    ("fault", "is_there"),
    [
        (Fault("eaglelocal.hub.heads.safetensors_files:write_safetensors", cuts=0), True),
        (Fault("pathlib:Path.rename", call=2), False),  # the older one was moved away
        (Fault("pathlib:Path.rename", call=2, is_after=True), True),
    ],
)
def test_an_export_that_is_killed_leaves_a_whole_head_or_none_and_the_next_one_cleans_up(
    fault: Fault, is_there: bool, environ: dict[str, str], tmp_path: Path
) -> None:
    out, path = tmp_path / "out", os.pathsep.join([str(tmp_path), str(ROOT / "tests"), str(ROOT)])
    arguments = ("export", str(HEAD), "--format", "specforge", "--out", str(out), "--force")
    assert run(environ, *arguments).returncode == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    program = write_program(tmp_path, fault, "eaglelocal.cli.main:main")
    command = [sys.executable, "-P", "-m", program, *arguments]
    killed = subprocess.run(command, capture_output=True, env=environ | {"PYTHONPATH": path}, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert out.exists() == is_there
    if is_there:
        assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert len(list(tmp_path.glob(".*out*"))) > 0
    failing = write_program(
        tmp_path, Fault("eaglelocal.hub.heads.safetensors_files:write_safetensors", cuts=0), "eaglelocal.cli.main:main"
    )
    again = [sys.executable, "-P", "-m", failing, *arguments]
    subprocess.run(again, capture_output=True, env=environ | {"PYTHONPATH": path}, timeout=300)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before  # one that fails moves the older back too
    assert run(environ, *arguments).returncode == 0
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert list(tmp_path.glob(".*out*")) == []
