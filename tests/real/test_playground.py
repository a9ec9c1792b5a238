"""The playground with the shipped models and with published ones: each tab's first example, without a setting touched.

DAGUERRE_PICTURES, a folder, keeps a picture of each result: those in docs/playground are of DAGUERRE_REAL_FULL=1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import daguerre
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from real.conftest import FULL
from real.files import bring
from server import browsers
from server.browsers import Pages, expect
from server.conftest import running

browser, chromium, pytestmark = browsers.browser, browsers.chromium, browsers.needs_browser
NAMES = ["daguerre", "concepts", "smollm2", *(["coder-0.5b"] if FULL else [])]
KINDS = ("generate", "infill", "fill", "edit")
WAIT = 300_000
"""Milliseconds that an answer may take on a busy machine."""


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    pool = ModelPool({name: lambda name=name: load(name) for name in NAMES})
    pages = Pages(browser, lambda page: None)
    with pytest.MonkeyPatch.context() as impatient, running(make_app(pool)) as url:
        impatient.setattr("daguerre.server.streams.SILENCE", 0.2)  # so that streams have comments
        page = pages.take(1280, 1000)
        page.goto(url)
        expect(page.locator("#model option")).to_have_count(len(NAMES))
        yield page
        pages.give_back()
        pages.close()


def load(name: str) -> daguerre.Model:
    return daguerre.load() if name == "daguerre" else daguerre.load(name if name == "concepts" else bring(name))


def keep(page: Any, name: str, what: str) -> None:
    if folder := os.environ.get("DAGUERRE_PICTURES"):
        page.locator("main:not([hidden]) .results").screenshot(path=Path(folder) / f"{name}-{what}.png")


@pytest.mark.parametrize("name", NAMES)
def test_the_first_example_of_each_tab_gives_a_result(page: Any, name: str, subtests: pytest.Subtests) -> None:
    page.click("#view-request")
    page.select_option("#model", name)
    expect(page.locator("#run")).to_be_enabled(timeout=WAIT)  # the server has loaded it
    examples = [text for text in page.locator("#example option").all_text_contents() if text != "Choose…"]
    first: dict[str, str] = {}
    for example in examples:
        page.select_option("#example", example)
        first.setdefault(page.locator("[name=kind]:checked").get_attribute("value"), example)
    assert set(first) == set(KINDS), "every model has an example on each tab"
    for kind, example in first.items():
        with subtests.test(example):
            page.select_option("#example", example)
            page.click("#run")
            expect(page.locator("#status")).to_contain_text("Done", timeout=WAIT)
            page.focus("#scrub")
            page.keyboard.press("End")
            assert "".join(page.locator(".token.drawn:not(.end)").all_text_contents()).strip()
            keep(page, name, kind)
    with subtests.test("chat"):
        page.click("#view-chat")
        page.select_option("#chat-model", name)
        page.fill("#chat-text", "What is the capital of Norway?")
        page.click("#chat-send")
        expect(page.locator("#chat-status")).to_contain_text("Done", timeout=WAIT)
        answer = page.locator("#chat-log li .said").last.inner_text()
        assert answer.strip() and (name != "coder-0.5b" or "Oslo" in answer)
        keep(page, name, "chat")
        page.click("#chat-clear")
