"""Pages of other sites against a server and a router on the reader's own machine, which have no keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from attacks.routers import PATH, SAY, Routed, routed
from server.processes import Serving

JSON, TEXT, FORM = "application/json", "text/plain", "application/x-www-form-urlencoded"
EVIL = "http://evil.example"
FOREIGN: dict[str, dict[str, str]] = {
    "fetch without CORS": {"origin": EVIL, "sec-fetch-site": "cross-site", "content-type": TEXT},
    "a form": {"origin": EVIL, "sec-fetch-site": "cross-site", "content-type": FORM},
    "an origin alone": {"origin": EVIL, "content-type": JSON},
    "no origin at all": {"origin": "null", "content-type": JSON},
    "an origin that begins alike": {"origin": "{url}.evil.example", "content-type": JSON},
    "a site alone": {"sec-fetch-site": "cross-site", "content-type": JSON},
    "another port of this machine": {"origin": "http://127.0.0.1:3000", "sec-fetch-site": "same-site"},
    "a site that says nothing known": {"sec-fetch-site": "?1", "content-type": JSON},
    "a name that means this machine": {"host": "evil.example", "origin": EVIL, "sec-fetch-site": "same-origin"},
    "that name with a port": {"host": "evil.example:{port}", "origin": "http://evil.example:{port}"},
    "that name, by a program": {"host": "evil.example"},
    "a name that begins as an address does": {"host": "127.0.0.1.evil.example"},
    "a name that ends as ours does": {"host": "notlocalhost"},
}
WELCOME: dict[str, dict[str, str]] = {
    "a program": {"content-type": JSON},
    "our page": {"origin": "{url}", "sec-fetch-site": "same-origin", "content-type": JSON},
    "our page by another name": {"host": "localhost:{port}", "origin": "http://localhost:{port}"},
    "the address of version 6": {"host": "[::1]:{port}"},
    "what was typed": {"sec-fetch-site": "none", "content-type": "application/json; charset=utf-8"},
}


@dataclass
class Target:
    """A server, its paths that cost and that tell something, and a body."""

    url: str
    asks: str
    tells: tuple[str, ...]
    body: dict[str, Any]

    def send(self, method: str, path: str, headers: dict[str, str]) -> httpx2.Response:
        port = self.url.rpartition(":")[2]
        given = {name: value.format(url=self.url, port=port) for name, value in headers.items()}
        body = None if method == "GET" else self.body
        return httpx2.request(method, self.url + path, headers=given, timeout=60, json=body)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    with routed(tmp_path_factory.mktemp("router")) as one:
        yield one


@pytest.fixture(params=["server", "router"])
def target(request: pytest.FixtureRequest) -> Target:
    if request.param == "router":
        one: Routed = request.getfixturevalue("router")
        return Target(one.process.url, PATH, ("/status", "/metrics", "/v1/models"), SAY)
    served: Serving = request.getfixturevalue("attacked")
    told = ("/v1/models", "/metrics", "/version")
    return Target(served.url, "/v1/completions", told, {"prompt": "x = 1\n", "max_tokens": 2})


def test_a_page_of_another_site_is_refused_whatever_it_asks(target: Target, subtests: pytest.Subtests) -> None:
    for name, headers in FOREIGN.items():
        with subtests.test(name):
            assert target.send("POST", target.asks, headers).status_code == 403
            for path in target.tells:
                assert target.send("GET", path, headers).status_code == 403, path
            asked = headers | {"access-control-request-method": "POST"}
            said = target.send("OPTIONS", target.asks, asked).headers
            assert not [one for one in said if one.startswith("access-control")]


def test_a_refused_page_has_cost_nothing(router: Routed) -> None:
    num = len(router.a.asked) + len(router.b.asked)
    for name, headers in FOREIGN.items():
        assert Target(router.process.url, PATH, (), SAY).send("POST", PATH, headers).status_code == 403, name
    assert len(router.a.asked) + len(router.b.asked) == num


def test_programs_and_our_own_pages_are_answered(target: Target, subtests: pytest.Subtests) -> None:
    for name, headers in WELCOME.items():
        with subtests.test(name):
            assert target.send("POST", target.asks, headers).status_code == 200
            assert target.send("GET", target.tells[0], headers).status_code == 200


def test_what_no_browser_sends_may_have_another_type(router: Routed) -> None:
    for kind in (TEXT, FORM, ""):
        found = router.process.client.post(PATH, content=json.dumps(SAY), headers={"content-type": kind})
        assert found.status_code == 200, kind


def test_a_browser_sends_json_and_nothing_that_a_form_could(target: Target) -> None:
    for kind in (TEXT, FORM, "multipart/form-data", ""):
        headers = {"origin": "{url}", "sec-fetch-site": "same-origin", "content-type": kind}
        assert target.send("POST", target.asks, headers).status_code == 415, kind


def test_links_lead_to_pages_and_to_nothing_else(target: Target) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert target.send("GET", "/", link).status_code == target.send("GET", "/docs", link).status_code == 200
    for path in target.tells:
        assert target.send("GET", path, link).status_code == 403


def test_the_page_of_the_routes_loads_nothing_from_elsewhere(target: Target) -> None:
    page = target.send("GET", "/docs", {})
    assert "default-src 'self'" in page.headers["content-security-policy"]
    names = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {"docs/docs.js", "docs/docs.css"} <= set(names)
    for name in names:
        assert not name.startswith(("http:", "https:", "//")) and target.send("GET", f"/{name}", {}).status_code == 200
    script = target.send("GET", "/docs/docs.js", {}).text
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://", script)
