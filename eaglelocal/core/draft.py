"""A draft: the tokens that a drafter proposes behind one root, as a tree; a chain is the plain case.

The root is the last token that was sampled and not yet decoded by the target; it is not part of the
draft. Nodes are numbered in the order in which they were proposed, parents before children.

    root ── 0 ── 1 ── 3        tokens  (t0, t1, t2, t3)
             └── 2             parents (-1,  0,  0,  1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from eaglelocal.core.sampling import Sampled

ROOT = -1


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens with parents and the drafter's confidences; all three have one entry a node."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()  # how sure the drafter is of each, see backend/choices.py; NaN: not asked
    drafter: str = ""  # name of who proposed it

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; a child of the root has depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.parents) - 1))

    @property
    def leaves(self) -> list[int]:
        """Nodes without children: first the end of the trunk, which follows first children, then the others."""
        parents = {*self.parents}
        leaves = [node for node in range(len(self.parents)) if node not in parents]
        end = ROOT
        while end in parents:
            end = self.parents.index(end)
        return [end, *(leaf for leaf in leaves if leaf != end)] if leaves else []

    def path_to(self, node: int) -> list[int]:
        """Nodes from the root's child down to this one."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def child_with(self, parent: int, token: int) -> int | None:
        """Index of the child of `parent` that carries `token`."""
        for node, (node_parent, node_token) in enumerate(zip(self.parents, self.tokens, strict=True)):
            if node_parent == parent and node_token == token:
                return node
        return None


class Verdict(NamedTuple):
    """What verification kept: the path of accepted nodes, then one token more from the target.

    samples   one a emitted token, in order; samples[i].token == tokens[path[i]] for i < len(path)
    """

    path: tuple[int, ...]
    samples: tuple[Sampled, ...]

    @property
    def num_accepted(self) -> int:
        return len(self.path)
