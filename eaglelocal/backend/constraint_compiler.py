"""Constrained answers: llguidance compiles a schema, a regular expression or a grammar for a model's vocabulary.

The request's own sampler chain draws among the tokens that the grammar admits at that point. The grammar's state
advances with each draw, so only along emitted tokens: drafts are verified as without a constraint.
Does not know requests or chat templates. Schemas are untrusted, so size, depth and effort are limited.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import WeakValueDictionary

from eaglelocal.backend.grammar_check import CPU_S, NO_ANSWER, OPENER, compile_grammar, find_start_problem
from eaglelocal.backend.native_step import NONE_FITS
from eaglelocal.backend.samplers import ChainSampler, LlamaSamplerChain, RowReader
from eaglelocal.backend.vocabulary import LlamaVocabulary
from eaglelocal.core.constraint import JSON_SPACE, MAX_SOURCE_BYTES, Constraint, Syntax
from eaglelocal.core.json_text import MAX_DEPTH, read_json, read_object
from eaglelocal.core.sampling import Sampled
from eaglelocal.errors import RequestError, ResourceError, TooComplexError
from eaglelocal.processes.limited_process import (
    LimitedProcess,
    LimitedProcessError,
    ProcessDied,
    ProcessLimits,
    TookTooLong,
    TookTooMuchMemory,
)

if TYPE_CHECKING:  # imported where it is used: a start does not wait for it
    from llguidance import LLMatcher, LLTokenizer

Key = TypeVar("Key")
Value = TypeVar("Value")

_FRAME_DEPTH = 8  # depth of llguidance's own JSON around a schema
MAX_CACHED = 16  # compiled grammars; schemas tend to recur
MAX_REFUSED = 256
MAX_REASON_CHARS = 300
MAX_MASK_S = 0.5  # CPU seconds that each token of an answer may take
LATER_S = 1.0  # the server may still be importing its modules
ANY_OBJECT = '{"type":"object"}'
CHECK_LIMITS = ProcessLimits(
    cpu_s=CPU_S, memory_bytes=256 * 1024 * 1024, max_deaths=sys.maxsize
)  # grammars are independent
NEEDS_TIME = f"that takes more than {CHECK_LIMITS.cpu_s:g} s"
NEEDS_MEMORY = f"that takes more than {CHECK_LIMITS.memory_bytes // 2**20} MiB"
# Signals that a grammar can cause: the stack overflowed, Rust got no memory, or the time was up.
CRASHES: dict[int, str] = {
    signal.SIGSEGV: "it is nested, or refers from one part to the next, too deeply",
    signal.SIGBUS: "it is nested, or refers from one part to the next, too deeply",
    signal.SIGABRT: NEEDS_MEMORY,
    signal.SIGPROF: NEEDS_TIME,
}


class CompiledConstraint:
    """A compiled grammar over the model's vocabulary, in the state before an answer."""

    def __init__(self, prototype: LLMatcher) -> None:
        self.prototype = prototype
        self.unbound = read_unbound(prototype.get_grammar_warnings())


class LlamaConstraints:
    """The constraints of one model. Implements core.ports.Constraints; must be closed.

    A grammar is compiled in another process first (grammar_check.py): one that takes too long, too much memory or
    crashes llguidance is refused there. Only then is it compiled here, on the caller's thread, without the GIL.
    """

    def __init__(self, vocabulary: LlamaVocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: LLTokenizer | None = None  # over the whole vocabulary: made when first needed
        self._checker: LimitedProcess | None = None
        self._creating, self._updating = threading.Lock(), threading.Lock()
        self._recent: OrderedDict[Constraint, CompiledConstraint] = OrderedDict()
        self._alive: WeakValueDictionary[Constraint, CompiledConstraint] = WeakValueDictionary()  # those in use, too
        self._refused: OrderedDict[bytes, RequestError] = OrderedDict()  # by hash_constraint

    @property
    def end_token(self) -> int:
        return self._vocabulary.end_tokens[0]

    @property
    def is_prepared(self) -> bool:
        """The vocabulary has been scanned."""
        return self._tokenizer is not None

    def prepare(self) -> None:
        """Scan the whole vocabulary in advance, and start the process that checks grammars a little later.

        Scanning takes a second or more; otherwise the first constraint would wait for it.
        """
        if self._vocabulary.end_tokens:
            self.checker.start(after_s=LATER_S)
            self._get_tokenizer()

    def check(self, constraint: Constraint) -> tuple[str, ...]:
        return self._get_compiled(constraint).unbound

    def hold(self, constraint: Constraint) -> CompiledConstraint:
        return self._get_compiled(constraint)

    def matcher(self, constraint: Constraint) -> LLMatcher:
        """Return a new matcher, in the state before an answer."""
        return self._get_compiled(constraint).prototype.deep_copy()

    def close(self) -> None:
        """End the process that checks grammars."""
        if self._checker is not None:
            self._checker.close()

    def _get_compiled(self, constraint: Constraint) -> CompiledConstraint:
        digest = hash_constraint(constraint)
        with self._updating:
            found = self._alive.get(constraint)
            if (refused := self._refused.get(digest)) is not None:
                raise copy.copy(refused)
        if found is None:
            try:
                found = self._compile(constraint)
            except RequestError as error:
                # A copy: a raised error keeps its traceback's frames alive.
                self._remember(self._refused, digest, copy.copy(error), MAX_REFUSED)
                raise
        self._remember(self._recent, constraint, found, MAX_CACHED)
        return found

    def _remember(self, cache: OrderedDict[Key, Value], key: Key, value: Value, max_entries: int) -> None:
        with self._updating:
            cache[key] = value
            cache.move_to_end(key)
            while len(cache) > max_entries:
                cache.popitem(last=False)
            if isinstance(value, CompiledConstraint) and isinstance(key, Constraint):
                self._alive[key] = value

    def _compile(self, constraint: Constraint) -> CompiledConstraint:
        grammar = make_grammar(constraint)
        if problem := self._find_problem(constraint, grammar):
            raise refusal(constraint, problem)
        matcher = compile_grammar(grammar, self._get_tokenizer())
        started_s = time.thread_time()
        if problem := find_start_problem(matcher):
            raise refusal(constraint, problem)
        if (taken_s := time.thread_time() - started_s) > MAX_MASK_S:
            raise TooComplexError(f"the {kind_name(constraint)} is too complex: each token takes {taken_s:.1f} s")
        return CompiledConstraint(matcher)

    def _find_problem(self, constraint: Constraint, grammar: str) -> str:
        """Return why the grammar is refused, or "".

        Raises TooComplexError, and ResourceError if it cannot be checked now.
        """
        for _ in range(2):  # something else may have killed the process
            try:
                found = self.checker.call(grammar)
                if isinstance(found, int):
                    raise ProcessDied(-found)
                return str(found)
            except LimitedProcessError as error:
                if reason := explain_limit(error):
                    what = f"the {kind_name(constraint)} is too complex to compile: {reason}"
                    raise TooComplexError(what) from error
                last = error
                if not isinstance(error, ProcessDied):  # a bug of ours, or of llguidance
                    break
        message = f"the {kind_name(constraint)} cannot be checked now: {last}"
        raise ResourceError(message, hint="free memory or processes, then ask again") from last

    @property
    def checker(self) -> LimitedProcess:
        """The process that checks grammars. Raises RequestError if the model cannot end an answer."""
        with self._creating:
            if self._checker is None:
                vocabulary = self._vocabulary
                ends = tuple(vocabulary.end_tokens)
                if not ends:
                    raise RequestError(
                        "the model has no token that ends an answer, so its answers cannot be constrained"
                    )
                start = (vocabulary.n_tokens, vocabulary.special_texts, ends)
                self._checker = LimitedProcess(OPENER, *start, limits=CHECK_LIMITS)
            return self._checker

    def _get_tokenizer(self) -> LLTokenizer:
        with self._creating:
            if self._tokenizer is None:
                from llguidance.llamacpp import lltokenizer_from_vocab  # imports llama_cpp

                handle, ends = self._vocabulary.handle, self._vocabulary.end_tokens
                self._tokenizer = lltokenizer_from_vocab(handle, eos_token=ends)  # type: ignore[arg-type]
            return self._tokenizer


def explain_limit(error: LimitedProcessError) -> str:
    """Return which limit the grammar exceeded when the process failed; empty if something else was the cause."""
    match error:
        case TookTooLong():
            return NEEDS_TIME
        case TookTooMuchMemory():
            return NEEDS_MEMORY
        case ProcessDied():
            return CRASHES.get(-error.exit_status, "")
    return ""


def hash_constraint(constraint: Constraint) -> bytes:
    """Return a hash of the constraint: a short key for long sources."""
    kind = f"{constraint.owner}\0{constraint.syntax.value}\0{constraint.is_strict}"
    text = f"{kind}\0{constraint.frame}\0{constraint.source}"
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def refusal(constraint: Constraint, problem: str) -> RequestError:
    if problem == NO_ANSWER:
        return RequestError(f"no answer fits the {kind_name(constraint)}")
    return RequestError(f"the {kind_name(constraint)} cannot be used: {extract_reason(problem)}")


class ConstrainedSampler(ChainSampler):
    """A sampler that draws with a chain among the tokens that a grammar admits.

    end_token  drawn if no token is admitted, to end the answer; then `problem` gives the reason
    """

    def __init__(
        self, chain: LlamaSamplerChain, matcher: LLMatcher, read_row: RowReader, logprobs: int | None, *, end_token: int
    ) -> None:
        super().__init__(chain, read_row, logprobs)
        self._draw_masked, self._matcher, self._end_token = chain.draw, matcher, end_token

    def sample(self, row: int) -> Sampled:
        mask = self._matcher.compute_bitmask()  # at the end of the grammar: the end tokens
        if self._matcher.is_error() or (token := self._draw_masked(row, mask)) == NONE_FITS:
            return self._give_up()
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
        return self._describe(token, row)

    def force(self, row: int, token: int) -> Sampled | None:
        if self._matcher.is_stopped() or not self._matcher.validate_tokens([token]):
            return None
        self._matcher.consume_token(token)
        return super().force(row, token)

    def _give_up(self) -> Sampled:
        reason = extract_reason(self._matcher.get_error()) or "the model has no token that fits"
        self.problem = RequestError(f"the constrained answer cannot continue: {reason}", parameter="response_format")
        return Sampled(self._end_token)


def make_grammar(constraint: Constraint) -> str:
    """Return the grammar in llguidance's own form. Raises RequestError if the source is too large or invalid JSON."""
    size_bytes = len(constraint.source.encode(errors="replace")) + len(constraint.frame)
    if size_bytes > MAX_SOURCE_BYTES:
        raise RequestError(f"the {kind_name(constraint)} has {size_bytes} bytes, more than {MAX_SOURCE_BYTES}")
    grammar = _bare_grammar(constraint)
    if not constraint.frame:
        return grammar
    answer = _single_grammar(grammar)
    return json.dumps({"grammars": [{"lark_grammar": constraint.frame}, {**answer, "name": "answer"}]})


def _single_grammar(grammar: str) -> dict[str, object]:
    """Return llguidance's output as one grammar entry: it is a JSON object with one grammar, or bare Lark text."""
    try:
        (found,) = cast("list[dict[str, object]]", read_object(grammar, MAX_DEPTH + _FRAME_DEPTH)["grammars"])
    except (ValueError, TypeError, KeyError):
        return {"lark_grammar": grammar}
    return dict(found)


def _bare_grammar(constraint: Constraint) -> str:
    from llguidance import LLMatcher

    match constraint.syntax:
        case Syntax.JSON_OBJECT:
            return _schema_grammar(ANY_OBJECT, is_strict=True)
        case Syntax.JSON_SCHEMA:
            _check_schema(constraint.source)
            return _schema_grammar(constraint.source, is_strict=constraint.is_strict)
        case Syntax.REGEX:
            return str(LLMatcher.grammar_from_regex(constraint.source))
        case Syntax.LARK:
            return str(LLMatcher.grammar_from_lark(constraint.source))


def _schema_grammar(schema: str, *, is_strict: bool) -> str:
    """Return the grammar of a schema. Unsupported parts are an error if strict; else they are ignored."""
    from llguidance import LLMatcher

    return str(
        LLMatcher.grammar_from_json_schema(
            schema,
            overrides={"whitespace_pattern": JSON_SPACE, "lenient": not is_strict, "coerce_one_of": not is_strict},
        )
    )


def _check_schema(source: str) -> None:
    try:
        schema = read_json(source)
    except ValueError as error:
        raise RequestError(f"the schema cannot be read: {error}") from None
    if not isinstance(schema, dict):
        raise RequestError("the schema must be a JSON object")


def kind_name(constraint: Constraint) -> str:
    names = {Syntax.REGEX: "regular expression", Syntax.LARK: "grammar"}
    return names.get(constraint.syntax, "schema")


_PLACE = re.compile(r"at \d+\(\d+\): (failed to compile JSON schema: )?")  # a position in a generated grammar


def extract_reason(text: str) -> str:
    """Return llguidance's error in one line; the rest of its message quotes the grammar.

    at 6(9): failed to compile JSON schema: regex parse error:
         ^(?=a)
    error: look-around is not supported         ->  regex parse error: look-around is not supported
    """
    first, *more = text.strip().split("\n")
    first = _PLACE.sub("", first, count=1)
    errors = (line.removeprefix("error:") for line in more if line.startswith("error:"))
    return shorten(f"{first}{next(errors, '')}" if first.endswith(":") else first)


_UNBOUND = {  # the beginning of llguidance's warnings -> the keywords that they name
    "Unknown format": ("format",),
    "min/maxProperties": ("minProperties", "maxProperties"),
    "oneOf": ("oneOf",),  # taken as `anyOf`
}


def read_unbound(warnings: Sequence[str]) -> tuple[str, ...]:
    """Return the keywords of a schema that llguidance's warnings name, sorted.

    Unimplemented keys: ["uniqueItems"]  ->  uniqueItems
    """
    found: set[str] = set()
    for warning in warnings:
        found.update(re.findall(r'"(.+?)"', warning) if warning.startswith("Unimplemented keys") else ())
        found.update(*(keys for beginning, keys in _UNBOUND.items() if warning.startswith(beginning)))
    return tuple(sorted(found))


def shorten(reason: str) -> str:
    """Return the reason without its middle, where a long grammar is quoted."""
    if len(reason) <= MAX_REASON_CHARS:
        return reason
    return f"{reason[: MAX_REASON_CHARS // 3]}...{reason[-MAX_REASON_CHARS * 2 // 3 :]}"
