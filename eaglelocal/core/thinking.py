"""The limit of a model's thinking: an effort in words, or a budget in tokens."""

from __future__ import annotations

from eaglelocal.core.records import dataclass
from eaglelocal.errors import UsageError

MAX_BUDGET = 10_000_000  # tokens: more than any context holds
MAX_MESSAGE_CHARS = 4096
OFF_EFFORT = "none"
EFFORTS = (OFF_EFFORT, "minimal", "low", "medium", "high", "xhigh", "max")  # from least to most
USUAL_EFFORT = "medium"  # where a template has efforts: its own default may be its highest
# tokens, for a model without efforts; above `high` it thinks as long as it likes
EFFORT_BUDGETS = {"minimal": 256, "low": 1024, "medium": 4096, "high": 16384}
# Qwen3's models were trained to answer after these words; others read them as any sentence
CLOSING_WORDS = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
)
LIMITS = "off, low, medium, high, or a number of tokens"  # as people set it


@dataclass(frozen=True, slots=True)
class Thinking:
    """A limit of thinking.

    effort   one of EFFORTS; "": the usual one
    budget   tokens of reasoning; 0: none; None: as the effort says
    message  the words that end reasoning which has used up its budget
    """

    effort: str = ""
    budget: int | None = None
    message: str = CLOSING_WORDS

    @property
    def is_off(self) -> bool:
        return self.budget == 0 or self.effort == OFF_EFFORT

    def switch_on(self) -> Thinking:
        """Return the limit as a chat means it: a model that thinks only if asked does so for a number, too."""
        return Thinking(USUAL_EFFORT, self.budget, self.message) if self.budget else self

    def __str__(self) -> str:
        if self.is_off:
            return "off"
        return self.effort if self.budget is None else str(self.budget)


USUAL = Thinking()


@dataclass(frozen=True, slots=True)
class Efforts:
    """The efforts that a chat template knows.

    variable   of the template; "": it has none
    words      of EFFORTS, least first
    off        its word for not thinking; "": it has none
    is_closed  it refuses all other words
    thinks     it thinks if no word is given
    """

    variable: str = ""
    words: tuple[str, ...] = ()
    off: str = ""
    is_closed: bool = False
    thinks: bool = True


def parse_thinking(text: str | int, *, name: str = "--thinking-budget") -> Thinking:
    """Parse `512`, `off`, an effort, or `auto`, which is the usual effort. Raises UsageError for any other text."""
    if text == "auto":
        return USUAL
    if text in ("off", OFF_EFFORT):
        return Thinking(budget=0)
    if text in EFFORTS:
        return Thinking(effort=str(text))
    try:
        budget = int(text)
    except ValueError:
        budget = -1
    if not 0 <= budget <= MAX_BUDGET:
        raise UsageError(f"{name} must be {LIMITS}, not {text!r}", hint=f"{name} medium")
    return Thinking(budget=budget)
