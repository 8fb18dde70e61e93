"""Small Python functions (kind "python").

Knows how a function is asked for and fills the templates of `functions.toml` with names, parameters and constants.
The answer follows from the question: what the question does not name is the first choice of the template.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from random import Random
from string import Template

from eaglelocal.core.records import dataclass
from eaglelocal.core.toml_text import read_toml
from guide.corpus.tasks import Check, CorpusTask, Split, ask, split_of

_REQUESTS = (
    "Write a Python function that {ask}.",
    "Write a function that {ask}.",
    "Write a Python function {name}that {ask}.",
    "Please write a function {name}that {ask}.",
    "I need a Python function {name}that {ask}.",
    "Can you write a function {name}that {ask}?",
    "Give me a small Python function {name}that {ask}.",
    "Show me Python code {name}that {ask}.",
    "python function {name}that {ask}",
    "Implement a function {name}that {ask}.",
    "Code a Python function {name}that {ask}, please.",
    "How do I write a function {name}that {ask}?",
    "A Python function {name}that {ask}",
    "Write some Python {name}that {ask}.",
    "Write me a function {name}that {ask}.",
    "write a python function {name}that {ask}",
    "In Python, write a function {name}that {ask}.",
    "Write a function {name}to {to}.",
    "Write a Python function {name}to {to}.",
    "Can you write a Python function {name}to {to}?",
    "python function {name}to {to}",
)
_DOCUMENTED = (" Add a docstring.", " Include a docstring.", " With a docstring, please.", " Document it.")


@dataclass(frozen=True, slots=True)
class Function:
    """A template of a function, and the wordings that ask for it."""

    asks: tuple[str, ...]
    names: tuple[str, ...]
    params: tuple[tuple[str, ...], ...]
    doc: str
    body: str

    @property
    def takes_constant(self) -> bool:
        return "$n" in self.body


@dataclass(frozen=True, slots=True)
class TemplateValues:
    """The values that one request fixes. It mentions name and parameters only if they are not the template's first."""

    function: Function
    name: str
    params: tuple[str, ...]
    constant: int
    documented: bool

    @property
    def key(self) -> str:
        constant = self.constant if self.function.takes_constant else ""
        return f"{self.function.doc}|{self.name}|{self.params}|{constant}|{self.documented}"


@cache
def functions() -> tuple[Function, ...]:
    document = read_toml(files(__package__).joinpath("functions.toml").read_text(encoding="utf-8"))
    return tuple(
        Function(
            tuple(entry["ask"]),
            tuple(entry["names"]),
            tuple(map(tuple, entry["params"])),
            entry["doc"],
            entry["body"],
        )
        for entry in document["function"]
    )


def task(rng: Random, split: Split) -> CorpusTask:
    while split_of((choice := _choose(rng)).key) != split:
        pass
    return ask("python", _request(rng, choice), f"```python\n{code(choice)}\n```", check=Check("python"))


def code(choice: TemplateValues) -> str:
    function = choice.function
    lines = Template(function.body).substitute(_names(choice)).split("\n")
    if choice.documented:
        lines.insert(0, f'"""{_fill(function.doc, choice)}"""')
    return f"def {choice.name}({', '.join(choice.params)}):\n" + "\n".join(f"    {line}" for line in lines)


def _choose(rng: Random) -> TemplateValues:
    function = rng.choice(functions())
    constant = rng.randint(2, 12) if rng.random() < 0.6 else rng.randint(13, 100)
    name = function.names[0] if rng.random() < 0.4 else rng.choice(function.names)
    params = function.params[0] if rng.random() < 0.6 else rng.choice(function.params)
    return TemplateValues(function, name.replace("$n", str(constant)), params, constant, rng.random() < 0.3)


def _request(rng: Random, choice: TemplateValues) -> str:
    function = choice.function
    wanted = "" if choice.name == function.names[0].replace("$n", str(choice.constant)) else choice.name
    templates = _REQUESTS[2:] if wanted else _REQUESTS
    named = rng.choice((f"called {wanted} ", f"named {wanted} ")) if wanted else ""
    clause = _fill(rng.choice(function.asks), choice)
    text = rng.choice(templates).format(ask=clause, to=_infinitive(clause), name=named)
    if choice.params != function.params[0]:
        text += f" Use {' and '.join(choice.params)} as the {_parameter_word(choice)}."
    return text + (rng.choice(_DOCUMENTED) if choice.documented else "")


def _infinitive(clause: str) -> str:
    """Turn the rest of a clause with "that" into one with "to": its verbs without their endings."""
    verb, _, rest = (
        clause.replace(" and returns ", " and return ").replace(" and prints ", " and print ").partition(" ")
    )
    if verb.endswith("ies"):
        verb = verb[:-3] + "y"
    elif verb.endswith(("ches", "shes", "sses")):
        verb = verb[:-2]
    else:
        verb = verb[:-1]
    return f"{verb} {rest}"


def _parameter_word(choice: TemplateValues) -> str:
    return "parameter" if len(choice.params) == 1 else "parameters"


def _fill(text: str, choice: TemplateValues) -> str:
    return text.replace("$n", str(choice.constant))


def _names(choice: TemplateValues) -> dict[str, str]:
    first, second, *_ = (*choice.params, "", "")
    return {"f": choice.name, "p": first, "q": second, "n": str(choice.constant)}
