"""Mode "fim": gaps that are written behind the texts around them, and where they end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from backends import BACKENDS
from daguerre.decoding.context import kept_files
from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.modes.fim import MIDDLE_LINES
from daguerre.decoding.modes.joins import Join, beginning, cuts, repeats
from daguerre.decoding.sample import Sample, drive
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.config import FimTokens
from daguerre.models.families.base import Published
from daguerre.models.families.fim import KINDS, fim_tokens
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.likelihood import score_tokens

FIM = FimTokens(prefix=5, suffix=6, middle=7, repository=8, file=9)
BEFORE, AFTER = "def area(w, h):\n    total = ", "\n    return total\n"
MakeModel = Callable[..., Model]


def made(make_model: MakeModel, backend: Any = "native", fim: FimTokens | None = FIM, **facts: Any) -> Model:
    """An autoregressive model with tokens of fill-in-the-middle."""
    model = make_model(mask_id=None, null_id=None, fim=fim, **facts)
    return Model(model.backbone, model.tokenizer, backend)


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Model:
    return made(make_model)


def ids(model: Model, text: str) -> list[int]:
    return model.tokenizer.encode_plain(text, begins=False)


LONG = "import os\n" * (MIDDLE_LINES + 1) + BEFORE


def sides(model: Model, heals: bool) -> tuple[list[int], list[int], list[int]]:
    """Tokens of the text before the gap, of the text after it, and of the lines that stand behind both."""
    lines = LONG.splitlines(keepends=True)
    before = ids(model, "".join(lines[:MIDDLE_LINES] if heals else lines))
    return before, ids(model, AFTER), ids(model, "".join(lines[MIDDLE_LINES:])) if heals else []


LAYOUTS: list[tuple[FimTokens, Any, Callable[[Any, list[int], list[int]], list[int]]]] = [
    (FIM, None, lambda t, a, b: [5, *a, 6, *b, 7]),
    (replace(FIM, suffix_first=True), None, lambda t, a, b: [6, *b, 5, *a, 7]),
    (replace(FIM, suffix_first=True, middle=None), None, lambda t, a, b: [6, *b, 5, *a]),
    (FIM, (), lambda t, a, b: [8, *t("myproject\n"), 9, *t("filename\n"), 5, *a, 6, *b, 7]),
    (
        FIM,
        {"a.py": "x = 1\n", "b.py": "y = 2\n"},
        lambda t, a, b: [
            *(8, *t("myproject\n"), 9, *t("a.py\n"), *t("x = 1\n"), 9, *t("b.py\n"), *t("y = 2\n")),
            *(9, *t("filename\n"), 5, *a, 6, *b, 7),
        ],
    ),
    (
        replace(FIM, repository=None, file=None),
        [("a.py", "x = 1\n")],
        lambda t, a, b: [*t("\n\n--- snippet ---\n\n"), *t("x = 1\n"), 5, *a, 6, *b, 7],
    ),
]


def test_a_gap_is_what_follows_its_prompt(make_model: MakeModel, subtests: pytest.Subtests) -> None:
    """The tokens of mode "ar" after a prompt that is made by hand, also where they are drawn or constrained."""
    for number, (fim, files, layout) in enumerate(LAYOUTS):
        model = made(make_model, fim=fim)
        hows: list[dict[str, Any]] = [{"fill_end": "model"}, {"fill_end": "model", "temperature": 0.8, "seed": number}]
        for how in (*hows, {"regex": "[a-z ]{3,9}"}):
            with subtests.test(number, **how):
                result = model.infill(LONG, AFTER, 12, files=files, **how)
                heals = "regex" not in how and fim.middle is not None and not fim.suffix_first
                before, after, begun = sides(model, heals)
                prompt = [*layout(lambda text, model=model: ids(model, text), before, after), *begun]
                plain = {name: value for name, value in how.items() if name != "fill_end"}
                want = model.generate(prompt, 12, mode="ar", heal=heals, **plain)
                start = want.trace.canvas.gaps[0][0]
                assert result.trace.canvas.tokens[:start].tolist() == [*model.config.first, *prompt][:start]
                assert start > len(prompt) - 4 and (not heals or begun)
                assert [token.id for token in result.tokens] == [token.id for token in want.tokens]
                assert (result.usage.mode, result.usage.prompt_tokens) == ("fim", len(prompt))


def test_a_key_that_is_pressed_changes_the_end_of_the_prompt_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for one line in MIDDLE_LINES, and where a line is very long."""
    monkeypatch.setattr("daguerre.decoding.modes.fim.MIDDLE_LINES", 8)

    def middle(before: str) -> int:
        canvas = model.infill(before, AFTER, 1, fill_end="model").trace.canvas
        return canvas.tokens[: canvas.gaps[0][0]].tolist().index(7)

    text = "".join(f"x{n} = {n}\n\n" for n in range(9))
    found = [middle(text[:end]) for end in range(1, len(text))]
    assert found == sorted(found) and len(set(found)) == 3
    monkeypatch.setattr("daguerre.decoding.modes.fim.MIDDLE_TOKENS", 32)
    assert 2 < len({middle("x = " + "a * " * num) for num in range(60)}) < 6


def test_a_published_model_heals_the_word_at_a_gap_and_no_other(model: Model) -> None:
    """Unless it is asked not to."""
    published = Model(model.backbone, model.tokenizer, "native", family="qwen2")

    def healed(result: Any) -> int:
        return len(model.config.first) + result.usage.prompt_tokens - result.trace.canvas.gaps[0][0]

    assert healed(published.infill(BEFORE, AFTER, 4)) == healed(model.infill(BEFORE, AFTER, 4)) > 0
    assert healed(published.infill(BEFORE, AFTER, 4, heal=False)) == healed(published.generate(BEFORE, 4)) == 0
    assert healed(model.generate(BEFORE, 4)) > 0


def test_every_call_with_one_gap_has_it(model: Model) -> None:
    text = model.infill(BEFORE, AFTER, 8).text
    assert model.fill(f"{BEFORE}<gap>{AFTER}", 8).text == BEFORE + text + AFTER
    edited = model.edit(f"{BEFORE}old{AFTER}", [(len(BEFORE), len(BEFORE) + 3)], 8)
    assert edited.text == BEFORE + text + AFTER and edited.spans == ((len(BEFORE), len(BEFORE) + len(text)),)
    *events, last = model.stream(BEFORE, 8, suffix=AFTER)
    assert last.text == text and all(text.startswith(event.committed) for event in events)
    many = model.infill(BEFORE, AFTER, 8, n=2, temperature=1.0, seed=3)
    assert len({one.text for one in many.choices}) == 2
    assert model.infill(BEFORE, AFTER).usage.completion_tokens <= 128


def test_what_it_cannot_do_is_refused(model: Model, make_model: MakeModel) -> None:
    for call, error, said in (
        (lambda: model.fill("a<gap>b<gap>c", 4), UnsupportedError, "one gap at a time"),
        (lambda: model.infill("a", "b", 4, search_length=True), UnsupportedError, "cannot search a length"),
        (lambda: model.edit("abc", [(1, 2)], strength=0.5), UnsupportedError, "redraws all of a gap"),
        (
            lambda: made(make_model, fim=replace(FIM, suffix_first=True)).infill("a", "b", 4, heal=True),
            UnsupportedError,
            "heals no word",
        ),
        (lambda: model.generate("a", 4, mode="fim"), InputError, "give a suffix"),
        (lambda: model.generate("a", 4, fill_end="model"), InputError, "fill_end is not used"),
        (lambda: made(make_model, fim=None).infill("a", "b", 4, mode="fim"), UnsupportedError, 'use mode "beam"'),
        (lambda: model.infill("a", "b", 4, files="x"), InputError, "files must be a dict of texts"),
    ):
        with pytest.raises(error, match=said):
            call()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_without_such_tokens_has_its_gaps_searched(make_model: MakeModel, backend: Any) -> None:
    """By likelihood alone: of all texts of two tokens or fewer the best one is found with enough hypotheses."""
    model = made(make_model, backend, fim=None)
    result = model.infill("x = ", "\n", 2, heal=False, num_beams=4096 // 16)
    assert result.usage.mode == "beam" and 0 < result.usage.completion_tokens <= 2
    first, before, after = model.config.first, model.tokenizer.encode_plain("x = "), ids(model, "\n")

    def nats(middle: list[int]) -> float:
        tokens = [*first, *before, *middle, *after]
        return score_tokens(model.denoiser.backend, tokens, kind="ar", given=len(tokens) - len(middle) - 1).value

    best = nats([token.id for token in result.tokens])
    assert all(nats([token]) >= best - 1e-3 for token in model.config.ordinary_ids.tolist()[::40])


CUTS: list[tuple[str, str, str, list[str]]] = [
    # what is written, before, after, and the beginnings that may be kept
    ("w * h\n    return w\n\ndef", BEFORE, AFTER, ["w * h", "w * h\n    return w", "w * h\n    return w\n"]),
    ("w * h\n    return total\n", BEFORE, AFTER, ["w * h", "w * h\n    return total"]),
    ("    x = 1\n    y = 2\n", "def f():\n", "    return x\n", ["    x = 1\n", "    x = 1\n    y = 2\n"]),
    ("w * h)  # w * h) and more", "f(", ") + g(a, b, c)\n", []),
    ("w * h) + g(a, b, c)\nx", "f(", ") + g(a, b, c)\n", ["w * h", "w * h) + g(a, b, c)"]),
    ("abc", BEFORE, AFTER, []),
    ("a = 1; b = 2; c", "int d;\nint ", " d = 3;\n", ["a = 1;", "a = 1; b = 2;"]),
    ('f"{a} {b}"; x', "a = {}\n", " + 1\n", []),
]


def test_a_gap_may_end_at_ends_of_lines_and_where_the_text_after_it_begins(subtests: pytest.Subtests) -> None:
    for written, before, after, kept in CUTS:
        with subtests.test(written):
            assert [written[:cut] for cut in cuts(written, before, after)] == kept
    assert len(cuts("x\n" * 30, BEFORE, AFTER)) == 8
    assert beginning("\n    )\n    return x\n") == ")\n    return x" and beginning("\n )\n") is None
    assert repeats("a\n    return total\n", AFTER) == [6] and repeats("a = b; return total", AFTER) == []


def run_of(model: Model, **how: Any) -> Sample:
    """A sample whose gap is written."""
    sample = Sample(
        model.denoiser,
        plan_of(model.denoiser, model.tokenizer, Request.of("infill", BEFORE, AFTER, 24, **how)),
        0,
        None,
    )
    for _ in drive(sample):
        pass
    return sample


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", [False, True], ids=["prefix first", "suffix first"])
def test_a_gap_ends_where_the_text_after_it_is_likeliest(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, backend: Any, first: bool
) -> None:
    """The scores are those of each whole text by itself, of all places and of those up to a few worse ones."""
    model = made(make_model, backend, fim=replace(FIM, suffix_first=first))
    bias = {**dict.fromkeys(ids(model, "\n"), 20.0), model.config.eos_id: -float("inf")}
    how: dict[str, Any] = {"logit_bias": bias, "temperature": 1.0, "seed": 2}
    written, early = run_of(model, fill_end="model", **how), run_of(model, **how)
    monkeypatch.setattr("daguerre.decoding.modes.fim.PATIENCE", 99)
    cut = run_of(model, **how)
    join, texts = Join.of(written.plan), dict[str, float]()
    healed = written.plan.gaps[0].healing.text.decode()
    given = [*model.config.first, *([] if first else [FIM.prefix]), *ids(model, BEFORE.removesuffix(healed))]
    assert bool(healed) is not first
    for place in join.places(written.canvas):
        tokens = [*given, *(path := join.path(written.canvas, place))]
        num = len(tokens) - len(path) + join.num_same(place)
        score = score_tokens(model.denoiser.backend, tokens, kind="ar", given=num)
        texts[model.tokenizer.decode(path).removeprefix(healed).removesuffix(AFTER)] = -score.value
    assert len(texts) > 2 and cut.result().text == max(texts, key=lambda text: texts[text])
    assert cut.result().finish_reason == "stop" and written.result().finish_reason == "length"
    assert written.result().text.startswith(cut.result().text)
    seen = list(texts.values())
    num = next((n for n in range(4, len(seen)) if max(seen[:n]) > max(seen[n - 3 : n])), len(seen))
    assert first or num < len(seen)
    assert early.result().text == max(list(texts)[: len(seen) if first else num], key=texts.__getitem__)
    *events, last = model.stream(BEFORE, 24, suffix=AFTER, **how)
    assert all(last.text.startswith(event.committed) for event in events) and last.text == cut.result().text


def test_a_draft_of_a_gap_is_taken_where_it_is_likely(model: Model) -> None:
    prompt = [5, *ids(model, BEFORE), 6, *ids(model, AFTER), 7]
    draft = ids(model, "w * h")
    tokens = [*model.config.first, *prompt, *draft]
    nats = score_tokens(model.denoiser.backend, tokens, kind="ar", given=len(tokens) - len(draft)).value
    mean = math.exp(-nats / len(draft))
    taken = model.infill(BEFORE, AFTER, 24, draft="w * h", accept_draft=0.999 * mean)
    assert (taken.text, taken.finish_reason, taken.usage.forwards) == ("w * h", "stop", 1)
    written = model.infill(BEFORE, AFTER, 24, draft="w * h", accept_draft=1.001 * mean)
    assert written.text == model.infill(BEFORE, AFTER, 24, draft="w * h", heal=False).text != "w * h"
    how: dict[str, Any] = {"draft": "    x = 1", "accept_draft": 1.0}
    line = model.infill("def f():\n", AFTER, 24, **how)  # no word is cut, so the lines are behind as ever
    assert (
        line.text
        == model.infill("def f():\n", AFTER, 24).text
        != model.infill("def f():\n", AFTER, 24, heal=False).text
    )


def test_tokens_are_found_by_text_and_by_keys(subtests: pytest.Subtests) -> None:
    for kind in KINDS:
        with subtests.test(kind.prefix):
            texts = [text for text in (kind.prefix, kind.suffix, kind.middle) if text is not None]
            found = fim_tokens(Published(config={}, tokens={text: n for n, text in enumerate(texts)}), 10)
            middle = None if kind.middle is None else 2
            assert found == FimTokens(prefix=0, suffix=1, middle=middle, suffix_first=kind.suffix_first)
            assert fim_tokens(Published(config={}, tokens={kind.prefix: 1}), 10) is None
    named = {"fim_prefix_token_id": 4, "fim_suffix_token_id": 5, "fim_middle_token_id": 6, "fim_file_token_id": 12}
    assert fim_tokens(Published(config=named), 10) == FimTokens(prefix=4, suffix=5, middle=6)


def test_files_are_kept_from_the_last_as_far_as_there_is_room() -> None:
    tokenizer = Tokenizer.default("2k")
    files = (("a.py", "x = 1\n" * 40), ("b.py", "y = 2\n" * 4))
    size = {name: len(tokenizer.encode_plain(f"{name}\n{text}")) for name, text in files}
    assert kept_files(tokenizer, files, sum(size.values())) == files
    (a, text), b = kept_files(tokenizer, files, size["b.py"] + 40)
    assert (a, b) == ("a.py", files[1]) and files[0][1].startswith(text) and text.endswith("\n")
    assert kept_files(tokenizer, files, size["b.py"]) == files[1:] and kept_files(tokenizer, files, 2) == ()
