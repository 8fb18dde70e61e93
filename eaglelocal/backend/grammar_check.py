"""Compiles grammars in a process of its own, to see that it can be done: opened there by a LimitedProcess.

llguidance recurses and searches in native code: a schema of a hundred bytes can take a minute or gigabytes, one of a
hundred kilobytes ends the process. What it costs depends on the grammar, hardly on the vocabulary, so the vocabulary
here is single bytes, and the special tokens that grammars name. A large grammar is compiled in a fork of the process:
those that overflow the stack are large, and a fresh process takes thirty times as long as a fork. Imports llguidance
alone, no llama.cpp.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Never

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

OPENER = f"{__name__}:open_check"
MIN_FORK_CHARS = 8192
CPU_S = 1.0  # of the processor, for one grammar
STACK_BYTES = 2 * 1024 * 1024  # the threads that compile later have several times as much (engine/input_queue.py)
NO_ANSWER = "no answer"
_NUM_BYTES = 256
_RAISED, _NO_MEMORY = 1, 2  # exit statuses of a fork


def parser_limits() -> LLParserLimits:
    """Lower than llguidance's own where a grammar from anyone could take time or memory; errors quote no text."""
    return LLParserLimits(
        step_max_items=20_000, max_lexer_states=50_000, max_grammar_size=100_000, verbose_errors=False
    )


def open_check(num_tokens: int, special: Mapping[int, bytes], ends: tuple[int, ...]) -> Callable[[str], str | int]:
    """Return the check over a vocabulary of this size: what `problem_of` says, or the signal that ended a fork.

    special  the tokens that a grammar may name, with their texts
    ends     the tokens that end an answer
    """
    tokenizer = LLTokenizer(TokenizerWrapper(_ByteVocabulary(num_tokens, special, ends)))
    threading.stack_size(STACK_BYTES)

    def check(grammar: str) -> str | int:
        def compile_it() -> str:
            return _in_thread(lambda: problem_of(grammar, tokenizer))

        # Linux alone bounds a fork's memory, by the limit that it inherits.
        return _in_fork(compile_it) if len(grammar) >= MIN_FORK_CHARS and sys.platform == "linux" else compile_it()

    return check


def problem_of(grammar: str, tokenizer: LLTokenizer) -> str:
    """Return what llguidance objects to, NO_ANSWER where no text fits, or nothing."""
    try:
        matcher = compiled(grammar, tokenizer)
    except ValueError as error:
        return str(error)
    if matcher.is_error():
        return str(matcher.get_error())
    return "" if any(matcher.compute_bitmask()) else str(matcher.get_error()) or NO_ANSWER


def compiled(grammar: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Return its matcher, at the beginning of an answer."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())


class _ByteVocabulary:
    """Implements what llguidance wants of a vocabulary: the model's own ids, and behind them a token for each byte."""

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


def _in_fork(call: Callable[[], str]) -> str | int:
    """Return its text, or the number of the signal that ended it. Raises RuntimeError, MemoryError."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _run_forked(call, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    if (code := os.waitstatus_to_exitcode(status)) == _NO_MEMORY:
        raise MemoryError
    if code:
        raise RuntimeError(said.decode())
    return said.decode()


def _run_forked(call: Callable[[], str], writing: int) -> Never:
    """Write what it returns, or what it raised, and end with a status. Longer than CPU_S: SIGPROF ends it."""
    status = _RAISED
    try:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # also where the process that forked is gone
        try:
            said, status = call(), 0
        except MemoryError:
            said, status = "", _NO_MEMORY
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        with open(writing, "wb") as pipe:
            pipe.write(said.encode(errors="replace"))
    finally:
        os._exit(status)


def _in_thread(call: Callable[[], str]) -> str:
    """Run it on the small stack."""
    outcome: list[str | BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # a panic of Rust's is no Exception
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
