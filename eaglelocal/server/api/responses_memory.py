"""What was asked and told lately, by its id, for callers that name it instead of sending it again.

In main memory only, in bounded room for each owner, who finds nothing of another's; what was not used for longest goes
first. Kept as JSON, so that its room is known. Knows neither HTTP nor what an item means.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eaglelocal.core.json_text import MAX_DEPTH, is_deeper, read_json
from eaglelocal.server.api.tellers import compact

MAX_ENTRIES = 4096
MAX_BYTES = 8 * 2**20

MAX_KEPT_DEPTH = MAX_DEPTH + 16  # a schema or an argument, in an item, in a response
Items = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Recent:
    """Values by their ids, which are not given twice."""

    max_entries: int = MAX_ENTRIES
    max_bytes: int = MAX_BYTES
    num_bytes: int = 0
    _kept: OrderedDict[str, bytes] = field(default_factory=OrderedDict)  # the latest used last

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, id: str, value: object) -> None:
        """What is too large by itself pushes nothing out, and what is nested too deep is forgotten."""
        if is_deeper(value, MAX_KEPT_DEPTH):
            return
        told = compact(value).encode("utf-8", "surrogatepass")  # of odd types, which JSON can spell
        if len(told) > self.max_bytes:
            return
        self._kept[id] = told
        self.num_bytes += len(told)
        while self.num_bytes > self.max_bytes or len(self._kept) > self.max_entries:
            _, gone = self._kept.popitem(last=False)
            self.num_bytes -= len(gone)

    def find(self, id: str) -> Any:
        """None: never kept, or gone."""
        if id not in self._kept:
            return None
        self._kept.move_to_end(id)
        return read_json(self._kept[id], MAX_KEPT_DEPTH)


@dataclass(slots=True)
class Memory:
    """Of one owner. Responses have a room of their own, for they hold what was asked too, which may be long."""

    items: Recent = field(default_factory=Recent)
    responses: Recent = field(default_factory=Recent)

    def keep(self, id: str, previous: str | None, asked: Items | None, told: Items) -> None:
        """A response with what was asked in it (beyond the previous one) and what was told; without what was asked
        (it was too large) only the items that were told."""
        for item in told:
            self.items.keep(item["id"], item)
        if asked is not None:
            self.responses.keep(id, {"previous": previous, "items": [*asked, *told]})

    def conversation(self, id: str | None) -> list[dict[str, Any]] | None:
        """All items up to the end of this response; None where it, or one before it, is gone."""
        links: list[list[dict[str, Any]]] = []
        while id is not None:
            found = self.responses.find(id)
            if found is None:
                return None
            links.append(found["items"])
            id = found["previous"]
        return [item for items in reversed(links) for item in items]
