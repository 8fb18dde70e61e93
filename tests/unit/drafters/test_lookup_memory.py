"""Texts that lookups remember on disk: per owner, bounded, once each, and never in the way of an answer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
from doubles.chains import root
from doubles.property_tests import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglelocal.drafters.drafter import Committed
from eaglelocal.drafters.lookup_memory import BREAK, MAX_EXCESS, SUFFIX, TOKEN_BYTES, LookupMemory
from eaglelocal.drafters.ngram import KNOWN_TOKENS, MAX_REMEMBERED, Ngram, select_unknown
from eaglelocal.drafters.text_index import CONTEXT, Generations

CODE = list(range(1000, 1200))
CTX = 4096
N_VOCAB = 2**31


def answer(drafter: Ngram, owner: str, prompt: Sequence[int], said: Sequence[int]) -> None:
    """Have a slot read a prompt and write an answer."""
    text = [*prompt, *said]
    drafter.begin(0, owner, len(prompt))
    drafter.rollback(0, 0)
    drafter.commit([Committed(0, 0, text, None)])
    drafter.end(0)


def drafted_after(drafter: Ngram, owner: str, text: list[int], depth: int = 8) -> list[int]:
    drafter.begin(0, owner, len(text))
    drafter.rollback(0, 0)
    drafter.commit([Committed(0, 0, text[:-1], None)])
    (more,) = drafter.draft([root(0, text)], depth)
    return list(more.tokens)


def test_prompts_and_answers_are_found_in_another_process(tmp_path: Path) -> None:
    answer(Ngram(CTX, memory=LookupMemory(tmp_path, 10_000, N_VOCAB)), "ann", CODE[:100], CODE[100:])
    later = Ngram(CTX, memory=LookupMemory(tmp_path, 10_000, N_VOCAB))
    assert drafted_after(later, "ann", [7, *CODE[20:30]]) == CODE[30:38]
    assert drafted_after(later, "ann", [7, *CODE[95:105]]) == CODE[105:113]
    assert drafted_after(later, "bob", [7, *CODE[20:30]]) == []
    assert drafted_after(Ngram(CTX), "ann", [7, *CODE[20:30]]) == []


def test_a_chat_and_a_server_without_keys_remember_together(tmp_path: Path) -> None:
    answer(Ngram(CTX, memory=LookupMemory(tmp_path, 10_000, N_VOCAB)), "", CODE[:100], CODE[100:])
    later = Ngram(CTX, memory=LookupMemory(tmp_path, 10_000, N_VOCAB))
    assert drafted_after(later, "local", [7, *CODE[20:30]]) == CODE[30:38]
    assert drafted_after(later, "this machine", [7, *CODE[20:30]]) == []


def test_texts_belong_to_a_key_and_not_to_its_name(tmp_path: Path) -> None:
    """A name may be another person's after the key file was changed, as `key 1` is when its first line is gone."""

    def open_with(**names: str) -> Ngram:
        return Ngram(CTX, memory=LookupMemory(tmp_path, 10_000, N_VOCAB, names))

    answer(open_with(ann="first digest"), "ann", CODE[:100], CODE[100:])
    assert drafted_after(open_with(ann="another digest"), "ann", [7, *CODE[20:30]]) == []
    assert drafted_after(open_with(anna="first digest"), "anna", [7, *CODE[20:30]]) == CODE[30:38]
    assert drafted_after(open_with(), "ann", [7, *CODE[20:30]]) == []


def test_files_contain_no_names_and_are_the_users_own(tmp_path: Path) -> None:
    memory = LookupMemory(tmp_path / "new" / "folder", 100, N_VOCAB)
    memory.append("ann", [1, 2, 3])
    memory.append("bob", [4])
    files = sorted((tmp_path / "new" / "folder").iterdir())
    assert len(files) == 2 and all(path.suffix == SUFFIX and "ann" not in path.name for path in files)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@examples(60)
@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30), max_size=20), st.integers(1, 80))
def test_the_newest_tokens_are_kept(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], most: int
) -> None:
    folder = tmp_path_factory.mktemp("memory")
    memory = LookupMemory(folder, most, N_VOCAB)
    written: list[int] = []
    for text in texts:
        memory.append("ann", text)
        written += [*text, BREAK]
    for path in folder.iterdir():
        assert path.suffix == SUFFIX
        assert path.stat().st_size <= TOKEN_BYTES * (MAX_EXCESS * most + 31)
    found = [token for text in LookupMemory(folder, most, N_VOCAB).read("ann") for token in [*text, BREAK]]
    kept = written[-most:]
    assert found == kept[1:] if kept[:1] == [BREAK] else found == kept


def test_what_occurs_already_is_not_remembered_again(tmp_path: Path) -> None:
    memory = LookupMemory(tmp_path, 10_000, N_VOCAB)
    drafter = Ngram(CTX, memory=memory)
    system = list(range(5000, 5000 + 10 * KNOWN_TOKENS))
    for number in range(5):
        answer(drafter, "ann", [*system, 10 + number], [20 + number, 30 + number, 40 + number])
    remembered = [token for text in memory.read("ann") for token in text]
    assert remembered.count(system[0]) == 1
    assert all(40 + number in remembered for number in range(5))


@given(st.lists(st.integers(0, 3), max_size=600), st.lists(st.integers(0, 3), min_size=1, max_size=600))
@settings(deadline=None)
def test_every_unknown_piece_is_selected(known: list[int], text: list[int]) -> None:
    pool = Generations(10_000)
    pool.begin(known)
    parts = select_unknown(pool, array("i", text))
    for part in parts:
        pool.begin(part)
    pieces = [text[at : at + KNOWN_TOKENS] for at in range(0, len(text), KNOWN_TOKENS)]
    assert all(pool.contains(piece) for piece in pieces)
    assert sum(map(len, parts)) <= len(text) + CONTEXT * len(parts)


def test_a_long_prompt_is_remembered_by_its_end(tmp_path: Path) -> None:
    memory = LookupMemory(tmp_path, 10 * MAX_REMEMBERED, N_VOCAB)
    answer(Ngram(CTX, memory=memory), "ann", range(2 * MAX_REMEMBERED), [7, 8, 9])
    (text,) = memory.read("ann")
    assert len(text) == MAX_REMEMBERED and list(text[-3:]) == [7, 8, 9]


@pytest.mark.parametrize(
    "content", [b"", b"\x07\x00\x00\x00\x09\x00\x00\x70", b"\x01", b"\xff" * 4001, bytes(range(256)) * 9]
)
def test_a_damaged_file_costs_nothing_but_its_drafts(tmp_path: Path, content: bytes) -> None:
    memory = LookupMemory(tmp_path, 500, 2000)
    memory.append("ann", [1, 2, 3])
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert all(0 <= token < 2000 for text in memory.read("ann") for token in text)
    drafter = Ngram(CTX, memory=LookupMemory(tmp_path, 500, 2000))
    answer(drafter, "ann", CODE[:100], CODE[100:])
    assert drafted_after(drafter, "ann", [7, *CODE[20:30]]) == CODE[30:38]
    assert list(memory.read("ann")[-1][-9:]) == CODE[-9:]


def test_where_nothing_can_be_written_lookups_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    memory = LookupMemory(tmp_path / "file" / "folder", 500, N_VOCAB)
    drafter = Ngram(CTX, memory=memory)
    answer(drafter, "ann", CODE[:100], CODE[100:])
    assert memory.has_failed and caplog.text.count("no longer kept on disk: Not a directory") == 1
    assert drafted_after(drafter, "ann", [7, *CODE[20:30]]) == CODE[30:38]
