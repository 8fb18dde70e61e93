"""The environment in which an untrusted chat template runs: jinja2's immutable sandbox, with a budget of steps.

It uses jinja2 and its syntax tree. Every loop iteration and every call takes a step from the budget, so a template that
loops without end fails at the same line on every machine. Time and memory of single operations are not counted here:
the process in which this runs limits them. It does not depend on messages, models or errors for users.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime

from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context

MAX_STEPS = 500_000  # loop iterations and calls in one rendering
MAX_TEXT_CHARS = 8 * 1024 * 1024  # of a rendering's output
MAX_REFUSAL_CHARS = 1000


class Refused(Exception):
    """An error: the template called raise_exception (jinja2's name for it)."""


class LimitExceeded(Exception):
    """An error: the template took more steps than it may."""


class GenerationTag(Extension):
    """The tag `{% generation %}`, which marks the assistant's text for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one template in one thread. Call `restart` before each rendering."""

    def __init__(self) -> None:
        extensions = [LoopControlExtension, GenerationTag]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self._steps_left = MAX_STEPS
        self.filters.update(tojson=_tojson, counted_=_count_items)
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def restart(self) -> None:
        self._steps_left = MAX_STEPS

    def spend(self, num_steps: int) -> None:
        self._steps_left -= num_steps
        if self._steps_left < 0:
            raise LimitExceeded(f"more than {MAX_STEPS} loop iterations and calls")

    def parse_bounded(self, source: str) -> nodes.Template:
        """Return the template's syntax tree with its loops counted."""
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, "counted_", [], [], None, None, lineno=loop.iter.lineno)
            loop.iter.set_environment(self)
        return tree

    def call(__self, __context: Context, __obj: object, *args: object, **kwargs: object) -> object:
        __self.spend(1)
        return super().call(__context, __obj, *args, **kwargs)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Allow lists to append and pop: some templates number calls so, and the lists serve one rendering only."""
        if type(obj) is list and attr in ("append", "pop"):
            return True
        return super().is_safe_attribute(obj, attr, value)


@pass_context  # keeps jinja2 from evaluating it once, at compile time
def _count_items(context: Context, items: Iterable[object] | None) -> list[object]:
    """Return a loop's items, counted as steps. None counts as empty: some templates loop over `tools` of None."""
    listed = [] if items is None else list(items)
    sandbox = context.environment
    assert isinstance(sandbox, Sandbox)
    sandbox.spend(len(listed))
    return listed


def _raise_exception(message: object) -> None:
    raise Refused(str(message)[:MAX_REFUSAL_CHARS])


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON, since jinja2's own filter escapes for HTML. Generators, which filters return, become lists."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_to_list
    )


def _to_list(value: object) -> list[object]:
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
