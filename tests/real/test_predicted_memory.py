"""What `plan`, `show` and `ls` say of real models, compared with what is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doubles.tiers import some_of
from doubles.timeouts import PATIENCE_S

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.memory.estimate import PROCESS_BYTES
from eaglelocal.preparation.decision import resolve

pytestmark = [pytest.mark.full, pytest.mark.real]

CTX = 2048
MIB = 2**20
MODELS = ("smollm2", "gemma")


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def run_json(*arguments: str, **environ: str) -> Any:
    command = [sys.executable, "-m", "eaglelocal", *arguments, "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, **environ}, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kv_type", some_of(["f16", "q8_0"], rest=pytest.mark.slow))
def test_a_plan_takes_the_memory_that_it_says(model: Path, kv_type: str) -> None:
    planned = run_json("plan", str(model), "--ctx", str(CTX), "--kv-type", kv_type)["chosen"]["memory"]
    options = RunOptions(target=str(model), ctx=CTX, kv_type=kv_type, cache_ram=0, threads=1)
    with EngineClient(resolve(options, on_progress=lambda fraction, what: None)) as client:
        info = client.start()
        for number in range(2):
            params = SamplingParams(temperature=0.0, max_tokens=8)
            tokens = tuple(range(1000, 1000 + 400 * (number + 1)))
            client.stream(ChatRequest(id=str(number), tokens=tokens, params=params)).result()
        peak_bytes = client.snapshot().peak_rss_bytes
    assert planned["weights_bytes"] == pytest.approx(info.model_bytes, rel=0.01)
    assert planned["kv_bytes"] == pytest.approx(info.cache_bytes, rel=0.01)
    buffers_bytes = planned["compute_bytes"] - PROCESS_BYTES
    assert info.compute_bytes <= buffers_bytes <= 1.5 * info.compute_bytes + 32 * MIB
    assert planned["total_bytes"] - PROCESS_BYTES < peak_bytes <= planned["total_bytes"]


def test_show_describes_what_is_loaded(model: Path) -> None:
    shown = run_json("show", str(model))
    plan = resolve(RunOptions(target=str(model), ctx=CTX, threads=1), on_progress=lambda fraction, what: None)
    with EngineClient(plan) as client:
        info = client.start()
    assert (shown["architecture"], shown["vocabulary"]) == (info.architecture, info.n_vocab)
    assert (shown["kind"], shown["context"]) == ("model", info.trained_ctx)
    assert shown["memory"]["weights_bytes"] == pytest.approx(info.model_bytes, rel=0.01)
    assert shown["size_bytes"] == model.stat().st_size
    assert (shown["template"].startswith("none")) is not info.chat_template


def test_ls_lists_a_folder_of_them(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / smollm2.name).symlink_to(smollm2)
    listed = run_json("ls", EAGLELOCAL_MODELS=str(tmp_path / "models"))["models"]
    (entry,) = [one for one in listed if one["path"].endswith(smollm2.name)]
    assert (entry["quant"], entry["architecture"], entry["size_bytes"]) == ("Q4_1", "llama", smollm2.stat().st_size)
