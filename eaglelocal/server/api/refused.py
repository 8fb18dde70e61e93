"""Fields that other servers obey and this one does not: refused where they are more than nothing, never dropped."""

from __future__ import annotations

from eaglelocal.server.api.schema import Asked
from eaglelocal.server.errors import unsupported

REFUSED = {
    **dict.fromkeys(("allowed_token_ids", "bad_words"), "tokens are favoured or forbidden by logit_bias here"),
    "audio": "audio is out of scope here",
    "chat_template": "this server uses the model's own chat template",
    "functions": "functions are called tools now",
    "include_stop_str_in_output": "a stop string is never told here",
    "lora": "LoRA adapters are out of scope here",
    **dict.fromkeys(
        (
            "grammar",
            "json_schema",
            "structured_outputs",
            "guided_choice",
            "guided_grammar",
            "guided_json",
            "guided_regex",
        ),
        "answers are bound by response_format here: json_schema, regex or grammar (Lark)",
    ),
    **dict.fromkeys(
        ("adaptive_target", "dry_multiplier", "dynatemp_range", "mirostat", "top_n_sigma", "xtc_probability"),
        "this server has no such sampler",
    ),
    "min_keep": "filters keep at least one token here, no more",
    "post_sampling_probs": "log-probabilities are told of the model's own distribution here",
    "use_beam_search": "this server searches no beams",
    "min_tokens": "answers have no least length here; ignore_eos lets them go on to max_tokens",
    "prompt_logprobs": "log-probabilities are told of the answer only",
    "stop_token_ids": "answers are ended by texts here: stop",
    "truncate_prompt_tokens": "a prompt is read whole here, or refused",
    "web_search_options": "this server searches nothing",
}
NEGATIVE_IS_OFF = ("adaptive_target", "top_n_sigma")  # besides None, 0 and what is empty
ZERO_IS_MORE = ("adaptive_target", "prompt_logprobs")  # than nothing


def refuse(body: Asked) -> None:
    """Raises Problem for what is there and more than nothing: clients send switches that are off."""
    for name, why in REFUSED.items():
        value = getattr(body, name, None)
        is_kept = name == "min_tokens" and body.ignore_eos  # no answer is shorter then
        if not is_off(name, value) and not is_kept:
            raise unsupported(name, why)


def is_off(name: str, value: object) -> bool:
    if name in ZERO_IS_MORE and value == 0 and value is not False:
        return False
    is_negative = isinstance(value, int | float) and value < 0
    return not value or (is_negative and name in NEGATIVE_IS_OFF)
