"""Find the request that crashes the engine process, and refuse it for a while.

Suspects are the requests that had begun when the process crashed: those being read, and those with a slot, because a
step serves all of these. A request is identified by a digest of its owner and content, so that it is recognized when a
client sends it again. Company proves nothing, because whoever crashes the engine can send something else each time:

- A request that alone had begun at two crashes is refused.
- One that had begun at two crashes, in company, runs alone from then on (`must_wait`), for as long as a crash takes.
- A request that finishes is cleared.
- One that had begun at no more than half of the crashes since its first one is never refused: something else crashes
  the engine.

So no request is refused for another's crash. Suspects are few, and forgotten after some minutes. Not thread-safe: the
owner holds a lock.
"""

from __future__ import annotations

import hashlib
import marshal
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest, ChatRequest
from eaglelocal.errors import EagleLocalError, RequestError

MAX_SUSPECTS = 512
MAX_CRASHES = 2
FORGET_S = 600.0
DRAIN_S = 30.0  # how long a suspect, and whatever came after it, waits for the running answers to end
TRIAL_S = 5.0  # a suspect that has run this long gets company; doubled after each further crash
MAX_TRIAL_S = 60.0

Digest = bytes


@dataclass(slots=True)
class _Suspect:
    first_crash: int  # number of the crash at which it first had begun
    num_crashes: int = 0  # crashes at which it had begun
    num_alone: int = 0  # crashes at which nothing else had
    seen_at_s: float = 0.0
    crash: str = ""  # set once it is refused: what happened


class CrashSuspects:
    """The suspects of one engine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_crashes = 0
        self._suspects: OrderedDict[Digest, _Suspect] = OrderedDict()  # ordered by the last crash, latest last

    def __bool__(self) -> bool:
        return bool(self._suspects)

    def find_refusal(self, digest: Digest) -> RequestError | None:
        """Return the error to refuse a request with; None if it is admitted."""
        self._forget_old()
        suspect = self._suspects.get(digest)
        if suspect is None or not suspect.crash:
            return None
        return _refusal(suspect.crash, FORGET_S - (self._clock() - suspect.seen_at_s))

    def must_wait(self, digest: Digest, waited_s: float, running: Collection[tuple[Digest, float]]) -> bool:
        """Return whether a request must wait: a suspect for the others, all others for a suspect that runs alone.

        waited_s  how long it has waited for them
        running   digests and start times (monotonic, s)
        """
        if len(running) == 1:
            ((other, since),) = running
            if self._clock() - since < self._trial_s(other):
                return True
        return self._is_repeated(digest) and bool(running) and waited_s < DRAIN_S

    def record_crash(self, begun: Iterable[Digest], error: EagleLocalError) -> Digest | None:
        """Suspect the requests that had begun; return the digest refused from now on, None if none is found."""
        self._forget_old()
        self._num_crashes += 1
        digests = set(begun)
        is_alone = len(digests) == 1
        for digest in digests:
            suspect = self._suspects.setdefault(digest, _Suspect(self._num_crashes))
            suspect.num_crashes += 1
            suspect.num_alone += is_alone
            suspect.seen_at_s = self._clock()
            self._suspects.move_to_end(digest)
        while len(self._suspects) > MAX_SUSPECTS:
            self._suspects.popitem(last=False)
        if not (is_alone and self._is_guilty(suspect)):
            return None
        suspect.crash = error.message.partition(":")[0]
        return digest

    def clear(self, digest: Digest) -> None:
        """Clear a request that has ended normally."""
        self._suspects.pop(digest, None)

    def _is_guilty(self, suspect: _Suspect) -> bool:
        num_without = self._num_crashes - suspect.first_crash + 1 - suspect.num_crashes
        return suspect.num_alone >= MAX_CRASHES and num_without < suspect.num_crashes

    def _trial_s(self, digest: Digest) -> float:
        """Return how many seconds a request runs before it gets company; 0 if it is not a suspect."""
        if not self._is_repeated(digest):
            return 0.0
        return min(TRIAL_S * 2.0 ** (self._suspects[digest].num_crashes - MAX_CRASHES), MAX_TRIAL_S)

    def _is_repeated(self, digest: Digest) -> bool:
        suspect = self._suspects.get(digest)
        return suspect is not None and suspect.num_crashes >= MAX_CRASHES

    def _forget_old(self) -> None:
        oldest = self._clock() - FORGET_S
        while self._suspects and next(iter(self._suspects.values())).seen_at_s < oldest:
            self._suspects.popitem(last=False)


def digest_request(request: AnyRequest) -> Digest:
    """Return a digest of a request's owner and content: all but id and seed (choices differ only in their seeds)."""
    request = replace(request, id="")
    if isinstance(request, ChatRequest) and request.params.seed is not None:
        request = replace(request, params=replace(request.params, seed=None))
    # version 0: equal values give equal bytes, because it refers to no value that it has written before
    return hashlib.blake2b(marshal.dumps(_make_plain(request), 0), digest_size=16).digest()


def _make_plain(value: object) -> Any:
    """Return a value of `core.request` made of tuples, texts and numbers, which marshal can write.

    Token ids, perhaps a million, stay as is. A value of any other type is represented by its `repr`.
    """
    if is_dataclass(value):
        return type(value).__name__, *(_make_plain(getattr(value, each.name)) for each in fields(value))
    match value:
        case tuple() | list():
            return tuple(value) if {int, float}.issuperset(map(type, value)) else tuple(map(_make_plain, value))
        case set() | frozenset():
            return tuple(sorted(map(repr, value)))
        case None | bool() | int() | float() | str() | bytes() if not isinstance(value, Enum):
            return value
        case _:
            return repr(value)


def _refusal(crash: str, left_s: float) -> RequestError:
    return RequestError(
        f"this request is refused: the engine crashed {MAX_CRASHES} times while it alone was being answered ({crash})",
        hint=f"change the request; it is admitted again in {math.ceil(left_s / 60)} min",
        code="request_crashes_engine",
    )
