"""Grammars that end the process that compiles them end a fork of it; the check itself goes on."""

from __future__ import annotations

import json
import signal
import sys

import pytest
from llguidance import LLMatcher

from eaglelocal.backend.grammar_check import MIN_FORK_CHARS, NO_ANSWER, OPENER
from eaglelocal.processes.limited_process import LimitedProcess, ProcessLimits

LIMITS = ProcessLimits(cpu_s=5.0, memory_bytes=512 * 1024 * 1024)
FILLER = {f"name_{i}": {"type": "integer"} for i in range(MIN_FORK_CHARS // 30)}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are made on Linux")


def chain(length: int) -> str:
    definitions = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(length)}
    return grammar({"$defs": {**definitions, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"})


def grammar(schema: object) -> str:
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema)))


@pytest.fixture
def check() -> LimitedProcess:
    return LimitedProcess(OPENER, 100, {2: b"<|end|>"}, (2,), limits=LIMITS)


def test_a_grammar_that_overflows_the_stack_ends_a_fork(check: LimitedProcess) -> None:
    check.open()
    pid = check.pid
    assert check.call(chain(1500)) == signal.SIGSEGV
    assert check.call(grammar({"type": "integer"})) == ""
    assert check.pid == pid
    check.close()


def test_one_that_takes_too_long_ends_a_fork(check: LimitedProcess) -> None:
    slow = grammar({"properties": {**FILLER, "n": {"type": "integer", "multipleOf": 999_983}}})
    assert check.call(slow) == signal.SIGPROF
    check.close()


def test_large_grammars_are_handled_as_small_ones_are(check: LimitedProcess) -> None:
    assert check.call(grammar({"properties": FILLER})) == ""
    assert check.call(grammar({"properties": FILLER, "allOf": [False]})) in (
        NO_ANSWER,
        "Unsatisfiable schema: schema is false",
    )
    wrong = 'start: "' + "a" * MIN_FORK_CHARS + '" missing'
    assert "missing" in str(check.call(wrong))
    check.close()
