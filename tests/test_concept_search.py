"""Search by concept, beside the plain modules under masks that are written out; and search for concepts by words."""

from __future__ import annotations

import json
import os
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from typer.testing import CliRunner

import daguerre
from conftest import CONTEXTS, GEMMA, MakeModel
from daguerre.cli import app
from daguerre.concepts.taxonomy import taxonomy
from daguerre.errors import InputError, UnsupportedError
from daguerre.files import CACHE
from daguerre.model import Model
from daguerre.models.catalog import Catalog, NamedConcept
from daguerre.models.core.config import ConceptShape
from daguerre.models.loading import save_model
from daguerre.scoring import concept_search
from daguerre.scoring.concept_index import ConceptIndex
from daguerre.scoring.concept_search import (
    MOST_PARAGRAPHS,
    UNITS,
    ConceptReader,
    FoundUnit,
    Lines,
    SearchedText,
    Term,
    UnitTable,
    find_concepts,
    found_in,
    functions,
    paragraphs,
    parse_query,
    read_tables,
    search,
    spans,
    windows,
)

SHAPE = ConceptShape(known=9, discovered=14, rank=4, kept_known=3, kept_discovered=5)
NUMBERS = (2, 0, 11)
CATALOG = Catalog(
    (
        NamedConcept(number=0, name="for_loop", group="control", description="A for statement: a loop over items."),
        NamedConcept(number=2, name="well-being", description="A state."),
        NamedConcept(number=5, name="loop_range", description="A for statement over a range."),
    ),
    9,
    14,
)
CODE = '''"""Above."""
import os


class A:
    @property
    @staticmethod
    def f(self):
        def g(x):
            return [
                y for y in x]
        return g

    z = 1


async def h(): return os
'''


def with_heads(make_model: MakeModel, **facts: Any) -> Model:
    made = make_model(concepts=SHAPE, **facts)
    random = torch.Generator().manual_seed(5)
    assert made.backbone.concepts is not None
    with torch.no_grad():
        for weight in made.backbone.concepts.parameters():
            weight.copy_(torch.randn(weight.shape, generator=random) / 2)
    return Model(made.backbone, made.tokenizer, concepts=CATALOG)


def random_ids(model: Model, num: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).choice(model.config.ordinary_ids, num).tolist()


def read(model: Model, ids: list[int], by: Any = "peak", backend: Any = None) -> np.ndarray:
    assert model.backbone.concepts is not None
    chosen = Model(model.backbone, model.tokenizer, backend)
    (out,) = ConceptReader(chosen.denoiser, chosen.denoiser.heads, NUMBERS, by).read([ids])
    return out


def hidden_by_mask(model: Model, tokens: list[int], seen: Tensor) -> Tensor:
    """Hidden states (R, D) of rows that see what a mask (R, R) says."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=q.shape[0] != k.shape[0])
        return out.transpose(0, 1)

    with torch.no_grad():
        out: Tensor = model.backbone(torch.tensor(tokens), torch.arange(len(tokens)), attend)
    return out


def restated(model: Model, ids: list[int], borders: list[int]) -> np.ndarray:
    """Logits (T, J): one forward for each span, whose rows see one another and the rows before them. Rows before a span
    see those up to their own, or up to the end of their block.
    """
    config, heads = model.config, model.backbone.concepts
    assert heads is not None
    tokens, shift, rows = [*config.first, *ids], int(config.shift), []
    for begin, end in zip(borders, borders[1:], strict=False):
        row = torch.arange(end if config.context == "full" else end - shift)
        seen = row[None] <= row[:, None]
        if config.context == "block":
            assert config.block_size is not None
            whole = -(-end // config.block_size) * config.block_size
            row = torch.arange(whole)
            seen = row[None] // config.block_size <= row[:, None] // config.block_size
        if config.context in ("causal", "full"):
            seen = seen | (row[:, None] >= begin - shift) | (config.context == "full")
        held = tokens + [config.placeholder] * (len(row) - len(tokens))
        hidden = hidden_by_mask(model, held[: len(row)], seen)[begin - shift : end - shift]
        with torch.no_grad():
            rows.append(torch.cat([heads.known_logits(hidden), heads.discovered_logits(hidden)], dim=-1)[:, NUMBERS])
    return torch.cat(rows).numpy()


BORDERS = {
    "causal": [1, 36, 71],
    "causal_unshifted": [1, 36, 71],
    "block": [1, 8, 16, 24, 32, 40, 48, 56, 64, 71],
    "reordered": [1, 71],
    "full": [1, 71],
    "full_unshifted": [1, 71],
}


def test_a_token_is_read_by_the_row_that_predicts_it_in_its_span(
    subtests: pytest.Subtests, make_model: MakeModel
) -> None:
    for name, borders in BORDERS.items():
        model = with_heads(make_model, **CONTEXTS[name])
        ids = random_ids(model, 70)
        expected = restated(model, ids, borders)
        for backend in ("native", "torch"):
            with subtests.test(name, backend=backend):
                found = read(model, ids, backend=backend)
                assert found.shape == (70, 3)
                assert np.abs(found - expected).max() < 1e-3
                assert found.std(axis=0).min() > 0.3


def test_a_token_is_seen_where_it_is_read_and_later_spans_are_not(
    subtests: pytest.Subtests, make_model: MakeModel
) -> None:
    for name, facts in CONTEXTS.items():
        model = with_heads(make_model, **facts)
        ids = random_ids(model, 70)
        changed = [*ids]
        changed[20] = next(one for one in random_ids(model, 9, seed=1) if one != ids[20])
        with subtests.test(name):
            differs = np.abs(read(model, ids) - read(model, changed)).max(axis=1) > 1e-4
            assert differs[20]
            before = {"full": 0, "full_unshifted": 0, "causal": 0, "causal_unshifted": 0, "reordered": 20}.get(name, 15)
            assert not differs[:before].any()


def test_the_weights_are_those_that_the_heads_keep(make_model: MakeModel) -> None:
    model = with_heads(make_model, context="reordered", shift=False)
    ids = random_ids(model, 30)
    row = torch.arange(31)
    hidden = hidden_by_mask(model, [*model.config.first, *ids], row[None] <= row[:, None])[1:]
    assert model.backbone.concepts is not None
    expected = model.backbone.concepts.weights(hidden)[:, NUMBERS].detach().numpy()
    found = read(model, ids, "mean")
    assert np.abs(found - expected).max() < 1e-3
    assert (found == 0).any() and (found > 0).any()


def test_what_is_read_does_not_depend_on_the_texts_beside_it(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_heads(make_model)
    texts = [random_ids(model, num, num) for num in (3, 0, 300, 70)]
    reader = ConceptReader(model.denoiser, model.denoiser.heads, NUMBERS, "peak")
    together = reader.read(texts)
    monkeypatch.setattr(concept_search, "AT_ONCE", 1)
    for ids, found in zip(texts, together, strict=True):
        assert found.shape == (len(ids), 3)
        assert np.array_equal(reader.read([ids])[0], found)


def test_a_long_text_is_read_in_windows_that_begin_with_text_read_before(make_model: MakeModel) -> None:
    assert list(windows(0, 8, 2)) == []
    assert list(windows(8, 8, 2)) == [(0, 0, 8)]
    assert list(windows(17, 8, 2)) == [(0, 0, 8), (6, 8, 14), (12, 14, 17)]
    model = with_heads(make_model)
    ids = random_ids(model, 300)
    found = read(model, ids)
    assert np.array_equal(found[:255], read(model, ids[:255]))
    again = read(model, ids[255 - 63 :])
    assert not np.array_equal(again[63:], found[255:])  # other spans
    (start, begun, stop), config = list(windows(300, 255, 63))[1], model.config
    borders = [begun - start + 1, *(end for _, end in spans(config, begun - start + 1, stop - start + 1))]
    assert np.abs(found[255:] - restated(model, ids[start:stop], borders)).max() < 1e-3


def test_spans_are_even_or_blocks_and_a_first_position_with_a_clean_anchor_is_alone(make_model: MakeModel) -> None:
    causal = make_model().config
    assert spans(causal, 1, 2) == [(1, 2)]
    assert spans(causal, 1, 66) == [(1, 33), (33, 66)]
    block = make_model(context="block", shift=False, block_size=8).config
    assert spans(block, 3, 18) == [(3, 8), (8, 16), (16, 18)]
    anchored = make_model(context="block", block_size=8, anchor="clean").config
    assert spans(anchored, 3, 18) == [(3, 8), (8, 9), (9, 16), (16, 17), (17, 18)]
    assert read(with_heads(make_model, context="block", block_size=8, anchor="clean"), [50] * 20).shape == (20, 3)


def test_a_query_is_concepts_with_signs() -> None:
    assert parse_query("for_loop", CATALOG) == (Term(0, "for_loop"),)
    assert parse_query("well-being +discovered 2 - loop_range", CATALOG) == (
        Term(2, "well-being"),
        Term(11, "discovered 2"),
        Term(5, "loop_range", wanted=False),
    )
    assert parse_query("- 0 + 5", CATALOG) == (Term(0, "for_loop", wanted=False), Term(5, "loop_range"))


NO_QUERIES = {
    "": "names a concept",
    "+": "names a concept",
    "-for_loop": "names a concept",
    "for_loop + 0": "twice",
    "for_lop": "did you mean 'for_loop'",
    "for_loop loop_range": "unknown concept",
    "discovered 14": "0 to 13",
}


def test_what_is_no_query_is_said(subtests: pytest.Subtests) -> None:
    for query, says in NO_QUERIES.items():
        with subtests.test(query), pytest.raises(InputError, match=says):
            parse_query(query, CATALOG)


def test_functions_have_their_names_and_their_lines_with_decorators() -> None:
    assert functions(CODE) == [("A.f", 6, 12), ("A.f.g", 9, 11), ("h", 17, 17)]
    assert functions("def f(:") == functions("") == functions("\0") == []


def test_a_token_is_in_the_line_of_its_first_visible_character() -> None:
    pieces = ["a", "\r\n  b", "\n", "\n c\n", "\té"]
    lines = Lines("".join(pieces), [piece.encode() for piece in pieces])
    assert lines.of_token.tolist() == [1, 2, 2, 4, 5]
    assert (lines.num, lines.text(2), lines.text(5)) == (5, "b", "é")
    assert Lines("a\n", [b"a\n"]).num == 1
    with pytest.raises(UnsupportedError, match="changes texts"):
        Lines("a", [b"A"])


def brute(model: Model, terms: tuple[Term, ...], text: str, by: str) -> dict[tuple[str, int, int], float]:
    """The score of every unit of a text, from probabilities and weights, by the formulas in the module."""
    ids = model.tokenizer.encode(text)
    heads = model.denoiser.heads
    (values,) = ConceptReader(model.denoiser, heads, [one.number for one in terms], by).read([ids])  # type: ignore[arg-type]
    line, before = list[int](), ""
    for piece in map(model.tokenizer.decode, [[one] for one in ids]):
        blank = len(piece) - len(piece.lstrip()) if piece.strip() else 0
        line.append(1 + (before + piece[:blank]).count("\n"))
        before += piece
    inner = functions(text)
    units = {unit: [place for place, at in enumerate(line) if unit[1] <= at <= unit[2]] for unit in inner}
    used = {place for places in units.values() for place in places}
    units["", 1, text.count("\n")] = [place for place in range(len(ids)) if place not in used]
    out = {}
    for unit, places in units.items():
        score = 0.0
        for number, term in enumerate(terms):
            of = [float(values[place, number]) for place in places]
            if by == "mean":
                score += (1 if term.wanted else -1) * sum(of) / len(of)
            else:
                probability = max(1 / (1 + np.exp(-one)) for one in of)
                score += np.log(probability if term.wanted else 1 - probability)
        out[unit] = score
    return out


def test_units_have_the_scores_of_the_formulas_and_the_best_places(
    subtests: pytest.Subtests, make_model: MakeModel
) -> None:
    model = with_heads(make_model)
    for query, by in product(("for_loop", "well-being + discovered 2 - loop_range"), ("peak", "mean")):
        with subtests.test(query, by=by):
            check_units(model, query, by)


def check_units(model: Model, query: str, by: Any) -> None:
    terms = parse_query(query, CATALOG)
    arguments = model.denoiser, model.denoiser.heads, model.tokenizer, terms
    other = "x = 1\n" * 30
    found = list(search(*arguments, [SearchedText("a", CODE), SearchedText("b", ""), SearchedText("c", other)], by))
    expected = brute(model, terms, CODE, by)
    assert {one.document for one in found} == {"a", "c"}
    scores = {(one.unit, one.first, one.last): one.score for one in found if one.document == "a"}
    assert scores.keys() == expected.keys()
    for unit, score in scores.items():
        assert score == pytest.approx(expected[unit], rel=1e-4, abs=1e-5)
    for one in found:
        assert [place.concept for place in one.places] == [term.name for term in terms if term.wanted]
        for place in one.places:
            assert one.first <= place.line <= one.last
            assert place.text == (CODE if one.document == "a" else other).splitlines()[place.line - 1].strip()
    (whole,) = search(*arguments, [SearchedText("a", CODE)], by, "file")
    assert (whole.unit, whole.first, whole.last) == ("", 1, 17)
    if by == "peak" and len(terms) == 1:
        assert whole.score == max(scores.values())
        assert whole.places[0].strength == pytest.approx(np.exp(whole.score))


def test_paragraphs_are_the_units_of_what_is_no_python(make_model: MakeModel) -> None:
    model = with_heads(make_model)
    arguments = model.denoiser, model.denoiser.heads, model.tokenizer, parse_query("0", CATALOG)
    (one,) = search(*arguments, [SearchedText("a", "def f(:\n  é")])
    assert isinstance(one, FoundUnit) and (one.unit, one.first, one.last) == ("", 1, 2)
    found = list(search(*arguments, [SearchedText("a", "\nDear reader,\n \nIt rained.\r\nIt rained on.\n\n\nBye\n")]))
    assert [(one.unit, one.first, one.last) for one in found] == [("", 2, 2), ("", 4, 5), ("", 8, 8)]


def test_a_text_has_so_many_units_at_most() -> None:
    text = ".\n\n" * 5000
    found = paragraphs(text)
    assert len(found) == MOST_PARAGRAPHS and (found[0][1], found[-1][2]) == (1, 9999)
    assert all(one[2] < two[1] for one, two in pairwise(found)) and len(paragraphs("( a\n\nb\nc\n")) == 2


def test_what_cannot_be_searched_is_said(make_model: MakeModel, causal: Model) -> None:
    terms = (Term(0, "for_loop"),)
    model = with_heads(make_model)
    arguments = model.denoiser, model.denoiser.heads, model.tokenizer, terms
    with pytest.raises(InputError, match="unknown strength 'peek': did you mean 'peak'"):
        search(*arguments, [], by="peek")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown unit"):
        search(*arguments, [], unit="class")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="no concept heads"):
        search(causal.denoiser, causal.denoiser.heads, causal.tokenizer, terms, [])
    replaced = with_heads(make_model, **GEMMA)
    with pytest.raises(UnsupportedError, match="uniform process"):
        list(search(replaced.denoiser, replaced.denoiser.heads, replaced.tokenizer, terms, [SearchedText("a", "x")]))


def test_concepts_are_found_by_words_and_names_count_three_times() -> None:
    found = find_concepts("Loop for", CATALOG.concepts)
    assert [(score, one.name) for score, one in found] == [(8, "for_loop"), (4, "loop_range")]
    assert find_concepts("being", CATALOG.concepts)[0][0] == 3
    assert find_concepts("lo", CATALOG.concepts) == []
    assert find_concepts("bare", taxonomy().concepts)[0][1].name == "bare_except"
    with pytest.raises(InputError, match="a word or several"):
        find_concepts("_ -", CATALOG.concepts)


def indexed(folder: Path, most_bytes: int = 1 << 20, by: Any = "peak", model: str = "m") -> ConceptIndex:
    return ConceptIndex(folder, model, by, most_bytes)


def tables(model: Model, by: Any, *texts: str) -> list[tuple[SearchedText, UnitTable]]:
    """What a model reads of all concepts."""
    reader = ConceptReader(model.denoiser, model.denoiser.heads, None, by)
    return list(read_tables(reader, model.tokenizer, [SearchedText(str(n), one) for n, one in enumerate(texts)]))


@pytest.mark.parametrize("by", ["peak", "mean"])
def test_an_index_answers_what_a_search_finds(make_model: MakeModel, tmp_path: Path, by: Any) -> None:
    model, index = with_heads(make_model), indexed(tmp_path / "i", by=by)
    texts = [CODE, "", "x = 1\n" * 90, "def f(:"]
    for document, table in tables(model, by, *texts):
        index.put(document, table)
    documents = [SearchedText(str(number), text) for number, text in enumerate(texts)]

    for query in ("for_loop", "well-being + discovered 2 - loop_range"):
        terms = parse_query(query, CATALOG)
        for unit in UNITS:
            expected = list(search(model.denoiser, model.denoiser.heads, model.tokenizer, terms, documents, by, unit))
            found = list[FoundUnit]()
            for document in documents:
                table = index.get(document)
                assert table is not None
                found += found_in(document, table, terms, [one.number for one in terms], by, unit)
            assert found == expected and len(found) >= 3


def test_an_index_has_nothing_of_other_texts_models_and_broken_files(make_model: MakeModel, tmp_path: Path) -> None:
    ((document, table),) = tables(with_heads(make_model), "peak", CODE)
    index = indexed(tmp_path)
    index.put(document, table)

    assert index.get(SearchedText("another name", CODE)) is not None
    assert index.get(SearchedText("0", CODE + "\n")) is None
    assert indexed(tmp_path, model="other").get(document) is None
    assert indexed(tmp_path, by="mean").get(document) is None
    (file,) = tmp_path.iterdir()
    for content in (b"", file.read_bytes()[:-40], b"PK\x03\x04" + bytes(100), b"\x80\x04N."):
        file.write_bytes(content)
        assert index.get(document) is None
    index.put(document, table)
    assert index.get(document) is not None


def test_an_index_forgets_what_was_used_the_longest_ago(make_model: MakeModel, tmp_path: Path) -> None:
    made = tables(with_heads(make_model), "peak", "a = 1\n", "b = 1\n", "c = 1\n")
    index = indexed(tmp_path)
    for age, (document, table) in enumerate(made):
        index.put(document, table)
        os.utime(index._path(document), (1000 + age, 1000 + age))
    (size,) = {file.stat().st_size for file in tmp_path.iterdir()}

    assert index.get(made[0][0]) is not None  # which is a use of it
    indexed(tmp_path, 2 * size).trim()
    assert [index.get(document) is not None for document, _ in made] == [True, False, True]


def test_a_second_search_loads_no_model(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_heads(make_model)
    folder = save_model(tmp_path / "m", model.backbone, model.tokenizer, torch.float32, catalog=CATALOG)
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    (tmp_path / "code").mkdir()
    for number in range(3):
        (tmp_path / "code" / f"{number}.py").write_text(f"{CODE}\n# {number}\n")
    loads = list[str]()
    load = daguerre.load
    monkeypatch.setattr(daguerre, "load", lambda name, **how: loads.append(name) or load(name, **how))

    def ask(query: str) -> str:
        words = ["concepts", "search", query, "--in", str(tmp_path / "code"), "--model", str(folder), "--json"]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0
        return str(done.stdout)

    first = ask("for_loop + discovered 3")
    assert ask("for_loop + discovered 3") == first and len(loads) == 1
    assert ask("loop_range") != first and len(loads) == 1
    (tmp_path / "code" / "1.py").write_text("def new(): pass\n")
    assert "new" in ask("for_loop") and len(loads) == 2
    monkeypatch.setenv(CACHE, "off")
    assert json.loads(ask("for_loop + discovered 3"))["found"] and len(loads) == 3


def test_the_commands_find_concepts_and_search_a_folder_with_them(make_model: MakeModel, tmp_path: Path) -> None:
    model = with_heads(make_model)
    folder = save_model(tmp_path / "m", model.backbone, model.tokenizer, torch.float32, catalog=CATALOG)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text(CODE, encoding="utf-8-sig")
    (tmp_path / "code" / "b.py").write_bytes(b"x = '\xff'\n")
    run = CliRunner()

    found = json.loads(run.invoke(app, ["concepts", "find", "loop", "--json"]).stdout)["concepts"]
    assert "for_loop" in [one["name"] for one in found]
    found = json.loads(run.invoke(app, ["concepts", "find", "over", "range", "--model", str(folder), "--json"]).stdout)
    assert [(one["name"], one["score"]) for one in found["concepts"]] == [("loop_range", 5), ("for_loop", 1)]
    assert "no concept has these words" in run.invoke(app, ["concepts", "find", "zebra"]).stdout

    words = ["concepts", "search", "for_loop + discovered 3", "--in", str(tmp_path / "code"), "--model", str(folder)]
    done = run.invoke(app, [*words, "--json", "-n", "3"])
    assert done.exit_code == 0, done.output
    assert done.stderr == f"left out, since not UTF-8: {tmp_path / 'code' / 'b.py'}\n"
    best = json.loads(done.stdout)["found"]
    assert len(best) == 3
    assert [one["score"] for one in best] == sorted((one["score"] for one in best), reverse=True)
    plain = run.invoke(app, words).stdout.splitlines()
    assert plain[0].startswith(f"{np.exp(best[0]['score']):.3f}  {tmp_path / 'code' / 'a.py'}:")
    assert plain[1].strip().startswith(f"{best[0]['places'][0]['line']}: ")
    assert f"[for_loop {best[0]['places'][0]['strength']:.3f}]" in plain[1]
    without = save_model(tmp_path / "without", make_model().backbone, model.tokenizer)
    for words in (["search", "for_loop", "--in", str(tmp_path / "code")], ["find", "loop"]):
        with pytest.raises(UnsupportedError, match="no concept heads"):
            run.invoke(app, ["concepts", *words, "--model", str(without)], catch_exceptions=False)
    with pytest.raises(InputError, match="no Python file"):
        run.invoke(
            app,
            ["concepts", "search", "for_loop", "--in", str(folder), "--model", str(folder)],
            catch_exceptions=False,
        )
