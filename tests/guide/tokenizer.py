"""Byte-level BPE of the embedded model: training, encoding, and its GGUF keys.

The pre-tokenizer is llama.cpp's `qwen2` type (single digits), so that llama.cpp splits text exactly as training did.
It defines the ChatML special tokens and the chat template; corpora and models are elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from eaglelocal.core.atomic_file import SHARED, make_folder
from eaglelocal.core.json_text import read_object
from eaglelocal.core.records import dataclass

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class GuideTokenizer:
    """The trained tokenizer, with the ids of its special tokens."""

    backend: Tokenizer

    @property
    def num_tokens(self) -> int:
        return self.backend.get_vocab_size()

    @property
    def turn_end(self) -> int:
        return self.token_id(TURN_END)

    @property
    def end_of_text(self) -> int:
        return self.token_id(END_OF_TEXT)

    def token_id(self, token: str) -> int:
        found = self.backend.token_to_id(token)
        if found is None:
            raise KeyError(token)
        return found

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: list[int]) -> str:
        return self.backend.decode(tokens, skip_special_tokens=False)

    def save(self, path: Path) -> None:
        make_folder(path.parent, SHARED)
        self.backend.save(str(path))


def train_tokenizer(texts: Iterable[str], num_tokens: int = 4096) -> GuideTokenizer:
    backend = _backend(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=_special_tokens(),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return GuideTokenizer(backend)


def build_tokenizer(tokens: Sequence[str], merges: Sequence[str]) -> GuideTokenizer:
    """Return the tokenizer from the keys that `add_tokenizer_keys` wrote: tokens by id, merges as "left right"."""
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = _backend(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=pairs))
    backend.add_special_tokens(_special_tokens())  # they keep their ids
    return GuideTokenizer(backend)


def _backend(model: models.BPE) -> Tokenizer:
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _special_tokens() -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]


def load_tokenizer(path: Path) -> GuideTokenizer:
    return GuideTokenizer(Tokenizer.from_file(str(path)))


def add_tokenizer_keys(writer: gguf.GGUFWriter, tokenizer: GuideTokenizer) -> None:
    """Write vocabulary, merges, special ids and chat template as llama.cpp's `gpt2` / `qwen2` tokenizer."""
    model = cast("dict[str, Any]", read_object(tokenizer.backend.to_str())["model"])
    by_id = sorted(tokenizer.backend.get_vocab().items(), key=lambda item: item[1])
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([token for token, _ in by_id])
    writer.add_token_types([int(control if token in SPECIAL_TOKENS else normal) for token, _ in by_id])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]])
    writer.add_eos_token_id(tokenizer.turn_end)
    writer.add_eot_token_id(tokenizer.turn_end)
    writer.add_pad_token_id(tokenizer.end_of_text)
    writer.add_bos_token_id(tokenizer.end_of_text)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
