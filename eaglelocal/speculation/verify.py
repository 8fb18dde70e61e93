"""Sample-and-match verification: walk the draft along the target's own samples.

At each node the target's sampler draws exactly as it would without speculation; if the draw is a
drafted child, descend, else stop. Whatever was drafted, the emitted tokens are the sampler's own
draws, so the distribution is the target's for any sampler, chain or tree, and sampler state only
ever advances along emitted tokens (as llama.cpp's sample_and_accept does for chains).

    draft  root ── a ── b      draws  a, b, c  ->  path (a, b), emitted a b c  (c is the bonus token)
                   └── x              a, x, d  ->  path (a, x), emitted a x d
                                      q        ->  path (),     emitted q
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eaglelocal.core.draft import ROOT, Draft, Verdict
from eaglelocal.core.sampling import Sampled


def verify(
    draft: Draft,
    rows: Sequence[int],
    *,
    sample: Callable[[int], Sampled],
    is_end: Callable[[int], bool],
    limit: int,
) -> Verdict:
    """Judge a draft: return its accepted path, and the tokens to emit.

    rows    output row of the root, then of each node: rows[node + 1]
    sample  draws at an output row and advances the sampler
    is_end  whether a token ends the answer
    limit   most tokens that may be emitted (at least 1)
    """
    node = ROOT
    path: list[int] = []
    samples: list[Sampled] = []
    while True:
        drawn = sample(rows[node + 1])
        samples.append(drawn)
        child = draft.child_with(node, drawn.token)
        if child is not None:
            path.append(child)
        if child is None or len(samples) >= limit or is_end(drawn.token):
            return Verdict(tuple(path), tuple(samples))
        node = child
