"""JSON in a stream: its end is found wherever the text is cut, and members keep their spelling."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.text.tool_calls.json_spans import JsonReader, read_elements, read_members

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a"\\{}[],: é\n'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
containers = st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values, max_size=3)
layouts = st.sampled_from([None, 0, 1, 4])


@given(containers, layouts, st.text(max_size=5))
def test_the_end_of_a_value_is_found_wherever_it_is_cut(value: object, indent: int | None, behind: str) -> None:
    text = json.dumps(value, indent=indent)
    assert JsonReader().push(text + behind) == (text, behind)
    reader = JsonReader()
    found = [reader.push(char) for char in text]
    assert "".join(written for written, _ in found) == text
    assert found[-1][1] == "" and {rest for _, rest in found[:-1]} <= {None}


@given(containers, st.lists(st.integers(0, 200), max_size=8))
def test_bare_control_characters_in_strings_come_out_escaped(value: object, cuts: list[int]) -> None:
    careless = re.sub(r"\\.", lambda escape: "\n" if escape[0] == "\\n" else escape[0], json.dumps(value))
    reader = JsonReader()
    borders = [0, *sorted(cut % (len(careless) + 1) for cut in cuts), len(careless)]
    written = "".join(reader.push(careless[a:b])[0] for a, b in itertools.pairwise(borders))
    assert json.loads(written) == json.loads(careless, strict=False)


@pytest.mark.parametrize(
    ("text", "closing", "in_string"),
    [
        ('{"a": [{"b"', "}]}", False),
        ('{"a', "}", True),
        ('{"a\\"', "}", True),
        ("[[], {}", "]", False),
        ("{}", "", False),
    ],
)
def test_the_brackets_that_are_missing_are_known(text: str, closing: str, in_string: bool) -> None:
    reader = JsonReader()
    reader.push(text)
    assert (reader.closing, reader.in_string) == (closing, in_string)


@given(containers, layouts)
def test_members_and_elements_are_spelled_as_they_came(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    if isinstance(value, dict):
        found = read_members(f" {text}\n")
        assert found is not None and {key: json.loads(one) for key, one in found.items()} == value
        assert all(one in text for one in found.values()) and read_elements(text) is None
    else:
        parts = read_elements(text)
        assert parts is not None and [json.loads(one) for one in parts] == value and read_members(text) is None


@pytest.mark.parametrize("text", ["", "{", "3", '{"a": NaN}', '{"a": 1} x', "[" * 500 + "]" * 500, '{"a" 1}'])
def test_what_is_no_json_has_no_parts(text: str) -> None:
    assert read_members(text) is None and read_elements(text) is None


def test_numbers_keep_their_spelling() -> None:
    assert read_members('{"a": 1.50e+1 ,"b":[ 1 ]}') == {"a": "1.50e+1", "b": "[ 1 ]"}
