"""Notice fields of a request that look like misspelled ones, because unknown fields are ignored.

They are no error: clients send many fields of other servers. The response gets a warning in a header, and so does the
line of the request in the log.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from eaglelocal.server.request_record import current_record

SIMILAR = 0.82  # of difflib's ratio: max_token and max_tokens are, user_id and user are not
FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_]{2,39}")  # what may stand in a header
MAX_UNKNOWN = 32  # fields that are looked at
MAX_WARNINGS = 4


def note_misspelled(given: Mapping[object, object], known: Iterable[str]) -> None:
    """Add a warning to the request's record for each unknown field whose name is close to one that is not set."""
    names = set(known)
    free = names - given.keys()
    unknown = [name for name in given if name not in names]
    warnings = current_record().warnings
    for name in unknown[:MAX_UNKNOWN]:
        if not isinstance(name, str) or not FIELD.fullmatch(name) or len(warnings) >= MAX_WARNINGS:
            continue
        if near := difflib.get_close_matches(name.lower(), free, n=1, cutoff=SIMILAR):
            warnings.append(f"{name} is not a field and was ignored; did you mean {near[0]}?")
