"""The page of an analysis: it parses, fetches nothing, escapes all names, and draws what the numbers say."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from daguerre.router.analyze import analyze
from daguerre.router.charts import Bar, Scale, bars, curve, lines, log_ticks, stacks, ticks
from daguerre.router.estimators import Estimate
from daguerre.router.report import page
from daguerre.router.tables import dollars, milliseconds, number, percent, tables, told
from made_logs import draw, shadow, write
from router.test_analyze import BOTH, STRICT, right
from routing import backend, config

EVIL = '<script>alert("x")</script>'
VOID = {"meta", "line", "circle", "rect", "polyline", "polygon", "br"}


class Page(HTMLParser):
    """Elements, and an error where one is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = draw(BOTH, 300, right, shadows=0.4)
    made += [shadow(f"r{number}", EVIL, 1.0, 1.0, 0.1) for number in range(3)]
    path = write(tmp_path_factory.mktemp("logs") / "<img src=x onerror=alert(1)>.jsonl", BOTH, made)
    return page(analyze(path, STRICT))


def test_the_page_parses_and_fetches_and_runs_nothing(text: str) -> None:
    found = Page(text)
    assert {tag for tag, _ in found.found}.isdisjoint(
        {"script", "link", "img", "iframe", "object", "a", "form", "image"}
    )
    for _, attrs in found.found:
        assert attrs.keys().isdisjoint({"src", "href", "srcset", "xlink:href"})
        assert not [name for name in attrs if name.startswith("on")]
    assert "url(" not in text and "@import" not in text and "http:" not in text and "https:" not in text
    (policy,) = [attrs["content"] for attrs in found.all("meta") if attrs.get("http-equiv")]
    assert policy is not None and "default-src 'none'" in policy


def test_names_are_escaped(text: str) -> None:
    assert EVIL not in text and "<img" not in text
    found = Page(text)
    assert any(EVIL in each for each in found.texts) and any("<img src=x" in each for each in found.texts)


def test_charts_and_tables_can_be_heard_and_read_on_a_phone(text: str) -> None:
    found = Page(text)
    assert all(attrs.get("role") == "img" and attrs.get("aria-label") for attrs in found.all("svg"))
    assert len(found.all("svg")) == len(found.all("figcaption")) >= 9
    assert found.all("html") == [{"lang": "en"}] and len(found.all("h1")) == 1 and len(found.all("title")) == 1
    assert all(attrs.get("scope") in ("col", "row") for attrs in found.all("th"))
    scrolled = [attrs for attrs in found.all("div") if attrs.get("class") == "scroll"]
    assert len(scrolled) == len(found.all("table")) and all(attrs.get("tabindex") == "0" for attrs in scrolled)
    assert any(attrs.get("name") == "viewport" for attrs in found.all("meta"))
    assert "prefers-color-scheme:dark" in text and "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", text.lower())


def test_every_cell_of_the_tables_is_on_the_page(tmp_path: Path) -> None:
    analysis = analyze(write(tmp_path / "log.jsonl", BOTH, draw(BOTH, 200, right, shadows=0.4)), STRICT)
    shown = "".join(Page(page(analysis)).texts).replace(" ", "")
    for table in tables(analysis):
        assert table.title in shown or table.title.replace(" ", "") in shown
        for row in table.rows:
            assert len(row) == len(table.head)
            for cell in row:
                assert cell.replace(" ", "") in shown


def test_a_page_without_a_request_says_so(tmp_path: Path) -> None:
    found = Page(page(analyze(write(tmp_path / "log.jsonl", BOTH, []))))
    assert "No requests." in found.texts


def test_a_page_of_one_request_is_drawn(tmp_path: Path) -> None:
    found = page(analyze(write(tmp_path / "log.jsonl", BOTH, draw(BOTH, 1, right)), STRICT))
    assert "too few for an interval" in found or "at least" in found
    Page(found)


def test_ticks_are_round_and_reach_around() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        low, high = sorted(rng.normal(size=2) * 10.0 ** rng.integers(-6, 6))
        found = ticks(low, high)
        slack = 1e-6 * (high - low)
        assert found[0] <= low + slack and found[-1] >= high - slack and 3 <= len(found) <= 8
        assert np.allclose(np.diff(found), found[1] - found[0])
        assert f"{found[1] - found[0]:.1e}"[:3] in ("1.0", "2.0", "2.5", "5.0")
    assert ticks(3.0, 3.0)[0] < 3.0 < ticks(3.0, 3.0)[-1] and ticks(0.0, 0.0)[0] < 0 < ticks(0.0, 0.0)[-1]
    assert log_ticks(20, 800) == pytest.approx([10, 30, 100, 300, 1000]) and log_ticks(1, 1)[-1] == 10
    assert log_ticks(2, 30_000) == pytest.approx([1, 10, 100, 1000, 10_000, 100_000])


def test_a_scale_is_straight_or_logarithmic_and_stays_inside() -> None:
    assert Scale(0, 10, 100, 200)(5) == 150 and Scale(0, 10, 200, 100)(12) == 100
    assert Scale(1, 100, 0, 2, log=True)(10) == pytest.approx(1)


def test_charts_have_a_mark_for_each_value_and_lines_break_where_there_is_none() -> None:
    made = bars("<t>", [Bar("<a>", 0.5, 0.4, 0.6), Bar("b", 0.7, None, None)], percent, mark=0.5)
    assert "<a>" not in made and "<t>" not in made and made.count("&lt;t&gt;") == 2
    assert made.count("<circle") == 2 and made.count('class="whisker') == 2 and "&lt;a&gt;" in made
    made = lines("t", [0, 1, 2, 3], [1, None, 2, 3], [None, None, (1, 3), (2, 4)], number, number)
    assert made.count("<polyline") == 2
    made = stacks("t", [0, 1], ["a", "b"], [[1, 0], [2, 3]], number)
    assert made.count("<rect") == 3 + 2
    assert curve("t", [(0, 0), (1, 1)], [("p", 0.5, 0.5)], number, number).count("<circle") == 1
    for each in (made, curve("t", [(0.0, 0.0)], [("p", 0.0, 0.0)], number, number)):
        Page(each)


def test_more_backends_than_colors_are_drawn_as_others(tmp_path: Path) -> None:
    many = config(*(backend(f"b{place}", price={"request": place / 100}) for place in range(9)), explore={"share": 1.0})
    found = page(analyze(write(tmp_path / "log.jsonl", many, draw(many, 200, lambda name, step: 0.5))))
    (told,) = re.findall(r"Requests over time by backend: ([^\"]*)\.", found)
    assert len(told.split(", ")) == 6 and told.endswith("others")


def test_numbers_are_said_with_three_digits_and_their_interval() -> None:
    assert [number(each) for each in (0, 0.00012345, 1.5, 12.345, 12345.6)] == [
        "0",
        "0.000123",
        "1.5",
        "12.3",
        "12,346",
    ]
    assert [dollars(each) for each in (0, 0.01234, 1.5, -2, 1234.5)] == [
        "$0.00",
        "$0.0123",
        "$1.50",
        "-$2.00",
        "$1,234.50",
    ]
    assert told(Estimate(0.5, 0.25, 0.75, 9, "wilson"), percent) == "50.0% (25.0% to 75.0%)"
    assert told(Estimate(9.0, 2.0, None, 9, "ranks"), milliseconds) == "9 ms (at least 2 ms)"
    assert told(Estimate(9.0, None, 12.0, 9, "ranks"), milliseconds) == "9 ms (at most 12 ms)"
    assert told(Estimate(9.0, None, None, 1, "ranks"), milliseconds) == "9 ms (too few for an interval)"
    assert told(None, percent) == "–"
