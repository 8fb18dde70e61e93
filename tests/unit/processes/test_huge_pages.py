"""Which processes get huge pages, and the tunables that glibc is given."""

from __future__ import annotations

import os

import pytest

from eaglelocal.processes.child_process import TUNABLES, glibc_version, has_huge_pages, tunables


@pytest.mark.parametrize(
    ("theirs", "tunables_text"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.arena_max=1", "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
        ("glibc.malloc.hugetlb=2:glibc.cpu.x86_ibt=on", "glibc.malloc.hugetlb=2:glibc.cpu.x86_ibt=on"),
    ],
)
def test_what_people_said_themselves_stays(theirs: str | None, tunables_text: str) -> None:
    assert tunables({} if theirs is None else {TUNABLES: theirs}) == tunables_text


@pytest.mark.parametrize(
    ("setting", "tunables_text", "glibc", "expected"),
    [
        ("always", "", (), True),
        ("madvise", "glibc.malloc.hugetlb=1", (2, 36), True),
        ("madvise", "glibc.malloc.hugetlb=1", (2, 35), True),
        ("madvise", "glibc.malloc.hugetlb=1", (2, 31), False),
        ("madvise", "glibc.malloc.hugetlb=1", (), False),
        ("madvise", "glibc.malloc.hugetlb=0", (2, 36), False),
        ("madvise", "", (2, 36), False),
        ("never", "glibc.malloc.hugetlb=1", (2, 36), False),
        (None, "glibc.malloc.hugetlb=1", (2, 36), False),
    ],
)
def test_huge_pages_by_system_and_setting(
    setting: str | None, tunables_text: str, glibc: tuple[int, ...], expected: bool
) -> None:
    assert has_huge_pages(setting, {TUNABLES: tunables_text}, glibc) is expected


@pytest.mark.parametrize(
    ("answer", "version"), [("glibc 2.36", (2, 36)), ("", ()), ("musl 1.2.4", ()), ("glibc 2.39.9000", (2, 39, 9000))]
)
def test_the_version_of_the_c_library(monkeypatch: pytest.MonkeyPatch, answer: str, version: tuple[int, ...]) -> None:
    monkeypatch.setattr(os, "confstr", lambda name: answer, raising=False)
    assert glibc_version() == version


def test_a_system_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "confstr", raising=False)
    assert glibc_version() == ()
