"""Our flash attention, run by llama.cpp's CPU backend, against numpy and against llama.cpp's own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from doubles.attention_graph import (
    BF16,
    F16,
    F32,
    LLAMA_CPP,
    NEXT,
    Q4_0,
    Q8_0,
    WIDEST,
    Ggml,
    Inputs,
    compute_exactly,
)
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.backend.cpu_attention import is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="this processor has no kernel")


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    return Ggml()


@pytest.fixture(params=[WIDEST, NEXT], ids=["widest", "next"])
def kernel(request: pytest.FixtureRequest, ggml: Ggml) -> int:
    if not ggml.select(request.param):
        ggml.select(WIDEST)
        pytest.skip("this processor has one kernel only")
    ggml.select(WIDEST)
    return int(request.param)


def draw_inputs(
    *,
    rows: int,
    heads: int,
    kv_heads: int,
    cells: int,
    width: int,
    value_width: int = 0,
    streams: int = 1,
    seed: int = 0,
) -> Inputs:
    """Return inputs of a causal batch: the last rows of texts of different lengths, the cells behind them empty."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    mask = np.full((streams, rows, cells), -np.inf, np.float32)
    for stream in range(streams):
        length = max(rows, cells - 7 * stream - int(rng.integers(0, 40)))
        for row in range(rows):
            mask[stream, row, : length - rows + row + 1] = 0
    return Inputs(
        q=draw(streams, rows, heads, width) * 2,
        k=draw(streams, cells, kv_heads, width),
        v=draw(streams, cells, kv_heads, value_width or width),
        mask=mask,
    )


@examples(30)
@given(
    rows=st.integers(1, 20) | st.integers(21, 200),
    kv_heads=st.integers(1, 4),
    group=st.integers(1, 8),
    cells=st.integers(1, 1500),
    width=st.sampled_from((16, 32, 48, 64, 80, 96, 128, 192, 256)),
    value_width=st.sampled_from((16, 64, 128, 256)),
    streams=st.integers(1, 3),
    kind=st.sampled_from((F16, F32, BF16)),
    softcap=st.sampled_from((0.0, 0.0, 20.0)),
    has_sinks=st.booleans(),
    number=st.sampled_from((WIDEST, NEXT)),
    seed=st.integers(0, 1000),
)
def test_results_are_those_of_double_precision(
    ggml: Ggml, rows: int, kv_heads: int, group: int, cells: int, width: int, value_width: int, streams: int,
    kind: int, softcap: float, has_sinks: bool, number: int, seed: int,
) -> None:  # fmt: skip
    """llama.cpp's own results differ by a thousandth; ours must not by more than floats round."""
    inputs = draw_inputs(
        rows=rows, heads=kv_heads * group, kv_heads=kv_heads, cells=max(cells, rows), width=width,
        value_width=value_width, streams=streams, seed=seed,
    )  # fmt: skip
    sinks = np.random.default_rng(seed).standard_normal(kv_heads * group).astype(np.float32) if has_sinks else None
    inputs = dataclasses.replace(inputs, kv_type=kind, softcap=softcap, sinks=sinks)
    if not ggml.select(number):
        number = WIDEST
    assert abs(ggml.run(inputs, number) - compute_exactly(inputs)).max() < 1e-5


@pytest.mark.parametrize("kind", [Q8_0, Q4_0])
def test_quantized_caches(ggml: Ggml, kernel: int, kind: int) -> None:
    inputs = draw_inputs(rows=4, heads=8, kv_heads=2, cells=700, width=64)
    inputs = dataclasses.replace(inputs, kv_type=kind)
    assert abs(ggml.run(inputs, kernel) - compute_exactly(inputs)).max() < 1e-5


@pytest.mark.parametrize("cells", [31, 256, 257, 3000, 20_000])
@pytest.mark.parametrize("kind", [F16, Q8_0])
def test_a_row_does_not_depend_on_the_rows_beside_it(ggml: Ggml, kernel: int, cells: int, kind: int) -> None:
    """What a token's logits are must not depend on whether it was drafted: bit for bit."""
    inputs = draw_inputs(rows=min(cells, 150), heads=6, kv_heads=2, cells=cells, width=64)
    inputs = dataclasses.replace(inputs, kv_type=kind)
    whole = ggml.run(inputs, kernel)
    assert inputs.mask is not None
    for first, end in ((0, 1), (3, 5), (8, 9), (1, 9), (5, 31), (0, 30)):
        part = dataclasses.replace(inputs, q=inputs.q[:, first:end], mask=inputs.mask[:, first:end])
        assert np.array_equal(ggml.run(part, kernel), whole[:, first:end])


def test_results_do_not_depend_on_when_threads_run(ggml: Ggml, kernel: int) -> None:
    inputs = draw_inputs(rows=5, heads=8, kv_heads=2, cells=9000, width=64)
    first = ggml.run(inputs, kernel)
    assert all(np.array_equal(ggml.run(inputs, kernel), first) for _ in range(20))


def test_a_batch_without_a_mask(ggml: Ggml, kernel: int) -> None:
    inputs = dataclasses.replace(draw_inputs(rows=6, heads=4, kv_heads=4, cells=300, width=64), mask=None)
    assert abs(ggml.run(inputs, kernel) - compute_exactly(inputs)).max() < 1e-5


def test_sliding_windows_and_shared_caches_hide_whole_tiles(ggml: Ggml, kernel: int) -> None:
    """Rows of two texts in one cache, each of which sees a part of it only."""
    inputs = draw_inputs(rows=6, heads=4, kv_heads=2, cells=2000, width=64)
    mask = np.full((1, 6, 2000), -np.inf, np.float32)
    for row in range(3):
        mask[0, row, 100 : 140 + row] = 0
        mask[0, 3 + row, 1700:1950] = 0
    inputs = dataclasses.replace(inputs, mask=mask)
    assert abs(ggml.run(inputs, kernel) - compute_exactly(inputs)).max() < 1e-5


def test_a_row_that_sees_nothing_is_zero(ggml: Ggml, kernel: int) -> None:
    """llama.cpp computes such rows too, to fill a batch up; they must not become NaN."""
    inputs = draw_inputs(rows=4, heads=4, kv_heads=2, cells=600, width=64)
    assert inputs.mask is not None
    inputs.mask[0, 2] = -np.inf
    result = ggml.run(inputs, kernel)
    assert np.isfinite(result).all()
    assert not result[0, 2].any()


@pytest.mark.parametrize("width", [8, 320])
def test_other_widths_are_left_to_llama_cpp(ggml: Ggml, width: int) -> None:
    inputs = draw_inputs(rows=4, heads=4, kv_heads=2, cells=512, width=width)
    assert np.array_equal(ggml.run(inputs, WIDEST), ggml.run(inputs, LLAMA_CPP))
