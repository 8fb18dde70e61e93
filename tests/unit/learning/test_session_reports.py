"""What a learning process reports arrives whole."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.json_text import read_object, read_record
from eaglelocal.learning.learner import SessionReport

REPORTS = st.builds(
    SessionReport,
    state=st.text(),
    version=st.none() | st.integers(0, 99),
    head=st.text(),
    missing=st.integers(0, 99),
    note=st.text(),
    trouble=st.text(),
)


@given(REPORTS)
def test_every_field_comes_back(report: SessionReport) -> None:
    assert read_record(SessionReport, read_object(json.dumps(asdict(report)))) == report


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b'{"state": "done"}', b"\xff", b"hello", b"[1]"])
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        read_record(SessionReport, read_object(line))
