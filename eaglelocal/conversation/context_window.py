"""The number of old turns to leave out so that the next question and its answer fit in the context.

Pure. The client has no tokenizer, so tokens are estimated: from the last answer, for which the engine counted
prompt and completion tokens, before that from characters. The engine has the last word.

Example: context 2048, no max_tokens, so 512 are kept for the answer. Three turns of about 700 tokens each and a
question of 50 make 2150 > 1536: the oldest must go. That leaves 1450, so the next question would remove another
turn, and so on; each time the whole prompt is prefilled again. So the second goes at once, which leaves 750.
"""

from __future__ import annotations

from dataclasses import dataclass

from eaglelocal.conversation.conversation import Conversation
from eaglelocal.conversation.pictures import Pictures
from eaglelocal.core.request import Message

TOKENS_PER_CHAR = 0.35  # small vocabularies write English at about three characters a token
KEPT_SHARE = 0.75  # of the room, once turns have to go
TOKENS_PER_MESSAGE = 6.0  # role markers of the template
TOKENS_PER_IMAGE = 300.0  # most models: 256 of a square, more of a large one


@dataclass(frozen=True, slots=True)
class TokenEstimate:
    """An estimate of the tokens of messages, calibrated on the engine's counts for the last answer."""

    tokens_per_char: float = TOKENS_PER_CHAR

    def of(self, messages: tuple[Message, ...]) -> int:
        num_chars = sum(len(message.content) for message in messages)
        return round(num_chars * self.tokens_per_char + _beside_text(messages))


def calibrated(messages: tuple[Message, ...], num_tokens: int) -> TokenEstimate:
    """Return the estimate that gives `num_tokens` for these messages.

    The default if they have fewer than 200 characters or any images.
    """
    num_chars = sum(len(message.content) for message in messages)
    if num_chars < 200:
        return TokenEstimate()
    if any(message.images for message in messages):  # the images' share of the tokens is not known
        return TokenEstimate()
    return TokenEstimate(max(0.0, num_tokens - _beside_text(messages)) / num_chars)


def _beside_text(messages: tuple[Message, ...]) -> float:
    """Return the estimated tokens of role markers and images."""
    return len(messages) * TOKENS_PER_MESSAGE + sum(len(message.images) for message in messages) * TOKENS_PER_IMAGE


def answer_room(n_ctx: int, max_tokens: int | None) -> int:
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

    If more must go than now, they leave 1 - KEPT_SHARE of the room free, unless that would remove the last turn
    too. All turns if the question does not even fit alone: then the engine reports what is too long.
    """
    room = n_ctx - answer_room(n_ctx, max_tokens)
    counts = range(conversation.num_forgotten, len(conversation.turns) + 1)
    needs = {count: estimate.of(conversation.messages(question, pictures, num_forgotten=count)) for count in counts}
    fitting = [count for count in counts if needs[count] <= room]
    if not fitting or fitting[0] == conversation.num_forgotten:
        return fitting[0] if fitting else len(conversation.turns)
    roomy = (count for count in fitting if needs[count] <= room * KEPT_SHARE and count < len(conversation.turns))
    return next(roomy, fitting[0])
