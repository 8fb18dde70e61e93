"""Memory is cleared as by memset, and what was never touched stays untouched."""

from __future__ import annotations

import ctypes as C
import mmap
import platform
import re
import sys

import pytest

from eaglelocal.backend import lazy_clearing
from eaglelocal.backend.lazy_clearing import clear_memory, find_touched, populate

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
