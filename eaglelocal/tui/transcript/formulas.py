r"""Convert LaTeX formulas to a line of text: `\frac{a}{b}` is `a/b`, `x^2` is `x²`, `\alpha` is `α`.

Pure. A formula with anything unknown stays as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\s+|.", re.DOTALL)
_WORDY = re.compile(r"[A-Za-z]{3,}")
_SURE = re.compile(r"[A-Za-z]|.*[\w)}]\s*[\^_=<>+]\s*[\w({-].*|.*\b[A-Za-z]\(.*")  # x, a = b, f(x)
_SIMPLE = re.compile(r"[√∛∜]?\w+|.", re.DOTALL)

SIGNS: Mapping[str, str] = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "varepsilon": "ε", "zeta": "ζ", "eta": "η",
    "theta": "θ", "vartheta": "ϑ", "iota": "ι", "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ",
    "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "upsilon": "υ", "phi": "φ", "varphi": "φ", "chi": "χ",
    "psi": "ψ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ", "Theta": "Θ", "Lambda": "Λ", "Xi": "Ξ", "Pi": "Π",
    "Sigma": "Σ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω",
    "cdot": "·", "times": "×", "div": "÷", "pm": "±", "mp": "∓", "ast": "*", "circ": "∘", "leq": "≤", "le": "≤",
    "geq": "≥", "ge": "≥", "neq": "≠", "ne": "≠", "approx": "≈", "equiv": "≡", "sim": "∼", "propto": "∝", "ll": "≪",
    "gg": "≫", "lt": "<", "gt": ">", "to": "→", "rightarrow": "→", "leftarrow": "←", "leftrightarrow": "↔",
    "Rightarrow": "⇒", "implies": "⇒", "Leftrightarrow": "⇔", "iff": "⇔", "mapsto": "↦", "infty": "∞", "sum": "∑",
    "prod": "∏", "int": "∫", "partial": "∂", "nabla": "∇", "in": "∈", "notin": "∉", "subset": "⊂", "subseteq": "⊆",
    "cup": "∪", "cap": "∩", "emptyset": "∅", "forall": "∀", "exists": "∃", "neg": "¬", "land": "∧", "lor": "∨",
    "mid": "|", "ldots": "…", "dots": "…", "cdots": "⋯", "degree": "°", "angle": "∠", "perp": "⊥", "hbar": "ℏ",
    "ell": "ℓ", "therefore": "∴", "quad": " ", "qquad": " ", "left": "", "right": "", "displaystyle": "",
    "{": "{", "}": "}", "%": "%", "$": "$", "&": "&", "_": "_", "#": "#", ",": " ", ";": " ", ":": " ",
    " ": " ", "!": "",
}  # fmt: skip
NAMES = frozenset(
    {
        "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "exp", "lim", "max",
        "min", "gcd", "det", "bmod",
    }
)  # fmt: skip
# commands whose argument is shown unchanged
PLAIN = frozenset({"text", "textbf", "textit", "mathrm", "mathbf", "mathit", "operatorname", "boxed"})
FRACTIONS = frozenset(("frac", "dfrac", "tfrac"))
BLACKBOARD: Mapping[str, str] = dict(zip("NZQRCP", "ℕℤℚℝℂℙ", strict=True))
SUPERSCRIPTS = str.maketrans("0123456789+-=()niabcdefghjklmoprstuvwxyz ,", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱᵃᵇᶜᵈᵉᶠᵍʰʲᵏˡᵐᵒᵖʳˢᵗᵘᵛʷˣʸᶻ ,")
SUBSCRIPTS = str.maketrans("0123456789+-=()aehijklmnoprstuvx ,", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ ,")


class UnknownFormulaError(Exception):
    """The error for a formula that cannot be shown in a line of text."""


def convert_formula(written: str) -> str:
    r"""Return a formula with its delimiters, such as `\(x^2\)`, as text.

    Returned as written if it cannot be converted, or may not be a formula.
    """
    num_marks = 2 if written.startswith(("\\", "$$")) else 1
    inner = written[num_marks:-num_marks]
    if num_marks == 1 and not _is_sure(inner):
        return written
    try:
        return " ".join(_FormulaReader(inner).read().split()) or written
    except (UnknownFormulaError, RecursionError):
        return written


def _is_sure(inner: str) -> bool:
    """Return True if a text between single dollars is a formula, not a price or a shell variable."""
    if "\\" in inner:
        return True
    is_wordy = _WORDY.search(inner) or "`" in inner
    return not is_wordy and any(map(str.isalpha, inner)) and bool(_SURE.fullmatch(inner))


class _FormulaReader:
    """A recursive converter of one formula's tokens."""

    def __init__(self, source: str) -> None:
        self._tokens = [token if token.strip() else " " for token in _TOKEN.findall(source)][::-1]

    def read(self, end: str = "") -> str:
        """Return the text up to the closing bracket `end`, or of all tokens. Raises UnknownFormulaError."""
        text = ""
        while self._tokens:
            token = self._tokens.pop()
            if token == end:
                return text
            space = " " if token[1:] in NAMES and text[-1:].isalnum() else ""
            text += space + self._convert(token)
        if end:
            raise UnknownFormulaError
        return text

    def _convert(self, token: str) -> str:
        match token:
            case "^":
                return _shift(self._read_argument(), SUPERSCRIPTS, "^")
            case "_":
                return _shift(self._read_argument(), SUBSCRIPTS, "_")
            case "{":
                return self.read("}")
            case "}" | "&" | "#" | "$":
                raise UnknownFormulaError
        return self._convert_command(token[1:]) if token[0] == "\\" else token

    def _convert_command(self, name: str) -> str:
        if name in SIGNS:
            return SIGNS[name]
        if name in NAMES:
            return name + (" " if self._tokens and self._tokens[-1][-1].isalnum() else "")
        if name in FRACTIONS:
            return f"{_bracket(self._read_argument())}/{_bracket(self._read_argument())}"
        if name == "sqrt":
            root = {"": "√", "2": "√", "3": "∛", "4": "∜"}.get(self._read_option())
            if root is not None:
                return root + _bracket(self._read_argument())
        if name == "mathbb" and (letter := BLACKBOARD.get(self._read_argument())):
            return letter
        if name in PLAIN:
            return self._read_argument()
        raise UnknownFormulaError

    def _read_argument(self) -> str:
        while self._tokens and self._tokens[-1] == " ":
            self._tokens.pop()
        if not self._tokens:
            raise UnknownFormulaError
        return self._convert(self._tokens.pop())

    def _read_option(self) -> str:
        """Return the text in square brackets, "" if there are none."""
        if self._tokens and self._tokens[-1] == "[":
            self._tokens.pop()
            return self.read("]")
        return ""


def _bracket(text: str) -> str:
    """Return the text in brackets, unless it is a single number or name."""
    return text if _SIMPLE.fullmatch(text) else f"({text.strip()})"


def _shift(text: str, signs: dict[int, int], mark: str) -> str:
    """Return the text in superscript or subscript characters, or after `mark` if some do not exist."""
    if text == SIGNS["circ"] and mark == "^":
        return SIGNS["degree"]
    if all(ord(char) in signs for char in text):
        return text.translate(signs)
    return f"{mark}{_bracket(text)}"
