"""A draft reference, beside its target -> what drafts, or why nothing does.

Everything that would abort llama.cpp or draft nonsense is refused here, before any model is loaded:
an explicit draft that does not fit is an error, an automatic one that is not to be had is a reason.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from eaglelocal.errors import IncompatibleError, UsageError
from eaglelocal.gguf.eagle_info import EagleInfo, check_pair
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import TOKENS_KEY, ModelInfo, architecture_of
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.values import ArrayValue
from eaglelocal.hub.files import existing_file, looks_like_path
from eaglelocal.hub.targets import FoundTarget, label_of

HINT = "`--draft none` runs it without a draft"
UNDERSTOOD = "`auto`, `none`, or the path of a .gguf file"


@dataclass(frozen=True, slots=True)
class FoundDraft:
    """What drafts; kind is `none`, `eagle3` or `draft_model`, and `reason` says why it is none."""

    kind: str = "none"
    path: Path | None = None
    label: str = "none"
    reason: str = ""


def find_draft(reference: str, target: FoundTarget) -> FoundDraft:
    """Raises UsageError, ModelFileError, or IncompatibleError with the figures."""
    match reference:
        case "none":
            return FoundDraft(reason="switched off")
        case "auto":
            return _automatic(target)
        case "ngram":
            raise UsageError("the draft 'ngram' is not available yet", hint=f"understood are {UNDERSTOOD}")
    if not looks_like_path(reference):
        raise UsageError(f"unknown draft {reference!r}", hint=f"understood are {UNDERSTOOD}")
    return read_draft(existing_file(reference), target)


def read_draft(path: Path, target: FoundTarget) -> FoundDraft:
    """A draft file for a target, of the kind its architecture says."""
    problem = _state_problem(target.info)
    if problem:
        raise IncompatibleError(f"cannot draft for {target.label}: {problem}", hint=HINT)
    header = read_header(path)
    if architecture_of(header) == "eagle3":
        return _head(header, target)
    return _draft_model(header, target)


def _automatic(target: FoundTarget) -> FoundDraft:
    problem = _state_problem(target.info) or _taps_problem(target.info)
    if problem:
        return FoundDraft(reason=problem)
    if target.head is None:
        return FoundDraft(reason="no draft is known for this target")
    return dataclasses.replace(read_draft(target.head, target), label="its own EAGLE-3.1 head")


def _state_problem(info: ModelInfo) -> str:
    """Rejected tokens must be taken back, which recurrent state does not allow cell by cell."""
    kind = "recurrent" if info.is_recurrent else "hybrid"
    return f"{kind} targets ({info.architecture}) cannot be drafted for yet" if info.has_state else ""


def _taps_problem(info: ModelInfo) -> str:
    if info.gives_layer_inputs:
        return ""
    return f"llama.cpp gives no layer inputs for the architecture {info.architecture}"


def _head(header: Header, target: FoundTarget) -> FoundDraft:
    problem = _taps_problem(target.info)
    if problem:
        raise IncompatibleError(f"an EAGLE head cannot draft for {target.label}: {problem}", hint=HINT)
    head = EagleInfo.from_header(header)
    check_pair(head, target.info)
    dialect = "EAGLE-3.1" if head.fc_norm or head.norm_output else "EAGLE-3"
    return FoundDraft("eagle3", header.path, f"{dialect} head {label_of(head.name, header.path)}")


def _draft_model(header: Header, target: FoundTarget) -> FoundDraft:
    draft = ModelInfo.from_header(header)
    label = label_of(draft.name, header.path)
    for problem in (_state_problem(draft), _vocabulary_problem(header, draft, target)):
        if problem:
            raise IncompatibleError(f"the draft model {label} does not fit {target.label}: {problem}", hint=HINT)
    return FoundDraft("draft_model", header.path, f"draft model {label}")


def _vocabulary_problem(header: Header, draft: ModelInfo, target: FoundTarget) -> str:
    """Drafted ids go to the target as they are, so both must mean the same by every id."""
    if draft.n_vocab != target.info.n_vocab:
        return f"its vocabulary has {draft.n_vocab} tokens, the target's {target.info.n_vocab}"
    if _token_bytes(header) != _token_bytes(target.header):
        return f"its {draft.n_vocab} tokens are not the target's"
    return ""


def _token_bytes(header: Header) -> bytes:
    """The vocabulary as it lies in the file: 2 MB for 152 000 tokens, compared without decoding."""
    value = header.metadata.get(TOKENS_KEY)
    if not isinstance(value, ArrayValue):
        return b""
    with header.path.open("rb") as file:
        file.seek(value.offset)
        return file.read(value.nbytes)
