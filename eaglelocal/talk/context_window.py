"""How many old turns must go so that the next question and its answer fit in the context.

Pure. The client holds no model, so tokens are estimated: from the last answer, whose prompt and
length the engine counted, and before that from characters. The engine has the last word.

Example: context 2048, no limit of tokens, so 512 are kept for the answer. Three turns of about 700
tokens each and a question of 50 make 2150 > 1536: the oldest must go. 1450 stay then, and the next question would cost
the next turn, and so on; each time the whole prompt is read anew. So the second goes at once, and 750 stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from eaglelocal.core.request import Message
from eaglelocal.talk.conversation import Conversation
from eaglelocal.talk.pictures import Pictures

TOKENS_PER_CHAR = 0.35  # small vocabularies write English at about three characters a token
KEPT_SHARE = 0.75  # of the room, once something has to go
TOKENS_PER_MESSAGE = 6.0  # role markers of the template
TOKENS_PER_IMAGE = 300.0  # most models: 256 of a square, more of a large one


@dataclass(frozen=True, slots=True)
class TokenEstimate:
    """Tokens of messages; calibrated on what the engine counted for the last answer."""

    tokens_per_char: float = TOKENS_PER_CHAR

    def of(self, messages: tuple[Message, ...]) -> int:
        num_chars = sum(len(message.content) for message in messages)
        return round(num_chars * self.tokens_per_char + _beside_text(messages))


def calibrated(messages: tuple[Message, ...], num_tokens: int) -> TokenEstimate:
    """The estimate that gives num_tokens for these messages; the default where they are too short to tell."""
    num_chars = sum(len(message.content) for message in messages)
    if num_chars < 200:
        return TokenEstimate()
    if any(message.images for message in messages):  # what is theirs of the tokens is not known
        return TokenEstimate()
    return TokenEstimate(max(0.0, num_tokens - _beside_text(messages)) / num_chars)


def _beside_text(messages: tuple[Message, ...]) -> float:
    """Tokens of what is not text."""
    return len(messages) * TOKENS_PER_MESSAGE + sum(len(message.images) for message in messages) * TOKENS_PER_IMAGE


def answer_room(n_ctx: int, max_tokens: int | None) -> int:
    """Tokens to keep free for the answer; a limit that the engine would clip must not cost the whole conversation."""
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
    """The number of oldest turns, not less than now, without which the question fits.

    More of them than now leave a share of the room free, unless that cost the last turn too. All of them when it does
    not fit even alone: then the engine says what is too long.
    """
    room = n_ctx - answer_room(n_ctx, max_tokens)
    counts = range(conversation.num_forgotten, len(conversation.turns) + 1)
    needs = {count: estimate.of(conversation.messages(question, pictures, num_forgotten=count)) for count in counts}
    fitting = [count for count in counts if needs[count] <= room]
    if not fitting or fitting[0] == conversation.num_forgotten:
        return fitting[0] if fitting else len(conversation.turns)
    roomy = (count for count in fitting if needs[count] <= room * KEPT_SHARE and count < len(conversation.turns))
    return next(roomy, fitting[0])
