"""A draft: the tokens that a drafter proposes after one root, as a tree, usually a chain.

The root is the last token that was sampled and not yet decoded by the target; it is not part of the
draft. Nodes are numbered in the order in which they were proposed, parents before children.

    root ── 0 ── 1 ── 3        tokens  (t0, t1, t2, t3)
             └── 2             parents (-1,  0,  0,  1)
"""

from __future__ import annotations

from typing import NamedTuple

from eaglelocal.core.records import dataclass
from eaglelocal.core.sampling import Sampled

ROOT = -1


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens with their parents and the drafter's confidences; all three have one entry per node."""

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
