"""Files with a chat template that never ends: they load, chats fail with a named error, other requests are answered."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.engine_harness import drive
from doubles.random_models import TargetShape, write_target
from doubles.real_engine import ask, real_engine
from doubles.tiers import some_of

from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import ModelFileError

SHAPE = {"n_embd": 64, "n_layer": 2, "n_ff": 64}
LISTS = "{% set ns=namespace(s=['a']) %}{% for i in range(60) %}{% set ns.s=[ns.s,ns.s] %}{% endfor %}{{ ns.s|string }}"
FOLDED = "{{ 9 ** (9 ** 9) }}"
HONEST = "{% for m in messages %}{{ m.content }}{% endfor %}"
HANG_S = 60.0


def engine_of(tmp_path: Path, template: str) -> Engine:
    return real_engine(write_target(tmp_path / "target.gguf", TargetShape(template=template, **SHAPE)))


@pytest.fixture
def honest(tmp_path: Path) -> Iterator[Engine]:
    engine = engine_of(tmp_path, HONEST)
    yield engine
    engine.close()


def chat(name: str) -> ChatRequest:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    return ChatRequest(id=name, messages=(Message("user", "hi"),), params=params)


def renderer_pid(engine: Engine) -> int:
    pid = engine.input_processor.template.pid
    assert pid is not None
    return pid


def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists() or b") Z " in Path(f"/proc/{pid}/stat").read_bytes()


@pytest.mark.parametrize("template", some_of([LISTS, FOLDED]), ids=["when it runs", "when it is compiled"])
def test_a_hostile_file_loads_and_only_its_chats_fail(tmp_path: Path, template: str) -> None:
    engine = engine_of(tmp_path, template)
    result = drive(engine, [chat("a"), ask("b", range(1, 9), max_tokens=4)])
    failed = result["a"].failed
    assert failed is not None and isinstance(failed.error, ModelFileError)
    assert failed.error.message == "the chat template does not end: it ran for 2 s"
    assert result["b"].failed is None and len(result["b"].tokens) == 4
    assert ("the chat template does not end: it ran for 2 s" in engine.info.notes) is (template == FOLDED)
    engine.close()


def test_its_process_runs_before_the_first_chat_and_ends_with_the_engine(honest: Engine) -> None:
    pid = renderer_pid(honest)
    assert drive(honest, [chat("a")])["a"].failed is None
    assert renderer_pid(honest) == pid
    honest.close()
    assert has_ended(pid)


def test_a_chat_is_answered_after_its_process_was_killed(honest: Engine) -> None:
    assert drive(honest, [chat("first")])["first"].failed is None
    pid = renderer_pid(honest)
    os.kill(pid, signal.SIGKILL)
    ends_at = time.monotonic() + HANG_S
    while not has_ended(pid) and time.monotonic() < ends_at:
        time.sleep(0.01)
    assert drive(honest, [chat("a")])["a"].failed is None
    assert renderer_pid(honest) != pid
