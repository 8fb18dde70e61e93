"""`eaglelocal import` on the embedded head, exported in other dialects: the result equals the original head."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.commands import run_command
from doubles.eagle_checkpoints import DIALECTS, Checkpoint, checkpoint_of, write_checkpoint
from doubles.imported_heads import imported
from doubles.p_eagle_checkpoints import FLAT, make_parallel, write_parallel_head

from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.hub.target_resolver import demo_sources

pytestmark = pytest.mark.full

TARGET, HEAD = demo_sources()


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, environ=environ)


def embedded() -> Checkpoint:
    return checkpoint_of(HEAD)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_embedded_head_comes_back_as_itself(dialect: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "published", embedded(), dialect, shards=2)
    path = imported(folder, TARGET, tmp_path / "head.gguf", kind="bf16")
    ours, theirs = read_header(HEAD), read_header(path)
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        assert theirs.tensors[name].type == tensor.type
        np.testing.assert_array_equal(read_tensor(ours, name), read_tensor(theirs, name))
    before, after = EagleInfo.from_header(ours), EagleInfo.from_header(theirs)
    unlike = {"name": "", "target_name": ""}
    assert replace(before, **unlike) == replace(after, **unlike)
    for key in ours.metadata:
        if key not in ("general.name", "tokenizer.chat_template"):
            assert (ours.array(key) or ours.metadata[key]) == (theirs.array(key) or theirs.metadata[key]), key


@pytest.mark.slow
def test_a_head_whose_configuration_is_wrong_is_tried_kept_and_used(environ: dict[str, str], tmp_path: Path) -> None:
    """It says pre-norm and the residual before the norm, as a trainer did that forgot two flags."""
    lied = replace(embedded(), norm_output=False, norm_before_residual=False)
    folder = write_checkpoint(tmp_path / "Guide-Eagle3", lied, "SpecForge")
    done = run(environ, "import", str(folder), "--target", "demo@native", "--json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    report = json.loads(lines[-1])
    assert report["head"]["dialect"] == "SpecForge" and report["head"]["norm_output"] and not report["as_stated"]
    chosen = [tried for tried in report["trial"] if tried["chosen"]]
    assert len(chosen) == 1 and len(report["trial"]) == 3
    assert chosen[0]["acceptance_length"] == max(tried["acceptance_length"] for tried in report["trial"])
    kept = EagleInfo.from_header(read_header(Path(report["file"])))
    assert (kept.norm_output, kept.target_layers) == (True, (1, 3, 5))

    answer = run(environ, "chat", "What is a head?", "--target", "demo@native", "--json", "--max-tokens", "40")
    assert "Guide-Eagle3" in json.loads(answer.stdout.splitlines()[-1])["draft"]


def test_a_head_with_random_weights_is_not_kept(environ: dict[str, str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    head = embedded()
    noise = {
        name: (rng.normal(size=array.shape) * array.shape[-1] ** -0.5).astype(np.float32) if array.ndim == 2 else array
        for name, array in head.arrays.items()
    }
    folder = write_checkpoint(tmp_path / "noise", replace(head, arrays=noise), "AngelSlim")
    done = run(environ, "import", str(folder), "--target", "demo@native")
    assert done.returncode == 1, done.stdout
    assert "error: noise does not fit this target: " in done.stderr
    assert not list(Path(environ["XDG_STATE_HOME"]).rglob("*.gguf*"))


def test_a_head_of_several_layers_is_one_file_that_drafts(environ: dict[str, str], tmp_path: Path) -> None:
    head = make_parallel(embedded(), TARGET, num_layers=4, gain=0.02)
    folder = write_parallel_head(tmp_path / "Guide-P-EAGLE", head, FLAT)
    done = run(environ, "import", str(folder), "--target", "demo@native", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["head"]["kind"], report["head"]["layers"]) == ("P-EAGLE", 4)
    assert [tried["first_acceptance"] > 0.3 for tried in report["trial"]] == [True]
    files = list(Path(environ["XDG_STATE_HOME"]).rglob("*.gguf*"))
    assert files == [Path(report["file"])]
    shown = run(environ, "show", report["file"], "--json")
    assert json.loads(shown.stdout.splitlines()[-1])["layers"] == 4

    asked = ("chat", "What is a head?", "--target", "demo@native", "--json", "--max-tokens", "40", "--temperature", "0")
    drafted, plain = (
        json.loads(run(environ, *asked, *more).stdout.splitlines()[-1]) for more in ((), ("--draft", "none"))
    )
    assert "Guide-P-EAGLE" in drafted["draft"]
    assert drafted["text"] == plain["text"]
    assert drafted["speculation"]["accepted_tokens"] > 0


def test_without_a_trial_its_configuration_is_believed(environ: dict[str, str], tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "head", embedded(), "SafeAILab")
    out = tmp_path / "elsewhere"
    out.mkdir()
    done = run(
        environ, "import", str(folder), "--target", "demo@native", "--no-trial", "--out", str(out), "--type", "q8_0"
    )
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines() if str(out) not in line) <= 80
    assert (out / "head-q8_0.gguf").is_file()
    assert "trial    none" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "missing argument"),
        (("{head}",), 2, "--target is missing"),
        (("{head}", "--target", "demo@native", "--type", "q4_0"), 2, "--type must be one of"),
        (("nobody/none", "--target", "demo@native"), 1, "eaglelocal pull target --draft nobody/none"),
        (("{head}/config.json", "--target", "demo@native"), 2, "is a file"),
        (("{head}", "--target", "{head}/none.gguf"), 1, "does not exist"),
        (("{head}", "--target", "demo@native", "--no-trial", "--out", "{head}/config.json/x"), 1, "cannot write"),
        (("{head}", "--target", "demo@native", "--no-trial", "--out", "{head}/config.json"), 2, "is not a head"),
    ],
)
def test_wrong_words_are_reported(
    arguments: tuple[str, ...], code: int, says: str, environ: dict[str, str], tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "head", embedded(), "SafeAILab")
    done = run(environ, "import", *(argument.replace("{head}", str(folder)) for argument in arguments))
    assert (done.returncode, "Traceback" in done.stderr, "this is a bug" in done.stderr) == (code, False, False)
    assert says in done.stderr.lower()
