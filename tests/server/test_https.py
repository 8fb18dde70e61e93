"""HTTPS: certificates that are refused before anything is loaded, and clients that trust exactly what was confirmed."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import os
import threading
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from doubles.raw_server_client import connected
from doubles.timeouts import PROMPTLY_S, wait_until
from starlette.responses import JSONResponse

from eaglelocal import locations
from eaglelocal.client import trusted_certificates
from eaglelocal.client.http_connection import KeepAliveConnection
from eaglelocal.client.running_servers import describe_this_server, request_state
from eaglelocal.errors import EngineError, ResourceError, UsageError
from eaglelocal.server import connections, server_certificate
from eaglelocal.server.listening_socket import bind_socket
from eaglelocal.server.run_server import HttpServer
from eaglelocal.server.server_certificate import ServerCertificate, choose_certificate


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(locations, "state_dir", lambda: tmp_path / "state")
    return tmp_path / "state"


def own_pair(*names: str) -> ServerCertificate:
    pair = choose_certificate("auto", "", "", names)
    assert pair is not None
    return pair


@dataclass
class Running:
    port: int

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving(pair: ServerCertificate | None, *, num_connections: int = 64) -> Iterator[Running]:
    """A server with our protocol and configuration; its app answers everything with an object."""
    listening = bind_socket("127.0.0.1", 0)
    server = HttpServer(JSONResponse({"state": "ready"}), 1.0, num_connections, certificate=pair)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        yield Running(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def test_off_is_plain_http() -> None:
    assert choose_certificate("off", "", "", ["localhost"]) is None


def test_a_pair_of_our_own_is_made_once_and_names_what_is_served(state: Path) -> None:
    pair = own_pair("192.168.1.20")
    assert own_pair("192.168.1.20", "localhost").text == pair.text
    made = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    assert {"localhost", "127.0.0.1", "::1", "192.168.1.20"} == set(server_certificate._list_names(made))
    assert made.not_valid_after_utc - datetime.datetime.now(datetime.UTC) > datetime.timedelta(days=3000)
    assert pair.key.stat().st_mode & 0o777 == 0o600
    other = own_pair("box.lan")
    assert other.text != pair.text or pair.certificate == other.certificate
    assert "box.lan" in server_certificate._list_names(x509.load_pem_x509_certificate(other.certificate.read_bytes()))


def test_a_damaged_pair_of_our_own_is_made_anew() -> None:
    pair = own_pair()
    before = pair.text
    pair.key.write_text("no key")
    assert own_pair().text != before
    pair.certificate.write_bytes(b"\x00")
    server_certificate.check_pair(own_pair())


def test_an_unwritable_folder_is_reported(state: Path) -> None:
    state.write_text("")
    with pytest.raises(ResourceError, match="cannot be written"):
        own_pair()


def test_a_certificate_with_another_key_is_refused(tmp_path: Path) -> None:
    pair = own_pair()
    key, other = tmp_path / "key.pem", tmp_path / "other.pem"
    key.write_bytes(pair.key.read_bytes())
    other.write_bytes(pair.certificate.read_bytes())
    own_pair("another.name")  # the files in `state` are another pair now
    for certificate, its_key, words in (
        (str(other), "", "belong together"),
        ("", str(key), "belong together"),
        (str(tmp_path / "none.pem"), str(key), "no file"),
        (str(pair.certificate), str(key), "no certificate and its key"),
        (str(key), str(key), "no certificate and its key"),
        (os.devnull, str(key), "no file"),
    ):
        with pytest.raises(UsageError, match=words):
            choose_certificate("off", certificate, its_key, [])
    assert choose_certificate("off", str(other), str(key), []) == ServerCertificate(other, key)


def test_only_a_confirmed_certificate_is_trusted() -> None:
    with serving(own_pair()) as server:
        with pytest.raises(EngineError, match="self-signed certificate") as problem:
            KeepAliveConnection(server.url).get("/health")
        assert problem.value.hint == f"eaglelocal trust {server.url}"
        shown = trusted_certificates.fetch_certificate(urlsplit(server.url))
        assert trusted_certificates.fingerprint(shown) == trusted_certificates.fingerprint(own_pair().text)
        trusted_certificates.trust("127.0.0.1", server.port, shown)
        connection = KeepAliveConnection(server.url)
        assert connection.get("/health").mapping() == {"state": "ready"}
        connection.close()
        this = describe_this_server("127.0.0.1", server.port, target="demo", scheme="https")
        assert request_state(this) == "ready"


def test_another_certificate_at_the_address_is_not_trusted() -> None:
    first = own_pair().text
    with serving(own_pair("new.name")) as server:
        trusted_certificates.trust("127.0.0.1", server.port, first)
        with pytest.raises(EngineError, match="cannot reach"):
            KeepAliveConnection(server.url).get("/health")
        trusted_certificates.certificate_path("127.0.0.1", server.port).write_text("no certificate")
        with pytest.raises(EngineError, match="holds no certificate"):
            KeepAliveConnection(server.url).get("/health")


def test_an_expired_certificate_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_certificate, "VALID_FOR", datetime.timedelta(hours=-1))
    pair = own_pair("old.name")
    with serving(pair) as server:
        trusted_certificates.trust("127.0.0.1", server.port, pair.text)
        with pytest.raises(EngineError, match="expired") as problem:
            KeepAliveConnection(server.url).get("/health")
        assert "needs a new one" in str(problem.value.hint)


def test_the_wrong_scheme_is_named() -> None:
    with serving(None) as plain, pytest.raises(EngineError, match="does not speak TLS"):
        trusted_certificates.fetch_certificate(urlsplit(plain.url))
    with serving(own_pair()) as server, pytest.raises(EngineError) as problem:
        KeepAliveConnection(server.url.replace("https", "http")).get("/health")
    assert "https" in str(problem.value.hint)


@pytest.mark.parametrize("written", ["SHA256:ab:CD", "abcd", " AB CD ", "sha256:ABCD"])
def test_fingerprints_as_people_write_them(written: str) -> None:
    assert trusted_certificates.is_same_fingerprint(written, "SHA256:AB:CD")
    assert not trusted_certificates.is_same_fingerprint(written, "SHA256:AB:CE")


# ---- handshakes that never end
def ask_trusting(port: int, pair: ServerCertificate) -> object:
    trusted_certificates.trust("127.0.0.1", port, pair.text)
    with contextlib.closing(KeepAliveConnection(f"https://127.0.0.1:{port}")) as connection:
        return connection.get("/health").mapping()


@pytest.mark.parametrize("first_bytes", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n"])
def test_a_handshake_ends_in_time(monkeypatch: pytest.MonkeyPatch, first_bytes: bytes) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_TIMEOUT_S", 0.2)
    with serving(own_pair()) as server, connected(server.port) as sock:
        sock.sendall(first_bytes)
        sock.settimeout(PROMPTLY_S)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(1024):  # perhaps an alert
                pass


def test_handshakes_make_room_for_newer_ones() -> None:
    with serving(own_pair(), num_connections=16) as server, contextlib.ExitStack() as held:
        silent = [held.enter_context(connected(server.port)) for _ in range(12)]
        assert ask_trusting(server.port, own_pair()) == {"state": "ready"}
        for sock in silent[:8]:
            assert sock.recv(1) == b""
        silent[-1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            silent[-1].recv(1)


def test_a_handshake_that_failed_keeps_no_memory() -> None:
    """Its buffers are freed at once, not by a full garbage collection, which comes rarely."""
    with serving(own_pair()) as server:
        gc.collect()
        gc.disable()
        try:
            for first_bytes in (b"", b"\x16\x03\x01", b"no TLS, but plain text"):
                with connected(server.port) as sock:
                    sock.sendall(first_bytes)
            assert ask_trusting(server.port, own_pair()) == {"state": "ready"}
            wait_until(lambda: not any(isinstance(one, SSLProtocol) for one in gc.get_objects()), "all are freed")
        finally:
            gc.enable()
