"""Needles: what is planted and asked, what is held out, and the recipe, trained and measured for a moment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from conftest import MakeModel
from daguerre.heldout import load_frozen
from daguerre.model import Model
from daguerre.models.loading import load_model, open_source, save_model
from daguerre.models.scaling import read_scaling
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.run import run_training
from daguerre.train.shards import write_tokens
from recipe_scripts import recipe_scripts

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "needle"
LINE = re.compile(r"^(assert )?(\w+)_(\w+) ==? (\d{5})$")


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    """The scripts of recipes/needle, which see a few held-out files."""
    few = load_frozen()[:12]
    with recipe_scripts("needle", "texts", "prove") as found, pytest.MonkeyPatch.context() as patch:
        for module in (found.texts, found.prove):
            patch.setattr(module, "load_frozen", lambda: few)
        yield found


def found(text: str) -> list[tuple[bool, str, str, str]]:
    """The needles and questions of a text, in order: whether it is a question, two words, a value."""
    matches = (LINE.match(line) for line in text.splitlines())
    return [(m[1] is not None, m[2], m[3], m[4]) for m in matches if m is not None]


def filler(tokenizer: Tokenizer, num: int) -> list[int]:
    return [token for document in load_frozen()[:8] for token in tokenizer.encode(document.text)][:num]


def test_lines_are_planted_between_lines_at_their_depth(scripts: SimpleNamespace) -> None:
    lines = [f"line {number:2}\n" for number in range(10)]
    text = scripts.texts.planted(lines, [(0.95, "late\n"), (0.0, "first\n"), (0.5, "b\n"), (0.41, "a\n")])
    assert [line for line in text.splitlines(keepends=True) if line in lines] == lines
    order = text.split("\n")
    assert order[0] == "first"
    assert [order.index(name) for name in ("first", "a", "b", "late")] == sorted(
        order.index(name) for name in ("first", "a", "b", "late")
    )
    assert order[order.index("a") + 1] == "line  4"
    assert order[order.index("late") + 1] == "line  9"


def test_every_question_is_behind_its_needle_and_has_its_value(scripts: SimpleNamespace, tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    for length in (512, 2048):
        tokens = scripts.texts.training_text(filler(tokenizer, 3000), tokenizer, length, rng)
        assert length - 200 < len(tokens) <= length - 2
        values: dict[tuple[str, str], str] = {}
        lines = found(tokenizer.decode(tokens))
        for asks, first, second, value in lines:
            if asks:
                assert values[first, second] == value
            else:
                values[first, second] = value
        assert len(values) == max(1, length // scripts.texts.TOKENS_PER_NEEDLE)
        assert sum(asks for asks, *_ in lines) >= 1.5 * len(values)


def test_names_and_values_of_training_are_never_asked_for_in_held_out_texts(
    scripts: SimpleNamespace, tokenizer: Tokenizer
) -> None:
    texts, rng = scripts.texts, np.random.default_rng(1)
    taught, asked = texts.draw_needles(200, False, rng), texts.draw_needles(200, True, rng)
    for kind in (lambda one: one.name.split("_"), lambda one: [one.value]):
        a, b = ({word for one in needles for word in kind(one)} for needles in (taught, asked))
        assert not a & b
    assert len(set(texts.WORDS)) == len(texts.WORDS) > 150


def test_a_held_out_text_has_a_needle_at_each_depth_and_fits(scripts: SimpleNamespace, tokenizer: Tokenizer) -> None:
    texts = scripts.texts
    for length in (512, 1024):
        for probe in texts.probes(tokenizer, length, 2):
            text = tokenizer.decode(probe.tokens)
            longest = max(len(one.tokens) + len(one.answer) for one in probe.questions)
            assert length - 12 <= 1 + len(probe.tokens) + longest <= length
            places = [text.index(one.needle.line) / len(text) for one in probe.questions]
            assert np.allclose(places, texts.DEPTHS, atol=0.09)
            for one in probe.questions:
                whole = tokenizer.decode([*probe.tokens, *one.tokens, *one.answer])
                assert whole == f"{text}\nassert {one.needle.name} == {one.needle.value}\n"


def test_an_answer_is_exact_where_the_model_writes_it(
    scripts: SimpleNamespace, make_model: MakeModel, tokenizer: Tokenizer
) -> None:
    """The most likely tokens after the right ones are those of greedy text up to the first wrong one."""
    made = make_model(max_positions=512)
    model = Model(made.backbone, made.tokenizer, backend="torch")
    (probe,) = scripts.texts.probes(tokenizer, 300, 1)
    greedy = []
    for question in probe.questions:
        prompt = [*probe.tokens, *question.tokens]
        written = model.generate(prompt, len(question.answer), mode="ar", temperature=0.0)
        greedy.append([token.id for token in written.tokens])
    for at in (0, 4):  # what the model writes is taken for the answer
        probe.questions[at].answer[:] = greedy[at]
    right = scripts.prove.answered(model, probe)
    for place, (question, wrote) in enumerate(zip(probe.questions, greedy, strict=True)):
        agree = [a == b for a, b in zip(question.answer, wrote, strict=True)]
        agree[-1] = not made.tokenizer.decode(wrote[-1:])[:1].isdigit()
        first = agree.index(False) if False in agree else len(agree)
        assert right[place, :first].all()
        assert bool(right[place].all()) == (first == len(agree))
        assert place not in (0, 4) or right[place, :-1].all()


def test_the_recipe_trains_is_measured_and_reported(
    scripts: SimpleNamespace, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few steps on a tiny model, whose positions become four times as many."""
    texts, made, rng = scripts.texts, make_model(max_positions=128), np.random.default_rng(0)
    save_model(tmp_path / "model", made.backbone, made.tokenizer, torch.float32)
    ids = [np.array(texts.training_text(filler(made.tokenizer, 600), made.tokenizer, 400, rng)) for _ in range(4)]
    pairs = [(one, len(made.tokenizer.decode(one.tolist()).encode())) for one in ids]
    write_tokens(tmp_path / "corpus", {"train": pairs, "val": pairs[:1]}, made.tokenizer)
    folder = run_training(
        str(FOLDER / "needle.toml"),
        overrides=["steps=2", "minutes=0", *(f"stages.{i}.length=512" for i in range(3)), "precision=float32"],
        start_from=str(tmp_path / "model"),
        data=tmp_path / "corpus",
        out=tmp_path / "run",
        quiet=True,
    )
    assert open_source(folder).config() == read_scaling("yarn:4")(made.config)
    before, after = (load_model(path)[0].embedding.weight for path in (tmp_path / "model", folder))
    assert not torch.equal(before, after)
    monkeypatch.setattr(scripts.prove, "LENGTHS", (256, 512, 1024))
    for name in (str(folder), f"{tmp_path / 'model'}@none:4"):
        scripts.prove.measure_to(tmp_path / "out", name, 1, 2)
    scripts.prove.report(tmp_path / "out", tmp_path / "needle.json")
    values = json.loads((tmp_path / "needle.json").read_text())
    assert [{cell["length"] for cell in one["grid"]} for one in values] == [{256, 512}] * 2
    assert all(len(one["bits"]["by_position"]) == 8 for one in values)
    assert "| 512 | 9 |" in (tmp_path / "needle.md").read_text()
    assert (tmp_path / "needle.png").read_bytes().startswith(b"\x89PNG")
