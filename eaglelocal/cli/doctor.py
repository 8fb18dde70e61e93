"""`eaglelocal doctor`: show what is wrong with this installation, and the command that fixes it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.output import standard_output

if TYPE_CHECKING:
    from eaglelocal.doctor.finding import Finding

WIDTH = 79
INDENT = " " * 9


def doctor(as_json: flags.AsJson = False) -> None:
    """Check this installation, and show the command that fixes each problem.

    The exit code is 1 if there is a problem.

    \b
    eaglelocal doctor
    eaglelocal doctor --json | jq -r '.findings[] | select(.level != "ok").command'
    """
    from eaglelocal.doctor.checks import run_checks
    from eaglelocal.doctor.gather import gather_facts
    from eaglelocal.probe.probe import probe

    output = standard_output()
    findings = run_checks(gather_facts(probe()))
    if as_json:
        output.object(findings_object(findings))
    else:
        for line in findings_lines(findings):
            output.data(line)
        output.message(summary(findings))
    if count(findings, "problem"):
        raise typer.Exit(1)


def findings_object(findings: list[Finding]) -> dict[str, object]:
    rows = [
        {"check": each.check, "level": each.level, "text": each.text, "command": each.command or None}
        for each in findings
    ]
    return {"findings": rows, "problems": count(findings, "problem"), "warnings": count(findings, "warning")}


def findings_lines(findings: list[Finding]) -> list[str]:
    """Return the findings as lines, the worst first, each command on its own line so that it can be copied."""
    ordered = [each for level in ("problem", "warning", "ok") for each in findings if each.level == level]
    return [line for finding in ordered for line in _lines_of(finding)]


def summary(findings: list[Finding]) -> str:
    problems, warnings = count(findings, "problem"), count(findings, "warning")
    if not problems and not warnings:
        return "nothing is wrong"
    words = [(problems, "problem"), (warnings, "warning")]
    return ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, word in words if number)


def count(findings: list[Finding], level: str) -> int:
    return sum(finding.level == level for finding in findings)


def _lines_of(finding: Finding) -> list[str]:
    text = textwrap.wrap(
        finding.text,
        WIDTH,
        initial_indent=f"{finding.level:<9}",
        subsequent_indent=INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [*text, f"{INDENT}$ {finding.command}"] if finding.command else text
