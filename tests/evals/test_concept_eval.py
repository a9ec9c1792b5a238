"""Concepts, measured as a whole: cases and what is visible in them, hidden states, shares, alignment, the report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daguerre.concepts.labels import label
from daguerre.concepts.taxonomy import taxonomy
from daguerre.concepts.texts import catalog_of
from daguerre.errors import DataError, InputError, UnsupportedError
from daguerre.evals.concepts import alignment, controls, detection, measure, metrics, stability, writing
from daguerre.evals.concepts.alignment import lifted, measure_alignment, token_counts, top_tokens
from daguerre.evals.concepts.cases import CONDITIONS, PREFIX, SPAN, ConceptCase, Condition, cases_of, labeled, read_case
from daguerre.evals.concepts.detection import OURS, Detection, hidden_states, measure_detection, our_scores
from daguerre.evals.concepts.features import presence
from daguerre.evals.concepts.partial_results import PartialResults
from daguerre.evals.concepts.shares import clean_shares, masked_shares, measures
from daguerre.evals.concepts.stability import measure_stability
from daguerre.evals.harness import evaluate
from daguerre.evals.options import EvalLimits
from daguerre.evals.pictures import draw_pictures
from daguerre.evals.report import markdown, write_report
from daguerre.evals.workers import no_progress
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.core.shapes import ConceptShape
from daguerre.models.forward import Hidden
from daguerre.models.session import compute
from daguerre.train.shards import write_shards

NUM = taxonomy().num_ids
CLEAN, HALF, NINE, FORECAST = CONDITIONS
PROMPT = "def total(numbers):\n    "
NOTHING = PartialResults(None, {})


def source(seed: int, functions: int = 12) -> str:
    """Python of many kinds; half of the functions assert something."""
    random, out = np.random.default_rng(seed), ["import os\n"]
    for number in range(functions):
        name = f"work_{seed}_{number}"
        out.append(f"def {name}(first, second={random.integers(9)}):\n")
        out.append(f"    assert first > {random.integers(50)}\n" if random.random() < 0.5 else "    first += 1\n")
        body = (
            "    for one in first:\n        print(one)\n",
            "    if first is None:\n        raise ValueError(second)\n",
            "    return [one * 2 for one in second if one]\n",
            "    while second:\n        second -= 1\n",
        )
        out += [body[place] for place in random.permutation(4)[:2]]
        out.append(f"    return os.path.join(first, '{name}')\n\n\n")
    return "".join(out)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    texts = [source(seed) for seed in range(6)] + ["x = (\n"]
    return [Document("p", "1", "", f"{number}.py", str(number), text) for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def explaining(make_model: Callable[..., Model]) -> Model:
    """A tiny model with random heads, whose concepts are those of the taxonomy."""
    return with_heads(make_model, 0)


def with_heads(make_model: Callable[..., Model], seed: int) -> Model:
    shape = ConceptShape(known=NUM, discovered=20, rank=6, kept_known=5, kept_discovered=4, taxonomy=taxonomy().sha256)
    bare = make_model(max_positions=512, concepts=shape)
    model = Model(bare.backbone, bare.tokenizer, concepts=catalog_of(shape))
    generator = torch.Generator().manual_seed(seed)
    assert model.backbone.concepts is not None
    for weight in model.backbone.concepts.parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5)
    return model


@pytest.fixture(scope="module")
def cases(explaining: Model, documents: list[Document]) -> list[ConceptCase]:
    texts = labeled(enumerate(each.text for each in documents), explaining.tokenizer)
    return [case for text in texts for case in cases_of(text, 0)]


def test_cases_are_the_spans_of_files_that_parse(cases: list[ConceptCase], documents: list[Document]) -> None:
    assert {case.text.file for case in cases} == set(range(6))
    first, *_, last = (case for case in cases if case.text.file == 0)
    assert first.start == 0 and len(first.prefix) == 0
    assert len(last.text.tokens) - SPAN < last.start + SPAN <= len(last.text.tokens)
    assert len(last.prefix) == PREFIX
    assert (np.concatenate([last.prefix, last.span]) == last.text.tokens[last.start - PREFIX : last.start + SPAN]).all()


def test_labels_are_those_of_the_whole_file(
    cases: list[ConceptCase], explaining: Model, documents: list[Document]
) -> None:
    case = next(case for case in cases if case.text.file == 2 and case.start == 128)
    text, tokenizer = documents[2].text, explaining.tokenizer
    ends = np.cumsum([len(tokenizer.token_bytes(token)) for token in case.text.tokens.tolist()])

    expected = np.zeros((SPAN, NUM), dtype=bool)
    for place in range(SPAN):
        token = case.start + place
        begin = ends[token - 1] if token else 0
        for number, start, end in label(text).spans.tolist():  # the text is ASCII: characters are bytes
            expected[place, number] |= start < ends[token] and begin < end

    assert np.array_equal(case.concepts, expected)
    assert np.array_equal(case.positives(CLEAN), expected.any(axis=0))
    masked = case.masked(0.5)
    assert np.array_equal(case.positives(HALF), expected[masked].any(axis=0))


def test_masks_have_their_share_and_depend_on_case_and_seed(cases: list[ConceptCase]) -> None:
    case = cases[3]

    assert [int(case.masked(condition.share).sum()) for condition in CONDITIONS] == [0, 32, 58, 0]
    assert np.array_equal(case.masked(0.5), dataclasses.replace(case).masked(0.5))
    others = (cases[4], dataclasses.replace(case, seed=1))
    assert not any(np.array_equal(case.masked(0.5), other.masked(0.5)) for other in others)
    assert np.array_equal(case.scored(HALF), np.flatnonzero(case.masked(0.5)))
    assert np.array_equal(case.scored(CLEAN), np.arange(SPAN))


def changed(case: ConceptCase, places: np.ndarray) -> ConceptCase:
    """The same case with other tokens at these places of its span, and the same labels."""
    tokens = case.text.tokens.copy()
    tokens[case.start + places] = 20 + (tokens[case.start + places] + 7) % 2000
    return dataclasses.replace(case, text=dataclasses.replace(case.text, tokens=tokens))


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_masked_tokens_reach_neither_controls_nor_hidden_states(
    condition: Condition, cases: list[ConceptCase], explaining: Model
) -> None:
    """Whatever is masked, and the last token, which no row carries, may be any token."""
    case, config = cases[5], explaining.config
    hidden = np.append(np.flatnonzero(case.masked(condition.share)), SPAN - 1)
    other = changed(case, np.unique(hidden))
    assert (other.span != case.span).sum() == len(np.unique(hidden))

    one, two = (presence([each], condition, config) for each in (case, other))
    states = [read(explaining, each)[CONDITIONS.index(condition)] for each in (case, other)]

    assert np.array_equal(one.columns, two.columns)
    assert np.array_equal(*states)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_visible_tokens_reach_controls_and_hidden_states(
    condition: Condition, cases: list[ConceptCase], explaining: Model
) -> None:
    case, config = cases[5], explaining.config
    visible = np.flatnonzero(~case.masked(condition.share))[:-1]
    other = changed(case, visible[len(visible) // 2 :][:1])

    one, two = (presence([each], condition, config) for each in (case, other))
    states = [read(explaining, each)[CONDITIONS.index(condition)] for each in (case, other)]

    assert not np.array_equal(one.columns, two.columns)
    assert not np.array_equal(*states)


def read(model: Model, case: ConceptCase) -> list[np.ndarray]:
    return compute(read_case(model.config, model.denoiser.backend, case), model.denoiser.backend)


def test_a_token_is_forecast_without_it_and_read_with_it(cases: list[ConceptCase], explaining: Model) -> None:
    place = 20
    found, other = (read(explaining, case) for case in (cases[5], changed(cases[5], np.array([place]))))

    forecast = (found[3] != other[3]).any(axis=1)
    reading = (found[0] != other[0]).any(axis=1)

    assert not forecast[: place + 1].any() and forecast[place + 1]
    assert reading.all()


def test_presence_keeps_prefix_and_span_apart(cases: list[ConceptCase], explaining: Model) -> None:
    case, size = cases[5], explaining.config.vocab_size

    found = presence([case], HALF, explaining.config)

    seen = ~case.masked(0.5)
    seen[-1] = False
    assert found.width == 2 * size
    assert set(found.columns[found.columns < size].tolist()) == set(case.prefix.tolist())
    assert set((found.columns[found.columns >= size] - size).tolist()) == set(case.span[seen].tolist())


def test_hidden_states_are_those_of_a_session_without_a_cache(cases: list[ConceptCase], explaining: Model) -> None:
    for case in (cases[0], cases[6]):
        found = read(explaining, case)
        for condition, states in zip(CONDITIONS[:3], found, strict=False):
            canvas = case.canvas(condition, explaining.config)
            session = explaining.denoiser.session(canvas, "none")
            positions = canvas.gaps[0][0] + case.scored(condition)
            answer = compute(session.ask(canvas, positions, Hidden()), explaining.denoiser.backend)
            assert answer.hidden is not None
            assert states == pytest.approx(answer.hidden, abs=1e-5)
        stored = hidden_states(explaining, [case], "x", no_progress)
        assert [state.shape[1] for state in stored] == [64, 32, 58, 64]
        assert stored[1][0] == pytest.approx(found[1], abs=1e-2)


def test_our_scores_are_those_of_the_heads_before_the_largest_are_kept(
    cases: list[ConceptCase], explaining: Model
) -> None:
    heads = explaining.backbone.concepts
    assert heads is not None

    found = our_scores(explaining, cases[:3], no_progress)

    for number, case in enumerate(cases[:3]):
        for place, hidden in enumerate(read(explaining, case)):
            chances = torch.from_numpy(hidden).double() @ heads.known_predictor.weight.double().T
            chances = (chances + heads.known_predictor.bias.double()).clamp(-15, 15).sigmoid()
            expected = torch.log(1 - (1 - chances).prod(dim=0))
            assert found[place, number] == pytest.approx(expected.numpy(), abs=1e-4)


def train_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"STRENGTHS": (1e-2,), "DECAYS": (0.0,), "ROUND": 5, "ROUNDS": 1, "EPOCHS": 3}.items():
        monkeypatch.setattr(controls, name, value)


def test_a_perfect_reader_is_above_every_control(
    cases: list[ConceptCase], explaining: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores that know the labels get 1.0; scores of shuffled labels get one half; controls are in between."""
    known = taxonomy().named("assert_statement")
    monkeypatch.setattr(metrics, "MIN_CASES", 8)
    train_briefly(monkeypatch)
    labels = np.stack([[case.positives(condition) for case in cases] for condition in CONDITIONS])
    monkeypatch.setattr(detection, "our_scores", lambda *_: np.where(labels, -0.1, -3.0))

    part = measure_detection(Detection(explaining, cases, cases, explaining), NOTHING, no_progress)

    assert [each["condition"] for each in part["conditions"]] == [condition.name for condition in CONDITIONS]
    for condition in part["conditions"]:
        ours, *controls = condition["scorers"]
        assert ours["name"] == OURS
        assert ours["all"]["auc"] == 1.0
        assert len(controls) == 4
        for control in controls:
            assert control["all"]["gain"] == pytest.approx(1 - control["all"]["auc"])
            assert control["all"]["auc"] > 0.5  # they learned from these very cases
        counts = condition["concepts"]
        assert counts["lexical"] + counts["structural"] == counts["all"] == len(condition["by_concept"])
    assert known.name in {row["name"] for row in part["conditions"][0]["by_concept"]}
    with pytest.raises(DataError, match="two or more"):
        detection.training_sets(cases[:2], CLEAN)


def test_shares_are_those_of_a_restatement(explaining: Model) -> None:
    backbone = explaining.backbone
    heads = backbone.concepts
    assert heads is not None
    hidden = torch.randn(7, 32, generator=torch.Generator().manual_seed(1))
    target = torch.arange(100, 107)

    found = measures(backbone, hidden, target)

    weights, vectors = heads.weights(hidden), heads.vectors(torch.arange(NUM + 20))
    for row in range(7):
        h, y = hidden[row], backbone.projection[target[row]]
        parts = weights[row][:, None] * vectors
        known, discovered = parts[:NUM].sum(0), parts[NUM:].sum(0)
        rest = h - known - discovered
        of_known, of_discovered, of_rest = (abs(float(part @ y)) for part in (known, discovered, rest))
        total = of_known + of_discovered + of_rest
        each = float((parts @ y).abs().sum())
        assert found["cc"][row] == pytest.approx((of_known + of_discovered) / total, rel=1e-4)
        assert found["cc_known"][row] == pytest.approx(of_known / total, rel=1e-4)
        assert found["cc_each"][row] == pytest.approx(each / (each + of_rest), rel=1e-4)
        both = abs(float((known + discovered) @ y))
        assert found["cancelled"][row] == pytest.approx(1 - both / (of_known + of_discovered), abs=1e-4)
        assert found["residual_square"][row] == pytest.approx(float(rest @ rest), rel=1e-4)
        full = backbone.logits(h).log_softmax(-1)
        for part, name in ((rest, "residual"), (known, "known"), (discovered, "discovered")):
            without = backbone.logits(h - part).log_softmax(-1)
            expected = float(full[target[row]] - without[target[row]])
            assert found[f"cost_{name}"][row] == pytest.approx(expected, abs=1e-4)
        without = backbone.logits(h - rest).log_softmax(-1)
        some = torch.isfinite(full)
        divergence = float((full.exp() * (full - without))[some].sum())
        assert found["kl"][row] == pytest.approx(divergence, abs=1e-4)
        assert found["agreement"][row] == float(full.argmax() == without.argmax())
        assert found["nats"][row] == pytest.approx(-float(full[target[row]]), abs=1e-4)


def test_without_a_residual_all_goes_through_concepts(explaining: Model, cases: list[ConceptCase]) -> None:
    """Two known concepts that are always half on, whose vectors are plus and minus v: h is all residual."""
    found = masked_shares(explaining, cases[:6], 0.5, 0)
    clean = clean_shares(explaining, explaining, [document_of(cases[0])], 3, no_progress, 0)

    assert found["positions"] == 6 * 32
    assert 0 < found["cc_known"] < found["cc"] < 1
    low, high = found["cc_interval"]
    assert low <= found["cc"] <= high
    ratio = found["bits_residual"] / found["bits"]
    assert ratio == pytest.approx(found["cost_residual"] / found["nats"])
    assert clean["tax"] == pytest.approx(0, abs=1e-5)
    assert clean["plain_bits"] == pytest.approx(clean["bits"], rel=1e-5)


def document_of(case: ConceptCase) -> Document:
    return Document("p", "1", "", "x.py", "", source(case.text.file))


def test_lift_is_how_much_likelier_a_token_is_with_a_concept(cases: list[ConceptCase], explaining: Model) -> None:
    texts = list({case.text.file: case.text for case in cases}.values())
    concept = taxonomy().named("assert_statement").id

    alone, together = token_counts(texts, explaining.config.vocab_size)
    found = lifted(alone, together)

    tokens = np.concatenate([text.tokens for text in texts])
    has = np.concatenate([text.labels.matrix(0, len(text.tokens), NUM)[:, concept] for text in texts])
    assert alone.sum() == len(tokens)
    assert np.array_equal(together[concept], np.bincount(tokens[has], minlength=len(alone)))
    for token in np.unique(tokens):
        lift = (tokens[has] == token).mean() / (tokens == token).mean()
        enough = (tokens[has] == token).sum() >= alignment.FEWEST
        assert found[concept, token] == (lift >= 2 and enough)


def test_a_vector_that_points_at_its_tokens_is_aligned(
    make_model: Callable[..., Model], cases: list[ConceptCase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "FEWEST_LABELED", 20)
    monkeypatch.setattr(alignment, "TEN", 1)
    model = with_heads(make_model, 3)
    assert model.backbone.concepts is not None
    texts = list({case.text.file: case.text for case in cases}.values())
    found = lifted(*token_counts(texts, model.config.vocab_size))
    before = measure_alignment(model.backbone, texts, str)
    for concept in np.flatnonzero(found.any(axis=1)).tolist():
        token = int(np.flatnonzero(found[concept])[0])
        model.backbone.concepts.known_embedding.weight[concept] = model.backbone.projection[token]

    after = measure_alignment(model.backbone, texts, str)

    assert before["mean"] < 0.3
    assert after["mean"] == after["median"] == 1.0
    assert after["concepts"] == before["concepts"] > 10
    best = top_tokens(model.backbone, NUM)
    assert set(best.ravel().tolist()).isdisjoint(model.config.unpredictable_ids)


def test_concepts_are_found_again_in_themselves_and_not_by_chance(explaining: Model) -> None:
    heads = explaining.backbone.concepts
    assert heads is not None
    hidden = torch.randn(200, 32, generator=torch.Generator().manual_seed(2))

    found = measure_stability(heads, heads, hidden, hidden)

    assert found["share"] == found["share_back"] == 1.0
    assert found["median_cosine"] == pytest.approx(1.0, abs=1e-5)
    assert found["share_by_chance"] < 0.5
    assert found["used"][0] == int((heads.weights(hidden)[:, NUM:] > 0).any(dim=0).sum())
    turn = stability.random_rotation(32, 0)
    assert torch.allclose(turn @ turn.T, torch.eye(32), atol=1e-5)
    with pytest.raises(InputError, match="unlike widths"):
        measure_stability(heads, heads, hidden, hidden[:, :8])


def test_parts_are_made_once_and_belong_to_one_measurement(tmp_path: Path) -> None:
    made = list[int]()

    def make() -> dict[str, Any]:
        made.append(1)
        return {"value": [1.5, 2]}

    for _ in range(2):
        kept = PartialResults(tmp_path / "kept", {"seed": 0})
        assert kept.figures("part", make) == {"value": [1.5, 2]}
        arrays = kept.arrays("scores", lambda: {"scores": np.arange(3)})
        assert np.array_equal(arrays["scores"], np.arange(3))
    assert len(made) == 1
    with pytest.raises(DataError, match="other settings"):
        PartialResults(tmp_path / "kept", {"seed": 1})


LIMITS = EvalLimits(concept_spans=40, control_spans=30, generations=4, injections=4)


def test_continuations_are_those_of_the_library_however_many_are_asked_for(
    explaining: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from prompts that the engine has stored, steered or not, and from more than it runs at once."""
    monkeypatch.setattr(writing, "NEW_TOKENS", 4)
    write = writing.writer(explaining)
    for controls_ in ({}, {"forbid": ["for_loop"]}):
        for prompt in (PROMPT, PROMPT * 3):
            expected = explaining.generate(
                prompt, 4, n=3, seed=5, temperature=writing.TEMPERATURE, mode="ar", **controls_
            )
            assert write(prompt, 3, 5, **controls_) == [choice.text for choice in expected.choices]
    monkeypatch.setattr(writing, "MOST_RUNNING", 2)
    monkeypatch.setattr(writing, "NEW_TOKENS", 1)
    assert len(writing.writer(explaining)(PROMPT, 600, 0)) == 600


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, explaining: Model) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    texts = {"train": [source(seed) for seed in range(20, 30)], "test": [source(40), source(41)]}
    write_shards(folder, texts, explaining.tokenizer)
    return folder


def test_a_report_has_all_parts_bars_and_pictures(
    explaining: Model,
    documents: list[Document],
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unwritten: None,
) -> None:
    monkeypatch.setattr(metrics, "MIN_CASES", 5)
    train_briefly(monkeypatch)
    monkeypatch.setattr("daguerre.evals.concepts.shares.RATES", (0.3, 0.9))
    for name, few in (("RECORDS", 3), ("TOKENS", 8)):
        monkeypatch.setattr(f"daguerre.evals.concepts.tampering.{name}", few)
    for name, few in (("forbidden_concepts", 1), ("asked_concepts", 2)):
        concepts = getattr(measure, name)()[-few:]
        monkeypatch.setattr(measure, name, lambda concepts=concepts: concepts)
    monkeypatch.setattr(measure, "writer", lambda model: lambda prompt, num, seed, **_: ["return 1\n"] * num)
    monkeypatch.setattr("daguerre.evals.tasks.explaining.load", lambda name, dtype: explaining)
    monkeypatch.setattr("daguerre.evals.concepts.alignment.FEWEST_LABELED", 20)
    shown = set[str]()

    def run() -> dict[str, Any]:
        return evaluate(
            explaining,
            documents,
            what=["concepts"],
            limits=LIMITS,
            corpus=corpus,
            twin="other",
            keep=tmp_path / "kept",
            progress=lambda what, done, total: shown.add(what),
        )

    report = run()

    task = report["concepts"]
    assert set(measure.PARTS) <= set(task)
    assert task["left_out"] == {}
    json.dumps(report, allow_nan=False)
    write_report(report, tmp_path / "report.json")
    text = markdown(report)
    for heading in ("Detection", "Shares", "Suppression", "Injection", "Alignment", "Stability", "Audit"):
        assert f"### {heading}" in text
    assert "| detection, reading, clean | macro AUC 0.96 |" in text
    assert "| random changes of a ledger found | all | 2 of 2 | met |" in text
    pictures = draw_pictures(report, tmp_path / "report.json")
    assert [path.name for path in pictures] == ["report-concepts.png"]
    assert task["audit"]["problems"] == [] and task["audit"]["replayed"] == task["audit"]["records"]
    assert any(part.startswith("concepts: shares") for part in shown)
    again = run()  # all of it from the folder
    assert {**again["concepts"], "bars": 0} == {**task, "bars": 0}


def test_without_a_corpus_there_are_no_controls_and_it_is_said(explaining: Model, documents: list[Document]) -> None:
    report = evaluate(
        explaining, documents, what=["concepts"], limits=LIMITS, plain=None, parts=["detection", "alignment"]
    )

    assert set(report["concepts"]["left_out"]) == {"controls", "alignment"}
    assert "Not measured: controls, because there is no training text" in markdown(report)
    names = [each["name"] for each in report["concepts"]["detection"]["conditions"][0]["scorers"]]
    assert names == [OURS]


def test_a_model_without_names_is_not_steered(explaining: Model, documents: list[Document]) -> None:
    nameless = Model(explaining.backbone, explaining.tokenizer)

    report = evaluate(nameless, documents, what=["concepts"], limits=LIMITS, plain=None, parts=["injection"])

    assert set(report["concepts"]["left_out"]) == {"injection"}
    assert "injection, because the model's folder has no names" in markdown(report)


def test_what_cannot_be_measured_is_refused(
    explaining: Model, causal: Model, models: dict[str, Model], make_model: Callable[..., Model], documents: Any
) -> None:
    def ask(model: Model, **options: Any) -> None:
        evaluate(model, documents, what=["concepts"], plain=None, **options)

    with pytest.raises(UnsupportedError, match="no concept heads"):
        ask(causal)
    few = ConceptShape(known=8, discovered=8, rank=4, kept_known=2, kept_discovered=2, taxonomy="x")
    with pytest.raises(UnsupportedError, match="not those of daguerre's taxonomy"):
        ask(make_model(concepts=few))
    with pytest.raises(InputError, match="did you mean 'shares'"):
        ask(explaining, parts=["sharse"])
    with pytest.raises(DataError, match="pass a corpus"):
        ask(explaining, parts=["alignment"])
    with pytest.raises(DataError, match="pass a twin"):
        ask(explaining, parts=["stability"])
    with pytest.raises(InputError, match="keep belongs to what"):
        evaluate(causal, documents, keep=Path("x"))
