"""Recent responses and their items by id, for requests that refer to them instead of sending them again.

In RAM only, separate and bounded for each owner; the least recently used are dropped first. Stored as JSON, so that
their size is known. Knows nothing of HTTP and of the meaning of items.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from eaglelocal.core.json_text import MAX_DEPTH, is_nested_deeper, read_json
from eaglelocal.core.records import dataclass
from eaglelocal.server.answer_encoder import dump_json

MAX_ENTRIES = 4096
MAX_BYTES = 8 * 2**20

MAX_STORED_DEPTH = MAX_DEPTH + 16  # a schema or an argument, in an item, in a response
Items = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class RecentItems:
    """JSON values by id, least recently used first. An id is never reused."""

    max_entries: int = MAX_ENTRIES
    max_bytes: int = MAX_BYTES
    num_bytes: int = 0
    _stored: OrderedDict[str, bytes] = field(default_factory=OrderedDict)  # the most recently used comes last

    def __len__(self) -> int:
        return len(self._stored)

    def store(self, id: str, value: object) -> None:
        """Store a value and drop the oldest ones; a value that is too large or too deeply nested is not stored."""
        if is_nested_deeper(value, MAX_STORED_DEPTH):
            return
        data = dump_json(value).encode("utf-8", "surrogatepass")  # half surrogates, which JSON can escape
        if len(data) > self.max_bytes:
            return
        self._stored[id] = data
        self.num_bytes += len(data)
        while self.num_bytes > self.max_bytes or len(self._stored) > self.max_entries:
            _, dropped = self._stored.popitem(last=False)
            self.num_bytes -= len(dropped)

    def find(self, id: str) -> Any:
        """Return a value; None if it was never stored or has been dropped."""
        if id not in self._stored:
            return None
        self._stored.move_to_end(id)
        return read_json(self._stored[id], MAX_STORED_DEPTH)


@dataclass(slots=True)
class StoredResponses:
    """The stored responses of one owner. They have a bound of their own, because their input may be long."""

    items: RecentItems = field(default_factory=RecentItems)
    responses: RecentItems = field(default_factory=RecentItems)

    def store(self, id: str, previous: str | None, input: Items | None, output: Items) -> None:
        """Store the output items by their ids, and the response: its input since `previous`, and its output.

        Without an input, because it was too large, the response is not stored.
        """
        for item in output:
            self.items.store(item["id"], item)
        if input is not None:
            self.responses.store(id, {"previous": previous, "items": [*input, *output]})

    def find_conversation(self, id: str | None) -> list[dict[str, Any]] | None:
        """Return all items up to the end of a response; None if it or one before it is missing."""
        links: list[list[dict[str, Any]]] = []
        while id is not None:
            found = self.responses.find(id)
            if found is None:
                return None
            links.append(found["items"])
            id = found["previous"]
        return [item for items in reversed(links) for item in items]
