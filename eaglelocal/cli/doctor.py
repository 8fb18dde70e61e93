"""`eaglelocal doctor`: show what is wrong with this installation, and the command that fixes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.output import LABEL, standard_output, wrap_text
from eaglelocal.core.amounts import count_noun
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.settings import Settings

if TYPE_CHECKING:
    from eaglelocal.doctor.installation import Finding


def doctor(as_json: flags.AsJson = False) -> None:
    """Show what is wrong here, and the command that fixes it.

    Checks the build, the card, memory, disks, settings, and what `chat` would do with them.
    The exit code is 1 if there is a problem.

    \b
    eaglelocal doctor
    eaglelocal doctor --json | jq -r '.findings[] | select(.level != "ok").command'
    """
    from eaglelocal.doctor.checks import run_checks
    from eaglelocal.doctor.gather import gather_facts
    from eaglelocal.probe.probe import probe

    output = standard_output()
    facts = gather_facts(probe(), check=check_used_settings)
    findings = run_checks(facts)
    if not facts.settings_problem:
        findings.append(check_chat())
    if as_json:
        output.object(findings_object(findings))
    else:
        output.lines(findings_lines(findings))
        output.message(summarize(findings))
    if count_findings(findings, "problem"):
        raise typer.Exit(1)


def check_used_settings(settings: Settings) -> None:
    """Raise UsageError or ResourceError for settings and tool servers that a chat would refuse."""
    from eaglelocal.cli.tool_calls import open_tools

    check_screen_keys(settings)
    open_tools(settings, None, can_ask=False)


def check_screen_keys(settings: Settings) -> None:
    """Raise UsageError, with its place, for keys of actions that no screen has: every screen would refuse them."""
    from eaglelocal.tui.display_options import check_display_options, make_display_options

    try:
        check_display_options(make_display_options(settings))
    except UsageError as error:
        raise UsageError(f"{settings.origins()['keys']}: {error.message}", hint=error.hint) from None


def check_chat() -> Finding:
    """Check what `chat` would do without flags: ask the server of the settings, or run a model."""
    from eaglelocal.cli.chat_connection import NO_SERVER, find_api_key
    from eaglelocal.cli.command_table import PROGRAM
    from eaglelocal.cli.hint_command import complete_hint, name_origin
    from eaglelocal.cli.load_model import load_settings, make_run_options
    from eaglelocal.doctor.checks import check_model, check_server

    settings = load_settings({})

    def complete(error: EagleLocalError) -> str:
        name_origin(error, ["chat"], dict(settings.set_by))
        return complete_hint(error.hint, PROGRAM, ["chat"], error.message)

    if settings.url is not None and settings.url != NO_SERVER:
        return check_server(settings.url, find_api_key(settings.url), "", complete)
    return check_model(make_run_options(settings), complete)


# ---- the report: the findings as lines and as a JSON object
def findings_object(findings: list[Finding]) -> dict[str, object]:
    return {
        "findings": [{**asdict(each), "command": each.command or None} for each in findings],
        "problems": count_findings(findings, "problem"),
        "warnings": count_findings(findings, "warning"),
    }


def findings_lines(findings: list[Finding]) -> list[str]:
    """Return the findings as lines, the worst first, each command on its own line so that it can be copied."""
    lines = []
    for finding in (each for level in ("problem", "warning", "ok") for each in findings if each.level == level):
        lines += wrap_text(f"{finding.level:<{LABEL}}", finding.text)
        if finding.command:
            lines.append(f"{'':<{LABEL}}$ {finding.command}")
    return lines


def summarize(findings: list[Finding]) -> str:
    problems, warnings = count_findings(findings, "problem"), count_findings(findings, "warning")
    words = [(problems, "problem"), (warnings, "warning")]
    return ", ".join(count_noun(number, word) for number, word in words if number) or "nothing is wrong"


def count_findings(findings: list[Finding], level: str) -> int:
    return sum(finding.level == level for finding in findings)
