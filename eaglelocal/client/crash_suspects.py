"""Record which requests were in flight when the engine process crashed, and refuse one that crashed it twice.

A request is identified by a digest of its content, not by its id, so that it is recognized when a client sends it
again. Everything in flight at a crash is a suspect, because a step serves all requests. These rules find the culprit:

- A request that alone was in flight at two crashes is refused.
- A request that finishes is cleared.
- If several were in flight at two crashes, they run one at a time from then on (`must_wait`). Then each crash has
  one of them in flight whether or not it is to blame, so it takes two such crashes to refuse it.
- A request that was in flight at no more than half of the crashes since its first one is never refused: something
  else crashes the engine.

Suspects are few, and forgotten after an hour. Not thread-safe: the owner holds a lock.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from typing import cast

from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest, ChatRequest
from eaglelocal.errors import EagleLocalError, RequestError

MAX_SUSPECTS = 512
MAX_CRASHES = 2
FORGET_S = 3600.0
TRIAL_S = 5.0  # a suspect that has run this long no longer blocks the next one; doubled after each further crash
MAX_TRIAL_S = 60.0

Digest = bytes


@dataclass(slots=True)
class _Suspect:
    first_crash: int  # number of the crash at which it was first in flight
    num_crashes: int = 0  # crashes at which it was in flight
    seen_at_s: float = 0.0
    is_on_trial: bool = False  # it runs without other suspects
    num_trial_crashes: int = 0
    refusal: RequestError | None = None


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
        return None if suspect is None else suspect.refusal

    def must_wait(self, digest: Digest, running: Iterable[tuple[Digest, float]]) -> bool:
        """Return whether a request must wait for another suspect. `running`: digests and start times (monotonic, s)."""
        if not self._is_repeated(digest):
            return False
        now = self._clock()
        return any(now - since < self._trial_s(other) for other, since in running)

    def record_crash(self, in_flight: Iterable[Digest], error: EagleLocalError) -> Digest | None:
        """Suspect the requests in flight; return the digest refused from now on, None if none is found."""
        self._forget_old()
        self._num_crashes += 1
        digests = set(in_flight)
        for digest in digests:
            suspect = self._suspects.setdefault(digest, _Suspect(self._num_crashes))
            suspect.num_crashes += 1
            suspect.seen_at_s = self._clock()
            self._suspects.move_to_end(digest)
        repeated = [digest for digest in digests if self._is_repeated(digest)]
        guilty = repeated[0] if len(repeated) == 1 and self._is_guilty(self._suspects[repeated[0]]) else None
        if guilty is not None:
            self._suspects[guilty].refusal = _refusal(error)
        elif len(repeated) > 1:
            for digest in repeated:
                self._suspects[digest].is_on_trial = True
        while len(self._suspects) > MAX_SUSPECTS:
            self._suspects.popitem(last=False)
        return guilty

    def clear(self, digest: Digest) -> None:
        """Clear a request that has ended normally."""
        if self._suspects:
            self._suspects.pop(digest, None)

    def _is_guilty(self, suspect: _Suspect) -> bool:
        """Return whether to refuse the only suspect in flight at this crash and at an earlier one; count its trial."""
        suspect.num_trial_crashes += suspect.is_on_trial
        num_without = self._num_crashes - suspect.first_crash + 1 - suspect.num_crashes
        is_tried = not suspect.is_on_trial or suspect.num_trial_crashes >= MAX_CRASHES
        return is_tried and num_without < suspect.num_crashes

    def _trial_s(self, digest: Digest) -> float:
        """Return how long a request runs before the next suspect may start, in seconds; 0 if it is no suspect."""
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
    """Return a digest of the content of a request: all but id, owner and seed (choices differ only in their seeds)."""
    if isinstance(request, ChatRequest) and request.params.seed is not None:
        request = replace(request, params=replace(request.params, seed=None))
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, request, left_out=("id", "owner"))
    return digest.digest()


def _feed(digest: hashlib.blake2b, value: object, left_out: tuple[str, ...] = ()) -> None:
    """Feed a value of `core.request` with its length or an end mark, so that no two values feed the same bytes."""
    if is_dataclass(value):
        digest.update(type(value).__name__.encode() + b"(")
        for each in fields(value):
            if each.name not in left_out:
                _feed(digest, getattr(value, each.name))
        digest.update(b")")
    elif isinstance(value, (str, bytes)):
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        digest.update(b"%d:" % len(data))
        digest.update(data)
    elif isinstance(value, frozenset):
        _feed(digest, repr(sorted(value)))
    elif isinstance(value, tuple) and value and isinstance(value[0], (int, float)):
        _feed_numbers(digest, value)
    elif isinstance(value, tuple):
        digest.update(b"[%d," % len(value))
        for each in value:
            _feed(digest, each)
    else:
        _feed(digest, repr(value))


def _feed_numbers(digest: hashlib.blake2b, values: tuple[object, ...]) -> None:
    """Feed token ids, perhaps a million, as one array; a tuple with other items after its first number by its repr."""
    try:
        data = array("q", cast("tuple[int, ...]", values)).tobytes()
    except (TypeError, OverflowError):
        _feed(digest, repr(values))
    else:
        digest.update(b"q%d:" % len(data))
        digest.update(data)


def _refusal(error: EagleLocalError) -> RequestError:
    what = error.message.partition(":")[0]
    return RequestError(
        f"this request is refused: the engine crashed {MAX_CRASHES} times while it was being answered ({what})",
        hint=f"change the request; it is admitted again {FORGET_S / 3600:.0f} h after the last crash",
        code="request_crashes_engine",
    )
