"""Variables that the hub's client reads, with values that it cannot use, and with others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eaglelocal.errors import UsageError
from eaglelocal.hub.client_settings import check_settings

UNUSABLE = [
    ("HF_ENDPOINT", "", "unset HF_ENDPOINT"),
    ("HF_ENDPOINT", "hub.example", "unset "),
    ("HF_ENDPOINT", "127.0.0.1:8080", "unset "),
    ("HF_ENDPOINT", "localhost:8080", "unset "),
    ("HF_ENDPOINT", "[::1]:8080", "unset "),
    ("HF_ENDPOINT", "http://127.0.0.1:99999", "unset "),
    ("HF_ENDPOINT", "http://[::1", "unset "),
    ("HF_ENDPOINT", "ftp://hub.example", "unset "),
    ("HF_ENDPOINT", "https://", "unset "),
    ("HF_ENDPOINT", "https://hub.example\n", "unset "),
    ("ALL_PROXY", "socks://127.0.0.1:9", "unset "),
    ("all_proxy", "socks4://127.0.0.1:9", "unset "),
    ("https_proxy", "http://127.0.0.1:99999", "unset "),
    ("http_proxy", "http://:::", "unset "),
    ("HTTPS_PROXY", "a proxy", "unset "),
    ("HF_HUB_USER_AGENT_ORIGIN", "\u00e4", "unset HF_HUB_USER_AGENT_ORIGIN"),
]
USABLE = [
    {},
    {"HF_ENDPOINT": "http://127.0.0.1:8080/"},
    {"HF_ENDPOINT": "https://[::1]:8080/hub"},
    {"HF_HUB_ETAG_TIMEOUT": "0", "HF_HUB_DOWNLOAD_TIMEOUT": " 30 "},
    {"http_proxy": "proxy.example:3128", "HTTPS_PROXY": "http://me:secret@proxy.example"},
    {"HTTPS_PROXY": "nonsense://x", "https_proxy": ""},
    {"ALL_PROXY": "socks://x", "NO_PROXY": "localhost, *"},
    {"HF_TOKEN_PATH": "/nowhere/at/all"},
    {"HF_HUB_CACHE": "~nobody-of-that-name/hub"},
    {"REQUESTS_CA_BUNDLE": "/nowhere", "HF_HUB_DISABLE_XET": "maybe"},
]


@pytest.mark.parametrize(("name", "value", "hint"), UNUSABLE)
def test_the_variable_is_named_with_its_value_and_a_way_out(name: str, value: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        check_settings({"HF_HOME": str(tmp_path), name: value})
    message = raised.value.message
    assert message.startswith(f"{name} ") and hint in raised.value.hint
    assert name == "HF_HUB_USER_AGENT_ORIGIN" or repr(value)[1:40] in message or "://" not in value


@pytest.mark.parametrize("environ", USABLE, ids=str)
def test_what_the_client_can_use_is_left_to_it(environ: dict[str, str], tmp_path: Path) -> None:
    check_settings({"HF_HOME": str(tmp_path), **environ})


@pytest.mark.parametrize("variable", ["HF_ENDPOINT", "all_proxy"])
@pytest.mark.parametrize("address", ["htp://{}@h", "{}@h:x", "http://{}@h:99999", "http://{}@:80", "http://{}@h /"])
@pytest.mark.parametrize("secret", ["me:s3cret", "me:s3cret/s3cret", "me:s3cret@s3cret"])
def test_a_password_in_an_address_is_never_shown(variable: str, address: str, secret: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=variable) as raised:
        check_settings({"HF_HOME": str(tmp_path), variable: address.format(secret)})
    assert "s3cret" not in raised.value.message + raised.value.hint and "***@" in raised.value.message


def test_only_what_hinders_its_import_counts_where_no_hub_is_asked(tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path), "all_proxy": "nonsense://x"}
    check_settings(environ, connects=False)
    with pytest.raises(UsageError, match="HF_ENDPOINT"):
        check_settings({**environ, "HF_ENDPOINT": "x"}, connects=False)


PROGRAM = """
import os
from eaglelocal.errors import UsageError
from eaglelocal.hub.client_settings import prepare_client
try:
    prepare_client()
except UsageError as problem:
    raise SystemExit(f"named: {problem.message}; {problem.hint}")
"""


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HF_HUB_ENABLE_HF_TRANSFER", "1", ""),
        ("HF_HUB_VERBOSITY", "loud", ""),
        ("HF_ENDPOINT", "https://[::1]:8080/hub", ""),
        ("HTTPS_PROXY", "http://me:s3cret@proxy.example", ""),
        ("HF_TOKEN", "hf_\u00e4", "named: the hub's token has a character"),
        ("HTTPS_PROXY", "htp://me:s3cret/s3cret@h", "named: HTTPS_PROXY is 'htp://***@h', which is not the address"),
        *(
            (name, value, "named: the hub's client cannot be used with this environment: ")
            for name, value in [
                ("HF_HUB_ETAG_TIMEOUT", "soon"),
                ("HF_HUB_DOWNLOAD_TIMEOUT", "30s"),
                ("SSL_CERT_FILE", "/nowhere/at/all.pem"),
                ("SSL_CERT_FILE", __file__),
                ("SSLKEYLOGFILE", "/nowhere/at/all"),
                ("HF_TOKEN_PATH", str(Path(__file__).parent)),
                ("HF_HOME", __file__),
            ]
        ),
    ],
)
def test_the_client_is_loaded_without_a_word_of_its_own(name: str, value: str, said: str, tmp_path: Path) -> None:
    """Where the client cannot be loaded, the hint lists the variables that are set."""
    environ = {"HF_HOME": str(tmp_path), "PATH": "", name: value}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120, check=False)
    assert done.stdout == "" and done.stderr.startswith(said) and bool(done.stderr) == bool(said)
    assert (not said or name in done.stderr) and "s3cret" not in done.stderr and "hf_\u00e4" not in done.stderr


@pytest.mark.parametrize(
    "content", [b"hf_\xff", "hf_\u00e4".encode(), b"hf_a\x00b", b"hf_a\x0bb", "hf_a".encode("utf-16")]
)
def test_a_token_file_with_other_bytes_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(content)
    environ = {"HF_HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environ, timeout=120, check=False
    )
    assert done.stderr.startswith("named: the hub's token has a character") and "hf_" not in done.stderr
    assert done.stderr.rstrip().endswith("; hf auth login, or unset HF_TOKEN")


LATER = """
import logging
from eaglelocal.hub.client_settings import prepare_client
prepare_client()
logging.getLogger("huggingface_hub").warning("of a download")
"""


def test_later_warnings_of_the_client_are_shown(tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path), "PATH": ""}
    command = [sys.executable, "-c", LATER]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120, check=False)
    assert done.stdout == "" and done.stderr == "of a download\n"


HOST = """
import huggingface_hub
from eaglelocal.hub.hub_api import make_gated_error, make_page_url, summarize_error
error = summarize_error(OSError("no http://me:s3cret@127.0.0.1:9/x"))
print(make_page_url("a/b"), error, make_gated_error("a/b"), make_gated_error("a/b").hint)
"""


def test_a_password_of_the_hub_is_in_no_word_about_a_trouble(tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://me:s3cret@127.0.0.1:9/hub"}
    command = [sys.executable, "-c", HOST]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120, check=False)
    assert "s3cret" not in done.stdout + done.stderr
    assert "http://127.0.0.1:9/hub/a/b the connection to 127.0.0.1:9 failed: no http://***@127.0.0.1:9/x" in done.stdout
