"""The playground in a real browser: `pytest -m full core/tests/serving/test_playground_browser.py`.

It wants playwright (the package, whose browsers are not needed) and a Chromium of the system (Debian: `apt-get install
chromium`), and fails where there is none. The fake engine repeats the prompt, which is the last message: so a test says
what the model answers. TENON_SCREENSHOTS=DIR keeps pictures.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_model import model_folder
from running_server import KEY, RunningServer, start_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.e2e, pytest.mark.full]
TEMPLATE = '{# <tool_call> {"name": and <think> </think> #}{{ messages[-1].content }}<|im_end|>'
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
# Every one sets window.hurt if it is ever run as HTML, or as a link's script.
HOSTILE = (
    "<img src=x onerror='window.hurt=1'>",
    "<script>window.hurt=1</script>",
    "<svg onload=window.hurt=1><iframe srcdoc='<script>parent.hurt=1</script>'>",
    "[click](javascript:window.hurt=1) [x](data:text/html,<script>window.hurt=1</script>)"
    ' ![i](x" onerror=window.hurt=1)',
    "```<img src=x onerror=window.hurt=1>\n</code></pre><img src=x onerror=window.hurt=1>\n```",
    "# <b onmouseover=window.hurt=1>x</b>\n> <a href=javascript:window.hurt=1>y</a>\n- <p ontoggle=window.hurt=1>",
    "| <img src=x onerror=window.hurt=1> | b |\n|---|---|\n| <script>window.hurt=1</script> | c |",
)
ALLOWED = {"A", "P", "H3", "H4", "H5", "HR", "UL", "OL", "LI", "BLOCKQUOTE", "PRE", "CODE", "STRONG", "EM", "TABLE",
           "THEAD", "TBODY", "TR", "TH", "TD", "DIV", "SPAN", "BUTTON"}  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = tmp_path_factory.mktemp("page")
    running = start_server(
        model_folder(path, template=TEMPLATE), path / "log", environment={"FAKE_STEP_SECONDS": "0.003"}
    )
    try:
        running.wait_healthy()
        yield running
    finally:
        running.stop()
    assert "Traceback" not in running.log.read_text()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert found is not None, f"none of {BROWSERS} is installed"
    with sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def page(browser: Browser, served: RunningServer, complaints: list[str]) -> Iterator[Page]:
    """The page with a key typed in; it may complain of nothing, and may ask nobody but the server."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    made = context.new_page()
    made.on("console", lambda one: complaints.append(one.text) if one.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on("request", lambda one: complaints.append(one.url) if not one.url.startswith(served.url) else None)
    open_page(made, served)
    yield made
    context.close()
    assert [one for one in complaints if "401" not in one] == []


def open_page(page: Page, served: RunningServer) -> None:
    page.goto(served.url)
    until(page, "document.querySelector('#light').dataset.state === 'locked'")
    page.fill("#key", KEY)
    page.press("#key", "Tab")
    until(page, "document.querySelector('#light').dataset.state === 'ready'")


def until(page: Page, holds: str) -> None:
    """Wait for an expression. Ours: the driver's own polls by `eval`, which the page's policy forbids."""
    deadline = time.monotonic() + 30
    while not page.evaluate(holds):
        assert time.monotonic() < deadline, holds
        page.wait_for_timeout(20)


def say(page: Page, text: str) -> Any:
    """Send a message; the answer's element once it is whole."""
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    page.wait_for_selector("#send:visible", timeout=30_000)
    page.wait_for_selector(".turn.assistant:last-child .foot button")
    return page.locator(".turn.assistant").last


def picture(page: Page, name: str) -> None:
    folder = os.environ.get("TENON_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def test_a_streamed_answer_as_markdown(page: Page) -> None:
    text = (
        "## Plan\nUse **bold**, *thin* and `code`.\n\n1. one\n2. two\n\n```python\ndef f():\n    return 1\n```\n"
        "See [the page](https://example.org/a).\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    )
    answer = say(page, text)
    assert answer.locator("h4").inner_text() == "Plan"
    assert answer.locator("strong").inner_text() == "bold" and answer.locator("li").count() == 2
    assert answer.locator("pre").inner_text() == "def f():\n    return 1"
    assert answer.locator("a").get_attribute("href") == "https://example.org/a"
    assert answer.locator("td").all_inner_texts() == ["1", "2"]
    assert "tokens/s" in answer.locator(".foot").inner_text()
    picture(page, "answer")


def test_it_streams_and_stops(page: Page) -> None:
    page.fill("#prompt", "long " * 700)
    page.press("#prompt", "Enter")
    until(page, "document.querySelector('.turn.assistant .said').innerText.length > 100")
    first = page.evaluate("document.querySelector('.turn.assistant .said').innerText.length")
    assert page.locator("#stop").is_visible(), "the answer came in one piece"
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:visible")
    last = page.evaluate("document.querySelector('.turn.assistant .said').innerText.length")
    assert first <= last < 3400
    until(page, "document.querySelector('#running').textContent === '0'")


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_model_writes_is_never_html(page: Page, text: str) -> None:
    answer = say(page, text)
    tags = set(answer.locator(".said *").evaluate_all("all => all.map(one => one.tagName)"))
    assert tags <= ALLOWED, tags
    links = answer.locator(".said a").evaluate_all("all => all.map(one => one.protocol)")
    assert set(links) <= {"http:", "https:"}
    for element in answer.locator(".said *").all():
        names = element.evaluate("one => one.getAttributeNames()")
        assert not [name for name in names if name.startswith("on") or name in ("style", "src", "srcdoc")]
    page.wait_for_timeout(50)
    assert page.evaluate("window.hurt") is None
    shown = answer.locator(".said").inner_text()
    assert "hurt" in shown, "the text is shown, not swallowed"


def test_trusted_types_stand_behind_it(page: Page, complaints: list[str]) -> None:
    """Were a sink ever written into the page, the browser itself would refuse."""
    refused = "() => { try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.message } }"
    assert "TrustedHTML" in page.evaluate(refused)
    complaints.clear()  # the browser's own line about it


def test_hostile_answers_of_every_kind(page: Page, served: RunningServer) -> None:
    """Reasoning, calls, names, errors and the engine's own words, each as a payload."""
    bad = "<img src=x onerror='window.hurt=1'>"
    piece = {
        "choices": [
            {"index": 0, "finish_reason": "tool_calls", "delta": {
                "content": bad, "reasoning": bad,
                "tool_calls": [{"index": 0, "id": bad, "function": {"name": bad, "arguments": bad}}],
            }}
        ]
    }  # fmt: skip
    stream = f"data: {json.dumps(piece)}\r\n\r\n" + f"data: {json.dumps({'error': {'message': bad}})}\n\n"
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=stream),
    )
    facts = {
        "status": bad,
        "model": bad,
        "version": bad,
        "platform": bad,
        "parsers": {"tools": bad, "reasoning": bad},
        "stats": None,
        "kernels": [{"op": bad, "kernel": bad, "source": bad, "uses": bad}],
        "start_seconds": {bad: 1},
    }
    page.route("**/engine", lambda route: route.fulfill(json=facts))
    answer = say(page, "x")
    for place in (".thought", ".call .name", ".call pre", ".said", ".problem"):
        assert bad in (answer.locator(place).first.text_content() or ""), place
    until(page, "document.querySelector('#kernels').innerText.includes('onerror')")
    assert bad in page.locator("#model").inner_text() and page.locator("main img, aside img").count() == 0
    assert page.evaluate("window.hurt") is None


def test_reasoning_and_tool_calls_apart(page: Page) -> None:
    page.fill("[name=tools]", json.dumps(TOOLS))
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    answer = say(page, f"<think>\nWhich city?\n</think>\n\nI look.\n{call}")
    assert "Which city?" in answer.locator(".thought").inner_text() or not answer.locator(".thought[open]").count()
    assert answer.locator(".call .name").inner_text() == "get_weather"
    assert json.loads(answer.locator(".call pre").inner_text()) == {"city": "Oslo"}
    assert answer.locator(".said").inner_text().strip() == "I look."
    picture(page, "tools")
    answer.locator(".call input").fill("4 degrees")
    answer.locator(".call form button").click()
    until(page, "document.querySelectorAll('.turn.assistant').length === 2")
    page.wait_for_selector(".turn.assistant:last-child .foot button")
    assert page.locator(".turn.assistant").last.locator(".said").inner_text() == "4 degrees", (
        "the tool's answer came back"
    )


def test_parameters_reach_the_server(page: Page) -> None:
    sent: list[dict[str, Any]] = []
    page.on("request", lambda one: sent.append(one.post_data_json) if one.method == "POST" else None)
    page.fill("[name=system]", "Be brief.")
    page.fill("[name=temperature]", "0.5")
    page.fill("[name=max_tokens]", "3")
    page.fill("[name=extra]", '{"ignore_eos": true}')
    answer = say(page, "abcdefgh")
    assert answer.locator(".said").inner_text() == "abc"
    assert sent[0]["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "abcdefgh"}]
    assert (sent[0]["temperature"], sent[0]["max_tokens"], sent[0]["ignore_eos"]) == (0.5, 3, True)
    page.fill("[name=tools]", "[")
    answer = say(page, "x")
    assert "cannot be used" in answer.locator(".problem").inner_text() and len(sent) == 1
    assert "no valid JSON" in page.locator("#form-error").inner_text()


def test_errors_are_told(page: Page, complaints: list[str]) -> None:
    page.fill("[name=top_p]", "5")
    answer = say(page, "x")
    assert "top_p" in answer.locator(".problem").inner_text()
    page.fill("[name=top_p]", "")
    page.fill("#key", "wrong")
    answer = say(page, "x")
    assert "API key" in answer.locator(".problem").inner_text()
    assert all("400" in one or "401" in one for one in complaints)
    complaints.clear()  # the browser's lines about those answers


def test_the_engine_is_seen_at_work(page: Page) -> None:
    say(page, "tokens " * 200)
    until(page, "Number(document.querySelector('#rate').textContent) > 0")
    assert page.locator("#kernels td").all_inner_texts() == ["attention", "echo", "fake", "2"]
    assert page.locator("#blocks").inner_text().endswith("of 1000")
    assert page.locator("#facts").inner_text().count("fake") >= 1


def test_keyboard_theme_and_new_chat(page: Page) -> None:
    say(page, "x")
    page.locator("#log").focus()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.type("two")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("lines")
    assert page.input_value("#prompt") == "two\nlines"
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    picture(page, "dark")
    page.keyboard.press("Alt+n")
    assert page.locator(".turn").count() == 0 and page.locator("#welcome").is_visible()
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark", "the theme is kept"
    until(page, "document.querySelector('#light').dataset.state === 'ready'")


def test_on_a_telephone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.wait_for_selector("#engine", state="hidden")
    picture(page, "phone")
    page.click("#open-engine")
    page.wait_for_selector("#engine:visible")
    assert page.get_attribute("#open-engine", "aria-expanded") == "true"
    page.keyboard.press("Escape")
    page.wait_for_selector("#engine", state="hidden")
    say(page, "a-very-long-word" * 60)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for one in page.locator("button:visible").all():
        assert one.bounding_box()["height"] >= 28  # type: ignore[index]


def streams(page: Page, *deltas: dict[str, Any]) -> None:
    """The next answers are these pieces."""
    pieces = [{"choices": [{"index": 0, "delta": one}]} for one in deltas]
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in pieces) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))


@pytest.mark.parametrize(
    "text",
    [
        "a|b\n{}x", "a|b\n--{}x", "-{}x\u2028y", "1.{}x\ry", "#{}x\u2028y", ">{}x", "**{}", "`{}x\n``{}", "***{}x",
        "- {}\n" * 3, "|" + "[a](" * 9 + "{}",
    ],
)  # fmt: skip
def test_no_answer_stalls_the_page(page: Page, text: str) -> None:
    streams(page, {"content": text.replace("{}", " " * 200_000)})
    begun = time.monotonic()
    say(page, "x")
    assert time.monotonic() - begun < 8


def test_a_very_long_word_stays_in_its_place(page: Page) -> None:
    word = "x" * 100_000
    streams(
        page, {"content": f"{word}\n\n`{word}`\n\n# {word}\n- {word}\n\n|a|b|\n|--|--|\n|{word}|c|", "reasoning": word}
    )
    say(page, "x")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    box = page.locator("#prompt").bounding_box()
    assert box is not None and box["x"] + box["width"] <= 1440


def test_a_call_that_broke_off_does_not_end_the_conversation(page: Page) -> None:
    part = {"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": '{"city": "Os'}}
    streams(page, {"content": "I look."}, {"tool_calls": [part]})
    say(page, "x")
    assert page.locator(".call pre").inner_text() == '{"city": "Os'
    page.unroute("**/v1/chat/completions")
    answer = say(page, "go on")
    assert answer.locator(".said").inner_text() == "go on" and answer.locator(".problem").count() == 0


def test_what_was_refused_is_not_said_again(page: Page, complaints: list[str]) -> None:
    answer = say(page, "much too long " * 400)
    assert "the model's context is 4096" in answer.locator(".problem").inner_text()
    sent: list[dict[str, Any]] = []
    page.on("request", lambda one: sent.append(one.post_data_json) if one.method == "POST" else None)
    answer = say(page, "short")
    assert answer.locator(".said").inner_text() == "short" and answer.locator(".problem").count() == 0
    assert sent[0]["messages"] == [{"role": "user", "content": "short"}]
    assert all("400" in one or "401" in one for one in complaints)
    complaints.clear()


def test_one_answer_at_a_time(page: Page) -> None:
    """A tool's result that comes while another answer does waits for the next question."""
    part = {"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": "{}"}}
    streams(page, {"tool_calls": [part]})
    say(page, "x")
    page.unroute("**/v1/chat/completions")
    page.fill("#prompt", "long " * 300)
    page.press("#prompt", "Enter")
    until(page, "document.querySelectorAll('.turn.assistant').length === 2")
    page.fill(".call input", "late")
    page.locator(".call form button").click()
    page.wait_for_selector("#send:visible")
    page.wait_for_selector(".turn.assistant:last-child .foot button")
    assert page.locator(".turn.assistant").count() == 2


def test_an_engine_that_dies_while_the_page_is_open(page: Page, served: RunningServer, complaints: list[str]) -> None:
    page.fill("#prompt", "long " * 700)
    page.press("#prompt", "Enter")
    until(page, "document.querySelector('.turn.assistant .said').innerText.length > 100")
    os.kill(served.engine_pid(), signal.SIGKILL)
    page.wait_for_selector(".turn.assistant:last-child .problem")
    assert page.locator("#send").is_visible(), "another question can be asked"
    page.wait_for_timeout(1500)  # the light is asked for every second
    until(page, "document.querySelector('#light').dataset.state === 'ready'")
    assert say(page, "again").locator(".said").inner_text() == "again"
    assert all("503" in one or "401" in one for one in complaints), complaints
    complaints.clear()


def test_back_and_forward(page: Page, served: RunningServer, complaints: list[str]) -> None:
    page.fill("#prompt", "long " * 700)
    page.press("#prompt", "Enter")
    until(page, "document.querySelector('.turn.assistant .said').innerText.length > 100")
    page.goto(f"{served.url}/health")
    page.go_back()
    until(page, "document.querySelector('#light').dataset.state === 'ready'")
    until(page, "document.querySelector('#running').textContent === '0'")
    assert say(page, "here").locator(".said").inner_text().endswith("here")
    page.go_forward()
    page.go_back()
    until(page, "document.querySelector('#light').dataset.state === 'ready'")
    complaints.clear()  # what the browser says of the stream that it cut


def test_two_tabs(page: Page, served: RunningServer) -> None:
    """A key stays in its tab, and so does an answer."""
    other = page.context.new_page()
    open_page(other, served)  # it asks for a key of its own
    for tab, text in ((page, "first " * 200), (other, "other " * 200)):
        tab.fill("#prompt", text)
        tab.press("#prompt", "Enter")
    for tab, word in ((page, "first"), (other, "other")):
        tab.wait_for_selector(".turn.assistant:last-child .foot button")
        assert tab.locator(".turn.assistant .said").inner_text().split() == [word] * 200
    other.close()


@pytest.mark.parametrize(
    "kept", ["null", "[]", "{{", '"x"', "5", '{"key": 5, "__proto__": {"value": 1}, "length": 9, "system": {}}']
)
def test_whatever_was_kept_the_page_opens(page: Page, served: RunningServer, kept: str) -> None:
    page.evaluate("kept => sessionStorage.setItem('tenon-parameters', kept)", kept)
    page.reload()
    until(page, "document.querySelector('#light').dataset.state === 'locked'")
    page.fill("#key", KEY)
    page.press("#key", "Tab")
    until(page, "document.querySelector('#light').dataset.state === 'ready'")
