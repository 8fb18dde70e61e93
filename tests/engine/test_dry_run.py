"""The buffers that llama.cpp plans without allocating equal those that it allocates afterwards, for every model."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from doubles.hybrid_model import write_hybrid
from doubles.random_models import HeadShape, TargetShape, write_head, write_target
from doubles.weightless_models import REAL, write_sketch

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.dry_run import DryRunPart, plan_buffers, record_log, sum_buffer_bytes
from eaglelocal.backend.head_context import LlamaHeadContext
from eaglelocal.backend.llama_library import free_memory, load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Batch
from eaglelocal.errors import ModelFileError, UsageError
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, MemoryKind

SHAPE = TargetShape(n_embd=256, n_layer=4, n_ff=512)
CONTEXT = ContextParams(n_ctx=1024, n_batch=64, max_outputs=4)
PLACEMENT = Placement(repack=False)


def part(path: Path, context: ContextParams = CONTEXT, taps: tuple[int, ...] = ()) -> DryRunPart:
    header = read_header(path)
    is_head = header.architecture == "eagle3"
    info = EagleInfo.from_header(header) if is_head else ModelInfo.from_header(header)
    return DryRunPart(info=info, context=context, taps=taps, placement=PLACEMENT)


def sums(buffers: Iterable[Buffer]) -> dict[MemoryKind, int]:
    counted: Counter[MemoryKind] = Counter()
    for buffer in buffers:
        assert buffer.device == RAM
        counted[buffer.kind] += buffer.num_bytes
    return dict(counted)


def planned(parts: Sequence[DryRunPart]) -> dict[MemoryKind, int]:
    return sums(plan_buffers(load_library(), parts, devices=()))


def really_taken(parts: Sequence[DryRunPart]) -> dict[str, int]:
    """As llama.cpp logs it when the parts are loaded and, where there are taps, decode once."""
    library = load_library()
    with record_log(library) as transcript:
        models = [LlamaModel(library, part.header.path, PLACEMENT) for part in parts]
        target = LlamaContext(models[0], parts[0].context, taps=parts[0].taps)
        contexts: list[LlamaContext | LlamaHeadContext] = [target]
        if len(parts) > 1:
            contexts.append(LlamaHeadContext(models[1], parts[1].context, target=target))
        taken = sum_buffer_bytes(transcript)
        if parts[0].taps:
            before = sum_buffer_bytes(transcript)["compute"]
            target.decode(Batch([1], [0], [(0,)], [True]))
            taken["grown"] = sum_buffer_bytes(transcript)["compute"] - before  # the target's, once more
        for context in reversed(contexts):
            context.close()
        for model in models:
            model.close()
    return taken


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q8_0,q5_1", "f16,iq4_nl"])
def test_a_target_as_planned(tmp_path: Path, slots: int, kv_type: str) -> None:
    context = replace(CONTEXT, num_sequences=slots, kv_type=kv_type)
    parts = [part(write_target(tmp_path / "target.gguf", SHAPE), context)]
    plan, real = planned(parts), really_taken(parts)
    assert plan[MemoryKind.CACHE] == pytest.approx(real["KV"], abs=2**16)
    assert plan[MemoryKind.BUFFERS] - parts[0].output_bytes == real["compute"]
    assert plan[MemoryKind.WEIGHTS] == pytest.approx(real["model"], abs=2**16)


def test_branches_cost_no_cells_and_are_planned_too(tmp_path: Path) -> None:
    """Sequence ids are bookkeeping: the cache is as large as without them, and buffers hardly grow."""
    path = write_target(tmp_path / "target.gguf", SHAPE)
    context = replace(CONTEXT, num_sequences=2, max_outputs=10)
    parts, alone = [part(path, replace(context, num_branches=8))], [part(path, context)]
    plan, real, chains = planned(parts), really_taken(parts), planned(alone)
    assert plan[MemoryKind.CACHE] == chains[MemoryKind.CACHE] == pytest.approx(real["KV"], abs=2**16)
    assert plan[MemoryKind.BUFFERS] - parts[0].output_bytes == real["compute"]
    assert plan[MemoryKind.BUFFERS] <= 1.1 * chains[MemoryKind.BUFFERS]


def test_a_target_with_taps_and_a_head_that_borrows(tmp_path: Path) -> None:
    """The taps' share is added to the plan: what the graph grows by at the first decode is no more than that."""
    target = part(write_target(tmp_path / "target.gguf", SHAPE), taps=(1, 2, 3))
    path = write_head(tmp_path / "head.gguf", HeadShape(width=256), SHAPE)
    head = part(path, replace(CONTEXT, max_outputs=64))
    plan, real, alone = planned([target, head]), really_taken([target, head]), planned([target])
    assert plan[MemoryKind.CACHE] == pytest.approx(real["KV"], abs=2**16)
    assert plan[MemoryKind.WEIGHTS] == pytest.approx(real["model"], abs=2**17)
    outputs = target.output_bytes + head.output_bytes
    head_compute = plan[MemoryKind.BUFFERS] - alone[MemoryKind.BUFFERS] - head.output_bytes
    assert 0 <= plan[MemoryKind.BUFFERS] - outputs - head_compute - real["grown"] < 3 * target.tap_bytes


def test_a_target_with_states(tmp_path: Path) -> None:
    parts = [part(write_hybrid(tmp_path / "hybrid.gguf"))]
    plan, real = planned(parts), really_taken(parts)
    assert plan[MemoryKind.CACHE] == pytest.approx(real["KV"] + real["RS"], abs=2**16)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is not bounded so")
def test_states_take_nothing_while_they_are_planned(tmp_path: Path) -> None:
    """Of a real size: 21 GiB, where this process may have 2 more."""
    path = write_sketch(tmp_path / "hybrid.gguf", REAL["qwen3.6-27b"])
    context = replace(CONTEXT, num_sequences=16, unified=False, max_outputs=16, num_snapshots=8)
    state_bytes = 16 * 9 * read_shape(read_header(path)).state_bytes
    assert state_bytes > 20 * 2**30
    planned([part(path)])  # what is taken once
    with at_most_more(2**31):
        assert planned([part(path, context)])[MemoryKind.CACHE] > state_bytes


@contextlib.contextmanager
def at_most_more(num_bytes: int) -> Iterator[None]:
    """As much memory of its own, touched or not, as the process may take until this ends."""
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + num_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


def test_only_what_is_planned_lies_nowhere(tmp_path: Path) -> None:
    """Loaded after a plan, and after one that failed, it computes."""
    hybrid = part(write_hybrid(tmp_path / "hybrid.gguf"))
    planned([hybrid])
    with pytest.raises(UsageError, match="--kv-type cannot be odd"):
        planned([replace(hybrid, context=replace(CONTEXT, kv_type="odd"))])
    model = LlamaModel(load_library(), hybrid.header.path, PLACEMENT)
    context = LlamaContext(model, CONTEXT)
    context.decode(Batch([1, 2], [0, 1], [(0,), (0,)], [False, True]))
    assert np.isfinite(context.logits(1)).all()
    assert len(context.save(0)) > read_shape(hybrid.header).state_bytes
    context.close()
    model.close()


def test_nothing_stays_after_and_the_log_is_as_before(tmp_path: Path) -> None:
    library = load_library()
    log, lines = library.log, list(library.log.buffer_lines)
    repacked = part(write_target(tmp_path / "target.gguf", replace(SHAPE, type="Q4_0")))
    parts = [replace(repacked, placement=Placement(repack=True))]
    assert planned(parts) == planned(parts)
    assert library.log is log and log.buffer_lines == lines


def test_a_model_that_cannot_be_planned_is_refused_in_llama_cpps_words(tmp_path: Path) -> None:
    whole = part(write_target(tmp_path / "target.gguf", SHAPE))
    raw = whole.header.path.read_bytes()
    whole.header.path.write_bytes(raw.replace(b"blk.3.ffn_up", b"blk.3.ffn_xx"))
    with pytest.raises(ModelFileError, match=r"llama\.cpp cannot load .*ffn_up"):
        planned([whole])
    assert load_library().log.reason()


def test_main_memory_is_the_first_room() -> None:
    assert free_memory(load_library(), ram_bytes=123, unified=False)[0] == FreeMemory(RAM, 123)
