"""What a learning process reports arrives whole."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.learning.learner import SessionReport
from eaglelocal.learning.learning_child import read_report

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
    assert read_report(json.dumps(asdict(report)).encode()) == report


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b'{"state": "done"}', b"\xff"])
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_report(line)
