"""Images in the engine over scripted models: with any drafter and shared prefix, texts are the plain ones."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from doubles.drafters import NoDrafter
from doubles.engine_harness import AnswerResult, EngineHarness, drive
from doubles.property_tests import examples
from doubles.scripted_context import LetterVocabulary, ScriptedContext, ScriptedHead, Table
from doubles.scripted_images import BROKEN, ScriptedReader, image_file
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.events import Started
from eaglelocal.core.image import MAX_REQUEST_PIXELS, ImageRows
from eaglelocal.core.ports import TextPart
from eaglelocal.core.request import AUTO_SPEC, OFF, ChatRequest, Image, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.engine.input_queue import start_executors

TABLE = Table(seed=1)
VOCABULARY = LetterVocabulary(TABLE.n_vocab)
READER = ScriptedReader(VOCABULARY)
N_CTX = 400
CAT, DOG, WIDE, SLICED = (
    image_file("cat", 6),
    image_file("dog", 6),
    image_file("wide", 30, 5),
    image_file("sliced", 4, num_slices=3),
)
KINDS = ("none", "eagle3", "model", "ngram", "both")


def drafters_of(kind: str) -> tuple[Drafter, ...]:
    head = Eagle3(ScriptedHead(TABLE, n_ctx=N_CTX), (0,))
    found: dict[str, tuple[Drafter, ...]] = {
        "none": (NoDrafter(),),
        "eagle3": (head,),
        "model": (DraftModel(ScriptedContext(TABLE, n_ctx=N_CTX, gives_features=False)),),
        "ngram": (Ngram(N_CTX),),
        "both": (Ngram(N_CTX), head),
    }
    return found[kind]


def harness_of(kind: str = "none", **changes: object) -> EngineHarness:
    given: dict[str, object] = {"n_ctx": N_CTX, "image_reader": READER, "vocabulary": VOCABULARY} | changes
    return EngineHarness(TABLE, drafters_of(kind), **given)  # type: ignore[arg-type]


def message(content: str, *images: tuple[int, bytes]) -> Message:
    return Message("user", content, images=tuple(Image(data, at) for at, data in images))


def asked(name: str, *messages: Message, max_tokens: int | None = 20, **params: object) -> ChatRequest:
    sampled: dict[str, object] = {"temperature": 0.0, "max_tokens": max_tokens} | params
    return ChatRequest(id=name, messages=messages, params=SamplingParams(**sampled))  # type: ignore[arg-type]


def plain(request: ChatRequest) -> AnswerResult:
    return harness_of(spec=OFF).run([request])[request.id]


def test_a_prompt_with_an_image_is_read_as_it_stands() -> None:
    harness = harness_of(spec=OFF)
    result = harness.run([asked("a", message("look here", (4, CAT)))])["a"]
    prompt = harness.engine.input_processor.make_prompt(asked("b", message("look here", (4, CAT))))
    tokens = list(prompt.tokens)
    for said in result.tokens:
        assert said == int(np.argmax(TABLE.after(tokens)))
        tokens.append(said)
    assert sum(token < 0 for token in prompt.tokens) == 6
    assert result.started is not None and result.started.prompt_tokens == len(prompt.tokens)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("image", [CAT, WIDE, SLICED])
def test_texts_about_images_are_the_plain_texts(kind: str, num_slots: int, image: bytes) -> None:
    turns = [message("what is this", (0, image), (5, DOG)), message("and this", (3, CAT)), message("just text")]
    requests = [asked(str(i), *turns[: i % 3 + 1]) for i in range(6)]
    result = harness_of(kind, num_slots=num_slots).run(requests)
    for request in requests:
        assert result[request.id].tokens == plain(request).tokens


@pytest.mark.parametrize("kind", KINDS)
def test_seeded_texts_are_the_plain_texts(kind: str) -> None:
    request = asked("a", message("what is this", (0, WIDE)), temperature=0.9, repeat_penalty=1.2, seed=5)
    assert harness_of(kind).run([request])["a"].tokens == plain(request).tokens


def test_different_images_give_different_texts() -> None:
    answers = [plain(asked("a", message("what", (0, image)))).tokens for image in (CAT, DOG, WIDE)]
    assert all(one != other for one, other in pairwise(answers))


def test_an_image_that_a_cache_holds_is_not_read_again() -> None:
    harness = harness_of("eagle3")
    harness.run([asked("a", message("see", (1, CAT)))])
    result = harness.run([asked("b", message("see", (1, CAT)), message("more"))])["b"]
    assert len(harness.context.looks) == 1
    assert result.started is not None and result.started.cached_tokens > 6
    other = harness.run([asked("c", message("see", (1, DOG)))])["c"]
    assert len(harness.context.looks) == 2
    assert other.tokens == plain(asked("c", message("see", (1, DOG)))).tokens


def test_an_image_at_the_border_of_what_is_used_again_is_read_whole() -> None:
    """A head's margin would cut into it."""
    bare = image_file("bare", 6)

    class Unmarked(ScriptedReader):
        def split(self, part: TextPart | object) -> list[int | ImageRows]:
            return [piece for piece in super().split(part) if part != bare or not isinstance(piece, int)]

    harness = harness_of("eagle3", image_reader=Unmarked(VOCABULARY))
    harness.run([asked("a", message("x", (0, bare)))])
    result = harness.run([asked("b", message("y", (0, bare)))])["b"]
    alone = harness_of(image_reader=Unmarked(VOCABULARY), spec=OFF).run([asked("b", message("y", (0, bare)))])["b"]
    assert result.tokens == alone.tokens
    assert len(harness.context.looks) == 2


def test_an_image_in_another_slot_is_copied() -> None:
    harness = harness_of("eagle3", num_slots=2)
    requests = [asked(str(i), message("a long question about this", (2, WIDE)), max_tokens=9 + i) for i in range(2)]
    result = harness.run(requests)
    assert len(harness.context.looks) == 1
    for request in requests:
        assert result[request.id].tokens == plain(request).tokens


def test_what_an_image_is_worth_to_copy_are_its_rows() -> None:
    """With M-RoPE a large image has few positions, but costs as much to read as any other."""
    requests = [asked(str(i), message("x", (0, WIDE)), max_tokens=9 + i) for i in range(2)]
    num_positions = len(harness_of().engine.input_processor.make_prompt(requests[0]).tokens)
    harness = harness_of(num_slots=2, min_fork=num_positions)
    result = harness.run(requests)
    assert len(harness.context.looks) == 1
    assert result["1"].tokens == plain(requests[1]).tokens


def test_rows_that_were_used_again_are_counted_as_they_are_reported() -> None:
    harness = harness_of()
    first, second = (asked(name, message("see", (1, WIDE))) for name in "ab")
    result = [harness.run([request])[request.id].started for request in (first, second)]
    assert [started.cached_tokens > 30 for started in result if started] == [False, True]
    assert harness.engine.snapshot().reused_tokens == sum(started.cached_tokens for started in result if started)


def test_who_sends_images_is_charged_for_their_rows() -> None:
    """Though an image of 30 rows has 5 positions."""
    seen, read = (message("x", (0, WIDE)), message("x" * 9))
    harness = harness_of()
    requests = [replace(asked(f"seen {i}", seen, max_tokens=1), owner="sees") for i in range(2)]
    requests += [replace(asked(f"read {i}", read, max_tokens=1), owner="reads") for i in range(2)]
    order = list[str]()
    for request in requests:
        harness.engine.submit(replace(request, reuses_cache=False))
    while harness.engine.has_work:
        order += [event.request_id for event in harness.engine.step() if isinstance(event, Started)]
    assert order == ["seen 0", "read 0", "read 1", "seen 1"]


def test_others_go_on_between_images() -> None:
    """One image a step: who writes is not held up by all of a prompt's."""
    harness = harness_of(num_slots=2, spec=OFF)
    harness.engine.submit(asked("writes", message("text"), max_tokens=40, ignore_eos=True))
    for _ in range(3):
        harness.engine.step()
    harness.engine.submit(asked("looks", message("abcd", *((at, CAT) for at in range(4)))))
    spread = []
    while harness.engine.has_work and len(harness.context.looks) < 4:
        before = len(harness.context.looks)
        events = harness.engine.step()
        spread.append((len(harness.context.looks) - before, any(event.request_id == "writes" for event in events)))
    assert all(num <= 1 and is_told for num, is_told in spread)


@pytest.mark.parametrize("num_left", [0, 12])
def test_an_image_takes_room_for_its_rows_not_its_positions(num_left: int) -> None:
    started = plain(asked("a", message("x", (0, WIDE)), max_tokens=1)).started
    assert started is not None
    harness = harness_of("eagle3", n_ctx=started.prompt_tokens + num_left)
    result = harness.run([asked("a", message("x", (0, WIDE)), max_tokens=None, ignore_eos=True)])["a"]
    assert len(result.tokens) == num_left
    assert num_left or (result.failed is not None and "maximum context length" in result.failed.error.message)


@pytest.mark.parametrize(
    ("request_", "reader", "words"),
    [
        (asked("a", message("x", (0, CAT))), None, "reads no images"),
        (asked("a", message("x", (0, BROKEN))), READER, "it is broken"),
    ],
)
def test_refusals(request_: ChatRequest, reader: ScriptedReader | None, words: str) -> None:
    harness = harness_of(image_reader=reader)
    result = harness.run([request_, asked("b", message("text"))])
    assert result["a"].failed is not None and words in result["a"].failed.error.message
    assert result["b"].finished is not None


# ---- who waits for whose images
LONG_WAIT_S = 60.0


class Decoded:
    """An image as it is kept in memory."""

    def __init__(self, file: object) -> None:
        self.file = file


class HeldReader(ScriptedReader):
    """Reads images called "held" when it may, and keeps a list of what it read, and of what is still in memory."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY)
        self.may_go_on, self.is_reading = threading.Event(), threading.Event()
        self.names: list[str] = []
        self.decoded = weakref.WeakSet[Decoded]()

    def read(self, file: bytes, name: str) -> object:
        if file.startswith(b"held"):
            self.names.append(name)
            self.is_reading.set()
            assert self.may_go_on.wait(LONG_WAIT_S)
        self.decoded.add(decoded := Decoded(super().read(file, name)))
        return decoded

    def split(self, part: TextPart | object) -> list[int | ImageRows]:
        return super().split(part.file if isinstance(part, Decoded) else part)


@pytest.fixture
def held() -> Iterator[tuple[HeldReader, EngineHarness]]:
    reader = HeldReader()
    harness = harness_of(num_slots=2, spec=OFF, image_reader=reader, input_executors=start_executors())
    yield reader, harness
    reader.may_go_on.set()
    harness.engine.close()


def held_images(count: int) -> list[tuple[int, bytes]]:
    return [(0, image_file(f"held{number}", 2)) for number in range(count)]


def run_until(harness: EngineHarness, name: str) -> AnswerResult:
    """Step until a request is over, whatever else goes on."""
    result = AnswerResult()
    while result.finished is None and result.failed is None:
        for event in harness.engine.step():
            if event.request_id == name:
                result.add(event)
    return result


def test_others_are_answered_while_an_owners_images_are_read(held: tuple[HeldReader, EngineHarness]) -> None:
    reader, harness = held
    for number in range(16):
        harness.engine.submit(replace(asked(f"eve {number}", message("x", *held_images(16))), owner="eve"))
    assert reader.is_reading.wait(LONG_WAIT_S)
    looks = replace(asked("bob looks", message("see", (1, CAT))), owner="bob")
    for request in (looks, replace(asked("bob writes", message("text")), owner="bob")):
        harness.engine.submit(request)
        assert run_until(harness, request.id).tokens == plain(request).tokens
    assert reader.names == ["image 1 of 16"]


def test_no_image_is_read_for_a_request_that_was_cancelled(held: tuple[HeldReader, EngineHarness]) -> None:
    reader, harness = held
    for name in ("a", "b"):
        harness.engine.submit(asked(name, message("x", *held_images(9))))
    assert reader.is_reading.wait(LONG_WAIT_S)
    for name in ("b", "a"):
        harness.engine.cancel(name)
        finished = run_until(harness, name).finished
        assert finished is not None and finished.reason == "cancelled"
    reader.may_go_on.set()
    harness.engine.submit(asked("c", message("see", (1, CAT))))  # of the same owner: behind them
    assert run_until(harness, "c").finished is not None
    assert reader.names == ["image 1 of 9"] and not reader.decoded


def test_prompts_with_images_are_kept_for_equal_requests_and_then_dropped(
    held: tuple[HeldReader, EngineHarness],
) -> None:
    reader, harness = held
    reader.may_go_on.set()
    requests = [asked(str(number), message("x", *held_images(3)), max_tokens=3) for number in range(4)]
    result = harness.run(requests)
    assert len({tuple(result[request.id].tokens) for request in requests}) == 1
    assert reader.names == [f"image {number} of 3" for number in (1, 2, 3)]
    assert not any(map(harness.engine.input_processor.prompts.holds, requests))


def test_an_owner_s_requests_are_all_read_however_many_pixels_they_hold() -> None:
    class Vast(ScriptedReader):
        def measure(self, files: Sequence[bytes]) -> int:
            return MAX_REQUEST_PIXELS

    harness = harness_of(image_reader=Vast(VOCABULARY), input_executors=start_executors())
    requests = [asked(str(number), message("x", (0, image_file(f"i{number}", 2))), max_tokens=3) for number in range(5)]
    requests[3:3] = [
        asked("broken", message("x", (0, BROKEN))),
        replace(asked("counted", message("x", (0, CAT))), is_counted=True),
    ]
    result = harness.run(requests)
    assert result["broken"].failed is not None and result["counted"].finished is not None
    assert all(len(result[str(number)].tokens) == 3 for number in range(5))
    harness.engine.close()


def test_what_looks_like_a_mark_is_text() -> None:
    """A text cannot stand for another request's image, or for an image that does not exist."""
    result = harness_of().run([asked("a", message("\ue0030\ue001 and \ue0037\ue001"))])["a"]
    assert result.finished is not None


@examples(40)
@given(data=st.data())
def test_conversations_with_images_stay_their_own(data: st.DataObject) -> None:
    """Any conversations that begin alike, cancelled at any step, in any slot."""
    seed = data.draw(st.integers(0, 10**6))
    rng = random.Random(seed)
    stem = [random_message(rng) for _ in range(4)]
    requests = []
    for i in range(data.draw(st.integers(2, 7))):
        messages = (*stem[: rng.randrange(4)], random_message(rng))
        requests.append(asked(str(i), *messages, max_tokens=rng.randrange(1, 25)))
    harness = harness_of(
        data.draw(st.sampled_from(KINDS)),
        num_slots=data.draw(st.integers(1, 4)),
        spec=data.draw(st.sampled_from([None, AUTO_SPEC])),
        n_batch=data.draw(st.sampled_from([8, 48])),
    )
    cancels = {str(i): rng.randrange(15) for i in range(len(requests)) if rng.random() < 0.3}
    result = drive(harness.engine, requests, cancels)
    for request in requests:
        wanted, got = plain(request).tokens, result[request.id].tokens
        assert got == wanted if request.id not in cancels else got == wanted[: len(got)]
    assert not harness.engine.miscounted_slots()


def random_message(rng: random.Random) -> Message:
    content = "".join(rng.choice("abc ") for _ in range(rng.randrange(12)))
    places = sorted(rng.randrange(len(content) + 1) for _ in range(rng.randrange(3)))
    return message(content, *((at, rng.choice([CAT, DOG, WIDE, SLICED])) for at in places))
