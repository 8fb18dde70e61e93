"""What `plan` predicts beside published speeds: python tests/measures/public_speeds.py CSV ... [--rows] [--fit]

A CSV has a line for each published measurement, with at least these columns; others are ignored, except `source`:

    machine id, model, quant   as the catalog calls them; `2x-rtx-3090` also where the catalog has only an rtx-3090
    engine                     may hold `depth=N`: the cells in the cache while it was measured; else as `plan` expects
    ctx                        tokens of context of the run
    draft, length              `none` or `mtp`, and how many tokens were drafted; empty: the tool's own choice
    plain_tok_s, spec_tok_s    measured tokens a second; empty: not measured
    source                     remarks: `(file: UD-Q4_K_XL)`, `[sm tensor]`, and what makes a line odd (speed_rows.py)

Prints the median error of plain and of drafted speeds and of gains, by kind of device and of model, and where drafting
is planned although a line says that it loses. An error is |log(predicted / measured)|, as a share. Lines that cannot
be planned are named with their reason; odd ones are counted by theirs.

--rows  prints every line
--fit   also fits the constants, and shows by kind of device their errors for cards that they were not fitted to:
        each card left out once, and each half of the cards with constants of the other half

Exits 1 if a bound is missed, 2 on a file that cannot be read.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from speed_fit import CURRENT, Errors, fit, leave_cards_out, list_errors, quantile, swap_halves
from speed_rows import Case, OddRowError, Row, RowError, fail, make_case, read_rows

from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.planning.speed import KERNELS

PLAIN_BOUND, GAIN_BOUND, DRAFTED_BOUND, CLASS_BOUND = 0.07, 0.10, 0.12, 0.12
LEAST_OF_CLASS = 4  # measurements, to be judged
COVERED = 0.8  # share of the measurements within the stated error


# ---- the report
def describe_errors(errors: Sequence[float]) -> str:
    """Return the number, the median and 80 % of the errors, and predicted / measured by the median."""
    if not errors:
        return f"{0:4}"
    bias = math.exp(statistics.median(errors))
    return f"{len(errors):4}  {quantile(errors, 0.5):6.1%}  {quantile(errors, COVERED):6.1%}  {bias:5.2f}"


def report(found: Sequence[Errors]) -> bool:
    """Print the tables; return whether every bound is kept."""
    is_kept = True
    picks: tuple[tuple[str, float, Callable[[Errors], float | None]], ...] = (
        ("plain speed", PLAIN_BOUND, lambda errors: errors.plain),
        ("drafted speed", DRAFTED_BOUND, lambda errors: errors.drafted),
        ("gain of drafts", GAIN_BOUND, lambda errors: errors.gain),
    )
    for title, bound, pick in picks:
        groups: dict[str, list[float]] = defaultdict(list)
        for errors in found:
            if (error := pick(errors)) is not None:
                for name in ("all", errors.case.class_name, errors.case.kind):
                    groups[name].append(error)
        sys.stdout.write(f"{title:20} rows  median     80 %  predicted / measured\n")
        for name, group in groups.items():
            limit = bound if name == "all" else CLASS_BOUND
            is_judged = name == "all" or len(group) >= LEAST_OF_CLASS
            is_over = is_judged and quantile(group, 0.5) > limit
            is_kept &= not is_over
            sys.stdout.write(f"{name:20} {describe_errors(group)}{f'  over {limit:.0%}' if is_over else ''}\n")
        sys.stdout.write("\n")
    for case in (errors.case for errors in found if errors.case.plans_a_loss):
        is_kept = False
        sys.stdout.write(f"{case.row}: {case.planned_length} planned, {case.row.gain:.2f}x\n")
    return is_kept


def report_fits(cases: Sequence[Case]) -> None:
    """Print the fitted constants, and by class the errors for cards that they were not fitted to."""
    fitted = fit(cases)
    layers = ", ".join(f"{name} {layer_s * 1e6:.0f}" for name, layer_s in fitted.layer_s.items())
    sys.stdout.write(f"fitted: efficiency {fitted.efficiency:.2f}, share of the flops {fitted.row_share:.2f}, ")
    sys.stdout.write(f"microseconds of a layer: {layers}\n\n")
    found = {
        "as it is": list_errors(cases, CURRENT),
        "fitted": list_errors(cases, fitted),
        "card left out": leave_cards_out(cases),
        "other half": swap_halves(cases),
    }
    for title in dict.fromkeys(case.class_name for case in cases):
        cards = {case.row.card for case in cases if case.class_name == title}
        sys.stdout.write(f"{title:15} {len(cards)} cards\n")
        for how, every in found.items():
            report_errors(how, [errors for errors in every if errors.case.class_name == title])
        sys.stdout.write("\n")
    for how, every in found.items():
        report_errors(how, every)
    sys.stdout.write("\n")


def report_errors(how: str, found: Sequence[Errors]) -> None:
    if not found:
        sys.stdout.write(f"  {how:14} too few cards\n")
        return
    every = [(error, KERNELS[errors.case.kernels].within) for errors in found for error in errors.known]
    covered = sum(math.expm1(abs(error)) <= within for error, within in every) / len(every)
    plain = describe_errors([errors.plain for errors in found if errors.plain is not None])
    drafted = describe_errors([errors.drafted for errors in found if errors.drafted is not None])
    sys.stdout.write(f"  {how:14} plain {plain}  drafted {drafted}\n")
    both = quantile([error for error, _ in every], COVERED)
    sys.stdout.write(f"  {'':14} {COVERED:.0%} of both within {both:.1%}; {covered:.0%} as stated\n")


def show_rows(found: Sequence[Errors]) -> None:
    for errors in sorted(found, key=lambda each: (each.case.class_name, each.plain or 0.0)):
        row, (plain_tok_s, drafted_tok_s) = errors.case.row, errors.case.predict()
        plain = f"{plain_tok_s:7.1f} {row.plain_tok_s or math.nan:7.1f} {math.exp(errors.plain or math.nan):5.2f}"
        drafted = f"  drafted {drafted_tok_s:7.1f} {row.spec_tok_s:7.1f} at {row.length}" if drafted_tok_s else ""
        what = f"{row.machine:20} {row.model:24} {row.quant:8} {row.num_cells:6}"
        sys.stdout.write(f"{errors.case.class_name:15} {what} {plain}{drafted}\n")


def make_cases(rows: Sequence[Row], catalog: Catalog) -> list[Case]:
    """Return the cases of the rows that can be planned; write the reasons for the others to stderr."""
    cases: list[Case] = []
    odd: Counter[str] = Counter()
    for row in rows:
        try:
            cases.append(make_case(row, catalog))
        except OddRowError as error:
            odd[str(error)] += 1
        except RowError as error:
            sys.stderr.write(f"{row}: {error}\n")
    for reason, count in odd.most_common():
        sys.stderr.write(f"left out, {reason}: {count}\n")
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description="plan beside published speeds")
    parser.add_argument("csv", type=Path, nargs="+")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args()
    cases = make_cases([row for path in given.csv for row in read_rows(path)], load_catalog())
    if not cases:
        fail(f"{', '.join(map(str, given.csv))}: no line that can be planned")
    found = [Errors(case, *case.list_errors()) for case in cases]
    if given.rows:
        show_rows(found)
    if given.fit:
        report_fits(cases)
    raise SystemExit(not report(found))


if __name__ == "__main__":
    main()
