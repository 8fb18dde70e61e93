"""Record how an engine process ended: one line for the log, and a report in the state folder.

A report holds the exit status, what was running and the last lines of stderr. It holds no prompt text: only stderr
lines of known shapes are kept, and only the type of a Python exception, because its message may quote the request.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from eaglelocal import __version__, locations
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.atomic_file import PRIVATE, make_folder, write_atomically
from eaglelocal.core.own_files import list_own
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError
from eaglelocal.worker.exit_reason import ExitReason

MAX_REPORTS = 20
MAX_REPORT_BYTES = 64 * 1024
MAX_LISTED_REQUESTS = 64
MAX_NAMED_REQUESTS = 3  # in the line of the log

_log = logging.getLogger(__name__)

_KNOWN_LINE = re.compile(
    r"\s*(Traceback \(|Fatal Python error: |Current thread 0x|Thread 0x|<no Python frame>|Extension modules: "
    r"|\[New LWP |ggml|llama|gguf|clip|mtmd|CUDA|cuda|hip|ROCm|vk|Vulkan|terminate called |double free|free\(\): "
    r"|malloc|corrupted |munmap_chunk|thread '[^']*' panicked at |/?[\w./+-]+\.(c|cc|cpp|cu|cuh|h|hpp|m|metal):\d+: )"
)
_FRAME_LINE = re.compile(r'\s*File "[^"]*", line \d+ in \w+|\s*File "[^"]*", line \d+, in [\w.<>]+')
_EXCEPTION_LINE = re.compile(r"\s*([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning))(: .*)?$")
# the message that make_engine_error makes of an unexpected error: the part after the type may quote the request
_UNEXPECTED = re.compile(r"(the engine failed(?: on the request| to load)?: \w+): .*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A request that an engine process had not answered when it ended."""

    id: str
    kind: str  # chat, embedding, ranking
    age_s: float
    has_begun: bool  # it was being read or answered
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """An unintended end of an engine process."""

    target: str
    pid: int
    exit_reason: ExitReason
    error: EagleLocalError  # for the requests in flight
    uptime_s: float
    was_loading: bool
    in_flight: tuple[InFlight, ...] = ()

    @property
    def cause(self) -> str:
        """Return the cause in words, without any text of a request."""
        if self.error.message.startswith("the engine process "):  # from the exit status and from stderr
            safe = replace(self.exit_reason, last_lines=tuple(keep_safe_lines(self.exit_reason.last_lines)))
            return safe.error(" while it loaded the model" if self.was_loading else "").message
        return _UNEXPECTED.sub(r"\1", self.error.message)


def format_log_line(crash: Crash, next_step: str, report: Path | None) -> str:
    """Return the log line about a crash; `next_step` says what happens next."""
    where = f"; report: {report}" if report is not None else ""
    what = f"{crash.cause} after {crash.uptime_s:.1f} s, {_count_requests(crash.in_flight)}"
    return f"{crash.target}: {what}; {next_step}{where}"


def write_report(crash: Crash, at: float | None = None) -> Path | None:
    """Write the report, readable by its owner only, and remove the oldest ones. Returns None if writing fails."""
    at = time.time() if at is None else at
    stamp = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime(at))
    folder = locations.crash_reports_dir()
    path = folder / f"{stamp}-{crash.pid}.txt"
    try:
        make_folder(folder, PRIVATE)
        write_atomically(path, report_text(crash, stamp).encode()[:MAX_REPORT_BYTES])
        for old in list_own(folder, "*.txt")[:-MAX_REPORTS]:
            old.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("the crash report %s cannot be written: %s", path, error.strerror or error)
        return None
    return path


def report_text(crash: Crash, stamp: str) -> str:
    lines = [
        f"eaglelocal {__version__}, crash of an engine process",
        f"at        {stamp}",
        f"model     {crash.target}",
        f"process   {crash.pid}, exit status {crash.exit_reason.exit_status}",
        f"cause     {crash.cause}",
        f"lived     {crash.uptime_s:.1f} s, {'while loading' if crash.was_loading else 'loaded'}",
        f"requests  {_count_requests(crash.in_flight)}",
        *(f"          {_describe(each)}" for each in crash.in_flight[:MAX_LISTED_REQUESTS]),
        "",
        "last lines of stderr, without those that may quote a request:",
        *keep_safe_lines(crash.exit_reason.last_lines),
    ]
    return "\n".join(lines) + "\n"


def keep_safe_lines(lines: Sequence[str]) -> list[str]:
    """Keep lines of known shapes, and only the type of an exception; append how many lines were left out.

    ["Traceback (most recent call last):", "ValueError: my secret"] -> ["Traceback (most recent call last):",
    "ValueError"]
    """
    kept: list[str] = []
    num_left_out = 0
    for line in lines:
        if exception := _EXCEPTION_LINE.match(line):
            kept.append(exception[1])
        elif _KNOWN_LINE.match(line):
            kept.append(line)
        elif frame := _FRAME_LINE.match(line):
            kept.append(frame[0])
        else:
            num_left_out += bool(line.strip())
    return [*kept, f"({num_left_out} other lines)"] if num_left_out else kept


def _count_requests(in_flight: Sequence[InFlight]) -> str:
    """Return text such as `with 2 requests being answered (a, b) and 1 request not started (c)`."""
    started = [each.id for each in in_flight if each.has_begun]
    waiting = [each.id for each in in_flight if not each.has_begun]
    groups = ((started, "being answered"), (waiting, "not started"))
    parts = [_name_some(ids, what) for ids, what in groups if ids]
    return f"with {' and '.join(parts)}" if parts else "with no request"


def _name_some(ids: Sequence[str], what: str) -> str:
    more = ["..."] * (len(ids) > MAX_NAMED_REQUESTS)
    named = ", ".join([*ids[:MAX_NAMED_REQUESTS], *more])
    return f"{count_noun(len(ids), 'request')} {what} ({named})"


def _describe(each: InFlight) -> str:
    state = "being answered" if each.has_begun else "not started"
    return f"{each.id}  {each.kind}  {each.owner or '-'}  {state}, {each.age_s:.1f} s old"
