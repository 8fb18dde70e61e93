"""Conversations on disk, over the real llama.cpp: they go on after a restart, with the texts of plain decoding.

A damaged, foreign or missing file costs a prompt that is read anew, and nothing else.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from doubles.block_models import write_bigram_head
from doubles.engine_harness import drive
from doubles.hybrid_model import write_hybrid
from doubles.random_models import write_agreeing_pairs, write_target
from doubles.real_engine import TINY, ask, real_engine
from doubles.windowed_model import write_windowed

from eaglelocal import locations
from eaglelocal.core.request import Request
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.conversation_files import ConversationFiles
from eaglelocal.engine.engine import Engine
from eaglelocal.scheduler.host_swap import MIN_STORED_ROWS

SHAPE = dataclasses.replace(TINY, layer_gain=0.2)
TEXTS = np.random.default_rng(0).integers(0, 256, (3, 900)).tolist()
SETTINGS = {"n_ctx": 2048, "n_batch": 256, "cache_ram": 64, "cache_disk": 0.2}
DRAFTS = {"none": None, "eagle3": "F32-head.gguf", "draft_model": "F32.gguf", "ngram": None, "dflash": "bigram.gguf"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    write_agreeing_pairs(folder, ("F32",), SHAPE)
    shape = dataclasses.replace(TINY, layer_gain=0.02)
    write_bigram_head(folder / "bigram.gguf", write_target(folder / "followed.gguf", shape), shape)
    write_hybrid(folder / "hybrid.gguf")
    return folder


@pytest.fixture(autouse=True)
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(locations, "conversation_cells_dir", lambda: tmp_path / "cells")
    return tmp_path / "cells"


def say(engine: Engine, tokens: list[int], length: int = 24) -> tuple[list[int], int]:
    """Return the answer, and the tokens of the prompt that were not computed."""
    (result,) = drive(engine, [ask("a", tokens, max_tokens=length)]).values()
    assert result.started is not None and result.failed is None
    assert engine.miscounted_slots() == []
    return result.tokens, result.started.cached_tokens


def end(engine: Engine) -> None:
    while engine.work_ahead():
        pass
    engine.close()


def stored(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*"))


def start(target: Path, kind: str = "none", draft: Path | None = None, **changes: object) -> Engine:
    return real_engine(target, kind, draft, **(SETTINGS | changes))


@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize("num_slots", [1, 2])
def test_a_conversation_goes_on_after_a_restart(files: Path, cells: Path, kind: str, num_slots: int) -> None:
    target = files / ("followed.gguf" if kind == "dflash" else "F32.gguf")
    draft = None if DRAFTS[kind] is None else files / str(DRAFTS[kind])
    engine = start(target, kind, draft, num_slots=num_slots)
    said, cached = say(engine, TEXTS[0])
    assert cached == 0
    end(engine)
    (path,) = stored(cells)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    again = start(target, kind, draft, num_slots=num_slots)
    onward = [*TEXTS[0], *said, *TEXTS[1][:40]]
    answer, cached = say(again, onward, 40)
    assert cached >= len(TEXTS[0]) + len(said) - 2
    stats = again.snapshot().speculation
    again.close()
    plain = start(target, cache_disk=0.0)
    assert answer == say(plain, onward, 40)[0]
    plain.close()
    if kind in ("eagle3", "draft_model", "dflash"):
        assert stats.accepted_tokens  # drafters start over, and are right again


def test_recurrent_state_comes_back_too(files: Path, cells: Path) -> None:
    engine = start(files / "hybrid.gguf", n_batch=64)
    said, _ = say(engine, TEXTS[0])
    end(engine)
    assert len(stored(cells)) == 1
    again = start(files / "hybrid.gguf", n_batch=64)
    onward = [*TEXTS[0], *said, *TEXTS[1][:40]]
    answer, cached = say(again, onward)
    again.close()
    plain = start(files / "hybrid.gguf", n_batch=64, cache_disk=0.0)
    assert (answer, cached > MIN_STORED_ROWS) == (say(plain, onward)[0], True)
    plain.close()


def test_a_shared_beginning_is_found_and_a_longer_text_replaces_the_shorter(files: Path, cells: Path) -> None:
    engine = start(files / "F32.gguf")
    shared = TEXTS[0][:700]
    say(engine, [*shared, *TEXTS[1][:20]])
    end(engine)
    engine = start(files / "F32.gguf")
    said, cached = say(engine, [*shared, *TEXTS[2][:600]])
    assert cached in (699, 700)
    end(engine)
    assert len(stored(cells)) == 2  # neither continues the other
    engine = start(files / "F32.gguf")
    say(engine, [*shared, *TEXTS[2][:600], *said, *TEXTS[1][:500]])
    end(engine)
    assert len(stored(cells)) == 2


def test_short_and_unchanged_texts_are_not_written(files: Path, cells: Path) -> None:
    engine = start(files / "F32.gguf")
    say(engine, TEXTS[0][: MIN_STORED_ROWS // 2])
    end(engine)
    assert stored(cells) == []
    engine = start(files / "F32.gguf")
    said, _ = say(engine, TEXTS[0])
    while engine.work_ahead():
        pass
    engine.files.wait()  # type: ignore[union-attr]
    (path,) = stored(cells)
    before = path.stat().st_mtime_ns
    say(engine, [*TEXTS[0], *said, 5])
    end(engine)
    assert [path.stat().st_mtime_ns for path in stored(cells)] == [before]


def test_private_requests_leave_nothing_on_disk(files: Path, cells: Path) -> None:
    engine = start(files / "F32.gguf", "ngram", lookup_memory=10_000)
    private = dataclasses.replace(ask("a", TEXTS[0]), is_private=True)
    assert drive(engine, [private])["a"].failed is None
    while engine.work_ahead():
        pass
    say(engine, TEXTS[1])  # takes the slot
    end(engine)
    assert len(stored(cells)) == 1
    found = [path.read_bytes() for path in [*stored(cells), *locations.lookups_dir().rglob("*.tokens")]]
    ids = np.asarray(TEXTS[0][100:140], "<i4").tobytes()
    assert len(found) > 1 and not any(ids in content for content in found)


@pytest.mark.parametrize("where", ["magic", "description", "tokens", "cells", "end", "cut", "empty", "longer"])
def test_a_damaged_file_is_removed_and_the_prompt_read_anew(files: Path, cells: Path, where: str) -> None:
    engine = start(files / "F32.gguf")
    said, _ = say(engine, TEXTS[0])
    end(engine)
    (path,) = stored(cells)
    content = bytearray(path.read_bytes())
    place = {"magic": 3, "description": 25, "tokens": 400, "cells": len(content) // 2, "end": -1}.get(where)
    if place is not None:
        content[place] ^= 0x55
    changed = {"cut": content[: len(content) // 2], "empty": b"", "longer": content + b"x"}.get(where, content)
    path.write_bytes(changed)
    again = start(files / "F32.gguf")
    assert say(again, [*TEXTS[0], *said, 7])[1] == 0
    end(again)
    assert [one.read_bytes() == bytes(changed) for one in stored(cells)] == [False]  # written anew


def test_another_model_and_another_cache_never_find_it(files: Path, cells: Path) -> None:
    engine = start(files / "F32.gguf")
    say(engine, TEXTS[0])
    end(engine)
    for target, kv_type in ((files / "followed.gguf", "f16"), (files / "F32.gguf", "q8_0")):
        other = start(target, kv_type=kv_type, flash_attn="on")
        assert say(other, [*TEXTS[0], 9])[1] == 0
        other.close()
    assert len({path.parent for path in stored(cells)}) == 3


def test_the_oldest_go_when_the_limit_is_reached(files: Path, cells: Path) -> None:
    engine = start(files / "F32.gguf")
    for text in TEXTS:
        say(engine, text)
    end(engine)
    sizes = [path.stat().st_size for path in stored(cells)]
    assert len(sizes) == 3
    few = start(files / "F32.gguf", cache_disk=2.5 * max(sizes) / 1e9)
    say(few, [(token + 1) % 256 for token in TEXTS[0]])
    end(few)
    assert len(stored(cells)) == 2


def test_a_full_disk_ends_the_writing_and_nothing_else(
    files: Path, cells: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("eaglelocal.engine.conversation_files.write_file", refuse)
    engine = start(files / "F32.gguf")
    said, _ = say(engine, TEXTS[0])
    while engine.work_ahead():
        pass
    engine.files.wait()  # type: ignore[union-attr]
    assert engine.snapshot().store_problem == "No space left on device"
    assert caplog.messages == ["conversations are no longer kept on disk: No space left on device"]
    assert say(engine, [*TEXTS[0], *said, 7])[1] > 0
    end(engine)
    assert stored(cells) == []


def test_a_write_that_was_cut_off_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".eaglelocal-left.part").write_bytes(b"half")
    files = ConversationFiles(folder, 10**9)
    files.fetch(Request(id="a", prompt=tuple(range(600)), params=SamplingParams()), 0, 10**9)
    files.close()
    assert os.listdir(folder) == []


def test_windows_are_stored_when_they_lose_their_slot(tmp_path: Path, cells: Path) -> None:
    target = write_windowed(tmp_path / "windowed.gguf")
    engine = start(target, swa_full=False)
    said, _ = say(engine, TEXTS[0])
    say(engine, TEXTS[1][:40])
    end(engine)
    again = start(target, swa_full=False)
    onward = [*TEXTS[0], *said, *TEXTS[2][:30]]
    answer, cached = say(again, onward)
    again.close()
    plain = start(target, swa_full=False, cache_disk=0.0)
    assert (answer, cached > MIN_STORED_ROWS) == (say(plain, onward)[0], bool(stored(cells)))
    plain.close()
