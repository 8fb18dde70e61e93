"""Answers bound to a schema, a regular expression or a grammar: llguidance over the vocabulary of a loaded model.

The draw is the request's own sampler chain among the tokens that the grammar admits at that node. The grammar's
state advances with each draw, so only along emitted tokens: drafts verify as they do without a constraint.
Does not know requests or chat templates. Schemas come from anyone, so size, depth and effort are bounded.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from eaglelocal.backend.hot import NONE_FITS
from eaglelocal.backend.samplers import Chain, RowReader, with_logprobs
from eaglelocal.backend.vocabulary import LlamaVocabulary
from eaglelocal.core.constraint import JSON_SPACE, MAX_SOURCE_BYTES, Constraint, Syntax
from eaglelocal.core.json_text import MAX_DEPTH, read_json, read_object
from eaglelocal.core.sampling import Sampled
from eaglelocal.errors import EagleLocalError, RequestError

_FRAME_DEPTH = 8  # of llguidance's own JSON around a schema
MAX_KEPT = 16  # compiled grammars; the same schema comes again and again
ANY_OBJECT = '{"type":"object"}'


class LlamaConstraints:
    """Implements core.ports.Constraints. Lives as long as its model."""

    def __init__(self, handle: object, vocabulary: LlamaVocabulary) -> None:
        self._handle, self._vocabulary = handle, vocabulary
        self._tokenizer: LLTokenizer | None = None  # of the whole vocabulary: made when first needed
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()

    @property
    def end_token(self) -> int:
        return self._vocabulary.end_tokens[0]

    def prepare(self) -> None:
        """Read the whole vocabulary, which the first constraint would wait for: 1.3 s for 150 000 tokens."""
        if self._vocabulary.end_tokens:
            self._of_vocabulary()

    def check(self, constraint: Constraint) -> None:
        self._prototype(constraint)

    def matcher(self, constraint: Constraint) -> LLMatcher:
        """At the beginning of an answer."""
        return self._prototype(constraint).deep_copy()

    def _prototype(self, constraint: Constraint) -> LLMatcher:
        kept = self._compiled.pop(constraint, None)
        self._compiled[constraint] = found = kept or self._compile(constraint)
        if len(self._compiled) > MAX_KEPT:
            self._compiled.popitem(last=False)
        return found

    def _compile(self, constraint: Constraint) -> LLMatcher:
        grammar, tokenizer, limits = grammar_of(constraint), self._of_vocabulary(), parser_limits()
        is_wrong, reasons = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer, limits=limits)
        if is_wrong:
            raise RequestError(f"the {noun(constraint)} cannot be used: {reason_in(reasons[0])}")
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        mask = matcher.compute_bitmask()
        if matcher.is_error() or not any(mask):
            raise RequestError(f"no answer fits the {noun(constraint)}")
        return matcher

    def _of_vocabulary(self) -> LLTokenizer:
        if self._tokenizer is None:
            from llguidance.llamacpp import lltokenizer_from_vocab  # imports llama_cpp

            ends = self._vocabulary.end_tokens
            if not ends:
                raise RequestError("the model has no token that ends an answer, so its answers cannot be bound")
            self._tokenizer = lltokenizer_from_vocab(self._handle, eos_token=ends)  # type: ignore[arg-type]
        return self._tokenizer


class ConstrainedSampler:
    """What a chain draws among the tokens that a grammar admits.

    end_token  drawn where no token fits, to end the answer; `problem` then says why
    """

    def __init__(
        self, chain: Chain, matcher: LLMatcher, read_row: RowReader, logprobs: int | None, *, end_token: int
    ) -> None:
        self.problem: EagleLocalError | None = None
        self._chain, self._read_row = chain, read_row
        self._matcher, self._logprobs, self._end_token = matcher, logprobs, end_token

    def accept(self, tokens: Sequence[int]) -> None:
        self._chain.accept(tokens)

    def sample(self, row: int) -> Sampled:
        mask = self._matcher.compute_bitmask()  # at the end of the grammar of the tokens that end an answer
        if self._matcher.is_error():
            return self._give_up()
        token = self._chain.draw(row, mask)
        if token == NONE_FITS:
            return self._give_up()
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
        return Sampled(token) if self._logprobs is None else with_logprobs(token, self._read_row(row), self._logprobs)

    def _give_up(self) -> Sampled:
        reason = reason_in(self._matcher.get_error()) or "the model has no token that fits"
        self.problem = RequestError(f"the answer cannot go on as it is bound to: {reason}", parameter="response_format")
        return Sampled(self._end_token)

    def close(self) -> None:
        self._chain.close()


def parser_limits() -> LLParserLimits:
    """Lower than llguidance's own where a grammar from anyone could take time or memory; errors quote no text."""
    return LLParserLimits(
        step_max_items=20_000, max_lexer_states=50_000, max_grammar_size=100_000, verbose_errors=False
    )


def grammar_of(constraint: Constraint) -> str:
    """As llguidance takes it. Raises RequestError for what is too large or no JSON."""
    size_bytes = len(constraint.source.encode(errors="replace")) + len(constraint.frame)
    if size_bytes > MAX_SOURCE_BYTES:
        raise RequestError(f"the {noun(constraint)} has {size_bytes} bytes, more than {MAX_SOURCE_BYTES}")
    grammar = _bare_grammar(constraint)
    if not constraint.frame:
        return grammar
    (answer,) = cast("list[dict[str, object]]", read_object(grammar, MAX_DEPTH + _FRAME_DEPTH)["grammars"])
    return json.dumps({"grammars": [{"lark_grammar": constraint.frame}, {**answer, "name": "answer"}]})


def _bare_grammar(constraint: Constraint) -> str:
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
    """Strict: what llguidance cannot bind is an error; else it binds nothing."""
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


def noun(constraint: Constraint) -> str:
    names = {Syntax.REGEX: "regular expression", Syntax.LARK: "grammar"}
    return names.get(constraint.syntax, "schema")


_PLACE = re.compile(r"at \d+\(\d+\): (failed to compile JSON schema: )?")  # in a grammar that nobody wrote by hand


def reason_in(text: str) -> str:
    """What llguidance objects to, in one line: the rest of what it says is the grammar.

    at 6(9): failed to compile JSON schema: regex parse error:
         ^(?=a)
    error: look-around is not supported         ->  regex parse error: look-around is not supported
    """
    first, *more = text.strip().split("\n")
    first = _PLACE.sub("", first, count=1)
    errors = (line.removeprefix("error:") for line in more if line.startswith("error:"))
    return f"{first}{next(errors, '')}" if first.endswith(":") else first
