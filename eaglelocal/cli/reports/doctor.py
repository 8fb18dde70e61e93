"""The output of `eaglelocal doctor`: the findings as lines and as a JSON object. Pure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from eaglelocal.core.byte_sizes import count_noun

if TYPE_CHECKING:
    from eaglelocal.doctor.finding import Finding

WIDTH = 79
INDENT = " " * 9


def findings_object(findings: list[Finding]) -> dict[str, object]:
    rows = [
        {"check": each.check, "level": each.level, "text": each.text, "command": each.command or None}
        for each in findings
    ]
    return {
        "findings": rows,
        "problems": count_findings(findings, "problem"),
        "warnings": count_findings(findings, "warning"),
    }


def findings_lines(findings: list[Finding]) -> list[str]:
    """Return the findings as lines, the worst first, each command on its own line so that it can be copied."""
    ordered = [each for level in ("problem", "warning", "ok") for each in findings if each.level == level]
    return [line for finding in ordered for line in _finding_lines(finding)]


def summarize(findings: list[Finding]) -> str:
    problems, warnings = count_findings(findings, "problem"), count_findings(findings, "warning")
    if not problems and not warnings:
        return "nothing is wrong"
    words = [(problems, "problem"), (warnings, "warning")]
    return ", ".join(count_noun(number, word) for number, word in words if number)


def count_findings(findings: list[Finding], level: str) -> int:
    return sum(finding.level == level for finding in findings)


def _finding_lines(finding: Finding) -> list[str]:
    text = textwrap.wrap(
        finding.text,
        WIDTH,
        initial_indent=f"{finding.level:<9}",
        subsequent_indent=INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [*text, f"{INDENT}$ {finding.command}"] if finding.command else text
