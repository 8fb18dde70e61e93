"""A headless Chromium, driven over a pipe by its DevTools protocol: no package is needed, only Debian's `chromium`."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .timeouts import PATIENCE_S, wait_until

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = "there is no Chromium: apt-get install chromium"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe"),
)
KEYS = {  # name -> the code of Windows, by which Chromium knows a key, and its text
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "Tab": (9, ""),
    "Space": (32, " "),
    "/": (191, ""),
}
SHIFT, CTRL = 8, 2
# a function that reads all conversations of the page, the latest last
SAVED = """async () => {
  const settle = (request) => new Promise((resolve) => { request.onsuccess = () => resolve(request.result); });
  const database = await settle(indexedDB.open("eaglelocal", 1));
  const found = await settle(database.transaction("conversations").objectStore("conversations").getAll());
  database.close();
  return found.sort((a, b) => a.changed - b.changed);
}"""


class Tab:
    """One page. Its methods do what a person could do, and read what the person would see."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.requested: list[str] = []  # addresses
        self.problems: list[str] = []  # of scripts and of the policy
        self.dialog_answer: str | None = ""
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        return self._browser.send(method, parameters, self._session)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, awaited. Raises AssertionError if it throws."""
        options = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        reply = self.send("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def wait_for(self, expression: str) -> None:
        wait_until(lambda: self.evaluate(f"Promise.resolve({expression}).then(Boolean)"), expression)

    def text(self, selector: str) -> str:
        """Return the texts that are shown of all matching elements."""
        found = self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText)")
        return "\n".join(found)

    def count(self, selector: str) -> int:
        return int(self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        code, text = KEYS[key]
        event: dict[str, object] = {"key": " " if key == "Space" else key, "windowsVirtualKeyCode": code}
        event |= {"code": key, "modifiers": modifiers}
        if text and not modifiers & CTRL:
            event["text"] = text
        self.send("Input.dispatchKeyEvent", type="keyDown", **event)
        self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def show(self, width: int, height: int, *, is_dark: bool = False, is_phone: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if is_phone else 1, "mobile": is_phone}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)
        self.send("Emulation.setTouchEmulationEnabled", enabled=is_phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def save_screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def ask(self, question: str) -> None:
        """Ask by the keyboard, and wait until the answer has ended."""
        self.evaluate("document.querySelector('#prompt').focus()")
        self.type(question)
        self.press("Enter")
        self.wait_for("document.querySelector('#prompt').value === ''")
        self.wait_until_idle()

    def choose_model(self, name: str) -> None:
        self.evaluate(f"document.querySelector('#model').value = {json.dumps(name)}")
        self.evaluate("document.querySelector('#model').dispatchEvent(new Event('change'))")

    def wait_until_idle(self) -> None:
        self.wait_for("document.querySelector('#send').title.startsWith('Send')")

    def wait_until_saved(self) -> None:
        """Wait until the last message in the browser's storage is a whole answer."""
        self.wait_for(f"({SAVED})().then((saved) => saved.at(-1)?.messages.at(-1).isWhole)")

    def close(self) -> None:
        self.send("Page.close")

    def note(self, event: dict[str, Any]) -> None:
        """Record an event of this page."""
        parameters = event["params"]
        match event["method"]:
            case "Network.requestWillBeSent":
                self.requested.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(parameters["exceptionDetails"]))
            case "Log.entryAdded" if parameters["entry"]["source"] in ("security", "javascript"):
                self.problems.append(parameters["entry"]["text"])
            case "Page.javascriptDialogOpening":
                answer = self.dialog_answer
                parameters = {"accept": answer is not None, "promptText": answer or ""}
                self._browser.post("Page.handleJavaScriptDialog", parameters, self._session)


class Browser:
    """The browser's end of the pipe: messages are JSON, each ended by a zero byte."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._received, self._number = b"", 0
        self._tabs: dict[str, Tab] = {}

    def new_tab(self) -> Tab:
        context = self.send("Target.createBrowserContext")["browserContextId"]  # with a storage of its own
        target = self.send("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        return tab

    def post(self, method: str, parameters: dict[str, object], session: str = "") -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return self._number

    def send(self, method: str, parameters: dict[str, object] | None = None, session: str = "") -> dict[str, Any]:
        """Send a command, and return its result. Raises AssertionError if it fails."""
        number = self.post(method, parameters or {}, session)
        while True:
            message = self._read()
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            if "method" in message and (tab := self._tabs.get(message.get("sessionId", ""))):
                tab.note(message)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            assert select.select([self._from], [], [], PATIENCE_S)[0], "the browser says nothing"
            data = os.read(self._from, 2**20)
            assert data, "the browser has ended"
            self._received += data
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


@contextmanager
def running_browser(folder: Path) -> Iterator[Browser]:
    """Run Chromium with a profile in `folder`. It reads file descriptor 3 and writes 4."""
    assert PROGRAM is not None
    (its_input, to_browser), (from_browser, its_output) = os.pipe(), os.pipe()
    command = f'exec 3<&{its_input} 4>&{its_output}; exec "$@"'
    arguments = [PROGRAM, *FLAGS, f"--user-data-dir={folder}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", command, "chromium", *arguments], pass_fds=(its_input, its_output), stdout=log, stderr=log
        )
    os.close(its_input)
    os.close(its_output)
    browser = Browser(to_browser, from_browser)
    try:
        yield browser
        browser.post("Browser.close", {})
    finally:
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(to_browser)
        os.close(from_browser)
