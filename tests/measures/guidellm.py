"""GuideLLM against a real server: python tests/measures/guidellm.py --guidellm PATH [--target REF] [--requests N]

PATH is the program of GuideLLM, from an environment of its own: python3 -m venv g && g/bin/pip install guidellm==0.7.4.
Runs its profiles concurrent 1, 4, 16 and poisson over the embedded model's held-out prompts, 48 tokens each
(it sends ignore_eos), and compares what it counted with the server's own metrics. Exits 1 if anything differs or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the doubles

import httpx
from doubles.serve_process import ServeProcess, serve
from prometheus_client.parser import text_string_to_metric_families

from eaglelocal.bench.bench_prompts import builtin_prompts

MAX_TOKENS = 48
MAX_CHARS = 1200  # of a prompt
PROFILES = (
    "kind=concurrent,streams=1",
    "kind=concurrent,streams=4",
    "kind=concurrent,streams=16",
    "kind=poisson,rate=0.5",
)


def write_prompts(path: Path) -> None:
    rows = [
        {"prompt": prompt.messages[-1].content, "output_tokens_count": MAX_TOKENS}
        for prompt in builtin_prompts((), 12)
        if len(prompt.messages[-1].content) < MAX_CHARS
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def totals(server: ServeProcess) -> tuple[float, float]:
    """Prompt and generated tokens, by /metrics."""
    text = httpx.get(f"{server.url}/metrics", timeout=30).text
    found = {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}
    return found["eaglelocal:prompt_tokens_total"], found["eaglelocal:generation_tokens_total"]


def run(program: str, server: ServeProcess, profile: str, prompts: Path, count: int) -> list[dict[str, object]]:
    """The requests of one benchmark, as GuideLLM reports them: successful ones, or an error with the others."""
    out = prompts.with_suffix(".out.json")
    command = [program, "run", "--disable-console", "--profile", profile, "--output", f"kind=json,path={out}"]
    command += ["--backend", f"kind=openai_http,target={server.url},model=demo,request_format=/v1/chat/completions"]
    command += ["--constraint", f"kind=max_requests,count={count}"]
    command += ["--data", f'kind=json_file,path={prompts},load_kwargs={{"split":"train"}}']
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env={**environment, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    requests = benchmark["requests"]
    for kind in ("errored", "incomplete"):
        if requests[kind]:
            raise SystemExit(f"{profile}: {len(requests[kind])} {kind}: {str(requests[kind][0])[:1000]}")
    successful: list[dict[str, object]] = requests["successful"]
    return successful


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--guidellm", required=True)
    parser.add_argument("--target", default="demo")
    parser.add_argument("--requests", type=int, default=32)
    chosen, fine = parser.parse_args(), True
    with tempfile.TemporaryDirectory() as folder, serve("--target", chosen.target) as server:
        prompts = Path(folder, "prompts.jsonl")
        write_prompts(prompts)
        before = totals(server)  # GuideLLM asks nothing but its requests
        for profile in PROFILES:
            result = run(chosen.guidellm, server, profile, prompts, chosen.requests)
            after = totals(server)
            ours = (after[0] - before[0], after[1] - before[1])
            theirs = tuple(
                sum(float(str(one[name] or 0)) for one in result) for name in ("prompt_tokens", "output_tokens")
            )
            fine &= ours == theirs and len(result) == chosen.requests
            print(
                f"{profile}: {len(result)} successful; prompt and output tokens, theirs {theirs}, ours {ours}",
                flush=True,
            )
            before = after
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
