"""Records behave as the standard library's dataclasses do, but for setting a field of a frozen one."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core import records

Decorator = Callable[..., Any]


def make_classes(dataclass: Decorator) -> dict[str, type]:
    """Return classes of every kind that the package has, made by one decorator."""

    @dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: float = 1.5

    @dataclass(frozen=True, slots=True)
    class Named(Point):
        name: str = "n"

    class Bare(Point):  # its own class for comparisons, without fields of its own
        __slots__ = ()

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Keyed:
        KIND: ClassVar[str] = "k"
        values: tuple[int, ...] = ()
        seen: int = dataclasses.field(default=0, compare=False, repr=False)

    @dataclass(slots=True)
    class Changing:
        items: list[int] = dataclasses.field(default_factory=list)
        num_changes: int = dataclasses.field(default=0, init=False)
        others: list[int] = dataclasses.field(default_factory=list, init=False)
        last: int = dataclasses.field(init=False, repr=False, compare=False)

        def __post_init__(self) -> None:
            self.last = self.num_changes

    @dataclass(slots=True, eq=False)
    class Itself:
        x: int = 0

    @dataclass(frozen=True)
    class Empty:
        pass

    @dataclass(frozen=True, slots=True)
    class Own:
        x: int

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("negative")

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and self.x % 10 == other.x % 10

        def __repr__(self) -> str:
            return f"own {self.x}"

    @dataclass(frozen=True, slots=True)
    class Unhashable:
        x: int
        __hash__ = None

    return {one.__name__: one for one in (Point, Named, Bare, Keyed, Changing, Itself, Empty, Own, Unhashable)}


OURS, THEIRS = make_classes(records._dataclass), make_classes(dataclasses.dataclass)
VALUES: dict[str, st.SearchStrategy[dict[str, object]]] = {
    "Point": st.fixed_dictionaries({"x": st.integers(0, 2)}, optional={"y": st.floats(0, 1)}),
    "Named": st.fixed_dictionaries({"x": st.integers(0, 2)}, optional={"name": st.text(max_size=2)}),
    "Bare": st.fixed_dictionaries({"x": st.integers(0, 2)}),
    "Keyed": st.fixed_dictionaries({}, optional={"values": st.tuples(st.integers(0, 1)), "seen": st.integers(0, 3)}),
    "Changing": st.fixed_dictionaries({}, optional={"items": st.lists(st.integers(0, 1), max_size=2)}),
    "Itself": st.fixed_dictionaries({"x": st.integers(0, 1)}),
    "Empty": st.just({}),
    "Unhashable": st.fixed_dictionaries({"x": st.integers(0, 1)}),
    "Own": st.fixed_dictionaries({"x": st.integers(0, 20)}),
}


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, dict[str, object], str, dict[str, object]]:
    name = draw(st.sampled_from(sorted(VALUES)))
    other = draw(st.one_of(st.just(name), st.sampled_from(sorted(VALUES))))
    return name, draw(VALUES[name]), other, draw(VALUES[other])


@given(pairs())
def test_they_compare_hash_and_print_as_dataclasses_do(
    pair: tuple[str, dict[str, object], str, dict[str, object]],
) -> None:
    name, values, other_name, other_values = pair
    ours, theirs = OURS[name](**values), THEIRS[name](**values)
    assert repr(ours) == repr(theirs) or name == "Itself"
    assert (ours == OURS[other_name](**other_values)) is (theirs == THEIRS[other_name](**other_values))
    assert (type(ours).__hash__ is None) is (type(theirs).__hash__ is None)
    if type(ours).__hash__ is not None and ours == OURS[other_name](**other_values):
        assert hash(ours) == hash(OURS[other_name](**other_values)) or name == "Own"


@given(st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), VALUES[name])))
def test_they_are_copied_changed_and_taken_apart_alike(drawn: tuple[str, dict[str, object]]) -> None:
    name, values = drawn
    ours, theirs = OURS[name](**values), THEIRS[name](**values)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert dataclasses.asdict(copy.copy(ours)) == dataclasses.asdict(ours)
    assert dataclasses.asdict(dataclasses.replace(ours, **values)) == dataclasses.asdict(ours)
    assert [field.name for field in dataclasses.fields(ours)] == [field.name for field in dataclasses.fields(theirs)]
    assert type(ours).__match_args__ == type(theirs).__match_args__


@records.dataclass(frozen=True, slots=True)
class Sent:
    """A record of a module, as those that processes send each other are."""

    a: int
    b: tuple[str, ...] = ()


def test_they_go_through_a_pipe() -> None:
    sent = Sent(1, ("x",))
    assert pickle.loads(pickle.dumps(sent, pickle.HIGHEST_PROTOCOL)) == sent


def test_values_that_do_not_equal_themselves_do_inside_records_as_inside_tuples() -> None:
    nan = float("nan")
    assert OURS["Empty"]() == OURS["Empty"]() and OURS["Own"](x=1) == OURS["Own"](x=11)
    assert OURS["Itself"](x=1) != OURS["Itself"](x=1)
    assert OURS["Changing"](items=nan) == OURS["Changing"](items=nan)


def test_one_that_holds_itself_can_be_printed() -> None:
    changing = OURS["Changing"]()
    changing.items.append(changing)
    assert "..." in repr(changing)


def test_they_have_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        Sent(1).other = 2  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unexpected keyword"):
        Sent(1, c=2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="negative"):
        OURS["Own"](x=-1)


@pytest.mark.parametrize("name", sorted(VALUES))
@pytest.mark.parametrize("values", [(), (1,), (1, 2.0), (1, 2.0, "n"), (1, 2.0, "n", 4)])
def test_they_take_values_by_position_alike(name: str, values: tuple[object, ...]) -> None:
    """Also those that are refused, with the words of the standard library."""

    def make(cls: type) -> object:
        try:
            return dataclasses.asdict(cls(*values))
        except TypeError as refused:
            return str(refused).replace("make_classes.<locals>.", "")

    assert make(OURS[name]) == make(THEIRS[name])


def test_each_gets_a_list_of_its_own() -> None:
    OURS["Changing"]().items.append(1)
    assert OURS["Changing"]().items == []
