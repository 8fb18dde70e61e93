"""Numbers and sizes as the reports print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.cli.output import path_text
from eaglelocal.core.amounts import format_age, format_disk, format_duration


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (11_876_128, "11.9 MB"),
        (999_940_000, "999.9 MB"),
        (999_960_000, "1.00 GB"),
        (4_683_073_952, "4.68 GB"),
        (35_300_000_000, "35.3 GB"),
        (2_500_000_000_000, "2.50 TB"),
    ],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert format_disk(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 0 min"),
        (9000, "2 h 30 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "now"),
        (59, "now"),
        (60, "1 min"),
        (3599, "59 min"),
        (7200, "2 h"),
        (47.9 * 3600, "47 h"),
        (49 * 3600, "2 d"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


def test_an_old_file_is_some_months_old() -> None:
    assert format_age(400 * 86400) == "13 mo"


def test_the_home_folder_is_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert path_text(tmp_path / "models") == "~/models"
    assert path_text(Path("/models")) == "/models"
