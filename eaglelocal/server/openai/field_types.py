"""Limits and types of fields in bodies, and what all bodies share. The bodies themselves are in routes.py."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_MESSAGES = 2048
MAX_TEXT_CHARS = 4 * 2**20
MAX_STOPS = 128
MAX_STOPS_CHARS = 16_000  # together: the matcher has a node for each character
MAX_CHOICES = 16
MAX_TOOLS = 128
MAX_TRANSLATED_TOOLS = 1024  # Anthropic has no limit, and clients with many MCP servers send more
MAX_ALLOWED_TOOLS = 1024  # names in allowed_tools
MAX_NAME_CHARS = 256
MAX_ID_CHARS = 1024  # of a call: some clients store state in it
MAX_PARTS = 1024  # of a message
MAX_PROMPTS = 64  # of a call
MAX_INPUTS = 2048  # of a call for embeddings
MAX_TOKENS = 2**20  # of a prompt


def clip_to(most: int) -> BeforeValidator:
    """Return a validator that lowers larger numbers to `most`."""

    def clip(value: object) -> object:
        return most if isinstance(value, int) and not isinstance(value, bool) and value > most else value

    return BeforeValidator(clip)


def not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("0 leaves no tokens for an answer: send at least 1, or -1 for no limit")
    return value


Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
ToolName = Annotated[Name, Field(min_length=1, pattern=r"^[A-Za-z0-9_.:/-]+$")]  # some clients prefix a server's name
CallId = Annotated[str, Field(max_length=MAX_ID_CHARS)]
Word = Annotated[str, Field(max_length=64)]  # an enumeration that may be extended
Stop = Annotated[Text, Field(max_length=1000)]  # an empty one is ignored
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
MAX_LIMIT = 10_000_000  # tokens: more than any context holds
MAX_LOOK_BACK = 1_000_000  # likewise for the tokens that samplers look at
Count = Annotated[int, Field(ge=1), clip_to(MAX_LIMIT)]
ReadingLimit = Annotated[int, Field(ge=-1), clip_to(MAX_LIMIT)]  # -1: up to the context; 0: only read the prompt
Limit = Annotated[ReadingLimit, AfterValidator(not_zero), Field(json_schema_extra={"not": {"const": 0}})]
LookBack = Annotated[int, Field(ge=-1), clip_to(MAX_LOOK_BACK)]  # -1: all
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Tokens = Annotated[list[TokenId], Field(max_length=MAX_TOKENS)]
Finite = Field(allow_inf_nan=False)  # 1e999 is valid JSON, and infinite
Bias = Annotated[float, Finite, Field(ge=-100, le=100)]


NEVER_BIAS = -100  # the lowest bias
BIAS_DESCRIPTION = "By token id. llama.cpp's pairs are accepted too; its `false` means never."


def parse_bias(given: object) -> object:
    """Return llama.cpp's `[[15043, 1.5], [7, false]]` as an object. Raises ValueError."""
    if isinstance(given, list):
        if not all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int for pair in given):
            raise ValueError("it must consist of pairs of a token id and its bias")
        given = {str(token): bias for token, bias in given}
    if isinstance(given, dict):
        return {token: NEVER_BIAS if bias is False else bias for token, bias in given.items()}
    return given


LogitBias = Annotated[
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Bias],
    BeforeValidator(parse_bias),
    Field(description=BIAS_DESCRIPTION),
]


def to_whole_number(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Body(BaseModel):
    """The base of request bodies. Strict: a number is not accepted as text. Extra fields are ignored.

    Each body is built on its first use, because a server starts faster without them.
    """

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def whole_numbers(cls, given: Any) -> Any:
        """Convert floats such as 100.0 to integers: some languages write integers so."""
        if not isinstance(given, dict):
            return given
        return {name: to_whole_number(value) for name, value in given.items()}
