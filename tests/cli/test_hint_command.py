"""Hints that can be pasted as they stand."""

from __future__ import annotations

import pytest

from eaglelocal.cli.hint_command import complete_hint, name_origin
from eaglelocal.errors import UsageError


@pytest.mark.parametrize(
    ("hint", "arguments", "shown"),
    [
        ("--port 8422", ["serve", "--port", "8421"], "eaglelocal serve --port 8422"),
        ("`--mmproj none`", ["chat", "a b", "--mmproj=x y"], "eaglelocal chat 'a b' --mmproj none"),
        ("--yes", ["rm", "x"], "eaglelocal rm x --yes"),
        ("--yes", ["rm", "x\ny"], r"eaglelocal rm $'x\012y' --yes"),
        (r"--out $'a\012b'", ["import", "x"], r"--out $'a\012b'"),
        ("--yes", ["rm", "--yes", "x"], "eaglelocal rm x --yes"),
        ("--machine rtx-3090 --ram 64", ["plan", "--ram", "9"], "eaglelocal plan --machine rtx-3090 --ram 64"),
        ("`pip install pillow`", ["chat"], "pip install pillow"),
        ("--mmproj FILE", ["chat"], "--mmproj FILE"),
        ("--draft auto, or another", ["chat"], "eaglelocal chat --draft auto\nor another"),
        ("--ctx 4096 or --parallel 2", ["serve"], "eaglelocal serve --ctx 4096\neaglelocal serve --parallel 2"),
        ("free 2 GB, or `--type q8_0`", ["import"], "free 2 GB\neaglelocal import --type q8_0"),
        ("--ram 64, if you have it", ["plan"], "eaglelocal plan --ram 64  # if you have it"),
        ("leave --split out", ["chat", "--split", "3,1", "x"], "eaglelocal chat x"),
        ("leave --split out", ["chat"], "leave --split out"),  # it came from a variable or the config file
        ("no --gpu-layers or --ctx 512", ["plan", "--gpu-layers=9"], "eaglelocal plan\n{} --ctx 512"),
        ("--split 'layer", ["chat"], "--split 'layer"),
        ("use a larger --ctx", ["chat"], "use a larger --ctx"),
        ("eaglelocal ls", ["rm"], "eaglelocal ls"),
        ("", ["rm"], ""),
        ("--ctx 8192", ["chat", "a long question " * 20], "--ctx 8192"),
    ],
)
def test_flags_alone_become_the_command_that_was_typed(hint: str, arguments: list[str], shown: str) -> None:
    typed = f"eaglelocal {' '.join(arguments)}"
    assert complete_hint(hint, "eaglelocal", arguments) == shown.format(typed)


@pytest.mark.parametrize(
    ("hint", "arguments", "message", "shown"),
    [
        ("did you mean demo?", ["plan", "dmo"], "unknown target 'dmo'", "eaglelocal plan demo"),
        (
            "did you mean `demo`? use another",
            ["chat", "--target=dmo", "hi"],
            "no 'dmo'",
            "eaglelocal chat --target=demo hi",
        ),
        ("did you mean a or b?", ["plan", "x", "y"], "unknown target 'y'", "eaglelocal plan x a\neaglelocal plan x b"),
        ("did you mean ./m.gguf?", ["show", "./n.gguf"], "n.gguf does not exist", "eaglelocal show ./m.gguf"),
        (
            "did you mean rtx-3090?",
            ["plan", "--machine", "cpu,3090"],
            "no '3090'",
            "eaglelocal plan --machine cpu,rtx-3090",
        ),
        ("did you mean top_k?", ["chat"], "config.toml: unknown setting topk", "did you mean top_k?"),
        (
            "did you mean chat?",
            ["chat", "plan"],
            "unknown 'chat'",
            "did you mean chat?",
        ),  # the command itself is no value
    ],
)
def test_a_guess_becomes_the_command_with_the_word_that_was_meant(
    hint: str, arguments: list[str], message: str, shown: str
) -> None:
    assert complete_hint(hint, "eaglelocal", arguments, message) == shown


@pytest.mark.parametrize(
    ("message", "hint", "place", "shown"),
    [
        ("--split 1,1 is wrong", "leave --split out", "EAGLELOCAL_SPLIT", "unset EAGLELOCAL_SPLIT"),
        ("--split 1,1 is wrong", "leave --split out", "/c.toml", "eaglelocal config unset split"),
        ("x has no MTP layer", "--split none", "EAGLELOCAL_SPLIT", "--split none"),
    ],
)
def test_an_error_names_where_a_setting_came_from(message: str, hint: str, place: str, shown: str) -> None:
    for arguments in (["chat"], ["chat", "--split=1,1"]):
        error = UsageError(message, hint=hint)
        name_origin(error, arguments, {"split": place})
        came = (f"{message}; --split comes from {place}", shown) if len(arguments) == 1 else (message, hint)
        assert (error.message, error.hint) == came


@pytest.mark.parametrize("typed", ["-c 9", "-c9", "--ctx-size=9", "--ctx 9"])
def test_a_flag_that_was_typed_under_another_name_comes_from_no_file(typed: str) -> None:
    error = UsageError("too long", hint="--ctx 4096")
    name_origin(error, ["chat", *typed.split()], {"ctx": "config.toml"})
    assert error.message == "too long"
