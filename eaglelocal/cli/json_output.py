"""Messages as JSON records, one a line, for `serve --log json`: warnings, progress and errors, not only requests.

Whether records are wanted is also decided for a command line or settings that are wrong, so that their error is one.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TextIO, cast

from eaglelocal import locations
from eaglelocal.cli.output import Output, format_json, standard_output, write_or_ignore
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.settings import peek_setting

WARNING = "warning: "  # at the beginning of such messages


def time_fields(at: float) -> dict[str, object]:
    """Return a Unix time as a record has it: in seconds, and as ISO 8601 with the offset of this machine's zone."""
    return {
        "time": round(at, 3),
        "timestamp": datetime.fromtimestamp(round(at, 3)).astimezone().isoformat("T", "milliseconds"),
    }


class RecordStream:
    """A stream for cli/output.py, with the methods that it uses: each line becomes a record. Safe from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._incomplete = ""  # the beginning of an incomplete line

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._incomplete = (self._incomplete + text).split("\n")
        for line in filter(str.strip, lines):
            level = "warning" if line.startswith(WARNING) else "info"
            self.write_record({"level": level, "message": line.removeprefix(WARNING)})
        return len(text)

    def write_record(self, record: Mapping[str, object]) -> None:
        entry = {**time_fields(time.time()), **record}
        write_or_ignore(self._stream, format_json(entry) + "\n")

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        """Return False: a progress bar would not be a record."""
        return False

    def fileno(self) -> int:
        return self._stream.fileno()


class JsonOutput(Output):
    """The output of a command whose stderr is read by programs: every line of it is a JSON object."""

    def __init__(self, stderr: TextIO) -> None:
        self._records = RecordStream(stderr)
        super().__init__(stdout=sys.stdout, stderr=cast(TextIO, self._records), environ={"NO_COLOR": "1"})

    def record(self, record: Mapping[str, object]) -> None:
        """Write a record; the present time is added unless it has one."""
        self._records.write_record(record)

    def error(self, error: EagleLocalError, *, traceback: str = "") -> None:
        fields = {"message": error.message, "hint": error.hint, "report": error.report, "traceback": traceback}
        self.record({"level": "error", **{name: text for name, text in fields.items() if text}})


def error_output(arguments: Sequence[str]) -> Output:
    """Return the output for the error of a command line that may be wrong: of records, if it asks for them."""
    return JsonOutput(sys.stderr) if wants_records(arguments) else standard_output()


def wants_records(arguments: Sequence[str]) -> bool:
    """Return whether a command line is `serve` with a log of records, by flag, environment or config file."""
    if "serve" not in arguments[:1]:
        return False
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    pairs = zip(flags, [*flags[1:], ""], strict=True)
    given = [word.partition("=")[2] or after for word, after in pairs if word.partition("=")[0] == "--log"]
    if given:
        return given[-1] == "json"
    try:
        return peek_setting("log", os.environ, locations.config_file()) == "json"
    except UsageError:  # there is no home folder, which may be what is to be said
        return False
