"""The number of old turns to leave out so that the next question and its answer fit in the context.

Pure. The client has no tokenizer, so tokens are estimated: from the last answer, for which the engine counted
prompt and completion tokens, and before the first answer from characters. The engine may still refuse a request.

Example: context 2048, no max_tokens, so 512 are kept for the answer. Three turns of about 700 tokens each and a
question of 50 make 2150 > 1536: the oldest must go. That leaves 1450, so the next question would remove another
turn, and so on, and each time the whole prompt is prefilled again. So the second goes at once, which leaves 750.
"""

from __future__ import annotations

from eaglelocal.conversation.conversation import Conversation
from eaglelocal.conversation.pictures import Pictures
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Message

TOKENS_PER_CHAR = 0.35  # small vocabularies write English at about three characters a token
TARGET_SHARE = 0.75  # of the available tokens, once turns must be left out
TOKENS_PER_MESSAGE = 6.0  # role markers of the template
TOKENS_PER_IMAGE = 300.0  # most models: 256 of a square, more of a large one


@dataclass(frozen=True, slots=True)
class TokenEstimate:
    """An estimate of the tokens of messages, calibrated on the engine's counts for the last answer."""

    tokens_per_char: float = TOKENS_PER_CHAR

    def count_tokens(self, messages: tuple[Message, ...]) -> int:
        num_chars = sum(len(message.content) for message in messages)
        return round(num_chars * self.tokens_per_char + _estimate_overhead(messages))


def calibrate_estimate(messages: tuple[Message, ...], num_tokens: int) -> TokenEstimate:
    """Return the estimate that gives `num_tokens` for these messages.

    The default if they have fewer than 200 characters or any images.
    """
    num_chars = sum(len(message.content) for message in messages)
    if num_chars < 200 or any(message.images for message in messages):  # the images' share is not known
        return TokenEstimate()
    return TokenEstimate(max(0.0, num_tokens - _estimate_overhead(messages)) / num_chars)


def _estimate_overhead(messages: tuple[Message, ...]) -> float:
    """Return the estimated tokens of role markers and images."""
    return len(messages) * TOKENS_PER_MESSAGE + sum(len(message.images) for message in messages) * TOKENS_PER_IMAGE


def reserve_for_answer(n_ctx: int, max_tokens: int | None) -> int:
    """Return the tokens to keep free for the answer.

    At most 3/4 of the context: a max_tokens that the engine would clip must not push out the whole conversation.
    """
    return n_ctx // 4 if max_tokens is None else min(max_tokens, n_ctx * 3 // 4)


def turns_to_forget(
    conversation: Conversation,
    question: str,
    pictures: Pictures = (),
    *,
    estimate: TokenEstimate,
    n_ctx: int,
    max_tokens: int | None,
) -> int:
    """Return how many of the oldest turns to leave out so that the question fits; never fewer than now.

    If more must be left out than now, the rest takes at most TARGET_SHARE of the available tokens, unless that would
    leave out the last turn too. If the question does not even fit alone, all turns are left out, and the engine reports
    the error.
    """
    num_available = n_ctx - reserve_for_answer(n_ctx, max_tokens)
    counts = range(conversation.num_forgotten, len(conversation.turns) + 1)
    messages = {count: conversation.messages(question, pictures, num_forgotten=count) for count in counts}
    needs = {count: estimate.count_tokens(sent) for count, sent in messages.items()}
    fitting = [count for count in counts if needs[count] <= num_available]
    if not fitting or fitting[0] == conversation.num_forgotten:
        return fitting[0] if fitting else len(conversation.turns)
    target = num_available * TARGET_SHARE
    with_space = (count for count in fitting if needs[count] <= target and count < len(conversation.turns))
    return next(with_space, fitting[0])
