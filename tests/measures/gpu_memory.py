"""What the planner says lies on each device, beside what llama.cpp plans there: python tests/measures/gpu_memory.py

    python tests/measures/gpu_memory.py [LAYERS,LAYERS ...] [NAME ...]

For every sketch of tests/doubles/weightless_models.py, with so many layers on the GPUs (all, 3, 12 unless named), and
where it has experts with half and all layers' in main memory, for whichever GPUs this llama.cpp sees: a Vulkan build
takes the software device of Mesa too (GGML_VK_VISIBLE_DEVICES=0; "0,0" is two of them), which takes no tensor of
128 MiB and more, so that large models are planned otherwise there.
Weights and caches must agree, buffers must be bounded from above. Exits 1 where they are not.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from doubles.weightless_models import REAL, SKETCHES, write_sketch

from eaglelocal.backend.dry_run import DryRunPart, plan_buffers
from eaglelocal.backend.llama_library import LlamaLibrary, free_memory, load_library
from eaglelocal.backend.model import Placement
from eaglelocal.core.plan import Plan
from eaglelocal.gguf.hazards import graph_problem
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import ModelShape, read_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.loading.context_parts import make_context_params
from eaglelocal.memory.budget import Buffer, FreeMemory, MemoryKind
from eaglelocal.memory.contexts import plan_contexts
from eaglelocal.memory.estimate import estimate_context
from eaglelocal.memory.placement import choose_gpus

MIB = 2**20
CONTEXTS = ({"n_ctx": 512}, {"n_ctx": 4096, "kv_type": "q8_0"}, {"n_ctx": 8192, "num_slots": 2})
Sums = dict[tuple[str, MemoryKind], int]


def summed(buffers: Iterable[Buffer]) -> Sums:
    sums: Sums = defaultdict(int)
    for buffer in buffers:
        sums[buffer.device, buffer.kind] += buffer.num_bytes
    return sums


def compared(plan: Plan, library: LlamaLibrary, gpus: tuple[FreeMemory, ...]) -> tuple[Sums, Sums]:
    """Estimated, and as llama.cpp plans it."""
    header = read_header(plan.target)
    (job,) = plan_contexts(plan, read_shape(header))
    part = DryRunPart(
        info=ModelInfo.from_header(header),
        context=make_context_params(job, flash_attn="on", threads=1),
        placement=Placement(gpu_layers=plan.gpu_layers, n_cpu_moe=plan.n_cpu_moe),
    )
    result = plan_buffers(library, [part], devices=[gpu.device for gpu in gpus])
    return summed(estimate_context(job, gpus, plan.shares)), summed(result)


def check(name: str, plan: Plan, library: LlamaLibrary, gpus: tuple[FreeMemory, ...]) -> int:
    """Prints what does not agree; how much that is."""
    estimated, result = compared(plan, library, gpus)
    num_wrong = 0
    for device, kind in sorted({*estimated, *result}):
        said, true = estimated[device, kind], result[device, kind]
        is_bound = kind is MemoryKind.BUFFERS
        is_wrong = true > said if is_bound else abs(said - true) > 0.01 * max(said, true) + 2**17
        num_wrong += is_wrong
        if is_wrong or (is_bound and said > 1.5 * true + 64 * MIB):
            parted = f" ({plan.n_cpu_moe} without experts)" if plan.n_cpu_moe else ""
            where = f"{plan.gpu_layers} layers{parted}, {device} {kind}"
            what = f"{name} {plan.num_slots} x {plan.n_ctx} {plan.kv_type}, {where}"
            verdict = "WRONG" if is_wrong else "large"
            sys.stdout.write(f"{verdict}  {what}: estimated {said / MIB:.1f} MiB, planned {true / MIB:.1f}\n")
    return num_wrong


def offloads(shape: ModelShape, layers: Iterable[int]) -> Iterator[tuple[int | None, int]]:
    """Layers on the GPUs, and layers whose experts are not."""
    yield from ((count, 0) for count in (None, *layers))
    if shape.expert_bytes:
        yield from ((count, parted) for count in (None, *layers) for parted in (shape.n_layer // 2, shape.n_layer))


def main(asked: list[str]) -> int:
    layers = [int(number) for number in asked[0].split(",")] if asked else [3, 12]
    sketches = SKETCHES | REAL
    library = load_library()
    gpus = choose_gpus(free_memory(library, ram_bytes=2**40, unified=False), device=None, split="layer")
    if not gpus:
        sys.stdout.write("llama.cpp sees no GPU\n")
        return 2
    num_wrong = num_plans = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in asked[1:] or sketches:
            path = write_sketch(Path(folder) / "sketch.gguf", sketches[name])
            for sizes in CONTEXTS:
                for gpu_layers, n_cpu_moe in offloads(read_shape(read_header(path)), layers):
                    plan = Plan(target=path, target_label=name, unified=False, flash_attn="on")
                    plan = replace(plan, gpu_layers=gpu_layers, n_cpu_moe=n_cpu_moe, **sizes)  # type: ignore[arg-type]
                    architecture = read_shape(read_header(path)).architecture
                    if not graph_problem(architecture, kv_type=plan.kv_type, num_caches=plan.num_slots):
                        num_plans += 1
                        num_wrong += check(name, plan, library, gpus)
    sys.stdout.write(f"{num_plans} plans on {', '.join(gpu.device for gpu in gpus)}, {num_wrong} figures wrong\n")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
