"""mcp.json: what other programs write is read, and what is wrong is named with its file and key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.tool_servers.server_list import MAX_SERVERS, ServerSpec, parse_server_list, read_server_list

TIME = {"command": "uvx", "args": ["mcp-server-time", "--local-timezone=UTC"], "env": {"TZ": "UTC"}}


def test_the_shape_of_other_programs_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    servers = {
        "time": {**TIME, "type": "stdio", "alwaysAllow": ["now"], "timeout": 60},
        "far": {"type": "http", "url": "https://a.example/mcp", "headers": {"Authorization": "Bearer x"}},
        "off": {"command": "never", "disabled": True},
    }
    file.write_text("\ufeff" + json.dumps({"mcpServers": servers, "inputs": []}))
    assert read_server_list(file) == (
        ServerSpec(name="time", command="uvx", args=tuple(TIME["args"]), env=(("TZ", "UTC"),)),
        ServerSpec(name="far", url="https://a.example/mcp", headers=(("Authorization", "Bearer x"),)),
    )


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({}, "mcpServers.time needs either a command or a url"),
        ({"command": ""}, "mcpServers.time needs either a command or a url"),
        ({"command": "a", "url": "http://b"}, "mcpServers.time needs either a command or a url"),
        ({"command": 3}, "mcpServers.time.command must be text, not 3"),
        ({"command": "a\0b"}, "mcpServers.time.command must be text"),
        ({"command": "a", "args": "b"}, 'mcpServers.time.args must be a list of texts, not "b"'),
        ({"command": "a", "args": [1]}, "mcpServers.time.args must be a list of texts, not [1]"),
        ({"command": "a", "env": ["B=1"]}, "mcpServers.time.env must be an object of texts"),
        ({"command": "a", "env": {"B": 1}}, "mcpServers.time.env must be an object of texts"),
        ({"command": "a", "env": {"B=": "1"}}, "mcpServers.time.env must be an object whose names"),
        ({"command": "a", "cwd": 1}, "mcpServers.time.cwd must be text, not 1"),
        ({"url": "file:///etc"}, "mcpServers.time.url must be an address that begins with http://"),
        ("uvx mcp-server-time", 'mcpServers.time must be an object, not "uvx mcp-server-time"'),
    ],
)
def test_a_wrong_entry_is_named_with_its_key(server: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_server_list({"mcpServers": {"time": server}}, "mcp.json")
    assert caught.value.message.startswith(f"mcp.json: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "it is no JSON object"),
        ("{}", "it has no mcpServers"),
        ('{"servers": {}}', "it has no mcpServers"),
        ('{"mcpServers": []}', "mcpServers must be an object"),
        ('{"mcpServers": {"": {"command": "a"}}}', "needs a name"),
        ('{"mcpServers": {"a\\u001b[2J": {"command": "a"}}}', "needs a name"),
        ("\udcff", "line 1 is not JSON: byte 0xff is not UTF-8"),
        ("[" * 100 + "]" * 100, "nested deeper"),
    ],
)
def test_a_file_in_another_form_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as caught:
        read_server_list(file)
    assert str(file) in caught.value.message and message in caught.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="No such file"):
        read_server_list(tmp_path / "mcp.json")


def test_too_many_servers_are_refused() -> None:
    with pytest.raises(UsageError, match="33 servers are more than 32"):
        parse_server_list({"mcpServers": {str(n): TIME for n in range(MAX_SERVERS + 1)}}, "mcp.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    max_leaves=8,
)


@examples(40)
@given(
    st.dictionaries(
        st.text(),
        st.dictionaries(st.sampled_from(["command", "args", "env", "url", "cwd", "headers", "disabled"]), JSON),
    )
)
def test_any_content_is_read_or_refused(servers: dict[str, object]) -> None:
    try:
        specs = parse_server_list({"mcpServers": servers}, "mcp.json")
    except UsageError as error:
        assert error.message.startswith("mcp.json: ") and error.message.isprintable()
    else:
        assert len(specs) <= len(servers)


def test_a_permission_is_for_the_very_command() -> None:
    spec = ServerSpec(name="a", command="b", args=("c", "d"))
    others = [
        replace(spec, command="c"), replace(spec, args=("c d",)), replace(spec, env=(("A", "1"),)),
        replace(spec, folder="/"), replace(spec, url="http://a"), replace(spec, headers=(("A", "1"),)),
    ]  # fmt: skip
    assert len({each.fingerprint for each in (spec, *others)}) == len(others) + 1
    assert replace(spec, name="renamed").fingerprint == spec.fingerprint
