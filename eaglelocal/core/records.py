"""Dataclasses that are made in a tenth of the time; a start makes hundreds of them.

Type checkers see the standard library's dataclasses. The standard library compiles the source of up to six methods for
each class, which takes a fifth of a start; here only `__init__` is compiled, when it is first called. So `frozen`
makes a class hashable, and mypy reports code that sets a field of it, but nothing stops such code at run time: that
check would also make each record of a step cost several times as much. It takes `frozen`, `slots`, `kw_only` and `eq`;
use the standard library's for others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any


def _dataclass(
    cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, kw_only: bool = False, eq: bool = True
) -> Any:
    if cls is None:
        return partial(_dataclass, frozen=frozen, slots=slots, kw_only=kw_only, eq=eq)
    made: type = dataclasses.dataclass(cls, slots=slots, kw_only=kw_only, init=False, repr=False, eq=False)
    if "__init__" not in cls.__dict__:
        made.__init__ = _compile_when_called(made)  # type: ignore[misc]
    if "__repr__" not in cls.__dict__:
        made.__repr__ = _describe  # type: ignore[assignment]
    if eq:
        _add_comparison(made, frozen)
    return made


def _compile_when_called(cls: type) -> Callable[..., None]:
    def compile_init(self: object, *values: object, **named: object) -> None:
        cls.__init__ = init = _compile_init(cls)  # type: ignore[misc]
        init(self, *values, **named)

    return compile_init


def _compile_init(cls: type) -> Callable[..., None]:
    """Return the `__init__` that the standard library would compile."""
    names: dict[str, Any] = {"MISSING": dataclasses.MISSING}
    positional, by_keyword, lines = ["self"], ["*"], []
    for field in dataclasses.fields(cls):
        name, value, default = field.name, field.name, ""
        if field.default_factory is not dataclasses.MISSING:
            names[f"make_{name}"] = field.default_factory
            value, default = f"make_{name}() if {name} is MISSING else {name}", "=MISSING"
        elif field.default is not dataclasses.MISSING:
            names[f"default_{name}"] = field.default
            default = f"=default_{name}"
        if field.init:
            (by_keyword if field.kw_only else positional).append(name + default)
            lines.append(f"self.{name} = {value}")
        elif default:
            lines.append(f"{name}{default}; self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = [*positional, *(by_keyword if len(by_keyword) > 1 else [])]
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"]), names)
    init: Callable[..., None] = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


@recursive_repr()
def _describe(self: Any) -> str:
    values = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({values})"


def _add_comparison(cls: type, frozen: bool) -> None:
    """Add `__eq__` by the fields, and `__hash__` if frozen, where the class does not define them itself."""
    own = cls.__dict__
    has_no_hash = "__hash__" not in own or (own["__hash__"] is None and "__eq__" in own)  # Python sets that None
    values = _values_of([field.name for field in dataclasses.fields(cls) if field.compare])

    def is_equal(self: object, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_values(self: object) -> int:
        return hash(values(self))

    if "__eq__" not in own:
        cls.__eq__ = is_equal  # type: ignore[method-assign, assignment]
    if has_no_hash:
        cls.__hash__ = hash_values if frozen else None  # type: ignore[method-assign, assignment]


def _values_of(names: list[str]) -> Callable[[object], Any]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple([getattr(self, name) for name in names])


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass
