"""Memory is cleared as by memset, and what was never touched stays untouched."""

from __future__ import annotations

import ctypes as C
import mmap
import os
import platform
import re
import sys
import threading
from collections.abc import Iterator

import pytest

from eaglelocal.backend import lazy_clearing
from eaglelocal.backend.lazy_clearing import clear_memory, find_touched, list_pieces, populate, populate_last

PAGE = mmap.PAGESIZE
NUM_PAGES = 64
LINUX = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="knows Linux's list of pages")


@pytest.fixture
def memory() -> mmap.mmap:
    return mmap.mmap(-1, NUM_PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def address(memory: mmap.mmap) -> int:
    return C.addressof(C.c_char.from_buffer(memory))


def test_only_touched_pages_are_written(memory: mmap.mmap) -> None:
    for page in (3, 4, 10):
        memory[page * PAGE + 5] = 7
    first = address(memory)
    fresh = clear_memory(first, NUM_PAGES * PAGE, 0)
    assert [((start - first) // PAGE, (end - first) // PAGE) for start, end in fresh] == [(0, 3), (5, 10), (11, 64)]
    assert find_touched(first, NUM_PAGES * PAGE) == [
        (first + 3 * PAGE, first + 5 * PAGE),
        (first + 10 * PAGE, first + 11 * PAGE),
    ]
    assert memory[:] == bytes(NUM_PAGES * PAGE)


def test_what_lies_around_it_is_kept(memory: mmap.mmap) -> None:
    memory[:] = b"\1" * len(memory)
    assert clear_memory(address(memory) + 100, 5 * PAGE, 0) == []
    assert memory[:100] == b"\1" * 100 and memory[100 + 5 * PAGE :] == b"\1" * (len(memory) - 100 - 5 * PAGE)
    assert memory[100 : 100 + 5 * PAGE] == bytes(5 * PAGE)


def test_another_value_is_written_everywhere(memory: mmap.mmap) -> None:
    assert clear_memory(address(memory), len(memory), 3) == []
    assert memory[:] == b"\3" * len(memory)


def test_without_the_list_of_pages_everything_is_written(memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_clearing, "PAGES", "/nowhere")
    memory[PAGE] = 1
    assert clear_memory(address(memory), len(memory), 0) == []
    assert memory[:] == bytes(len(memory))


@pytest.mark.skipif(LINUX < (5, 14), reason="this Linux cannot provide memory in advance")
def test_memory_is_provided_with_its_content_kept(memory: mmap.mmap) -> None:
    memory[2 * PAGE] = 9
    first = address(memory)
    populate([(first + 1, first + 9 * PAGE)])
    assert find_touched(first, NUM_PAGES * PAGE) == [(first + PAGE, first + 9 * PAGE)]
    assert memory[2 * PAGE] == 9 and not any(memory[3 * PAGE :])


def test_memory_is_provided_behind_the_first_answers(memory: mmap.mmap) -> None:
    """Else it takes a processor from them; the priority of the other threads stays."""
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    seen: list[int] = []

    def ranges() -> Iterator[tuple[int, int]]:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        yield address(memory), address(memory) + 3 * PAGE

    thread = threading.Thread(target=populate_last, args=(ranges(),))
    thread.start()
    thread.join()
    assert seen == [19]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
    assert find_touched(address(memory), NUM_PAGES * PAGE) == [(address(memory), address(memory) + 3 * PAGE)]


def test_the_beginnings_of_all_tensors_are_provided_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots lie behind one another in each tensor: in a row, the first tensors would take all that is provided."""
    monkeypatch.setattr(lazy_clearing, "PIECE_BYTES", 2 * PAGE)
    cache = (0, 12 * PAGE)
    found = [(first // PAGE, end // PAGE) for first, end in list_pieces([cache], 3, 8 * PAGE)]
    assert found == [(0, 2), (4, 6), (8, 10), (2, 4)]
    assert list(list_pieces([], 3, 100)) == []


@pytest.mark.parametrize("num_parts", [0, 1, 3, 7, 1000])
def test_all_is_provided_once_where_there_is_little(monkeypatch: pytest.MonkeyPatch, num_parts: int) -> None:
    monkeypatch.setattr(lazy_clearing, "PIECE_BYTES", 2 * PAGE)
    ranges = [(5, 10 * PAGE + 7), (20 * PAGE, 23 * PAGE)]
    pieces = sorted(list_pieces(ranges, num_parts, 1000 * PAGE))
    covered = [byte for first, end in pieces for byte in (first, end)]
    assert covered == sorted(covered) and sum(end - first for first, end in pieces) == 13 * PAGE + 2
    limited = list(list_pieces(ranges, num_parts, 4 * PAGE))
    assert sum(end - first for first, end in limited) == 4 * PAGE
