"""Images of messages: from every API they reach the engine unchanged, in order and in place, or the message is refused
with its place named."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

import anthropic
import openai
import pytest
from doubles.running_server import Server, directed, served

from eaglelocal.server.content import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_IMAGES_BYTES, UNSEEN_IMAGE

FIRST, SECOND = b"\x89PNG\r\n\x1a\n first", b"\xff\xd8\xff\xfb second"
SHOW: Any = {"role": "user", "content": "show"}
BLIND = "this model reads no images; if there is a projector for it, load it with `eaglelocal serve --mmproj FILE`"
URL = "https://example.org/a.png"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url_of(data: bytes) -> str:
    return f"data:image/png;base64,{encoded(data)}"


def chat_part(data: bytes) -> Any:
    return {"type": "image_url", "image_url": {"url": url_of(data), "detail": "high"}}


def plain_part(data: bytes) -> Any:
    return {"type": "image_url", "image_url": url_of(data)}


def input_part(data: bytes) -> Any:
    return {"type": "input_image", "image_url": url_of(data), "detail": "auto"}


def block(data: bytes) -> Any:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(data)}}


def text(words: str) -> Any:
    return {"type": "text", "text": words}


def input_text(words: str) -> Any:
    return {"type": "input_text", "text": words}


def mixed(image: Any, words: Any = text) -> list[Any]:
    return [words("In "), image(FIRST), words(""), words(" and "), image(SECOND), image(FIRST), words(".")]


MIXED = ("In  and .", [(FIRST, 3), (SECOND, 8), (FIRST, 8)])


def used(id: str) -> Any:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "look", "input": {}}]}


def answered(content: list[Any], **more: Any) -> Any:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": content, **more}]}


def called(content: list[Any]) -> list[Any]:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asked = {"role": "assistant", "tool_calls": [call]}
    return [asked, {"role": "tool", "tool_call_id": "a", "content": content}]


def given(output: list[Any]) -> list[Any]:
    call = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": "a", "output": output}]


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
FIELD = {RESPONSES: "input"}  # elsewhere messages


def ask(server: Server, path: str, said: list[Any], **more: Any) -> Any:
    asked = {"model": "", "stream": False, FIELD.get(path, "messages"): said}
    return server.http.post(path, json=asked | ({"max_tokens": 50} if path == MESSAGES else {}) | more)


def seen(server: Server, path: str, said: list[Any], **more: Any) -> list[dict[str, Any]]:
    """The messages as they reached the engine, which shows them."""
    answer = ask(server, path, [*said, SHOW], **more).json()
    match path:
        case "/api/chat":
            shown = answer["message"]["content"]
        case "/v1/messages":
            shown = answer["content"][0]["text"]
        case "/v1/responses":
            shown = answer["output"][0]["content"][0]["text"]
        case _:
            shown = answer["choices"][0]["message"]["content"]
    found: list[dict[str, Any]] = json.loads(shown)["messages"]
    return found


def read(message: dict[str, Any]) -> tuple[str, list[tuple[bytes, int]]]:
    return message["content"], [(bytes.fromhex(one["data"]), one["at"]) for one in message["images"]]


# ---- what reaches the engine
@pytest.mark.parametrize(
    ("path", "said", "more", "index"),
    [
        (CHAT, [user(mixed(chat_part))], {}, 0),
        (CHAT, [user(mixed(plain_part))], {}, 0),
        (CHAT, [user(mixed(input_part))], {}, 0),
        (CHAT, [{"role": "system", "content": mixed(chat_part)}], {}, 0),
        (CHAT, called(mixed(chat_part)), {}, 1),
        (RESPONSES, [user(mixed(input_part, input_text))], {}, 0),
        (RESPONSES, [{"role": "developer", "content": mixed(input_part, input_text)}], {}, 0),
        (RESPONSES, given(mixed(input_part, input_text)), {}, 1),
        (MESSAGES, [user(mixed(block))], {}, 0),
        (MESSAGES, [], {"system": mixed(block)}, 0),
        (MESSAGES, [used("a"), answered(mixed(block))], {}, 1),
    ],
)
def test_images_reach_the_engine_in_their_order_at_their_places(
    seer: Server, path: str, said: list[Any], more: dict[str, Any], index: int
) -> None:
    assert read(seen(seer, path, said, **more)[index]) == MIXED


def test_a_result_s_failure_is_said_before_its_images(seer: Server) -> None:
    messages = seen(seer, MESSAGES, [used("a"), answered([block(FIRST)], is_error=True)])
    assert read(messages[1]) == ("Error: ", [(FIRST, 7)])


def test_results_with_images_stand_before_what_is_said_next_to_them(seer: Server) -> None:
    turn = answered([block(FIRST), text("a")])
    turn["content"] += [text("b"), block(SECOND)]
    messages = seen(seer, MESSAGES, [used("a"), turn])
    assert [read(one) for one in messages[1:3]] == [("a", [(FIRST, 0)]), ("b", [(SECOND, 1)])]


@pytest.mark.parametrize("image", [encoded, url_of])
def test_ollama_has_them_before_the_text(seer: Server, image: Any) -> None:
    images = [image(FIRST), image(SECOND)]
    messages = seen(seer, "/api/chat", [{"role": "user", "content": "What?", "images": images}])
    assert read(messages[0]) == ("What?", [(FIRST, 0), (SECOND, 0)])
    asked = {"prompt": "show", "system": "Be brief.", "images": images, "stream": False}
    made = seer.http.post("/api/generate", json=asked).json()["response"]
    assert [read(one) for one in json.loads(made)["messages"]] == [
        ("Be brief.", []),
        ("show", [(FIRST, 0), (SECOND, 0)]),
    ]


def test_images_alone_are_a_question_of_ollama_s_too(seer: Server) -> None:
    made = seer.http.post("/api/generate", json={"images": [encoded(FIRST)], "stream": False}).json()
    assert made["done_reason"] == "stop"  # else the model would only have been loaded


def test_clients_of_openai_and_anthropic_send_them(seer: Server) -> None:
    looked: Any = [user([text("see "), chat_part(FIRST)]), SHOW]
    chat = seer.openai().chat.completions.create(model="", messages=looked)
    shown: Any = [user([input_text("see "), input_part(FIRST)]), SHOW]
    response = seer.openai().responses.create(model="", input=shown)
    turns: Any = [user([text("see "), block(FIRST)]), SHOW]
    message: Any = seer.anthropic().messages.create(model="", max_tokens=9, messages=turns)
    for reply in (chat.choices[0].message.content, response.output_text, message.content[0].text):
        assert read(json.loads(reply or "")["messages"][0]) == ("see ", [(FIRST, 4)])
    assert seer.anthropic().messages.count_tokens(model="", messages=turns).input_tokens == len("show")


def test_a_response_is_remembered_with_its_images(seer: Server) -> None:
    responses = seer.openai().responses
    asked: Any = [user([input_text("see "), input_part(FIRST)]), user("say well")]
    first = responses.create(model="", input=asked)
    second = responses.create(model="", input="show", previous_response_id=first.id)
    assert read(json.loads(second.output_text)["messages"][0]) == ("see ", [(FIRST, 4)])


def test_a_response_with_more_than_is_remembered_is_reported_and_forgotten(seer: Server) -> None:
    responses = seer.openai().responses
    asked: Any = [user([input_part(bytes(8 * 2**20))]), user("say well")]
    first = responses.create(model="", input=asked)
    assert first.output_text == "well"
    with pytest.raises(openai.BadRequestError, match="not stored"):
        responses.create(model="", input="show", previous_response_id=first.id)
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    reply = json.loads(responses.create(model="", input=[reference, SHOW]).output_text)["messages"]
    assert reply[0]["content"] == "well"  # emitted text stays


# ---- refusals
def cut(url: str) -> Any:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    ("path", "said", "place", "words"),
    [
        *(
            (CHAT, [user([text("a"), cut(url)])], "messages.0.content.1.image_url", words)
            for url, words in (
                (URL, "this server fetches no URLs"),
                ("http://169.254.169.254/latest", "data:image/png;base64"),
                ("file:///etc/passwd", "this server fetches no URLs"),
                (encoded(FIRST), "data:image/png;base64"),
                ("", "there is no image"),
                ("data:image/png;base64,", "there is no image"),
                ("data:image/png;base64,====", "there is no image"),
                ("data:image/png;base64", "there is no image"),
                ("data:image/png,abc", "must be base64"),
                ("data:image/png;base64,a*==", "not valid base64"),
                ("data:image/png;base64,a=bc", "not valid base64"),
                ("data:image/png;base64,abcde", "not valid base64"),
                ("data:image/png;base64,\u00e9", "not valid base64"),
                ("data:application/pdf;base64,aGk=", "only texts and images are supported"),
                ("data:;base64,aGk=", "only texts and images are supported"),
            )
        ),
        (CHAT, [user([{"type": "image_url", "image_url": {}}])], "messages.0.content.0.image_url.url", "required"),
        (CHAT, [user([{"type": "image_url", "image_url": 7}])], "messages.0.content.0.image_url", ""),
        (CHAT, [user([{"type": "input_audio"}])], "messages.0.content.0", "only text"),
        (CHAT, [user([{"type": "image", "data": "aGk="}])], "messages.0.content.0", "not parts of type 'image'"),
        (CHAT, [user([{"type": "file", "file": {}}])], "messages.0.content.0", "only text"),
        (CHAT, [{"role": "assistant", "content": [chat_part(FIRST)]}], "messages.0.content", "cannot contain images"),
        (CHAT, [user([chat_part(FIRST)] * (MAX_IMAGES + 1))], "messages", "at most 64"),
        (RESPONSES, [user([{"type": "input_image", "file_id": "f"}])], "input.0.content.0.image_url", "no image"),
        (
            RESPONSES,
            [user([{"type": "input_image", "image_url": URL}])],
            "input.0.content.0.image_url",
            "fetches no URLs",
        ),
        (RESPONSES, given([input_part(b"")]), "input.1.output.0.image_url", "there is no image"),
        (RESPONSES, [user([{"type": "input_file"}])], "input.0.content.0", "only text"),
        (RESPONSES, [user([input_part(FIRST)] * (MAX_IMAGES + 1))], "input", "at most 64"),
        (
            RESPONSES,
            [{"type": "reasoning", "content": [input_part(FIRST)]}],
            "input.0.content",
            "cannot contain images",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    seer: Server, path: str, said: list[Any], place: str, words: str
) -> None:
    answer = ask(seer, path, [*said, SHOW])
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, place)
    assert words in error["message"]
    assert encoded(FIRST) not in answer.text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"type": "url", "url": URL}, "messages.0.content.1.source: this server fetches no URLs"),
        ({"type": "file", "file_id": "f"}, "this server fetches no URLs"),
        ({"type": "base64", "media_type": "image/png", "data": "a*=="}, "content.1.source.data: this is not"),
        ({"type": "base64", "media_type": "image/png", "data": ""}, "there is no image"),
        ({"type": "base64", "media_type": "application/pdf", "data": "aGk="}, "only text"),
        ({"type": "base64"}, "there is no image"),
        (None, "there is no image"),
    ],
)
def test_sources_that_cannot_be_read(seer: Server, source: Any, words: str) -> None:
    messages: Any = [user([text("show"), {"type": "image", "source": source}])]
    with pytest.raises(anthropic.BadRequestError, match=words):
        seer.anthropic().messages.create(model="", max_tokens=9, messages=messages)


@pytest.mark.parametrize(
    ("path", "asked", "words"),
    [
        (
            "/api/chat",
            {"messages": [{"role": "user", "images": ["a*=="]}]},
            "messages.0.images.0: this is not valid base64",
        ),
        (
            "/api/chat",
            {"messages": [{"role": "user", "images": ["aGk=", ""]}]},
            "messages.0.images.1: there is no image",
        ),
        ("/api/chat", {"messages": [{"role": "user", "images": [7]}]}, "messages.0.images.0: "),
        ("/api/chat", {"messages": [{"role": "user", "images": ["aGk="] * 65}]}, "at most 64"),
        ("/api/chat", {"messages": [{"role": "assistant", "images": ["aGk="]}]}, "cannot contain images"),
        ("/api/generate", {"prompt": "a", "images": ["a*=="]}, "images.0: this is not valid base64"),
        ("/api/generate", {"prompt": "a", "raw": True, "images": ["aGk="]}, "cannot be combined with raw or suffix"),
        ("/api/generate", {"prompt": "a", "suffix": "b", "images": ["aGk="]}, "cannot be combined with raw or suffix"),
        ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": ["aGk="]}}, "in messages only"),
    ],
)
def test_what_other_shapes_cannot_have_read(seer: Server, path: str, asked: Any, words: str) -> None:
    answer = seer.http.post(path, json=asked)
    assert answer.status_code == 400
    assert words in answer.text


@pytest.mark.parametrize(("num_answers", "num_images", "status"), [(2, 32, 200), (2, 33, 400), (16, 5, 400)])
def test_every_answer_is_a_request_with_all_images(
    seer: Server, num_answers: int, num_images: int, status: int
) -> None:
    said = [user([chat_part(FIRST)] * num_images), user("say x")]
    assert ask(seer, CHAT, said, n=num_answers).status_code == status


@pytest.mark.full
@pytest.mark.parametrize(("more", "words"), [([], ""), ([b"x"], "together")])
def test_as_much_as_there_may_be_fits_through_all_doors(seer: Server, more: list[bytes], words: str) -> None:
    files = [bytes(MAX_IMAGE_BYTES), bytes(MAX_IMAGES_BYTES - MAX_IMAGE_BYTES), *more]
    answer = ask(seer, CHAT, [user([*map(chat_part, files), text("say x")])])
    assert answer.status_code == (400 if words else 200)
    assert words in answer.text


# ---- models that do not see
@pytest.mark.parametrize(
    ("path", "said", "place"),
    [
        (CHAT, [user([chat_part(FIRST)])], "messages.0"),
        (CHAT, [user("a"), {"role": "system", "content": [chat_part(FIRST)]}], "messages.1"),
        (RESPONSES, [user("a"), *given([input_part(FIRST)]), user([input_part(FIRST)])], "input.3"),
    ],
)
def test_a_blind_model_is_shown_nothing(actor: Server, path: str, said: list[Any], place: str) -> None:
    for stream in (False, True):
        answer = ask(actor, path, [*said, SHOW], stream=stream)
        error = answer.json()["error"]
        assert (answer.status_code, error["message"], error["param"]) == (400, BLIND, place)
        assert error["code"] == "unsupported_parameter"
    actor.wait_until_idle()


def test_clients_of_anthropic_and_ollama_are_notified_too(actor: Server) -> None:
    turns: Any = [user([text("see "), block(FIRST)])]
    ask_messages = actor.anthropic().messages
    for asking in (ask_messages.count_tokens, lambda **asked: ask_messages.create(max_tokens=9, **asked)):
        with pytest.raises(anthropic.BadRequestError, match="this model reads no images"):
            asking(model="", messages=turns)
    answer = ask(actor, "/api/chat", [{"role": "user", "content": "a", "images": [encoded(FIRST)]}])
    assert (answer.status_code, answer.json()) == (400, {"error": f"messages.0: {BLIND}"})


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (CHAT, called(mixed(chat_part))),
        (RESPONSES, given(mixed(input_part, input_text))),
        (MESSAGES, [used("a"), answered(mixed(block))]),
    ],
)
def test_what_tools_gave_a_blind_model_is_described(actor: Server, path: str, said: list[Any]) -> None:
    result = seen(actor, path, said)[1]
    assert read(result) == (f"In {UNSEEN_IMAGE} and {UNSEEN_IMAGE}{UNSEEN_IMAGE}.", [])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (RESPONSES, given([{"type": "input_image", "image_url": URL}])),
        (RESPONSES, given([{"type": "input_image", "file_id": "f"}])),
        (MESSAGES, [used("a"), answered([{"type": "image", "source": {"type": "url", "url": URL}}])]),
        (MESSAGES, [used("a"), answered([{"type": "image"}])]),
    ],
)
def test_what_tools_only_name_is_described_to_every_model(seer: Server, path: str, said: list[Any]) -> None:
    assert read(seen(seer, path, said)[1]) == (UNSEEN_IMAGE, [])


def test_the_model_that_was_asked_for_decides_and_is_loaded_once() -> None:
    with served(directed("actor", "seer")) as server:
        looked: Any = [user([chat_part(FIRST)])]

        def look(model: str) -> int:
            return ask(server, CHAT, [*looked, user("say x")], model=model).status_code

        assert [look("actor"), look("seer"), look("seer"), look("actor")] == [400, 200, 200, 400]
        assert len(server.clients) == 3
        refused = [row["state"] for row in server.snapshot()["recent"]]
        assert refused == ["refused", "stop", "stop", "refused"]
        server.wait_until_idle()


# ---- what is reported
def test_a_vision_model_says_that_it_reads_images(actor: Server, seer: Server) -> None:
    for server, name, sees in ((actor, "actor", False), (seer, "seer", True)):
        assert server.http.get("/props").json()["modalities"]["vision"] is sees
        (card,) = server.http.get("/v1/models").json()["data"]
        assert card["capabilities"] == ["completion", "multimodal"][: 1 + sees]
        assert server.http.get(f"/v1/models/{name}").json() == card
        shown = server.http.post("/api/show", json={"model": name}).json()
        (tag,) = server.http.get("/api/tags").json()["models"]
        assert ("vision" in shown["capabilities"], "vision" in tag["capabilities"]) == (sees, sees)
        assert server.snapshot()["model"]["sees_images"] is sees


def test_what_was_seen_to_see_is_known_when_another_model_is_loaded() -> None:
    with served(directed("seer", "actor")) as server:
        assert ask(server, CHAT, [user("say x")], model="actor").status_code == 200
        cards = server.http.get("/v1/models").json()["data"]
        assert [card["loaded"] for card in cards] == [False, True]
        assert server.serving.models.sees_images("seer") and not server.serving.models.sees_images("actor")


def test_no_image_is_in_logs_or_figures(seer: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(seer, CHAT, [user([chat_part(FIRST)]), user("say x")])
        ask(seer, CHAT, [user([cut(url_of(FIRST)[:-3])]), user("say x")])
        ask(seer, CHAT, [user([chat_part(FIRST)]), user("fail broken")])
    reply = caplog.text + json.dumps(seer.snapshot()) + seer.http.get("/metrics").text
    assert encoded(FIRST)[:-4] not in reply and repr(FIRST)[2:-1] not in reply
