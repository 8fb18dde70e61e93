"""LoRA adapters over the real llama.cpp: texts are those of a target into which the adapter was merged by hand, with
drafts and without, for slots with different adapters at once, and after a restart from cells on disk."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.engine_harness import drive
from doubles.lora_files import merge_loras, write_lora
from doubles.margin import margin_differences
from doubles.random_models import write_agreeing_pairs
from doubles.real_engine import TINY, ask, real_engine

from eaglelocal import locations
from eaglelocal.core.adapters import AdapterFile, AdapterMix
from eaglelocal.core.request import ChatRequest
from eaglelocal.engine.engine import Engine

SHAPE = dataclasses.replace(TINY, layer_gain=0.2)
TEXTS = np.random.default_rng(0).integers(0, 256, (4, 60)).tolist()
TIE = 2e-3  # between log-probabilities: merged weights round differently
MIXES: dict[str, AdapterMix] = {"plain": (), "first": ((0, 1.0),), "half": ((0, 0.5),), "both": ((0, -0.5), (1, 1.0))}
DRAFTS = {"none": None, "eagle3": "F32-head.gguf", "draft_model": "F32.gguf", "ngram": None}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    write_agreeing_pairs(folder, ("F32",), SHAPE)
    target = folder / "F32.gguf"
    paths = [write_lora(folder / f"lora{number}.gguf", target, seed=number) for number in range(2)]
    for name, mix in MIXES.items():
        merge_loras(folder / f"merged-{name}.gguf", target, *((paths[number], scale) for number, scale in mix))
    return folder


def adapted(folder: Path, kind: str = "none", **changes: object) -> Engine:
    adapters = tuple(AdapterFile(folder / f"lora{number}.gguf", 0.0) for number in range(2))
    draft = DRAFTS[kind] and folder / str(DRAFTS[kind])
    return real_engine(folder / "F32.gguf", kind, draft or None, **({"adapters": adapters} | changes))


def ask_with(name: str, text: list[int], **params: object) -> ChatRequest:
    return replace(ask(name, text, **params), adapters=MIXES[name])


def check_texts(folder: Path, answers: dict[str, list[int]], asked: dict[str, ChatRequest]) -> None:
    for name, tokens in answers.items():
        merged = real_engine(folder / f"merged-{name}.gguf", n_ctx=1024)
        request = replace(asked[name], adapters=None)
        assert len(margin_differences(merged, request, tokens, TIE)) <= 1, name
        merged.close()


@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize("num_slots", [1, 3, 4])
def test_texts_are_those_of_merged_weights(files: Path, kind: str, num_slots: int) -> None:
    engine = adapted(files, kind, num_slots=num_slots)
    asked = {name: ask_with(name, TEXTS[0]) for name in MIXES}  # one prompt: cells of another mix would be wrong
    result = drive(engine, list(asked.values()))
    assert engine.miscounted_slots() == []
    engine.close()
    answers = {name: result[name].tokens for name in MIXES}
    assert len({tuple(tokens) for tokens in answers.values()}) == len(MIXES)  # each adapter changes the text
    check_texts(files, answers, asked)


def test_a_conversation_with_an_adapter_goes_on_after_a_restart(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locations, "conversation_cells_dir", lambda: tmp_path / "cells")
    text = np.random.default_rng(1).integers(0, 256, 700).tolist()
    kept = {"n_ctx": 1024, "cache_ram": 64, "cache_disk": 0.2}
    first = adapted(files, **kept)
    drive(first, [ask_with("first", text, max_tokens=2)])
    while first.work_ahead():
        pass
    first.close()
    numbers = {"first": 1, "half": 0, "plain": 0}
    swapped = (AdapterFile(files / "lora1.gguf", 0.0), AdapterFile(files / "lora0.gguf", 0.0))  # other ids
    second = adapted(files, **kept, adapters=swapped)
    for name in numbers:
        mix = tuple((1 - number, scale) for number, scale in MIXES[name])
        request = replace(ask_with(name, text), adapters=mix)
        answer = drive(second, [request])[name]
        assert answer.started is not None
        assert (answer.started.cached_tokens > 600) == bool(numbers[name])
        check_texts(files, {name: answer.tokens}, {name: request})
    second.close()
