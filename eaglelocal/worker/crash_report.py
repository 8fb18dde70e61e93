"""Record how an engine process ended: one line for the log, and a report in the state folder.

A report holds the exit status, what was running and the last lines of stderr. It holds no prompt text: only stderr
lines of known shapes are kept, and only the type of a Python exception, because its message may quote the request.
"""

from __future__ import annotations

import logging
import re
import signal
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from eaglelocal import __version__, locations
from eaglelocal.core.atomic_file import PRIVATE, make_folder, write_atomically
from eaglelocal.core.byte_sizes import count_noun
from eaglelocal.core.own_files import list_own
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, EngineError

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


# ---- exit reason: the end of an engine process: its own last message, or an error from exit status and last stderr
# lines
#
# Pure functions on plain data. The stderr lines include llama.cpp's own messages; lines that name a failure are
# preferred to the last ones.
_FAILURE_LINE = re.compile(
    r"error|fail|assert|abort|exception|out of memory|unable|cannot|can't|could not|not enough", re.I
)
_TRACE_LINE = re.compile(
    r'^\s|^Traceback |^Fatal Python error|^Current thread 0x|^Thread 0x|^Extension modules: |^ggml_abort|^  File "'
    r"|^libggml|^lib\w+\.so|^\[0x"
)
_FATAL = "Fatal Python error: "  # of faulthandler, then one of:
_FATAL_SIGNALS = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
}
# sent to all processes of a group: Ctrl-C, Ctrl-\, a closed terminal, a service manager; only the parent acts on them
GROUP_SIGNALS = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM})
# sent by people, service managers and the system where memory is short; not by a fault of the process itself
_OUTSIDE_SIGNALS = GROUP_SIGNALS | {signal.SIGKILL}
# llama.cpp aborts when it loses an rpc-server; its transport logs what failed before
_RPC_LINE = re.compile(
    r"Remote RPC server crashed|RPC handshake failed|^(send|recv) failed \(bytes_|Failed to connect to \S+:\d"
)
_NUM_QUOTED = 2
_MAX_QUOTED_CHARS = 300

_HINT_KILLED = (
    "the system kills processes that take too much memory: if nobody stopped it, use a smaller model or --ctx, "
    "then try again"
)
_HINT = "try again; EAGLELOCAL_ENGINE_LOG=1 shows the engine's messages"


@dataclass(frozen=True, slots=True)
class Broken:
    """The process's own last message: it cannot go on. Requests in flight fail, new ones wait for the next process."""

    error: EagleLocalError


@dataclass(frozen=True, slots=True)
class ExitReason:
    """The end of a child process. `kill_reason` is our reason if we killed it."""

    exit_status: int  # as in subprocess: negative for a signal
    last_lines: tuple[str, ...] = ()  # of stderr, oldest first
    kill_reason: str = ""
    rpc: tuple[str, ...] = ()  # addresses of the rpc-servers that it used

    @property
    def first_status(self) -> int:
        """Return the exit status of the first fault.

        faulthandler lists the frames of threads that still run, and may crash over it: an abort would look like a
        crash.
        """
        if self.exit_status >= 0:
            return self.exit_status
        fatal = (line.removeprefix(_FATAL) for line in self.last_lines if line.startswith(_FATAL))
        return -_FATAL_SIGNALS.get(next(fatal, ""), -self.exit_status)

    @property
    def is_from_outside(self) -> bool:
        """Return whether somebody else ended the process, so that nothing it did is the cause."""
        return not self.kill_reason and -self.exit_status in _OUTSIDE_SIGNALS

    @property
    def failure_lines(self) -> tuple[str, ...]:
        """Return the stderr lines that explain the end, oldest first; at most two."""
        lines = [line.strip() for line in self.last_lines if line.strip() and not _TRACE_LINE.match(line)]
        failures = [line for line in lines if _FAILURE_LINE.search(line)]
        if self.exit_status < 0:  # killed by a signal: its other output says nothing about the end
            lines = []
        return tuple((failures or lines)[-_NUM_QUOTED:])

    def error(self, when: str = "") -> EngineError:
        """Return the end as an error; `when` says what the process was doing, such as " while it loaded the model"."""
        if self.kill_reason:
            return EngineError(f"the engine process was killed{when}: {self.kill_reason}", hint=_HINT)
        if self.rpc and any(map(_RPC_LINE.search, self.last_lines)):
            lost = f"the connection to an rpc-server was lost{when}: {', '.join(self.rpc)}"
            return EngineError(lost, hint="start it again there; the engine tries again by itself")
        quoted = "; ".join(self.failure_lines)[-_MAX_QUOTED_CHARS:]
        what = _describe_exit(self.first_status, when) + (f": {quoted}" if quoted else "")
        return EngineError(what, hint=_HINT_KILLED if self.exit_status == -9 else _HINT)


def _describe_exit(exit_status: int, when: str) -> str:
    if exit_status == -9:
        return f"the engine process was killed{when} (signal 9)"
    if exit_status == -signal.SIGABRT:
        return f"the engine process aborted{when} (signal {-exit_status})"
    if exit_status < 0:
        return f"the engine process crashed{when} (signal {-exit_status}, {_signal_name(-exit_status)})"
    return f"the engine process ended{when} (exit status {exit_status})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


# ---- unexpected error: convert an unexpected exception into an error with a message and a hint
LOG_VARIABLE = "EAGLELOCAL_ENGINE_LOG"


def make_engine_error(error: BaseException, what: str) -> EagleLocalError:
    """Return `error` itself if it is an EagleLocalError, else an EngineError that asks for a report.

    The traceback of an unexpected error goes to stderr, which the parent keeps.
    """
    if isinstance(error, EagleLocalError):
        return error
    traceback.print_exception(error)
    return EngineError(
        f"{what}: {type(error).__name__}: {error}",
        hint=f"this is a bug: please report it; {LOG_VARIABLE}=1 shows the traceback",
    )
