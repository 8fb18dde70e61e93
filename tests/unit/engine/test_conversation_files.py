"""Files of conversations: what was written comes back, and whatever else lies there is refused and removed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles.property_tests import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from eaglelocal.core.request import Request
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.engine.conversation_files import (
    ConversationFiles,
    DamagedFileError,
    StoredCells,
    read_file,
    write_file,
)
from eaglelocal.scheduler.host_swap import StoredText, SwappedText

TOKENS = list(range(1000))
CELLS = np.arange(5000, dtype=np.uint8)
STATES = {40: bytearray(b"early"), 900: bytearray(b"late")}


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder with nothing beside it, for all models' files share the bound."""
    folder = tmp_path / "cells" / "model"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def files(tmp_path: Path) -> Iterator[ConversationFiles]:
    opened = ConversationFiles(tmp_path, 10**9)
    yield opened
    opened.close()


def asked(prompt: list[int], **changes: Any) -> Request:
    return Request(id="a", prompt=tuple(prompt), params=SamplingParams(), **changes)


def held(tokens: list[int], **changes: Any) -> SwappedText:
    return SwappedText(tokens, is_seen=True, **changes)


def fetch(files: ConversationFiles, prompt: list[int], **changes: Any) -> StoredCells | None:
    files.fetch(asked(prompt, **changes), 0, 10**9)
    return next(files.take_read(), None)


def test_what_was_written_comes_back(files: ConversationFiles, tmp_path: Path) -> None:
    files.write_later(held(TOKENS, places=(40, 900)), CELLS, STATES)
    files.wait()
    again = ConversationFiles(tmp_path, 10**9)
    found = fetch(again, [*TOKENS, 5])
    again.close()
    assert found is not None
    assert (list(found.text.tokens), found.text.places, found.states) == (TOKENS, (40, 900), STATES)
    assert (found.cells == CELLS).all()


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_change_of_a_file_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a.cells"
    write_file(path, StoredText(path.name, TOKENS, (40, 900)), CELLS, STATES)
    content = bytearray(path.read_bytes())
    change = data.draw(st.sampled_from(["flip", "cut", "longer", "noise"]))
    at = data.draw(st.integers(0, len(content) - 1))
    if change == "flip":
        content[at] ^= data.draw(st.integers(1, 255))
    elif change == "cut":
        del content[at:]
    else:
        content[at:at] = data.draw(st.binary(min_size=1, max_size=50))
    path.write_bytes(content)
    with pytest.raises(DamagedFileError):
        read_file(path)


@pytest.mark.parametrize(
    ("written", "flipped"),
    [
        (b'"owner": "ann"', b'"owner": "bob"'),
        (b'"adapters": "a:1.0"', b'"adapters": "b:1.0"'),
        (b"[40, 900]", b"[40, 901]"),
    ],
    ids=["owner", "adapters", "places"],
)
def test_a_description_that_was_changed_is_refused_when_the_folder_is_read(
    tmp_path: Path, written: bytes, flipped: bytes
) -> None:
    path = tmp_path / "a.cells"
    write_file(path, StoredText(path.name, TOKENS, (40, 900), owner="ann", adapters="a:1.0"), CELLS, STATES)
    content = path.read_bytes()
    assert content.count(written) == 1
    path.write_bytes(content.replace(written, flipped))
    opened = ConversationFiles(tmp_path, 10**9)
    opened.wait()
    opened.close()
    assert (len(opened.index), path.exists()) == (0, False)


def test_a_whole_description_of_another_file_is_refused(tmp_path: Path) -> None:
    """It fits itself and the tokens, but not these cells."""
    contents = []
    for owner, cells in (("ann", CELLS), ("bob", CELLS[::-1].copy())):
        path = tmp_path / "a.cells"
        write_file(path, StoredText(path.name, TOKENS, owner=owner), cells, {})
        contents.append(path.read_bytes())
    path.write_bytes(contents[0][: -len(CELLS) - 4] + contents[1][-len(CELLS) - 4 :])
    with pytest.raises(DamagedFileError):
        read_file(path)


def test_a_file_without_an_owner_belongs_to_no_owner(files: ConversationFiles, tmp_path: Path) -> None:
    """As versions before this one wrote them."""
    files.write_later(held(TOKENS), CELLS)
    files.wait()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes().replace(b"cells 2", b"cells 1"))
    opened = ConversationFiles(tmp_path, 10**9)
    assert fetch(opened, [*TOKENS, 5]) is None and not path.exists()
    opened.close()


NAMES = {"ann": "digest of ann's key", "bob": "digest of bob's key"}


@pytest.mark.parametrize(
    ("owner", "names", "num_shared", "found_owner"),
    [
        ("ann", NAMES, 0, "ann"),
        ("bob", NAMES, 0, None),
        ("carol", NAMES, 0, None),
        ("anna", {"anna": NAMES["ann"]}, 0, "anna"),  # the key has another name now
        ("ann", {"ann": "digest of another key"}, 0, None),  # another person has the name
        ("ann", {}, 0, None),  # the server has no keys anymore
        ("local", {}, 0, None),
        ("bob", NAMES, 600, "ann"),
        ("bob", {"bob": NAMES["bob"]}, 600, NAMES["ann"]),  # who wrote it has no key anymore
        ("bob", NAMES, 400, None),  # too little to read a file for
    ],
)
def test_a_text_on_disk_is_found_by_the_key_that_wrote_it(
    tmp_path: Path, owner: str, names: dict[str, str], num_shared: int, found_owner: str | None
) -> None:
    """Of others' texts no more than a shared beginning is found, and what was read still is its writer's."""
    first = ConversationFiles(tmp_path, 10**9, NAMES)
    first.write_later(held(TOKENS, owner="ann"), CELLS)
    first.close()
    (path,) = tmp_path.iterdir()
    assert b"ann's key" in path.read_bytes()[:200]
    again = ConversationFiles(tmp_path, 10**9, names)
    found = fetch(again, [*TOKENS, 5], owner=owner, num_shared=num_shared)
    again.close()
    assert (None if found is None else found.owner) == found_owner


@pytest.mark.parametrize(
    ("writer", "reader"), [("", "local"), ("local", ""), ("", ""), ("this machine", "this machine")]
)
def test_without_a_key_of_their_own_owners_are_known_by_name(tmp_path: Path, writer: str, reader: str) -> None:
    first = ConversationFiles(tmp_path, 10**9)
    first.write_later(held(TOKENS, owner=writer), CELLS)
    first.close()
    again = ConversationFiles(tmp_path, 10**9)
    found = fetch(again, [*TOKENS, 5], owner=reader)
    again.close()
    assert found is not None and found.owner == reader


def test_equal_texts_of_two_owners_are_two_files(files: ConversationFiles, tmp_path: Path) -> None:
    for owner in ("ann", "bob"):
        assert files.wants(held(TOKENS, owner=owner))
        files.write_later(held(TOKENS, owner=owner), CELLS)
    files.wait()
    assert len(list(tmp_path.iterdir())) == len(files.index) == 2
    assert not files.wants(held(TOKENS, owner="ann")) and files.wants(held(TOKENS, owner="carol"))


def test_a_file_that_vanished_is_no_text(files: ConversationFiles, tmp_path: Path) -> None:
    files.write_later(held(TOKENS), CELLS)
    files.wait()
    for path in tmp_path.iterdir():
        path.unlink()
    assert fetch(files, [*TOKENS, 5]) is None
    assert len(files.index) == 0


def test_lanes_may_look_while_texts_are_written(files: ConversationFiles) -> None:
    texts = [[seed, *TOKENS] for seed in range(8)]
    problems: list[Exception] = []

    def look() -> None:
        try:
            for _ in range(20):
                for text in texts:
                    fetch(files, [*text, 5])
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for text in texts:
        files.write_later(held(text), CELLS)
    for thread in threads:
        thread.join()
    files.wait()
    assert problems == [] and len(files.index) == 8


def test_two_processes_share_a_folder(files: ConversationFiles, tmp_path: Path) -> None:
    other = ConversationFiles(tmp_path, 10**9)
    for opened in (files, other):
        opened.write_later(held(TOKENS), CELLS)
        opened.wait()
    assert len(list(tmp_path.iterdir())) == 1
    assert fetch(files, [*TOKENS, 5]) is not None and fetch(other, [*TOKENS, 5]) is not None
    other.close()


def test_what_a_longer_text_continues_is_removed(files: ConversationFiles, tmp_path: Path) -> None:
    files.write_later(held(TOKENS), CELLS)
    files.write_later(held([*TOKENS, *TOKENS]), CELLS)
    files.wait()
    assert len(list(tmp_path.iterdir())) == 1
    found = fetch(files, [*TOKENS, *TOKENS[:10], 7])
    assert found is not None and len(found.text.tokens) == 2 * len(TOKENS)


def test_a_text_larger_than_the_bound_is_not_written_and_removes_nothing(tmp_path: Path) -> None:
    few = ConversationFiles(tmp_path, 3 * len(CELLS))
    few.write_later(held(TOKENS), CELLS)
    few.write_later(held([7, *TOKENS]), np.zeros(4 * len(CELLS), np.uint8))
    few.wait()
    assert len(list(tmp_path.iterdir())) == 1 and not few.problem
    few.close()


def test_the_bound_holds_for_the_files_of_all_models_together(tmp_path: Path) -> None:
    bound = int(2.5 * (len(CELLS) + 4 * len(TOKENS) + 300))  # bytes of two files
    for number in range(4):
        one = ConversationFiles(tmp_path.parent / f"model{number}", bound)
        one.write_later(held([number, *TOKENS]), CELLS)
        one.wait()
        one.close()
        (written,) = (tmp_path.parent / f"model{number}").glob("*.cells")
        os.utime(written, (number, number))  # clocks of file systems may tick slowly
    left = sorted(path.parent.name for path in tmp_path.parent.glob("*/*.cells"))
    assert left == ["model2", "model3"]


def test_a_slow_disk_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglelocal.engine.conversation_files.MAX_PENDING_BYTES", 2 * len(CELLS))
    may_go_on = threading.Event()
    monkeypatch.setattr("eaglelocal.engine.conversation_files.write_file", lambda *_: may_go_on.wait(30))
    files = ConversationFiles(tmp_path, 10**9)
    assert files.wants(held(TOKENS))
    files.write_later(held(TOKENS), CELLS)
    assert not files.wants(held(TOKENS))  # it is being written
    assert files.wants(held([5, *TOKENS]))
    files.write_later(held([5, *TOKENS]), CELLS)
    assert not files.wants(held([6, *TOKENS]))
    may_go_on.set()
    files.wait()
    assert files.wants(held([6, *TOKENS]))
    files.close()


def test_foreign_files_are_ignored(files: ConversationFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pipe would be waited for, for ever, and with it every prompt; a device has no end."""
    files.write_later(held(TOKENS), CELLS)
    files.wait()
    (written,) = tmp_path.glob("*.cells")
    os.mkfifo(tmp_path / "pipe.cells")
    (tmp_path / "folder.cells").mkdir()
    (tmp_path / "loop.cells").symlink_to("loop.cells")
    (tmp_path / "device.cells").symlink_to("/dev/zero")
    opened = ConversationFiles(tmp_path, 10**9)
    opened.wait()
    assert len(opened.index) == 1 and "pipe.cells is skipped: it is a pipe" in caplog.text
    written.unlink()
    os.mkfifo(written)
    assert fetch(opened, [*TOKENS, 5]) is None
    opened.close()
    assert len(list(tmp_path.iterdir())) == 5  # nothing was removed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_cells_that_another_user_put_there_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.cells"
    write_file(path, StoredText(path.name, TOKENS), CELLS, {})
    os.chown(path, 12345, -1)
    opened = ConversationFiles(tmp_path, 10**9)
    opened.wait()
    opened.close()
    assert len(opened.index) == 0 and path.exists()
