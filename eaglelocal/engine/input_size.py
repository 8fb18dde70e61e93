"""The size of a request's input, which decides where it is read, and keys of equal prompts.

Pure, on plain data. Does not know how long anything takes on this machine.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable

from eaglelocal.core.request import ChatRequest, EmbedRequest
from eaglelocal.core.tools import ToolUse
from eaglelocal.engine.prompt_tokens import PromptTokens
from eaglelocal.errors import RequestError

SHORT_CHARS = 32 * 1024  # of all texts of a request; tokenizing so many takes about ten milliseconds
SURE_TOKEN_BYTES = 16  # every vocabulary has longer tokens
MAX_KEPT_PROMPTS = 2
LONG_LANE, BOUND_LANE = 1, 2
QUICK_S, MAX_QUICK = 0.05, 256


class ChatLanes:
    """Chooses the lane of a request: lane 0 if it is short, one for long texts and images, one for new constraints.

    So only requests with a new schema wait for schemas. One that was compiled quickly counts as short from then on.
    """

    def __init__(self) -> None:
        self._quick: OrderedDict[int, None] = OrderedDict()  # hashes of bound_key

    def lane_of(self, asked: ChatRequest, num_lanes: int) -> int:
        if num_lanes == 1:
            return 0
        if num_chars(asked) > SHORT_CHARS or any(message.images for message in asked.messages):
            return LONG_LANE
        return BOUND_LANE if is_bound(asked) and hash(bound_key(asked)) not in self._quick else 0

    def learn(self, asked: ChatRequest, read_s: float) -> None:
        """Remember a constraint that was compiled, or refused, quickly."""
        if read_s > QUICK_S or not is_bound(asked):
            return
        self._quick[hash(bound_key(asked))] = None
        while len(self._quick) > MAX_QUICK:
            self._quick.popitem(last=False)


def embed_lane(asked: EmbedRequest, num_lanes: int) -> int:
    """Return the index of the lane that reads the request: 0 if it is short."""
    count = sum(map(len, asked.inputs)) + (len(asked.ranking.query) if asked.ranking else 0)
    return 0 if num_lanes == 1 or count <= SHORT_CHARS else LONG_LANE


def may_take_long(asked: ChatRequest) -> bool:
    """Return whether reading may take more than about ten milliseconds: long texts, images, constraints."""
    return is_bound(asked) or any(message.images for message in asked.messages) or num_chars(asked) > SHORT_CHARS


def is_bound(asked: ChatRequest) -> bool:
    """Return whether a grammar may have to be compiled for the request."""
    if asked.constraint is not None or asked.tool_choice.use is ToolUse.REQUIRED:
        return True
    return any(tool.is_strict for tool in asked.tools)


def bound_key(asked: ChatRequest) -> tuple[object, ...]:
    """Return the fields of the request that determine its grammar."""
    return asked.constraint, asked.tools, asked.tool_choice, asked.is_split


def num_raw_chars(asked: ChatRequest) -> int:
    """Return the characters of a prompt without template. Infill does not count: it is cut to fit."""
    mixed = asked.mixed.parts if asked.mixed is not None else ()
    return len(asked.text or "") + len(asked.suffix) + sum(len(part) for part in mixed if isinstance(part, str))


def num_chars(asked: ChatRequest) -> int:
    """Return the characters of all the request's texts; a token counts as one."""
    count = num_raw_chars(asked) + len(asked.tokens)
    count += sum(len(message.content) + len(message.reasoning) for message in asked.messages)
    count += sum(len(call.arguments) for message in asked.messages for call in message.tool_calls)
    count += sum(len(tool.parameters) + len(tool.description) for tool in asked.tools)
    count += sum(len(value) for _, value in asked.template_values)
    if asked.infill is not None:
        count += sum(len(text) for _, text in asked.infill.snippets)
        around = (*asked.infill.before, *asked.infill.behind)
        count += sum(len(part) for part in around if isinstance(part, str))
    return count


def prompt_key(asked: ChatRequest) -> tuple[object, ...]:
    """Return the fields that determine a prompt: requests with equal keys have equal prompts."""
    begins_anew = asked.constraint is not None or asked.tool_choice.use is ToolUse.REQUIRED
    content = (asked.messages, asked.text, asked.tokens, asked.mixed, asked.infill, asked.suffix)
    how = (asked.tools, asked.tool_choice, asked.template_values, asked.continues_last, begins_anew)
    return (*content, *how, asked.tells_prompt, asked.is_counted)


class PromptCache:
    """A cache of the last prompts that took long to make, or of the errors that they raised.

    A client that wants sixteen answers sends sixteen requests with one prompt. Safe from any thread.
    """

    def __init__(self, make: Callable[[ChatRequest], PromptTokens]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], PromptTokens | RequestError] = OrderedDict()

    def prompt(self, asked: ChatRequest) -> PromptTokens:
        """Return the request's prompt. Raises RequestError as `make` does."""
        if not may_take_long(asked):
            return self._make(asked)
        key = prompt_key(asked)
        with self._lock:
            found = self._kept.pop(key, None)
        if found is None:
            found = self._outcome(asked)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > MAX_KEPT_PROMPTS:
                self._kept.popitem(last=False)
        if isinstance(found, RequestError):
            raise copy.copy(found)  # a raised error keeps its traceback's frames alive
        return found

    def _outcome(self, asked: ChatRequest) -> PromptTokens | RequestError:
        try:
            return self._make(asked)
        except RequestError as error:
            return copy.copy(error)
