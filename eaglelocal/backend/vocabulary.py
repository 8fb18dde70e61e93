"""Conversion between tokens and bytes, through llama.cpp's vocabulary. Pieces are read once and cached."""

from __future__ import annotations

import ctypes as C
import functools
import re
from collections.abc import Callable, Collection
from itertools import pairwise

from eaglelocal.backend.llama_library import LlamaLibrary
from eaglelocal.core.ports import FillTokens
from eaglelocal.errors import IncompatibleError

PIECE_BYTES = 64
WRITTEN_BY_TEMPLATES = 1 | 8  # llama_token_attr: unknown, control; llama.cpp parses neither in plain text
# Control tokens that llama.cpp (llama-vocab.cpp) makes user-defined, so that gpt-oss and Solar show them in answers: it
# then parses them in plain text too. Here they stay control tokens; <|end|> only if it does not end an answer.
MADE_ORDINARY = ("<|channel|>", "<|constrain|>", "<|end|>", "<|message|>", "<|start|>")
CONTROL, USER_DEFINED = 8, 16  # llama_token_attr
# a place within each of these texts where their families' pre-tokenizers split anyway
_CUT = re.compile(f"(?<=<\\|)(?={'|'.join(re.escape(text[2:]) for text in MADE_ORDINARY)})")


class LlamaVocabulary:
    """A model's vocabulary over llama.cpp, valid as long as the model. Implements core.ports.Vocabulary."""

    def __init__(self, library: LlamaLibrary, handle: object, chat_template: str | None, *, splitter: str = "") -> None:
        """Read the vocabulary; `splitter` is the name of its pre-tokenizer, `tokenizer.ggml.pre`."""
        self._api, self.handle = library.api, handle
        self.chat_template = chat_template
        is_bpe = self._api.llama_vocab_type(handle) == self._api.LLAMA_VOCAB_TYPE_BPE
        self._recurses = is_bpe and splitter not in WITHOUT_RECURSION
        self.n_tokens: int = self._api.llama_vocab_n_tokens(handle)
        self.bos_text = self._text(self._api.llama_vocab_bos(handle))
        self.eos_text = self._text(self._api.llama_vocab_eos(handle))
        self.piece = functools.cache(self._make_piece)
        self.spelled = functools.cache(self._spell)
        self._read = library.token_to_piece
        self._made_ordinary = self._ordinary_markers() if is_bpe else {}  # files without a vocabulary load too
        self.end_tokens = [token for token in range(self.n_tokens) if library.is_end(handle, token)]
        self.is_end: Callable[[int], bool] = frozenset(self.end_tokens).__contains__  # fast: called for every token

    def _ordinary_markers(self) -> dict[int, str]:
        found = {text: self._tokens(text, False, True) for text in MADE_ORDINARY}
        attributes = self._api.llama_vocab_get_attr
        ordinary = ((tokens[0], text) for text, tokens in found.items() if len(tokens) == 1)
        return {token: text for token, text in ordinary if attributes(self.handle, token) & USER_DEFINED}

    def _text(self, token: int) -> str:
        if token < 0:
            return ""
        raw: bytes = self._api.llama_vocab_get_text(self.handle, token)
        return raw.decode("utf-8", "replace")

    @functools.cached_property
    def fill_tokens(self) -> FillTokens | None:
        api = self._api
        getters = (api.llama_vocab_fim_pre, api.llama_vocab_fim_suf, api.llama_vocab_fim_mid)
        prefix, suffix, middle = (int(get(self.handle)) for get in getters)
        if min(prefix, suffix, middle) < 0:
            return None
        project, file = (int(get(self.handle)) for get in (api.llama_vocab_fim_rep, api.llama_vocab_fim_sep))
        return FillTokens(prefix, suffix, middle, project if project >= 0 else None, file if file >= 0 else None)

    @property
    def pair_frame(self) -> tuple[list[int], list[int], list[int]]:
        """The tokens before, between and after two texts that are read as a pair.

        As in llama-server, except for the end of the second text with tokenizers that end every text: BERT's [SEP].
        Raises IncompatibleError if adding special tokens changes the text's own; llama.cpp has no such tokenizer yet.
        """
        api, handle = self._api, self.handle
        bare, framed = (self.tokenize("a", add_special=adds, parse_special=False) for adds in (False, True))
        start = next((i for i in range(len(framed) + 1) if framed[i : i + len(bare)] == bare), None)
        if start is None:
            message = "the tokenizer of this model reads a text differently when it adds special tokens"
            raise IncompatibleError(
                message, hint="use a file that has a template for pairs: tokenizer.chat_template.rerank"
            )
        separator, end = int(api.llama_vocab_sep(handle)), int(api.llama_vocab_eos(handle))
        between = [separator if end < 0 else end] if api.llama_vocab_get_add_eos(handle) else []
        between += [separator] if api.llama_vocab_get_add_sep(handle) else []
        return framed[:start], between, framed[start + len(bare) :]

    @functools.cached_property
    def control_texts(self) -> tuple[str, ...]:
        attributes = self._api.llama_vocab_get_attr
        found = (self._text(t) for t in range(self.n_tokens) if attributes(self.handle, t) & WRITTEN_BY_TEMPLATES)
        return tuple(sorted({text for text in (*found, *self._made_ordinary.values()) if text}))

    @functools.cached_property
    def special_texts(self) -> dict[int, bytes]:
        """The tokens that a grammar may name, with their texts: control tokens, and user-defined ones like `<...>`."""
        attributes, found = self._api.llama_vocab_get_attr, {}
        for token in range(self.n_tokens):
            kind = attributes(self.handle, token)
            if kind & CONTROL:
                found[token] = self._text(token).encode(errors="replace")
            elif kind & USER_DEFINED and (text := self._text(token)).startswith("<") and text.endswith(">"):
                found[token] = text.encode(errors="replace")
        return found

    @functools.cached_property
    def max_token_bytes(self) -> int | None:
        """The most bytes of a text that one token stands for; None if texts are normalized first, without bound."""
        if self._api.llama_vocab_type(self.handle) in (
            self._api.LLAMA_VOCAB_TYPE_WPM,
            self._api.LLAMA_VOCAB_TYPE_UGM,
        ):
            return None
        text_of = self._api.llama_vocab_get_text
        return max((len(text_of(self.handle, token) or b"") for token in range(self.n_tokens)), default=1)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        parts = self.parts(text, parse_special=parse_special)
        if len(parts) == 1:
            return self._tokens(text, add_special, parse_special)
        api, handle = self._api, self.handle
        begin = [api.llama_vocab_bos(handle)] if add_special and api.llama_vocab_get_add_bos(handle) else []
        end = [api.llama_vocab_eos(handle)] if add_special and api.llama_vocab_get_add_eos(handle) else []
        return [*begin, *(t for part in parts for t in self._tokens(part, False, parse_special)), *end]

    def parts(self, text: str, *, parse_special: bool) -> list[str]:
        """Return the text in parts that are tokenized one after another.

        They are safe for llama.cpp's pre-tokenizer, and control tokens in them are parsed only if `parse_special`.
        """
        parts = split_long_runs(text, self.control_texts if parse_special else ()) if self._recurses else [text]
        if parse_special or not self._made_ordinary:
            return parts
        return [piece for part in parts for piece in _CUT.split(part)]

    def _tokens(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode("utf-8", "surrogatepass")
        capacity = len(raw) + 16
        buffer = (C.c_int32 * capacity)()
        n = self._api.llama_tokenize(self.handle, raw, len(raw), buffer, capacity, add_special, parse_special)
        if n < 0:
            buffer = (C.c_int32 * -n)()
            n = self._api.llama_tokenize(self.handle, raw, len(raw), buffer, -n, add_special, parse_special)
        return list(buffer[:n])

    def _make_piece(self, token: int) -> bytes:
        return b"" if token in self._made_ordinary else self._read_piece(token)

    def _spell(self, token: int) -> bytes:
        return self.piece(token) or self._read_piece(token, special=True)

    def _read_piece(self, token: int, *, special: bool = False) -> bytes:
        if not 0 <= token < self.n_tokens:
            return b""
        buffer = (C.c_char * PIECE_BYTES)()  # a new one each time: several threads read
        n = self._read(self.handle, token, buffer, PIECE_BYTES, 0, special)
        if n < 0:
            buffer = (C.c_char * -n)()
            n = self._read(self.handle, token, buffer, -n, 0, special)
        return buffer.raw[:n]


# ---- texts that llama.cpp's pre-tokenizers cannot take as a whole
#
# Pre-tokenizers that are regular expressions recurse for every character of a match, and overflow a stack of 8 MiB
# after some 26 000. A prompt with a longer run of letters would kill the process, so runs are cut much earlier. Each
# cut costs about one more token, and the text means the same. Pure.
WINDOW = 2000  # characters; a run between two cuts is shorter than two of these
# What one match may span: in C++ four control characters are no space, and punctuation may end in lines and slashes.
LONG_RUN = re.compile("|".join(rf"{kind}{{{WINDOW}}}" for kind in (r"[\S\x1c-\x1f]", r"\s", r"[\r\n/]")))
# Pre-tokenizers (tokenizer.ggml.pre) that llama.cpp implements by hand, without recursion.
WITHOUT_RECURSION = frozenset({
    "a.x-4.0", "chatglm-bpe", "command-r", "dbrx", "deepseek-r1-qwen", "exaone4", "falcon-h1", "falcon3", "gemma4",
    "glm4", "gpt-2", "hunyuan", "kimi-k2", "lfm2", "llama-bpe", "llama-v3", "llama3", "megrez", "midm-2.0", "olmo",
    "phi-2", "pixtral", "qwen2", "qwen35", "refact", "smaug-bpe", "smollm", "stablelm2", "starcoder",
})  # fmt: skip


def split_long_runs(text: str, whole_words: Collection[str] = ()) -> list[str]:
    """Return the text in parts without long runs; no string of `whole_words` is split."""
    cuts = (at for at in range(WINDOW, len(text), WINDOW) if LONG_RUN.match(text, at))
    places = sorted({0, len(text), *(move_before(whole_words, text, at) for at in cuts)})
    return [text[first:end] for first, end in pairwise(places)] or [text]


def move_before(whole_words: Collection[str], text: str, at: int) -> int:
    """Return the place of a cut, moved to the beginning of a string that it would split."""
    starts = (text.find(word, max(at - len(word) + 1, 0), at + len(word) - 1) for word in whole_words)
    return min((start for start in starts if 0 <= start < at), default=at)
