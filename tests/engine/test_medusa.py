"""Medusa heads in the engine, on the real llama.cpp: any target, the context's end, slots, swaps, trees, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.engine_harness import drive
from doubles.medusa_checkpoints import (
    LENT,
    MedusaWeights,
    imported_medusa,
    random_medusa,
    write_agreeing_medusa,
    write_medusa,
    write_random_medusa,
)
from doubles.random_models import TargetShape, write_target
from doubles.real_engine import TINY, ask, real_engine, use_controller
from doubles.runnable_models import write_runnable
from doubles.steady_costs import FreeController, FreeRows

from eaglelocal import locations
from eaglelocal.core.plan import MAX_BRANCHES, Plan
from eaglelocal.core.request import AUTO_SPEC, fixed_spec
from eaglelocal.errors import EagleLocalError, IncompatibleError
from eaglelocal.gguf import writer
from eaglelocal.gguf.medusa_info import MedusaInfo
from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.writer import patch_header
from eaglelocal.hub.heads.requantized_copy import make_light_copy
from eaglelocal.loading.engine_builder import build
from eaglelocal.speculation.policy.slot_policy import DrafterSet

pytestmark = pytest.mark.full

SHAPE = replace(TINY, layer_gain=0.2)


def plain_texts(target: Path, requests: list, **changes: object) -> dict[str, list[int]]:  # type: ignore[type-arg]
    engine = real_engine(target, **changes)
    texts = {name: answer.tokens for name, answer in drive(engine, requests).items()}
    engine.close()
    return texts


@pytest.mark.parametrize("room", [0, 1, 3])
@pytest.mark.parametrize("slots", [1, 4])
def test_blocks_at_the_end_of_the_context(tmp_path: Path, room: int, slots: int) -> None:
    target = write_target(tmp_path / "target.gguf", SHAPE)
    head = write_random_medusa(tmp_path / "head.gguf", target)
    requests = [ask(str(n), range(10, 10 + 256 - 20 - room), max_tokens=20 + room) for n in range(slots)]
    engine = real_engine(target, kind="eagle3", draft=head, num_slots=slots, n_ctx=256)
    result = drive(engine, requests)
    assert {len(answer.tokens) for answer in result.values()} == {20 + room}
    assert engine.snapshot().speculation.draft_tokens > 0
    engine.close()


@pytest.mark.parametrize("slots", [1, 3])
def test_prompts_that_are_taken_over_and_cut_back_stay_right(tmp_path: Path, slots: int) -> None:
    target = write_target(tmp_path / "target.gguf", SHAPE)
    head = write_agreeing_medusa(tmp_path / "head.gguf", target)
    stem = list(range(20, 200))
    requests = [ask(str(n), [*stem[: 150 - 40 * n], 5 + n], max_tokens=40) for n in range(4)]
    expected = plain_texts(target, requests)
    engine = real_engine(target, kind="eagle3", draft=head, num_slots=slots)
    for _ in range(2):  # the second time prompts are there, and caches are cut far back
        assert {name: answer.tokens for name, answer in drive(engine, requests).items()} == expected
    assert engine.snapshot().speculation.accepted_per_position[0] > 20
    assert engine.miscounted_slots() == []
    engine.close()


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("name", ["nemotron_h", "qwen35", "gemma3"])
def test_targets_on_which_other_heads_cannot_draft_or_branch(tmp_path: Path, name: str, slots: int) -> None:
    """With recurrent state, with sliding windows, and one that gives no layer inputs."""
    target = write_runnable(tmp_path / "target.gguf", name)
    head = write_random_medusa(tmp_path / "head.gguf", target, outputs=LENT)
    requests = [ask(str(n), range(10 + n, 60), max_tokens=24) for n in range(3)]
    expected = plain_texts(target, requests)
    engine = real_engine(target, kind="eagle3", draft=head, num_slots=slots)
    assert {name: answer.tokens for name, answer in drive(engine, requests).items()} == expected
    assert engine.snapshot().speculation.draft_tokens > 20
    engine.close()


def test_a_pass_is_priced_as_a_block(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf", SHAPE)
    head = write_agreeing_medusa(tmp_path / "head.gguf", target, num_parts=5)
    shape = read_shape(read_header(head))
    assert (shape.block_size, shape.max_depth, shape.num_taps, shape.is_head) == (5, 5, 1, True)
    requests = [ask(str(n), range(10 + n, 40), max_tokens=60) for n in range(3)]
    expected = plain_texts(target, requests)
    engine = real_engine(target, kind="eagle3", draft=head, spec=AUTO_SPEC)
    assert {name: answer.tokens for name, answer in drive(engine, requests).items()} == expected
    assert engine.snapshot().costs.block_size == 5
    engine.close()


@pytest.mark.parametrize("slots", [1, 2])
def test_second_choices_make_trees(tmp_path: Path, slots: int) -> None:
    target = write_target(tmp_path / "target.gguf", SHAPE)
    head = write_agreeing_medusa(tmp_path / "head.gguf", target)
    requests = [ask(str(n), range(10 + n, 40), max_tokens=40) for n in range(4)]
    expected = plain_texts(target, requests)
    engine = real_engine(target, kind="eagle3", draft=head, spec=AUTO_SPEC, num_slots=slots, unified=True)
    controller = FreeController(AUTO_SPEC, DrafterSet("medusa", ("ngram",), 4), FreeRows(), max_siblings=MAX_BRANCHES)
    use_controller(engine, controller)
    trees: list[bool] = []
    keep = engine.caches.sequence_ids.keep

    def record(slot, draft, path, position):  # type: ignore[no-untyped-def]
        trees.append(not draft.is_chain)
        keep(slot, draft, path, position)

    engine.caches.sequence_ids.keep = record  # type: ignore[method-assign]
    assert {name: answer.tokens for name, answer in drive(engine, requests).items()} == expected
    assert sum(trees) > 10
    assert engine.miscounted_slots() == []
    engine.close()


def test_a_swapped_conversation_goes_on(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf", replace(SHAPE, n_ctx=2048))
    head = write_agreeing_medusa(tmp_path / "head.gguf", target)
    first, other = ask("first", range(10, 200), max_tokens=24), ask("other", range(200, 20, -1), max_tokens=24)
    said = plain_texts(target, [first], n_ctx=512)["first"]
    onward = ask("onward", (*range(10, 200), *said, 7), max_tokens=24)
    expected = plain_texts(target, [onward], n_ctx=512)["onward"]
    engine = real_engine(target, kind="eagle3", draft=head, n_ctx=512, cache_ram=64)
    for request in (first, other):
        drive(engine, [request])
    answer = drive(engine, [onward])["onward"]
    assert answer.started is not None and answer.started.cached_tokens > 190
    assert answer.tokens == expected
    engine.close()


def test_a_copy_in_fewer_bits_keeps_the_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MIN_BYTES", 1)
    monkeypatch.setattr(locations, "light_heads_dir", lambda: tmp_path / "light")
    target = write_target(tmp_path / "target.gguf", SHAPE)
    own = read_header(write_random_medusa(tmp_path / "head.gguf", target, num_layers=2))
    copy = read_header(make_light_copy(own.path, "q4_0", on_progress=lambda share: None))
    assert copy.tensors["fc.weight"].type.name == copy.tensors["output.weight"].type.name == "Q4_0"
    assert copy.array("eaglelocal.medusa_biases") == own.array("eaglelocal.medusa_biases")
    before, after = MedusaInfo.from_header(own), MedusaInfo.from_header(copy)
    assert after == before
    engine = real_engine(target, kind="eagle3", draft=copy.path)
    requests = [ask("a", range(10, 40), max_tokens=24)]
    assert {name: answer.tokens for name, answer in drive(engine, requests).items()} == plain_texts(target, requests)
    engine.close()


Change = Callable[[Path], object]
REFUSED: dict[str, tuple[TargetShape, dict[str, object], str]] = {
    "width": (replace(SHAPE, n_embd=128), {}, "it was made for hidden size 64, the target has 128"),
    "layers": (replace(SHAPE, n_layer=5), {}, "it was made for 4 layers, the target has 5"),
    "vocabulary": (replace(SHAPE, n_vocab=310), {}, "its vocabulary has 300 tokens, the target's 310"),
    "parts": (SHAPE, {"eaglelocal.medusa_heads": 40}, "it has 40 heads of 1 layers, expected up to 16 of 8"),
    "matrices": (SHAPE, {"eaglelocal.medusa_layers": 3}, "its encoder reads 96 numbers, fewer than 3 states have"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_figures(tmp_path: Path, name: str) -> None:
    shape, keys, says = REFUSED[name]
    made_for = write_target(tmp_path / "made_for.gguf", SHAPE)
    head = write_random_medusa(tmp_path / "head.gguf", made_for, num_parts=3)
    if keys:
        patch_header(read_header(head), keys)  # type: ignore[arg-type]
    target = write_target(tmp_path / "target.gguf", shape)
    plan = Plan(target=target, target_label="t", draft_kind="eagle3", draft=head, spec=fixed_spec(4), n_ctx=256)
    with pytest.raises(EagleLocalError) as caught:
        build(plan, lambda _: None)
    assert says in caught.value.message
    assert caught.value.hint


def test_targets_without_logits_beside_the_state_are_refused(tmp_path: Path) -> None:
    target = write_runnable(tmp_path / "target.gguf", "lfm2")
    with pytest.raises(IncompatibleError, match=r"which llama\.cpp does not give for lfm2"):
        write_random_medusa(tmp_path / "head.gguf", target, outputs=LENT)


def test_a_head_of_zeros_drafts_what_the_lm_head_says(tmp_path: Path) -> None:
    """x + silu(0) is x: each part of a head without weights predicts the root again."""
    target = write_target(tmp_path / "target.gguf", SHAPE)
    weights = random_medusa(width=64, outputs=LENT, biases=False)
    zeros = MedusaWeights(matrices=np.zeros_like(weights.matrices), biases=None, outputs=())
    head = imported_medusa(write_medusa(tmp_path / "zeros", zeros, "vLLM"), target, tmp_path / "head.gguf")
    engine = real_engine(target, kind="eagle3", draft=head, num_draft_tokens=1)
    drafted: list[tuple[int, int]] = []
    drafter = engine.drafters[-1]
    draft = drafter.draft

    def record(nodes, *rest):  # type: ignore[no-untyped-def]
        proposed = draft(nodes, *rest)
        drafted.extend((node.token, one.tokens[0]) for node, one in zip(nodes, proposed, strict=True) if one.tokens)
        return proposed

    drafter.draft = record  # type: ignore[method-assign]
    drive(engine, [ask("a", range(10, 40), max_tokens=30)])
    assert len(drafted) > 10 and all(root == token for root, token in drafted)
    engine.close()
