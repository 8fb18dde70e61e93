"""llama.cpp through ctypes for the training tests: logits of a target, and the chain that a head drafts.

The smallest protocol that is right (one sequence, greedy, no rollback), kept apart from the engine so that torch and
llama.cpp are compared without anything of ours in between.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp_ext

Floats = npt.NDArray[np.float32]
_FLOAT_POINTER = ctypes.POINTER(ctypes.c_float)
NUM_THREADS, NUM_CELLS = 2, 512


def _bind(symbol: str, arguments: list[type], result: object) -> ctypes._CFuncPtr:
    function = getattr(llama_cpp.llama_cpp._lib, symbol)
    function.argtypes, function.restype = arguments, result
    return function


_set_layer_input = _bind(
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb", [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool], None
)
_get_layer_input = _bind(
    "_Z30llama_get_embeddings_layer_inpP13llama_contextj", [ctypes.c_void_p, ctypes.c_uint32], _FLOAT_POINTER
)


def _exact_params() -> llama_cpp.llama_context_params:
    """Cache and attention in F32: what remains is the order of summation."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = NUM_CELLS, NUM_THREADS, NUM_THREADS
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return params


def _rows(pointer: object, count: int, width: int) -> Floats:
    return np.ctypeslib.as_array(pointer, (count, width)).copy()


class PinnedTarget:
    """A target file: its tokenizer, logits and layer inputs."""

    def __init__(self, path: Path) -> None:
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        assert self.model, f"llama.cpp does not load {path}"
        params = _exact_params()
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.num_tokens = llama_cpp.llama_vocab_n_tokens(self.vocabulary)
        self.width = llama_cpp.llama_model_n_embd(self.model)

    def tokenize(self, text: str) -> list[int]:
        raw = text.encode()
        room = len(raw) + 8
        found = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self.vocabulary, raw, len(raw), found, room, True, True)
        assert count >= 0
        return list(found[:count])

    def decode(self, tokens: list[int]) -> Floats:
        """Logits of every row [rows, vocab], from an empty cache."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index], batch.n_seq_id[index], batch.logits[index] = token, index, 1, 1
            batch.seq_id[index][0] = 0
        assert llama_cpp.llama_decode(self.context, batch) == 0
        llama_cpp.llama_batch_free(batch)
        return _rows(llama_cpp.llama_get_logits(self.context), len(tokens), self.num_tokens)

    def layer_inputs(self, tokens: list[int], layers: tuple[int, ...]) -> Floats:
        """[rows, layers, width]."""
        for layer in layers:
            _set_layer_input(self.context, layer, True)
        self.decode(tokens)
        return np.stack([_rows(_get_layer_input(self.context, i), len(tokens), self.width) for i in layers], 1)

    def close(self) -> None:
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


@dataclass(frozen=True)
class Norms:
    """What the host does for llama.cpp's eagle3: the head's output norm and epsilon."""

    output: Floats  # [width]
    eps: float

    def unit(self, x: Floats) -> Floats:
        return np.ascontiguousarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps), np.float32)


class PinnedHead:
    """A head file beside its target."""

    def __init__(self, path: Path, target: PinnedTarget, norms: Norms) -> None:
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        assert self.model, f"llama.cpp does not load {path}"
        params = _exact_params()
        params.ctx_other = target.context
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.target, self.norms = target, norms
        self.width = llama_cpp.llama_model_n_embd(self.model)
        llama_cpp_ext.llama_set_embeddings_nextn(self.context, True, True)
        self.feature_rows = llama_cpp.llama_batch_ext_init(self.context)
        self.pairs = llama_cpp.llama_batch_ext_init(self.context)

    def encode(self, taps: Floats) -> Floats:
        """Layer inputs [rows, layers, width] -> g [rows, width]."""
        features = self.norms.unit(taps).reshape(len(taps), -1)
        llama_cpp.llama_batch_ext_clear(self.feature_rows)
        first = llama_cpp.llama_memory_seq_pos_max(self.memory, 0) + 1
        for index, row in enumerate(features):
            at = llama_cpp.llama_batch_ext_add_embd(self.feature_rows, 0, _embd(row))
            position = llama_cpp.llama_pos(first + index)
            llama_cpp.llama_batch_ext_set_pos(self.feature_rows, at, ctypes.byref(position))
            llama_cpp.llama_batch_ext_set_output_embd(self.feature_rows, at, True)
        encode = llama_cpp.LLAMA_PROCESS_TYPE_ENCODE
        assert llama_cpp.llama_process(self.context, encode, self.feature_rows) == 0
        return _rows(llama_cpp_ext.llama_get_embeddings_nextn(self.context), len(features), self.width)

    def extend(self, tokens: list[int], states: Floats, first: int, *, want_output: bool) -> None:
        """Write the cells (tokens[i], states[i]) at first + i."""
        llama_cpp.llama_batch_ext_clear(self.pairs)
        for index, (token, state) in enumerate(zip(tokens, states, strict=True)):
            at = llama_cpp.llama_batch_ext_add_token(self.pairs, 0, token)
            llama_cpp.llama_batch_ext_set_embd_token(self.pairs, at, _embd(state))
            position = llama_cpp.llama_pos(first + index)
            llama_cpp.llama_batch_ext_set_pos(self.pairs, at, ctypes.byref(position))
            llama_cpp.llama_batch_ext_set_output_logits(self.pairs, at, want_output)
        assert llama_cpp.llama_process(self.context, llama_cpp.LLAMA_PROCESS_TYPE_DECODE, self.pairs) == 0

    def chain(self, tokens: list[int], state: Floats, first: int) -> Floats:
        """Draft with the given tokens from the anchor at `first`: logits of each step [steps, vocab]."""
        logits = []
        for step, token in enumerate(tokens):
            self.extend([token], state[None], first + step, want_output=True)
            drafted = llama_cpp.llama_get_logits_ith(self.context, 0)
            logits.append(_rows(drafted, 1, self.target.num_tokens)[0])
            state = _rows(llama_cpp_ext.llama_get_embeddings_nextn_ith(self.context, 0), 1, self.width)[0]
            state = np.ascontiguousarray(self.norms.unit(state) * self.norms.output, np.float32)
        return np.stack(logits)

    def close(self) -> None:
        llama_cpp.llama_batch_ext_free(self.feature_rows)
        llama_cpp.llama_batch_ext_free(self.pairs)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def _embd(row: Floats) -> object:
    return llama_cpp.llama_embd(row.ctypes.data_as(_FLOAT_POINTER), 1, row.shape[-1])
