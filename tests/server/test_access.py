"""Access control: Host, Origin, CORS, keys; the decisions alone and over HTTP."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
from doubles.raw_server_client import connected, exchange, request
from doubles.running_server import Server, directed, served
from doubles.timeouts import wait_until
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal import locations
from eaglelocal.errors import UsageError
from eaglelocal.server.access import (
    Access,
    ApiKeys,
    add_chat_key,
    check_bind,
    find_key,
    host_refusal,
    key_warnings,
    origin_refusal,
    parse_host_names,
    parse_origins,
    read_keys,
)
from eaglelocal.server.monitor_routes import MAX_EVENT_STREAMS
from eaglelocal.server.server_state import ServerLimits

KEY, OTHER = "k" * 20, "o" * 20
KEYS = ApiKeys((("anna", KEY), ("bert", OTHER)))
SHORT = ApiKeys((("anna", KEY), ("bert", "1234")))
PAGE = "http://localhost:3000"


# ---- Host
@pytest.mark.parametrize(
    ("header", "is_ours"),
    [
        ("localhost", True),
        ("localhost:8421", True),
        ("LocalHost:8421", True),
        ("localhost.", True),
        ("localhost.:8421", True),
        ("127.0.0.1", True),
        ("127.0.0.1:1", True),
        ("192.168.1.7:8421", True),
        ("[::1]", True),
        ("[::1]:8421", True),
        ("app.localhost:3000", True),
        ("box.lan", True),
        ("BOX.LAN.:99", True),
        ("host.docker.internal:8421", True),
        ("host.containers.internal", True),
        ("host.docker.internal.evil.example", False),
        ("docker.internal", False),
        ("evil.internal", False),
        ("evil.example", False),
        ("evil.example:8421", False),
        ("localhost.evil.example", False),
        ("localhostevil", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1@evil.example", False),
        ("2130706433", False),
        ("0x7f.1", False),
        ("localhost:evil", False),
        ("[::1", False),
        ("", False),
        (":8421", False),
        (" ", False),
        ("[localhost", False),
        ("localhost]", False),
        ("[localhost]", False),
        ("[[::1]]", False),
        ("[127.0.0.1", False),
        ("[::1", False),
        ("::1]", False),
        ("localhost..", False),
        (".localhost", False),
        ("localhost:", True),
        ("localhost:65536", False),
        ("localhost:-1", False),
        ("localhost:0x50", False),
        ("user@localhost", False),
        ("evil.example@localhost", False),
        ("localhost evil.example", False),
        ("localhost,evil.example", False),
        ("localhost/evil", False),
        ("loc\u212alhost", False),
    ],
)
def test_hosts_that_are_ours(header: str, is_ours: bool) -> None:
    assert Access(names=parse_host_names([" Box.LAN. ", ""])).admits_host(header) is is_ours


@pytest.mark.parametrize(
    ("own", "header", "is_ours"),
    [
        ("nas", "nas:8421", True),
        ("nas", "NAS.local", True),
        ("nas", "nas.home.lan", False),
        ("Nas.home.lan", "nas:8421", True),
        ("Nas.home.lan", "nas.local", True),
        ("Nas.home.lan", "nas.home.lan:8421", True),
        ("Nas.home.lan", "home.lan", False),
        ("Nas.home.lan", "nas.evil.example", False),
    ],
)
def test_names_of_this_machine_are_ours(monkeypatch: pytest.MonkeyPatch, own: str, header: str, is_ours: bool) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: own)
    assert Access().admits_host(header) is is_ours


@given(st.text(max_size=40))
def test_no_header_breaks_a_decision(text: str) -> None:
    access = Access(keys=KEYS, origins=(PAGE,))
    assert host_refusal(text) and origin_refusal(text)
    assert access.admits_host(text) in (True, False)
    assert access.admits_origin(text, "localhost") in (True, False)
    assert access.keys.find_owner(text) is None
    assert find_key({"authorization": text, "x-api-key": text}) in (*text.split(), text, text.partition(" ")[2].strip())


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8421", "", "a b"])
def test_rebound_names_are_misdirected(actor: Server, host: str) -> None:
    for path in ("/v1/models", "/health", "/metrics"):
        answer = exchange(actor.port, request(path, method="GET", host=host))
        assert (answer.status, answer.error["type"]) == (421, "permission_error")


@pytest.mark.parametrize(
    ("header", "reply"),
    [
        ("Open-WebUI:8421", "Host 'open-webui'; `--allowed-hosts open-webui` admits it"),
        ("a b;c", "the Host 'a b;c' is not a host name"),
        (":8421", "the Host ':8421' is not a host name"),
    ],
)
def test_a_host_that_is_refusal_names_what_would_admit_it(actor: Server, header: str, reply: str) -> None:
    assert reply in exchange(actor.port, request("/v1/models", method="GET", host=header)).error["message"]


@pytest.mark.parametrize("host", ["localhost", "[::1]:99", "LOCALHOST.:1", "10.0.0.9"])
def test_own_names_and_addresses_are_answered(actor: Server, host: str) -> None:
    assert exchange(actor.port, request("/v1/models", method="GET", host=host)).status == 200


@pytest.mark.parametrize(
    ("keys", "sent", "status"),
    [
        (KEYS, KEY, 200),
        (KEYS, "wrong", 401),
        (KEYS, "", 401),
        (SHORT, KEY, 421),  # who rebinds a name could try them all
        (SHORT, "1234", 421),
        (ApiKeys(), "", 421),
    ],
)
def test_any_name_will_do_for_whoever_has_a_key_that_cannot_be_guessed(keys: ApiKeys, sent: str, status: int) -> None:
    with served(directed(access=Access(keys=keys), loads=False)) as server:
        asked = request("/v1/models", b"", f"x-api-key: {sent}", method="GET", host="nas.example:8421")
        assert exchange(server.port, asked).status == status


# ---- Origin and CORS
@pytest.mark.parametrize("origin", ["https://evil.example", "null", PAGE, "http://[", "", "http://127.0.0.1"])
def test_pages_from_elsewhere_may_not_ask(actor: Server, origin: str) -> None:
    answer = actor.http.post("/v1/completions", json={"prompt": "say x"}, headers={"Origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_own_pages_may_ask(actor: Server) -> None:
    assert actor.http.get("/v1/models", headers={"Origin": actor.url}).status_code == 200


def test_a_preflight_is_refused_where_no_origin_is_listed(actor: Server) -> None:
    assert preflight(actor, PAGE).status_code == 403


def preflight(server: Server, origin: str) -> httpx.Response:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    return server.http.options("/v1/chat/completions", headers={"Origin": origin, **asked})


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with served(directed(access=Access(keys=KEYS, origins=(PAGE,)))) as server:
        yield server


def test_listed_pages_may_ask_with_a_key(guarded: Server) -> None:
    allowed = preflight(guarded, PAGE)
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert preflight(guarded, "https://evil.example").status_code == 403
    headers = {"Origin": PAGE, "Authorization": f"Bearer {KEY}"}
    answer = guarded.http.get("/v1/models", headers=headers)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
    refused = guarded.http.get("/v1/models", headers={"Origin": PAGE})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


@pytest.mark.parametrize(
    ("listed", "origin", "may"),
    [
        ("file://", "file://", True),
        ("file://", "null", False),
        ("null", "null", True),
        ("vscode-webview://*", "vscode-webview://1k2j3", True),
        ("vscode-webview://*", "vscode-webview-2://1k2j3", False),
        ("vscode-webview://*", "vscode-webview", False),
        ("vscode-webview://*", "https://evil.example", False),
        ("chrome-extension://abcd", "chrome-extension://abcd", True),
        ("chrome-extension://abcd", "chrome-extension://abce", False),
        ("http://a.example", "http://a.example", True),
        ("http://a.example", "https://a.example", False),
        ("http://a.example", "http://box:8421", True),  # our own page, under the Host below
        ("http://a.example", "https://box:8421", True),
        ("http://a.example", "http://box", False),
        ("http://a.example", "app://box:8421", False),
    ],
)
def test_origins_that_may_ask(listed: str, origin: str, may: bool) -> None:
    assert Access(origins=parse_origins([listed])).admits_origin(origin, "box:8421") is may


def test_pages_of_a_listed_scheme_are_answered_and_may_read_it() -> None:
    origin = "moz-extension://0c2a-42"
    with served(directed(access=Access(origins=("moz-extension://*",)), loads=False)) as server:
        assert preflight(server, origin).headers["access-control-allow-origin"] == origin
        answer = server.http.get("/v1/models", headers={"Origin": origin})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
        assert preflight(server, "https://evil.example").status_code == 403


@pytest.mark.parametrize(
    ("origin", "reply"),
    [
        (PAGE, f"'{PAGE}' may not send requests; `--cors-origins {PAGE}` admits them"),
        ("file://", "`--cors-origins file://` admits them"),
        ("null", "`--cors-origins null` admits them"),
        ("vscode-webview://1k2", "`--cors-origins vscode-webview://1k2` admits them, or 'vscode-webview://*' where"),
    ],
)
def test_an_origin_that_is_refusal_names_what_would_admit_it(actor: Server, origin: str, reply: str) -> None:
    message = actor.http.get("/v1/models", headers={"Origin": origin}).json()["error"]["message"]
    assert reply in message
    assert ("://*" in message) is ("webview" in origin)
    assert parse_origins([message.split("`")[1].split()[1]]) == (origin,)  # what is said is understood


def test_origins_are_those_that_browsers_send() -> None:
    listed = (f"{PAGE}/", "app://obsidian.md", "null", "file://", "file:///", "moz-extension://*")
    assert parse_origins(listed) == (PAGE, "app://obsidian.md", "null", "file://", "file://", "moz-extension://*")


@pytest.mark.parametrize(
    "origin",
    [
        *("*", "https://*.example", f"{PAGE}/chat", f"{PAGE}//", "localhost:3000", "http://"),
        *("http://*", "https://*", "https://*/", "*://*", "://x", "file:", "app://", "moz-extension://a*", "a b://x"),
    ],
)
def test_an_invalid_origin_is_refused(origin: str) -> None:
    with pytest.raises(UsageError, match="is not the origin of a page") as caught:
        parse_origins((PAGE, origin))
    assert "one by one" in caught.value.hint


# ---- keys
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": f"bearer  {OTHER} "}, 200),
        ({"x-api-key": KEY}, 200),
        ({"Authorization": "Basic abc", "x-api-key": KEY}, 200),
        ({}, 401),
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": f"Bearer {KEY}x"}, 401),
        ({"Authorization": f"Bearer {KEY[:-1]}"}, 401),
        ({"Authorization": KEY}, 401),
        ({"Authorization": f"Bearer {KEY.upper()}"}, 401),
        ({"Authorization": "Bearer ", "x-api-key": ""}, 401),
        ({"Authorization": "Bearer ünïcödé"}, 401),
        ({"x-api-key": "ÿ" * 20}, 401),
    ],
)
def test_a_key_is_needed_and_must_be_right(guarded: Server, headers: dict[str, str], status: int) -> None:
    sent = [f"{name}: {value}" for name, value in headers.items()]
    answer = exchange(guarded.port, request("/v1/models", b"", *sent, method="GET"))
    assert answer.status == status
    if status == 401:
        assert (answer.error["type"], answer.error["code"]) == ("authentication_error", "invalid_api_key")
        assert answer.error["message"].endswith("Authorization: Bearer KEY, or x-api-key: KEY")


def test_every_path_but_health_needs_the_key(guarded: Server) -> None:
    paths = ("/v1/models", "/v1/models/actor", "/metrics", "/v1/snapshot", "/v1/events", "/openapi.json", "/nothing")
    assert {path: guarded.http.get(path).status_code for path in paths} == dict.fromkeys(paths, 401)
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/health/x", "//health"):
        assert guarded.http.post(path, json={}).status_code == 401
    assert guarded.http.get("/health").status_code == 200


def test_clients_raise_what_they_call_it(guarded: Server) -> None:
    with pytest.raises(openai.AuthenticationError):
        guarded.openai("wrong").models.list()
    with pytest.raises(anthropic.AuthenticationError):
        guarded.anthropic("wrong").messages.create(model="", max_tokens=1, messages=[{"role": "user", "content": "x"}])
    assert guarded.openai(KEY).models.list().data[0].id == "actor"
    answer = guarded.anthropic(OTHER).messages.create(
        model="", max_tokens=9, messages=[{"role": "user", "content": "say x"}]
    )
    assert answer.stop_reason == "end_turn"


def test_the_owner_is_reported_by_name_and_never_by_key(guarded: Server) -> None:
    guarded.openai(KEY).completions.create(model="", prompt="say x")
    reply = guarded.http.get("/v1/snapshot", headers={"x-api-key": KEY})
    assert reply.json()["recent"][0]["owner"] == "anna"
    assert KEY not in reply.text


def test_no_owner_may_take_all_connections_that_several_share() -> None:
    """Of 40, eight are kept for /health, and a key may have three quarters of the others."""
    with served(directed(access=Access(keys=KEYS), limits=ServerLimits(num_connections=40))) as server:
        with ExitStack() as held:
            body = json.dumps({"model": "", "prompt": "forever", "stream": True}).encode()
            for _ in range(24):
                asked = request("/v1/completions", body, f"x-api-key: {KEY}")
                held.enter_context(connected(server.port)).sendall(asked)
            wait_until(lambda: len(server.serving.active) == 24, "all are being answered")
            answer = exchange(server.port, request("/v1/models", b"", f"x-api-key: {KEY}", method="GET"))
            assert (answer.status, answer.error["code"]) == (429, "too_many_requests")
            assert "24 requests in progress, and may have no more" in answer.error["message"]
            assert server.http.get("/v1/models", headers={"x-api-key": OTHER}).status_code == 200
            assert server.http.get("/health", headers={"x-api-key": KEY}).status_code == 200
        wait_until(lambda: not server.serving.active, "they have gone")


def test_few_streams_of_snapshots_are_open_at_once(guarded: Server) -> None:
    with ExitStack() as held:

        def open_stream(key: str) -> httpx.Response:
            return held.enter_context(guarded.http.stream("GET", "/v1/events", headers={"x-api-key": key}))

        for _ in range(MAX_EVENT_STREAMS):
            assert open_stream(KEY).status_code == 200
        refused = open_stream(KEY)
        refused.read()
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_streams")
        assert f"{MAX_EVENT_STREAMS} streams of /v1/events" in refused.json()["error"]["message"]
        assert open_stream(OTHER).status_code == 200
    wait_until(lambda: not guarded.serving.event_streams.total(), "they are closed")


def test_no_owner_may_fill_the_whole_queue_that_several_share() -> None:
    setup = directed(access=Access(keys=KEYS), is_shared=True, num_slots=2, limits=ServerLimits(max_waiting=6))
    with served(setup) as server:
        asked = {"model": "", "prompt": "forever", "stream": True}
        held, client = [], server.openai(KEY)
        with pytest.raises(openai.RateLimitError):
            for _ in range(9):
                held.append(client.completions.create(**asked))  # type: ignore[call-overload]
        assert len(held) == 6
        held.append(server.openai(OTHER).completions.create(**asked))  # type: ignore[call-overload]
        for stream in held:
            stream.close()


# ---- where it listens, and key files
@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_key(host: str) -> None:
    check_bind(host, ApiKeys())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "box.lan", "localhost.evil.example", ""])
def test_what_others_can_reach_needs_a_key(host: str) -> None:
    with pytest.raises(UsageError, match="there is no key") as caught:
        check_bind(host, ApiKeys())
    assert "--api-key-file" in caught.value.hint
    check_bind(host, KEYS)
    with pytest.raises(UsageError, match="the key 'bert' is too short") as caught:
        check_bind(host, SHORT)
    assert "16 characters" in caught.value.hint
    assert "1234" not in caught.value.message + caught.value.hint


def test_a_key_file_that_is_not_there_is_made_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locations, "config_dir", lambda: tmp_path / "config")
    path = tmp_path / "config" / "keys"
    keys = read_keys(path, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [name for name, _ in keys.by_name] == ["default"]
    assert len(keys.by_name[0][1]) >= 32
    assert read_keys(path, {}) == keys


def test_the_folder_of_a_key_file_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keys cannot be written: No such file or directory"):
        read_keys(tmp_path / "misspelled" / "keys", {})
    assert list(tmp_path.iterdir()) == []


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_keys_have_names_comments_and_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "keys", f"# ours\n\nanna: {KEY}\n  {OTHER}  \nb c:\t{'x' * 16}\n: y\nd: a:b: c:\n")
    with pytest.raises(UsageError, match=":7: a key consists of"):
        read_keys(path, {})
    write(path, path.read_text().replace("b: c:", "b:c:"))
    found = read_keys(path, {"EAGLELOCAL_API_KEY": "e:" * 8}).by_name
    named = (("anna", KEY), ("key 2", OTHER), ("b c", "x" * 16), ("key 4", "y"), ("d", "a:b:c:"))
    assert found == (*named, ("environment", "e:" * 8))


def test_a_short_word_before_a_colon_is_a_name(tmp_path: Path) -> None:
    """Such files were written for earlier versions."""
    path = write(tmp_path / "keys", f"anna:{KEY}\nb-c_{'d' * 28}:{OTHER}\n")
    assert read_keys(path, {}).by_name == (("anna", KEY), (f"b-c_{'d' * 28}", OTHER))


def test_a_byte_order_mark_is_not_part_of_a_key(tmp_path: Path) -> None:
    for number, line in enumerate((f"anna: {KEY}", KEY)):
        path = write(tmp_path / f"keys {number}", f"\ufeff{line}\r\n")
        assert read_keys(path, {}).by_name == (("anna" if number == 0 else "key 1", KEY),)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "contains no key"),
        ("# nothing\n", "contains no key"),
        ("anna:", ":1: a key consists of"),
        (f"anna: {KEY}\nanna: {OTHER}", ":2: the name 'anna' occurs twice"),
        (f"local: {KEY}", ":1: the name 'local' is reserved"),
        (f"this machine: {KEY}", ":1: the name 'this machine' is reserved"),
        (f"environment: {KEY}", ":1: the name 'environment' is reserved"),
        ("anna: " + "ü" * 20, ":1: a key consists of"),
        (f"anna: {KEY} {KEY}", ":1: a key consists of"),
        (f"anna b:{KEY}", ":1: it is unclear whether the colon"),
        (f"anna.b:{KEY}", ":1: it is unclear whether the colon"),
        (f"{'a' * 33}:{KEY}", ":1: it is unclear whether the colon"),
        (f":{KEY}", ":1: it is unclear whether the colon"),
    ],
)
def test_key_files_that_are_wrong(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        read_keys(write(tmp_path / "keys", text), {})
    assert KEY not in caught.value.message


@pytest.mark.parametrize(
    ("text", "environment", "complaint"),
    [
        (f"anna: {KEY}\nben: {KEY}", "", "keys:2: 'anna' and 'ben' have the same key"),
        (f"anna: {KEY}\n\n# twice\nben: {OTHER}\ncarl: {KEY}", "", "keys:5: 'anna' and 'carl' have the same key"),
        (f"anna: {KEY} learn\nben:{KEY}", "", "keys:2: 'anna' and 'ben' have the same key"),
        (f"{KEY}\n{KEY}", "", "keys:2: 'key 1' and 'key 2' have the same key"),
        (f"anna: {OTHER}\nben: {KEY}", KEY, "EAGLELOCAL_API_KEY has the key of 'ben' in .*keys"),
    ],
)
def test_one_key_has_one_name(tmp_path: Path, text: str, environment: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        read_keys(write(tmp_path / "keys", text), {"EAGLELOCAL_API_KEY": environment})
    assert KEY not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o666])
def test_key_files_that_others_can_read_are_warned_of(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "keys", f"anna: {KEY}", mode)
    keys = read_keys(path, {})
    assert keys.by_name == (("anna", KEY),)
    assert key_warnings(path, keys) == [f"the key file {path} can be read by others: chmod 600 {path}"]
    path.chmod(0o600)
    assert key_warnings(path, keys) == []


def test_short_keys_are_warned_of(tmp_path: Path) -> None:
    path = write(tmp_path / "keys", f"anna: 12:34\n{KEY}")
    warnings = key_warnings(path, read_keys(path, {"EAGLELOCAL_API_KEY": "short"}))
    assert [warning.split(" has fewer")[0] for warning in warnings] == ["the key 'anna'", "the key 'environment'"]
    assert "12:34" not in "".join(warnings)
    assert key_warnings(None, ApiKeys()) == []


def test_invalid_key_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_keys(tmp_path, {})
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        read_keys(binary, {})
    if os.geteuid() != 0:  # nothing is forbidden to root
        tmp_path.chmod(0o500)
        with pytest.raises(UsageError, match="cannot be written"):
            read_keys(tmp_path / "new", {})
    for key in ("a key of several words", " ", "ü" * 20):
        with pytest.raises(UsageError, match="EAGLELOCAL_API_KEY: a key consists of"):
            read_keys(None, {"EAGLELOCAL_API_KEY": key})
    assert not read_keys(None, {})
    assert not read_keys(None, {"EAGLELOCAL_API_KEY": ""})


def test_only_keys_that_say_so_are_learned_from(tmp_path: Path) -> None:
    path = write(tmp_path / "keys", f"anna: {KEY} learn\n{OTHER}  learn\nlearn: {'c' * 20}\nben: {'d' * 20}")
    keys = read_keys(path, {"EAGLELOCAL_API_KEY": "e" * 20})
    assert dict(keys.by_name) == {
        "anna": KEY,
        "key 2": OTHER,
        "learn": "c" * 20,
        "ben": "d" * 20,
        "environment": "e" * 20,
    }
    assert keys.learning == {"anna", "key 2"}
    with_chat, _ = add_chat_key(keys)
    assert with_chat.learning_owners == {"anna", "key 2", "this machine"}


def test_without_keys_the_server_s_user_agrees_to_learning() -> None:
    keys, _ = add_chat_key(ApiKeys())
    assert keys.learning_owners == {"local"}


@pytest.mark.parametrize("word", ["learns", "Learn", "learn learn", "read"])
def test_no_other_word_may_follow_a_key(tmp_path: Path, word: str) -> None:
    with pytest.raises(UsageError, match="a key consists of"):
        read_keys(write(tmp_path / "keys", f"anna: {KEY} {word}"), {})


def test_on_disk_a_digest_of_the_key_stands_for_its_owner() -> None:
    """It goes with the key, not with the name; this machine's chat gets a new key at each start, and keeps its name."""
    keys, own = add_chat_key(KEYS)
    names = dict(keys.names_on_disk)
    assert set(names) == {"anna", "bert"} and len(set(names.values())) == 2
    assert not any(key in digest for key in (KEY, OTHER, own) for digest in names.values())
    assert dict(ApiKeys((("bert", KEY),)).names_on_disk) == {"bert": names["anna"]}
    assert ApiKeys().names_on_disk == ()
