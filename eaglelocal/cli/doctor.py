"""`eaglelocal doctor`: show what is wrong with this installation, and the command that fixes it."""

from __future__ import annotations

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.output import standard_output


def doctor(as_json: flags.AsJson = False) -> None:
    """Check this installation, and show the command that fixes each problem.

    The exit code is 1 if there is a problem.

    \b
    eaglelocal doctor
    eaglelocal doctor --json | jq -r '.findings[] | select(.level != "ok").command'
    """
    from eaglelocal.cli.reports.doctor import count_findings, findings_lines, findings_object, summarize
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
        output.message(summarize(findings))
    if count_findings(findings, "problem"):
        raise typer.Exit(1)
