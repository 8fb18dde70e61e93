"""Plans that cannot run are refused at load, with the numbers and a hint, and the process goes on."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from doubles.gguf_bytes import STRING, U32, GgufBytes
from doubles.random_models import HeadShape, TargetShape, write_head, write_target

from eaglelocal.backend.llama_library import CHECKED_VERSION, bind, check_version, load_library
from eaglelocal.backend.model import LlamaModel
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import fixed_spec
from eaglelocal.engine.warmup import Warmup
from eaglelocal.errors import (
    EagleLocalError,
    EngineError,
    IncompatibleError,
    LibraryError,
    ModelFileError,
    ResourceError,
    UsageError,
)
from eaglelocal.gguf.reader import read_header
from eaglelocal.loading import engine_builder
from eaglelocal.loading.engine_builder import build
from eaglelocal.probe.machine import Machine, MainMemory
from eaglelocal.probe.probe import probe

SMALL = TargetShape(n_embd=64, n_layer=4, n_ff=64)
HEAD = HeadShape(width=64, n_ff=64)
OWN = HeadShape(width=64, n_ff=64, own_embeddings=True, own_output=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("refused") / "target.gguf", SMALL)


def plan_of(target: Path, kind: str = "none", draft: Path | None = None, **changes: object) -> Plan:
    fields: dict[str, object] = {"n_ctx": 256, "n_batch": 64, "threads": 1, "spec": fixed_spec(4)}
    fields |= {"draft_kind": kind, "draft": draft, "draft_label": draft.stem if draft else "none"} | changes
    return Plan(target=target, target_label=target.stem, **fields)  # type: ignore[arg-type]


def refusal(plan: Plan, kind: type[EagleLocalError]) -> EagleLocalError:
    with pytest.raises(kind) as caught:
        build(plan, lambda _: None)
    error = caught.value
    assert error.hint, error.message
    assert not error.message.endswith(".")
    return error


# ---- heads that were made for something else
@pytest.mark.parametrize(
    ("head", "made_for", "says"),
    [
        (OWN, replace(SMALL, n_embd=128), "hidden size 128, the target has 64"),
        (replace(HEAD, taps=(1, 2, 9)), SMALL, "taps layer 9, the target has layers 0 to 3"),
        (replace(HEAD, taps=(1, 2, 4)), SMALL, "taps layer 4, the final state"),
        (replace(HEAD, taps=(1, 2)), SMALL, "taps 2 layers without"),
        (HEAD, replace(SMALL, n_vocab=310), "vocabulary has 310 tokens, the target's 300"),
    ],
)
def test_a_head_for_another_target(
    target: Path, tmp_path: Path, head: HeadShape, made_for: TargetShape, says: str
) -> None:
    error = refusal(plan_of(target, "eagle3", write_head(tmp_path / "head.gguf", head, made_for)), IncompatibleError)
    assert says in error.message
    assert "--draft none" in error.hint


@pytest.mark.parametrize("architecture", ["qwen2", "phi3"])
def test_a_target_whose_layer_inputs_cannot_be_had(tmp_path: Path, architecture: str) -> None:
    other = write_target(tmp_path / "other.gguf", replace(SMALL, arch=architecture))
    error = refusal(plan_of(other, "eagle3", write_head(tmp_path / "head.gguf", HEAD, SMALL)), IncompatibleError)
    assert f"no layer inputs for the architecture {architecture}" in error.message
    assert "--draft none" in error.hint


# ---- targets with recurrent state
def hybrid(path: Path) -> Path:
    """A header is all that is read before the refusal."""
    built = GgufBytes().put("general.architecture", STRING, "plamo2").put("general.name", STRING, "liquid")
    built.put_all(U32, plamo2__block_count=4, plamo2__embedding_length=64, plamo2__context_length=256)
    built.put_all(U32, plamo2__feed_forward_length=64, plamo2__attention__head_count=1)
    built.array("plamo2.attention.head_count_kv", U32, [0, 0, 1, 0])
    built.array("tokenizer.ggml.tokens", STRING, [f"w{i}" for i in range(300)])
    built.tensor("token_embd.weight", np.zeros((300, 64), np.float32))
    path.write_bytes(built.build())
    return path


@pytest.mark.parametrize("kind", ["eagle3", "draft_model"])
def test_drafting_for_a_hybrid_target(target: Path, tmp_path: Path, kind: str) -> None:
    draft = write_head(tmp_path / "head.gguf", HEAD, SMALL) if kind == "eagle3" else target
    error = refusal(plan_of(hybrid(tmp_path / "hybrid.gguf"), kind, draft), IncompatibleError)
    assert "plamo2 keeps recurrent state, whose rollback llama.cpp does not support" in error.message
    assert "--draft none" in error.hint


def test_a_hybrid_draft_model(target: Path, tmp_path: Path) -> None:
    error = refusal(plan_of(target, "draft_model", hybrid(tmp_path / "hybrid.gguf")), IncompatibleError)
    assert "plamo2 keeps recurrent state" in error.message


# ---- files in the wrong place
@pytest.mark.parametrize("role", ["target", "draft_model"])
def test_a_head_in_the_place_of_a_model(target: Path, role: str, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head.gguf", HEAD, SMALL)
    error = refusal(plan_of(head) if role == "target" else plan_of(target, role, head), ModelFileError)
    assert "is a draft head (eagle3), not a model that can answer" in error.message


def test_a_model_as_the_head(target: Path) -> None:
    error = refusal(plan_of(target, "eagle3", target), ModelFileError)
    assert "is a llama model, not an eagle3 head" in error.message


@pytest.mark.parametrize(
    ("kind", "says"), [("eagle3", "a draft of kind eagle3 needs a file"), ("nonsense", "nonsense")]
)
def test_a_draft_without_a_file_or_of_no_known_kind(target: Path, kind: str, says: str) -> None:
    error = refusal(plan_of(target, kind, None if kind == "eagle3" else target), UsageError)
    assert says in error.message


# ---- draft models of another vocabulary, or of a shorter memory
def test_a_draft_model_with_fewer_tokens(target: Path, tmp_path: Path) -> None:
    other = write_target(tmp_path / "other.gguf", replace(SMALL, n_vocab=290))
    error = refusal(plan_of(target, "draft_model", other), IncompatibleError)
    assert "the draft model other does not fit target: its vocabulary has 290 tokens, the target's 300" in error.message
    assert "--draft none" in error.hint


def test_a_draft_model_with_other_tokens(target: Path, tmp_path: Path) -> None:
    raw = target.read_bytes()
    assert raw.count(b"w17") == 1
    other = tmp_path / "other.gguf"
    other.write_bytes(raw.replace(b"w17", b"z17"))
    error = refusal(plan_of(target, "draft_model", other), IncompatibleError)
    assert "their 300 tokens differ from token 273 on" in error.message


@pytest.mark.parametrize(("trained", "is_told"), [(128, True), (256, False)])
def test_a_draft_model_that_was_trained_for_less(target: Path, tmp_path: Path, trained: int, is_told: bool) -> None:
    """It drafts badly there but never wrongly, so it gets a note and is not refused."""
    short = write_target(tmp_path / "short.gguf", replace(SMALL, n_ctx=trained))
    engine = build(plan_of(target, "draft_model", short), lambda _: None)
    notes = [note for note in engine.info.notes if f"trained for {trained} of 256 positions" in note]
    assert bool(notes) is is_told
    engine.close()


# ---- files that are no models
def broken(path: Path, target: Path, how: str) -> Path:
    raw = target.read_bytes()
    head = GgufBytes().put("general.architecture", STRING, "llama")
    contents = {
        "cut in the header": raw[:2000],
        "cut in the weights": raw[: len(raw) // 2],
        "one byte short": raw[:-1],
        "empty": b"",
        "text": b"# a readme\n" * 100,
        "too many entries": replace(head, num_entries=2**60).build(),
        "too many tensors": replace(head, num_tensors=2**60).build(),
        "another version": replace(head, version=99).build(),
    }
    path.write_bytes(contents[how])
    return path


HOWS = ("cut in the header", "cut in the weights", "one byte short", "empty", "text")


@pytest.mark.parametrize("how", [*HOWS, "too many entries", "too many tensors", "another version"])
@pytest.mark.parametrize("role", ["target", "eagle3", "draft_model"])
def test_a_damaged_model_file_is_refused(target: Path, tmp_path: Path, how: str, role: str) -> None:
    file = broken(tmp_path / "file.gguf", target, how)
    plan = plan_of(file) if role == "target" else plan_of(target, role, file)
    assert "file.gguf" in refusal(plan, ModelFileError).message


@pytest.mark.parametrize("role", ["target", "eagle3", "draft_model"])
def test_a_file_that_is_not_there(target: Path, tmp_path: Path, role: str) -> None:
    missing = tmp_path / "missing.gguf"
    plan = plan_of(missing) if role == "target" else plan_of(target, role, missing)
    assert "missing.gguf" in refusal(plan, ModelFileError).message


def test_weights_that_llama_cpp_itself_refuses(tmp_path: Path) -> None:
    """A sound file in which a tensor is missing: llama.cpp's own words are passed on."""
    writer = gguf.GGUFWriter(str(tmp_path / "hollow.gguf"), "llama")
    whole = gguf.GGUFReader(write_target(tmp_path / "whole.gguf", SMALL))
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", int(whole.fields[f"llama.{key}"].parts[-1][0]))
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"w{i}" for i in range(300)])
    writer.add_token_merges(["a b"])
    writer.add_tensor("token_embd.weight", np.zeros((300, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "llama.cpp cannot load" in refusal(plan_of(tmp_path / "hollow.gguf"), ModelFileError).message


# ---- memory and sizes
def with_memory(monkeypatch: pytest.MonkeyPatch, available_bytes: int | None) -> None:
    machine = probe()
    smaller = Machine(
        gpus=(),
        unified=None,
        cpu=machine.cpu,
        memory=MainMemory(available_bytes=available_bytes),
        cache_free_bytes=None,
        llama_cpp=machine.llama_cpp,
    )
    monkeypatch.setattr(engine_builder, "probe", lambda: smaller)


def test_a_context_that_does_not_fit_in_memory(target: Path) -> None:
    error = refusal(plan_of(target, n_ctx=2_000_000_000), ResourceError)
    assert "GiB of cache for 2000000000 tokens do not fit the" in error.message
    assert "--ctx" in error.hint


def test_a_draft_whose_cache_does_not_fit_next_to_the_target(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target alone would fit; the draft model's own cache counts too."""
    with_memory(monkeypatch, 1 << 30)
    deep = write_target(tmp_path / "deep.gguf", replace(SMALL, n_layer=60, n_ff=64))
    cache_bytes = 4 * 2 * 64 * 2  # of the target, a token
    n_ctx = (1 << 30) // 2 // cache_bytes
    error = refusal(plan_of(target, "draft_model", deep, n_ctx=n_ctx), ResourceError)
    assert f"GiB of cache for {n_ctx} tokens do not fit the 1.0 GiB that are free" in error.message


@pytest.mark.parametrize("kind", ["none", "eagle3"])
def test_buffers_count_next_to_weights_and_cache(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    head = write_head(tmp_path / "head.gguf", HEAD, SMALL) if kind == "eagle3" else None
    weights = sum(read_header(path).tensor_bytes for path in (target, head) if path)
    cache = 2 * 2 * 64 * (4 * 4096 + (0 if head is None else 4096 + 256))  # the head has room for a tree
    plan = plan_of(target, kind, head, n_ctx=4096)
    with_memory(monkeypatch, weights + cache + 1000)
    error = refusal(plan, ResourceError)
    assert "MiB of buffers do not fit" in error.message
    assert "--ctx " in error.hint
    with_memory(monkeypatch, weights + cache + (64 << 20))
    build(plan, lambda _: None).close()


def test_the_hinted_context_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said by the first gate, which knows no buffers, and held by the second."""
    deep = write_target(tmp_path / "deep.gguf", replace(SMALL, n_layer=24))
    with_memory(monkeypatch, 100 << 20)
    error = refusal(plan_of(deep, n_ctx=100_000), ResourceError)
    hinted = int(error.hint.removeprefix("--ctx ").split()[0])
    assert 256 <= hinted < 100_000
    build(plan_of(deep, n_ctx=hinted), lambda _: None).close()


def test_unknown_memory_refuses_nothing(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, None)
    engine = build(plan_of(target), lambda _: None)
    assert engine.info.model_bytes > 0
    engine.close()


def test_an_unknown_type_of_cache(target: Path) -> None:
    error = refusal(plan_of(target, kv_type="f8"), UsageError)
    assert "f8" in error.message and "q8_0" in error.hint


def test_more_slots_than_a_batch_has_rows(target: Path) -> None:
    assert "16 slots" in refusal(plan_of(target, num_slots=16, n_batch=8), ResourceError).message


# ---- a failure at the last moment
def test_what_was_opened_is_freed_when_warming_up_fails(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    really_close = LlamaModel.close

    def close(model: LlamaModel) -> None:
        closed.append(type(model).__name__)
        really_close(model)

    def fail(warmup: Warmup, *costs: object, **asked: object) -> None:
        closed.clear()  # the planned model of the dry run is long gone
        raise EngineError("no first decode")

    monkeypatch.setattr(LlamaModel, "close", close)
    monkeypatch.setattr(Warmup, "measure", fail)
    with pytest.raises(EngineError, match="no first decode"):
        build(plan_of(target), lambda _: None)
    assert closed == ["LlamaModel"]


# ---- the library
@pytest.mark.parametrize("version", [CHECKED_VERSION, f"{CHECKED_VERSION}+cu124"])
def test_the_checked_version_passes(version: str) -> None:
    check_version(version)  # raises where it does not
    assert version.startswith(CHECKED_VERSION)


@pytest.mark.parametrize("version", [None, "", "0.3.35", "0.3.37", "0.3.360", "0.4.0", "1.0", "garbage"])
def test_any_other_version_of_the_library(version: str | None) -> None:
    with pytest.raises(LibraryError) as caught:
        check_version(version)
    assert (version or "") in caught.value.message
    assert caught.value.hint == f'pip install "llama-cpp-python=={CHECKED_VERSION}"'


def test_a_missing_symbol() -> None:
    native = ctypes.CDLL(load_library().path)
    with pytest.raises(LibraryError) as caught:
        bind(native, "llama_symbol_of_another_build", [], None)
    assert "has no symbol llama_symbol_of_another_build" in caught.value.message
    assert CHECKED_VERSION in caught.value.hint


def test_after_all_refusals_the_process_still_loads_a_model(target: Path) -> None:
    engine = build(plan_of(target), lambda _: None)
    assert engine.info.n_vocab == 300
    engine.close()
