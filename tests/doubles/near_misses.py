"""Calls as models nearly write them, for every form: a call is written correctly, then one thing is done otherwise.

Each near miss says what may be read of it. ONE: exactly the true arguments. EITHER: these, or no call, because
somebody might read it in another way. NONE: no call. Never other arguments. The rules are those of the notation and of
the schema, and are decided here without the readers of the product.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import permutations

from eaglelocal.core.tools import CallForm, Notation, Split, Tool
from eaglelocal.text.reasoning.markers import make_control_char
from eaglelocal.text.reasoning.model_families import list_markers
from eaglelocal.text.tool_calls import call_forms as forms

Arguments = dict[str, object]
NAME = "g"
GEMMA_QUOTE = '<|"|>'
TYPES: dict[str, dict[str, object]] = {
    "s": {"type": "string"},
    "text": {"type": "string"},
    "n": {"type": "integer"},
    "x": {"type": "number"},
    "on": {"type": "boolean"},
    "refs": {"type": "array", "items": {"type": "string"}},
    "opts": {"type": "object", "properties": {"word": {"type": "string"}, "k": {"type": "integer"}}},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "unit": {"enum": ["C", "F"]},
}
STRINGS = (
    "owl", "New York", "a, b: c", "it's", "it's, n: 3", "don't say 'x'", 'say "hi" now', "line\nbreak", "a\tb",
    "#define A \\\n  1", "C:\\new\\x", "\\d+(\\.\\d*)?", "f(x, y)", "{a: 1}", "[1, 2]", "x', n=3, s='y", 'x", "n": 3',
    "“quoted”", "`ls -l`", "", " edge ", "007", "12", "True", "none", "null", "é€ 😀", "a=b", "}", "),", "']",
    "print('a')", "print('a', \"b\")\n", "/tmp/a.txt", "https://a.b/c?d=e&f", "a: b", "- [ ] x", "\\", "end\\",
    "l'été d'un chat",
)  # fmt: skip
WORDS = ("owl", "New York", "/tmp/a.txt", "é€ 😀", "x=1")
JOINTS = (
    " + ", "+", " % ", " if n else ", " or ", " and ", " in ", " not in ", " == ", " ", "", "\n", " \\\n", " || ",
    " && ", " . ", " ?? ", ".join(", " * 2 + ", " + f(n) + ", " # ",
)  # fmt: skip
QUOTES = (('"', '"'), ("'", "'"), ("`", "`"), ("“", "”"), ("‘", "’"))
NAMESPACES = ("functions.", "google:mcp:", "default_api.", "server/")


class Expected(Enum):
    """What may be read."""

    ONE = "the true arguments"
    EITHER = "the true arguments, or no call"
    NONE = "no call"


ONE, EITHER, NONE = Expected


@dataclass(frozen=True)
class NearMiss:
    """An answer, its form and tools, and what may be read of it."""

    kind: str
    form: CallForm
    tool: Tool
    arguments: Arguments
    answer: str
    expected: Expected

    @property
    def split(self) -> Split:
        return Split(form=self.form, tools=(self.tool,))


@dataclass(frozen=True)
class Spelling:
    """How a call is written; the fields that are empty are as the notation wants them."""

    quotes: tuple[str, str] = ("", "")
    is_raw: bool = False  # strings without escapes
    raw_breaks: bool = False  # line breaks, and backslashes before them, without escapes
    literals: str = ""  # python or json
    zeros: str = ""  # before whole numbers
    comma: str = ""  # after the last part
    space: str = ""  # around separators
    key: Callable[[str], str] = str
    num_unnamed: int = 0
    code: str = ""  # in place of every string
    around: tuple[str, str] = ("", "")  # every part of a Python call that is no list
    extra: dict[str, str] = field(default_factory=dict)  # further closing brackets, by what they close


def is_python(form: CallForm) -> bool:
    return form.call.endswith("(«args»)")


class Writer:
    """A writer of arguments in the notation of one form."""

    def __init__(self, form: CallForm, spelling: Spelling) -> None:
        self._spelling = spelling
        self._style = "gemma" if form.notation is Notation.GEMMA else "python" if is_python(form) else "json"

    def write(self, arguments: Arguments) -> str:
        if self._style != "python":
            return self.value(arguments)
        unnamed = self._spelling.num_unnamed
        parts = [self._argument(value) for value in [*arguments.values()][:unnamed]]
        parts += [f"{self._spelling.key(key)}={self._argument(value)}" for key, value in [*arguments.items()][unnamed:]]
        return self._join(parts)

    def _argument(self, value: object) -> str:
        before, after = ("", "") if isinstance(value, list) else self._spelling.around
        return f"{before}{self.value(value)}{after}"

    def _join(self, parts: Sequence[str]) -> str:
        space = self._spelling.space
        joint = f"{space}," + (space or ("" if self._style == "gemma" else " "))
        return joint.join(parts) + (self._spelling.comma if parts else "")

    def value(self, value: object) -> str:
        match value:
            case None | bool():
                return str(value) if (self._spelling.literals or self._style) == "python" else json.dumps(value)
            case int():
                return f"-{self._spelling.zeros}{-value}" if value < 0 else f"{self._spelling.zeros}{value}"
            case float():
                return repr(value)
            case str():
                return self._spelling.code or self.text(value)
            case list():
                return f"[{self._join([self.value(one) for one in value])}]" + self._spelling.extra.get("]", "")
            case dict():
                return f"{{{self._join([*map(self._member, value.items())])}}}" + self._spelling.extra.get("}", "")
        raise TypeError(value)

    def _member(self, member: tuple[str, object]) -> str:
        key = self._spelling.key(member[0])
        space = self._spelling.space
        name = key if self._style == "gemma" else self.text(key)
        return f"{name}{space}:{space or ('' if self._style == 'gemma' else ' ')}{self.value(member[1])}"

    def text(self, text: str) -> str:
        begin, end = self._spelling.quotes if self._spelling.quotes[0] else self._native_quotes()
        if begin == "bare":
            return text
        if self._style == "gemma" or self._spelling.is_raw:
            return f"{begin}{text}{end}"
        written = json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"')
        if self._spelling.raw_breaks:
            written = re.sub(r"\\\\\\n", "\\\\\n", written).replace("\\n", "\n") if "\\\\n" not in written else written
        return f"{begin}{written.replace(end, chr(92) + end)}{end}"

    def _native_quotes(self) -> tuple[str, str]:
        return {"gemma": (GEMMA_QUOTE, GEMMA_QUOTE), "python": ("'", "'"), "json": ('"', '"')}[self._style]


def write_call(form: CallForm, arguments: str, name: str = NAME) -> str:
    """Return the answer of a form, around the arguments as they are written."""
    fields = {forms.NAME: name, forms.INDEX: "0", forms.ID: "call_0", forms.SHORT_ID: "000000000", forms.MAYBE_ID: ""}
    call = form.call
    for mark, text in fields.items():
        call = call.replace(mark, text)
    before, after = call.split(forms.ARGS)
    return form.around[0] + before + arguments + after + form.around[2]


def write_tags(form: CallForm, arguments: Arguments, *, literals: str = "json", zeros: str = "",
               key: Callable[[str], str] = str) -> str:  # fmt: skip
    parts = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if literals == "python" and not isinstance(value, str):
            text = repr(value)
        if isinstance(value, int) and not isinstance(value, bool):
            text = ("-" if value < 0 else "") + zeros + str(abs(value))
        before, after = form.value.split(forms.VALUE)
        is_text = "true" if isinstance(value, str) else "false"
        parts.append(before.replace(forms.KEY, key(name)).replace(forms.IS_TEXT, is_text) + text + after)
    return "".join(parts)


class Generator:
    """A source of near misses, by a seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random.Random()

    def make(self, form: CallForm) -> NearMiss | None:
        """Return a near miss in this form; None if the kind that was drawn cannot be written with its arguments."""
        self._random.seed(f"{form.label} {self._seed}")
        tool, arguments = self._draw_call(form)
        kinds = [*TAG_KINDS] if form.notation is Notation.TAGS else [*OBJECT_KINDS]
        kind = self._random.choice(kinds)
        make = (TAG_KINDS if form.notation is Notation.TAGS else OBJECT_KINDS)[kind]
        made = make(Case(form, arguments, tool, self._random))
        if made is None:
            return None
        answer, expected = made
        return NearMiss(kind, form, tool, arguments, self._code(form, tool, answer), expected)

    def _code(self, form: CallForm, tool: Tool, answer: str) -> str:
        """Return the answer with the form's markers as control tokens: always in harmony, elsewhere at times."""
        if form.notation is not Notation.HARMONY and self._random.random() < 0.5:
            return answer
        markers = list_markers(Split(form=form, tools=(tool,)))
        for index, name in sorted(enumerate(markers), key=lambda found: -len(found[1])):
            is_tag = name.startswith(("<function ", "</function>"))
            answer = answer if is_tag else answer.replace(name, make_control_char(index))
        return answer

    def _draw_call(self, form: CallForm) -> tuple[Tool, Arguments]:
        names = self._random.sample([*TYPES], self._random.randint(1, 5))
        required = [name for name in names if self._random.random() < 0.5]
        schema = {"type": "object", "properties": {name: TYPES[name] for name in names}, "required": required}
        if self._random.random() < 0.3:
            schema["additionalProperties"] = False
        given = [name for name in names if name in required or self._random.random() < 0.7]
        if form.notation is Notation.GEMMA:
            given = sorted(given)
        arguments = {name: self._draw_value(TYPES[name], form) for name in given}
        return Tool(NAME, "", json.dumps(schema)), arguments

    def _draw_value(self, schema: dict[str, object], form: CallForm) -> object:
        draw = self._random
        if "enum" in schema:
            return draw.choice(["C", "F"])
        if "anyOf" in schema:
            text = self._draw_text(form)
            is_word = form.notation is Notation.TAGS and text.lower() in ("null", "none")
            return None if draw.random() < 0.5 or is_word else text
        match schema["type"]:
            case "string":
                return self._draw_text(form)
            case "integer":
                return draw.randint(-99, 99)
            case "number":
                return draw.choice([0.5, -1.25, 3.0, 1e21, 7])
            case "boolean":
                return draw.random() < 0.5
            case "array":
                return [self._draw_text(form) for _ in range(draw.randint(0, 3))]
        keys = draw.sample(["k", "word"], draw.randint(0, 2))
        values: dict[str, object] = {"k": draw.randint(0, 9), "word": self._draw_text(form)}
        return {key: values[key] for key in sorted(keys)}

    def _draw_text(self, form: CallForm) -> str:
        text = self._random.choice(STRINGS)
        if self._random.random() < 0.2:
            text += self._random.choice(STRINGS)
        return text


@dataclass(frozen=True)
class Case:
    """A call to be written nearly right."""

    form: CallForm
    arguments: Arguments
    tool: Tool
    random: random.Random

    @property
    def schema(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.tool.parameters)
        return found

    @property
    def texts(self) -> list[str]:
        return [*list_texts(self.arguments)]

    def write(self, spelling: Spelling = Spelling(), name: str = NAME) -> str:
        return write_call(self.form, Writer(self.form, spelling).write(self.arguments), name)

    def write_tags(self, name: str = NAME, **spelling: object) -> str:
        return write_call(self.form, write_tags(self.form, self.arguments, **spelling), name)  # type: ignore[arg-type]


def list_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from list_texts(one)


Made = tuple[str, Expected] | None


def is_gemma(case: Case) -> bool:
    return case.form.notation is Notation.GEMMA


# ---- strings
def other_quotes(case: Case) -> Made:
    begin, end = case.random.choice(QUOTES)
    if not case.texts:
        return None
    is_clear = not any(end in text or (is_gemma(case) and "\\" in text) for text in case.texts)
    if is_gemma(case) and not is_clear and reads_otherwise(case, begin, end):
        return None
    if is_python(case.form) and begin not in "'\"" and any(text.startswith(end) for text in case.texts):
        return None
    return case.write(Spelling(quotes=(begin, end))), ONE if is_clear else EITHER


def reads_otherwise(case: Case, begin: str, end: str) -> bool:
    """Return whether a string, without escapes in these quotes, may end earlier and leave another part of a call."""
    return any(re.search(rf"{end}\s*[,\]}}):=]|{end}\Z|\A\s*{end}", text) for text in case.texts)


def no_quotes(case: Case) -> Made:
    texts = case.texts
    if not texts or any(is_never_bare(text) for text in texts):
        return None
    if is_python(case.form) is False and not is_gemma(case):
        writer = Writer(case.form, Spelling())
        bare = Writer(case.form, Spelling(quotes=("bare", "bare")))
        members = [f"{writer.text(key)}: {bare.value(value)}" for key, value in case.arguments.items()
                   if not isinstance(value, dict)]  # fmt: skip
        if len(members) < len(case.arguments):
            return None
        answer = write_call(case.form, "{" + ", ".join(members) + "}")
    else:
        if any(isinstance(value, dict) for value in case.arguments.values()) and not is_gemma(case):
            return None
        answer = case.write(Spelling(quotes=("bare", "bare")))
    (value, *others) = case.arguments.values()
    is_clear = not others and isinstance(value, str) and re.fullmatch(r"[a-z]{2,}", value) and value != "owl,"
    is_nullable = "maybe" in case.arguments
    return answer, ONE if is_clear and not is_nullable else EITHER


def is_never_bare(text: str) -> bool:
    """Return whether a string without quotes is another value in the notation itself."""
    return text != text.strip() or not text or text.lower() in ("null", "none") or text[0] in "\"'`“‘”’([{<"


def bare_quotes(case: Case) -> Made:
    """Quotes within a string, without backslashes."""
    quote = {True: "'", False: '"'}[is_python(case.form)]
    if is_gemma(case) or not any(quote in text for text in case.texts):
        return None
    if any("\\" in text or "\n" in text or "\t" in text for text in case.texts):
        return None
    answer = case.write(Spelling(quotes=(quote, quote), is_raw=True))
    if is_well_formed(case, Spelling(quotes=(quote, quote), is_raw=True)):
        return None
    (value, *others) = case.arguments.values()
    is_clear = not others and isinstance(value, str) and not re.search(
        rf"{quote}\s*[,:=\]}}){quote}]|{quote}\Z|\A{quote}|[\"'`“”]\s*[\"'`“”]", value)  # fmt: skip
    return answer, ONE if is_clear else EITHER


def is_well_formed(case: Case, spelling: Spelling) -> bool:
    """Return whether the arguments are correctly written after all, though others perhaps."""
    text = Writer(case.form, spelling).write(case.arguments)
    try:
        ast.parse(f"f({text})", mode="eval") if is_python(case.form) else json.loads(text)
    except (SyntaxError, ValueError):
        return False
    return True


def bare_breaks(case: Case) -> Made:
    """Line breaks within a string, also after a backslash."""
    if is_gemma(case) or not any("\n" in text for text in case.texts):
        return None
    if any("\\n" in text or "\\\\n" in json.dumps(text) for text in case.texts):
        return None
    return case.write(Spelling(raw_breaks=True)), ONE


def broken_escapes(case: Case) -> Made:
    """Backslashes that are not doubled."""
    if is_gemma(case) or not any("\\" in text for text in case.texts):
        return None
    if any(re.search(r"\\([\"'\\/abfnrtuvxUN\d]|\Z)", text) or '"' in text or "'" in text for text in case.texts):
        return None
    if any(char in text for text in case.texts for char in "\n\t"):
        return None
    return case.write(Spelling(quotes=('"', '"'), is_raw=True)), ONE


def code(case: Case) -> Made:
    """An expression for a string, or strings side by side."""
    if not case.texts:
        return None
    quote = "'" if is_python(case.form) else case.random.choice("'\"" if is_gemma(case) else '"')
    first, second = (f"{quote}{word}{quote}" for word in case.random.sample(WORDS, 2))
    joint = case.random.choice(JOINTS)
    return case.write(Spelling(code=f"{first}{joint}{second}{')' * joint.endswith('(')}")), NONE


def tripled_quotes(case: Case) -> Made:
    if is_python(case.form) or not case.texts:
        return None
    return case.write(Spelling(code=f'"""{case.random.choice(WORDS)}"""')), NONE


def parentheses(case: Case) -> Made:
    return (case.write(Spelling(around=("(", ")"))), ONE) if is_python(case.form) else None


def comments(case: Case) -> Made:
    if not is_python(case.form) or not is_well_formed(case, Spelling()):
        return None
    comment = case.random.choice(["# 'x'", "# it's", "#", "# a, b=3)"])
    is_clear = not any(isinstance(value, dict) for value in case.arguments.values())  # not before a value
    return case.write(Spelling(space=f" {comment}\n ")), ONE if is_clear else EITHER


# ---- literals
def other_literals(case: Case) -> Made:
    literals = "json" if is_python(case.form) else "python"
    if not any(value is None or isinstance(value, bool) for value in case.arguments.values()):
        return None
    return case.write(Spelling(literals=literals)), ONE


def leading_zeros(case: Case) -> Made:
    if not any(type(value) is int for value in case.arguments.values()):
        return None
    return case.write(Spelling(zeros=case.random.choice(["0", "00"]))), ONE


def quoted_literals(case: Case) -> Made:
    """Numbers and booleans in quotes."""
    written = {key: value if isinstance(value, str) or value is None else json.dumps(value)
               for key, value in case.arguments.items()}  # fmt: skip
    if written == case.arguments:
        return None
    answer = write_call(case.form, Writer(case.form, Spelling()).write(written))
    return answer, ONE


# ---- brackets, commas, space
def trailing_comma(case: Case) -> Made:
    return (case.write(Spelling(comma=",")), ONE) if case.arguments else None


def spaces(case: Case) -> Made:
    return case.write(Spelling(space=case.random.choice([" ", "\n", "  \n "]))), ONE


def missing_closers(case: Case) -> Made:
    arguments = Writer(case.form, Spelling()).write(case.arguments)
    marker = "\0"
    answer = write_call(case.form, arguments + marker)
    head, tail = answer.split(marker)
    closers = re.match(r"[\]})\n]*", ("" if is_python(case.form) else head[-1:]) + tail)
    assert closers is not None
    if not is_python(case.form):
        head = head[:-1]
        tail = "}" + tail
    num = len(closers[0])
    if not num or not case.arguments:
        return None
    num_left = case.random.randint(0, num - 1)
    last = [*case.arguments.values()][-1]
    is_clear = not isinstance(last, dict | list) and case.form.notation is not Notation.BARE
    required = case.schema["required"]
    is_clear = is_clear and isinstance(required, list) and set(required) <= case.arguments.keys()
    return head + closers[0][:num_left] + tail[num:], ONE if is_clear else EITHER


def doubled_closers(case: Case) -> Made:
    arguments = Writer(case.form, Spelling()).write(case.arguments)
    extra = ")" if is_python(case.form) else "}"
    return write_call(case.form, arguments + extra), ONE if arguments else EITHER


def doubled_inside(case: Case) -> Made:
    close = case.random.choice("]}")
    if not any(isinstance(value, list if close == "]" else dict) for value in case.arguments.values()):
        return None
    writer = Writer(case.form, Spelling(extra={close: close}))
    members = writer.write(case.arguments)
    if not is_python(case.form) and close == "}":
        members = members[:-1]  # only those inside are doubled
    return write_call(case.form, members), EITHER


# ---- names
def namespace(case: Case) -> Made:
    if case.form.notation is Notation.HARMONY:
        return None
    return case.write(name=case.random.choice(NAMESPACES) + NAME), ONE


def key_case(case: Case) -> Made:
    return (case.write(Spelling(key=str.capitalize)), ONE) if case.arguments else None


def unnamed(case: Case) -> Made:
    """Arguments without their names. They have one reading where only one assignment fits types and needs."""
    if not is_python(case.form) or not case.arguments:
        return None
    num = case.random.randint(1, len(case.arguments))
    values = [*case.arguments.values()][:num]
    if "unit" in case.arguments or any(value is None for value in values):
        return None
    named = [*case.arguments][num:]
    properties, required = case.schema["properties"], case.schema["required"]
    assert isinstance(properties, dict) and isinstance(required, list)
    free = [key for key in properties if key not in named]
    fits = [keys for keys in permutations(free, num)
            if all(fits_type(value, properties[key]) for key, value in zip(keys, values, strict=True))
            and {*keys, *named} >= {*required}]  # fmt: skip
    expected = ONE if len(fits) == 1 else NONE
    return case.write(Spelling(num_unnamed=num)), expected


def fits_type(value: object, schema: dict[str, object]) -> bool:
    kind = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}[type(value)]
    types = {"string"} if "enum" in schema else {"string", "null"} if "anyOf" in schema else {schema["type"]}
    return kind in types or (kind == "integer" and "number" in types)


# ---- around
def wrapped(case: Case) -> Made:
    name = case.random.choice(["arguments", "parameters"])
    if not case.arguments:
        return None
    inside: object = case.arguments
    if case.random.random() < 0.5 and not is_gemma(case):
        inside = json.dumps(case.arguments, ensure_ascii=False)
    return write_call(case.form, Writer(case.form, Spelling()).write({name: inside})), ONE


def as_text(case: Case) -> Made:
    if case.form.notation in (Notation.GEMMA, Notation.HARMONY) or is_python(case.form):
        return None
    if not case.form.call.count("{") or case.form.head:
        return None
    text = json.dumps(case.arguments, ensure_ascii=False)
    return write_call(case.form, json.dumps(text, ensure_ascii=False)), ONE


def as_json(case: Case) -> Made:
    """A list of calls in JSON, in a notation that is another."""
    if case.form.notation not in (Notation.GEMMA, Notation.PYTHON):
        return None
    call = json.dumps({"name": NAME, "arguments": case.arguments}, ensure_ascii=False)
    call = call if case.random.random() < 0.3 else f"[{call}]"
    return f"{case.form.begin}{call}{case.form.end}", ONE


def fence(case: Case) -> Made:
    form = case.form
    if form.head or form.notation in (Notation.BARE, Notation.HARMONY) or not form.end:
        return None
    answer = case.write()
    inside = answer[answer.index(form.begin) + len(form.begin) : answer.rindex(form.end)]
    language = case.random.choice(["", "json", "python"])
    return f"{form.begin}\n```{language}\n{inside.strip()}\n```\n{form.end}", ONE


def fence_around(case: Case) -> Made:
    if case.form.notation in (Notation.BARE, Notation.HARMONY) or case.form.headers:
        return None
    return f"```json\n{case.write()}\n```", ONE


def text_around(case: Case) -> Made:
    if case.form.notation in (Notation.BARE, Notation.HARMONY) or case.form.headers:
        return None
    after = " Done." if case.form.end else ""
    return f"I call it's tool.\n{case.write()}{after}", ONE


def text_before_bare(case: Case) -> Made:
    if case.form.notation is not Notation.BARE:
        return None
    return f"So: {case.write()}".replace(case.form.begin, ""), NONE


def as_it_should(case: Case) -> Made:
    return case.write(), ONE


OBJECT_KINDS: dict[str, Callable[[Case], Made]] = {
    make.__name__: make
    for make in (
        as_it_should, other_quotes, no_quotes, bare_quotes, bare_breaks, broken_escapes, code, tripled_quotes,
        parentheses, comments, other_literals, leading_zeros,
        quoted_literals, trailing_comma, spaces, missing_closers, doubled_closers, doubled_inside, namespace, key_case,
        unnamed, wrapped, as_text, as_json, fence, fence_around, text_around, text_before_bare,
    )
}  # fmt: skip


# ---- between tags
def has_tags(case: Case) -> bool:
    """Return whether a string cannot be written between tags, or is another value there."""
    return any("<" in text or ">" in text for text in case.texts)


def tagged(make: Callable[[Case], Made]) -> Callable[[Case], Made]:
    return lambda case: None if has_tags(case) else make(case)


def tag_zeros(case: Case) -> Made:
    is_exact = not isinstance(case.arguments.get("x"), int)
    return (case.write_tags(zeros="0"), ONE) if is_exact else None


def tag_doubled_end(case: Case) -> Made:
    end = case.form.value.split(forms.VALUE)[1].strip()
    answer = case.write_tags()
    if end not in answer:
        return None
    at = case.random.choice([found.start() for found in re.finditer(re.escape(end), answer)])
    return answer[:at] + end + answer[at:], EITHER


def tag_missing_end(case: Case) -> Made:
    end = case.form.value.split(forms.VALUE)[1].strip()
    answer = case.write_tags()
    if end not in answer:
        return None
    at = case.random.choice([found.start() for found in re.finditer(re.escape(end), answer)])
    return answer[:at] + answer[at + len(end) :], EITHER


def tag_quotes(case: Case) -> Made:
    """Other quotes around the names in tags."""
    before, _ = case.form.value.split(forms.VALUE)
    if case.form.begin.endswith('"') or forms.IS_TEXT in before:
        return None
    if f'"{forms.KEY}"' in before:
        form = replace(case.form, value=case.form.value.replace('"', "'"), call=case.form.call.replace('"', "'"))
    elif f"={forms.KEY}" in before:
        form = replace(case.form, value=case.form.value.replace(forms.KEY, f'"{forms.KEY}"'))
    else:
        return None
    return write_call(form, write_tags(form, case.arguments)), ONE


def tag_quoted_call(case: Case) -> Made:
    """A string that quotes a call of another tool."""
    key = next((key for key in ("s", "text") if key in case.arguments), None)
    if key is None:
        return None
    inside: Arguments = {name: "owl" for name in case.random.sample(["word", "q", "n"], case.random.randint(0, 2))}
    quoted = write_call(case.form, write_tags(case.form, inside), "look_up")
    before, after = case.random.choice(["", "So:\n"]), case.random.choice(["", "\nDone."])
    case.arguments[key] = f"{before}{quoted}{after}"
    return case.write_tags(), EITHER


def tag_wrapped(case: Case) -> Made:
    return (
        (write_call(case.form, write_tags(case.form, {"arguments": case.arguments})), ONE) if case.arguments else None
    )


TAG_KINDS: dict[str, Callable[[Case], Made]] = {
    "as_it_should": tagged(lambda case: (case.write_tags(), ONE)),
    "other_literals": tagged(lambda case: (case.write_tags(literals="python"), ONE)),
    "leading_zeros": tagged(tag_zeros),
    "doubled_end": tagged(tag_doubled_end),
    "missing_end": tagged(tag_missing_end),
    "quotes": tagged(tag_quotes),
    "wrapped": tagged(tag_wrapped),
    "quoted_call": tagged(tag_quoted_call),
    "namespace": tagged(lambda case: (case.write_tags(name=case.random.choice(NAMESPACES) + NAME), ONE)),
    "key_case": tagged(lambda case: (case.write_tags(key=str.capitalize), ONE)),
    "fence_around": tagged(lambda case: None if case.form.headers else (f"```xml\n{case.write_tags()}\n```", ONE)),
    "text_around": tagged(lambda case: None if case.form.headers else (f"I call.\n{case.write_tags()} Done.", ONE)),
}
