"""Training of concept heads for a published model: which text is chosen, the loss, and runs."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gguf")

import daguerre
from commands import daguerre as run_command
from daguerre.concepts.own import OwnConcept, OwnTaxonomy, read_taxonomy
from daguerre.concepts.taxonomy import taxonomy
from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.evals.concepts.heads import LOGISTIC, NAIVE_BAYES, measure_heads, measure_shares, text_of
from daguerre.model import Model
from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.models.core.shapes import ConceptShape
from daguerre.models.head_files import read_head_folder
from daguerre.train.corpus.document import CorpusDocument
from daguerre.train.corpus.sources import Package
from daguerre.train.drafts.options import DraftOptions
from daguerre.train.heads import windows as module
from daguerre.train.heads.loss import DrawnWords, Normal, WordsOf, folded, fresh_heads, inner_shape, word_loss
from daguerre.train.heads.options import HeadOptions
from daguerre.train.heads.predictors import Prevalence, calibrate, drawn_spans, predictors_loss
from daguerre.train.heads.run import _windows, train_heads
from daguerre.train.heads.states import FILE, WindowStates, states_of
from daguerre.train.heads.subject import PYTHON, OwnSubject, places_in, texts_at
from daguerre.train.heads.training import HeadRun
from daguerre.train.heads.windows import (
    ChosenWindows,
    LabeledFiles,
    TextCutter,
    choose,
    labeled,
    make_windows,
    windows_of,
)
from daguerre.train.settings import FILE as FILE_OF_OPTIONS
from daguerre.train.settings import keep_options, options_of

MODEL = Path(__file__).parents[2] / "data" / "gguf" / "llama-q4_k.gguf"
PROSE = Path(__file__).parents[3] / "examples" / "concepts" / "prose.toml"
SOURCE = Path(daguerre.__file__).parent / "concepts"
SMALL = {"rows": 128, "words": 32, "vocabulary": 64, "rank": 12, "kept_known": 8, "kept_discovered": 24}
OPTIONS = HeadOptions(tokens=4000, labeled=8000, held=3000, predictor_steps=30, passes=2, discovered=1, **SMALL)
SHAPE = inner_shape(OPTIONS.shape(384, ""))


@pytest.fixture(scope="module")
def model() -> Model:
    return daguerre.load(MODEL, concepts="none")


@pytest.fixture(scope="module")
def windows(model: Model, tmp_path_factory: pytest.TempPathFactory) -> ChosenWindows:
    options = replace(OPTIONS, window=model.config.max_positions - 1)
    kept = LabeledFiles(tmp_path_factory.mktemp("labeled"))
    return make_windows([SOURCE], model.tokenizer, options, lambda done, asked: None, kept)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    train_heads(str(MODEL), [SOURCE], out, OPTIONS, say=lambda line: None)
    return out


def test_rare_concepts_are_chosen_before_others() -> None:
    rng = np.random.default_rng(0)
    counts = np.zeros((400, 3), np.uint8)
    counts[:, 0] = 4
    counts[rng.permutation(400)[:60], 1] = 1
    counts[rng.permutation(400)[:8], 2] = 1
    options = HeadOptions(tokens=100 * 64, fewest=20)

    taken = choose(counts, np.full(400, 64), options)

    assert len(taken) == 100
    assert counts[taken, 2].sum() == 8 and counts[taken, 1].sum() >= 20


def test_windows_are_labeled_whole_and_packages_are_held_out(model: Model, windows: ChosenWindows) -> None:
    assert windows.held.any() and not windows.held.all()
    assert len(windows.tokens) == windows.sizes.sum() and windows.sizes[windows.held].sum() < OPTIONS.held + 256
    number, start = int(np.argmax(windows.sizes)), int(windows.starts[np.argmax(windows.sizes)])
    ids = windows.tokens[start : start + windows.sizes[number]]
    text, found = model.tokenizer.decode(ids.tolist()), windows.concepts(np.arange(start, start + len(ids)))
    name = taxonomy().named("docstring").id
    assert found[:, name].any() == ('"""' in text)
    assert windows.counts().max() <= -(-int(windows.sizes.max()) // 64)

    packages = [Package(name, "", "MIT", SOURCE, ("texts.py", "names.py")) for name in ("requests", "other")]
    train, held = places_in(packages, 0)
    names = {package.name for package, _ in held}
    assert names and {package.name for package, _ in train}.isdisjoint(names)
    seen = set[str]()
    assert len([*texts_at([*train, *held], seen)]) == 2  # the same two files in both packages


def test_one_package_has_a_share_at_most(model: Model, tmp_path: Path) -> None:
    kept = LabeledFiles(tmp_path)
    files = tuple(path.name for path in sorted(SOURCE.glob("*.py")))
    documents = list(texts_at([(Package("big", "", "MIT", SOURCE, files), name) for name in files], set()))
    cutter = TextCutter(model.tokenizer, PYTHON, 256)
    whole = labeled(documents, cutter, False, 20_000, kept)
    shared = labeled(documents, cutter, False, 20_000, kept, share=0.1)
    assert len(shared.tokens) < 0.5 * len(whole.tokens)


def test_a_file_that_was_labeled_is_not_labeled_again(
    model: Model, windows: ChosenWindows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, calls = replace(OPTIONS, window=model.config.max_positions - 1), list[str]()

    def interrupted(document: CorpusDocument, *how: Any) -> ChosenWindows | None:
        calls.append(document.text)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return windows_of(document, *how)

    monkeypatch.setattr(module, "windows_of", interrupted)
    for _ in range(2):
        kept = LabeledFiles(tmp_path / "labeled")
        try:
            again = make_windows([SOURCE], model.tokenizer, options, lambda done, asked: None, kept)
        except KeyboardInterrupt:
            assert len(calls) == 4
    assert len(calls) == len(set(calls)) + 1, "the one that was interrupted alone"
    assert np.array_equal(again.tokens, windows.tokens) and np.array_equal(again.labels, windows.labels)
    kept.remove()
    assert not (tmp_path / "labeled").exists()


def test_labels_that_another_model_was_asked_for_are_not_taken(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.md").write_text("It costs $4, or perhaps $5.\n\n" * 40)
    calls, own = list[str](), OwnTaxonomy((OwnConcept(name="price", means="x", pattern="[$][0-9]"),))

    def counted(document: CorpusDocument, *how: Any) -> ChosenWindows | None:
        calls.append(document.text)
        return windows_of(document, *how)

    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "windows_of", counted)
    run, options = tmp_path / "run", replace(OPTIONS, tokens=200, labeled=400, held=1)
    with monkeypatch.context() as patch:
        patch.setattr(module, "choose", interrupted)
        for asked in ("one", "one", "two"):
            with pytest.raises(KeyboardInterrupt):
                _windows(model, [tmp_path / "texts"], run, options, OwnSubject(own, asked=asked), False, print)
    assert len(calls) == 2 and len([*run.glob("labeled-*")]) == 2
    _windows(model, [tmp_path / "texts"], run, options, OwnSubject(own, asked="two"), False, print)
    assert len(calls) == 2 and not [*run.glob("labeled-*")]


def test_states_are_those_of_the_model_and_are_not_computed_twice(
    model: Model, windows: ChosenWindows, tmp_path: Path
) -> None:
    few = windows.take(np.arange(5))
    states = WindowStates(tmp_path, few, model.config.width)
    states.compute(model, lambda done, total, speed: False)
    part = (tmp_path / FILE).read_bytes()
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"half a row")

    again = WindowStates(tmp_path, few, model.config.width)
    assert 0 < again.done < 5 or again.is_whole
    again.compute(model, lambda done, total, speed: True)

    assert (tmp_path / FILE).read_bytes()[: len(part)] == part
    expected = np.concatenate([states_of(model, few, number) for number in range(5)])
    assert np.array_equal(again.all, expected)


def test_folded_heads_are_those_of_normal_rows() -> None:
    every = replace(OPTIONS.shape(384, ""), kept_known=384, kept_discovered=384)  # rounding may swap kept concepts
    heads = fresh_heads(32, inner_shape(every), np.full(384, 0.1), np.full(384, 0.2), 0)
    h = 5 * torch.randn(400, 32, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.2, 3, 32) + 2
    normal = Normal.of(h)
    plain = ConceptHeads(32, every)
    plain.load_state_dict({n.removeprefix("concepts."): w for n, w in folded(heads.state_dict(), normal).items()})

    inner, outer = heads.decompose(normal(h)), plain.decompose(h)

    assert torch.allclose(plain.known_logits(h), heads.known_logits(normal(h)), atol=0.02)
    assert torch.allclose(plain.read_logits(h), heads.read_logits(normal(h)), atol=0.02)
    expected = (inner.known + inner.discovered) * normal.scale + normal.mean
    assert (outer.known + outer.discovered - expected).abs().max() < 0.05 * h.abs().max()
    assert (outer.discovered_ids == plain.shape.known + plain.shape.discovered - 1).any(dim=1).all()


def test_the_loss_over_words_is_least_where_logits_are_equal() -> None:
    heads = fresh_heads(16, SHAPE, np.full(384, 0.1), np.full(384, 0.1), 0)
    generator = torch.Generator().manual_seed(0)
    projection = torch.randn(200, 16, generator=generator)
    model = DrawnWords(heads, projection, None, Normal(torch.ones(16), torch.full((16,), 2.0)))
    model.draw(torch.arange(0, 200, 3))
    x = torch.randn(8, 16, generator=generator)

    assert torch.allclose(model.logits(x), (2 * x + 1) @ projection[::3].T, atol=1e-4)
    assert float(word_loss(model, x, x)) == pytest.approx(0, abs=1e-6)
    assert float(word_loss(model, x, x + 0.1)) > 1e-4
    raised = model.promoted(torch.eye(16))
    assert torch.allclose(raised, 2 * (projection[::3] - projection.mean(dim=0)).T, atol=1e-5)


def test_drawn_tokens_have_what_the_text_says_of_them() -> None:
    tokens, labels = np.array([3, 3, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5]), np.zeros((12, 2), bool)
    labels[:5, 0] = labels[10:, 1] = True
    of = WordsOf([(tokens[:6], labels[:6]), (tokens[6:], labels[6:])], 2, 9)

    found = of.drawn(np.array([3, 5, 8]))

    assert of.prevalence.tolist() == pytest.approx([5 / 12, 2 / 12])
    assert found.usual.tolist() == pytest.approx([5 / 12, 7 / 12, 0])
    assert found.given.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert found.liked.tolist() == [[True, False, False], [False, False, False]]
    assert found.most.tolist() == pytest.approx([np.log(12 / 5), 0])


def test_a_run_makes_heads_and_is_measured(run: Path) -> None:
    folder = read_head_folder(run / "concepts")
    assert folder.shape == replace(OPTIONS.shape(384, taxonomy().sha256)) and folder.trained["steps"] > 10
    model = daguerre.load(MODEL, concepts=folder.path)
    assert model.generate("def f(x):\n    ", 4, explain=True).concepts is not None

    report = measure_heads(run, controls=(NAIVE_BAYES, LOGISTIC))

    assert model.denoiser.heads is not None
    shares = measure_shares(run, model.denoiser.heads, 50)

    assert 0 < shares["known"] < shares["aggregated"] < 1 and shares["rows"] == 50
    assert [each["condition"] for each in report["conditions"]] == ["to come", "read"]
    assert [one["name"] for one in report["conditions"][0]["scorers"]][1:] == [NAIVE_BAYES, LOGISTIC]
    other = text_of(SOURCE.parent / "audit", model, 3000)
    assert 10 < len(other.starts) == measure_heads(run, controls=(NAIVE_BAYES,), test=other)["cases"]


def test_a_run_that_was_interrupted_goes_on(model: Model, windows: ChosenWindows, tmp_path: Path) -> None:
    states = WindowStates(tmp_path / "states", windows, model.config.width)
    states.compute(model, lambda done, total, speed: True)
    base, quiet = {"name": "x", "sha256": ""}, {"say": lambda line: None}
    whole = HeadRun(model, states, base, tmp_path / "whole", OPTIONS, **quiet)
    whole.run()
    parts = HeadRun(model, states, base, tmp_path / "parts", OPTIONS, **quiet)
    for steps in (5, OPTIONS.predictor_steps):
        for _ in range(steps):
            parts._next()
        parts.save()
        parts = HeadRun(model, states, base, tmp_path / "parts", OPTIONS, resume=True, **quiet)
        assert parts.progress.predictor_step + parts.progress.step == (5 if steps == 5 else steps + 5)
    parts.run()

    for name, value in whole.average.values.items():
        assert torch.equal(value, parts.average.values[name]), name


def test_minutes_that_ended_the_predictors_early_do_not_begin_them_again(
    model: Model, windows: ChosenWindows, tmp_path: Path
) -> None:
    states = WindowStates(tmp_path / "states", windows, model.config.width)
    states.compute(model, lambda done, total, speed: True)
    base = {"name": "x", "sha256": ""}
    run = HeadRun(model, states, base, tmp_path, OPTIONS, minutes=1000, say=lambda line: None)
    run._next()
    run._began -= 0.5 * 60 * 1000
    run._next()
    run.save()
    assert (run.progress.predictor_step, run.progress.step) == (1, 1)

    resumed = HeadRun(model, states, base, tmp_path, OPTIONS, resume=True, say=lambda line: None)
    resumed._next()
    assert (resumed.progress.predictor_step, resumed.progress.step) == (1, 2)


def test_ctrl_c_ends_a_run_after_its_step(model: Model, windows: ChosenWindows, tmp_path: Path) -> None:
    states = WindowStates(tmp_path / "states", windows, model.config.width)
    states.compute(model, lambda done, total, speed: True)
    run = HeadRun(model, states, {"name": "x"}, tmp_path, OPTIONS, say=lambda line: None)
    following = run._next

    def interrupted() -> dict[str, float]:
        signal.raise_signal(signal.SIGINT)
        return following()

    run._next = interrupted  # type: ignore[method-assign]
    assert read_head_folder(run.run()).trained["steps"] == 0
    assert HeadRun(model, states, {"name": "x"}, tmp_path, OPTIONS, resume=True).progress.predictor_step == 1


@pytest.mark.parametrize("made", [HeadOptions, DraftOptions])
def test_a_resumed_run_has_its_own_options(made: Any, tmp_path: Path) -> None:
    keep_options(tmp_path, made(rank=4, rate=0.5))
    assert options_of(made, tmp_path, ["rate=0.25"], resume=True) == made(rank=4, rate=0.25)
    assert options_of(made, tmp_path, ["rank=4"], resume=True).rate == 0.5
    assert options_of(made, tmp_path, ["rank=5"], resume=False) == made(rank=5)
    assert options_of(made, tmp_path / "new", ["rank=5"], resume=True) == made(rank=5)
    with pytest.raises(InputError, match="began with rank=4: leave rank out"):
        options_of(made, tmp_path, ["rank=5"], resume=True)
    (tmp_path / FILE_OF_OPTIONS).write_text('{"rink": 3}')
    with pytest.raises(CheckpointError, match="rink"):
        options_of(made, tmp_path, [], resume=True)


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prose")
    for number in range(40):
        worth = "${}.50" if number % 2 else "what we paid for item {}"
        lines = [f"On day {day} the kettle was {worth.format(number + day)}, and we were glad." for day in range(30)]
        (folder / f"letter-{number}.txt").write_text("Dear reader,\n\n" + "\n".join(lines) + "\n")
    return folder


def test_heads_learn_concepts_of_ones_own(prose: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["train", "heads", "--from", str(MODEL), "--data", str(prose), "--out", str(out), "--taxonomy"]
    sets = [f"--set={name}={value}" for name, value in (SMALL | {"tokens": 4000, "held": 4000, "rate": 0.02}).items()]

    done = run_command(*command, str(PROSE), *sets, "--set=passes=8")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("price: AUC ")]
    assert float(line.split()[2]) > 0.9, line
    assert "apology: in no held-out token" in done.stderr
    assert "daguerre concepts explain -m" in done.stderr

    folder = read_head_folder(out / "concepts")
    assert folder.shape.known == 10 and folder.shape.kept_known == 8 and folder.shape.discovered == 384
    model = daguerre.load(MODEL, concepts=folder.path)
    assert model.concepts is not None and model.concepts.by_name["price"].description.startswith("An amount")
    result = model.generate("On day 3 the", 8, explain=True, forbid=["price"])
    assert result.concepts is not None and "price" in model.concepts.by_name
    assert "hedge" not in model.concepts.by_name and "hedge 0" in done.stderr, "what was never seen is left out"
    report = measure_heads(out, controls=())
    assert report["cases"] > 10 and report["taxonomy"] == folder.shape.taxonomy != taxonomy().sha256
    again = run_command(*command, str(PROSE), "--resume")
    assert again.returncode == 0 and "price: AUC" in again.stderr
    other = tmp_path / "other.toml"
    other.write_text("[concepts.kettle]\nmeans = 'A kettle.'\npattern = 'kettle'\n")
    assert "began with another taxonomy" in run_command(*command, str(other), "--resume").stderr


def test_labels_of_texts_are_learned_from(model: Model, tmp_path: Path) -> None:
    texts = [f"we paid ${number} for it, and it was worth every cent that we paid" for number in range(50)]
    lines = [{"text": text, "spans": [["price", 8, 8 + len(text.split()[2])]]} for text in texts]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, lines)))
    subject = OwnSubject(read_taxonomy(tmp_path / "labels.jsonl"))

    made = make_windows([], model.tokenizer, OPTIONS, lambda done, asked: None, LabeledFiles(tmp_path / "k"), subject)

    assert len(made.sizes) == 50 and made.held.sum() == 5 and made.num == 1
    found = [model.tokenizer.decode([token]) for token in made.tokens[made.concepts(np.arange(len(made.tokens)))[:, 0]]]
    assert "".join(found).count("$") == 50 and "paid" not in "".join(found)
    with pytest.raises(InputError, match="leave out --data"):
        subject.texts([tmp_path], 0)


def test_what_cannot_be_trained_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--resume"):
        train_heads(str(MODEL), [SOURCE], run, OPTIONS)
    with pytest.raises(InputError, match="lower rank"):
        train_heads(str(MODEL), [SOURCE], tmp_path, replace(OPTIONS, rank=9000))
    with pytest.raises(UnsupportedError, match="published autoregressive"):
        train_heads(str(MODEL.with_name("dream-q4_0.gguf")), [SOURCE], tmp_path, OPTIONS)


def test_the_maps_that_tell_concepts_learn_each_in_entropies() -> None:
    rng, num = np.random.default_rng(0), 3
    windows = ChosenWindows(
        np.zeros(200, np.int32),
        np.packbits(rng.random((200, num)) < [0.5, 0.1, 0.0], axis=1),
        np.array([130, 69, 1], np.int32),
        np.array([False, False, False]),
        np.zeros(3, np.int32),
        num,
    )
    rows, span = drawn_spans(windows, rng, False, 4000)
    assert set(np.bincount(rows, minlength=200)[[129, 198, 199]]) == {0}, "the token that follows is not known"
    for number in range(400):
        one = rows[span.numpy() == number]
        assert 1 <= len(one) <= 64 and (np.diff(one) == 1).all() and (one < 130).all() == (one < 130).any()
    drawn = np.bincount(rows, minlength=200)[np.r_[:129, 130:198]]
    assert 0.85 * drawn.mean() < drawn.min() and drawn.max() < 1.15 * drawn.mean(), "all rows alike"

    prevalence = Prevalence.of(np.array([0.5, 0.1, 0.0]), windows)
    shape = ConceptShape(known=3, discovered=4, rank=2, kept_known=2, kept_discovered=2, reads=True)
    heads = fresh_heads(8, shape, np.array([0.5, 0.1, 0.0]), np.full(3, 0.2), 0)
    for layer in (heads.known_predictor, heads.read_predictor):
        torch.nn.init.zeros_(layer.weight)
    y = torch.from_numpy(windows.concepts(np.arange(64)))
    zeros = torch.zeros(64, dtype=torch.int64)
    loss, parts = predictors_loss(heads, torch.randn(64, 8), y, y, zeros, prevalence)
    z = heads.known_predictor.bias.detach().double().sigmoid()
    by_hand = torch.where(y, -z.log(), -(1 - z).log()).mean(dim=0) / prevalence.row
    some = 1 - (1 - z) ** 64
    spans = torch.where(y.any(dim=0), -some.log(), -(1 - some).log()) / prevalence.span
    assert parts["come of rows"] == pytest.approx(float(by_hand.mean()), rel=0.01)
    assert parts["come of spans"] == pytest.approx(float(spans.mean()), rel=0.01)
    halves = [(parts[f"{name} of rows"] + parts[f"{name} of spans"]) / 2 for name in ("come", "read")]
    assert float(loss.detach()) == pytest.approx(sum(halves), rel=1e-5)

    layer, hidden = torch.nn.Linear(8, 3), torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    labels, before = torch.rand(500, 3, generator=torch.Generator().manual_seed(1)) < 0.2, layer(hidden)
    calibrate(layer, hidden, labels)
    assert torch.allclose(layer(hidden).sigmoid().mean(dim=0), labels.float().mean(dim=0), atol=1e-4)
    moved = layer(hidden) - before
    assert torch.allclose(moved, moved[:1].expand_as(moved), atol=1e-5), "the order of rows stays"
