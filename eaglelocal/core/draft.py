"""A draft: the tokens that a drafter proposes after one root, as a tree, usually a chain.

The root is the last token that was sampled and not yet decoded by the target; it is not part of the
draft. Nodes are numbered in the order in which they were proposed, parents before children.

    root ── 0 ── 1 ── 3        tokens  (t0, t1, t2, t3)
             └── 2             parents (-1,  0,  0,  1)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eaglelocal.core.amounts import count_noun
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import LOOKUPS, NGRAM
from eaglelocal.core.sampling import Sampled

ROOT = -1
FORCED = "forced"  # in place of a drafter, for tokens that must come next: only the last one's logits are read


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens as they are sent to the target, with their parents and confidences: one entry per node.

    All chains of drafters end up in this form for verification.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()  # of each token, see backend/top_tokens.py; NaN: not asked for
    drafter: str = ""  # name of the drafter that proposed it

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depths(self) -> tuple[int, ...]:
        """The depth of each node; a child of the root has depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.parents) - 1))

    @property
    def leaves(self) -> list[int]:
        """The nodes without children: first the end of the trunk, which follows first children, then the others."""
        parents = {*self.parents}
        leaves = [node for node in range(len(self.parents)) if node not in parents]
        end = ROOT
        while end in parents:
            end = self.parents.index(end)
        return [end, *(leaf for leaf in leaves if leaf != end)] if leaves else []

    def path_to(self, node: int) -> list[int]:
        """Return the nodes from the root's child down to this one."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def child_with(self, parent: int, token: int) -> int | None:
        """Return the index of the child of `parent` that carries `token`; None if there is none."""
        for node, (node_parent, node_token) in enumerate(zip(self.parents, self.tokens, strict=True)):
            if node_parent == parent and node_token == token:
                return node
        return None


class Verdict(NamedTuple):
    """The result of verification: the path of accepted nodes, then one more token sampled from the target.

    samples   one per emitted token, in order; samples[i].token == tokens[path[i]] for i < len(path)
    """

    path: tuple[int, ...]
    samples: tuple[Sampled, ...]

    @property
    def num_accepted(self) -> int:
        return len(self.path)


# ---- the state of drafting in words, the same on every screen and in every report
SWITCHED_OFF = "switched off"  # reason of the state `off` that the user chose
LOOKUPS_GO_ON = ", only lookups draft"  # after the reason of the state `asleep`, where there are any
MEASURING = "measuring whether drafting pays"  # reason of the state `asleep` during a probe
NOT_REPORTED = "not reported by the server"


def describe_draft(model: str, lookups: Sequence[str]) -> str:
    """Describe what drafts: the model's label ("": no model), and drafters that are not always present.

    describe_draft("EAGLE-3 head x", ["ngram"]) is the label alone: a lookup drafts beside every model.
    """
    if not model:
        return " and ".join(LOOKUPS[name] for name in lookups)
    return " and ".join([model, *(LOOKUPS[name] for name in lookups if name != NGRAM)])


def describe_cut_length(asked: int, most: int) -> str:
    """Say that fewer tokens are drafted than requested; "" if that is not so, or unknown (`most` 0)."""
    if not 0 < most < asked:
        return ""
    return f"at most {count_noun(most, 'token')} can be drafted here, not {asked}"


def describe_drafting(state: str, reason: str) -> str:
    """Return the state in words, such as `drafting paused: it would be slower (0.68x)`; "" if it is unknown."""
    match state:
        case _ if reason == NOT_REPORTED:
            return ""
        case "on":
            return "drafting"
        case "asleep" if reason == MEASURING:
            return MEASURING
        case "asleep":
            return f"drafting paused: {reason}" if reason else "drafting paused"
        case "off" if reason == SWITCHED_OFF:
            return "drafting off (your setting)"
        case "off":
            return f"drafting off: {reason}" if reason else "drafting off"
        case _:
            return ""
