"""Wide weights move into huge pages of the engine's own while it runs; they stay mapped in an engine for one answer."""

from __future__ import annotations

import ctypes as C
import mmap
import os
import re
import threading
import time
from pathlib import Path

import pytest
from doubles.random_models import TargetShape, write_target

from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel
from eaglelocal.backend.native_step import get_function, load_native
from eaglelocal.backend.weight_loading import exclude_others, find_mappings, move_weights, moving_weights
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.events import Tokens
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.probe.probe import probe

HUGE_PAGE = 2 * 2**20
SHAPE = TargetShape(n_vocab=4096, n_embd=512, n_ff=2048, type="BF16")

pytestmark = pytest.mark.skipif(
    probe().memory.huge_pages not in ("always", "madvise"), reason="this system has no huge pages for who asks"
)


class Mapped:
    """A mapped file of random bytes."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        self.path, self.content = path, os.urandom(num_bytes)
        path.write_bytes(self.content)
        with path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        ((self.first, self.end),) = find_mappings(path)

    def read(self) -> bytes:
        return self.map[:]

    def num_whole_pages(self) -> int:
        return max(0, self.end // HUGE_PAGE - -(-self.first // HUGE_PAGE))


@pytest.mark.parametrize("num_bytes", [1000, HUGE_PAGE, 3 * HUGE_PAGE + 4096, 9 * HUGE_PAGE + 5])
def test_whole_huge_pages_move_and_read_the_same(tmp_path: Path, num_bytes: int) -> None:
    mapped = Mapped(tmp_path / f"of {num_bytes} bytes", num_bytes)
    before = sum(end - first for first, end in find_mappings(mapped.path))
    move_weights([(mapped.first, mapped.end)], C.c_int32(0))
    after = sum(end - first for first, end in find_mappings(mapped.path))
    assert before - after == mapped.num_whole_pages() * HUGE_PAGE
    assert mapped.read() == mapped.content
    mapped.map.close()  # unmaps all of it, moved or not
    assert not find_mappings(mapped.path)


def test_reads_during_the_move_see_the_same_weights(tmp_path: Path) -> None:
    mapped = Mapped(tmp_path / "weights", 40 * HUGE_PAGE)
    differing: list[bytes] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            if (found := mapped.read()) != mapped.content:
                differing.append(found)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    move_weights([(mapped.first, mapped.end)], C.c_int32(0))
    done.set()
    for reader in readers:
        reader.join()
    assert not differing and mapped.read() == mapped.content


def test_the_end_of_the_block_ends_the_move(tmp_path: Path) -> None:
    mapped = Mapped(tmp_path / "weights", 20 * HUGE_PAGE)
    move_weights([(mapped.first, mapped.end)], C.c_int32(1))
    assert find_mappings(mapped.path) == [(mapped.first, mapped.end)]
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with moving_weights([(mapped.first, mapped.end)]):
        pass
    assert os.getpriority(os.PRIO_PROCESS, 0) == before, "only the thread that moves gives way"
    assert not [thread for thread in threading.enumerate() if thread.name == "weights"]
    assert mapped.read() == mapped.content


def test_weights_give_way_to_decodes(tmp_path: Path) -> None:
    mapped = Mapped(tmp_path / "weights", 40 * HUGE_PAGE)
    mark_decode = get_function(load_native(C.CDLL), "mark_decode", [C.c_bool], None)
    mark_decode(True)
    try:
        with moving_weights([(mapped.first, mapped.end)]):
            time.sleep(0.1)
    finally:
        mark_decode(False)
    assert sum(end - first for first, end in find_mappings(mapped.path)) > 20 * HUGE_PAGE
    assert mapped.read() == mapped.content
    move_weights([(mapped.first, mapped.end)], C.c_int32(0))
    assert sum(end - first for first, end in find_mappings(mapped.path)) < 2 * HUGE_PAGE


def test_where_memory_is_refused_the_file_stays_mapped(tmp_path: Path) -> None:
    mapped = Mapped(tmp_path / "weights", 4 * HUGE_PAGE)
    move_weights([(mapped.first, mapped.first + 2**62)], C.c_int32(0))
    assert find_mappings(mapped.path) == [(mapped.first, mapped.end)]


def test_the_mapping_of_another_reader_is_not_the_models(tmp_path: Path) -> None:
    path = write_target(tmp_path / "target.gguf", SHAPE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        (other,) = find_mappings(path)
        model = LlamaModel(load_library(), path)
        assert model.mapped and other not in model.mapped
        model.close()


def pages_of(path: Path, process: int) -> tuple[int, int]:
    """Bytes of the file that are mapped into a process, and bytes of its huge pages."""
    folder = Path("/proc") / str(process)
    huge = re.search(r"AnonHugePages: +(\d+) kB", (folder / "smaps_rollup").read_text())
    assert huge is not None
    spans = [line.split()[0].split("-") for line in (folder / "maps").read_text().splitlines() if str(path) in line]
    return sum(int(end, 16) - int(first, 16) for first, end in spans), 1024 * int(huge[1])


@pytest.mark.parametrize("is_brief", [False, True])
def test_wide_weights_move_unless_for_one_answer(tmp_path: Path, is_brief: bool) -> None:
    path = write_target(tmp_path / "target.gguf", SHAPE)
    size = path.stat().st_size
    plan = Plan(target=path, target_label="random", n_ctx=256, is_brief=is_brief)
    with EngineClient(plan) as client:
        client.start()
        process = client.snapshot().engine_pid
        deadline = time.monotonic() + (2.0 if is_brief else 60.0)
        while time.monotonic() < deadline and pages_of(path, process)[0] > 0.2 * size:
            time.sleep(0.05)
        mapped_bytes, huge_bytes = pages_of(path, process)
    assert (mapped_bytes < 0.2 * size and huge_bytes > 0.6 * size) is not is_brief
    assert (mapped_bytes > 0.9 * size) is is_brief


def test_answers_are_the_same_while_weights_move(tmp_path: Path) -> None:
    path = write_target(tmp_path / "target.gguf", SHAPE)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    texts = []
    for is_brief in (False, True):
        with EngineClient(Plan(target=path, target_label="random", n_ctx=256, is_brief=is_brief)) as client:
            client.start()
            for number in range(4):
                request = ChatRequest(id=str(number), tokens=tuple(range(1, 40)), params=params)
                texts.append([event.text for event in client.stream(request) if isinstance(event, Tokens)])
    assert texts[0] and all(text == texts[0] for text in texts)


def test_what_is_left_of_another_readers_mapping_is_not_ours() -> None:
    """The other's weights may have moved between the two looks: its mapping is shorter then."""
    others = [(100, 200), (300, 400)]
    assert exclude_others([(140, 200), (300, 350), (500, 600)], others) == [(500, 600)]
    assert exclude_others([(200, 300), (90, 100)], others) == [(200, 300), (90, 100)]
    assert exclude_others([(100, 200)], []) == [(100, 200)]
