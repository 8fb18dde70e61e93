"""`d2t` and `t2d`, the tables that map each row of a head's output to a target token.

Published heads hold offsets (target = row + d2t[row]), llama.cpp needs the tokens themselves. `t2d` says for each
target token whether it is drafted; it adds nothing, and so it is a check: tables that disagree are damaged.
"""

from __future__ import annotations

import numpy as np

from eaglelocal.errors import ModelFileError
from eaglelocal.hub.heads.safetensors_files import Ints, StoredTensor


def map_target_tokens(
    d2t: StoredTensor | None, t2d: StoredTensor | None, *, num_rows: int, num_tokens: int
) -> Ints | None:
    """Return the target token of each output row [num_rows]; None where row i is token i, for all of them.

    >>> target_tokens(None, None, num_rows=8, num_tokens=8) is None
    True

    Raises ModelFileError where the tables are damaged or of another head.
    """
    if d2t is None:
        if num_rows < num_tokens:
            raise ModelFileError(f"the head drafts {num_rows} of {num_tokens} tokens and has no d2t to say which")
        return None
    offsets = d2t.integers().reshape(-1)
    if len(offsets) != num_rows:
        raise ModelFileError(f"d2t has {len(offsets)} entries, the head drafts {num_rows} tokens")
    marked = None if t2d is None else np.flatnonzero(t2d.integers().reshape(-1))
    tokens = _decode_offsets(offsets, marked, num_tokens)
    if num_rows == num_tokens and (tokens == np.arange(num_rows)).all():
        return None
    return tokens


def _decode_offsets(offsets: Ints, marked: Ints | None, num_tokens: int) -> Ints:
    """Return the target tokens of offsets, which are usual; of absolute ids only where t2d proves that they are."""
    problems = []
    for tokens in (offsets + np.arange(len(offsets)), offsets):
        problem = _find_problem(tokens, marked, num_tokens)
        if not problem and (tokens is not offsets or marked is not None):
            return tokens
        problems.append(problem)
    raise ModelFileError(f"d2t is damaged or of another head: {problems[0]}", hint="fetch the head again")


def _find_problem(tokens: Ints, marked: Ints | None, num_tokens: int) -> str:
    if tokens.min() < 0 or tokens.max() >= num_tokens:
        return f"it names tokens {tokens.min()} to {tokens.max()} of {num_tokens}"
    ordered = np.sort(tokens)
    repeated = ordered[:-1][ordered[1:] == ordered[:-1]]
    if len(repeated):
        return f"it names token {repeated[0]} twice"
    if marked is not None and not np.array_equal(ordered, marked):
        return f"it names {len(ordered)} tokens, t2d {len(marked)}, and {len(np.setdiff1d(ordered, marked))} differ"
    return ""
