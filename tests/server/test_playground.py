"""The playground in a real browser: headless Chromium, driven by Playwright."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daguerre.http.settings import Keys, hash_of
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from server import browsers
from server.browsers import Pages, expect, violations
from server.conftest import running
from server.slowed import slowed

browser, chromium, pytestmark = browsers.browser, browsers.chromium, browsers.needs_browser


@pytest.fixture(scope="module")
def pages(browser: Any) -> Iterator[Pages]:
    some = Pages(browser, lambda page: None)
    yield some
    some.close()


@pytest.fixture
def opened(pages: Pages, server: str) -> Iterator[Callable[..., Any]]:
    """opened(width, height, fragment, **of the context): the page, which must make no error and ask no other host."""
    wrong: list[str] = []
    refused = "Failed to load resource: the server responded with a status of 400"  # the browser notes what is tested
    listeners: dict[str, Callable[[Any], None]] = {
        "console": lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None,
        "pageerror": lambda error: wrong.append(str(error)),
        "request": lambda asked: None if asked.url.startswith((server, "blob:")) else wrong.append(asked.url),
    }
    watched: list[Any] = []

    def make(width: int = 1280, height: int = 900, fragment: str = "", **more: Any) -> Any:
        page = pages.take(width, height, **more)
        watched.append(page)
        for event, listener in listeners.items():
            page.on(event, listener)
        page.goto(f"{server}/{fragment}")
        expect(page.locator("#model option")).to_have_count(2)
        return page

    yield make
    for page in watched:
        page.evaluate("0")  # what it has said until now arrives
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
    pages.give_back()
    assert [text for text in wrong if not text.startswith(refused)] == []


def run(page: Any) -> None:
    page.click("#run")
    done(page)


def done(page: Any) -> None:
    expect(page.locator("#status")).to_contain_text("Done")


def to_the_end(page: Any) -> None:
    """Show the last step, whether the replay runs or is over."""
    page.focus("#scrub")
    page.keyboard.press("End")
    expect(page.locator("#play")).to_have_attribute("aria-label", "Play")


def drafted(page: Any) -> str:
    """The text of the draft, without the end and open positions."""
    return "".join(page.locator(".token:not(.open, .end)").all_text_contents())


def test_a_text_is_typed_and_its_draft_sharpens(opened: Callable[..., Any], trained: Any) -> None:
    page = opened()
    page.fill("#prompt", "def mean(values):\n")
    page.fill("#max_tokens", "24")
    page.select_option("#speed", "40")
    page.click("#run")

    expect(page.locator(".token.open").first).to_be_visible()
    expect(page.locator(".token.drawn").first).to_be_visible()
    done(page)
    expect(page.locator("#play")).to_have_attribute("aria-label", "Play")
    wanted = trained.generate("def mean(values):\n", 24, mode="block", block_size=48, threshold=0.5)
    assert drafted(page) == wanted.text
    assert page.inner_text("[data-stat=forwards]") == str(wanted.usage.forwards)
    assert page.inner_text("[data-stat=tokens]") == str(wanted.usage.completion_tokens)
    levels = page.locator(".token.drawn").evaluate_all("all => all.map((one) => Number(one.dataset.level))")
    probabilities = [2.718281828459045**token.logprob for token in wanted.tokens]
    assert levels == [min(4, int(p * 5)) for p in probabilities]


def test_the_replay_is_scrubbed_and_paused(opened: Callable[..., Any]) -> None:
    page = opened()
    page.fill("#max_tokens", "16")
    run(page)
    to_the_end(page)
    whole = drafted(page)
    steps = int(page.get_attribute("#scrub", "max"))

    page.click("#first")
    expect(page.locator(".token.open")).to_have_count(16)
    page.focus("#scrub")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#place")).to_contain_text(f"step 2 of {steps}")
    assert 0 < page.locator(".token.open").count() < 16
    page.keyboard.press("End")
    assert drafted(page) == whole
    page.select_option("#speed", "2")
    page.click("#play")
    expect(page.locator("#play")).to_have_attribute("aria-label", "Pause")
    page.click("#play")
    place = page.inner_text("#place")
    page.wait_for_timeout(700)
    assert page.inner_text("#place") == place and f"of {steps}" in place


def test_candidates_of_a_token_are_shown_and_pinned(opened: Callable[..., Any]) -> None:
    page = opened()
    page.fill("#prompt", "def f(x):\n")
    page.fill("#max_tokens", "12")
    run(page)
    to_the_end(page)
    page.locator('.token[data-position="6"]').click()

    expect(page.locator("#candidate-list li")).to_have_count(8)
    expect(page.locator("#candidates-heading")).to_be_focused()
    assert "number" in page.inner_text("#candidates-about")
    other = page.locator("#candidate-list li:not(.is-drawn) button").nth(1)
    name = other.get_attribute("aria-label")
    other.click()

    done(page)
    expect(page.locator("#pins li")).to_have_count(1)
    pinned = page.locator(".token.pinned")
    expect(pinned).to_have_count(1)
    shown = pinned.inner_text().replace(" ", "␣").replace("\n", "↵")
    assert f"“{shown}”" in name
    page.click("#pins button")
    expect(page.locator("#pins li")).to_have_count(0)


def test_a_text_is_pinned_by_hand(opened: Callable[..., Any]) -> None:
    page = opened()
    page.click("#shape summary")
    page.fill("#pin-text", "return")
    page.fill("#pin-at", "3")
    page.click("#pin-add")
    page.fill("#max_tokens", "12")
    run(page)

    to_the_end(page)
    expect(page.locator('.token.pinned[data-position="3"]')).to_have_text("return")


def test_selected_tokens_are_denoised_again_and_the_rest_stays(opened: Callable[..., Any]) -> None:
    page = opened()
    page.fill("#prompt", "def f(x):\n")
    page.fill("#max_tokens", "16")
    run(page)
    to_the_end(page)
    before = page.locator(".canvas").text_content()
    page.locator(".token[tabindex]").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator("#selection-text")).to_have_text("3 tokens selected")
    kept = page.locator(".token").all_text_contents()[:4]

    page.click("#redraw")
    done(page)
    to_the_end(page)
    given, after = page.locator(".given").all_text_contents()
    assert given.endswith("".join(kept)) and before.startswith(given) and before.endswith(after)
    assert page.locator(".token").count() and after
    assert page.locator("#selection").is_hidden()


def test_text_is_selected_with_the_mouse(opened: Callable[..., Any]) -> None:
    page = opened()
    page.fill("#max_tokens", "16")
    run(page)
    to_the_end(page)
    first, last = (page.locator(f'.token[data-position="{n}"]').bounding_box() for n in (2, 4))
    page.mouse.move(first["x"] + 1, first["y"] + first["height"] / 2)
    page.mouse.down()
    page.mouse.move(last["x"] + last["width"] - 1, last["y"] + last["height"] / 2, steps=5)
    page.mouse.up()

    expect(page.locator("#selection-text")).to_have_text(re.compile(r"[2-3] tokens selected"))
    expect(page.locator("#candidates")).to_be_hidden()
    page.click("#pin-selection")
    done(page)
    assert page.locator(".token.pinned").count() >= 1


def test_a_schema_gives_valid_json_and_a_pattern_a_match(opened: Callable[..., Any]) -> None:
    page = opened()
    page.select_option("#example", "JSON of a schema")
    page.fill("#rule", '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]')
    expect(page.locator("#rule-error")).to_contain_text("not JSON yet")
    page.locator("#rule").press("End")
    page.locator("#rule").type(', "additionalProperties": false}')
    expect(page.locator("#rule-error")).to_be_empty()
    run(page)
    to_the_end(page)
    expect(page.locator(".check-result")).to_have_text("✓ Valid JSON")
    assert re.fullmatch(r'\{\s*"ok"\s*:\s*(true|false)\s*\}', drafted(page).strip())

    page.select_option("#constraint", "regex")
    page.fill("#rule", "[0-9]{4}-[0-9]{2}")
    run(page)
    to_the_end(page)
    expect(page.locator(".check-result")).to_have_text("✓ Keeps the rule")
    assert re.fullmatch("[0-9]{4}-[0-9]{2}", drafted(page))


def test_two_settings_run_side_by_side(opened: Callable[..., Any]) -> None:
    page = opened()
    page.fill("#max_tokens", "16")
    page.check("#compare")
    page.fill("#a-block_size", "16")
    page.fill("#b-block_size", "16")
    page.fill("#b-steps", "4")
    run(page)

    expect(page.locator("#comparison")).to_be_visible()
    to_the_end(page)
    expect(page.locator(".pane")).to_have_count(2)
    rows = {row.split("\t")[0]: row.split("\t")[1:] for row in page.locator("#comparison tbody tr").all_inner_texts()}
    assert [value.strip() for value in rows["Tokens"]] == ["16", "16"]
    assert 4 <= int(rows["Forwards"][1]) <= 5 < int(rows["Forwards"][0])
    assert rows["Time"][0].strip().endswith("s")
    page.screenshot()


def test_the_other_kinds_run(opened: Callable[..., Any]) -> None:
    page = opened()
    for example, gaps in (("Fill a gap", 1), ("Template with two gaps", 2), ("Rewrite a part", 1)):
        page.select_option("#example", example)
        run(page)
        to_the_end(page)
        expect(page.locator(".gap")).to_have_count(gaps)
    assert "class Point" in page.locator(".given").first.inner_text()


def test_a_part_is_marked_for_an_edit(opened: Callable[..., Any]) -> None:
    page = opened()
    page.check("[name=kind][value=edit]", force=True)
    page.fill("#text", "😀 = 1 + 2\n")
    page.click("#run")
    expect(page.locator("#error")).to_contain_text("Nothing is marked")
    page.focus("#text")
    page.evaluate("document.querySelector('#text').setSelectionRange(5, 10)")
    page.click("#mark-span")
    expect(page.locator("#spans li")).to_contain_text("“1 + 2”")
    page.select_option("#a-mode", "block")
    run(page)
    assert page.locator(".given").all_text_contents() == ["😀 = ", "\n"]


def test_an_instruction_edits_the_text(opened: Callable[..., Any]) -> None:
    page, sent = opened(), list[Any]()

    def answered(route: Any) -> None:
        sent.append(route.request.post_data_json)
        route.fulfill(json={"choices": [{"message": {"content": "```\nb = 2\nb += 1\n```"}}]})

    page.route("**/v1/edit/completions", answered)
    page.check("[name=kind][value=edit]", force=True)
    page.fill("#text", "a = 1\nb = 1\nc = 1\n")
    page.evaluate("document.querySelector('#text').setSelectionRange(8, 9)")
    page.click("#mark-span")
    page.fill("#instruction", "Make it 2.")
    page.click("#run")
    expect(page.locator("#text")).to_have_value("a = 1\nb = 2\nb += 1\nc = 1\n")
    (body,) = sent
    content = "a = 1\n<|code_to_edit|>\nb = 1\n<|/code_to_edit|>\nc = 1"
    said = f"<|current_file_content|>\n{content}\n<|/current_file_content|>"
    assert body["instruction"] == "Make it 2." and body["messages"] == [{"role": "user", "content": said}]
    page.click("#run")  # the whole text, as nothing is marked any more
    expect(page.locator("#text")).to_have_value("b = 2\nb += 1\n")


def test_a_link_has_the_whole_request(opened: Callable[..., Any]) -> None:
    page = opened()
    page.select_option("#example", "JSON of a schema")
    page.fill("#prompt", "# ünïcode 😀\n")
    page.fill("#a-temperature", "0.7")
    page.fill("#pin-text", '"')
    page.click("#pin-add")
    page.click("#share")
    fragment = page.evaluate("location.hash")

    other = opened(fragment=fragment)
    for field in ("#prompt", "#rule", "#constraint", "#a-temperature", "#max_tokens"):
        assert other.input_value(field) == page.input_value(field)
    expect(other.locator("#pins li")).to_contain_text('“"” at 0')
    expect(opened(fragment="#s=broken").locator("#prompt")).to_have_value(re.compile("class Config"))


def test_the_call_is_shown_as_code(opened: Callable[..., Any], server: str, tmp_path: Path, capsys: Any) -> None:
    page = opened()
    page.fill("#prompt", "print('it's')\n")
    page.fill("#max_tokens", "8")
    run(page)
    to_the_end(page)
    page.click("#code-card summary")
    text = drafted(page)

    codes = {}
    for name in ("curl", "Python", "Python, openai", "JavaScript"):
        page.get_by_role("button", name=name, exact=True).click()
        codes[name] = page.inner_text("#code")
    assert f"{server}/v1/daguerre/requests" in codes["curl"] and "it'\\''s" in codes["curl"]
    assert "client.completions.create" in codes["Python, openai"] and '"block_size": 48' in codes["Python, openai"]
    exec(compile(codes["Python"], "snippet", "exec"), {})
    assert capsys.readouterr().out == text + "\n"


def test_errors_are_said_in_plain_words(opened: Callable[..., Any]) -> None:
    page = opened()
    page.fill("#a-steps", "500")
    page.select_option("#a-policy", "confidence")
    page.fill("#a-threshold", "")

    with page.expect_response("**/v1/daguerre/requests"):
        page.click("#run")
    expect(page.locator("#error")).to_contain_text("steps=500 is more than")
    page.fill("#a-steps", "")
    run(page)
    expect(page.locator("#error")).to_be_hidden()


def test_the_server_asks_for_a_key_and_takes_it(browser: Any, serve: Callable[..., Any]) -> None:
    client = serve(keys=Keys(names={hash_of("secret"): "me"}))
    page = browser.new_context().new_page()
    page.set_default_timeout(browsers.WAIT)
    page.goto(str(client.base_url))
    expect(page.locator("#error")).to_contain_text("API key")
    page.click("text=Connection")
    page.fill("#key", "secret")
    page.locator("#key").press("Tab")
    expect(page.locator("#error")).to_be_hidden()
    page.fill("#max_tokens", "4")
    run(page)
    page.context.close()


def test_a_run_by_the_keyboard_alone(opened: Callable[..., Any]) -> None:
    page = opened()
    page.focus("#prompt")
    page.keyboard.press("Control+a")
    page.keyboard.type("def f(x):\n")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("12")
    page.keyboard.press("Control+Enter")
    done(page)

    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('token')"):
            break
    else:
        pytest.fail("the tokens are not reached by the Tab key")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.position") >= "2"
    page.keyboard.press("Enter")
    expect(page.locator("#candidate-list li")).to_have_count(8)
    page.keyboard.press("Escape")
    expect(page.locator("#candidates")).to_be_hidden()
    assert page.evaluate("document.activeElement.classList.contains('token')")
    page.focus("#play")
    page.keyboard.press("Enter")
    expect(page.locator("#place")).to_contain_text("step")


def in_both_schemes(page: Any) -> list[str]:
    """What axe finds in light colors, and in dark ones of those that it looks at."""
    page.emulate_media(color_scheme="light")
    found = violations(page)
    page.emulate_media(color_scheme="dark")
    return found + violations(page, "color-contrast")


def test_axe_finds_nothing_serious(opened: Callable[..., Any]) -> None:
    page = opened(bypass_csp=True)  # axe is put into the page as a script
    assert in_both_schemes(page) == []
    page.check("#compare")
    page.click("#shape summary")
    page.click("#code-card summary")
    page.click("#table-card summary")
    page.fill("#max_tokens", "16")
    page.fill("#b-steps", "4")
    page.fill("#pin-text", "return")
    page.click("#pin-add")
    run(page)
    to_the_end(page)
    page.locator(".token").nth(3).click()
    expect(page.locator("#candidate-list li")).to_have_count(8)

    assert in_both_schemes(page) == []


def test_the_theme_follows_the_system_and_the_button(opened: Callable[..., Any]) -> None:
    def background(page: Any) -> int:
        red = re.match(r"rgb\((\d+)", page.evaluate("getComputedStyle(document.body).backgroundColor"))
        return int(red[1])

    page = opened(color_scheme="dark")
    assert background(page) < 60
    page.click("#theme")
    assert background(page) > 200 and "light" in page.get_attribute("#theme", "aria-label")
    page.reload()
    expect(page.locator("#theme")).to_have_text("Theme: light")
    assert background(page) > 200
    page.click("#theme")
    assert background(page) < 60
    assert background(opened(color_scheme="light")) > 200


def test_nothing_is_wider_than_the_page(opened: Callable[..., Any]) -> None:
    page = opened(380, 800)
    page.check("#compare")
    for summary in page.locator("#request-view summary").all():
        summary.click()
    page.fill("#prompt", "x" * 300)
    page.fill("#max_tokens", "16")
    page.fill("#b-steps", "4")
    run(page)
    to_the_end(page)
    page.locator(".token").nth(2).click()
    expect(page.locator("#candidate-list li")).to_have_count(8)

    for width in (380, 760, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.click("#view-chat")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.click("#view-request")


def test_less_motion_is_honored(opened: Callable[..., Any]) -> None:
    page = opened(reduced_motion="reduce")
    page.select_option("#speed", "2")
    page.fill("#max_tokens", "24")
    run(page)

    expect(page.locator("#play")).to_have_attribute("aria-label", "Play")
    assert page.locator(".token.open").count() == 0
    assert page.evaluate("getComputedStyle(document.querySelector('.token')).animationName") == "none"


def test_the_table_says_what_the_colors_say(opened: Callable[..., Any]) -> None:
    page = opened()
    page.fill("#max_tokens", "8")
    run(page)
    to_the_end(page)
    page.click("#table-card summary")

    rows = page.locator("#token-table tbody tr")
    expect(rows).to_have_count(page.locator(".token").count())
    assert re.search(r"\d+%", rows.nth(2).inner_text()) and "drawn" in rows.nth(2).inner_text()
    label = page.locator(".token.drawn").nth(2).get_attribute("aria-label")
    assert re.search(r"position \d+: .*, [<>]?\d+%, forward \d+", label)


def test_a_running_request_is_pinned(browser: Any, tiny: Any) -> None:
    fast = threading.Event()
    with running(make_app(ModelPool({"tiny": lambda: slowed(tiny, fast)}))) as url:
        page = browser.new_context().new_page()
        page.set_default_timeout(browsers.WAIT)
        page.goto(url)
        page.select_option("#speed", "0")
        page.fill("#max_tokens", "120")
        page.fill("#a-threshold", "1")
        page.check("#changeable")
        page.click("#run")
        page.click("#play")  # pauses: what moves is hard to hit
        page.locator('.token[data-position="100"]').click()
        expect(page.locator("#candidates-about")).to_contain_text("It is open")
        button = page.locator("#candidate-list button").first
        text = re.search("“(.*)”", button.get_attribute("aria-label"))[1]
        button.click()

        expect(page.locator("#status")).to_have_text("Changed.")
        fast.set()
        done(page)
        to_the_end(page)
        pinned = page.locator('.token.pinned[data-position="100"]')
        assert pinned.inner_text().replace(" ", "␣").replace("\n", "↵") == text
        assert page.locator("#pins li").count() == 0  # it was this run's, not the next one's
        page.context.close()


STOP_AT_FIRST = """() => new MutationObserver((_, observer) => {
    if (document.querySelector(".token")) { observer.disconnect(); document.querySelector("#stop").click(); }
}).observe(document.body, {childList: true, subtree: true})"""


def test_a_running_request_is_stopped(opened: Callable[..., Any]) -> None:
    """By the page itself, at the first token: on a busy machine the text may be done before another process clicks."""
    page = opened()
    page.fill("#max_tokens", "600")
    page.fill("#a-block_size", "8")
    page.fill("#a-threshold", "1")
    page.evaluate(STOP_AT_FIRST)
    page.click("#run")

    expect(page.locator("#status")).to_have_text("Stopped.")
    expect(page.locator("#stop")).to_be_disabled()


def test_a_conversation_is_asked_edited_written_again_and_gone_on_from(
    opened: Callable[..., Any], trained: Any
) -> None:
    """With a model that continues a transcript, which is greedy: the same question has the same answer."""
    page = opened()
    page.click("#view-chat")
    expect(page.locator("#request-view")).to_be_hidden()
    expect(page.locator("#chat-about")).to_contain_text("was not trained to converse")
    page.fill("#chat-system", "Be brief.")
    page.fill("#chat-tokens", "12")
    page.fill("#chat-text", "x = 1")
    page.press("#chat-text", "Enter")
    said = page.locator("#chat-log li .said")

    def answered(num: int) -> list[str]:
        expect(page.locator("#chat-status")).to_contain_text("Done")
        expect(said).to_have_count(num)
        texts: list[str] = said.all_text_contents()
        return texts

    first = answered(2)
    assert first[0] == "x = 1" and first[1]
    page.click("#chat-log li:nth-child(2) >> text=Regenerate")
    assert answered(2) == first
    page.fill("#chat-text", "y = 2")
    page.click("#chat-send")
    longer = answered(4)
    assert longer[:2] == first
    page.click("#chat-log li:nth-child(2) >> text='Go on from here'")
    expect(said).to_have_count(2)
    page.click("#chat-log li:nth-child(1) >> text=Edit")
    page.fill("#chat-log textarea", "import os")
    page.click("text='Save and ask'")
    assert answered(2)[0] == "import os"
    page.click("#chat-log li:nth-child(2) >> text=Edit")
    page.fill("#chat-log textarea", "import sys")
    page.click("#chat-log >> text=Save")
    expect(said.nth(1)).to_have_text("import sys")
    page.click("#chat-view summary >> text='Tools and format'")
    page.fill("#chat-tools", "[{")
    page.fill("#chat-text", "z")
    page.click("#chat-send")
    expect(page.locator("#chat-error")).to_contain_text("The tools are not JSON yet")
    assert violations(page) == []
    page.click("#chat-clear")
    expect(said).to_have_count(0)


def test_a_call_in_a_chat_gets_its_result_and_a_schema_its_json(opened: Callable[..., Any]) -> None:
    """What a server with a model that calls would stream; the page sends the result back with its call's id."""
    page = opened()
    page.click("#view-chat")
    sent: list[Any] = []

    def answer(route: Any) -> None:
        sent.append(route.request.post_data_json)
        call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
        more = {"index": 0, "type": "function", "function": {"arguments": '{"city": "Oslo"}'}}
        deltas: list[Any] = [{"reasoning_content": "I ask."}, {"tool_calls": [call]}, {"tool_calls": [more]}]
        deltas = deltas if len(sent) == 1 else [{"content": "It snows."}]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks.append({"choices": [], "usage": {"completion_tokens": 5}})
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        route.fulfill(body=body, content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    page.click("#chat-view summary >> text='Tools and format'")
    page.fill("#chat-tools", '[{"type": "function", "function": {"name": "weather"}}]')
    page.fill("#chat-schema", '{"type": "object"}')
    page.fill("#chat-text", "The weather in Oslo?")
    page.click("#chat-send")
    expect(page.locator(".call code")).to_have_text('weather({"city": "Oslo"})')
    expect(page.locator(".thought:not([hidden]) p")).to_have_text("I ask.")
    page.fill(".call input", "-3 degrees")
    page.click("text='Send the result'")
    expect(page.locator("#chat-log li .said").last).to_have_text("It snows.")
    assert sent[0]["tools"] and sent[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}
    asked, result = sent[1]["messages"][-2:]
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "-3 degrees"}
    assert asked["tool_calls"][0]["id"] == "call_1"


def test_controls_that_a_model_does_not_have_are_not_there(opened: Callable[..., Any]) -> None:
    page = opened()

    def autoregressive(route: Any) -> None:
        listed = route.fetch().json()
        own = {"modes": ["ar", "speculative", "beam"], "gaps": "one", "chat_template": True, "chat_sampling": {}}
        for one in listed["data"]:
            one["daguerre"] = own
        route.fulfill(json=listed)

    page.route("**/v1/models", autoregressive)
    page.reload()
    expect(page.locator("#chat-view")).to_be_visible()  # a model that converses begins there
    page.click("#view-request")
    expect(page.locator("#a-mode option")).to_have_text(["automatic", "ar", "speculative", "beam"])
    expect(page.locator("#a-policy, #a-steps, #a-threshold, #a-effort")).to_have_count(0)
    names = page.locator("#example option").all_text_contents()
    assert "Template with a gap" in names and not {"Template with two gaps", "Careful or quick?"} & set(names)
    run(page)  # as it stands
