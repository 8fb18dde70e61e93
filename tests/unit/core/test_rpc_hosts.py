"""Addresses of rpc-servers: what is one, and what is refused before anything is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.core.run_options import RunOptions, parse_rpc_hosts
from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings

NO_FILE = Path("no-such-folder") / "config.toml"


def test_one_and_several() -> None:
    assert parse_rpc_hosts("box:50052") == ("box:50052",)
    assert parse_rpc_hosts(" 192.168.1.20:1 ,box.lan:65535") == ("192.168.1.20:1", "box.lan:65535")


@pytest.mark.parametrize(
    "text",
    [
        *("", "box", "box:", ":50052", "box:0", "box:65536", "box:x", "box:-1", "box:+1", "box:\u0663"),
        *("a:1,,b:2", "a:1,a:1", "a b:1", "[::1]:50052", "http://box:50052", "box:1/x", "box:1" + "0" * 5000),
        ",".join(f"box{i}:1" for i in range(17)),
    ],
)
def test_malformed_ones(text: str) -> None:
    with pytest.raises(ValueError, match="addresses of rpc-servers"):
        parse_rpc_hosts(text)
    with pytest.raises(UsageError, match="rpc"):
        Settings.load({"rpc": text}, {}, NO_FILE)


def test_the_flag_is_a_setting_and_nothing_is_the_default() -> None:
    assert Settings.load({"rpc": "a:1,b:2"}, {}, NO_FILE).rpc == ("a:1", "b:2")
    assert Settings.load({}, {"EAGLELOCAL_RPC": "a:1"}, NO_FILE).rpc == ("a:1",)
    assert RunOptions().rpc == Settings.load({}, {}, NO_FILE).rpc == ()
