"""One headless Chromium for all tests of a process, driven by Playwright, and pages of it that are used again."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FOUND = next((path for path in map(shutil.which, BROWSERS) if path), None)
LACKING = next(
    (f"{name} is not installed: pip install 'daguerre[test]'" for name in ("playwright", "axe_playwright_python")
     if find_spec(name) is None),
    None if FOUND else "no Chromium: apt-get install chromium",
)  # fmt: skip
needs_browser = pytest.mark.skipif(LACKING is not None, reason=LACKING or "")
WAIT = 60_000
"""Milliseconds that anything may take on a busy machine."""


class Chromium:
    """The browser. While it is awake, asyncio sees Playwright's event loop as running in this thread, even between two
    calls; no other loop can run here until `rest()`.
    """

    def __init__(self) -> None:
        from playwright.sync_api import expect, sync_playwright

        expect.set_options(timeout=WAIT)
        self._playwright = sync_playwright().start()
        sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
        self.browser = self._playwright.chromium.launch(executable_path=FOUND, args=sandbox)
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        asyncio._set_running_loop(self._loop)

    def rest(self) -> None:
        asyncio._set_running_loop(None)

    def close(self) -> None:
        self.wake()
        self.browser.close()
        self._playwright.stop()


_chromium = cache(Chromium)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The browser of this process, whichever module asks first."""
    yield _chromium()
    if _chromium.cache_info().currsize:
        _chromium().close()
        _chromium.cache_clear()


@pytest.fixture(scope="module")
def browser(chromium: Chromium) -> Iterator[Any]:
    """Playwright's browser."""
    chromium.wake()
    yield chromium.browser
    chromium.rest()


class Pages:
    """Pages that are used again, which is four times as fast as to make new ones; each has a context of its own."""

    def __init__(self, browser: Any, prepare: Callable[[Any], None]) -> None:
        self._browser, self._prepare = browser, prepare
        self._free, self._used = dict[str, list[Any]](), list[tuple[str, Any]]()

    def take(self, width: int, height: int, **options: Any) -> Any:
        """An empty page whose context has these options."""
        free = self._free.setdefault(str(options), [])
        if free:
            page = free.pop()
            page.set_viewport_size({"width": width, "height": height})
        else:
            context = self._browser.new_context(viewport={"width": width, "height": height}, **options)
            page = context.new_page()
            page.set_default_timeout(WAIT)
            self._prepare(page)
        self._used.append((str(options), page))
        return page

    def give_back(self) -> None:
        """Empty the pages that were taken, for the next test."""
        while self._used:
            options, page = self._used.pop()
            page.unroute_all(behavior="ignoreErrors")
            page.evaluate("localStorage.clear(), sessionStorage.clear()")
            page.goto("about:blank")
            self._free[options].append(page)

    def close(self) -> None:
        for page in (page for free in self._free.values() for page in free):
            page.context.close()


def expect(what: Any) -> Any:
    """Playwright's assertions, which wait."""
    from playwright.sync_api import expect

    return expect(what)


def violations(page: Any, *rules: str) -> list[str]:
    """What axe finds, as far as it is serious; by these rules, or by all."""
    from axe_playwright_python.sync_playwright import Axe

    options: dict[str, Any] = {"resultTypes": ["violations"]}
    options |= {"runOnly": {"type": "rule", "values": list(rules)}} if rules else {}
    return [
        f"{one['id']}: {one['help']}: {one['nodes'][0]['html']}"
        for one in Axe().run(page, options=options).response["violations"]
        if one["impact"] in ("serious", "critical")
    ]
