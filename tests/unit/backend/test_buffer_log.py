"""Lines of llama.cpp's log -> buffers on devices. The lines are the pinned build's, for a machine with two GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from eaglelocal.backend.dry_run import (
    find_device,
    parse_cache_buffers,
    parse_compute_buffers,
    parse_layer_devices,
    sum_buffer_bytes,
    weight_buffers,
)
from eaglelocal.backend.llama_library import LlamaLog
from eaglelocal.backend.model import Placement
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME
from eaglelocal.gguf.header import TensorInfo
from eaglelocal.memory.budget import RAM, Buffer

DEVICES = ("CUDA0", "CUDA1")
MIB = 2**20
LINES = """\
load_tensors: layer   0 assigned to device CPU, is_swa = 0
load_tensors: layer   1 assigned to device CUDA0, is_swa = 1
load_tensors: layer   2 assigned to device CUDA1, is_swa = 0
load_tensors: layer   3 assigned to device CUDA1, is_swa = 0
load_tensors:          CPU model buffer size =     0.00 MiB
llama_context:  CUDA_Host  output buffer size =     0.58 MiB
llama_kv_cache: layer   0: dev = CPU
llama_kv_cache: layer   2: dev = CUDA1
llama_kv_cache:        CPU KV buffer size =     0.00 MiB
llama_kv_cache: size =   64.00 MiB (  2048 cells,   2 layers,  1/1 seqs), K (f16):   32.00 MiB, V (f16):   32.00 MiB
llama_kv_cache: layer   1: dev = CUDA0
llama_kv_cache: size =    8.00 MiB (   512 cells,   1 layers,  1/1 seqs), K (f16):    4.00 MiB, V (f16):    4.00 MiB
llama_memory_recurrent, layer   1: dev = CUDA0
llama_memory_recurrent: size =    2.00 MiB (     1 cells,   1 layers,  1 seqs  0 rs_seq), R (f32):    2.00 MiB
sched_reserve:      CUDA0 compute buffer size =   120.50 MiB
sched_reserve:      CUDA1 compute buffer size =    80.00 MiB
sched_reserve:  CUDA_Host compute buffer size =    16.00 MiB
""".splitlines()


def by_device(buffers: Iterable[Buffer]) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for buffer in buffers:
        sums[buffer.device] += buffer.num_bytes
    return {device: num_bytes / MIB for device, num_bytes in sums.items()}


def tensors(*names: str) -> list[TensorInfo]:
    """1 MiB each."""
    return [TensorInfo(name, (MIB // 4,), GGML_TYPES_BY_NAME["F32"], 0, MIB) for name in names]


@pytest.mark.parametrize(
    ("name", "device"),
    [("CUDA1", "CUDA1"), ("CUDA1_Split", "CUDA1"), ("CUDA_Host", RAM), ("CPU", RAM), ("CPU_REPACK", RAM)],
)
def test_a_buffer_lies_on_the_device_it_is_named_after(name: str, device: str) -> None:
    assert find_device(name, DEVICES) == device


def test_the_longest_name_wins() -> None:
    assert find_device("CUDA10", ("CUDA1", "CUDA10")) == "CUDA10"


def test_layers_caches_and_compute() -> None:
    assert parse_layer_devices(LINES, DEVICES) == {0: RAM, 1: "CUDA0", 2: "CUDA1", 3: "CUDA1"}
    assert by_device(parse_cache_buffers(LINES, DEVICES)) == {RAM: 32, "CUDA1": 32, "CUDA0": 10}
    assert by_device(parse_compute_buffers(LINES, DEVICES)) == {"CUDA0": 120.5, "CUDA1": 80, RAM: 16}


def test_states_of_rows_that_are_not_complete() -> None:
    """DeepSeek V4's caches: those of rows of several tokens, and the states behind them."""
    lines = """\
llama_kv_cache: layer   1: dev = CUDA0
llama_kv_cache: size =    4.00 MiB (   256 cells,   1 layers,  1/1 seqs), K (f16):    4.00 MiB, V (f16):    0.00 MiB
llama_dsv4_comp_state: layer   0: dev = CPU
llama_dsv4_comp_state: layer   1: dev = CUDA0
llama_dsv4_comp_state:        CPU DSV4 csa state buffer size =     0.50 MiB
llama_dsv4_comp_state:      CUDA0 DSV4 csa state buffer size =     0.50 MiB
llama_dsv4_comp_state: csa ratio = 4, state = 8 x 1024, streams = 1, rs_seq = 4, layers = 2, size =    1.00 MiB
llama_dsv4_comp_state: layer   2: dev = CUDA1
llama_dsv4_comp_state: hca ratio = 128, state = 128 x 512, streams = 1, rs_seq = 4, layers = 1, size =    3.00 MiB
""".splitlines()
    assert by_device(parse_cache_buffers(lines, DEVICES)) == {"CUDA0": 4.5, RAM: 0.5, "CUDA1": 3}
    log = LlamaLog()
    log.write("\n".join([*lines, ""]))
    assert sum_buffer_bytes(log) == {"RS": MIB}


BLOCKS = ("blk.0.attn_q.weight", "blk.1.attn_q.weight", "blk.2.attn_q.weight", "blk.2.ffn_up.weight")


@pytest.mark.parametrize(
    ("more", "borrows", "expected"),
    [
        (("token_embd.weight", "output.weight", "output_norm.weight"), False, {RAM: 2, "CUDA0": 1, "CUDA1": 4}),
        (("token_embd.weight", "output_norm.weight"), False, {RAM: 2, "CUDA0": 1, "CUDA1": 4}),  # embeddings twice
        (("token_embd.weight", "output_norm.weight"), True, {RAM: 2, "CUDA0": 1, "CUDA1": 3}),
        (("blk.9.nextn.weight",), False, {RAM: 2, "CUDA0": 1, "CUDA1": 2}),  # of a layer that is not loaded to a GPU
    ],
)
def test_weights_follow_their_layers(more: tuple[str, ...], borrows: bool, expected: dict[str, float]) -> None:
    layers = parse_layer_devices(LINES, DEVICES)
    assert by_device(weight_buffers(tensors(*BLOCKS, *more), layers, borrows=borrows)) == expected


def test_without_gpus_all_weights_lie_in_main_memory_once() -> None:
    held = weight_buffers(tensors(*BLOCKS, "token_embd.weight"), {0: RAM, 1: RAM, 2: RAM, 3: RAM}, borrows=False)
    assert by_device(held) == {RAM: 5}


def test_experts_of_the_first_layers_stay_in_main_memory() -> None:
    blocks = [f"blk.{layer}.{part}.weight" for layer in (1, 2, 3) for part in ("attn_q", "ffn_up_exps")]
    layers = parse_layer_devices(LINES, DEVICES)
    held = weight_buffers(tensors(*blocks), layers, borrows=False, placement=Placement(n_cpu_moe=3))
    assert by_device(held) == {"CUDA0": 1, RAM: 2, "CUDA1": 3}


@pytest.mark.parametrize(
    "name", ["x" * 20_000, "CPU model buffer size = 9999.00 MiB", "a: b model buffer size = 9999.00 MiB"]
)
def test_a_name_that_looks_like_a_buffer_is_none(name: str) -> None:
    log = LlamaLog()
    log.write(f"print_info: general.name          = {name} buffer size\n")
    log.write("load_tensors:   CPU model buffer size =     2.00 MiB\n")
    assert sum_buffer_bytes(log) == {"model": 2 * MIB}


def test_lines_of_the_log_are_cut_however_they_come() -> None:
    log = LlamaLog()
    for _ in range(50):
        log.write("buffer size" * 10)
    log.write(f"\nbuffer size {'y' * 5000}\nbuffer size\n")
    assert [len(line) for line in log.buffer_lines] == [1000, 1000, 11]
