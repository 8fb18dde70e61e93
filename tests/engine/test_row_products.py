"""Products of a few rows with Q4_K and Q6_K weights (native/row_products.c): each row is as if it were alone."""

from __future__ import annotations

import ctypes as C
from collections.abc import Iterator

import llama_cpp
import numpy as np
import pytest
from doubles.random_models import TargetShape, write_target

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.cpu_attention import install_products
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel, Placement
from eaglelocal.backend.native_step import get_function, load_native
from eaglelocal.backend.quantizer import quantize_file
from eaglelocal.core.batch import Batch, Floats

Q4_K_M = 15  # llama.cpp's number of the file type
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaContext]:
    """A model of which most weights are Q4_K, widths no multiple of a tile, on a processor that repacks them."""
    folder = tmp_path_factory.mktemp("q4_k")
    shape = TargetShape(n_embd=512, n_layer=4, n_ff=1280)
    plain, quantized = write_target(folder / "plain.gguf", shape), folder / "q4_k_m.gguf"
    quantize_file(plain, quantized, Q4_K_M, on_bytes=lambda _: None)
    library = load_library()
    if not library.can_repack or not library.has_row_products:
        pytest.skip("llama.cpp multiplies Q4_K by other kernels on this processor")
    model = LlamaModel(library, quantized, Placement())
    context = LlamaContext(model, ContextParams(n_ctx=256, n_batch=64, flash_attn="on", threads=2))
    yield context
    context.close()
    model.close()


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


@pytest.mark.parametrize("num_rows", [2, 3, 4, 5, 7, 8])
def test_a_row_does_not_depend_on_those_beside_it(context: LlamaContext, num_rows: int) -> None:
    np.testing.assert_array_equal(read_in_steps(context, num_rows), read_in_steps(context, 1))


def test_llama_cpps_own_products_of_four_rows_round_differently(context: LlamaContext) -> None:
    install = get_function(load_native(C.PyDLL), "products_install", [C.c_void_p] * 3 + [C.c_int32], C.c_bool)
    alone = read_in_steps(context, 1)
    install(None, None, None, 0)
    try:
        apart = np.abs(read_in_steps(context, 4) - alone).max()
    finally:
        assert install_products(C.PyDLL(llama_cpp.llama_cpp._lib._name))
    assert 0 < apart < 1
