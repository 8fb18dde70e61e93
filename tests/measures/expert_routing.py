"""How many different experts a draft's rows touch: recorded in a small random mixture, beside the planner's figure.

    python tests/measures/expert_routing.py

With experts in RAM a step takes as long as reading the experts that its rows touch. The mixture is made, its routing
is llama.cpp's own: its tensors `ffn_moe_topk` are read while it decodes its own greedy text. Random weights route
neighbours almost independently; a trained model's neighbours share more, which SHARED_EXPERTS stands for.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import llama_cpp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from doubles import runnable_models
from doubles.weightless_models import SKETCHES

from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.planning.speed import distinct_experts

ROWS = (1, 2, 3, 4, 5, 6, 8)
NUM_TOKENS = 512
SHAPES = ((8, 2), (32, 4), (128, 8))  # experts, and those of a token


class Recorder:
    """Reads the experts of each row and layer while llama.cpp decodes."""

    def __init__(self) -> None:
        self.layers: list[np.ndarray] = []  # [rows, experts of a row], of the last decode
        self._base = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
        self._base.ggml_get_name.restype = ctypes.c_char_p
        self._base.ggml_nelements.restype = ctypes.c_int64
        self._base.ggml_nbytes.restype = ctypes.c_size_t
        for name in ("ggml_get_name", "ggml_nelements", "ggml_nbytes"):
            getattr(self._base, name).argtypes = [ctypes.c_void_p]
        size = ctypes.c_size_t
        self._base.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, size, size]
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self._receive)
        self.num_used = 1

    def _receive(self, tensor: int, asks: bool, _: object) -> bool:
        if b"ffn_moe_topk" not in self._base.ggml_get_name(tensor):
            return not asks
        if not asks:
            values = np.empty(self._base.ggml_nelements(tensor), np.int32)
            # a view of the sorted indices: its rows lie apart, so the first ones of each are copied one by one
            strides = ctypes.cast(tensor + 16 + 32, ctypes.POINTER(ctypes.c_size_t))
            rows = len(values) // self.num_used
            for row in range(rows):
                part = values[row * self.num_used :]
                self._base.ggml_backend_tensor_get(tensor, part.ctypes.data, row * strides[1], 4 * self.num_used)
            self.layers.append(values.reshape(rows, self.num_used))
        return True


def record(path: Path, num_used: int) -> list[np.ndarray]:
    """Return the experts of each token of the model's own greedy text, by layer: [tokens, experts of a token]."""
    recorder = Recorder()
    recorder.num_used = num_used
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_load_model_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.cb_eval = 1024, recorder.callback
    context = llama_cpp.llama_new_context_with_model(model, params)
    token, tokens = 40, list[list[np.ndarray]]()
    while len(tokens) < NUM_TOKENS:
        recorder.layers = []
        given = (ctypes.c_int32 * 1)(token)
        assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(given, 1)) == 0
        tokens.append(recorder.layers)
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (runnable_models.N_VOCAB,))
        token = int(np.random.default_rng(len(tokens)).choice(np.argsort(-logits)[:20]))
    llama_cpp.llama_free(context)
    llama_cpp.llama_free_model(model)
    return [np.concatenate(layer) for layer in zip(*tokens, strict=True)]


def count_distinct(layers: list[np.ndarray], num_rows: int) -> float:
    """Return how many experts so many neighbours touch, on average, in multiples of one row's."""
    counts = [
        len(np.unique(layer[at : at + num_rows])) / layer.shape[1]
        for layer in layers
        for at in range(0, len(layer) - num_rows, num_rows)
    ]
    return float(np.mean(counts))


def main() -> None:
    print("experts      rows " + "".join(f"{rows:>14}" for rows in ROWS))
    with tempfile.TemporaryDirectory() as folder:
        for num_experts, num_used in SHAPES:
            sketch = replace(SKETCHES["qwen3moe"], n_expert=num_experts, n_expert_used=num_used)
            runnable_models.SKETCHES["measured"] = sketch  # type: ignore[index]
            path = runnable_models.write_runnable(Path(folder) / f"{num_experts}.gguf", "measured")
            layers, shape = record(path, num_used), read_shape(read_header(path))
            pairs = [f"{count_distinct(layers, rows):.2f} / {distinct_experts(shape, rows):.2f}" for rows in ROWS]
            print(f"{num_used:>3} of {num_experts:<8}" + "".join(f"{pair:>14}" for pair in pairs))
    print("recorded / planned, in multiples of one token's")


if __name__ == "__main__":
    main()
