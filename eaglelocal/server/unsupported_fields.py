"""Fields that other servers support and this one does not, with the reasons: refused unless their value is off."""

from __future__ import annotations

from collections.abc import Mapping

RefusedFields = Mapping[str, str]  # with the reasons
_SAMPLERS = ("adaptive_target", "dry_multiplier", "dynatemp_range", "mirostat", "top_n_sigma", "xtc_probability")
_FORMATS = (
    *("grammar", "json_schema", "structured_outputs", "guided_choice", "guided_grammar", "guided_json", "guided_regex"),
    *("regex", "ebnf"),
)
REFUSED = {  # refused by every route; names in braces are replaced by the route's own (name_refused)
    **dict.fromkeys(("allowed_token_ids", "bad_words"), "use {weights} to favor or forbid tokens"),
    "audio": "audio is not supported",
    "chat_template": "this server uses the model's own chat template",
    "function_call": "function_call is obsolete: use tool_choice",
    "functions": "functions is obsolete: use tools",
    "include_stop_str_in_output": "the stop string is never part of an answer",
    "logits_processors": "this server runs no code of its clients",
    **dict.fromkeys(_FORMATS, "use {format} to set the format of the answer"),
    **dict.fromkeys(_SAMPLERS, "this server has no such sampler"),
    "min_keep": "samplers keep at least one token; this number cannot be set",
    "post_sampling_probs": "log-probabilities are those of the model's own distribution",
    "use_beam_search": "beam search is not supported",
    "modalities": "this server generates only text",
    "min_tokens": "a minimum length is not supported; ignore_eos continues an answer up to {limit}",
    "prompt_logprobs": "log-probabilities are available for the answer only",
    **dict.fromkeys(("stop_token_ids", "stop_regex"), "answers end at texts only: use {stops}"),
    "truncate_prompt_tokens": "a prompt is never truncated: it is refused if it is too long",
    "web_search_options": "this server has no web search",
}
NEGATIVE_IS_OFF = ("adaptive_target", "top_n_sigma")  # besides None, 0 and empty values
EMPTY_IS_ON = {"adaptive_target": 0, "prompt_logprobs": 0, "web_search_options": {}}  # these values have an effect
FORMATS = ("response_format", "format", "output_format", "text_format", "text", "output_config")
CONTAIN_FORMAT = ("text", "output_config")  # of these, only `format` matters
NO_LOGPROBS = "log-probabilities are available from /v1/chat/completions and /v1/completions"
ONE_ANSWER = "only one answer is generated; send the request again for another"


def redirect(name: str, *others: str) -> dict[str, str]:
    """Return other APIs' names of one field, each with an error that gives the name in this API."""
    return dict.fromkeys(others, f"it is called {name} here")


def redirect_format(name: str, *own: str) -> dict[str, str]:
    """Return other APIs' names of the answer's format, each with an error, without the route's `own` names."""
    foreign = [other for other in FORMATS if other not in own]
    nested = dict.fromkeys(CONTAIN_FORMAT, f"the format in it belongs in {name}")
    return {other: nested.get(other, f"it is called {name} here") for other in foreign}


def name_refused(
    foreign: RefusedFields,
    *,
    format: str = "response_format (json_schema, regex or grammar in Lark)",
    limit: str = "max_tokens",
    stops: str = "stop",
    weights: str = "logit_bias",
) -> RefusedFields:
    """Return all fields that a route refuses, with its own field names in the reasons.

    foreign  fields of other APIs that this one has under another name, or not at all
    """
    names = {"format": format, "limit": limit, "stops": stops, "weights": weights}
    return {name: reason.format_map(names) for name, reason in {**REFUSED, **foreign}.items()}


CHAT = name_refused(
    {
        **redirect("max_tokens", "max_output_tokens"),
        **redirect("stop", "stop_sequences"),
        **redirect_format("response_format", "response_format"),
    }
)
COMPLETION: RefusedFields = {name: reason for name, reason in CHAT.items() if name != "chat_template"}  # it has none
EMBEDDING = {
    "truncate_prompt_tokens": REFUSED["truncate_prompt_tokens"],
    "lora": "LoRA adapters are supported for answers only",
}


def is_off(name: str, value: object) -> bool:
    """Return whether a value has no effect: clients send such defaults."""
    if name in EMPTY_IS_ON and value == EMPTY_IS_ON[name] and value is not False:
        return False
    if name == "n" and value == 1:
        return True
    if name in CONTAIN_FORMAT:
        value = value.get("format") if isinstance(value, dict) else None
    if name in FORMATS and isinstance(value, dict) and value.get("type") == "text":
        return True
    if name == "function_call" and value in ("none", "auto"):
        return True
    if name == "modalities" and isinstance(value, list) and all(one == "text" for one in value):
        return True
    is_negative = isinstance(value, int | float) and value < 0
    return not value or (is_negative and name in NEGATIVE_IS_OFF)
