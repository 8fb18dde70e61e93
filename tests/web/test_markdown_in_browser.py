"""What the chat page draws of an answer: Markdown, streamed in small pieces, and texts that mean harm."""

from __future__ import annotations

import json

import pytest
from doubles.chromium import Tab
from doubles.running_server import Server
from doubles.timeouts import PROMPTLY_S, wait_until

from .conftest import OpenPage

pytestmark = pytest.mark.full

BODY = "document.querySelector('.answer:last-child > .markdown')"
# the answer's HTML, without what is the same everywhere
DRAWN = f"""(() => {{
  const copy = {BODY}.cloneNode(true);
  copy.querySelectorAll(":scope > button, header").forEach((each) => each.remove());
  copy.querySelectorAll("*").forEach((each) => ["dir", "rel", "target", "title", "tabindex", "class"]
    .forEach((name) => each.removeAttribute(name)));
  copy.querySelectorAll(":scope > div:empty").forEach((each) => each.remove());
  return copy.innerHTML;
}})()"""
HEARTBEAT = """(() => {
  let last = performance.now();
  window.longest_ms = 0;
  setInterval(() => {
    window.longest_ms = Math.max(window.longest_ms, performance.now() - last);
    last = performance.now();
  }, 5);
})()"""
SHAPES = {
    "one\ntwo": "<p>one<br>two</p>",
    "a **b** _c_ *d* ~~e~~ `f`": "<p>a <strong>b</strong> <em>c</em> <em>d</em> <del>e</del> <code>f</code></p>",
    "***a*** **b *c* d**": "<p><strong><em>a</em></strong> <strong>b <em>c</em> d</strong></p>",
    "2 * 3 * 4 a_b_c **open": "<p>2 * 3 * 4 a_b_c **open</p>",
    "*a **b*": "<p><em>a **b</em></p>",
    r"\*a\* `` x`y `` `open": "<p>*a* <code>x`y</code> `open</p>",
    "costs $5 or $6, $a*b*c$ and \\(x_1 * y_1\\)": "<p>costs $5 or $6, $a*b*c$ and \\(x_1 * y_1\\)</p>",
    "# One #\n## Two\ntext": "<h1>One</h1><h2>Two</h2><p>text</p>",
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "- a\n- b\n  - c\n- d": "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li><li><p>d</p></li></ul>",
    "3. a\n\n   more\n\n4. b": '<ol start="3"><li><p>a</p><p>more</p></li><li><p>b</p></li></ol>',
    "1. a\n   - b": '<ol start="1"><li><p>a</p><ul><li><p>b</p></li></ul></li></ol>',
    "- [x] a\n- [ ] b": '<ul><li><input type="checkbox" disabled=""><p>a</p></li>'
    '<li><input type="checkbox" disabled=""><p>b</p></li></ul>',
    "- a\n  ```\n  b\n   c\n  ```": "<ul><li><p>a</p><div><pre><code>b\n c</code></pre></div></li></ul>",
    "```py\na < b\n\n# c\n```\nd": "<div><pre><code>a &lt; b\n\n# c</code></pre></div><p>d</p>",
    "````\n```\n````": "<div><pre><code>```</code></pre></div>",
    "~~~\nopen": "<div><pre><code>open</code></pre></div>",
    "| a | b |\n|---|:-:|\n| 1 | x \\| y |": "<div><table><thead><tr><th>a</th>"
    '<th style="text-align: center;">b</th></tr></thead><tbody><tr><td>1</td>'
    '<td style="text-align: center;">x | y</td></tr></tbody></table></div>',
    "[a *b*](http://c.example/d_(e))": '<p><a href="http://c.example/d_(e)">a <em>b</em></a></p>',
    "see http://c.example/a_b_c. Or <mailto:a@b.example>": '<p>see <a href="http://c.example/a_b_c">'
    'http://c.example/a_b_c</a>. Or <a href="mailto:a@b.example">mailto:a@b.example</a></p>',
    "x<br>y": "<p>x<br>y</p>",
}
HOSTILE = [
    "<script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 1'><iframe srcdoc='<script>parent.harmed = 1</script>'></iframe>",
    "<style>body { display: none }</style><svg onload='window.harmed = 1'/>",
    "[a](javascript:window.harmed=1) [b](JaVaScRiPt:window.harmed=1) [c](vbscript:x) <javascript:window.harmed=1>",
    "[d](data:text/html,<script>window.harmed=1</script>) [e](//evil.example) [f](/v1/models) [g](file:///etc/passwd)",
    "![h](http://127.0.0.1:9/pixel.png) ![i](data:image/svg+xml;base64,AAAA) ![j](blob:http://127.0.0.1/x)",
    "[k](http://ok.example/\" onclick=\"window.harmed=1) [l](http://ok.example 'x' onclick=alert(1))",
    "```<script>\n</code></pre><script>window.harmed = 1</script>\n```",
    "# <b onclick=x>heading</b>\n\n| <img src=x onerror=y> | b |\n|---|---|\n| <script>1</script> | c |",
    "\u202eright to left\u202c \0 null \ufeff",
]
HEAVY = {  # what would take a careless parser quadratic time, or a deep stack
    "marks": "*a _b **c ~~d " * 2000,
    "brackets": "[" * 20_000 + "](" * 5000,
    "links": "[a](" * 5000,
    "ticks": " ".join("`" * n for n in range(1, 200)),
    "quotes": "> " * 20_000,
    "list": "\n".join(" " * n + "- a" for n in range(200)),
    "columns": "|" * 4000 + "\n" + "|-" * 4000 + "|\n" + "|\n" * 4000,
    "rules": "---\n" * 5000 + "end",
    "spaces": "# " + " " * 30_000 + "x\n" + "-" + " " * 30_000 + "x",
    "formulas": "\\(" * 10_000 + "$a" * 10_000,
    "addresses": "http://" * 5000,
}


def recite(tab: Tab, text: str) -> str:
    """Let the model say a text in pieces of a few characters; return the HTML that was drawn."""
    tab.ask(f"recite {json.dumps(text)}")
    return str(tab.evaluate(DRAWN)).replace("<div></div>", "")


def test_markdown_becomes_elements(tab: Tab) -> None:
    for text, drawn in SHAPES.items():
        assert recite(tab, text).replace("<div>" + drawn + "</div>", drawn) == drawn, text


def test_a_streamed_answer_looks_as_one_that_is_drawn_at_once(tab: Tab) -> None:
    streamed = recite(tab, "\n\n".join(SHAPES))
    tab.wait_until_saved()
    tab.send("Page.reload")
    tab.wait_for(f"document.querySelector('.answer') && {BODY}.innerText")
    assert tab.evaluate(DRAWN) == streamed


def test_hostile_texts_stay_texts(tab: Tab) -> None:
    for text in [*HOSTILE, "\n\n".join(HOSTILE)]:
        recite(tab, text)
    made = "script, img, iframe, style, svg:not(button svg), object, [onclick]:not(button), [onerror], [onload]"
    assert tab.count(":is(.answer, .question) :is(" + made + ")") == 0
    links = tab.evaluate("[...document.querySelectorAll('.answer a')].map((a) => [a.protocol, a.rel, a.target])")
    assert {tuple(link) for link in links} == {("http:", "noopener noreferrer", "_blank")}
    assert tab.evaluate("[window.harmed ?? null, getComputedStyle(document.body).display]") == [None, "flex"]
    assert "<script>window.harmed = 1</script>" in tab.text(".answer")


def test_the_policy_stops_what_a_mistake_would_let_in(open_page: OpenPage) -> None:
    tab = open_page()
    assert tab.evaluate("(() => { try { document.body.innerHTML = '<p>' } catch (error) { return error.name } })()")
    tab.evaluate("document.body.append(Object.assign(new Image(), { src: 'http://127.0.0.1:9/pixel.png' }))")
    tab.evaluate("fetch('http://127.0.0.1:9/').catch(() => {})")
    wait_until(lambda: bool(tab.evaluate("1")) and len(tab.problems) >= 3, "the policy refuses")
    assert all("violates" in each or "requires 'TrustedHTML'" in each for each in tab.problems)
    tab.problems.clear()
    tab.requested.clear()


@pytest.mark.parametrize("text", HEAVY.values(), ids=HEAVY)
def test_no_text_holds_the_page_up(tab: Tab, text: str) -> None:
    """Each of these is drawn in milliseconds; what grows with the square of the text would take minutes."""
    tab.evaluate(HEARTBEAT)
    tab.ask(f"say {text}" if "\n" not in text else f"recite {json.dumps(text)}")
    assert tab.evaluate(f"{BODY}.innerText.length") > 0
    assert tab.evaluate("window.longest_ms") < 1000 * PROMPTLY_S


def test_finished_blocks_are_drawn_once(tab: Tab) -> None:
    tab.ask("recite " + json.dumps("first\n\n" + "more and more\n\n" * 20 + "end"))
    tab.evaluate(f"window.first = {BODY}.firstElementChild")
    tab.evaluate("document.querySelector('.answer .icon[title=\"Try again\"]').click()")
    tab.wait_for(f"{BODY}.children.length > 4")
    tab.evaluate(f"window.first = {BODY}.firstElementChild")
    drawn = tab.evaluate("document.querySelectorAll('.answer p').length")
    tab.wait_for(f"document.querySelectorAll('.answer p').length > {drawn} || {BODY}.innerText.endsWith('end')")
    assert tab.evaluate("window.first.innerText") == "first"


def test_a_line_of_megabytes_is_laid_out_in_part(tab: Tab) -> None:
    tab.ask("flood 5000000")
    shown = tab.evaluate(f"{BODY}.textContent.length")
    assert 150_000 <= shown < 200_000 and tab.text(".answer .plain") == "Show all (5.0 MB)"
    tab.click(".answer .plain")
    tab.wait_for(f"[...{BODY}.querySelectorAll('p')].reduce((sum, p) => sum + p.textContent.length, 0) === 5e6")


def test_long_code_goes_on_as_code(tab: Tab) -> None:
    line = "x = 1  # <b>\n"
    recite(tab, "```py\n" + line * 3000 + "```\n\nend")
    assert (
        tab.evaluate(f"[...{BODY}.querySelectorAll('code')].map((each) => each.textContent).join('\\n')")
        .split("\n")
        .count("x = 1  # <b>")
        == 3000
    )
    assert tab.evaluate(f"[...{BODY}.querySelectorAll('p')].map((p) => p.innerText)") == ["end"]


def test_code_is_copied_as_it_is(tab: Tab) -> None:
    recite(tab, "```\n\ta < b  \n```")
    tab.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    tab.click(".code button")
    tab.wait_for("window.copied !== undefined")
    assert tab.evaluate("window.copied") == "\ta < b  "
    assert (tab.text(".code header"), tab.text("#notice")) == ("Copy", "Copied.")


def test_server_of_other_pages_is_never_asked(tab: Tab, server: Server) -> None:
    recite(tab, "![a](http://127.0.0.1:9/a.png) http://127.0.0.1:9/b [c](http://127.0.0.1:9/c)")
    assert {each.removeprefix(server.url) for each in tab.requested} <= {
        *("/", "/v1/models", "/health", "/v1/chat/completions")
    }
