"""Conversations swapped to main memory with the real llama.cpp: the cells come back unchanged, texts are those of plain
decoding, and the drafter's state is restored."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from doubles.block_models import write_bigram_head
from doubles.engine_harness import drive
from doubles.layered_heads import add_upper_layers
from doubles.margin import margin_differences, plain_pieces
from doubles.mixed_traffic import MixedTraffic
from doubles.random_models import write_agreeing_head, write_agreeing_pairs, write_target
from doubles.real_engine import TINY, ask, read, real_engine
from doubles.runnable_models import write_runnable
from doubles.tiers import some_of
from doubles.windowed_model import WINDOW, write_windowed

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.dry_run import sum_host_bytes
from eaglelocal.backend.llama_library import LlamaLog, load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.core.batch import Bytes, Floats
from eaglelocal.core.plan import Plan
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import ResourceError
from eaglelocal.loading.engine_builder import MAX_SWAP_BYTES, choose_swap_bytes
from eaglelocal.scheduler.host_swap import HostSwap, SwappedText
from eaglelocal.scheduler.slot import BEFORE_END, Checkpoints

pytestmark = pytest.mark.full

SHAPE = dataclasses.replace(TINY, layer_gain=0.2)
BIGRAM_SHAPE = dataclasses.replace(TINY, layer_gain=0.02)
TEXTS = np.random.default_rng(0).integers(0, 256, (4, 200)).tolist()
DRAFTS = {
    "none": None,
    "eagle3": "F32-head.gguf",
    "eagle3 of several layers": "layered.gguf",
    "draft_model": "F32.gguf",
    "ngram": None,
    "dflash": "bigram.gguf",
}
GIB = 2**30


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swap")
    write_agreeing_pairs(folder, ("F32",), SHAPE)
    write_target(folder / "tiny.gguf", TINY)
    below = write_agreeing_head(folder / "below.gguf", folder / "F32.gguf", SHAPE, num_depths=3)
    add_upper_layers(below, folder / "F32.gguf", folder / "layered.gguf", num_layers=3, gain=0.02)
    write_bigram_head(folder / "bigram.gguf", write_target(folder / "followed.gguf", BIGRAM_SHAPE), BIGRAM_SHAPE)
    return folder


@pytest.fixture(scope="module")
def model(files: Path) -> Iterator[LlamaModel]:
    model = LlamaModel(load_library(), files / "tiny.gguf", Placement(repack=False))
    yield model
    model.close()


@pytest.mark.parametrize(("kv_type", "flash"), [("f16", "auto"), ("f16", "off"), ("q8_0", "on"), ("q4_0", "on")])
@pytest.mark.parametrize("unified", [False, True])
def test_cells_come_back_as_they_were_in_whatever_slot(
    model: LlamaModel, kv_type: str, flash: str, unified: bool
) -> None:
    params = ContextParams(n_ctx=256, num_sequences=3, unified=unified, n_batch=256, kv_type=kv_type, flash_attn=flash)
    context = LlamaContext(model, params)
    read(context, 0, 0, TEXTS[0][:100])
    read(context, 1, 0, TEXTS[1][:70])
    cells = context.swap_out(0)
    assert context.swapped_bytes(0) == len(cells)
    for size, is_used in ((len(cells), True), (len(cells) + 1, False)):
        buffer = np.zeros(size, np.uint8)
        again = context.swap_out(0, buffer)
        assert (again is buffer) is is_used
        np.testing.assert_array_equal(again, cells)
    there = read(context, 0, 100, TEXTS[0][100:103])
    context.remove(0, 0)
    read(context, 0, 0, TEXTS[2][:50])  # another takes the slot, and writes over the cells
    read(context, 1, 70, TEXTS[1][70:90])
    for slot in (0, 2):
        context.swap_in(slot, cells)
        assert context.last_position(slot) == 99
        # sums in another order, where the cells lie elsewhere in one cache
        np.testing.assert_allclose(read(context, slot, 100, TEXTS[0][100:103]), there, atol=1e-5 if unified else 0)
    np.testing.assert_allclose(read(context, 1, 90, [9]), read_alone(model, [*TEXTS[1][:90], 9], params), atol=2e-2)
    context.close()


def read_alone(model: LlamaModel, tokens: list[int], params: ContextParams) -> Floats:
    context = LlamaContext(model, params)
    logits = read(context, 0, 0, tokens)
    context.close()
    return logits


def test_what_waits_to_be_copied_is_not_swapped(model: LlamaModel) -> None:
    """llama.cpp copies between caches of their own with the next decode."""
    context = LlamaContext(model, ContextParams(n_ctx=256, num_sequences=3, unified=False, n_batch=256))
    read(context, 0, 0, TEXTS[0][:100])
    cells = context.swap_out(0)
    context.share(0, 1, 0, 90)
    for act in (lambda: context.swap_out(1), lambda: context.swap_in(0, cells), lambda: context.swap_in(1, cells)):
        with pytest.raises(ResourceError, match="is still to be copied"):
            act()
    np.testing.assert_array_equal(context.swap_out(0), cells)  # what is copied from is there
    context.swap_in(2, cells)
    read(context, 2, 100, [1])
    assert len(context.swap_out(1)) > 0
    context.close()


def test_damaged_cells_are_refused_and_the_slot_is_empty(model: LlamaModel) -> None:
    context = LlamaContext(model, ContextParams(n_ctx=128, num_sequences=2, unified=False, n_batch=128))
    read(context, 0, 0, TEXTS[0][:100])
    cells = context.swap_out(0)
    read(context, 1, 0, TEXTS[1][:10])
    with pytest.raises(ResourceError, match="not swapped in"):
        context.swap_in(1, cells[:500].copy())
    assert context.last_position(1) == -1
    context.close()


@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize(("slots", "unified"), [(1, True), (2, True), (2, False), (3, None)])
def test_texts_of_conversations_that_come_and_go_are_the_plain_ones(
    files: Path, kind: str, slots: int, unified: bool | None
) -> None:
    target = files / ("followed.gguf" if kind == "dflash" else "F32.gguf")
    draft = DRAFTS[kind]
    changes = {"num_slots": slots, "unified": unified, "n_batch": 48, "num_draft_tokens": 3}
    engine = real_engine(target, kind.split()[0], files / draft if draft else None, **changes)
    engine.scheduler.prefix_cache.swap = HostSwap(2**26, min_rows=30)
    plain = real_engine(target)
    rng, reused = random.Random(slots), []
    chats = [text[: rng.choice([60, 80, 100])] for text in TEXTS]
    for turn in range(4):
        asked = []
        for number, chat in enumerate(chats):
            cut = len(chat) if rng.random() < 0.7 else rng.randint(50, len(chat))
            asked.append(ask(f"{turn} {number}", [*chat[:cut], turn, number], max_tokens=rng.randint(1, 16)))
        result = drive(engine, asked)
        while turn % 2 and engine.work_ahead():
            pass
        assert engine.miscounted_slots() == []
        for number, one in enumerate(asked):
            answer = result[one.id]
            assert margin_differences(plain, one, answer.tokens, 1e-3) == []
            chats[number] = [*one.tokens, *answer.tokens]
            reused.append(answer.started.cached_tokens if answer.started else 0)
    speculation = engine.snapshot().speculation
    engine.close()
    plain.close()
    assert min(reused[4:]) >= 49
    if kind == "draft_model":
        assert speculation.accepted_tokens == speculation.draft_tokens > 0
    if kind == "eagle3 of several layers":
        assert speculation.accepted_per_position[0] > 0.5 * speculation.drafts > 0
    if kind == "dflash":
        assert speculation.accepted_tokens > 0.8 * speculation.draft_tokens > 0


# ---- caches that cannot be cut anywhere
@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("name", ["lfm2", "nemotron_h", "qwen35", "qwen35moe"])
def test_what_was_taken_back_just_before_is_not_in_the_copy(tmp_path: Path, name: str, num_slots: int) -> None:
    """llama.cpp goes back to an earlier state with the next decode; nor is anything changed in other slots."""
    model = LlamaModel(load_library(), write_runnable(tmp_path / "model.gguf", name), Placement(repack=False))
    params = ContextParams(n_ctx=256, num_sequences=num_slots, unified=False, n_batch=128, num_snapshots=4)
    context, last = LlamaContext(model, params), num_slots - 1
    for slot in range(num_slots):
        read(context, slot, 0, [*TEXTS[slot][:60], 9, 8, 7, 6])
        context.remove(slot, 62)
    cells = context.swap_out(last)
    read(context, last, 62, [5, 4])
    context.swap_in(last, cells)
    for slot in reversed(range(num_slots)):
        alone = read_alone(model, [*TEXTS[slot][:60], 9, 8, 5], params)
        np.testing.assert_allclose(read(context, slot, 62, [5]), alone, atol=2e-2)
    context.close()
    model.close()


STATES = ("lfm2", "nemotron_h", "qwen35", "qwen35moe")
WINDOWS = ("whole windows", "windows")


@pytest.fixture(scope="module", params=[*STATES, *WINDOWS])
def uncut(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("uncut") / "model.gguf"
    return request.param, write_runnable(path, request.param) if request.param in STATES else write_windowed(path)


def uncut_engine(uncut: tuple[str, Path], kind: str = "none", **changes: object) -> Engine:
    name, target = uncut
    whole = None if name in STATES else name.startswith("whole")
    sizes = {"n_ctx": 512, "n_batch": 64, **changes}
    engine = real_engine(target, kind, swa_full=whole, cache_ram=64, **sizes)
    engine.scheduler.prefix_cache.swap.min_rows = 30
    if name in STATES:
        engine.scheduler.prefix_cache.checkpoints = Checkpoints(9)
    return engine


def said(engine: Engine, name: str, prompt: list[int], *, max_tokens: int = 12) -> tuple[list[int], int]:
    """(tokens, prompt tokens found in main memory or in the cache)."""
    result = drive(engine, [ask(name, prompt, max_tokens=max_tokens)])[name]
    assert result.started is not None and result.failed is None
    assert engine.miscounted_slots() == []
    return result.tokens, result.started.cached_tokens


def test_they_go_on_from_their_end_and_from_where_their_question_ended(uncut: tuple[str, Path]) -> None:
    """As chats do, and those whose templates leave thoughts out; then an answer is asked for again."""
    engine, plain = uncut_engine(uncut, n_ctx=1024), real_engine(uncut[1], n_ctx=1024)
    goes_back = uncut[0] != "windows"
    chat, place = TEXTS[0][:150], 150 - BEFORE_END
    answer, _ = said(engine, "first", chat)
    assert said(engine, "other", TEXTS[1])[1] == 0
    onward = [*chat, *answer, *TEXTS[3][:140]]
    result, cached = said(engine, "onward", onward, max_tokens=WINDOW + 12)
    assert (result, cached) == (said(plain, "onward", onward, max_tokens=WINDOW + 12)[0], 150 + 12 - 1)
    assert said(engine, "another", TEXTS[2])[1] == 0
    changed = [*onward, 9, *TEXTS[3][:150]]
    result, cached = said(engine, "changed", changed)
    assert (result, cached) == (said(plain, "changed", changed)[0], len(onward) - BEFORE_END if goes_back else 0)
    again, cached = said(engine, "again", changed)
    assert (again, cached) == (result, len(changed) - (BEFORE_END if uncut[0] in STATES else 1) if goes_back else 0)
    edited = [*chat, 250, 251]
    result, cached = said(engine, "edited", edited)  # of a window nothing is left there
    assert (result, cached) == (said(plain, "edited", edited)[0], place if uncut[0] in STATES else 0)
    engine.close()
    plain.close()


def test_the_text_just_before_is_there_again(uncut: tuple[str, Path]) -> None:
    """The answer was longer than a window, and what follows its question is short: it all hangs on what came along."""
    engine, plain = uncut_engine(uncut), real_engine(uncut[1], n_ctx=512)
    rng = random.Random(1)
    for number, text in enumerate(TEXTS):
        chat = text[:150]
        said(engine, f"first {number}", chat, max_tokens=WINDOW + 12)
        said(engine, f"other {number}", [rng.randrange(20, 250) for _ in range(100)])
        another, reused = ask("another", [*chat, 7]), engine.snapshot().reused_tokens
        result, wanted = ([p.sampled for p in plain_pieces(one, another, [], 3)] for one in (engine, plain))
        assert engine.snapshot().reused_tokens - reused == (150 - BEFORE_END if uncut[0] != "windows" else 0)
        for piece, plainly in zip(result, wanted, strict=True):
            assert piece is not None and plainly is not None
            assert [top.token for top in piece.top] == [top.token for top in plainly.top]
            assert piece.top[1].logprob == pytest.approx(plainly.top[1].logprob, abs=0.1)  # the best is all but sure
    engine.close()
    plain.close()


def test_states_next_to_windows_are_those_that_were_saved(tmp_path: Path) -> None:
    target = write_runnable(tmp_path / "model.gguf", "qwen35")
    engine, plain = uncut_engine(("qwen35", target)), real_engine(target, n_ctx=512)
    engine.scheduler.prefix_cache.swap = HostSwap(2**26, min_rows=30, has_windows=True)
    said(engine, "first", TEXTS[0])
    said(engine, "other", TEXTS[1])
    for number, prompt in enumerate(([*TEXTS[0], 7], [*TEXTS[1], 8])):
        assert said(engine, str(number), prompt) == (said(plain, str(number), prompt)[0], 200 - BEFORE_END)
    engine.close()
    plain.close()


def test_states_count_as_memory_too(uncut: tuple[str, Path]) -> None:
    engine = uncut_engine(uncut)
    said(engine, "first", TEXTS[0])
    said(engine, "second", TEXTS[1])
    (swapped,) = engine.caches.swapped.values()
    num_bytes = len(swapped.cells) + sum(map(len, swapped.states.values()))
    assert engine.snapshot().swapped_bytes == num_bytes
    assert (num_bytes > len(swapped.cells)) is (uncut[0] != "windows")
    engine.scheduler.prefix_cache.swap = HostSwap(num_bytes - 1, min_rows=30, has_windows=uncut[0] in WINDOWS)
    said(engine, "third", TEXTS[2])
    assert not engine.caches.swapped
    engine.close()


@pytest.mark.parametrize("kind", [pytest.param("none", marks=pytest.mark.slow), "ngram"])
@pytest.mark.parametrize("slots", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_mixed_traffic_gets_the_plain_texts(uncut: tuple[str, Path], kind: str, slots: int) -> None:
    traffic = MixedTraffic(uncut[1], uncut_engine(uncut, kind, num_slots=slots), seed=slots)
    engine, swapped = traffic.engine, []
    swap_in = engine.context.swap_in

    def counted(sequence: int, cells: Bytes) -> None:
        swapped.append(sequence)
        swap_in(sequence, cells)

    engine.context.swap_in = counted
    traffic.run(25)
    assert swapped
    traffic.close()


@pytest.mark.parametrize("num_slots", some_of([3, 1], rest=pytest.mark.slow))
def test_what_was_copied_ahead_comes_back(uncut: tuple[str, Path], num_slots: int) -> None:
    """Copies are made beside an answer, or after it; where windows would be cut, in front of the next one."""
    engine, plain = uncut_engine(uncut, num_slots=num_slots), real_engine(uncut[1], n_ctx=512)
    chats, swap_out, in_front = [text[:150] for text in TEXTS], engine.context.swap_out, []

    def counted(sequence: int, buffer: Bytes | None = None) -> Bytes:
        in_front.append(any(each.is_prefilling for each in engine.scheduler.running))
        return swap_out(sequence, buffer)

    engine.context.swap_out = counted
    for turn in range(3):
        for number, chat in enumerate(chats):
            answer, cached = said(engine, f"{turn} {number}", chat)
            assert answer == said(plain, f"{turn} {number}", chat)[0]
            assert cached == (len(chat) - 3 if turn else 0)
            chat += [*answer, 250 + turn, number]
            while engine.work_ahead():
                pass
    assert len(in_front) > 3
    assert all(in_front) if uncut[0] in WINDOWS else sum(in_front) <= 1
    engine.close()
    plain.close()


@pytest.mark.parametrize(("cache_ram", "has_room"), [(0, False), (None, True), (1, True)])
def test_as_much_as_was_said(files: Path, cache_ram: int | None, has_room: bool) -> None:
    engine = real_engine(files / "tiny.gguf", cache_ram=cache_ram)
    assert has_swap(engine) is has_room
    engine.close()


def has_swap(engine: Engine) -> bool:
    text = SwappedText(list(range(1000)), is_seen=True)
    return engine.scheduler.prefix_cache.swap.is_worth_keeping(text, 0, is_other=False)


@pytest.mark.parametrize(
    ("said", "available", "loaded", "found"),
    [
        (None, 24 * GIB, 8 * GIB, 2 * GIB),
        (None, 24 * GIB, 25 * GIB, 0),
        (None, None, 8 * GIB, 0),
        (None, 512 * GIB, 8 * GIB, MAX_SWAP_BYTES),
        (0, 24 * GIB, 8 * GIB, 0),
        (100, None, 8 * GIB, 100 * 2**20),
    ],
)
def test_how_much_memory_there_is_for_it(said: int | None, available: int | None, loaded: int, found: int) -> None:
    plan = Plan(target=Path("x"), target_label="x", cache_ram=said)
    assert choose_swap_bytes(plan, available, loaded) == found


@pytest.mark.parametrize(("lends_memory", "expected"), [(False, 8 + 300 + 20), (True, 4000 + 8 + 300 + 20 + 500)])
def test_what_gpus_hold_of_main_memory_is_taken_there(lends_memory: bool, expected: int) -> None:
    log = LlamaLog()
    sizes = [("MTL0_Mapped", "model", 4000), ("CPU", "output", 8), ("CPU_Mapped", "model", 300), ("CPU", "KV", 20)]
    for buffer, kind, size in [*sizes, ("MTL0", "compute", 500)]:
        log.write(f"x: {buffer} {kind} buffer size = {size}.00 MiB\n")
    assert sum_host_bytes(log, ("MTL0",), lends_memory=lends_memory) == expected * 2**20
