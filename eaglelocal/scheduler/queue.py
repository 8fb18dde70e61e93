"""Queue waiting requests fairly: the owner who was served least recently is next, and their oldest request.

Start-time fair queueing over tokens (Goyal, Vin, Cheng, SIGCOMM 1996; for language models "virtual token counters",
Sheng et al., OSDI 2024): an owner's account counts the tokens computed for them, the lowest account is served next, and
the account of the last one served is the virtual time. An owner who returns starts at that time
at least, so being idle earns no credit; when all are idle, accounts are reset. Pure bookkeeping: no clock, no slots.

    a has eight requests queued, one of 100 tokens runs, b arrives    accounts a 100, b 0        b is next
    only a was served for an hour, then b returns                     accounts a 5 000, b 4 900  b is next, then a again
"""

from __future__ import annotations

from collections import Counter, deque

from eaglelocal.core.request import Request


class FairQueue:
    """A queue with one line per owner; "" is an owner like any other."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[tuple[int, Request]]] = {}  # by owner: (number of arrival, request); never empty
        self._accounts: dict[str, int] = {}  # tokens, by owner
        self._running: Counter[str] = Counter()
        self._now = 0  # virtual time: the account of the owner served last, when they were served
        self._num_arrived = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, request: Request) -> None:
        if request.owner not in self._lines:
            self._lines[request.owner] = deque()
            self._accounts[request.owner] = max(self._accounts.get(request.owner, 0), self._now)
        self._lines[request.owner].append((self._num_arrived, request))
        self._num_arrived += 1

    def withdraw(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        for owner, line in self._lines.items():
            for entry in line:
                if entry[1].id == request_id:
                    line.remove(entry)
                    self._forget_idle(owner)
                    return True
        return False

    def pop(self) -> Request:
        """Return the next request. Call `end` when it is finished."""
        owner = min(self._lines, key=lambda name: (self._accounts[name], self._lines[name][0][0]))
        _, request = self._lines[owner].popleft()
        self._now = max(self._now, self._accounts[owner])
        self._running[owner] += 1
        self._forget_idle(owner)
        return request

    def charge(self, owner: str, num_tokens: int) -> None:
        """Charge the owner of a running request for computed tokens; a negative number corrects an earlier charge."""
        self._accounts[owner] += num_tokens

    def end(self, owner: str) -> None:
        """Record that a request of the owner is finished."""
        self._running[owner] -= 1
        if not self._lines and not self._running.total():
            self._now = max(self._accounts.values())  # no one waits: what was computed so far counts no more
        self._forget_idle(owner)

    def _forget_idle(self, owner: str) -> None:
        """Forget owners who neither wait nor run and whose account is no more than a new owner starts with."""
        if owner in self._lines and not self._lines[owner]:
            del self._lines[owner]
        for name in [name for name, account in self._accounts.items() if account <= self._now]:
            if name not in self._lines and not self._running[name]:
                del self._accounts[name], self._running[name]
