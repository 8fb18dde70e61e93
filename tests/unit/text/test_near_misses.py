"""Calls that models write nearly right, in every form: never a wrong argument, and a call wherever there is one reading."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from doubles.near_misses import Expected, Generator, NearMiss

from eaglelocal.core.tools import CallForm, join_calls
from eaglelocal.text.reasoning.split_answer import SplitText
from eaglelocal.text.tool_calls import call_forms as forms

NUM_QUICK, NUM_SLOW = 12, 10_000


def read(case: NearMiss, cuts: list[int]) -> tuple[str, list[tuple[str, str]]]:
    ids = map(str, itertools.count())
    parser = SplitText(case.split, lambda: next(ids))
    borders = [0, *sorted(cuts), len(case.answer)]
    events = [parser.push(case.answer[a:b]) for a, b in itertools.pairwise(borders)] + [parser.finish("")]
    calls = join_calls(part for event in events for part in event.calls)
    return "".join(event.text for event in events), [(call.name, call.arguments) for call in calls]


def find_fault(case: NearMiss, seed: int) -> str:
    """Return what is wrong with the reading of a near miss; empty if nothing is."""
    text, calls = read(case, [])
    length, draw = len(case.answer), random.Random(seed)
    for cuts in (range(1, length), draw.sample(range(length), min(5, length))):
        if read(case, [*cuts]) != (text, calls):
            return "another reading in pieces"
    whole = [(name, json.loads(arguments)) for name, arguments in calls if is_json(arguments)]
    truth = [("g", case.arguments)]
    if whole and not (is_same(whole, truth) and case.expected is not Expected.NONE):
        return "a wrong argument"
    if case.expected is Expected.ONE and not (whole and len(calls) == 1):
        return "no call"
    spelled = "".join(char for char in case.answer if not "\udc00" <= char <= "\udfff")
    if not calls and case.form.headers is None and text != spelled:
        return "a text that is lost"
    return ""


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def is_same(found: object, truth: object) -> bool:
    return json.dumps(found, sort_keys=True) == json.dumps(truth, sort_keys=True)


def list_faults(form: CallForm, number: int) -> list[str]:
    faults = []
    for seed in range(number):
        case = Generator(seed).make(form)
        if case is not None and (fault := find_fault(case, seed)):
            faults.append(f"{form.label} {seed} {case.kind}: {fault}: {case.answer!r} read as {read(case, [])}")
    return faults


def by_label(form: CallForm) -> str:
    return form.label


@pytest.mark.parametrize("form", forms.FORMS, ids=by_label)
def test_no_near_miss_is_read_wrong(form: CallForm) -> None:
    assert list_faults(form, NUM_QUICK) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", forms.FORMS, ids=by_label)
def test_no_near_miss_of_many_is_read_wrong(form: CallForm) -> None:
    assert list_faults(form, NUM_SLOW // len(forms.FORMS)) == []
