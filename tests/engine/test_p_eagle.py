"""P-EAGLE heads in the engine, on the real llama.cpp: the end of the context, slots, copies, trees, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.engine_harness import drive
from doubles.random_models import HeadShape, write_agreeing_head, write_head, write_target
from doubles.real_engine import TINY, ask, real_engine

from eaglelocal import locations
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import AUTO_SPEC, fixed_spec
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf import writer
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.heads.requantized_copy import make_light_copy
from eaglelocal.loading.engine_builder import build

SHAPE = replace(TINY, layer_gain=0.2)
HEAD = HeadShape(width=64, n_ff=64, num_depths=7)


def plain_texts(target: Path, requests: list, **changes: object) -> dict[str, list[int]]:  # type: ignore[type-arg]
    engine = real_engine(target, **changes)  # type: ignore[arg-type]
    texts = {name: answer.tokens for name, answer in drive(engine, requests).items()}
    engine.close()
    return texts


@pytest.mark.parametrize("room", [0, 1, 3])
@pytest.mark.parametrize("slots", [1, 4])
def test_blocks_at_the_end_of_the_context(tmp_path: Path, room: int, slots: int) -> None:
    target = write_target(tmp_path / "target.gguf", SHAPE)
    head = write_head(tmp_path / "head.gguf", HEAD, SHAPE)
    requests = [ask(str(n), range(10, 10 + 256 - 20 - room), max_tokens=20 + room) for n in range(slots)]
    engine = real_engine(target, kind="eagle3", draft=head, num_draft_tokens=7, num_slots=slots, n_ctx=256)
    result = drive(engine, requests)
    assert {len(answer.tokens) for answer in result.values()} == {20 + room}
    assert engine.snapshot().speculation.draft_tokens > 0
    engine.close()


@pytest.mark.parametrize("slots", [1, 3])
def test_prompts_that_are_taken_over_and_cut_back_stay_right(tmp_path: Path, slots: int) -> None:
    target = write_target(tmp_path / "target.gguf", SHAPE)
    head = write_agreeing_head(tmp_path / "head.gguf", target, SHAPE, num_depths=5)
    stem = list(range(20, 200))
    requests = [ask(str(n), [*stem[: 150 - 40 * n], 5 + n], max_tokens=40) for n in range(4)]
    expected = plain_texts(target, requests)
    engine = real_engine(target, kind="eagle3", draft=head, num_draft_tokens=5, num_slots=slots)
    for _ in range(2):  # the second time prompts are there, and caches are cut far back
        assert {name: answer.tokens for name, answer in drive(engine, requests).items()} == expected
    assert engine.snapshot().speculation.accepted_per_position[0] > 20
    assert engine.miscounted_slots() == []
    engine.close()


def test_a_pass_is_priced_as_a_block(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf", SHAPE)
    head = write_agreeing_head(tmp_path / "head.gguf", target, SHAPE, num_depths=5)
    shape = read_shape(read_header(head))
    assert (shape.block_size, shape.max_depth) == (5, 5)
    requests = [ask(str(n), range(10 + n, 40), max_tokens=60) for n in range(3)]
    engine = real_engine(target, kind="eagle3", draft=head, spec=AUTO_SPEC)
    expected = plain_texts(target, requests)
    assert {name: answer.tokens for name, answer in drive(engine, requests).items()} == expected
    assert engine.snapshot().costs.block_size == 5
    engine.close()


def test_a_copy_in_fewer_bits_keeps_the_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MIN_BYTES", 1)
    monkeypatch.setattr(locations, "light_heads_dir", lambda: tmp_path / "light")
    head = write_head(tmp_path / "head.gguf", HEAD, SHAPE)
    copy = read_header(make_light_copy(head, "q8_0", on_progress=lambda share: None))
    own = read_header(head)
    assert copy.array("eaglelocal.mask_hidden") == own.array("eaglelocal.mask_hidden")
    before, after = EagleInfo.from_header(own), EagleInfo.from_header(copy)
    assert (after.mask, after.num_depths, after.method) == (before.mask, 7, "P-EAGLE")


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (replace(HEAD, num_depths=1), "it drafts 1 tokens in one pass, expected 2 to 64"),
        (replace(HEAD, norm_output=True), "no row of a P-EAGLE head reads the state of another"),
        (replace(HEAD, mask_width=5), "its eaglelocal.mask_hidden has 5 numbers, expected 192"),
    ],
)
def test_what_does_not_fit_is_refused_with_figures(tmp_path: Path, head: HeadShape, says: str) -> None:
    target = write_target(tmp_path / "target.gguf", SHAPE)
    draft = write_head(tmp_path / "head.gguf", head, SHAPE)
    plan = Plan(target=target, target_label="t", draft_kind="eagle3", draft=draft, spec=fixed_spec(4), n_ctx=256)
    with pytest.raises(EagleLocalError) as caught:
        build(plan, lambda _: None)
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(("length", "note"), [(8, "--spec 8: at most 5 tokens can be drafted here, not 8"), (5, "")])
def test_a_length_that_the_head_does_not_draft_is_said(tmp_path: Path, length: int, note: str) -> None:
    target = write_target(tmp_path / "target.gguf", SHAPE)
    head = write_agreeing_head(tmp_path / "head.gguf", target, SHAPE, num_depths=5)
    engine = real_engine(target, kind="eagle3", draft=head, num_draft_tokens=length)
    assert engine.info.max_draft == 5
    assert [each for each in engine.info.notes if each.startswith("--spec")] == ([note] if note else [])
    engine.close()
