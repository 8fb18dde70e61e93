"""Exported values in the chart of vLLM's production-stack, checked against its schema and rendered by Helm itself.

VLLM_CHART names the chart's folder (helm/ of vllm-project/production-stack), HELM_PYTHON a Python with helm-python-sdk,
which holds Helm as a library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART, PYTHON = os.environ.get("VLLM_CHART", ""), os.environ.get("HELM_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHART and PYTHON), reason="VLLM_CHART and HELM_PYTHON name no chart and no Helm"),
]
ROOT = Path(__file__).parents[2]
TARGET_COMMIT, DRAFT_COMMIT = "1a" * 20, "2b" * 20
PAIR = ("qwen3-8b", "--draft", "e3-qwen3-8b-angelslim", "--draft-revision", DRAFT_COMMIT)
RENDER = """
import json, sys
import helm_python
chart = helm_python.Chart.load(sys.argv[1])
values = helm_python.values_from_yaml(open(sys.argv[2]).read())
chart.validate_schema(values)
print(json.dumps(chart.render(values)))
"""


def render(tmp_path: Path, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the exported entry of modelSpec, and the deployment that Helm makes of it."""
    file = tmp_path / "values.yaml"
    command = [sys.executable, "-P", "-m", "eaglelocal", "export", "helm", *arguments, "--revision", TARGET_COMMIT]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EAGLELOCAL_")}
    environ = {**plain, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    exported = subprocess.run([*command, "--out", str(file)], capture_output=True, text=True, env=environ, timeout=120)
    assert exported.returncode == 0, exported.stderr
    done = subprocess.run([PYTHON, "-c", RENDER, CHART, str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    texts = [text for name, text in json.loads(done.stdout).items() if name.endswith("deployment-vllm-multi.yaml")]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    (deployment,) = [document for document in documents if document and document["kind"] == "Deployment"]
    (spec,) = yaml.safe_load(file.read_text())["servingEngineSpec"]["modelSpec"]
    return spec, deployment


@pytest.mark.parametrize("given", [(), ("--load", "batch"), ("--mig",)])
def test_helm_makes_of_the_values_what_was_planned(given: tuple[str, ...], tmp_path: Path) -> None:
    spec, deployment = render(tmp_path, *PAIR, "--machine", "h100-sxm", *given)
    template = deployment["spec"]["template"]
    (container,) = [each for each in template["spec"]["containers"] if each["name"] == "vllm"]
    words = container["command"]
    assert container["image"] == f"{spec['repository']}:{spec['tag']}"
    assert words[:3] == ["vllm", "serve", "Qwen/Qwen3-8B"] and "--enable-prefix-caching" in words
    own, extra = spec["vllmConfig"], spec["vllmConfig"]["extraArgs"]
    flags = {"--max-model-len": own["maxModelLen"], "--max-num-seqs": own["maxNumSeqs"]}
    assert all(words[words.index(flag) + 1] == str(value) for flag, value in flags.items())
    assert float(words[words.index("--gpu_memory_utilization") + 1]) == own["gpuMemoryUtilization"]
    start = words.index(extra[0])
    assert words[start : start + len(extra)] == extra
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert (config["model"], config["revision"]) == ("AngelSlim/Qwen3-8B_eagle3", DRAFT_COMMIT)
    assert {words[number + 1] for number, word in enumerate(words) if word == "--revision"} == {TARGET_COMMIT}
    card = spec.get("requestGPUType", "nvidia.com/gpu")
    assert container["resources"]["limits"][card] == str(spec["requestGPU"])
    assert spec["podAnnotations"].items() <= template["metadata"]["annotations"].items()
    assert spec["podLabels"].items() <= template["metadata"]["labels"].items()
