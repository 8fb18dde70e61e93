"""The place where a chat template from a model file may run: jinja2's immutable sandbox, made finite.

Knows jinja2 and its syntax tree. Every turn of a loop and every call takes a step from a budget, and
what builds text or numbers (operators, widths of `ljust`, `center`, `indent` and formats, `replace`) is bounded, so a
hostile template ends soon and takes little memory.
Does not know messages, models or errors for people.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context

MAX_STEPS = 500_000  # turns of loops and calls in one rendering
MAX_TEXT_CHARS = 8 * 1024 * 1024  # of any text the template builds, and of its output
MAX_POWER_BITS = 4096
SIZED_FILTERS = ("center", "indent", "format", "replace", "wordwrap", "truncate")
_WIDE = re.compile(r"\d{7}")  # in a format: a width, or a precision


class Refused(Exception):
    """The template called raise_exception (jinja2's name for it)."""


class LimitExceeded(Exception):
    """The template ran too long or built too much."""


class GenerationTag(Extension):
    """`{% generation %}`: marks the assistant's text for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """Serves one template in one thread; `restart` before each rendering."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        extensions = [LoopControlExtension, GenerationTag]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self._steps_left = MAX_STEPS
        for name in SIZED_FILTERS:
            self.filters[name] = _sized(self.filters[name])
        self.filters.update(tojson=_tojson, counted_=_counted, joined_=_joined)
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def restart(self) -> None:
        self._steps_left = MAX_STEPS

    def spend(self, num_steps: int) -> None:
        self._steps_left -= num_steps
        if self._steps_left < 0:
            raise LimitExceeded(f"more than {MAX_STEPS} loop turns and calls")

    def bounded(self, source: str) -> nodes.Template:
        """The template's tree with loops counted and `~` bounded."""
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = self._filter(loop.iter, "counted_", [])
        for concat in list(tree.find_all(nodes.Concat)):
            first, *rest = concat.nodes
            concat.nodes = [self._filter(first, "joined_", rest)]
        return tree

    def _filter(self, node: nodes.Node, name: str, args: list[nodes.Expr]) -> nodes.Filter:
        made = nodes.Filter(node, name, args, [], None, None, lineno=node.lineno)
        made.set_environment(self)
        return made

    def call(__self, __context: Context, __obj: object, *args: object, **kwargs: object) -> object:
        __self.spend(1)
        _check_sizes(getattr(__obj, "__self__", None), getattr(__obj, "__name__", ""), (*args, *kwargs.values()))
        return super().call(__context, __obj, *args, **kwargs)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Lists may grow, and give an item back: some models' templates number calls so, and ours are made for one
        rendering."""
        if type(obj) is list and attr in ("append", "pop"):
            return True
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """jinja2 puts its own in the place of a text's `format`; here its widths are seen."""
        _check_sizes(getattr(value, "__self__", None), getattr(value, "__name__", ""), ())
        return super().wrap_str_format(value)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        size = _size_of_result(operator, left, right)
        if size > MAX_TEXT_CHARS:
            raise LimitExceeded(f"the operator {operator} would give {size} items, more than {MAX_TEXT_CHARS}")
        return super().call_binop(context, operator, left, right)


@pass_context  # keeps jinja2 from evaluating it once, at compile time
def _counted(context: Context, items: Iterable[object] | None) -> list[object]:
    """A loop's items. None has none: some models' tool templates walk `tools` though there are none."""
    listed = [] if items is None else list(items)
    sandbox = context.environment
    assert isinstance(sandbox, Sandbox)
    sandbox.spend(len(listed))
    return listed


@pass_context
def _joined(context: Context, *parts: object) -> str:
    texts = [str(part) for part in parts]
    size = sum(map(len, texts))
    if size > MAX_TEXT_CHARS:
        raise LimitExceeded(f"the operator ~ would give {size} characters, more than {MAX_TEXT_CHARS}")
    return "".join(texts)


def _sized(made: Callable[..., object]) -> Callable[..., object]:
    """A filter that refuses sizes out of all reason."""

    @functools.wraps(made)
    def bounded(*args: object, **kwargs: object) -> object:
        texts = [value for value in args if isinstance(value, str)]
        _check_sizes(texts[0] if texts else None, made.__name__.removeprefix("do_"), (*args, *kwargs.values()))
        return made(*args, **kwargs)

    return bounded


def _check_sizes(text: object, name: str, arguments: tuple[object, ...]) -> None:
    """Raises LimitExceeded for a width, a format or a replacement that would build too much."""
    if any(isinstance(value, int) and value > MAX_TEXT_CHARS for value in arguments):
        raise LimitExceeded(f"{name} was asked for more than {MAX_TEXT_CHARS} characters")
    if not isinstance(text, str):
        return
    if name in ("format", "format_map") and _WIDE.search(text):
        raise LimitExceeded("a format asks for a width of millions of characters")
    parts = [value for value in arguments if isinstance(value, str) and value is not text]
    if name == "replace" and len(parts) > 1 and (text.count(parts[0]) * len(parts[1]) > MAX_TEXT_CHARS):
        raise LimitExceeded(f"replace would give more than {MAX_TEXT_CHARS} characters")
    if name == "join" and len(text) * sum(len(v) for v in arguments if isinstance(v, list | tuple)) > MAX_TEXT_CHARS:
        raise LimitExceeded(f"join would give more than {MAX_TEXT_CHARS} characters")


def _size_of_result(operator: str, left: object, right: object) -> int:
    """Length that an operator's result would have; 0 where it cannot grow."""
    if operator == "%":
        return MAX_TEXT_CHARS + 1 if isinstance(left, str) and _WIDE.search(left) else 0
    if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        return len(left) + len(right)
    if operator == "*":
        return max(_repeated(left, right), _repeated(right, left), _product_bits(left, right))
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        too_long = left.bit_length() * abs(right) > MAX_POWER_BITS
        return MAX_TEXT_CHARS + 1 if too_long else 0
    return 0


def _repeated(items: object, times: object) -> int:
    return len(items) * times if isinstance(items, str | list | tuple) and isinstance(times, int) else 0


def _product_bits(left: object, right: object) -> int:
    if isinstance(left, int) and isinstance(right, int):
        too_long = left.bit_length() + right.bit_length() > MAX_POWER_BITS
        return MAX_TEXT_CHARS + 1 if too_long else 0
    return 0


def _raise_exception(message: object) -> None:
    raise Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it stands: jinja2's own filter would escape for HTML. What a filter yields is a list."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: object) -> list[object]:
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
