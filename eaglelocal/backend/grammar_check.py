"""Compile grammars in a separate process, to see whether it can be done. Runs inside a LimitedProcess.

llguidance recurses and searches in native code: a schema of a hundred bytes can take a minute or gigabytes, a large one
can overflow the stack. The cost depends on the grammar, hardly on the vocabulary, so the vocabulary here consists of
single bytes, and the special tokens that grammars name. A large grammar is compiled in a fork: only large ones overflow
the stack, and replacing the process takes much longer than a fork. Imports only llguidance, not llama.cpp.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Never

if TYPE_CHECKING:  # imported where it is used: a start does not wait for it
    from llguidance import LLMatcher, LLTokenizer

OPENER = f"{__name__}:open_check"
MIN_FORK_CHARS = 8192
CPU_S = 1.0  # of CPU time, for one grammar
STACK_BYTES = 2 * 1024 * 1024  # the threads that compile later have more (engine/input_queue.py)
NO_ANSWER = "no answer"
NOTHING_FITS = "NoExtension"  # llguidance's words for it
_NUM_BYTES = 256
_RAISED, _NO_MEMORY = 1, 2  # exit statuses of a fork


def open_check(num_tokens: int, special: Mapping[int, bytes], ends: tuple[int, ...]) -> Callable[[str], str | int]:
    """Return the check over a vocabulary of this size: it gives `find_problem`, or the signal that killed a fork.

    special  the tokens that a grammar may name, with their texts
    ends     the tokens that end an answer
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    tokenizer = LLTokenizer(TokenizerWrapper(_ByteVocabulary(num_tokens, special, ends)))
    threading.stack_size(STACK_BYTES)

    def check(grammar: str) -> str | int:
        def compile_in_thread() -> str:
            return _run_in_thread(lambda: find_problem(grammar, tokenizer))

        # Only Linux limits a fork's memory, through the inherited limit.
        is_forked = len(grammar) >= MIN_FORK_CHARS and sys.platform == "linux"
        return _run_in_fork(compile_in_thread) if is_forked else compile_in_thread()

    return check


def find_problem(grammar: str, tokenizer: LLTokenizer) -> str:
    """Return llguidance's error, NO_ANSWER if no text matches, or ""."""
    try:
        matcher = compile_grammar(grammar, tokenizer)
    except ValueError as error:
        return str(error)
    return find_start_problem(matcher)


def find_start_problem(matcher: LLMatcher) -> str:
    """Return why an answer cannot begin: llguidance's error, or NO_ANSWER if no text matches; else ""."""
    if not matcher.is_error() and any(matcher.compute_bitmask()) and not matcher.is_error():
        return ""
    reason = str(matcher.get_error())
    return NO_ANSWER if not reason or reason.startswith(NOTHING_FITS) else reason


def compile_grammar(grammar: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Return the grammar's matcher, in the state before an answer. Errors quote no text.

    The limits are below llguidance's own, since an untrusted grammar could take time or memory.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        step_max_items=20_000, max_lexer_states=50_000, max_grammar_size=100_000, verbose_errors=False
    )
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


class _ByteVocabulary:
    """A vocabulary for llguidance: the model's own ids, followed by a token for each byte."""

    bos_token_id = None

    def __init__(self, num_tokens: int, special: Mapping[int, bytes], ends: tuple[int, ...]) -> None:
        self.eos_token_id = ends[0]
        self.special_token_ids = sorted({*special, *ends})
        own = [special.get(token, b"") for token in range(num_tokens)]
        self.tokens = [*own, *(bytes([byte]) for byte in range(_NUM_BYTES))]
        self._first_byte = num_tokens

    def __call__(self, text: bytes | str) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        return [self._first_byte + byte for byte in raw]


def _run_in_fork(call: Callable[[], str]) -> str | int:
    """Run `call` in a fork; return its text, or the signal that killed it. Raises RuntimeError, MemoryError."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _run_forked(call, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        output = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    if (code := os.waitstatus_to_exitcode(status)) == _NO_MEMORY:
        raise MemoryError
    if code:
        raise RuntimeError(output.decode())
    return output.decode()


def _run_forked(call: Callable[[], str], writing: int) -> Never:
    """Write the result of `call`, or its error, and exit with a status. SIGPROF kills it after CPU_S."""
    status = _RAISED
    try:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # works even if the parent is gone
        try:
            output, status = call(), 0
        except MemoryError:
            output, status = "", _NO_MEMORY
        except BaseException as error:
            output = f"{type(error).__name__}: {error}"
        with open(writing, "wb") as pipe:
            pipe.write(output.encode(errors="replace"))
    finally:
        os._exit(status)


def _run_in_thread(call: Callable[[], str]) -> str:
    """Run `call` in a thread with the small stack, and return its text."""
    outcome: list[str | BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # a Rust panic is not an Exception
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    (found,) = outcome
    if isinstance(found, MemoryError):
        raise found
    if isinstance(found, BaseException):
        raise RuntimeError(f"{type(found).__name__}: {found}") from found
    return found
