"""Requests on their way to the scheduler: read once, in order, by parallel executors, dropped if no client waits."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace

import pytest

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.request import ChatRequest, EmbedRequest, Image, Infill, Message, Mixed, Ranking
from eaglelocal.core.tools import Tool, ToolCall, ToolChoice, ToolUse
from eaglelocal.engine.input_queue import INLINE, STACK_BYTES, InputExecutors, InputQueue, Prepared, start_executors
from eaglelocal.engine.prompt_tokens import (
    CONSTRAINT_EXECUTOR,
    LONG_EXECUTOR,
    MAX_CACHED_PROMPTS,
    MAX_QUICK,
    QUICK_CHARS,
    QUICK_S,
    SHORT_CHARS,
    ExecutorChooser,
    PromptCache,
    PromptTokens,
    choose_embed_executor,
    count_chars,
    is_read_quickly,
    make_prompt_key,
    may_take_long,
)
from eaglelocal.errors import EngineError, RequestError

LONG_WAIT_S = 60.0


def asked(name: str, text: str = "hi") -> ChatRequest:
    return ChatRequest(id=name, text=text)


def queue_of(read: Callable[[ChatRequest], str], *executors: Executor) -> InputQueue[ChatRequest, str]:
    return InputQueue(
        read,
        InputExecutors(executors) if executors else INLINE,
        choose_executor=lambda request, num: int(request.id[0]) % num,
    )


def taken(queue: InputQueue[ChatRequest, str]) -> list[Prepared[ChatRequest, str]]:
    """All that is still being read."""
    found = queue.take()
    while len(queue):
        queue.wait(LONG_WAIT_S)
        found += queue.take()
    return found


def text_of(request: ChatRequest) -> str:
    assert request.text is not None
    return request.text.upper()


def test_what_was_read_is_taken_in_order_and_once() -> None:
    queue = queue_of(text_of)
    for name in "012":
        queue.submit(asked(name, f"text {name}"))
    assert "1" in queue and len(queue) == 3
    assert [prepared.result for prepared in queue.take()] == ["TEXT 0", "TEXT 1", "TEXT 2"]
    assert queue.take() == [] and "1" not in queue and len(queue) == 0


def test_a_slow_executor_delays_no_other() -> None:
    may_go_on = threading.Event()

    def read(request: ChatRequest) -> str:
        if request.id.startswith("1"):
            assert may_go_on.wait(LONG_WAIT_S)
        return request.id

    queue = queue_of(read, ThreadPoolExecutor(1), ThreadPoolExecutor(1))
    for name in ("1 slow", "0 first", "0 second"):
        queue.submit(asked(name))
    found: list[str] = []
    while len(found) < 2:
        queue.wait(LONG_WAIT_S)
        found += [prepared.request.id for prepared in queue.take()]
    assert found == ["0 first", "0 second"] and "1 slow" in queue
    may_go_on.set()
    assert [prepared.request.id for prepared in taken(queue)] == ["1 slow"]
    queue.close()


def test_at_once_means_in_this_thread_but_never_before_another() -> None:
    may_go_on, threads = threading.Event(), dict[str, threading.Thread]()

    def read(request: ChatRequest) -> str:
        threads[request.id] = threading.current_thread()
        assert request.id != "1" or may_go_on.wait(LONG_WAIT_S)
        return request.id

    queue = queue_of(read, ThreadPoolExecutor(1))
    queue.submit(asked("0"), at_once=True)
    queue.submit(asked("3"), at_once=True)  # the other one has been read, and waits to be taken
    queue.submit(asked("1"))
    queue.submit(asked("2"), at_once=True)
    may_go_on.set()
    assert [prepared.request.id for prepared in taken(queue)] == ["0", "3", "1", "2"]
    assert [threads[name] is threading.current_thread() for name in "0312"] == [True, True, False, False]
    queue.close()


@pytest.mark.parametrize(
    ("request_", "is_quick"),
    [
        (asked("0"), True),
        (ChatRequest(id="0", tokens=(1, 2)), True),
        (asked("0", "a" * QUICK_CHARS), True),
        (asked("0", "a" * (QUICK_CHARS + 1)), False),
        (ChatRequest(id="0", messages=(Message("user", "hi"),)), False),  # the template may not end
        (ChatRequest(id="0", text="a", constraint=Constraint(Syntax.REGEX, "a")), False),
    ],
)
def test_a_request_is_read_at_once_only_if_it_is_short_and_has_neither_template_nor_grammar(
    request_: ChatRequest, is_quick: bool
) -> None:
    assert is_read_quickly(request_) is is_quick


def test_what_was_withdrawn_is_not_reported_and_its_id_is_free() -> None:
    may_go_on = threading.Event()

    def read(request: ChatRequest) -> str:
        assert may_go_on.wait(LONG_WAIT_S)
        return text_of(request)

    queue = queue_of(read, ThreadPoolExecutor(1))
    queue.submit(asked("0", "old"))  # is being read
    queue.submit(asked("1", "waits"))
    assert queue.withdraw("0") and queue.withdraw("1") and not queue.withdraw("1") and not queue.withdraw("2")
    queue.submit(asked("0", "new"))
    may_go_on.set()
    assert [prepared.result for prepared in taken(queue)] == ["NEW"]
    queue.close()


def test_a_fault_is_the_request_s_own(capfd: pytest.CaptureFixture[str]) -> None:
    def read(request: ChatRequest) -> str:
        if request.id == "1":
            raise RequestError("too long", parameter="prompt")
        if request.id == "2":
            raise ZeroDivisionError("a bug")
        return "fine"

    queue = queue_of(read)
    for name in "012":
        queue.submit(asked(name))
    fine, refused, failed = queue.take()
    assert (fine.result, fine.error) == ("fine", None)
    assert isinstance(refused.error, RequestError) and refused.error.parameter == "prompt"
    assert isinstance(failed.error, EngineError) and "ZeroDivisionError: a bug" in failed.error.message
    assert "report" in failed.error.hint and "Traceback" in capfd.readouterr().err


def test_a_panic_is_the_request_s_own(capfd: pytest.CaptureFixture[str]) -> None:
    class Panic(BaseException):
        """As Rust's panics come."""

    def read(request: ChatRequest) -> str:
        raise Panic("at line 1")

    queue = queue_of(read, ThreadPoolExecutor(1))
    queue.submit(asked("0"))
    (failed,) = taken(queue)
    assert isinstance(failed.error, EngineError) and "Panic: at line 1" in failed.error.message
    queue.close()


def test_closing_waits_for_what_is_being_read() -> None:
    begun, ended = threading.Event(), threading.Event()

    def read(request: ChatRequest) -> str:
        begun.set()
        threading.Event().wait(0.05)
        ended.set()
        return ""

    queue = queue_of(read, ThreadPoolExecutor(1))
    for name in ("0", "1", "2"):
        queue.submit(asked(name))
    assert begun.wait(LONG_WAIT_S)
    queue.close()
    assert ended.is_set()
    queue.take()


def test_the_executors_are_threads_of_their_own() -> None:
    before_bytes = threading.stack_size()
    executors = start_executors().executors
    names = [executor.submit(lambda: threading.current_thread().name).result() for executor in executors]
    assert len(set(names)) == len(executors) == 5
    assert threading.stack_size() == before_bytes != STACK_BYTES
    for executor in executors:
        executor.shutdown()


LONG = "x" * (SHORT_CHARS + 1)
SCHEMA = Constraint(Syntax.JSON_SCHEMA, "{}")


@pytest.mark.parametrize(
    ("request_", "is_long"),
    [
        (asked("a"), False),
        (asked("a", LONG), True),
        (ChatRequest(id="a", messages=(Message("user", "hi"),)), False),
        (ChatRequest(id="a", messages=(Message("user", "hi"), Message("user", LONG))), True),
        (ChatRequest(id="a", messages=(Message("assistant", "", reasoning=LONG),)), True),
        (ChatRequest(id="a", messages=(Message("assistant", "", tool_calls=(ToolCall("1", "f", LONG),)),)), True),
        (ChatRequest(id="a", messages=(Message("user", "", images=(Image(b"x"),)),)), True),
        (ChatRequest(id="a", mixed=Mixed((LONG, 3))), True),
        (ChatRequest(id="a", infill=Infill((LONG,), ())), True),
        (ChatRequest(id="a", infill=Infill((), (), snippets=(("a.py", LONG),))), True),
        (ChatRequest(id="a", text="a", suffix=LONG), True),
        (ChatRequest(id="a", tokens=(1,) * (SHORT_CHARS + 1)), True),
        (ChatRequest(id="a", text="a", constraint=SCHEMA), True),
        (ChatRequest(id="a", text="a", tools=(Tool("f", LONG),)), True),
        (ChatRequest(id="a", text="a", tools=(Tool("f", parameters="{}"),)), False),
        (ChatRequest(id="a", text="a", tools=(Tool("f", is_strict=True),)), True),
        (ChatRequest(id="a", text="a", tool_choice=ToolChoice(use=ToolUse.REQUIRED)), True),
        (ChatRequest(id="a", text="a", template_values=(("x", f'"{LONG}"'),)), True),
    ],
)
def test_what_may_take_long_is_read_apart(request_: ChatRequest, is_long: bool) -> None:
    assert may_take_long(request_) == is_long
    assert (ExecutorChooser().choose(request_, 3) > 0) == is_long
    assert ExecutorChooser().choose(request_, 1) == 0


def test_new_schemas_only_wait_for_each_other() -> None:
    chooser = ExecutorChooser()
    bound = ChatRequest(id="a", text="a", constraint=SCHEMA)
    assert chooser.choose(bound, 3) == CONSTRAINT_EXECUTOR
    assert chooser.choose(replace(bound, text=LONG), 3) == chooser.choose(asked("a", LONG), 3) == LONG_EXECUTOR
    chooser.learn(bound, QUICK_S * 2)
    assert chooser.choose(bound, 3) == CONSTRAINT_EXECUTOR
    chooser.learn(bound, QUICK_S / 2)
    assert chooser.choose(replace(bound, id="b", text="another"), 3) == 0
    assert chooser.choose(replace(bound, text=LONG), 3) == LONG_EXECUTOR
    assert chooser.choose(replace(bound, tools=(Tool("f"),)), 3) == CONSTRAINT_EXECUTOR
    for number in range(MAX_QUICK):
        chooser.learn(replace(bound, constraint=Constraint(Syntax.REGEX, f"a{number}")), 0.0)
    assert chooser.choose(bound, 3) == CONSTRAINT_EXECUTOR and len(chooser._quick) == MAX_QUICK


def test_texts_to_embed_are_measured_together() -> None:
    short, long = EmbedRequest(id="a", inputs=("a", (1, 2))), EmbedRequest(id="a", inputs=("x" * SHORT_CHARS, (1,)))
    ranking = EmbedRequest(id="a", inputs=("a",), ranking=Ranking(query=LONG))
    assert [choose_embed_executor(each, 3) > 0 for each in (short, long, ranking)] == [False, True, True]
    assert choose_embed_executor(long, 1) == 0


class CountingPrompts:
    def __init__(self) -> None:
        self.result: list[str] = []

    def __call__(self, request: ChatRequest) -> PromptTokens:
        self.result.append(request.id)
        if count_chars(request) > 2 * SHORT_CHARS:
            raise RequestError("too long")
        return PromptTokens(tuple(map(ord, request.text or "")))


def test_sixteen_answers_to_one_prompt_read_it_once() -> None:
    make = CountingPrompts()
    cache = PromptCache(make)
    prompts = [cache.get(asked(str(i), LONG)) for i in range(16)]
    assert make.result == ["0"] and all(prompt is prompts[0] for prompt in prompts)
    for i in range(16):
        with pytest.raises(RequestError, match="too long"):
            cache.get(asked(f"too long {i}", LONG * 2))
    assert make.result == ["0", "too long 0"]


def test_a_kept_refusal_does_not_keep_its_request_alive() -> None:
    class Text(str):
        """Can be referred to weakly."""

    cache = PromptCache(CountingPrompts())
    texts = [Text(LONG * 2) for _ in range(3)]
    alive = [weakref.ref(text) for text in texts]
    for number in range(3):
        with pytest.raises(RequestError):
            cache.get(ChatRequest(id=str(number), text=texts.pop(0)))
    gc.collect()
    assert [one() is None for one in alive] == [True, True, False]  # the refusal is known by the last one


def test_few_prompts_are_kept_and_short_ones_not_at_all() -> None:
    make = CountingPrompts()
    cache = PromptCache(make)
    for i in range(5):
        cache.get(asked(str(i), f"{LONG}{i}"))
        cache.get(asked(f"short {i}"))
    assert len(cache._prompts) == MAX_CACHED_PROMPTS and len(make.result) == 10


@pytest.mark.parametrize(
    "other",
    [
        {"text": LONG + "y"},
        {"suffix": "y"},
        {"is_counted": True},
        {"tells_prompt": True},
        {"resumes": True},
        {"tools": (Tool("f"),)},
        {"tool_choice": ToolChoice(use=ToolUse.NONE)},
        {"template_values": (("a", "1"),)},
        {"constraint": SCHEMA},
        {"owner": "c"},
    ],
)
def test_prompts_that_may_differ_are_not_the_same(other: dict[str, object]) -> None:
    request = asked("a", LONG)
    assert make_prompt_key(replace(request, **other)) != make_prompt_key(request)  # type: ignore[arg-type]
    assert make_prompt_key(replace(request, id="b")) == make_prompt_key(request)
