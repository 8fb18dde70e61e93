"""Does this draft fit this target? The one place that says so, from two headers.

The hub asks for an early answer, the engine process asks again because a plan may come from anywhere. What a
head must be like is told by eagle_info.py; here stands what concerns every draft, and draft models.
"""

from __future__ import annotations

from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf.eagle_info import EagleInfo, check_pair, taps_problem
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.keys import TOKENS_KEY
from eaglelocal.gguf.model_info import ModelInfo, architecture_of
from eaglelocal.gguf.shape import Shape

DraftInfo = EagleInfo | ModelInfo
HINT = "a draft made for this target, or `--draft none`"


def read_model(header: Header) -> ModelInfo:
    """What a target or a draft model is. Raises ModelFileError where the file is a head."""
    if architecture_of(header) == "eagle3":
        message = f"{header.path.name} is an eagle3 draft head, not a model that can answer"
        raise ModelFileError(message, hint="name the head with --draft, and its target as the model")
    return ModelInfo.from_header(header)


def read_draft(header: Header, *, beside: Header, target: ModelInfo, kind: str | None = None) -> DraftInfo:
    """What the draft is; `beside` is the header of the target.

    kind  eagle3 or draft_model; None: whichever the file's architecture says

    Raises IncompatibleError with the figures where it cannot draft for the target, ModelFileError on a bad file.
    """
    check_rolls_back(target)
    if (kind or architecture_of(header)) == "eagle3":
        head = EagleInfo.from_header(header)
        check_pair(head, target)
        return head
    draft = read_model(header)
    problem = state_problem(draft) or _vocabulary_problem(header, draft, beside, target)
    if problem:
        raise IncompatibleError(f"the draft model {draft.name} does not fit {target.name}: {problem}", hint=HINT)
    return draft


def check_rolls_back(target: ModelInfo) -> None:
    """Raises IncompatibleError where nothing can draft for the target, not even a lookup."""
    problem = state_problem(target)
    if problem:
        raise IncompatibleError(f"cannot draft for {target.name}: {problem}", hint=HINT)


def head_obstacle(target: ModelInfo) -> str:
    """Why no head at all can draft for this target; empty where one could."""
    return state_problem(target) or taps_problem(target)


def state_problem(info: ModelInfo) -> str:
    """Rejected tokens must be taken back, which recurrent state does not allow cell by cell."""
    return f"{info.architecture} keeps recurrent state, which cannot be rolled back yet" if info.has_state else ""


def branch_problem(target: Shape) -> str:
    """Why drafts for this target must be chains; empty where they may be trees."""
    if target.has_state:
        return f"{target.architecture} keeps recurrent state, which has no branches"
    if target.has_windows:  # cells that leave the window are reused only if no branch shares them
        return f"{target.architecture} attends through a sliding window, whose cells cannot be shared"
    return ""


def _vocabulary_problem(header: Header, draft: ModelInfo, beside: Header, target: ModelInfo) -> str:
    """Drafted ids go to the target as they are, so both must mean the same by every id."""
    if draft.n_vocab != target.n_vocab:
        return f"its vocabulary has {draft.n_vocab} tokens, the target's {target.n_vocab}"
    ours, theirs = beside.string_bytes(TOKENS_KEY) or [], header.string_bytes(TOKENS_KEY) or []
    if ours == theirs:
        return ""
    shared = min(len(ours), len(theirs))
    differs = next((token for token in range(shared) if ours[token] != theirs[token]), shared)
    return f"their {target.n_vocab} tokens differ from token {differs} on"
