"""Sums, differences, products and small word problems, each answered with its working.

Uses column arithmetic: every step of a working depends only on digits that were just written, so that a tiny model
with one token per digit can learn it. The texts of word problems are in `word_problems`.

    47 + 285          0 4 7 + 2 8 5
                      7 + 5 + 0 = 12, write 2, carry 1
                      4 + 8 + 1 = 13, write 3, carry 1
                      0 + 2 + 1 = 3, write 3, carry 0
                      digits: 0 3 3 2
                      47 + 285 = 332
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal

from eaglelocal.core.records import dataclass
from guide.corpus.tasks import Check, CorpusTask, Split, ask, split_of
from guide.corpus.word_problems import Story, tell

Operator = Literal["+", "-", "x"]

_WORDINGS: dict[str, tuple[str, ...]] = {
    "+": (
        "What is {a} + {b}?",
        "{a} + {b}",
        "{a} + {b} =",
        "{a}+{b}",
        "{a}+{b}=?",
        "Calculate {a} + {b}.",
        "Add {a} and {b}.",
        "What is the sum of {a} and {b}?",
        "How much is {a} plus {b}?",
        "Please add {a} to {b}.",
        "{a} plus {b} is what?",
        "Can you work out {a} + {b} for me?",
        "Compute the sum: {a} + {b}",
        "what do you get when you add {a} and {b}",
        "What's {a} + {b}?",
        "What's {a}+{b}?",
        "what is {a} plus {b}",
        "{a} plus {b}",
        "{a} plus {b}?",
        "{a} + {b} equals?",
        "sum of {a} and {b}",
        "Tell me what {a} + {b} makes.",
        "Was ist {a} + {b}?",
        "Wie viel ist {a} plus {b}?",
        "Rechne {a} + {b}.",
    ),
    "-": (
        "What is {a} - {b}?",
        "{a} - {b}",
        "{a} - {b} =",
        "{a}-{b}",
        "{a}-{b}=?",
        "Calculate {a} - {b}.",
        "Subtract {b} from {a}.",
        "What is the difference between {a} and {b}?",
        "How much is {a} minus {b}?",
        "Take {b} away from {a}.",
        "{a} minus {b} is what?",
        "Can you work out {a} - {b} for me?",
        "Compute the difference: {a} - {b}",
        "what is left when you take {b} from {a}",
        "What's {a} - {b}?",
        "What's {a}-{b}?",
        "what is {a} minus {b}",
        "{a} minus {b}",
        "{a} minus {b}?",
        "{a} \u2212 {b}",
        "{a} - {b} equals?",
        "difference of {a} and {b}",
        "Tell me what {a} - {b} makes.",
        "Was ist {a} - {b}?",
        "Wie viel ist {a} minus {b}?",
        "Rechne {a} - {b}.",
    ),
    "x": (
        "What is {a} x {b}?",
        "{a} x {b}",
        "{a} x {b} =",
        "{a}*{b}",
        "{a} * {b} = ?",
        "Calculate {a} times {b}.",
        "Multiply {a} by {b}.",
        "What is the product of {a} and {b}?",
        "How much is {a} times {b}?",
        "Please multiply {a} and {b}.",
        "{a} times {b} is what?",
        "Can you work out {a} x {b} for me?",
        "Compute the product: {a} x {b}",
        "what do you get when you multiply {a} by {b}",
        "What is {a} times {b}?",
        "What's {a} times {b}?",
        "What is {a} * {b}?",
        "What's {a}*{b}?",
        "What is {a}*{b}?",
        "What is {a} \u00d7 {b}?",
        "{a} \u00d7 {b}",
        "{a}x{b}",
        "{a} times {b}",
        "{a} times {b}?",
        "{a} * {b}",
        "{a} multiplied by {b}",
        "What is {a} multiplied by {b}?",
        "product of {a} and {b}",
        "Calculate {a} * {b}.",
        "Tell me what {a} x {b} makes.",
        "Was ist {a} mal {b}?",
        "Was ist {a} * {b}?",
        "Wie viel ist {a} mal {b}?",
        "Rechne {a} mal {b}.",
    ),
}
_OTHER_WAY_ROUND = 0.4  # of products: questions put either factor first, the working always the digit


@dataclass(frozen=True, slots=True)
class Step:
    """An operation on two numbers: a >= b if it subtracts, one digit times at most two if it multiplies."""

    a: int
    operator: Operator
    b: int

    @property
    def result(self) -> int:
        match self.operator:
            case "+":
                return self.a + self.b
            case "-":
                return self.a - self.b
            case "x":
                return self.a * self.b

    @property
    def split(self) -> Split:
        """The split of the operands; pairs of single digits are always for training."""
        if self.a < 10 and self.b < 10:
            return "train"
        low, high = sorted((self.a, self.b))
        return split_of(f"{low}{self.operator}{high}")


def working(step: Step) -> str:
    """Return the lines that lead to the result, the last of which is the equation."""
    equation = f"{step.a} {step.operator} {step.b} = {step.result}"
    if step.a < 10 and step.b < 10:
        return equation
    return "\n".join((*_COLUMNS[step.operator](step.a, step.b), equation))


def task(rng: Random, split: Split) -> CorpusTask:
    return _problem(rng, split) if rng.random() < 0.3 else _bare(rng, split)


def _bare(rng: Random, split: Split) -> CorpusTask:
    while (step := draw_step(rng)).split != split:
        pass
    a, b = step.a, step.b
    if step.operator == "x" and rng.random() < _OTHER_WAY_ROUND:
        a, b = b, a
    question = rng.choice(_WORDINGS[step.operator]).format(a=a, b=b)
    return ask("math", question, working(step), check=Check("number", (str(step.result),)))


def _problem(rng: Random, split: Split) -> CorpusTask:
    while _split_of_story(story := tell(rng)) != split:
        pass
    answer = "\n".join(
        (*(working(Step(a, operator, b)) for a, operator, b in story.steps), f"{story.conclusion} {story.result}")
    )
    return ask("math", story.text, answer, check=Check("number", (str(story.result),)))


def _split_of_story(story: Story) -> Split:
    """Return "held_out" if any step is, so that no training problem shows a held-out pair of operands."""
    splits = [Step(a, operator, b).split for a, operator, b in story.steps]
    return "held_out" if "held_out" in splits else "train"


def draw_step(rng: Random) -> Step:
    operator: Operator = rng.choice(("+", "+", "-", "-", "x"))
    if operator == "x":
        return Step(rng.randint(2, 9), operator, rng.randint(10, 99) if rng.random() < 0.9 else rng.randint(2, 9))
    a, b = _operand(rng), _operand(rng)
    return Step(max(a, b), operator, min(a, b)) if operator == "-" else Step(a, operator, b)


def _operand(rng: Random) -> int:
    return (
        rng.randint(100, 999)
        if rng.random() < 0.6
        else rng.randint(10, 99)
        if rng.random() < 0.8
        else rng.randint(1, 9)
    )


def _padded(a: int, b: int) -> tuple[str, str]:
    width = max(len(str(a)), len(str(b)))
    return str(a).zfill(width), str(b).zfill(width)


def _add(a: int, b: int) -> list[str]:
    top, bottom = _padded(a, b)
    lines, digits, carry = [f"{' '.join(top)} + {' '.join(bottom)}"], "", 0
    for x, y in zip(map(int, reversed(top)), map(int, reversed(bottom)), strict=True):
        total = x + y + carry
        lines.append(f"{x} + {y} + {carry} = {total}, write {total % 10}, carry {total // 10}")
        digits, carry = f"{total % 10}{digits}", total // 10
    return [*lines, f"digits: {' '.join(f'{carry}{digits}')}"]


def _subtract(a: int, b: int) -> list[str]:
    top, bottom = _padded(a, b)
    lines, digits, borrow = [f"{' '.join(top)} - {' '.join(bottom)}"], "", 0
    for x, y in zip(map(int, reversed(top)), map(int, reversed(bottom)), strict=True):
        short = x < y + borrow
        digit = x - y - borrow + (10 if short else 0)
        lent = f"{x} - {y} - {borrow} is short, {x + 10} - {y} - {borrow}" if short else f"{x} - {y} - {borrow}"
        lines.append(f"{lent} = {digit}, write {digit}, borrow {int(short)}")
        digits, borrow = f"{digit}{digits}", int(short)
    return [*lines, f"digits: {' '.join(digits)}"]


def _multiply(a: int, b: int) -> list[str]:
    lines, digits, carry = [f"{a} x {' '.join(str(b))}"], "", 0
    for y in map(int, reversed(str(b))):
        total = a * y + carry
        lines.append(f"{a} x {y} = {a * y}, {a * y} + {carry} = {total}, write {total % 10}, carry {total // 10}")
        digits, carry = f"{total % 10}{digits}", total // 10
    return [*lines, f"digits: {' '.join(f'{carry}{digits}')}"]


_COLUMNS: dict[str, Callable[[int, int], list[str]]] = {"+": _add, "-": _subtract, "x": _multiply}
