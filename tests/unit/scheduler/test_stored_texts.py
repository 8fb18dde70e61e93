"""The index of texts on disk: which prompts they serve, which texts are added, and what replaces what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import Request, common_prefix
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.scheduler.host_swap import MIN_STORED_ROWS, StoredText, StoredTexts

LONG = list(range(2 * MIN_STORED_ROWS))
PARTS = st.lists(st.integers(0, 2), max_size=4).map(lambda parts: [part for part in parts for _ in range(300)])


def asked(prompt: list[int]) -> Request:
    return Request(id="a", prompt=tuple(prompt), params=SamplingParams())


def wants(index: StoredTexts, tokens: list[int], adapters: str = "") -> bool:
    return index.wants(StoredText("", tokens, adapters=adapters))


def index_of(*texts: StoredText) -> StoredTexts:
    index = StoredTexts()
    for text in texts:
        index.add(text)
    return index


def test_a_prompt_is_served_only_if_memory_holds_much_less() -> None:
    index = index_of(StoredText("a", LONG))
    prompt = [*LONG, 1, 2]
    assert index.best(asked(prompt), 0, 1) is not None
    assert index.best(asked(prompt), len(LONG) - MIN_STORED_ROWS + 1, 1) is None
    assert index.best(asked(LONG[: MIN_STORED_ROWS - 1]), 0, 1) is None
    assert index_of().best(asked(prompt), 0, 1) is None


def test_a_text_with_places_serves_its_end_or_one_of_them() -> None:
    text = StoredText("a", LONG, places=(600, 900))
    assert text.num_reused(asked([*LONG, 7])) == len(LONG)
    assert text.num_reused(asked([*LONG[:950], -5, -6])) == 900
    assert text.num_reused(asked([*LONG[:500], -5])) == 0


def test_texts_are_wanted_when_they_are_long_and_have_grown() -> None:
    index = index_of(StoredText("a", LONG))
    assert not wants(index, LONG[: MIN_STORED_ROWS - 1])
    assert not wants(index, LONG)
    assert not wants(index, [*LONG, *range(len(LONG) // 4 - 10)])
    assert wants(index, [*LONG, *range(len(LONG) // 2)])
    assert wants(index, [5, *LONG])
    assert not wants(index, [5, *LONG, -1])  # an image


@given(st.lists(PARTS, max_size=6), PARTS)
def test_the_index_holds_no_text_that_another_continues(texts: list[list[int]], prompt: list[int]) -> None:
    index = StoredTexts()
    names = {}
    for number, tokens in enumerate(texts):
        for name in index.add(StoredText(str(number), tokens)):
            assert common_prefix(names.pop(name), tokens) <= len(tokens)
        names[str(number)] = tokens
    assert len(index) == len(names)
    best = index.best(asked([*prompt, 9]), 0, 1)
    most = max((common_prefix(tokens, prompt) for tokens in names.values()), default=0)
    assert (best is None) == (most < MIN_STORED_ROWS)
    assert best is None or common_prefix(names[best.name], prompt) == most


def test_the_smallest_of_equals_is_read_and_none_that_memory_cannot_take() -> None:
    small, large = StoredText("small", [*LONG, 1], num_bytes=5), StoredText("large", [*LONG, *LONG], num_bytes=9)
    index = index_of(large, small)
    prompt = [*LONG, 7, 7]
    assert index.best(asked(prompt), 0, 10) == small
    assert index.best(asked([*LONG, *LONG, 7]), 0, 10) == large
    assert index.best(asked([*LONG, *LONG, 7]), 0, 8) == small
    assert index.best(asked(prompt), 0, 4) is None


def test_a_large_file_is_not_read_for_a_small_part_of_it() -> None:
    index = index_of(StoredText("large", LONG * 20))
    assert index.best(asked([*LONG[:700], -5, -5]), 0, 1) is None


def test_a_text_that_is_being_written_is_not_wanted_again() -> None:
    assert not StoredTexts().wants(StoredText("", [*LONG, 1]), being_written=[StoredText("a", LONG)])


def test_texts_with_other_adapters_are_other_texts() -> None:
    index = index_of(StoredText("plain", LONG, num_bytes=1), StoredText("adapted", LONG, num_bytes=1, adapters="a:0.5"))
    assert len(index) == 2
    found = [index.best(asked([*LONG, 7]), 0, 1, adapters) for adapters in ("", "a:0.5", "a:1.0")]
    assert [None if text is None else text.name for text in found] == ["plain", "adapted", None]
    assert wants(index, LONG, adapters="a:1.0")
    assert not wants(index, LONG, adapters="a:0.5")
    other = StoredText("b", LONG, adapters="b:1.0")
    assert not StoredTexts().wants(other, [other])
    assert index.add(StoredText("longer", [*LONG, 1], adapters="a:0.5")) == ["adapted"]
