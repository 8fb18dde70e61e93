"""The forms in which model families write calls: data, used by the parsers, the writer and the grammars of calls.

In `call`, `around`, `tags` and `value` white space is as models write it; parsers accept any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eaglelocal.core.tools import CallForm, MessageHeaders, Notation, Tool
from eaglelocal.text.reasoning import harmony_parser as harmony
from eaglelocal.text.tool_calls.lenient_literals import dump_json
from eaglelocal.text.tool_calls.lenient_values import GEMMA_QUOTE

ARGS, NAME, KEY, VALUE, IS_TEXT = "«args»", "«name»", "«key»", "«value»", "«is_text»"
INDEX, ID, SHORT_ID, MAYBE_ID = "«index»", "«id»", "«short_id»", "«maybe_id»"
OPEN, CLOSE = "<tool_call>", "</tool_call>"
OBJECT = f'{{"name": "{NAME}", "arguments": {ARGS}}}'
KEYED = f'{{"{NAME}": {ARGS}}}'
LIST = ("[", ", ", "]")
EACH_ON_A_LINE = ("", "\n", "")


def _make_wrapped(label: str, notation: Notation, begin: str, call: str, end: str = "") -> CallForm:
    """Return a form with each call between two markers."""
    return CallForm(label=label, notation=notation, call=f"{begin}{call}{end}", begin=begin, end=end)


def _make_listed(label: str, begin: str, end: str, call: str = OBJECT, array: tuple[str, str, str] = LIST) -> CallForm:
    """Return a form with calls as a JSON array between two markers."""
    around = (f"{begin}{array[0]}", array[1], f"{array[2]}{end}")
    return CallForm(label=label, notation=Notation.JSON, call=call, around=around, begin=begin, end=end)


def _make_tagged(label: str, begin: str, end: str, tags: tuple[str, str], value: str) -> CallForm:
    """Return a form with one call per block, its arguments as text between tags."""
    form = _make_wrapped(label, Notation.TAGS, begin, f"\n{tags[0]}\n{ARGS}{tags[1]}\n", end)
    return replace(form, around=EACH_ON_A_LINE, tags=tags, value=value)


def _make_invoked(label: str, begin: str, end: str, prefix: str = "", is_text: str = "") -> CallForm:
    """Return a form with all calls in one block, each <invoke name=..> with <parameter name=..>."""
    tags = (f'<{prefix}invoke name="{NAME}">', f"</{prefix}invoke>")
    value = f'<{prefix}parameter name="{KEY}"{is_text}>{VALUE}</{prefix}parameter>\n'
    call, around = f"{tags[0]}\n{ARGS}{tags[1]}\n", (f"{begin}\n", "", end)
    return CallForm(
        label=label, notation=Notation.TAGS, call=call, around=around, begin=begin, end=end, tags=tags, value=value
    )


HERMES = replace(_make_wrapped("hermes", Notation.JSON, OPEN, f"\n{OBJECT}\n", CLOSE), around=EACH_ON_A_LINE)
CODER = _make_tagged(
    "coder", OPEN, CLOSE, (f"<function={NAME}>", "</function>"), f"<parameter={KEY}>\n{VALUE}\n</parameter>\n"
)
SEED = _make_tagged(
    "seed", "<seed:tool_call>", "</seed:tool_call>", (f"<function={NAME}>", "</function>"),
    f"<parameter={KEY}>{VALUE}</parameter>\n",
)  # fmt: skip
GLM = replace(
    _make_wrapped("glm", Notation.TAGS, OPEN, f"{NAME}\n{ARGS}", CLOSE),
    around=EACH_ON_A_LINE,
    inside=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    tags=(NAME, ""),
    value=f"<arg_key>{KEY}</arg_key>\n<arg_value>{VALUE}</arg_value>\n",
)
_OPEN_SOURCE = ":opensource"  # a suffix of each of Hy3's tags
HY = replace(
    _make_wrapped(
        "hy",
        Notation.TAGS,
        f"<tool_call{_OPEN_SOURCE}>",
        f"{NAME}<tool_sep{_OPEN_SOURCE}>\n{ARGS}",
        f"</tool_call{_OPEN_SOURCE}>",
    ),
    around=(f"<tool_calls{_OPEN_SOURCE}>\n", "\n", f"\n</tool_calls{_OPEN_SOURCE}>"),
    inside=(f"<tool_sep{_OPEN_SOURCE}>", *(mark.replace(">", f"{_OPEN_SOURCE}>") for mark in GLM.inside)),
    section=(f"<tool_calls{_OPEN_SOURCE}>", f"</tool_calls{_OPEN_SOURCE}>"),
    tags=(f"{NAME}<tool_sep{_OPEN_SOURCE}>", ""),
    value=GLM.value.replace(">", f"{_OPEN_SOURCE}>"),
)
MINICPM = replace(
    _make_wrapped("minicpm", Notation.TAGS, '<function name="', f'{NAME}">{ARGS}', "</function>"),
    around=EACH_ON_A_LINE,
    tags=(f'{NAME}">', ""),
    value=f'<param name="{KEY}">{VALUE}</param>',
    quotes=("<![CDATA[", "]]>"),
)
MINIMAX = _make_invoked("minimax", "<minimax:tool_call>", "</minimax:tool_call>")
DSML, DSML_TOOLS = (
    _make_invoked(label, f"<｜DSML｜{word}>", f"</｜DSML｜{word}>", "｜DSML｜", f' string="{IS_TEXT}"')
    for label, word in (("dsml", "function_calls"), ("dsml_tools", "tool_calls"))
)
LLAMA = CallForm(
    label="llama", notation=Notation.BARE, call=f'{{"name": "{NAME}", "parameters": {ARGS}}}', begin="<|python_tag|>",
    is_one_call=True,
)  # fmt: skip
LLAMA_4 = replace(LLAMA, label="llama_4", begin="<|python_start|>", end="<|python_end|>")
LLAMA_4_PYTHON = replace(LLAMA_4, label="llama_4_python", call=f"{NAME}({ARGS})", around=LIST, is_one_call=False)
MISTRAL = replace(
    _make_listed("mistral", "[TOOL_CALLS]", "", f"{OBJECT[:-1]}{MAYBE_ID}}}"),
    inside=("[ARGS]", "[CALL_ID]"),
    head=r"\s*+(?P<name>[\w./:-]++)\s*+(\[CALL_ID\]\s*+(?P<id>\w++)\s*+)?(\[ARGS\])?\s*+",
    has_short_ids=True,
)
MISTRAL_IDS = replace(
    MISTRAL,
    label="mistral_ids",
    call=f"[TOOL_CALLS]{NAME}[CALL_ID]{SHORT_ID}[ARGS]{ARGS}",
    around=("", "", ""),
)
MISTRAL_ARGS = replace(MISTRAL_IDS, label="mistral_args", call=f"[TOOL_CALLS]{NAME}[ARGS]{ARGS}")
_SEP = "<｜tool▁sep｜>"
DEEPSEEK = replace(  # V3, R1
    _make_wrapped(
        "deepseek",
        Notation.JSON,
        "<｜tool▁call▁begin｜>",
        f"function{_SEP}{NAME}\n```json\n{ARGS}\n```",
        "<｜tool▁call▁end｜>",
    ),
    around=("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
    inside=(_SEP,),
    section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    head=rf"\s*+(function\s*+{_SEP})?\s*+(?P<name>[\w./:-]++)\s*+({_SEP}|```json)?\s*+",
    tail="`",
)
DEEPSEEK_31 = replace(
    DEEPSEEK,
    label="deepseek_31",
    call=f"<｜tool▁call▁begin｜>{NAME}{_SEP}{ARGS}<｜tool▁call▁end｜>",
    around=("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
)
KIMI = CallForm(
    label="kimi",
    notation=Notation.JSON,
    call=f"<|tool_call_begin|>functions.{NAME}:{INDEX}<|tool_call_argument_begin|>{ARGS}<|tool_call_end|>",
    around=("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
    begin="<|tool_call_begin|>",
    end="<|tool_call_end|>",
    inside=("<|tool_call_argument_begin|>",),
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    head=r"\s*+(?P<id>(functions\.)?(?P<name>[\w./:-]+):\d++)\s*+<\|tool_call_argument_begin\|>\s*+",
)
SOLAR = CallForm(
    label="solar",
    notation=Notation.JSON,
    call=f"<|tool_call:begin|>{ID}<|tool_call:name|>{NAME}<|tool_call:args|>{ARGS}<|tool_call:end|>",
    around=("<|tool_calls|>", "", ""),
    begin="<|tool_call:begin|>",
    end="<|tool_call:end|>",
    inside=("<|tool_call:name|>", "<|tool_call:args|>"),
    section=("<|tool_calls|>", "<|calls|>"),
    head=r"\s*+(?P<id>[\w-]++)\s*+<\|tool_call:name\|>\s*+(?P<name>[\w./:-]++)\s*+<\|tool_call:args\|>\s*+",
    headers=MessageHeaders("<|think|>", "<|content|>", "<|content|>", "<|end|><|begin|>assistant", ("<|flush|>",)),
)
FUNCTIONARY = replace(
    _make_wrapped("functionary", Notation.JSON, "<function=", f"{NAME}>{ARGS}", "</function>"),
    head=r"\s*+(?P<name>[\w./:-]++)>\s*+",
)
PHI = _make_wrapped("phi", Notation.JSON, "<|tool_call|>", OBJECT, "<|/tool_call|>")
GRANITE = _make_listed("granite", "<|tool_call|>", "")
NEMOTRON = _make_listed("nemotron", "<TOOLCALL>", "</TOOLCALL>")
LISTED = _make_listed("listed", "<tool_calls>", "</tool_calls>")
COMMAND = _make_listed(
    "command", "<|START_ACTION|>", "<|END_ACTION|>",
    f'{{"tool_call_id": "{INDEX}", "tool_name": "{NAME}", "parameters": {ARGS}}}', ("[\n    ", ",\n    ", "\n]"),
)  # fmt: skip
APERTUS = replace(_make_listed("apertus", "<|tools_prefix|>", "<|tools_suffix|>", KEYED), ends_turn=True)
LFM = replace(
    _make_listed("lfm", "<|tool_call_start|>", "<|tool_call_end|>", f"{NAME}({ARGS})"), notation=Notation.PYTHON
)
OLMO = replace(
    _make_listed("olmo", "<function_calls>", "</function_calls>", f"{NAME}({ARGS})", ("\n", "\n", "\n")),
    notation=Notation.PYTHON,
)
GIGACHAT = replace(_make_wrapped("gigachat", Notation.JSON, "<|function_call|>", OBJECT), is_one_call=True)
GEMMA = replace(
    _make_wrapped("gemma", Notation.GEMMA, "<|tool_call>", f"call:{NAME}{ARGS}", "<tool_call|>"),
    inside=(GEMMA_QUOTE,),
    section=("<|tool_response>",),
)
_ATEM = _make_invoked("muse", "<atem:function_calls>", "</atem:function_calls>", "atem:")
MUSE = replace(  # each call is a message to its tool
    _ATEM,
    call=f" to={NAME}<|message|>{_ATEM.around[0]}{_ATEM.call}{_ATEM.end}",
    around=("", "<|eom|><|start|>assistant", ""),
    headers=MessageHeaders(
        " to=self<|message|>", " to=user<|message|>", " to=user<|message|>", "<|eom|><|start|>assistant", ("<|eot|>",)
    ),
)
HARMONY = CallForm(
    label="harmony",
    notation=Notation.HARMONY,
    call=f"<|channel|>commentary to=functions.{NAME} <|constrain|>json<|message|>{ARGS}",
    inside=harmony.MARKERS,
    is_one_call=True,
    headers=harmony.HEADERS,
)
FORMS = (
    HERMES, CODER, SEED, GLM, HY, MINICPM,
    MINIMAX, DSML, DSML_TOOLS, LLAMA, LLAMA_4, LLAMA_4_PYTHON, MISTRAL, MISTRAL_IDS,
    MISTRAL_ARGS, DEEPSEEK, DEEPSEEK_31, KIMI, SOLAR, FUNCTIONARY, PHI, GRANITE, NEMOTRON, LISTED, COMMAND,
    APERTUS, LFM, OLMO, GIGACHAT, GEMMA, MUSE, HARMONY,
)  # fmt: skip


def list_bare_openings(form: CallForm, tools: Sequence[Tool]) -> tuple[str, ...]:
    """Return the tags that begin a call of an offered tool, for models that leave out the marker before them."""
    if form.notation is not Notation.TAGS or form.tags[0].startswith(NAME):
        return ()
    return tuple(form.tags[0].replace(NAME, tool.name) for tool in tools)


# ---- call writer: calls in a family's form, for templates that do not show the calls of earlier turns
Arguments = Mapping[str, object]


def write_calls(form: CallForm, calls: Sequence[tuple[str, Arguments]]) -> str:
    """Return the text of an answer that makes these calls, given as (name, arguments)."""
    first, joint, last = form.around
    return first + joint.join(_write_call(form, index, *call) for index, call in enumerate(calls)) + last


def _write_call(form: CallForm, index: int, name: str, arguments: Arguments) -> str:
    fields = {NAME: name, INDEX: str(index), ID: f"call_{index}", SHORT_ID: f"{index:09}", MAYBE_ID: ""}
    before, after = (_fill(part, fields) for part in form.call.split(ARGS))
    return before + _write_arguments(form, arguments) + after


def _fill(text: str, fields: Mapping[str, str]) -> str:
    for field, value in fields.items():
        text = text.replace(field, value)
    return text


def _write_arguments(form: CallForm, arguments: Arguments) -> str:
    match form.notation:
        case Notation.TAGS:
            return "".join(_write_tag(form, key, value) for key, value in arguments.items())
        case Notation.GEMMA:
            return _write_gemma(arguments)
        case _ if form.call.endswith(f"({ARGS})"):
            return ", ".join(f"{key}={_write_python(value)}" for key, value in arguments.items())
    return dump_json(arguments)


def _write_tag(form: CallForm, key: str, value: object) -> str:
    text = value if isinstance(value, str) else dump_json(value)
    is_text = "true" if isinstance(value, str) else "false"
    before, after = form.value.split(VALUE)
    return before.replace(KEY, key).replace(IS_TEXT, is_text) + text + after


def _write_gemma(value: object) -> str:
    match value:
        case str():
            return f"{GEMMA_QUOTE}{value}{GEMMA_QUOTE}"
        case Mapping():
            return "{" + ",".join(f"{key}:{_write_gemma(value[key])}" for key in sorted(value, key=str.lower)) + "}"
        case list():
            return "[" + ",".join(map(_write_gemma, value)) + "]"
    return dump_json(value)


def _write_python(value: object) -> str:
    match value:
        case True | False | None:
            return str(value)
        case Mapping():
            return "{" + ", ".join(f"{dump_json(key)}: {_write_python(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_write_python, value)) + "]"
    return dump_json(value)
