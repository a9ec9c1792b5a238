"""The playground with a model that has concept heads, in a real browser: what it shows is what the library says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from concept_models import CATALOG
from daguerre.decoding.explanation import Explanation
from daguerre.model import Model
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from server import browsers
from server import test_playground as playground
from server.browsers import expect, violations
from server.conftest import running

browser, chromium, pytestmark = browsers.browser, browsers.chromium, browsers.needs_browser
opened, pages = playground.opened, playground.pages
run, to_the_end = playground.run, playground.to_the_end
PROMPT = "def f(x):\n"
DECODE: dict[str, Any] = {"mode": "block", "block_size": 48, "threshold": 0.5, "explain": True}
STEER = [{"kind": "add", "concepts": ["call"], "strength": 6.0}, {"kind": "suppress", "concepts": ["import"]}]


@pytest.fixture(scope="module")
def server(concept_pool: ModelPool) -> Iterator[str]:
    """The address of a server of a model with concept heads, and one without."""
    with running(make_app(concept_pool)) as url:
        yield url


def explained(page: Any, num: int = 24) -> None:
    """Run the request with `explain`, and show its end."""
    page.fill("#prompt", PROMPT)
    page.fill("#max_tokens", str(num))
    if not page.locator("#explain").is_visible():
        page.click("#concepts-card summary")
    page.check("#explain")
    run(page)
    to_the_end(page)
    expect(page.locator("#concepts")).to_be_visible()


def concepts_of(model: Model, num: int = 24, **options: Any) -> Explanation:
    result = model.generate(PROMPT, num, **DECODE, **options)
    assert result.concepts is not None
    return result.concepts


def rows(page: Any, place: str) -> list[tuple[str, str]]:
    """The names and the numbers of a list with bars."""
    script = "all => all.map((one) => [one.firstChild.firstChild.textContent, one.lastChild.textContent])"
    return [(name, number) for name, number in page.locator(f"{place} li").evaluate_all(script)]


def signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{abs(value):.2f}"


def test_a_token_shows_the_parts_of_its_logit_as_signed_bars(opened: Callable[..., Any], headed: Model) -> None:
    page = opened()
    explained(page)
    said = concepts_of(headed)
    shown = page.locator(".token:not(.open, .end)")
    expect(shown).to_have_count(len([token for token in said.tokens if token.text]))
    for place in (2, 7):
        token = said.tokens[place]
        shown.nth(place).click()
        expect(page.locator("#token-about")).to_contain_text(f"Logit {token.logit:.2f} =")
        parts = dict(rows(page, "#token-parts"))
        known = token.concepts < CATALOG.num_known
        assert parts["Named concepts"] == signed(token.contributions[known].sum())
        assert parts["Discovered concepts"] == signed(token.contributions[~known].sum())
        assert parts["Residual"] == signed(token.residual)
        for number, part in zip(token.concepts.tolist(), token.contributions.tolist(), strict=True):
            assert part == 0 or parts[said.catalog.name(number)] == signed(part)
        assert page.locator(".token.marked").count() == 1
    assert page.locator("#candidates").is_hidden()

    bars = page.locator("#token-parts i").evaluate_all(
        "all => all.map((one) => [one.className, one.getBoundingClientRect().width])"
    )
    values = [float(number.replace("−", "-")) for _, number in rows(page, "#token-parts")]
    widest = max(range(len(values)), key=lambda index: abs(values[index]))
    for (kind, width), value in zip(bars, values, strict=True):
        assert kind in ("rest", "lowers" if value < 0 else "raises")
        assert width == pytest.approx(max(1, bars[widest][1] * abs(value / values[widest])), abs=1.5)

    page.locator(".token[tabindex]").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(page.locator("#token-about")).to_contain_text(f"Logit {said.tokens[6].logit:.2f} =")
    assert page.evaluate("document.activeElement.classList.contains('marked')")
    page.click("#token-candidates")
    expect(page.locator("#candidate-list li")).to_have_count(8)


def test_the_text_is_a_heat_map_by_shares_and_by_a_concept(opened: Callable[..., Any], headed: Model) -> None:
    page = opened()
    explained(page)
    said = concepts_of(headed)
    tokens = [token for token in said.tokens if token.text]
    read = "all => all.map((one) => [one.dataset.heat ?? '', Number(one.style.getPropertyValue('--heat'))])"
    shown = page.locator(".token:not(.open, .end)")

    for by, share in (("known", "known"), ("all", "aggregated")):
        page.select_option("#color-by", by)
        heat = [value for _, value in shown.evaluate_all(read)]
        assert heat == pytest.approx([getattr(said.shares_of([token]), share) for token in tokens], abs=1e-3)
    name = said.top(1)[0].name
    page.select_option("#color-by", label=name)
    parts = [float(part) for token, part in zip(said.tokens, said.of(name), strict=True) if token.text]
    most = max(map(abs, parts))
    heat = [-value if kind == "lowers" else value for kind, value in shown.evaluate_all(read)]
    assert heat == pytest.approx([part / most for part in parts], abs=1e-3) and len(set(heat)) > 3
    expect(page.locator("#heat-high")).to_contain_text(signed(most))
    assert name in shown.nth(3).get_attribute("aria-label")

    page.click("#first")
    assert page.locator(".token[data-heat]").count() == 0  # what is not written yet has no explanation
    page.click("#last")
    page.select_option("#color-by", "")
    assert page.locator(".token[data-heat]").count() == 0 and page.locator(".token[data-level]").count() > 0
    assert page.locator("#heat-legend").is_hidden() and page.locator("#confidence-legend").is_visible()


def test_lines_and_the_whole_text_are_summed_up_as_in_the_library(opened: Callable[..., Any], headed: Model) -> None:
    page = opened()
    explained(page, 48)
    said = concepts_of(headed, 48)
    assert rows(page, "#top-concepts") == [(one.name, f"{_rounded(one.share)}%") for one in said.top(10)]
    shares = said.shares
    words = f"{_rounded(shares.known)}% of a logit goes through named concepts, {_rounded(shares.aggregated)}% through"
    expect(page.locator("#concepts-about")).to_contain_text(words)
    lines = page.locator("#concept-lines tr").evaluate_all(
        "all => all.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    wanted = [
        [
            str(line.number),
            line.text,
            f"{_rounded(line.shares.known)}%",
            f"{_rounded(line.shares.aggregated)}%",
            "".join(f"{one.name} {_rounded(one.share)}%" for one in line.top),
        ]
        for line in said.lines(3)
    ]
    assert lines == wanted and len(lines) >= 1

    page.locator("#top-concepts button").nth(1).click()
    expect(page.locator("#color-by")).to_have_value(str(said.top(2)[1].number))


def _rounded(share: float) -> int:
    """A share in percent, halves up, as browsers round."""
    return int(100 * share + 0.5)


def test_concepts_are_steered_by_a_form(opened: Callable[..., Any], headed: Model) -> None:
    page = opened()
    page.click("#concepts-card summary")
    page.focus("#steer-concept")
    expect(page.locator("#steer-names option")).to_have_count(len(CATALOG.concepts))
    page.fill("#steer-concept", "lopo")
    page.click("#steer-add")
    expect(page.locator("#steer-about")).to_contain_text("no concept “lopo”")
    for kind, concept, strength in (("add", "call", "6"), ("suppress", "import", ""), ("forbid", "eval_exec", "")):
        page.select_option("#steer-kind", kind)
        page.fill("#steer-concept", concept)
        if strength:
            page.fill("#steer-strength", strength)
        page.locator("#steer-concept").press("Enter")
    expect(page.locator("#steers li")).to_have_count(3)
    expect(page.locator("#concepts-summary")).to_have_text("3 steered")
    page.check("#forbid_exactly")

    with page.expect_request("**/v1/daguerre/requests") as asked:
        explained(page)
    options = json.loads(asked.value.post_data)["options"]
    program = {"steer": [*STEER[:1], {**STEER[1], "strength": 1}], "forbid": ["eval_exec"], "forbid_exactly": True}
    assert {name: options.get(name) for name in ("explain", *program)} == {"explain": True, **program}
    said = concepts_of(headed, steer=STEER, forbid=["eval_exec"], forbid_exactly=True)
    plain = concepts_of(headed)
    assert playground.drafted(page) == "".join(token.text for token in said.tokens)
    assert [token.text for token in said.tokens] != [token.text for token in plain.tokens]
    page.locator(".token").nth(4).click()
    parts = dict(rows(page, "#token-parts"))
    assert parts["Due to steering"] == signed(said.tokens[4].steering)

    page.click("#share")
    other = opened(fragment=page.evaluate("location.hash"))
    expect(other.locator("#steers li")).to_have_count(3)
    assert other.locator("#explain").is_checked() and other.locator("#forbid_exactly").is_checked()
    page.locator("#steers li", has_text="forbid").locator("button").click()
    expect(page.locator("#steers li")).to_have_count(2)
    expect(page.locator("#exactly")).to_be_hidden()


def test_the_call_with_concepts_is_shown_as_code(opened: Callable[..., Any]) -> None:
    page = opened()
    page.click("#concepts-card summary")
    page.check("#explain")
    page.fill("#steer-concept", "call")
    page.click("#steer-add")
    page.click("#code-card summary")
    page.get_by_role("button", name="Python", exact=True).click()
    expect(page.locator("#code")).to_contain_text("explain=True")
    expect(page.locator("#code")).to_contain_text('steer=[{"kind": "add", "concepts": ["call"], "strength": 4}]')
    page.get_by_role("button", name="Python, openai", exact=True).click()
    expect(page.locator("#code")).to_contain_text('"daguerre": {"mode": "block", "block_size": 48')
    expect(page.locator("#code")).to_contain_text('"explain": True, "steer": [')


def test_a_model_without_heads_says_why_nothing_is_explained(opened: Callable[..., Any]) -> None:
    page = opened()
    page.click("#concepts-card summary")
    expect(page.locator("#explain")).to_be_enabled()
    page.select_option("#model", "tiny")
    page.focus("#steer-concept")  # the model is loaded when its concepts are asked for
    expect(page.locator("#concepts-why")).to_contain_text("has no concept heads")
    expect(page.locator("#concepts-why")).to_contain_text("--model concepts")
    expect(page.locator("#explain")).to_be_disabled()
    expect(page.locator("#steer-add")).to_be_disabled()
    page.fill("#max_tokens", "8")
    run(page)
    to_the_end(page)
    assert page.locator("#concepts").is_hidden() and page.locator("#color-by").is_hidden()

    page.reload()  # the server says it now
    expect(page.locator("#model option")).to_have_count(2)
    page.select_option("#model", "tiny")
    expect(page.locator("#explain")).to_be_disabled()
    expect(page.locator("#concepts-summary")).to_have_text("not with this model")
    page.select_option("#model", "headed")
    expect(page.locator("#explain")).to_be_enabled()
    expect(page.locator("#concepts-why")).to_be_empty()


def test_a_template_and_two_settings_are_explained(opened: Callable[..., Any], headed: Model) -> None:
    page = opened()
    page.select_option("#example", "Template with two gaps")
    page.click("#concepts-card summary")
    page.check("#explain")
    run(page)
    to_the_end(page)
    result = headed.fill(page.input_value("#template"), 4, explain=True)
    assert result.concepts is not None
    shown = page.locator(".gap").nth(1).locator(".token:not(.open, .end)").first
    place = len(page.locator(".gap").first.locator(".token:not(.open, .end)").all())
    shown.click()
    expect(page.locator("#token-about")).to_contain_text(f"Logit {result.concepts.tokens[place].logit:.2f} =")

    page.check("[name=kind][value=generate]", force=True)
    page.check("#compare")
    page.fill("#b-steps", "4")
    explained(page, 16)
    page.locator(".pane").nth(1).locator(".token").nth(3).click()
    expect(page.locator("#concepts-heading")).to_contain_text("Concepts of B")
    assert page.locator(".pane").first.locator(".token[data-heat]").count() > 0
    assert page.locator(".pane").nth(1).locator(".token.marked").count() == 1


def test_axe_finds_nothing_serious_in_explanations(opened: Callable[..., Any]) -> None:
    page = opened(1280, 800, bypass_csp=True)
    page.click("#concepts-card summary")
    page.fill("#steer-concept", "call")
    page.click("#steer-add")
    explained(page)
    page.locator(".token").nth(3).click()
    page.locator("#top-concepts button").first.click()

    for scheme, width in (("light", 1280), ("dark", 380)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
