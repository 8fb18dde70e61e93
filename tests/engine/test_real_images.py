"""Images on the real llama.cpp: with any drafter an engine answers as llama.cpp does when called directly."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from doubles.engine_harness import AnswerResult, drive
from doubles.plain_vision import MARKER, Answer, picture, reference_answer
from doubles.random_models import HeadShape, write_head, write_target
from doubles.real_engine import real_engine
from doubles.tiers import some_of
from doubles.vision_models import KINDS, PAIRS, TURN_BEGINS, TURN_ENDS, write_vision_pair
from llama_cpp import mtmd_cpp

from eaglelocal.backend import image_encoder
from eaglelocal.backend.image_decoder import ImageDecoder
from eaglelocal.backend.image_encoder import BAD_IMAGE, replace_broken_rows
from eaglelocal.backend.llama_library import load_library
from eaglelocal.core.batch import Floats
from eaglelocal.core.request import AUTO_SPEC, OFF, ChatRequest, Image, Message, Spec, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.doctor.installation import find_image_problem
from eaglelocal.engine.engine import Engine
from eaglelocal.errors import IncompatibleError, ModelFileError, ResourceError
from eaglelocal.scheduler.slot import Checkpoints

pytestmark = pytest.mark.full

RED, NOISE, BLUE, TALL = picture((255, 0, 0)), picture(1, 64, 40), picture((0, 0, 255), 20, 90), picture(2, 24, 80)
NUM_TOKENS = 24
TIE = 0.03  # gap of the two best logits at which rounding may decide
WITH_HEADS = ("phi4", "idefics3", "gemma4", "gemma4e", "qwen35")  # whose layer inputs llama.cpp can give
DRAFTS: dict[str, tuple[str, Spec]] = {
    "plain": ("none", OFF),
    "lookup": ("ngram", AUTO_SPEC),
    "head": ("eagle3", fixed_spec(4)),
    "auto": ("eagle3", AUTO_SPEC),
    "model": ("draft_model", fixed_spec(3)),
    "mtp": ("mtp", AUTO_SPEC),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for kind in KINDS:
        write_vision_pair(folder, kind)
    for kind in WITH_HEADS:
        shape = PAIRS[kind].shape
        taps = (1, 2, PAIRS[kind].sketch.n_layer - 1)
        write_head(
            folder / f"head-{kind}.gguf", HeadShape(width=64, taps=taps, own_embeddings=True, own_output=True), shape
        )
    return folder


def engine_of(folder: Path, kind: str, draft: str = "plain", **changes: object) -> Engine:
    draft_kind, spec = DRAFTS[draft]
    target = folder / f"{kind}.gguf"
    files = {"eagle3": folder / f"head-{kind}.gguf", "draft_model": target, "mtp": target}
    given: dict[str, object] = {
        "projector": folder / f"mmproj-{kind}.gguf",
        "draft_kind": draft_kind,
        "draft": files.get(draft_kind),
        "spec": spec,
        "n_ctx": 1024,
        "flash_attn": "on",
    }
    return real_engine(target, **(given | changes))


def message(text: str, *images: bytes, role: str = "user") -> Message:
    """`text` with a marker where each image stands."""
    parts = text.split(MARKER)
    places = np.cumsum([len(part) for part in parts])
    return Message(role, "".join(parts), images=tuple(map(Image, images, map(int, places))))


def asked(name: str, *messages: Message) -> ChatRequest:
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return ChatRequest(id=name, messages=messages, params=params)


def plainly(folder: Path, kind: str, *messages: Message) -> Answer:
    text, images = "", list[bytes]()
    for one in messages:
        content = one.content
        for image in reversed(one.images):
            content = content[: image.at] + MARKER + content[image.at :]
        text += f"{TURN_BEGINS}{one.role}\n{content}{TURN_ENDS}\n"
        images += [image.data for image in one.images]
    text += f"{TURN_BEGINS}assistant\n"
    return reference_answer(folder / f"{kind}.gguf", folder / f"mmproj-{kind}.gguf", text, images, NUM_TOKENS)


def agrees(result: AnswerResult, wanted: Answer) -> None:
    """Up to a near-tie, behind which texts go their own ways."""
    assert result.failed is None and result.started is not None
    assert result.started.prompt_tokens == wanted.num_tokens
    pairs = list(zip(result.tokens, wanted.tokens, strict=False))
    differs = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if differs is not None:
        second, best = np.sort(wanted.logits[differs])[-2:]
        assert best - second < TIE, f"token {differs} of {len(pairs)}: {pairs[differs]}"


def can_draft(kind: str, draft: str) -> bool:
    fits = {"eagle3": kind in WITH_HEADS, "draft_model": not kind.startswith("qwen35"), "mtp": kind == "qwen35mtp"}
    return fits.get(DRAFTS[draft][0], True)


CASES = [(kind, draft) for kind in KINDS for draft in DRAFTS if can_draft(kind, draft)]


@pytest.mark.parametrize(("kind", "draft"), some_of(CASES, 12, rest=pytest.mark.slow))
def test_a_conversation_about_images_is_the_plain_one(folder: Path, kind: str, draft: str) -> None:
    """Three turns, the cache used again; another person's images beside it; and a question edited behind an image."""
    engine = engine_of(folder, kind, draft, num_slots=2)
    first = (message(f"What is {MARKER} this, and {MARKER}{MARKER} these?", RED, NOISE, BLUE),)
    second = (*first, message("something", role="assistant"), message(f"and {MARKER}", TALL))
    edited = (message(f"What is {MARKER} this, and {MARKER} that?", RED, NOISE),)
    others = (message(f"{MARKER}{MARKER} go on go on go on", TALL, RED), message("just text, text, text"))
    turns: list[dict[str, Sequence[Message]]] = [
        {"a": first, "b": others[:1]},
        {"c": second, "d": others[1:]},
        {"e": edited},
    ]
    for turn in turns:
        result = drive(engine, [asked(name, *messages) for name, messages in turn.items()])
        for name, messages in turn.items():
            agrees(result[name], plainly(folder, kind, *messages))
        assert not engine.miscounted_slots()
    engine.close()


@pytest.mark.parametrize("kind", ["phi4", "qwen2vl"])
def test_images_that_a_cache_holds_are_used_again(folder: Path, kind: str) -> None:
    engine = engine_of(folder, kind)
    question = message(f"What is {MARKER} this?", NOISE)
    drive(engine, [asked("a", question)])
    result = drive(engine, [asked("b", question, message("it is", role="assistant"), message("sure?"))])["b"]
    assert result.started is not None and result.started.cached_tokens > 40
    engine.close()


@pytest.mark.parametrize("behind", [3, 0, -2])
@pytest.mark.parametrize("draft", ["plain", "head"])
def test_a_changed_conversation_goes_on_after_an_image(folder: Path, draft: str, behind: int) -> None:
    """Of recurrent state there is what was saved. With M-RoPE an image of 192 rows takes 16 positions; and one may
    stand where the state would be saved."""
    engine = engine_of(folder, "qwen35", draft)
    question = message(f"see {MARKER}", picture(3, 128, 96))
    prompt = engine.input_processor.make_prompt(asked("a", question))
    before_end = len(prompt.tokens) - prompt.images[0].end - behind
    engine.scheduler.prefix_cache.checkpoints = Checkpoints(2, before_end=before_end)
    drive(engine, [asked("a", question)])
    turns = (question, message("it is", role="assistant"), message("sure?"))
    result = drive(engine, [asked("b", *turns)])["b"]
    agrees(result, plainly(folder, "qwen35", *turns))
    assert result.started is not None and result.started.cached_tokens > 192
    engine.close()


def test_a_full_context_counts_rows(folder: Path) -> None:
    """With M-RoPE an image takes 24 cells at 6 positions."""
    engine = engine_of(folder, "qwen2vl", n_ctx=128)
    endless = replace(asked("a", message(MARKER * 3, RED, RED, RED)), params=SamplingParams(ignore_eos=True))
    result = drive(engine, [endless])
    finished, started = result["a"].finished, result["a"].started
    assert finished is not None and started is not None and finished.reason == "length"
    assert started.prompt_tokens + len(result["a"].tokens) == 128
    result = drive(engine, [asked("b", message(MARKER * 5, *[RED] * 5))])
    assert result["b"].failed is not None and "maximum context length" in result["b"].failed.error.message
    assert drive(engine, [asked("c", message("text"))])["c"].finished is not None
    engine.close()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "damaged, or no PNG"),
        (b"GIF89a", "cannot be read"),
        (RED[:60], "cannot be read"),
        (picture(RED[0], 1, 300), "one side is more than 100 times the other"),
    ],
)
def test_an_invalid_image_fails_its_own_request_only(folder: Path, data: bytes, words: str) -> None:
    engine = engine_of(folder, "phi4")
    result = drive(engine, [asked("a", message(MARKER, data)), asked("b", message("text"))])
    assert result["a"].failed is not None and words in result["a"].failed.error.message
    assert result["b"].finished is not None
    engine.close()


@pytest.mark.parametrize(
    ("target", "projector", "words"),
    [
        ("model", "mmproj-gemma3", "made for another model"),  # of another width
        ("phi4", "mmproj-idefics3", "puts tokens around an image that the target does not have"),  # as wide by chance
        ("phi4", "gemma3", "not a projector"),
    ],
)
def test_a_projector_of_another_model_is_refused(folder: Path, target: str, projector: str, words: str) -> None:
    write_target(folder / "model.gguf")
    with pytest.raises((IncompatibleError, ModelFileError), match=words):
        real_engine(folder / f"{target}.gguf", projector=folder / f"{projector}.gguf", is_projector_required=True)


def test_what_merely_lies_next_to_a_model_does_not_keep_it_from_loading(folder: Path) -> None:
    engine = real_engine(folder / "phi4.gguf", projector=folder / "mmproj-idefics3.gguf")
    assert not engine.info.sees_images
    (note,) = [note for note in engine.info.notes if note.startswith("no images: ")]
    assert "the target does not have" in note
    result = drive(engine, [asked("a", message(MARKER, RED)), asked("b", message("text"))])
    assert result["a"].failed is not None and result["b"].finished is not None
    engine.close()


@pytest.mark.parametrize("projector", ["phi4", "idefics3"])
def test_a_projector_that_is_refused_gives_its_memory_back(
    folder: Path, projector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot prepare an image, or is another model's."""
    if projector == "phi4":
        monkeypatch.setattr(mtmd_cpp, "mtmd_tokenize_from_parts", lambda *of: BAD_IMAGE)
    freed, free = list[object](), mtmd_cpp.mtmd_free
    monkeypatch.setattr(mtmd_cpp, "mtmd_free", lambda handle: (freed.append(handle), free(handle)))
    engine = real_engine(folder / "phi4.gguf", projector=folder / f"mmproj-{projector}.gguf")
    assert not engine.info.sees_images and len(freed) == 1
    engine.close()


@pytest.mark.parametrize(
    ("module", "words"), [("PIL", "Pillow, which reads images"), ("llama_cpp.mtmd_cpp", "built without images")]
)
def test_a_build_without_image_support_runs_texts(
    folder: Path, module: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delattr(llama_cpp, "mtmd_cpp")
    engine = real_engine(folder / "phi4.gguf", projector=folder / "mmproj-phi4.gguf")
    (note,) = [note for note in engine.info.notes if note.startswith("no images: ")]
    assert words in note and words in find_image_problem(load_library())
    assert drive(engine, [asked("a", message("text"))])["a"].finished is not None
    engine.close()


def test_pictures_are_unpacked_one_at_a_time_and_equal_ones_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process gave is copied to libmtmd and dropped: a request may have 64."""
    steps = list[str]()
    decode, bitmap = ImageDecoder.decode, mtmd_cpp.mtmd_bitmap_init
    monkeypatch.setattr(ImageDecoder, "decode", lambda *of: (steps.append("decoded"), decode(*of))[1])
    monkeypatch.setattr(mtmd_cpp, "mtmd_bitmap_init", lambda *of: (steps.append("copied"), bitmap(*of))[1])
    engine = engine_of(folder, "phi4")
    steps.clear()
    drive(engine, [asked("a", message(MARKER * 4, RED, NOISE, RED, BLUE))])
    assert steps == ["decoded", "copied"] * 3
    engine.close()


def test_rows_with_nan_are_replaced_or_refused() -> None:
    """What llama.cpp makes of Pixtral's row ends depends on what its memory held before."""
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    wanted = rows.copy()
    replace_broken_rows(rows, None)
    np.testing.assert_array_equal(rows, wanted)
    rows[1, 2], rows[3, 0] = np.nan, np.inf
    with pytest.raises(ResourceError, match="produced NaN or infinite values"):
        replace_broken_rows(rows.copy(), None)
    replace_broken_rows(rows, np.float32([7, 8, 9]))
    wanted[[1, 3]] = [7, 8, 9]
    np.testing.assert_array_equal(rows, wanted)


def test_pixtral_s_row_end_is_read_from_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two loads give the same text; called plainly, llama.cpp sometimes gives another one."""
    row_ends = list[Floats | None]()

    monkeypatch.setattr(
        image_encoder, "replace_broken_rows", lambda *of: (row_ends.append(of[1]), replace_broken_rows(*of))
    )
    write_vision_pair(folder, "pixtral")
    texts = []
    for _ in range(2):
        engine = engine_of(folder, "pixtral")
        texts.append(drive(engine, [asked("a", message(f"What is {MARKER} this?", NOISE))])["a"].tokens)
        engine.close()
    assert texts[0] == texts[1]
    assert row_ends and all(row_end is not None for row_end in row_ends)
