"""Products of rows with quantized weights (native/row_products.c): each row is as if it were alone."""

from __future__ import annotations

import ctypes as C
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from doubles.random_models import TargetShape, write_target

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.cpu_attention import install_products, products_installer
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.backend.quantizer import quantize_file
from eaglelocal.core.batch import Batch, Floats

FILE_TYPES = {"Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "Q8_0": 7, "Q4_1": 3}  # llama.cpp's numbers
ROWS = (1, 2, 7, 17)  # one alone, a pair, less than a tile, and tiles with a rest
NUM_TOKENS = 24


@pytest.fixture(scope="module", params=FILE_TYPES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """A model whose widths are no multiples of a tile, on a processor that repacks its weights."""
    folder = tmp_path_factory.mktemp("quantized")
    shape = TargetShape(n_embd=512, n_layer=2, n_ff=1280)
    plain, quantized = write_target(folder / "plain.gguf", shape), folder / "quantized.gguf"
    quantize_file(plain, quantized, FILE_TYPES[kind], on_bytes=lambda _: None)
    library = load_library()
    if not library.can_repack or not library.row_products:
        pytest.skip("llama.cpp multiplies quantized weights by other kernels on this processor")
    model = LlamaModel(library, quantized, Placement())
    yield model
    model.close()


@pytest.fixture(scope="module")
def context(model: LlamaModel) -> Iterator[LlamaContext]:
    context = open_context(model, threads=1)
    yield context
    context.close()


@pytest.fixture(scope="module")
def alone(context: LlamaContext) -> Floats:
    """The logits of rows that llama.cpp's own kernels read one by one."""
    products_installer()(None, 0, 0)
    try:
        return read_in_steps(context, 1)
    finally:
        install_products(native())


def open_context(model: LlamaModel, *, threads: int) -> LlamaContext:
    return LlamaContext(model, ContextParams(n_ctx=256, n_batch=64, flash_attn="on", threads=threads))


@pytest.fixture(params=[0, 1])
def installed(request: pytest.FixtureRequest, kind: str) -> Iterator[None]:
    """The kernels of this processor, then those of one that knows AVX2 alone, if llama.cpp's rounds as they do."""
    taken = install_products(native(), num_skipped=request.param)
    if not any(kind.startswith(name) for name in taken):
        install_products(native())
        pytest.skip(f"llama.cpp's kernel for one row of {kind} is another one")
    yield
    install_products(native())


def native() -> C.PyDLL:
    return C.PyDLL(load_library().path)


def read_in_steps(context: LlamaContext, num_rows: int) -> Floats:
    """Return the logits [tokens, vocab] of a text that is read in steps of so many rows."""
    tokens = [int(each) for each in np.random.default_rng(1).integers(3, 60, NUM_TOKENS)]
    context.remove(0, 0)
    found = []
    for start in range(0, NUM_TOKENS, num_rows):
        part = tokens[start : start + num_rows]
        positions = list(range(start, start + len(part)))
        context.decode(Batch(part, positions, [(0,)] * len(part), [True] * len(part)))
        found += [context.logits(row).copy() for row in range(len(part))]
    return np.array(found)


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.usefixtures("installed")
def test_a_row_does_not_depend_on_those_beside_it(context: LlamaContext, alone: Floats, num_rows: int) -> None:
    np.testing.assert_array_equal(read_in_steps(context, num_rows), alone)


@pytest.mark.usefixtures("installed")
def test_nor_does_it_beside_many(context: LlamaContext, alone: Floats, kind: str) -> None:
    """Of Q5_K, and without AVX-512 of Q8_0, more than seventeen rows are left to llama.cpp."""
    if kind in ("Q5_K_M", "Q8_0"):
        pytest.skip("depends on the processor")
    np.testing.assert_array_equal(read_in_steps(context, NUM_TOKENS), alone)


@pytest.mark.skipif("avx512_vnni" not in Path("/proc/cpuinfo").read_text(), reason="it has no AVX-512")
@pytest.mark.parametrize("kind", ["Q8_0"], indirect=True)
def test_many_rows_of_pairs_are_as_alone(context: LlamaContext, alone: Floats) -> None:
    np.testing.assert_array_equal(read_in_steps(context, NUM_TOKENS), alone)


@pytest.mark.usefixtures("installed")
def test_two_rows_are_as_llama_cpp_has_them(context: LlamaContext) -> None:
    """It multiplies so few one by one."""
    ours = read_in_steps(context, 2)
    products_installer()(None, 0, 0)
    np.testing.assert_array_equal(read_in_steps(context, 2), ours)


@pytest.mark.parametrize("threads", [2, 7])
def test_threads_change_nothing(model: LlamaModel, context: LlamaContext, threads: int) -> None:
    """More of them than some products have tiles."""
    other = open_context(model, threads=threads)
    np.testing.assert_array_equal(read_in_steps(other, 5), read_in_steps(context, 5))
    other.close()


def test_llama_cpps_own_products_of_eight_rows_round_differently(
    context: LlamaContext, alone: Floats, kind: str
) -> None:
    products_installer()(None, 0, 0)
    try:
        apart = np.abs(read_in_steps(context, 8) - alone).max()
    finally:
        assert install_products(native())
    assert (0 < apart < 2) == (kind != "Q8_0")
