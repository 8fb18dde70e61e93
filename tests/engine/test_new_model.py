"""A model of a new architecture: what docs/new_model.md names is enough for it to be read, planned, drafted, exported.

The models are made: this season's architectures, with the tensors that llama.cpp creates, and one that no list of
`gguf/architectures.py` has but the first. A name that llama.cpp has no graph for is refused in one line.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from doubles.commands import run_command
from doubles.engine_harness import drive
from doubles.random_models import TargetShape, write_target
from doubles.real_engine import ask, real_engine
from doubles.runnable_models import N_VOCAB, write_runnable
from doubles.season_models import SEASON, write_season

from eaglelocal.gguf import architectures
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
UNLISTED = "gemma2"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROMPT = tuple(range(30, 60))
NOT_OF_MODELS = {"HEAD_ARCHITECTURES"}  # of heads


@pytest.fixture(scope="module", params=[*SEASON, UNLISTED])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    write = write_season if request.param in SEASON else write_runnable
    return write(tmp_path_factory.mktemp(request.param) / f"{request.param}.gguf", request.param)


def list_names() -> dict[str, Collection[str]]:
    """The lists of gguf/architectures.py, by name."""
    found = {name: each for name, each in vars(architectures).items() if name.isupper() and not isinstance(each, str)}
    return {
        name: each
        for name, each in found.items()
        if isinstance(each, Collection) and all(isinstance(one, str) for one in each) and name not in NOT_OF_MODELS
    }


def test_it_is_read_and_planned(made: Path) -> None:
    info = ModelInfo.from_header(read_header(made))
    assert (info.architecture, info.n_vocab) == (made.stem, N_VOCAB)
    done = run_command("plan", str(made), "--machine", "rtx-3090", "--json")
    assert done.returncode == 0, done.stderr
    chosen = json.loads(done.stdout.splitlines()[-1])["chosen"]
    assert chosen["draft"] is not None and chosen["ctx"] == info.context_length


@pytest.mark.parametrize("kind", ["ngram", "draft_model"])
def test_it_drafts_and_its_text_is_the_plain_one(made: Path, kind: str, tmp_path: Path) -> None:
    draft = write_target(tmp_path / "small.gguf", TargetShape(n_vocab=N_VOCAB)) if kind == "draft_model" else None
    text = answer(made, PROMPT)[0]
    prompt = (*PROMPT, *text, *PROMPT)  # whose answer begins as before, so that lookups draft
    plain, drafted = answer(made, prompt), answer(made, prompt, kind, draft)
    assert drafted[0] == plain[0]
    assert len(set(text)) > 1 or made.stem == UNLISTED  # whose output is its embeddings: random ones repeat a token
    assert plain[1] == 0 < drafted[1]


def answer(target: Path, prompt: Sequence[int], kind: str = "none", draft: Path | None = None) -> tuple[list[int], int]:
    """Return an answer's tokens, and how many were drafted for it."""
    engine = real_engine(target, kind, draft)
    result = drive(engine, [ask("a", prompt, max_tokens=40)])["a"]
    assert result.failed is None
    drafted = engine.snapshot().speculation.draft_tokens
    engine.close()
    return result.tokens, drafted


def test_it_is_exported(made: Path) -> None:
    pin = ("--target-repo", "some/model", "--revision", COMMIT, "--machine", "rtx-3090", "--draft", "ngram")
    done = run_command("export", "vllm", str(made), *pin)
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout.replace("\\\n", ""))
    assert words[:5] == ["vllm", "serve", "some/model", "--revision", COMMIT]
    assert json.loads(words[words.index("--speculative-config") + 1])["method"] == "ngram"


@pytest.mark.parametrize(
    ("spelling", "hint"),
    [
        ("qwen5exp", "a release of eaglelocal with a llama.cpp that has it; docs/new_model.md says what else"),
        ("qwen4-xp", "a release of eaglelocal with a llama.cpp that has it; docs/new_model.md says what else"),
        ("qwen4exP", "a file whose architecture is qwen4exp: the same model, made for a released llama.cpp"),
    ],
)
@pytest.mark.parametrize("command", ["show", "plan", "chat"])
def test_what_llama_cpp_lacks_is_refused_in_a_line(tmp_path: Path, spelling: str, hint: str, command: str) -> None:
    path = write_season(tmp_path / "m.gguf", "qwen4exp")
    path.write_bytes(path.read_bytes().replace(b"qwen4exp", spelling.encode()))
    given = ("--target", str(path), "hello") if command == "chat" else (str(path),)
    done = run_command(command, *given)
    said = " ".join((done.stdout + done.stderr).split())
    assert f"m.gguf: llama.cpp here has no graph for the architecture {spelling}" in said and hint in said
    assert (done.returncode == 0) == (command == "show") and "--draft ngram" not in said


def test_one_that_only_the_first_list_has_needs_no_other() -> None:
    listed = {name for name, each in list_names().items() if UNLISTED in each}
    assert listed == {"KNOWN_ARCHITECTURES"}


def test_the_page_names_every_list() -> None:
    page = (ROOT / "docs" / "new_model.md").read_text(encoding="utf-8")
    assert len(list_names()) > 15 and [name for name in list_names() if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("target", "draft", "reason"),
    [
        ("qwen3.8-flash-next", "mtp-qwen3.8-flash-next", "llama.cpp has no graph of them yet (its pull requests 27836"),
        ("qwen3.8-flash-next", "mtp", "mtp-qwen3.8-flash-next: MTP layers of the architecture qwen4exp cannot draft"),
        ("glm-5.3-flash", "dflash2-glm-5.3-flash", "llama.cpp does not give the layer inputs of glm5-next"),
        ("deepseek-v4-flash-0731", "dspark-deepseek-v4-flash-0731", "heads of DeepSeek's shape are not supported yet"),
    ],
)
def test_a_draft_that_cannot_run_is_refused_by_name(target: str, draft: str, reason: str) -> None:
    done = run_command("plan", target, "--machine", "m3-ultra-512gb", "--draft", draft)
    assert done.returncode != 0
    assert reason in " ".join(done.stderr.split()) and "--draft auto" in done.stderr
