"""An interpreter of the part of pickle that dictionaries of tensors use, in time and memory of the pickle's length.

Python's own reader may be kept busy for ages by a few hundred bytes: a tuple of tuples of tuples, each there twice, is
hashed anew as often as it is a key. Here keys are texts, nothing else is hashed or compared, and what is not
understood is refused. Calls go to functions that the caller gives, with few arguments.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping

from eaglelocal.errors import ModelFileError

MAX_ARGUMENTS = 16
Call = Callable[..., object]

NOTHING = frozenset({"PROTO", "FRAME"})
LITERALS = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)
CONSTANTS: Mapping[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
STORES = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
FETCHES = frozenset({"GET", "BINGET", "LONG_BINGET"})


class PickleInterpreter:
    """An interpreter of one pickle. `known` returns the object for (module, name), `refer` for a persistent id."""

    def __init__(self, known: Callable[[str, str], object], refer: Callable[[object], object]) -> None:
        self._known = known
        self._refer = refer
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}
        self._acts: Mapping[str, Callable[[], None]] = {
            "MARK": lambda: self._marks.append(len(self._stack)),
            "TUPLE": lambda: self._stack.append(tuple(self._since_mark())),
            "APPEND": lambda: self._extend(self._popped(1)),
            "APPENDS": lambda: self._extend(self._since_mark()),
            "SETITEM": lambda: self._set_items(self._popped(2)),
            "SETITEMS": lambda: self._set_items(self._since_mark()),
            "MEMOIZE": lambda: self._memo.__setitem__(len(self._memo), self._stack[-1]),
            "STACK_GLOBAL": lambda: self._name(*self._popped(2)),
            "BINPERSID": lambda: self._stack.append(self._refer(self._stack.pop())),
            "REDUCE": lambda: self._call(*self._popped(2)),
            "BUILD": lambda: self._ignore_state(),
        }

    def run(self, raw: bytes) -> object:
        """Return what the pickle holds. Raises ModelFileError, and IndexError, KeyError or ValueError on damage."""
        for opcode, argument, _ in pickletools.genops(raw):
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise ValueError("no end")

    def _step(self, name: str, argument: object) -> None:
        if name in LITERALS:
            self._stack.append(argument)
        elif name in CONSTANTS:
            self._stack.append(CONSTANTS[name]())
        elif name in TUPLES:
            self._stack.append(tuple(self._popped(TUPLES[name])))
        elif name in STORES and isinstance(argument, int):
            self._memo[argument] = self._stack[-1]
        elif name in FETCHES and isinstance(argument, int):
            self._stack.append(self._memo[argument])
        elif name == "GLOBAL":
            self._name(*str(argument).split(" ", 1))
        elif name in self._acts:
            self._acts[name]()
        elif name not in NOTHING:
            raise ModelFileError(f"its pickle does what no dictionary of tensors needs ({name})")

    def _popped(self, count: int) -> list[object]:
        """Pop the last `count` objects; return them in their order."""
        if len(self._stack) < count:
            raise IndexError("nothing is left")
        found = self._stack[-count:]
        del self._stack[-count:]
        return found

    def _since_mark(self) -> list[object]:
        mark = self._marks.pop()
        found = self._stack[mark:]
        del self._stack[mark:]
        return found

    def _extend(self, items: list[object]) -> None:
        if not isinstance(self._stack[-1], list):
            raise ValueError("no list")
        self._stack[-1].extend(items)

    def _set_items(self, items: list[object]) -> None:
        target, keys = self._stack[-1], items[::2]
        if not isinstance(target, dict) or len(items) % 2 or not all(isinstance(key, str) for key in keys):
            raise ModelFileError("no plain dictionary of tensors")
        target.update(zip(keys, items[1::2], strict=True))

    def _name(self, module: object, name: object) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("no name")
        self._stack.append(self._known(module, name))

    def _call(self, function: object, arguments: object) -> None:
        if not callable(function) or not isinstance(arguments, tuple) or len(arguments) > MAX_ARGUMENTS:
            raise ValueError("no call")
        self._stack.append(function(*arguments))

    def _ignore_state(self) -> None:
        """Drop a dictionary's state beside its items (torch: versions of modules), which is of no use here."""
        self._stack.pop()
        if not isinstance(self._stack[-1], dict):
            raise ValueError("no dictionary")
