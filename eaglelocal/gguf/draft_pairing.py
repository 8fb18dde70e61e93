"""Check whether a draft fits a target, from their two headers.

The hub calls it early, the engine process again, because a plan may come from anywhere. Checks of heads are in
eagle_info.py, medusa_info.py, block_info.py and mtp.py; this file has the checks of every draft, and of draft models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.architectures import EAGLE, HEAD_ARCHITECTURES, SNAPSHOT_ARCHITECTURES, TOKENS_KEY
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.head_info import check_head, layer_inputs_problem
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.medusa_info import MedusaInfo, read_graph_head
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import DraftInfo, HeadInfo, ModelShape
from eaglelocal.gguf.mtp import HINT, MtpInfo, check_mtp, is_mtp_alone

# A fine-tune may rename some control tokens and still suit the head. Drafts are token ids that the target verifies, so
# its answers stay right; only acceptance suffers.
MAX_RENAMED_SHARE = 0.01
NOISE_WORDS = frozenset({"meta", "gguf", "ud", "imatrix", "unsloth"})


def read_model(header: Header) -> ModelInfo:
    """Return the ModelInfo of a target or a draft model. Raises ModelFileError where the file is a head."""
    if (architecture := header.architecture) in HEAD_ARCHITECTURES:
        message = f"{header.path.name} is a draft head ({architecture}), not a model that can answer"
        raise ModelFileError(message, hint=_name_as_draft(header))
    if is_mtp_alone(header):
        message = f"{header.path.name} holds an MTP layer, not a model that can answer"
        raise ModelFileError(message, hint=_name_as_draft(header))
    return ModelInfo.from_header(header)


def _name_as_draft(header: Header) -> str:
    return f"eaglelocal chat --target MODEL --draft {quote_path(header.path)}"


def read_draft(header: Header, target: ModelInfo, *, kind: str | None = None) -> DraftInfo:
    """Return the draft's description, after checking that it fits the target.

    kind  eagle3, dflash, mtp or draft_model; None: by the file (a target's own MTP layer drafts only as `mtp`)

    Raises IncompatibleError with the figures if it cannot draft for the target, ModelFileError on a bad file.
    """
    check_rolls_back(target)
    kind = kind or detect_draft_kind(header)
    if kind in HEAD_ARCHITECTURES:
        head = read_graph_head(header) if kind == EAGLE else BlockInfo.from_header(header)
        check_head(head, target)
        _check_head_tokens(head, target)
        return head
    if kind == "mtp":
        layer = MtpInfo.from_header(header)
        check_mtp(layer, target)
        if layer.is_alone:
            _check_head_tokens(layer, target)
        return layer
    draft = read_model(header)
    problem = draft_state_problem(draft) or _vocabulary_problem(draft, target)
    if problem:
        raise IncompatibleError(f"the draft model {draft.name} does not fit {target.name}: {problem}", hint=HINT)
    return draft


def detect_draft_kind(header: Header) -> str:
    """Return how a file drafts unless a kind is given: eagle3, dflash, mtp or draft_model."""
    if (architecture := header.architecture) in HEAD_ARCHITECTURES:
        return architecture
    return "mtp" if is_mtp_alone(header) else "draft_model"


def check_rolls_back(target: ModelInfo) -> None:
    """Check that the target can remove rejected tokens.

    Raises IncompatibleError if it cannot: then no drafter works, not even a lookup.
    """
    problem = state_problem(target)
    if problem:
        raise IncompatibleError(f"cannot draft for {target.name}: {problem}", hint=HINT)


def head_problem(target: ModelInfo) -> str:
    """Return why no head can draft for this target; empty if one could."""
    return state_problem(target) or layer_inputs_problem(target)


def state_problem(target: ModelInfo) -> str:
    """Return why rejected tokens cannot be removed from the target's recurrent state; empty if they can.

    Removing them takes earlier states, which llama.cpp keeps for some architectures only.
    """
    if target.rolls_back:
        return ""
    why = "has not been tested" if target.architecture in SNAPSHOT_ARCHITECTURES else "llama.cpp does not support"
    return f"{target.architecture} keeps recurrent state, whose rollback {why}"


def draft_state_problem(draft: ModelInfo) -> str:
    """Return why the draft model's state rules it out; empty if it does not.

    Its cache is cut where the answer departs from the draft, further back than kept states reach.
    """
    return f"{draft.architecture} keeps recurrent state, which drafting cannot cut" if draft.has_state else ""


def branch_problem(target: ModelShape) -> str:
    """Return why drafts for this target must be chains; empty if they may be trees."""
    if target.has_state:
        return f"{target.architecture} keeps recurrent state, which has no branches"
    if target.has_windows:  # llama.cpp reuses cells outside the window only if no branch shares them
        return f"{target.architecture} attends through a sliding window, whose cells cannot be shared"
    return ""


def _vocabulary_problem(draft: ModelInfo, target: ModelInfo) -> str:
    """Return how the vocabularies differ; empty if they are equal. They must be: drafted ids are used unchanged."""
    if draft.n_vocab != target.n_vocab:
        return f"its vocabulary has {draft.n_vocab} tokens, the target's {target.n_vocab}"
    difference = compare_tokens(draft.header, target.header)
    return f"their {target.n_vocab} tokens differ from token {difference.first} on" if difference else ""


def _check_head_tokens(head: HeadInfo, target: ModelInfo) -> None:
    difference = compare_tokens(head.header, target.header)
    if difference is not None and difference.share > MAX_RENAMED_SHARE:
        raise IncompatibleError(
            f"the head {head.name} does not fit {target.name}: {difference.num_differing} of "
            f"{difference.num_tokens} tokens differ, from token {difference.first} on",
            hint=HINT,
        )


def draft_warnings(draft: DraftInfo, target: ModelInfo) -> tuple[str, ...]:
    """Return reasons why a draft that fits may still draft badly."""
    return tuple(_warnings(draft, target))


def _warnings(draft: DraftInfo, target: ModelInfo) -> Iterator[str]:
    if draft.header.path == target.header.path:
        return
    difference = compare_tokens(draft.header, target.header)
    if difference is not None:
        yield f"{difference.num_differing} of {difference.num_tokens} tokens have another text in the draft"
    if specials := differing_specials(draft.header, target.header):
        yield f"the draft has another {' and '.join(specials)} token than the target"
    if not isinstance(draft, EagleInfo | MedusaInfo):
        return
    if draft.target_name and not is_same_model(draft.target_name, target.name):
        yield f"the head was made for {draft.target_name} and may predict {target.name} less well"
    elif has_other_template(draft.header, target):
        yield "the head was made for another chat template than the target has"


def is_same_model(name: str, other: str) -> bool:
    """Return whether two names mean the same model, as `Meta-Llama-3.1-8B-Instruct` and `Llama 3.1 8B Instruct` do."""
    return _words(name) == _words(other)


def _words(name: str) -> frozenset[str]:
    words = re.findall(r"[a-z]+|\d+(?:\.\d+)?b?", name.rpartition("/")[2].lower())
    return frozenset(words) - NOISE_WORDS


def has_other_template(header: Header, target: ModelInfo) -> bool:
    template = header.metadata.get("tokenizer.chat_template")
    return isinstance(template, str) and target.chat_template is not None and template != target.chat_template


# ---- vocabulary match: compare two files' vocabularies by the texts of their tokens, not only by their number
#
# Equal lists are recognized quickly, as bytes; only lists that differ are decoded.
SPECIALS = ("bos", "eos", "eot")


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """A count of the differences between two vocabularies."""

    num_tokens: int
    num_differing: int
    first: int  # id of the first that differs

    @property
    def share(self) -> float:
        return self.num_differing / max(self.num_tokens, 1)


def compare_tokens(header: Header, other: Header) -> TokenDifference | None:
    """Return the differences; None if all tokens are equal, or if a file has no list to compare."""
    if header.array_bytes(TOKENS_KEY) == other.array_bytes(TOKENS_KEY):
        return None
    ours, theirs = header.string_bytes(TOKENS_KEY), other.string_bytes(TOKENS_KEY)
    if ours is None or theirs is None:
        return None
    shared = min(len(ours), len(theirs))
    differing = [token for token in range(shared) if ours[token] != theirs[token]]
    number = len(differing) + max(len(ours), len(theirs)) - shared
    return TokenDifference(max(len(ours), len(theirs)), number, differing[0] if differing else shared)


def differing_specials(header: Header, other: Header) -> list[str]:
    """Return the special tokens that are set in both files, to different ids."""
    found = []
    for name in SPECIALS:
        key = f"tokenizer.ggml.{name}_token_id"
        ours, theirs = header.metadata.get(key), other.metadata.get(key)
        if ours is not None and theirs is not None and ours != theirs:
            found.append(name)
    return found
