"""`daguerre concepts explain`, and what --explain, --steer and --forbid do on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.text import Text

from concept_models import CATALOG, with_heads
from daguerre.decoding.explanation import TokenExplanation
from daguerre.errors import UnsupportedError
from daguerre.model import Model
from daguerre.models.forward import Forward, Hidden, Layout
from daguerre.models.loading import save_model
from daguerre.view import concepts as view
from test_cli import Called
from test_cli import call as call

TEXT = 'def f(x):\n    """Größe of </script> & <b>."""\n    return x + 1\n'
PLAIN = ("--backend", "torch", "--dtype", "float32")


@pytest.fixture(scope="module")
def model(make_model: Callable[..., Model]) -> Model:
    return with_heads(make_model)


@pytest.fixture(scope="module")
def folder(model: Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("model")
    save_model(out, model.backbone, model.tokenizer, torch.float32, catalog=CATALOG)
    return str(out)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "a.py"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def assert_one_line(called: Called, word: str) -> None:
    code, _, err = called
    assert code == 2, err
    assert len(err.strip().splitlines()) == 1, err
    assert word in err


class Page(HTMLParser):
    """The data of a page, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.title, self.data, self.links, self._inside = "", "", list[str](), ""
        self.feed(text)
        self.value: dict[str, Any] = json.loads(self.data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self._inside = named.get("id") or tag
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data
        elif self._inside == "title":
            self.title += data


def test_each_token_of_a_text_is_explained_by_the_row_before_it(model: Model) -> None:
    heads = model.backbone.concepts
    assert heads is not None
    found = model.explain(TEXT)
    ids = model.tokenizer.encode(TEXT)
    assert (found.forecast, found.num_windows) == (True, 1)
    assert "".join(token.text for token in found.explanation.tokens) == TEXT
    assert [token.id for token in found.explanation.tokens] == ids
    assert found.explanation.error() < 2e-4
    for at in (0, 3, len(ids) - 1):
        hidden = last_hidden(model, ids[:at])
        np.testing.assert_allclose(found.probabilities[at], heads.known_logits(hidden)[0].sigmoid(), atol=1e-5)
        logit = float(model.backbone.logits(hidden)[0, ids[at]])
        assert found.explanation.tokens[at].logit == pytest.approx(logit, abs=2e-4)


def last_hidden(model: Model, ids: list[int]) -> torch.Tensor:
    """The hidden state (1, D) after some tokens of a causal model."""
    tokens = np.array([*model.config.first, *ids], dtype=np.int64)
    place = np.arange(len(tokens))
    layout = Layout(place, (place + 1).astype(np.int32), len(tokens))
    (answer,) = model.denoiser.backend.forward([Forward(tokens, layout, None, place[-1:].astype(np.int32), Hidden())])
    assert answer.hidden is not None
    return torch.from_numpy(answer.hidden)


def test_a_text_longer_than_the_context_is_read_in_windows_that_overlap_by_half(
    make_model: Callable[..., Model],
) -> None:
    model = with_heads(make_model, max_positions=24)
    ids = model.tokenizer.encode(TEXT * 3)
    found = model.explain(TEXT * 3)
    assert found.window == 24
    assert found.num_windows > 3
    assert [token.id for token in found.explanation.tokens] == ids
    assert [token.position for token in found.explanation.tokens] == list(range(len(ids)))
    assert "".join(token.text for token in found.explanation.tokens) == TEXT * 3
    assert all(token.logit is not None for token in found.explanation.tokens)
    size, half = 23, 11
    for at in (size, len(ids) - 1):  # a token of a later window has seen half of one
        start = 0 if at < size else (size - half) * -(-(at - size + 1) // (size - half))
        assert at - start >= half
        logit = float(model.backbone.logits(last_hidden(model, ids[start:at]))[0, ids[at]])
        assert found.explanation.tokens[at].logit == pytest.approx(logit, abs=2e-4)


def test_rows_of_other_contexts_are_read_too(make_model: Callable[..., Model]) -> None:
    contexts: tuple[dict[str, Any], ...] = ({"context": "full"}, {"context": "block", "shift": False, "block_size": 8})
    for facts in contexts:
        model = with_heads(make_model, **facts)
        found = model.explain(TEXT)
        assert found.forecast == model.config.shift
        assert len(found.explanation.explained) == len(model.tokenizer.encode(TEXT))
        assert found.explanation.error() < 2e-4, facts


def test_a_model_without_heads_explains_nothing(make_model: Callable[..., Model]) -> None:
    causal = Model(make_model().backbone, make_model().tokenizer, "torch")
    with pytest.raises(UnsupportedError, match="no concept heads"):
        causal.explain(TEXT)


def test_the_terminal_shows_the_text_and_its_largest_concepts(
    call: Callable[..., Called], folder: str, file: str
) -> None:
    code, out, err = call("concepts", "explain", file, "-m", folder, *PLAIN)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "1 def f(x):"
    assert lines[2] == "3     return x + 1"
    assert "share of the logit that goes through named concepts" in out
    assert re.search(r"concept +share +logits +tokens", out)
    assert "expects from the text before it" in out
    by_one = call("concepts", "explain", file, "-m", folder, "--concept", "for_loop", *PLAIN)[1]
    assert "probability of for_loop:" in by_one
    found = call("concepts", "explain", file, "-m", folder, "--concept", "discovered 3", *PLAIN)[1]
    assert "part of discovered 3 in the logit" in found


def test_colors_are_shares_probabilities_or_parts(model: Model) -> None:
    found = model.explain(TEXT)
    told = found.explanation
    shares = view.heat_of(told)
    assert shares.values.tolist() == [told.shares_of([token]).known for token in told.tokens]
    likely = view.heat_of(told, "for_loop", found.probabilities)
    assert likely.values.tolist() == found.probabilities[:, 1].tolist()
    parts = view.heat_of(told, "for_loop")
    np.testing.assert_allclose(parts.values, told.of(1) / np.abs(told.of(1)).max())
    assert np.abs(parts.values).max() == 1
    unasked = replace(told, tokens=(TokenExplanation("x", 30, 0), *told.tokens[1:]))
    assert np.isnan(view.heat_of(unasked).values[0])
    text, _ = view.heat_map(unasked, view.Heat(np.array([np.nan, 1.0, -1.0, 0.0, *shares.values[4:]]), "")).renderables
    assert isinstance(text, Text)
    styles = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    first, second, third, fourth = (token.text for token in unasked.tokens[:4])
    assert styles[first] == "dim"
    assert view.SHADES[-1] in styles[second]
    assert view.AGAINST[-1] in styles[third]
    assert not any(shade in styles.get(fourth, "") for shade in (*view.SHADES, *view.AGAINST))


def test_json_is_the_whole_explanation(call: Callable[..., Called], folder: str, file: str, model: Model) -> None:
    body = json.loads(call("concepts", "explain", file, "-m", folder, "--json", *PLAIN)[1])
    told = model.explain(TEXT).explanation
    assert [token["text"] for token in body["tokens"]] == [token.text for token in told.tokens]
    assert body["tokens"][4]["logit"] == pytest.approx(told.tokens[4].logit, abs=1e-3)
    assert body["note"].startswith("The concepts of a token")


def test_the_page_stands_alone_and_holds_the_text(
    call: Callable[..., Called], folder: str, file: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.html"
    code, _, err = call("concepts", "explain", file, "-m", folder, "--html", str(out), *PLAIN)
    assert code == 0, err
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    assert page.title == page.value["title"] == "Concepts of a.py"
    assert page.links == []
    assert not re.search(r"https?:|@import|url\(", text)
    assert "default-src 'none'" in text
    assert "".join(token["text"] for token in page.value["tokens"]) == TEXT
    assert text.count("</script>") == 2  # those of the page: the text's own is data
    for token in page.value["tokens"]:
        parts = sum(concept[1] for concept in token["concepts"])
        parts += token["rest"] + token["bans"] + token["residual"] + token["bias"]
        assert parts == pytest.approx(token["logit"], abs=5e-3)
        assert {str(concept[0]) for concept in token["concepts"]} <= page.value["names"].keys()


def test_generate_explains_each_line_beside_the_text(call: Callable[..., Called], folder: str, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    ask = ("generate", "def f(x):\n    return ", "-m", folder, "--max-tokens", "8", *PLAIN)
    plain = call(*ask)
    code, text, err = call(*ask, "--explain")
    assert (code, text) == (0, plain[1])
    assert plain[2] == ""
    assert re.search(r"line +text +named +all +largest named", err)
    assert "through named concepts" in err
    assert call(*ask, "--explain-html", str(out))[0] == 0
    page = Page(out.read_text(encoding="utf-8"))
    assert page.value["given"]["0"] == "def f(x):\n    return "
    assert "".join(token["text"] for token in page.value["tokens"]) == text.removesuffix("\n")
    body = json.loads(call(*ask, "--explain", "--json")[1])
    assert [token["text"] for token in body["concepts"]["tokens"]] == [one["text"] for one in page.value["tokens"]]
    assert "concepts" not in json.loads(call(*ask, "--json")[1])


def test_why_prints_what_a_token_owes_to_those_before_it(call: Callable[..., Called], folder: str) -> None:
    ask = ("generate", "def f(x):\n    return ", "-m", folder, "--max-tokens", "6", "--no-heal", *PLAIN)
    code, out, err = call(*ask, "--why", "3")
    assert (code, out) == (0, call(*ask)[1])
    assert re.search(r"at \d+: logit -?[\d.]+, -?[\d.]+ with all inputs masked", err)
    assert re.search(r"\n +[+-][\d.]+  '.*' at \d+\n", err)
    assert re.search(r"completeness error [\d.]+ logits, [\d.]+% of the difference \(64 steps\)", err)
    assert_one_line(call(*ask, "--why", "1", "--n", "2"), "are of one sample")


def test_a_page_of_several_gaps_has_the_text_between_them(model: Model) -> None:
    result = model.fill("a = <gap>\nb = <gap>\nc", 4, explain=True, seed=1)
    given = view.given_around(result)
    texts = [token.text for token in result.tokens]
    shown = "".join(given.get(place, "") + text for place, text in enumerate([*texts, ""]))
    assert shown == result.text
    only = model.infill("a = ", "\nb", 4, mode="block", explain=True)
    assert view.given_around(only, "a = ", "\nb") == {0: "a = ", len(only.tokens): "\nb"}


def test_a_program_and_forbidden_concepts_steer(call: Callable[..., Called], folder: str, tmp_path: Path) -> None:
    program = tmp_path / "steer.json"
    program.write_text(json.dumps([{"kind": "add", "concepts": ["loop"], "strength": 12}]), encoding="utf-8")
    ask = ("generate", "def f(x):\n    return ", "-m", folder, "--max-tokens", "8", *PLAIN)
    plain = call(*ask)[1]
    assert call(*ask, "--steer", str(program))[1] != plain
    assert call(*ask, "--forbid", "eval_exec", "--forbid-exactly")[0] == 0
    program.write_text('[{"kind": "ad", "concepts": ["loop"]}]', encoding="utf-8")
    assert_one_line(call(*ask, "--steer", str(program)), "did you mean 'add'")
    assert_one_line(call(*ask, "--forbid", "lop"), "did you mean 'loop'")
    assert_one_line(call(*ask, "--forbid", "loop", "--forbid-exactly"), "every instance of the concept 'loop'")


def test_mistakes_are_one_line(call: Callable[..., Called], folder: str, file: str, tmp_path: Path) -> None:
    explain = ("concepts", "explain", file, "-m", folder, *PLAIN)
    assert_one_line(call(*explain, "--html", str(tmp_path / "a.txt")), "give a .html file")
    assert_one_line(call(*explain, "--concept", "for_lop"), "did you mean 'for_loop'")
    assert_one_line(call("concepts", "explain", str(tmp_path / "no.py"), "-m", folder), "cannot read")
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    assert_one_line(call("concepts", "explain", str(tmp_path / "empty.py"), "-m", folder, *PLAIN), "the text is empty")
    page = ("--explain-html", str(tmp_path / "a.html"))
    assert_one_line(call("generate", "x", "-m", folder, "--n", "2", *page), "a page, and --why, are of one sample")
