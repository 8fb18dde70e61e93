"""Refuse fields that other servers support and this one does not, unless their value has no effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from eaglelocal.server.http_errors import unsupported
from eaglelocal.server.openai.schema import Body

_SAMPLERS = ("adaptive_target", "dry_multiplier", "dynatemp_range", "mirostat", "top_n_sigma", "xtc_probability")
_FORMATS = (
    *("grammar", "json_schema", "structured_outputs", "guided_choice", "guided_grammar", "guided_json", "guided_regex"),
    *("regex", "ebnf"),
)
REFUSED = {  # with the route's own field names (Words)
    **dict.fromkeys(("allowed_token_ids", "bad_words"), "tokens are favoured or forbidden by {weights} here"),
    "audio": "audio is out of scope here",
    "chat_template": "this server uses the model's own chat template",
    "function_call": "function_call is called tool_choice now",
    "functions": "functions are called tools now",
    "include_stop_str_in_output": "a stop string is never told here",
    "logits_processors": "no code of callers runs here",
    "lora": "LoRA adapters are out of scope here",
    **dict.fromkeys(_FORMATS, "answers are bound by {format} here"),
    **dict.fromkeys(_SAMPLERS, "this server has no such sampler"),
    "min_keep": "filters keep at least one token here, no more",
    "post_sampling_probs": "log-probabilities are told of the model's own distribution here",
    "use_beam_search": "this server searches no beams",
    "modalities": "only text comes out of this server",
    "min_tokens": "answers have no least length here; ignore_eos lets them go on to {limit}",
    "prompt_logprobs": "log-probabilities are told of the answer only",
    **dict.fromkeys(("stop_token_ids", "stop_regex"), "answers are ended by texts here: {stops}"),
    "truncate_prompt_tokens": "a prompt is read whole here, or refused",
    "web_search_options": "this server searches nothing",
}
NEGATIVE_IS_OFF = ("adaptive_target", "top_n_sigma")  # besides None, 0 and empty values
ZERO_IS_MORE = ("adaptive_target", "prompt_logprobs")  # 0 has an effect
FORMATS = ("response_format", "format", "output_format", "text_format", "text", "output_config")
WITH_A_FORMAT = ("text", "output_config")  # of these, only `format` matters
NO_LOGPROBS = "log-probabilities are told by /v1/chat/completions and /v1/completions"
ONE_ANSWER = "one answer is made here; ask again for another"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldNames:
    """The names of a route's fields, for error messages.

    foreign  fields of other APIs that this one has under another name, or not at all, each with the reason
    """

    format: str = "response_format (json_schema, regex or grammar in Lark)"
    limit: str = "max_tokens"
    stops: str = "stop"
    weights: str = "logit_bias"
    foreign: Mapping[str, str] = field(default_factory=dict)


def renamed(name: str, *others: str) -> dict[str, str]:
    """Return other names of one field, with an error that gives its name here."""
    return dict.fromkeys(others, f"it is called {name} here")


def renamed_format(name: str, *obeyed: str) -> dict[str, str]:
    """Return other APIs' names of the answer's format, with errors; not those in `obeyed`, the route's own."""
    foreign = [other for other in FORMATS if other not in obeyed]
    within = dict.fromkeys(WITH_A_FORMAT, f"the format in it is called {name} here")
    return {other: within.get(other, f"it is called {name} here") for other in foreign}


CHAT = FieldNames(
    foreign={
        **renamed("max_tokens", "max_output_tokens"),
        **renamed("stop", "stop_sequences"),
        **renamed_format("response_format", "response_format"),
    }
)


def refuse(body: Body, words: FieldNames = CHAT, *, within: str = "") -> None:
    """Raise Problem for an unsupported field, unless its value is off: clients send such defaults.

    within  path of `body` in the whole body, with a dot at the end
    """
    reasons = {"format": words.format, "limit": words.limit, "stops": words.stops, "weights": words.weights}
    for name, why in {**REFUSED, **words.foreign}.items():
        value = getattr(body, name) if name in type(body).model_fields else None
        is_kept = name == "min_tokens" and getattr(body, "ignore_eos", None)  # then no answer ends early
        if not is_off(name, value) and not is_kept:
            raise unsupported(f"{within}{name}", why.format_map(reasons))


def is_off(name: str, value: object) -> bool:
    if name in ZERO_IS_MORE and value == 0 and value is not False:
        return False
    if name == "n" and value == 1:
        return True
    if name in WITH_A_FORMAT:
        value = value.get("format") if isinstance(value, dict) else None
    if name in FORMATS and isinstance(value, dict) and value.get("type") == "text":
        return True
    if name == "function_call" and value in ("none", "auto"):
        return True
    if name == "modalities" and isinstance(value, list) and all(one == "text" for one in value):
        return True
    is_negative = isinstance(value, int | float) and value < 0
    return not value or (is_negative and name in NEGATIVE_IS_OFF)
