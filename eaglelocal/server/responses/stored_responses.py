"""Recent responses and their items by id, for requests that refer to them instead of sending them again.

In RAM only, bounded for each owner, and separate between owners; the least recently used are dropped first. Kept as
JSON, so that their size is known. Independent of HTTP and of the meaning of items.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eaglelocal.core.json_text import MAX_DEPTH, is_nested_deeper, read_json
from eaglelocal.server.answer_encoder import compact

MAX_ENTRIES = 4096
MAX_BYTES = 8 * 2**20

MAX_KEPT_DEPTH = MAX_DEPTH + 16  # a schema or an argument, in an item, in a response
Items = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class RecentItems:
    """JSON values by id, least recently used first. An id is never reused."""

    max_entries: int = MAX_ENTRIES
    max_bytes: int = MAX_BYTES
    num_bytes: int = 0
    _kept: OrderedDict[str, bytes] = field(default_factory=OrderedDict)  # the most recently used comes last

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, id: str, value: object) -> None:
        """Store a value and drop the oldest ones; a value that is too large or too deeply nested is not stored."""
        if is_nested_deeper(value, MAX_KEPT_DEPTH):
            return
        told = compact(value).encode("utf-8", "surrogatepass")  # half surrogates, which JSON can escape
        if len(told) > self.max_bytes:
            return
        self._kept[id] = told
        self.num_bytes += len(told)
        while self.num_bytes > self.max_bytes or len(self._kept) > self.max_entries:
            _, gone = self._kept.popitem(last=False)
            self.num_bytes -= len(gone)

    def find(self, id: str) -> Any:
        """Return a value; None if it was never stored or has been dropped."""
        if id not in self._kept:
            return None
        self._kept.move_to_end(id)
        return read_json(self._kept[id], MAX_KEPT_DEPTH)


@dataclass(slots=True)
class StoredResponses:
    """The memory of one owner. Responses have a separate bound, because they include the input, which may be long."""

    items: RecentItems = field(default_factory=RecentItems)
    responses: RecentItems = field(default_factory=RecentItems)

    def keep(self, id: str, previous: str | None, asked: Items | None, told: Items) -> None:
        """Store the output items (`told`) by their ids, and the response as its input since `previous` (`asked`) plus
        `told`; not the response if `asked` is None because it was too large.
        """
        for item in told:
            self.items.keep(item["id"], item)
        if asked is not None:
            self.responses.keep(id, {"previous": previous, "items": [*asked, *told]})

    def conversation(self, id: str | None) -> list[dict[str, Any]] | None:
        """Return all items up to the end of a response; None if it or one before it is missing."""
        links: list[list[dict[str, Any]]] = []
        while id is not None:
            found = self.responses.find(id)
            if found is None:
                return None
            links.append(found["items"])
            id = found["previous"]
        return [item for items in reversed(links) for item in items]
