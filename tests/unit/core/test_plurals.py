"""Numbers of things in words, and that no code makes plurals by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import eaglelocal
from eaglelocal.core.amounts import count_noun, match_noun

HAND_MADE = re.compile(
    r"""['"](\w+)['"] if [^{}'"]{1,60}? == 1 else ['"]\1s['"]|"""  # 'turn' if n == 1 else 'turns'
    r"""['"]{2} if [^{}]{1,60} else ['"]s['"]|(?P<quote>['"])s(?P=quote) (\* |if )"""
)


@pytest.mark.parametrize(("number", "text"), [(0, "0 keys"), (1, "1 key"), (2, "2 keys")])
def test_a_number_with_its_noun(number: int, text: str) -> None:
    assert count_noun(number, "key") == text
    assert match_noun(number, "key") == text.split()[1]


@pytest.mark.parametrize(
    "code",
    [
        "f\"{n} token{'' if n == 1 else 's'}\"",
        "f\"{n} answer{'s' * (n != 1)}\"",
        "f\"{n} {'turn' if n == 1 else 'turns'}\"",
        'plural = "s" if n > 1 else ""',
    ],
)
def test_what_is_made_by_hand_is_found(code: str) -> None:
    assert HAND_MADE.search(code)


def test_no_plural_is_made_by_hand() -> None:
    root = Path(eaglelocal.__file__).parent
    files = [path for path in root.rglob("*.py") if path.relative_to(root).parts[:2] != ("demo", "corpus")]
    found = {
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if HAND_MADE.search(line)
    }
    assert found == set(), "use core/amounts.py"
