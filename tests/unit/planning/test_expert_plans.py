"""Plans that an expert would sign: for forty-five machines and uses, what is chosen, and the reason to choose it.

A row that changes is looked at, not adjusted: docs/models.md and planning/candidate.py say what `plan` weighs.
"""

from __future__ import annotations

import json

import pytest
from doubles.commands import run_command

pytestmark = pytest.mark.full

# machine | what is asked | what is planned, tokens of context, type of the cache | why
PLANS = """
rtx-3060 |  | gemma-4-12b:Q4_K_M 32768 q8_0 | the best of 12 B; a 27 B would need three bits
rtx-4060 |  | qwen3.5-9b:Q4_K_M 32768 q8_0 | a 9 B in four bits with its own MTP layer, 32k in eight bits
rtx-3090 |  | qwen3.8-27b:Q5_K_M 32768 f16 | 27 B of this summer in five bits, the usual choice for 24 GB
rtx-4090 |  | qwen3.8-27b:Q5_K_M 32768 f16 | as on the 3090, only faster
rtx-5090 |  | qwen3.8-27b:Q6_K 131072 f16 | six bits leave room for 131k; eight would cost the context
a6000 |  | qwen3.8-27b:Q6_K 131072 f16 | six bits at 56 tok/s; eight would be 1.5 % better and 16 % slower
2x-rtx-3090 |  | qwen3.8-27b:Q6_K 131072 f16 | nothing larger of this summer fits 46 GB
h100-sxm |  | qwen3.5-122b-a10b:Q4_K_XL 131072 f16 | 122 B with 10 B active: large and fast at once
rtx-3090 | qwen3-8b | qwen3-8b:Q8_0 40960 f16 | over 100 tok/s either way, so the best quantization
rtx-4090 | qwen3-8b | qwen3-8b:Q8_0 40960 f16 | over 100 tok/s either way, so the best quantization
rtx-3060 | qwen3-8b | qwen3-8b:Q5_K_M 32768 f16 | five bits and 32k in f16; six would need a cache of eight
rtx-3090 | qwen3-14b | qwen3-14b:Q6_K 40960 f16 | six bits lose nothing that is noticed, and 75 tok/s are plenty
rtx-3090 | qwen3-32b | qwen3-32b:Q4_K_M 16384 q8_0 | 19 GB of weights leave room for 16k in eight bits
rtx-3090 | gpt-oss-20b | gpt-oss-20b:MXFP4 131072 f16 | it comes in four bits only
rtx-4090 | gpt-oss-20b | gpt-oss-20b:MXFP4 131072 f16 | it comes in four bits only
a6000 | llama-3.3-70b | llama-3.3-70b:Q4_K_M 32768 q8_0 | 42 of 47 GB are weights: 32k in a cache of eight bits
a6000 | qwen2.5-72b | qwen2.5-72b:Q4_K_M 8192 q8_0 | a cache of four bits harms Qwen 2.5, so fewer tokens in eight
2x-rtx-3090 | llama-3.3-70b | llama-3.3-70b:Q4_K_M 16384 q8_0 | as on the A6000, half the context, as both keep buffers
m3-ultra-96gb | llama-3.3-70b | llama-3.3-70b:Q4_K_M 65536 f16 | four bits fit, and three would gain 3 tok/s only
m3-ultra-96gb |  | qwen3.5-122b-a10b:IQ4_XS 131072 f16 | a mixture is what this much slow memory is for
m3-ultra-96gb | gpt-oss-120b | gpt-oss-120b:MXFP4 131072 f16 | it comes in four bits only; a head would gain nothing
m2-16gb |  | gemma-4-e4b:IQ4_XS 65536 f16 | a third of 16 GB is the system's: a small model at 25 tok/s
m2-max-32gb |  | qwen3.8-27b:Q4_K_S 65536 f16 | 27 B at 20 tok/s; smaller ones are faster but much weaker
m2-max-64gb |  | qwen3.5-122b-a10b:IQ3_S 32768 q8_0 | 122 B in three bits, at 49 tok/s, as few are active
m3-max-128gb |  | qwen3.5-122b-a10b:Q4_K_XL 131072 f16 | 122 B in four bits with all the context
strix-halo |  | qwen3.5-122b-a10b:Q4_K_XL 131072 f16 | 122 B in four bits with all the context
cpu-16gb |  | gemma-4-e4b:Q4_K_M 32768 f16 | 4 B active are what DDR4 reads ten times a second
cpu-32gb |  | qwen3.6-35b-a3b:Q4_K_M 16384 f16 | 3 B active of 35: as fast as the 4 B on 16 GB, and far better
cpu-16gb | qwen3-4b | qwen3-4b:Q4_K_M 32768 f16 | four bits, as each halving of the bytes doubles the speed
rtx-4090 | llama-3.1-8b --parallel 16 | llama-3.1-8b:Q8_0 8192 q8_0 | 16 share it: 8k each in eight bits, never four
rtx-4090 | llama-3.1-8b --parallel 4 | llama-3.1-8b:Q8_0 32768 q8_0 | four at once have 32k each in eight bits
rtx-3090 | qwen3.6-27b --ctx 65536 | qwen3.6-27b:Q5_K_M 65536 q8_0 | the context was asked for: a cache of eight bits
rtx-4090 | --goal speed | qwen3.8-27b:Q5_K_M 32768 f16 | the largest that writes 80 tok/s
rtx-4090 | --goal quality | qwen3.8-27b:Q6_K 32768 q8_0 | six bits, and the cache pays for them
rtx-3060 | --goal quality | qwen3.8-27b:Q5_K_M 8192 f16 | half of the layers in RAM: good answers at reading speed
rx-7900-xtx |  | qwen3.8-27b:Q5_K_M 32768 f16 | as on the 3090, which has as much memory and is as fast
cuda-8gb | llama-3.1-8b | llama-3.1-8b:Q4_K_M 16384 q8_0 | four bits and 16k in eight
cuda-8gb | qwen3-8b | qwen3-8b:Q4_K_M 16384 q8_0 | four bits and 16k in eight
dgx-spark |  | qwen3.5-122b-a10b:Q4_K_XL 131072 f16 | 122 B in four bits with all the context
rtx-3060 | mistral-7b | mistral-7b:Q5_K_M 32768 f16 | no head is known, so only lookups; five bits at 53 tok/s
a6000 | mixtral-8x7b | mixtral-8x7b:Q5_K_M 32768 f16 | no head is known, so only lookups; five bits at 58 tok/s
rtx-3090 | gemma-3-27b | gemma-3-27b:Q4_K_M 32768 f16 | four bits and 32k in f16
rtx-3060 | gemma-3-12b | gemma-3-12b:Q4_K_M 32768 f16 | four bits and 32k in f16
rtx-4060-ti-16gb |  | qwen3.8-27b:Q3_K_XL 32768 q8_0 | 27 B in three bits, its MTP layer makes it fast enough
rtx-2060 |  | gemma-4-e4b:Q5_K_M 32768 f16 | 6 GB: 4 B active in five bits
"""
ROWS = [[cell.strip() for cell in line.split("|")] for line in PLANS.strip().splitlines()]


@pytest.mark.parametrize(("machine", "asked", "planned", "why"), ROWS)
def test_the_plan_is_what_an_expert_would_choose(machine: str, asked: str, planned: str, why: str) -> None:
    done = run_command("plan", *asked.split(), "--machine", machine, "--json")
    assert done.returncode == 0, done.stderr
    chosen = json.loads(done.stdout.splitlines()[-1])["chosen"]
    assert f"{chosen['reference']} {chosen['ctx']} {chosen['kv_type']}" == planned, why


def test_no_plan_takes_a_cache_of_four_bits_unasked() -> None:
    assert len(ROWS) > 40 and not any(planned.endswith("q4_0") for _, _, planned, _ in ROWS)
