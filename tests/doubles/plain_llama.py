"""Direct calls of llama.cpp: logits of a text, and the draft protocol of an EAGLE-3.1 head.

Independent of our backend on purpose: tests that compare two model files use it to run both.
"""

from __future__ import annotations

import ctypes as C
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import llama_cpp as L
import numpy as np
from llama_cpp import llama_cpp_ext as X

from eaglelocal.gguf.eagle_info import MASK_HIDDEN_KEY, EagleInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor

_FLOATS = C.POINTER(C.c_float)


def _bound(symbol: str, argument_types: list[type], result_type: type | None) -> C._CFuncPtr:
    function = getattr(L.llama_cpp._lib, symbol)
    function.argtypes, function.restype = argument_types, result_type
    return function


def _rows(pointer: C._Pointer, count: int, width: int) -> np.ndarray:
    return np.ctypeslib.as_array(pointer, (count, width)).copy()


def _unit(rows: np.ndarray, eps: float) -> np.ndarray:
    return rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + eps)


@dataclass
class Loaded:
    """A model and its context; close frees both."""

    model: object
    context: object
    width: int
    vocab: int

    @classmethod
    def from_file(cls, path: Path, other: object | None = None) -> Loaded:
        loading = L.llama_model_default_params()
        loading.use_extra_bufts = False  # AMX kernels trap on virtual machines that announce AMX without having it
        model = L.llama_model_load_from_file(str(path).encode(), loading)
        assert model, f"llama.cpp refuses {path}"
        params = L.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = 128, 1, 1
        # F32 caches: rounding to F16 would turn a difference in the last bit into one in the third digit
        params.type_k = params.type_v = L.GGML_TYPE_F32
        params.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if other is not None:
            params.ctx_other = other
        context = L.llama_init_from_model(model, params)
        assert context, f"no context for {path}"
        vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
        return cls(model, context, L.llama_model_n_embd(model), vocab)

    def decode(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the logits [tokens, vocab] of a text from position 0."""
        batch = L.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row], batch.pos[row], batch.n_seq_id[row], batch.logits[row] = token, row, 1, 1
            batch.seq_id[row][0] = 0
        assert L.llama_decode(self.context, batch) == 0
        logits = _rows(L.llama_get_logits(self.context), len(tokens), self.vocab)
        L.llama_batch_free(batch)
        return logits

    def close(self) -> None:
        L.llama_free(self.context)
        L.llama_model_free(self.model)


def logits_of(path: Path, tokens: Sequence[int]) -> np.ndarray:
    """Return the logits of a text, [tokens, vocab]."""
    loaded = Loaded.from_file(path)
    try:
        return loaded.decode(tokens)
    finally:
        loaded.close()


class PlainHead:
    """A head with its target; both run the same text, then the head drafts on its own."""

    def __init__(self, path: Path, target: Loaded) -> None:
        self.header = read_header(path)
        self.info = EagleInfo.from_header(self.header)
        self.path, self.target = path, target
        self.loaded = Loaded.from_file(path, other=target.context)
        set_tap = _bound(
            "_Z30llama_set_embeddings_layer_inpP13llama_contextjb", [C.c_void_p, C.c_uint32, C.c_bool], None
        )
        self._tap = _bound("_Z30llama_get_embeddings_layer_inpP13llama_contextj", [C.c_void_p, C.c_uint32], _FLOATS)
        for layer in self.info.target_layers:
            set_tap(target.context, layer, True)
        X.llama_set_embeddings_nextn(self.loaded.context, True, True)
        self._batch = L.llama_batch_ext_init(self.loaded.context)

    def draft(self, tokens: Sequence[int], depth: int) -> np.ndarray:
        """Return the logits [depth, vocab] of greedy drafting after a text whose last token is not yet encoded."""
        features = self._features(len(tokens) - 1)
        states = self._encode(features)
        mask = None if self.info.mask is None else self._encode(self._mask())
        self._extend(tokens[1:-1], states[:-1], 0)
        if mask is not None:
            rows = np.concatenate([states[-1:], *[mask] * (depth - 1)])
            self._extend([tokens[-1], *[self.info.mask] * (depth - 1)], rows, len(tokens) - 2, wanted=True)
            return _rows(L.llama_get_logits(self.loaded.context), depth, self.loaded.vocab)
        token, state, logits = tokens[-1], states[-1], []
        for step in range(depth):
            self._extend([token], state[None], len(tokens) - 2 + step, wanted=True)
            logits.append(_rows(L.llama_get_logits_ith(self.loaded.context, 0), 1, self.loaded.vocab)[0])
            state = _rows(X.llama_get_embeddings_nextn_ith(self.loaded.context, 0), 1, self.loaded.width)[0]
            if self.info.norm_output:
                gains = read_tensor(self.header, "output_norm.weight")
                state = _unit(state, self.info.rms_eps) * gains
            token = int(logits[-1].argmax())
        return np.stack(logits)

    def _features(self, count: int) -> np.ndarray:
        taps = [
            _rows(self._tap(self.target.context, layer), count, self.target.width) for layer in self.info.target_layers
        ]
        if self.info.fc_norm:
            taps = [_unit(tap, self.info.fc_norm_eps) for tap in taps]
        return self.info.tap_row.pad(np.concatenate(taps, axis=1))

    def _mask(self) -> np.ndarray:
        """Return what stands for the features of an unknown token, [1, taps * width]."""
        taps = np.array(self.header.array(MASK_HIDDEN_KEY), np.float32).reshape(-1, self.target.width)
        normed = _unit(taps, self.info.fc_norm_eps) if self.info.fc_norm else taps
        return self.info.tap_row.pad(normed.reshape(1, -1))

    def _encode(self, features: np.ndarray) -> np.ndarray:
        L.llama_batch_ext_clear(self._batch)
        held = [np.ascontiguousarray(row, np.float32) for row in features]
        for position, row in enumerate(held):
            at = L.llama_batch_ext_add_embd(self._batch, 0, _embedding(row))
            L.llama_batch_ext_set_pos(self._batch, at, C.byref(L.llama_pos(position)))
            L.llama_batch_ext_set_output_embd(self._batch, at, True)
        assert L.llama_process(self.loaded.context, L.LLAMA_PROCESS_TYPE_ENCODE, self._batch) == 0
        return _rows(X.llama_get_embeddings_nextn(self.loaded.context), len(held), self.loaded.width)

    def _extend(self, tokens: Sequence[int], states: np.ndarray, first: int, *, wanted: bool = False) -> None:
        L.llama_batch_ext_clear(self._batch)
        held = [np.ascontiguousarray(row, np.float32) for row in states]
        for offset, (token, row) in enumerate(zip(tokens, held, strict=True)):
            at = L.llama_batch_ext_add_token(self._batch, 0, int(token))
            L.llama_batch_ext_set_embd_token(self._batch, at, _embedding(row))
            L.llama_batch_ext_set_pos(self._batch, at, C.byref(L.llama_pos(first + offset)))
            L.llama_batch_ext_set_output_logits(self._batch, at, wanted)
        assert L.llama_process(self.loaded.context, L.LLAMA_PROCESS_TYPE_DECODE, self._batch) == 0

    def close(self) -> None:
        L.llama_batch_ext_free(self._batch)
        self.loaded.close()


def _embedding(row: np.ndarray) -> L.llama_embd:
    return L.llama_embd(row.ctypes.data_as(_FLOATS), 1, row.shape[-1])


def drafted(target_path: Path, head_path: Path, tokens: Sequence[int], depth: int) -> np.ndarray:
    """Return the logits [depth, vocab] that a head drafts after a text."""
    target = Loaded.from_file(target_path)
    head = PlainHead(head_path, target)
    try:
        target.decode(tokens[:-1])
        return head.draft(tokens, depth)
    finally:
        head.close()
        target.close()
