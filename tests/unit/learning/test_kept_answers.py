"""Answers that are kept to learn from: bounded by bytes and age, private, and whole whatever interrupts a write."""

from __future__ import annotations

import errno
import multiprocessing
import os
from array import array
from pathlib import Path

import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.learning import kept_answers
from eaglelocal.learning.kept_answers import (
    MIN_FILE_BYTES,
    SUFFIX,
    KeptAnswer,
    KeptAnswers,
    encode,
    hash_owner,
    make_answer,
    prune_noted,
    read_file,
)

MIB, DAY_S = 2**20, 86_400.0
ANSWERS = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "eve"]),
        st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=300),
        st.floats(0, 3 * DAY_S),
    ),
    max_size=40,
)


def keep(folder: Path, *, max_bytes: int = MIB, max_age_s: float = 30 * DAY_S) -> KeptAnswers:
    return KeptAnswers(folder, max_bytes=max_bytes, max_age_s=max_age_s)


def answer(first: int, *, num: int = 20, now: float = 1e6, num_prompt: int = 8) -> KeptAnswer:
    return make_answer(tuple(range(first, first + num)), num_prompt, now=now)


def list_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*/*{SUFFIX}"))


def num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in list_files(folder))


def test_a_chat_and_a_server_without_keys_are_one_owner_and_keys_are_others(tmp_path: Path) -> None:
    kept = keep(tmp_path, max_age_s=1e9)
    for first, name in ((300, "ann"), (400, ""), (500, "local")):
        kept.append(name, answer(first, now=2e3))
    owners = {found.tokens[0]: found.owner for found in kept.read()}
    own = hash_owner("local")
    assert owners == {300: hash_owner("ann"), 400: own, 500: own}
    assert len({hash_owner(name) for name in ("", "local", "this machine", "environment", "ann")}) == 4
    assert len(list_files(tmp_path)) == 2


def test_answers_come_back_by_time_with_hashes_of_their_owners(tmp_path: Path) -> None:
    keep(tmp_path).append("ann", make_answer((5, 6, 7), 2, kind=3, now=20.0))
    keep(tmp_path).append("bob", make_answer((8, 9), 1, now=10.0))
    found = keep(tmp_path).read()
    assert found == [
        KeptAnswer(hash_owner("bob"), array("i", (8, 9)), 1, 10.0),
        KeptAnswer(hash_owner("ann"), array("i", (5, 6, 7)), 2, 20.0, 3),
    ]
    assert found[1].num_answer_tokens == 1
    assert keep(tmp_path).size().num_answers == 2 and keep(tmp_path).size().num_bytes == num_bytes(tmp_path)


def test_files_contain_no_names_and_are_the_users_own(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    keep(folder).append("ann", answer(1))
    (path,) = list_files(folder)
    assert "ann" not in str(path.relative_to(tmp_path))
    assert {each.stat().st_mode & 0o777 for each in folder.rglob("*") if each.is_file()} == {0o600}
    assert {each.stat().st_mode & 0o777 for each in (folder.parent, folder, path.parent)} == {0o700}


@examples(50)
@given(ANSWERS, st.integers(400, 20_000))
def test_the_bounds_hold_after_every_answer(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[str, list[int], float]], max_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("answers")
    kept = keep(folder, max_bytes=max_bytes, max_age_s=DAY_S)
    for owner, tokens, now in sorted(asked, key=lambda each: each[2]):
        one = make_answer(tuple(tokens), 1, now=now)
        kept.append(owner, one)
        assert num_bytes(folder) <= max_bytes
        found = kept.read()
        assert all(now - each.kept_at <= DAY_S for each in found)
        assert any(each.key == one.key for each in found) or len(encode(one)) > max_bytes
        assert kept.size().num_answers == len(found)


def test_one_owner_cannot_push_out_another(tmp_path: Path) -> None:
    kept = keep(tmp_path, max_bytes=16 * MIN_FILE_BYTES)
    kept.append("ann", answer(1, now=1.0))
    for number in range(2000):
        kept.append("eve", answer(number, num=100, now=2.0 + number))
    assert [each.tokens[0] for each in kept.read() if each.owner == hash_owner("ann")] == [1]


@pytest.mark.parametrize("cut", range(0, 80, 7))
def test_a_write_that_was_cut_off_loses_one_answer(tmp_path: Path, cut: int) -> None:
    kept = keep(tmp_path)
    kept.append("ann", answer(1))
    kept.append("ann", answer(2))
    (path,) = list_files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 + cut])
    assert [each.tokens[0] for each in keep(tmp_path).read()] == [1]
    keep(tmp_path).append("ann", answer(3, now=2e6))  # by another process: in a file of its own
    assert [each.tokens[0] for each in keep(tmp_path).read()] == [1, 3]


@examples(60)
@given(st.data())
def test_any_damage_is_read_as_answers_before_it(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("answers") / "a.tokens"
    records = [encode(answer(number)) for number in range(4)]
    content = bytearray(b"".join(records))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    assert [each.tokens[0] for each in read_file(path, "ann")] == list(range(at // len(records[0])))


def append_many(folder: Path, owner: str, first: int) -> None:
    kept = keep(folder)
    for number in range(50):
        kept.append(owner, answer(first + number, now=1e6 + number))


def test_two_processes_keep_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=append_many, args=(tmp_path, "ann", first)) for first in (0, 1000)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert sorted(each.tokens[0] for each in keep(tmp_path).read()) == [*range(50), *range(1000, 1050)]


def test_a_full_disk_leaves_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keep(tmp_path)
    kept.append("ann", answer(1))
    real_write = os.write

    def write_half(handle: int, content: bytes) -> int:
        return real_write(handle, content[: len(content) // 2])

    monkeypatch.setattr(kept_answers.os, "write", write_half)
    with pytest.raises(OSError) as caught:
        kept.append("ann", answer(2))
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    kept.append("ann", answer(3))
    assert [each.tokens[0] for each in keep(tmp_path).read()] == [1, 3]


def test_only_the_newest_of_much_is_read(tmp_path: Path) -> None:
    kept = keep(tmp_path)
    for number in range(200):
        kept.append("ann", answer(number, num=100, now=1e6 + number))
    assert len(list_files(tmp_path)) > 2
    found = kept.read(max_tokens=1000)
    assert found[-1].tokens[0] == 199 and 10 <= len(found) < 200


def test_only_the_age_that_was_noted_deletes_answers_of_a_model_that_is_not_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    kept = KeptAnswers(folder, max_bytes=MIB, max_age_s=10 * DAY_S, target=Path("m.gguf"))
    kept.append("ann", answer(1, now=DAY_S))
    assert kept_answers.read_target(tmp_path) == str(Path.cwd() / "m.gguf")
    prune_noted(folder, 10.9 * DAY_S)
    assert len(kept.read()) == 1
    for text in ("", "nan", "-1"):
        (tmp_path / kept_answers.MAX_AGE).write_text(text)
        prune_noted(folder, 99 * DAY_S)
        assert len(kept.read()) == 1
    other = KeptAnswers(folder, max_bytes=MIB, max_age_s=20 * DAY_S, target=Path("m.gguf"))
    other.append("ann", answer(2, now=2 * DAY_S))  # the last limit counts
    prune_noted(folder, 20.9 * DAY_S)
    assert len(kept.read()) == 2
    prune_noted(folder, 22.1 * DAY_S)
    assert kept.read() == []
