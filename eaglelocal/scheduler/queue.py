"""Waiting requests, and whose turn it is: that of the owner who was served least lately, in order within an owner.

Start-time fair queueing over tokens (Goyal, Vin, Cheng, SIGCOMM 1996; for language models "virtual token counters",
Sheng et al., OSDI 2024): an owner's account counts what was computed for them, the lowest account is served next, and
the account of the last one served is the time. Who comes back begins at that time at least: to have been idle is no
credit, and when all are idle what was is forgotten. Pure bookkeeping: no clock, no slots.

    a has eight requests in line, one of 100 tokens runs, b comes    accounts a 100, b 0        b is next
    a alone was served for an hour, b comes back                     accounts a 5 000, b 4 900  b is next, then a again
"""

from __future__ import annotations

from collections import Counter, deque

from eaglelocal.core.request import Request


class FairQueue:
    """One line for each owner; "" is an owner like any other."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[tuple[int, Request]]] = {}  # by owner; with the number of arrival; never empty
        self._accounts: dict[str, int] = {}  # tokens, by owner
        self._running: Counter[str] = Counter()
        self._now = 0  # the account, when it was served, of the owner who was served last
        self._num_arrived = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    @property
    def num_accounts(self) -> int:
        """Owners that are remembered: those who wait or run, and those who had more than their share."""
        return len(self._accounts)

    def add(self, request: Request) -> None:
        if request.owner not in self._lines:
            self._lines[request.owner] = deque()
            self._accounts[request.owner] = max(self._accounts.get(request.owner, 0), self._now)
        self._lines[request.owner].append((self._num_arrived, request))
        self._num_arrived += 1

    def withdraw(self, request_id: str) -> bool:
        """Take a request out of the line; False if it does not wait here."""
        for owner, line in self._lines.items():
            for entry in line:
                if entry[1].id == request_id:
                    line.remove(entry)
                    self._leave(owner)
                    return True
        return False

    def pop(self) -> Request:
        """The next request. `end` must be called when it is over."""
        owner = min(self._lines, key=lambda name: (self._accounts[name], self._lines[name][0][0]))
        _, request = self._lines[owner].popleft()
        self._now = max(self._now, self._accounts[owner])
        self._running[owner] += 1
        self._leave(owner)
        return request

    def charge(self, owner: str, num_tokens: int) -> None:
        """So much was computed for an owner whose request runs; negative: less than was charged."""
        self._accounts[owner] += num_tokens

    def end(self, owner: str) -> None:
        """A request of the owner, popped before, is over."""
        self._running[owner] -= 1
        if not self._lines and not self._running.total():
            self._now = max(self._accounts.values())  # nobody was kept waiting by what was computed so far
        self._leave(owner)

    def _leave(self, owner: str) -> None:
        """Forget whoever neither waits nor runs and has no more than a newcomer would begin with."""
        if owner in self._lines and not self._lines[owner]:
            del self._lines[owner]
        for name in [name for name, account in self._accounts.items() if account <= self._now]:
            if name not in self._lines and not self._running[name]:
                del self._accounts[name], self._running[name]
