"""The router's status page in a real browser: it shows what `/status` and `/metrics` say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import pytest

from daguerre.http.pages import HEADERS
from daguerre.http.settings import Keys, hash_of
from daguerre.router.app import make_app, make_router
from daguerre.router.store import Store
from router.test_proxy import SAY, ask, get, routed
from routing import backend, config
from scripted_backends import Reply, Scripted
from server import browsers
from server.browsers import Pages, expect, violations
from server.conftest import running

browser, chromium = browsers.browser, browsers.chromium
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
LOADS = "Failed to load resource"
HOSTILE = "<img src=x onerror=alert(1)>" + "a-long-name-" * 12
NUMBERS = {"requests": 0, "failed": 0, "cost": 0.0, "p50_ms": None, "p95_ms": None, "in_time": None}
IDLE = NUMBERS | {"model": "m", "circuit": "closed", "in_flight": 0, "most_in_flight": 8, "cold": False}
BUSY = {"requests": 1234, "failed": 1, "cost": 0.0123, "p50_ms": 8.25, "p95_ms": 1234.0, "in_time": 0.9999}
ENDED = {
    "id": "route_1",
    "time": 1_700_000_000.0,
    "step": "tool_arguments",
    "backend": "fast",
    "rule": "cost",
    "reason": HOSTILE,
    "status": 502,
    "ms": 61_000.0,
    "cost": None,
    "attempts": 3,
}
FULL: dict[str, Any] = {
    "began": 1_700_000_000.0,
    "config": "0123456789abcdef",
    "backends": {
        "fast": IDLE | BUSY | {"model": HOSTILE, "in_flight": 8},
        "hosted-10": IDLE | {"circuit": "half open"},
        "hosted-9": IDLE | {"circuit": "open", "cold": True},
        "none": NUMBERS | {"requests": 2, "failed": 2},
    },
    "steps": {"tool_arguments": BUSY, "plan": BUSY | {"in_time": 0.9}},
    "rules": {"cost": 30, "none": 10},
    "last": [ENDED | {"id": f"route_{place}"} for place in range(50)],
}
COUNTED = """# HELP daguerre_route_slo_total Requests with an SLO.
daguerre_route_slo_total{met="yes",step="plan"} 3.0
daguerre_route_slo_total{met="yes",step="facts"} 5.0
daguerre_route_slo_total{met="no",step="plan"} 2.0
daguerre_route_attempts_total{backend="fast",outcome="ok"} 3.0
daguerre_route_attempts_total{backend="fast",outcome="status"} 1.0
daguerre_route_cache_total{result="hit"} 1.0
daguerre_route_cache_total{result="near"} 1.0
daguerre_route_cache_total{result="miss"} 6.0
"""


@pytest.fixture(scope="module")
def pages(browser: Any) -> Iterator[Pages]:
    some = Pages(browser, lambda page: page.clock.install())
    yield some
    some.close()


@pytest.fixture
def opened(pages: Pages) -> Iterator[Callable[..., Any]]:
    """opened(url, width, height, status, **of the context): the page, which must make no error and ask no other host.
    status: what the router says instead of its own; loads: whether requests may fail.
    """
    wrong: list[str] = []
    watched: list[tuple[Any, dict[str, Callable[[Any], None]]]] = []

    def make(
        url: str, width: int = 1280, height: int = 900, status: Any = None, loads: bool = False, **more: Any
    ) -> Any:
        def said(message: Any) -> None:
            if message.type in ("error", "warning") and not (loads and message.text.startswith(LOADS)):
                wrong.append(message.text)

        page = pages.take(width, height, **more)
        listeners: dict[str, Callable[[Any], None]] = {
            "console": said,
            "pageerror": lambda error: wrong.append(str(error)),
            "request": lambda asked: None if asked.url.startswith(url) else wrong.append(asked.url),
            "dialog": lambda dialog: wrong.append(dialog.message),
        }
        watched.append((page, listeners))
        for event, listener in listeners.items():
            page.on(event, listener)
        if status is not None:
            page.route("**/status", lambda route: route.fulfill(json=status))
            page.route("**/metrics", lambda route: route.fulfill(body=COUNTED))
        page.goto(url)
        return page

    yield make
    for page, listeners in watched:
        page.evaluate("0")  # what it has said until now arrives
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
    pages.give_back()
    assert wrong == []


@pytest.fixture(scope="module")
def idle() -> Iterator[str]:
    """The address of a router that nobody asks."""
    with routed(Scripted(), Scripted()) as (url, _):
        yield url


def cells(page: Any, table: str, row: int = 0) -> list[str]:
    """The texts of a row of a table, with a space between elements."""
    script = """row => [...row.children].map((cell) => {
      const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), texts = [];
      while (walker.nextNode()) texts.push(walker.currentNode.data);
      return texts.join(" ");
    })"""
    return [str(text) for text in page.locator(f"#{table} tbody tr").nth(row).evaluate(script)]


def later(page: Any) -> None:
    """Two seconds, at once."""
    page.clock.run_for(2000)


def tile(page: Any, name: str) -> str:
    found = page.locator(f".tile[data-key='{name}'] dd").first.inner_text()
    assert isinstance(found, str)
    return found


@browsers.needs_browser
def test_requests_appear_while_the_page_is_open(opened: Callable[..., Any]) -> None:
    one, two = Scripted(), Scripted()
    with routed(one, two, steps={"plan": {"slo_ms": 50_000}}) as (url, log):
        page = opened(url)
        expect(page.locator("#example")).to_contain_text(f"curl {url}/v1/chat/completions")
        expect(page.locator("#last-card")).to_be_hidden()
        assert cells(page, "backends")[:4] == ["a model-0", "ok", "0 of 64", "0"]
        ask(url)
        log.of_requests(1)
        later(page)
        expect(page.locator("#last tbody tr")).to_have_count(1)
        expect(page.locator("#empty")).to_be_hidden()
        page.evaluate("document.querySelector('#last tbody tr').mark = 'kept'")
        ask(url)
        ask(url, SAY | {"messages": [{"role": "user", "content": [PICTURE]}]})
        log.of_requests(3)
        later(page)
        expect(page.locator("#last tbody tr")).to_have_count(3)
        found = get(f"{url}/status").json()
        refused = found["last"][0]
        shown = [cells(page, "last", row) for row in range(3)]
        marks = page.locator("#last tbody tr").evaluate_all("rows => rows.map((row) => row.mark ?? '')")
        assert marks == ["", "", "kept"], "a row that stays is not made again"
        assert shown[0][1:5] == ["plan", "–", refused["reason"], "400"] and shown[0][7] == "0"
        assert shown[1][1:3] == ["plan", "a"] and shown[1][3].startswith("it costs least") and shown[1][4] == "200"
        assert cells(page, "backends", 0)[3:5] == ["2", "0%"]
        assert cells(page, "backends", 2)[:4] == ["no backend none could serve it", "", "–", "1"]
        assert cells(page, "steps")[:3] == ["plan", "3", "33.3%"]
        assert [tile(page, name) for name in ("Requests", "In flight", "Failed", "In time")] == [
            "3",
            "0",
            "33.3%",
            "100%",
        ]
        assert page.locator("#rules li").all_inner_texts() == ["Cost\n2 (66.7%)", "No backend could\n1 (33.3%)"]


@browsers.needs_browser
def test_a_backend_that_fails_is_shown_as_such(opened: Callable[..., Any]) -> None:
    with routed(Scripted(reply=lambda body: Reply(500, b"{}")), Scripted(), circuit={"cool": 60.0}) as (url, log):
        for number in range(3):
            assert (
                ask(url, SAY | {"messages": [{"role": "user", "content": str(number)}]}).headers["x-route-backend"]
                == "b"
            )
        log.of_requests(3)
        page = opened(url)
        expect(page.locator("#last tbody tr")).to_have_count(3)
        assert [cells(page, "backends", row)[1:5] for row in (0, 1)] == [
            ["circuit open", "0 of 64", "0", "100%"],
            ["ok", "0 of 64", "3", "0%"],
        ]
        assert cells(page, "last")[7] == "2"


@browsers.needs_browser
def test_every_number_of_a_status_has_its_place(opened: Callable[..., Any], idle: str) -> None:
    page = opened(idle, status=FULL)
    expect(page.locator("#last tbody tr")).to_have_count(50)
    fast, nine, ten, none = (cells(page, "backends", row) for row in range(4))
    assert fast == [f"fast {HOSTILE}", "ok full", "8 of 8", "1,234", "25.0%", "8.3 ms", "1.23 s", "", "99.9%", "$0.012"]
    assert nine == ["hosted-9 m", "circuit open cold", "0 of 8", "0", "–", "–", "–", "", "–", "$0.00"]
    assert ten[:2] == ["hosted-10 m", "half open"] and none[:2] == ["no backend none could serve it", ""]
    assert cells(page, "last")[1:] == ["tool arguments", "fast", HOSTILE, "502", "61.0 s", "–", "3"]
    assert [cells(page, "steps", row)[5] for row in (0, 1)] == ["90.0%", "99.9%"]
    assert [tile(page, name) for name in ("In time", "From the cache")] == ["80.0%", "25.0%"]
    assert page.locator("img").count() == 1, "what a status says is text, never markup"
    late = page.locator("#steps tbody tr").first.locator("td").nth(4)
    assert "bad" in late.get_attribute("class")


@browsers.needs_browser
def test_a_request_that_another_backend_answered_says_which_was_chosen(opened: Callable[..., Any], idle: str) -> None:
    said = [ENDED | {"chosen": "slow", "reason": "why"}, ENDED | {"id": "2", "chosen": "fast", "reason": "why"}]
    page = opened(idle, status=FULL | {"last": said})
    expect(page.locator("#last tbody tr")).to_have_count(2)
    assert [cells(page, "last", row)[3] for row in (0, 1)] == ["slow was chosen first: why", "why"]


@browsers.needs_browser
def test_a_router_that_does_not_answer_is_said_and_its_numbers_stay(opened: Callable[..., Any], idle: str) -> None:
    page = opened(idle, loads=True)
    expect(page.locator("#backends tbody tr")).to_have_count(2)
    expect(page.locator("#notice")).to_be_hidden()
    page.route("**/status", lambda route: route.abort())
    later(page)
    expect(page.locator("#notice")).to_contain_text("does not answer")
    expect(page.locator("#notice")).to_contain_text("The numbers below are from")
    expect(page.locator("#backends tbody tr")).to_have_count(2)
    page.unroute("**/status")
    page.route("**/status", lambda route: route.fulfill(status=503, json={"error": {"message": "it is stopping"}}))
    later(page)
    expect(page.locator("#notice")).to_contain_text("an error: it is stopping.")
    page.unroute("**/status")
    later(page)
    expect(page.locator("#notice")).to_be_hidden()


@browsers.needs_browser
def test_a_key_is_asked_for_and_kept_in_memory_alone(opened: Callable[..., Any]) -> None:
    given, store = config(backend("a")), Store(None)
    keys = Keys(names={hash_of("secret"): "me"})
    router = make_router(given, store, lambda reading, body: {"plan": 1.0}, lambda line: None, keys)
    with running(make_app(router, store, lambda line: None)) as url:
        assert get(f"{url}/status").status_code == 401
        page = opened(url, loads=True)
        expect(page.locator("#notice")).to_have_text("The router asks for an API key.")
        expect(page.locator("#key")).to_be_focused()
        expect(page.locator("#numbers")).to_be_hidden()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_have_text("The router does not know this key.")
        page.fill("#key", "secret")
        with page.expect_request("**/status") as asked:
            page.keyboard.press("Enter")
        assert asked.value.headers["authorization"] == "Bearer secret"
        expect(page.locator("#backends tbody tr")).to_have_count(1)
        expect(page.locator("#key-form")).to_be_hidden()
        kept = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])")
        assert "secret" not in kept and page.input_value("#key") == ""
        page.reload()
        expect(page.locator("#notice")).to_have_text("The router asks for an API key.")


@browsers.needs_browser
def test_a_page_that_is_paused_asks_nothing(opened: Callable[..., Any], idle: str) -> None:
    page = opened(idle)
    expect(page.locator("#backends tbody tr")).to_have_count(2)
    page.click("#pause")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for _ in range(3):
        later(page)
    page.wait_for_timeout(100)
    assert asked == []
    with page.expect_request("**/status"):
        page.get_by_role("button", name="Continue").click()


@browsers.needs_browser
def test_curves_are_drawn_and_begin_anew_with_the_router(opened: Callable[..., Any], idle: str) -> None:
    began = iter([1.0, 1.0, 1.0])
    page = opened(idle)
    expect(page.locator("#backends tbody tr")).to_have_count(2)
    page.route("**/status", lambda route: route.fulfill(json=FULL | {"began": next(began, 2.0)}))
    path = page.locator("#backends tbody tr").first.locator("path")
    for places in (1, 2, 3, 1):
        later(page)
        expect(path).to_have_attribute("d", re.compile(f"^M[^L]*(L[^L]*){{{places - 1}}}$"))
    assert page.locator("#backends tbody tr").nth(1).locator("path").get_attribute("d") == ""


WORDS = {
    "share(1)": "100%",
    "share(0.99996)": "99.9%",
    "share(0.00001)": "0.1%",
    "share(0)": "0%",
    "share(0 / 0)": "–",
    "milliseconds(null)": "–",
    "milliseconds(9.96)": "10.0 ms",
    "milliseconds(999.4)": "999 ms",
    "milliseconds(999.6)": "1.00 s",
    "milliseconds(150000)": "2.5 min",
    "dollars(0)": "$0.00",
    "dollars(0.0000021)": "$0.0000021",
    "dollars(1234.5)": "$1,234.50",
    "rate(0.04)": "0.04",
    "rate(250.4)": "250",
    "since(Date.now() / 1000 - 7200)": "2.0 h",
    "since(Date.now() / 1000 - 20 * 86400)": "20 days",
    "rule('cost')": "Cost",
    "rule('a_new_one')": "a new one",
}


@browsers.needs_browser
def test_numbers_are_written_as_people_read_them(
    opened: Callable[..., Any], idle: str, subtests: pytest.Subtests
) -> None:
    page = opened(idle)
    for call, words in WORDS.items():
        with subtests.test(call):
            assert page.evaluate(f"import('./page/words.js').then((words) => words.{call})") == words


@browsers.needs_browser
def test_axe_finds_nothing_serious(opened: Callable[..., Any], idle: str) -> None:
    some = FULL | {"last": FULL["last"][:3]}
    how: dict[str, Any] = {"bypass_csp": True}  # axe is put into the page as a script
    full = opened(idle, status=some, **how)
    expect(full.locator("#last tbody tr")).to_have_count(3)
    asks = opened(idle, loads=True, **how)
    expect(asks.locator("#empty")).to_be_visible()
    asks.route("**/status", lambda route: route.fulfill(status=401, json={}))
    later(asks)
    expect(asks.locator("#key-form")).to_be_visible()
    for page, rules in ((full, ()), (asks, ("color-contrast",))):
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 380, "height": 900})
        assert violations(page) == []
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 1280, "height": 900})
        assert violations(page, *rules) == []


@browsers.needs_browser
def test_nothing_is_wider_than_the_page(opened: Callable[..., Any], idle: str) -> None:
    page = opened(idle, 320, status=FULL)
    expect(page.locator("#last tbody tr")).to_have_count(50)
    for width in (320, 860, 900, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@browsers.needs_browser
def test_the_colors_follow_the_system(opened: Callable[..., Any], idle: str) -> None:
    red = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
    assert opened(idle, color_scheme="dark").evaluate(red) < 60
    assert opened(idle, color_scheme="light").evaluate(red) > 200


def test_the_files_need_no_key_and_come_with_a_strict_policy(idle: str) -> None:
    for path in ("", *(f"page/{one.name}" for one in (resources.files("daguerre.router") / "page").iterdir())):
        found = get(f"{idle}/{path}")
        assert found.status_code == 200 and found.headers.items() >= {k.lower(): v for k, v in HEADERS.items()}.items()
        again = get(f"{idle}/{path}", **{"if-none-match": found.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for path in ("page/none.js", "page/", "page/..%2fproxy.py", "page/openapi.py"):
        assert get(f"{idle}/{path}").status_code == 404, path


def test_the_files_put_no_data_into_markup_and_name_no_other_host() -> None:
    for one in (resources.files("daguerre.router") / "page").iterdir():
        text = one.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://", text), one.name
        assert not re.search(r"<script>|<style|\sstyle=|\son\w+=", text), one.name


def test_no_key_is_asked_for_the_page_itself() -> None:
    given, store = config(backend("a")), Store(None)
    keys = Keys(names={hash_of("k"): "me"})
    router = make_router(given, store, lambda reading, body: {"plan": 1.0}, lambda line: None, keys)
    with running(make_app(router, store, lambda line: None)) as url:
        codes = {path: get(url + path).status_code for path in ("/", "/page/status.js", "/status")}
    assert codes == {"/": 200, "/page/status.js": 200, "/status": 401}
