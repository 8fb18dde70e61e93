"""The chat page as people use it: asking, stopping, editing, keys, pictures, storage, and servers that fail."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles.chromium import CTRL, SAVED, SHIFT, Tab
from doubles.image_files import image_bytes
from doubles.running_server import Server, directed, served
from doubles.timeouts import wait_until

from eaglelocal.server.access import Access, ApiKeys
from eaglelocal.server.server_state import ServerLimits

from .conftest import OpenPage

pytestmark = pytest.mark.full

STARTED = "document.querySelector('.answer .markdown')?.innerText.includes('xx')"
ANNA = "anna-" + "a" * 20
WIDE = "x" * 300
TABLE = f"| {' | '.join('abcdefgh')} |\n|{'---|' * 8}\n| {' | '.join(['wider cell'] * 8)} |"
LONG_ANSWER = (
    f"# A heading\n\nText with {WIDE}\n\n{TABLE}\n\n```python\nprint('{WIDE}')\n```\n\n- one\n- two\n\n> quoted"
)


def press(tab: Tab, label: str, within: str = "") -> None:
    """Press the last button with this label."""
    tab.evaluate(f"[...document.querySelectorAll('{within} button[title=\"{label}\"]')].at(-1).click()")


def read_saved(tab: Tab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tab.evaluate(f"({SAVED})()")
    return found


def read_request(tab: Tab) -> dict[str, Any]:
    """Ask the model to show the request that it got."""
    tab.ask("show")
    tab.wait_until_saved()
    shown: dict[str, Any] = json.loads(read_saved(tab)[-1]["messages"][-1]["text"])
    return shown


# ---- asking
def test_a_question_is_answered_with_its_figures(tab: Tab) -> None:
    tab.ask("hello there")
    assert (tab.text(".question .text"), tab.text(".answer .markdown")) == ("hello there", "hello there")
    assert tab.text(".figures") == "2.0 tok/s · drafts 1.5x · seer"
    details = tab.evaluate("document.querySelector('.figures').title")
    assert details.startswith("2 tokens, the first after 0.1 s; 5 of 8 drafted tokens accepted; ")
    assert tab.evaluate("document.title") == "hello there - eaglelocal"


def test_the_conversation_so_far_is_sent(tab: Tab) -> None:
    tab.ask("one")
    messages = read_request(tab)["messages"]
    assert [(each["role"], each["content"]) for each in messages] == [
        ("user", "one"),
        ("assistant", "one"),
        ("user", "show"),
    ]


def test_shift_and_enter_begin_a_line(tab: Tab) -> None:
    tab.type("say a")
    tab.press("Enter", SHIFT)
    tab.ask("say b")
    assert (tab.text(".question .text"), tab.text(".answer .markdown")) == ("say a\nsay b", "ab")


def test_the_chosen_model_answers_and_stays_chosen(tab: Tab) -> None:
    tab.ask("hello")
    tab.wait_for("document.querySelector('#model').innerText === 'seer\\nactor (not loaded)'")
    tab.choose_model("actor")
    tab.click("#new")
    tab.ask("hello")
    assert tab.text(".figures").endswith("actor")
    tab.send("Page.reload")
    tab.wait_for("document.querySelector('#model')?.value === 'actor'")


def test_settings_go_with_the_questions(tab: Tab) -> None:
    press(tab, "Settings")
    for name, value in {"system": "Be brief.", "temperature": "0.25", "max_tokens": "77"}.items():
        tab.evaluate(f"document.querySelector('#settings [name={name}]').value = '{value}'")
    tab.click("#settings .main")
    tab.wait_for("localStorage.getItem('eaglelocal-settings')?.includes('brief')")
    request = read_request(tab)
    assert (request["messages"][0]["role"], request["messages"][0]["content"]) == ("system", "Be brief.")
    assert (request["params"]["temperature"], request["params"]["max_tokens"]) == (0.25, 77)
    tab.send("Page.reload")
    tab.wait_for("document.querySelector('#model')?.value")
    press(tab, "Settings")
    assert tab.evaluate("document.querySelector('#settings [name=temperature]').value") == "0.25"


def test_escape_leaves_the_settings_as_they_were(tab: Tab) -> None:
    press(tab, "Settings")
    tab.evaluate("document.querySelector('#settings [name=temperature]').value = '0.5'")
    tab.click("#settings .main")
    press(tab, "Settings")
    tab.evaluate("document.querySelector('#settings [name=temperature]').value = '99'")
    tab.click("#settings .main")
    assert tab.evaluate("document.querySelector('#settings').open"), "it is over the limit"
    tab.evaluate("document.querySelector('#settings [name=top_p]').value = '0.25'")
    tab.press("Escape")
    tab.wait_for("!document.querySelector('#settings').open")
    params = read_request(tab)["params"]
    assert (params["temperature"], params["top_p"]) == (0.5, 1.0)


def test_a_kept_setting_that_is_not_allowed_is_never_sent(tab: Tab) -> None:
    kept = json.dumps({"temperature": 99, "max_tokens": "many", "reasoning_effort": "most", "top_p": 0.25})
    tab.evaluate(f"localStorage.setItem('eaglelocal-settings', {json.dumps(kept)})")
    tab.send("Page.reload")
    tab.wait_for("localStorage.getItem('eaglelocal-settings') === '{\"top_p\":0.25}'")
    tab.wait_for("document.querySelector('#model')?.value")
    assert read_request(tab)["params"]["top_p"] == 0.25


def test_thoughts_are_folded_and_can_be_read(tab: Tab) -> None:
    tab.ask("think deep thoughts\nsay the answer")
    assert tab.text(".answer .markdown") == "the answer" and tab.text(".thinking summary") == "Thoughts"
    assert tab.evaluate("document.querySelector('.thinking').open") is False
    tab.evaluate("document.querySelector('.thinking summary').focus()")
    tab.press("Enter")
    tab.wait_for("document.querySelector('.thinking').innerText.includes('deep thoughts')")
    assert "deep" not in json.dumps(read_request(tab)["messages"][1])


def test_reading_and_thinking_show_how_far_they_are(tab: Tab) -> None:
    for script, shown in [
        ("read 10\nnothing 9999 0.02", ".waiting')?.innerText === 'Reading the question: 40 %'"),
        ("think one\nsleep 1\nthink two\nnothing 9999 0.02", ".thinking summary')?.innerText === 'Thinking for 1 s'"),
    ]:
        tab.type(script)
        tab.press("Enter")
        tab.wait_for(f"document.querySelector('.answer:last-child {shown}")
        tab.press("Escape")
        tab.wait_until_idle()
    assert tab.text(".answer:last-child summary") == "Thought for 1 s"
    assert [each["content"] for each in read_request(tab)["messages"]] == ["show"], "questions without an answer"


@pytest.mark.parametrize(
    ("script", "said"),
    [("think deep thoughts", "The answer ended after the model's thoughts."), ("say", "The answer is empty.")],
)
def test_an_answer_without_a_word_says_so(tab: Tab, script: str, said: str) -> None:
    tab.ask(script)
    assert tab.text(".answer .note") == said and tab.text(".answer .markdown") == ""


# ---- stopping, versions
def test_escape_stops_and_the_text_so_far_stays(tab: Tab, server: Server) -> None:
    tab.type("forever")
    tab.press("Enter")
    tab.wait_for(STARTED)
    assert tab.evaluate("document.querySelector('.answer').ariaBusy") == "true"
    tab.press("Escape")
    tab.wait_until_idle()
    assert tab.text(".answer .note") == "Stopped.Continue" and "xx" in tab.text(".answer .markdown")
    server.wait_until_idle()
    assert tab.evaluate("document.querySelector('.answer').ariaBusy") == "false"


def test_a_stopped_answer_goes_on(tab: Tab) -> None:
    tab.ask("say one")
    tab.type("forever")
    tab.press("Enter")
    tab.wait_for("document.querySelector('.answer:last-child .markdown')?.innerText.includes('xx')")
    tab.click("#send")
    tab.wait_until_idle()
    said = tab.text(".answer:last-child .markdown")
    tab.click(".answer .note button")
    tab.wait_for(f"document.querySelector('.answer:last-child .markdown').innerText.length > {len(said) + 2}")
    press(tab, "Stop (Esc)")
    tab.wait_until_idle()
    assert tab.text(".answer:last-child .markdown").startswith(said) and tab.count(".answer") == 2


def test_a_second_try_keeps_the_first(tab: Tab) -> None:
    tab.ask("hello")
    press(tab, "Try again")
    tab.wait_for("document.querySelector('.answer .foot')?.innerText.includes('2/2')")
    tab.wait_until_idle()
    press(tab, "Previous version")
    assert "1/2" in tab.text(".answer .foot") and tab.count(".answer") == 1
    assert tab.evaluate("document.querySelector('[title=\"Previous version\"]').disabled")


def test_an_edited_question_begins_another_branch(tab: Tab) -> None:
    tab.ask("one")
    tab.ask("two")
    tab.evaluate("document.querySelector('.question [title=Edit]').click()")
    assert tab.evaluate("document.querySelector('#prompt').value") == "one" and not tab.evaluate("editing.hidden")
    tab.press("Escape")
    assert tab.evaluate("document.querySelector('#prompt').value") == "" and tab.evaluate("editing.hidden")
    tab.evaluate("document.querySelector('.question [title=Edit]').click()")
    tab.ask(" more")
    assert tab.text(".question .text") == "one more" and tab.count(".answer") == 1
    press(tab, "Previous version", ".question")
    assert tab.text(".question .text") == "one\ntwo"


# ---- keyboard, sizes
def test_everything_is_reached_by_the_keyboard(tab: Tab) -> None:
    tab.ask("recite " + json.dumps("[link](http://a.example)\n\n```\ncode\n```"))
    tab.wait_until_saved()
    reached, unseen = [], []
    for _ in range(30):
        tab.press("Tab")
        name = "((e) => e === document.body ? '' : e.ariaLabel || e.title || e.innerText)(document.activeElement)"
        reached.append(tab.evaluate(name).split("\n")[0])
        is_marked = "((e) => getComputedStyle(e).outlineStyle !== 'none' || e.id === 'prompt')(document.activeElement)"
        unseen += [] if tab.evaluate(is_marked) else [reached[-1]]
    expected = {
        "New conversation",
        "Rename",
        "Export",
        "Delete",
        "Conversations (Ctrl+/)",
        "Settings",
        "Edit",
        "http://a.example/",
    }
    assert expected | {"Copy", "code", "Try again", "Question", "Model", "Add a picture"} <= set(reached)
    assert set(unseen) <= {""}


def test_a_key_opens_the_conversations(tab: Tab) -> None:
    is_open = "!document.querySelector('#list').classList.contains('closed')"
    assert tab.evaluate(is_open) and tab.evaluate("document.activeElement.id") == "prompt"
    tab.press("/", CTRL)
    assert not tab.evaluate(is_open) and tab.evaluate("document.activeElement.id") == "prompt"
    tab.press("/", CTRL)
    assert tab.evaluate(is_open) and tab.evaluate("document.activeElement.id") == "new"


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_nothing_is_wider_than_the_window(open_page: OpenPage, shots: Path, size: tuple[int, int]) -> None:
    tab = open_page()
    tab.show(*size, is_phone=size[0] < 500)
    tab.ask("recite " + json.dumps(LONG_ANSWER))
    tab.save_screenshot(shots / "answer.png")
    assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert tab.evaluate(
        "document.querySelector('#scroller').scrollWidth <= document.querySelector('#scroller').clientWidth"
    )
    assert tab.evaluate("document.querySelector('#send').getBoundingClientRect().bottom") <= size[1]


def test_on_a_phone_the_list_is_a_drawer(open_page: OpenPage) -> None:
    tab = open_page()
    tab.show(390, 844, is_phone=True)
    tab.send("Page.reload")
    tab.wait_for("document.querySelector('#model')?.value")
    is_shown = "document.querySelector('#list').checkVisibility()"
    assert not tab.evaluate(is_shown)
    press(tab, "Conversations (Ctrl+/)")
    assert tab.evaluate(is_shown)
    tab.press("Escape")
    assert not tab.evaluate(is_shown)


@pytest.mark.parametrize(
    ("width", "shown"), [(1280, "SmolLM2-135M-Instruct-128k-Q4_K_M"), (390, "SmolLM2-135\u2026-128k-Q4_K_M")]
)
def test_a_long_name_of_a_model_keeps_its_end(open_page: OpenPage, shots: Path, width: int, shown: str) -> None:
    with served(directed("SmolLM2-135M-Instruct-128k-Q4_K_M")) as server:
        tab = open_page(server)
        tab.show(width, 844, is_phone=width < 500)
        tab.send("Page.reload")
        tab.wait_for("document.querySelector('#model')?.value")
        name = tab.evaluate("document.querySelector('#model').innerText")
        assert name.removesuffix(" (not loaded)") == shown
        tab.save_screenshot(shots / "name.png")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_on_a_touch_screen_enter_begins_a_line(open_page: OpenPage) -> None:
    tab = open_page()
    tab.show(390, 844, is_phone=True)
    tab.send("Page.reload")
    tab.wait_for("document.querySelector('#model')?.value")
    tab.type("one")
    tab.press("Enter")
    assert tab.evaluate("document.querySelector('#prompt').value") == "one\n" and tab.count(".question") == 0


# ---- pictures
def paste_picture(tab: Tab, data: bytes) -> None:
    tab.evaluate(f"""(() => {{
      const bytes = Uint8Array.from(atob("{base64.b64encode(data).decode()}"), (char) => char.charCodeAt(0));
      const clipboardData = new DataTransfer();
      clipboardData.items.add(new File([bytes], "a.png", {{ type: "image/png" }}));
      document.querySelector("#prompt").dispatchEvent(new ClipboardEvent("paste", {{ clipboardData, bubbles: true }}));
    }})()""")


def test_a_picture_goes_with_its_question(tab: Tab) -> None:
    paste_picture(tab, image_bytes(size=(3000, 30)))
    tab.wait_for("document.querySelector('#attached img')")
    (image,) = read_request(tab)["messages"][0]["images"]
    assert image and tab.count(".question .pictures img") == 1 and tab.count("#attached img") == 0
    assert tab.evaluate("document.querySelector('.question img').naturalWidth") == 2048
    paste_picture(tab, b"no picture")
    tab.wait_for("document.querySelector('#notice').innerText.startsWith('This browser cannot read')")


def test_a_model_that_reads_no_pictures_is_sent_none(open_page: OpenPage, actor_server: Server) -> None:
    tab = open_page(actor_server)
    tab.wait_for("document.querySelector('#model').value === 'actor'")
    paste_picture(tab, image_bytes())
    tab.wait_for("document.querySelector('#notice').innerText === 'This model reads no pictures.'")
    assert tab.evaluate("document.querySelector('#attach').hidden") and tab.count("#attached img") == 0


@pytest.fixture
def actor_server() -> Iterator[Server]:
    with served(directed("actor")) as server:
        yield server


# ---- conversations
def test_conversations_are_kept_renamed_exported_and_deleted(tab: Tab, tmp_path: Path) -> None:
    tab.ask("the first")
    tab.wait_until_saved()
    tab.click("#new")
    tab.ask("the second")
    tab.wait_for("document.querySelector('#conversations').innerText === 'the second\\nthe first'")
    tab.wait_until_saved()
    tab.send("Page.reload")
    tab.wait_for("document.querySelectorAll('.answer').length === 1 && document.querySelectorAll('.open').length === 2")
    tab.evaluate("document.querySelectorAll('.open')[1].click()")
    tab.wait_for("document.querySelector('.current .open').innerText === 'the first'")
    assert tab.text(".question .text") == "the first"
    tab.dialog_answer = "<b>renamed</b>"
    press(tab, "Rename", ".current")
    tab.wait_for("document.querySelector('.current .open').innerText === '<b>renamed</b>'")
    tab.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    press(tab, "Export", ".current")
    wait_until(lambda: bool([*tmp_path.glob("*.md")]), "the file is there")
    (exported,) = tmp_path.glob("*.md")
    assert exported.read_text() == "# <b>renamed</b>\n\n## Question\n\nthe first\n\n## seer\n\nthe first\n"
    press(tab, "Delete", ".current")
    tab.wait_for("document.querySelectorAll('.open').length === 1 && document.querySelectorAll('.answer').length === 0")
    assert [each["title"] for each in read_saved(tab)] == ["the second"]


def test_a_deleted_conversation_stays_deleted_although_it_was_being_answered(tab: Tab, server: Server) -> None:
    tab.type("forever")
    tab.press("Enter")
    tab.wait_for(f"{STARTED} && document.querySelector('.open')")
    press(tab, "Delete")
    server.wait_until_idle()
    tab.wait_until_idle()
    assert read_saved(tab) == [] and tab.count(".answer") == 0


def test_a_question_during_another_answer_is_kept_and_so_is_the_answer_so_far_over_a_reload(tab: Tab) -> None:
    tab.type("forever")
    tab.press("Enter")
    tab.wait_for(STARTED)
    tab.click("#new")
    tab.evaluate("document.querySelector('#prompt').focus()")
    tab.type("and now?")
    tab.press("Enter")
    tab.press("Escape")  # not of this conversation
    tab.wait_for("document.querySelector('#notice').innerText.startsWith('An answer is being written.')")
    tab.evaluate("document.querySelector('.open').focus()")
    tab.wait_for(f"({SAVED})().then(([saved]) => saved.messages[1].text.length > 9)")
    assert tab.evaluate("document.activeElement.className") == "open", "the list is not drawn again each time"
    tab.send("Page.reload")
    tab.wait_for("document.querySelector('#prompt')?.value === 'and now?'")
    tab.wait_for("document.querySelector('.open')")
    tab.click(".open")
    tab.wait_for("document.querySelector('.answer .markdown')?.innerText.includes('xxxxxxxxx')")
    assert tab.text(".answer .note") == "The page was closed before this answer ended.Continue"


def test_an_answer_goes_on_while_another_conversation_is_in_view(tab: Tab) -> None:
    tab.type("forever")
    tab.press("Enter")
    tab.wait_for(f"{STARTED} && document.querySelector('.open')")
    tab.click("#new")
    assert tab.count(".answer") == 0
    tab.click(".open")
    tab.wait_for("document.querySelector('.answer .markdown')?.innerText.length > 100")
    press(tab, "Stop (Esc)")
    tab.wait_until_idle()
    assert tab.text(".answer .note") == "Stopped.Continue"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("IDBObjectStore.prototype.put = () => { throw new DOMException('', 'QuotaExceededError') }", "is full"),
        ("indexedDB.open = () => { throw new DOMException('', 'SecurityError') }", "keeps no conversations"),
        ("Object.defineProperty(window, 'localStorage', { get() { throw new DOMException() } })", ""),
    ],
)
def test_a_browser_that_keeps_nothing_can_chat(open_page: OpenPage, failure: str, said: str) -> None:
    tab = open_page()
    tab.send("Page.addScriptToEvaluateOnNewDocument", source=failure)
    tab.send("Page.reload")
    tab.wait_for("document.querySelector('#model')?.value")
    tab.ask("hello")
    assert tab.text(".answer .markdown") == "hello"
    tab.wait_for(f"document.querySelector('#notice').innerText.includes('{said}')")


# ---- keys
def test_the_key_is_asked_for_once(open_page: OpenPage) -> None:
    with served(directed(access=Access(keys=ApiKeys((("anna", ANNA),))))) as server:
        tab = open_page(server)
        tab.wait_for("document.querySelector('#key').open")
        for given, is_open in (("wrong", "true"), (ANNA, "false")):
            tab.evaluate(f"document.querySelector('#key [name=key]').value = '{given}'")
            tab.click("#key .main")
            tab.wait_for(f"document.querySelector('#key').open === {is_open}")
            tab.wait_for(f"sessionStorage.getItem('eaglelocal-key') === '{given}'")
        tab.ask("hello")
        assert tab.text(".answer .markdown") == "hello"
        tab.send("Page.reload")
        tab.wait_for("document.querySelector('#model')?.value")
        assert not tab.evaluate("document.querySelector('#key').open || localStorage.getItem('eaglelocal-key')")
        press(tab, "Settings")
        tab.click("#forget-key")
        tab.wait_for("document.querySelector('#key').open")
        assert not tab.evaluate("sessionStorage.getItem('eaglelocal-key')")


# ---- servers that fail
def test_a_server_that_is_gone_is_asked_again(tab: Tab) -> None:
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    tab.send("Network.emulateNetworkConditions", offline=True, **offline)
    tab.type("hello")
    tab.press("Enter")
    tab.wait_for("document.querySelector('.waiting')?.innerText === 'The server does not answer. Trying again.'")
    tab.wait_for("document.querySelector('#banner').innerText === 'The server does not answer. Trying again.'")
    tab.send("Network.emulateNetworkConditions", offline=False, **offline)
    tab.wait_until_idle()
    assert tab.text(".answer .markdown") == "hello"
    tab.wait_for("document.querySelector('#banner').innerText === ''")


def test_a_question_waits_while_the_server_is_busy(open_page: OpenPage) -> None:
    with served(directed(num_slots=1, limits=ServerLimits(max_waiting=0))) as server:
        first, second = open_page(server), open_page(server)
        first.type("forever")
        first.press("Enter")
        first.wait_for(STARTED)
        second.type("hello")
        second.press("Enter")
        second.wait_for("document.querySelector('.waiting')?.innerText.startsWith('The server is busy')")
        first.press("Escape")
        second.wait_until_idle()
        assert second.text(".answer .markdown") == "hello"


def test_a_server_that_ends_leaves_the_text_so_far(open_page: OpenPage) -> None:
    with served(directed()) as server:
        tab = open_page(server)
        tab.wait_for("document.querySelector('#model').value")
        tab.type("forever")
        tab.press("Enter")
        tab.wait_for(STARTED)
    tab.wait_until_idle()
    assert tab.text(".answer .note button") == "Continue" and "xx" in tab.text(".answer .markdown")
    tab.wait_for("document.querySelector('#banner').innerText === 'The server does not answer. Trying again.'")


def test_a_connection_that_breaks_leaves_the_text_so_far(tab: Tab) -> None:
    """The browser's end of the stream ends without the last event, as when a cable is pulled."""
    tab.evaluate("""(() => {
      const fetched = window.fetch;
      window.fetch = async (path, request) => {
        const response = await fetched(path, request), isAnswer = path.endsWith("completions");
        if (!isAnswer) return response;
        const pieces = response.body.getReader();
        const pull = async (stream) => {
          const { value } = await pieces.read();
          if (new TextDecoder().decode(value).includes("far")) stream.error(new TypeError("network error"));
          else stream.enqueue(value);
        };
        return new Response(new ReadableStream({ pull }));
      };
    })()""")
    for line in ("say so", "nothing 3 0.1"):
        tab.type(line)
        tab.press("Enter", SHIFT)
    tab.ask("say far")
    assert tab.text(".answer .note") == "The connection to the server broke.Continue"
    assert tab.text(".answer .markdown") == "so"


def test_waiting_can_be_stopped(tab: Tab) -> None:
    tab.send("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    tab.type("hello")
    tab.press("Enter")
    tab.wait_for("document.querySelector('.waiting')?.innerText.startsWith('The server does not answer')")
    tab.press("Escape")
    tab.wait_until_idle()
    assert tab.text(".answer .note") == "Stopped.Try again"


def test_questions_wait_for_the_model(open_page: OpenPage, tmp_path: Path) -> None:
    from doubles import directed_server_engine

    gate = tmp_path / "gate"
    gate.touch()
    plans = {"hesitant": directed_server_engine.plan("hesitant", gate)}
    with served(directed(plans=plans, waits=False)) as server:
        tab = open_page(server)
        tab.wait_for("document.querySelector('#banner').innerText === 'The server is loading a model.'")
        tab.type("hello")
        tab.press("Enter")
        tab.wait_for("document.querySelector('.waiting')?.innerText.startsWith('The model is not ready')")
        gate.unlink()
        tab.wait_until_idle()
        assert tab.text(".answer .markdown") == "hello"


def test_the_first_question_loads_its_model(open_page: OpenPage, tmp_path: Path) -> None:
    from doubles import directed_server_engine

    gate = tmp_path / "gate"
    gate.touch()
    plans = {"actor": directed_server_engine.plan("actor"), "hesitant": directed_server_engine.plan("hesitant", gate)}
    with served(directed(plans=plans)) as server:
        tab = open_page(server)
        tab.wait_for("document.querySelector('#model-facts').innerText.endsWith(' tokens of context, draft: none')")
        tab.choose_model("hesitant")
        assert tab.text("#model-facts") == "Your first question loads it."
        tab.type("hello")
        tab.press("Enter")
        tab.wait_for("document.querySelector('.waiting')?.innerText === 'Loading the model'")
        gate.unlink()
        tab.wait_until_idle()
        assert tab.text(".answer .markdown") == "hello"


@pytest.mark.parametrize(
    ("script", "kept", "said"),
    [
        ("refuse messages context_length_exceeded", "", "Edit it, or begin a new conversation."),
        ("refuse temperature x", "", "the script refuses this"),
        ("say so far\nnothing 3 0.1\nfail full", "so far", "the cache has no room"),
        ("say cut\nlength", "cut", "Cut off"),
    ],
)
def test_failures_are_said_and_keep_the_text(tab: Tab, script: str, kept: str, said: str) -> None:
    lines = script.split("\n")
    for line in lines[:-1]:
        tab.type(line)
        tab.press("Enter", SHIFT)
    tab.ask(lines[-1])
    assert said in tab.text(".answer .note") and tab.text(".answer .markdown") == kept
    assert tab.text(".answer .note button") == {"": "Try again", "so far": "Continue", "cut": ""}[kept]
