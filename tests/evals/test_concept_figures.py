"""Figures of detection, against scikit-learn and closed forms, and controls, against problems with known answers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from daguerre.evals.concepts import controls
from daguerre.evals.concepts.controls import Sets, logistic, naive_bayes, row_probe
from daguerre.evals.concepts.features import Dense, Presence, pooled
from daguerre.evals.concepts.metrics import (
    areas,
    average_precision,
    interval,
    log_any,
    resampled_ratio,
    resamples,
    scorable,
    summary,
    wins_of,
)
from daguerre.scoring.agreement import roc_auc


def scored_cases(num: int, seed: int, files: int = 9) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores with ties, labels and files."""
    random = np.random.default_rng(seed)
    return random.integers(0, 12, num) / 4, random.random(num) < 0.3, random.integers(0, files, num)


def test_the_probability_of_any_is_that_of_an_enumeration() -> None:
    logits = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    chances = logits.sigmoid()

    for concept in range(3):
        each = chances[:, concept].tolist()
        some = 0.0
        for outcome in itertools.product((0, 1), repeat=4):
            if any(outcome):
                some += float(np.prod([p if hit else 1 - p for p, hit in zip(each, outcome, strict=True)]))
        assert float(log_any(logits)[concept]) == pytest.approx(np.log(some), rel=1e-12)


def test_scores_of_sure_and_of_hopeless_cases_stay_apart() -> None:
    sure = log_any(torch.tensor([[[15.0], [15.0]], [[15.0], [14.0]], [[12.0], [12.0]]]))[:, 0]
    hopeless = log_any(torch.tensor([[[-15.0], [-15.0]], [[-15.0], [-14.0]], [[-12.0], [-12.0]]]))[:, 0]

    assert sure[0] > sure[1] > sure[2]
    assert hopeless[0] < hopeless[1] < hopeless[2]
    assert float(hopeless[0]) == pytest.approx(np.log(2) - 15, abs=1e-6)
    assert float(log_any(torch.full((64, 1), 9.0))) < float(log_any(torch.full((64, 1), 11.0))) < 0
    assert float(log_any(torch.full((64, 1), 15.0))) == 0


@pytest.mark.parametrize("seed", range(3))
def test_areas_are_those_of_scikit_learn(seed: int) -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    scores, labels, _ = scored_cases(200, seed)

    assert roc_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert average_precision(scores, labels) == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
    assert np.isnan(roc_auc(scores, np.zeros(200, dtype=bool)))
    assert np.isnan(average_precision(scores, np.zeros(200, dtype=bool)))


def test_the_area_of_a_resample_is_that_of_its_cases() -> None:
    from sklearn.metrics import roc_auc_score

    scores, labels, files = scored_cases(300, 4)
    found = wins_of(scores, labels, files, 9)

    weights = resamples(9, 0, 20)

    assert (weights.sum(axis=1) == 9).all()
    for area, weight in zip(found.areas(weights), weights, strict=True):
        assert area == pytest.approx(roc_auc_score(labels, scores, sample_weight=weight[files]), abs=1e-12)


def test_a_resample_without_a_class_has_no_area() -> None:
    found = wins_of(np.array([0.1, 0.9]), np.array([False, True]), np.array([0, 1]), 2)

    assert np.isnan(found.areas(np.array([[2.0, 0.0], [0.0, 2.0]]))).all()
    assert found.areas(np.array([[1.0, 1.0]]))[0] == 1.0


def test_a_paired_interval_covers_a_known_difference() -> None:
    """Two scorers of known areas on the same cases: Phi(d / sqrt 2) for normal scores that are d apart."""
    random = np.random.default_rng(0)
    num = 6000
    labels, files = random.random((num, 1)) < 0.5, random.integers(0, 60, num)
    noise = random.normal(size=(num, 1))
    good, bad = (labels * shift + noise for shift in (1.5, 1.0))
    weights, some = resamples(60, 0, 400), np.array([True])

    one, two = (areas(scores, labels, files, weights, some) for scores in (good, bad))

    expected = [0.5 * (1 + torch.erf(torch.tensor(shift / 2.0)).item()) for shift in (1.5, 1.0)]
    assert one.macro(some)[0] == pytest.approx(expected[0], abs=0.01)
    gain, (low, high) = one.less(two, some)
    assert low < expected[0] - expected[1] < high
    assert low > 0
    paired, alone = high - low, one.macro(some)[1][1] - one.macro(some)[1][0]
    assert paired < alone  # the noise is shared
    assert gain == pytest.approx(roc_auc(good[:, 0], labels[:, 0]) - roc_auc(bad[:, 0], labels[:, 0]))


def test_equal_scorers_differ_by_nothing() -> None:
    scores, labels, files = scored_cases(300, 5)
    one = areas(scores[:, None], labels[:, None], files, resamples(9, 0, 50), np.array([True]))

    assert one.less(one, np.array([True])) == (0.0, (0.0, 0.0))


def test_a_perfect_reader_gets_one_and_shuffled_labels_half() -> None:
    random = np.random.default_rng(1)
    labels = random.random((4000, 3)) < 0.4
    files, weights = random.integers(0, 40, 4000), resamples(40, 0, 200)
    some = scorable(labels)

    perfect = areas(labels.astype(float), labels, files, weights, some)
    shuffled = areas(labels[random.permutation(4000)].astype(float), labels, files, weights, some)

    assert some.all()
    assert perfect.macro(some) == (1.0, (1.0, 1.0))
    value, (low, high) = shuffled.macro(some)
    assert value == pytest.approx(0.5, abs=0.02)
    assert low < 0.5 < high


def test_concepts_with_few_cases_are_not_scored() -> None:
    labels = np.zeros((100, 3), dtype=bool)
    labels[:20, 0] = labels[:19, 1] = labels[:81, 2] = True

    assert scorable(labels).tolist() == [True, False, False]


def test_figures_of_probabilities() -> None:
    from sklearn.metrics import roc_auc_score

    random = np.random.default_rng(2)
    chances = random.random((20000, 2))
    labels = random.random((20000, 2)) < chances

    found = summary(np.log(chances), labels, np.array([True, False]))

    assert found["ece"] < 0.02  # calibrated by construction
    assert found["prevalence"] == labels[:, 0].mean()
    assert found["micro_auc"] == pytest.approx(roc_auc_score(labels[:, 0], chances[:, 0]))
    off = summary(np.log(chances**3), labels, np.array([True, True]))
    assert off["ece"] == pytest.approx(0.25, abs=0.02)  # the mean of p - p^3 is 1/4


def test_ratios_are_resampled_by_file() -> None:
    random = np.random.default_rng(3)
    files = np.repeat(np.arange(50), 40)
    level = random.normal(size=50)[files]

    value, (low, high) = resampled_ratio(level + 5, np.ones(2000), files)

    assert value == pytest.approx(5 + level.mean())
    assert high - low == pytest.approx(2 * 1.96 * level.std() / np.sqrt(50), rel=0.2)  # not / sqrt(2000)
    assert interval(np.arange(1001.0)) == (25.0, 975.0)


def made_presence(random: np.random.Generator, num: int, width: int) -> tuple[Presence, np.ndarray]:
    dense = random.random((num, width)) < 0.3
    rows = [np.flatnonzero(row) for row in dense]
    return Presence(np.concatenate(rows), np.cumsum([len(row) for row in rows]), width), dense


def test_products_of_presence_are_those_of_the_matrix() -> None:
    random = np.random.default_rng(4)
    features, dense = made_presence(random, 30, 12)
    weight = torch.randn(12, 5, requires_grad=True)
    plain = weight.detach().clone().requires_grad_()
    matrix = torch.from_numpy(dense).float()

    (features.product(weight) ** 2).sum().backward()
    ((matrix @ plain) ** 2).sum().backward()

    assert weight.grad is not None and plain.grad is not None
    assert torch.allclose(features.product(weight), matrix @ weight, atol=1e-6)
    assert torch.allclose(weight.grad, plain.grad, atol=1e-4)
    values = torch.randn(30, 4)
    assert torch.allclose(features.transposed_product(values), matrix.T @ values, atol=1e-5)
    which = random.random(30) < 0.5
    assert torch.allclose(features.take(which).product(weight), matrix[torch.from_numpy(which)] @ weight, atol=1e-6)
    empty = features.take(np.zeros(30, dtype=bool))
    assert empty.product(weight).shape == (0, 5)


def split_sets(random: np.random.Generator, labels: np.ndarray) -> Sets:
    return Sets(labels, random.random(len(labels)) < 0.2)


def test_naive_bayes_is_that_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.naive_bayes import BernoulliNB

    monkeypatch.setattr(controls, "SMOOTHING", (1.0,))
    random = np.random.default_rng(5)
    train, dense = made_presence(random, 400, 10)
    test, unseen = made_presence(random, 50, 10)
    labels = np.stack([dense[:, 0] | dense[:, 1], dense[:, 2] & (random.random(400) < 0.9)], axis=1)
    sets = split_sets(random, labels)

    found = naive_bayes(train, test, sets)

    for concept in range(2):
        peer = BernoulliNB(alpha=1.0).fit(dense[~sets.validation], labels[~sets.validation, concept])
        # scikit-learn does not smooth the prior: a difference of the logits that is the same in all cases.
        own, theirs = np.exp(found.scores[:, concept]), peer.predict_proba(unseen)[:, 1]
        shift = np.log(own / (1 - own)) - np.log(theirs / (1 - theirs))
        assert shift == pytest.approx(shift[0], abs=2e-3)
        assert abs(shift[0]) < 0.02


def test_logistic_regression_is_that_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.linear_model import LogisticRegression

    strength = 1e-2
    monkeypatch.setattr(controls, "STRENGTHS", (strength,))
    monkeypatch.setattr(controls, "PATIENCE", 0.0)
    random = np.random.default_rng(6)
    train, dense = made_presence(random, 500, 8)
    test, unseen = made_presence(random, 60, 8)
    truth = dense @ random.normal(size=(8, 3)) + random.normal(size=3)
    labels = random.random((500, 3)) < 1 / (1 + np.exp(-truth))
    sets = split_sets(random, labels)

    found = logistic(train, test, sets)

    learned = ~sets.validation
    for concept in range(3):
        rate = (labels[learned, concept].sum() + 0.5) / (learned.sum() + 1)
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
        peer = LogisticRegression(C=1 / (strength * entropy * learned.sum()), tol=1e-10, max_iter=1000)
        peer.fit(dense[learned].astype(float), labels[learned, concept])
        expected = peer.predict_log_proba(unseen.astype(float))[:, 1]
        assert found.scores[:, concept] == pytest.approx(expected, abs=2e-3)
    assert sum(found.chosen.values()) == 3
    assert found.curve[-1][1] < found.curve[0][1]


def test_regularization_is_chosen_for_each_concept_on_validation_files() -> None:
    """A concept of one feature wants little of it; one of pure noise wants all that there is."""
    random = np.random.default_rng(7)
    train, dense = made_presence(random, 600, 40)
    labels = np.stack([dense[:, 0], random.random(600) < 0.5], axis=1)

    found = logistic(train, train, split_sets(random, labels))

    assert roc_auc(found.scores[:, 0], labels[:, 0]) == 1.0
    assert set(found.chosen) == {"0.01", "0.001", "0.0001", "1e-05"}
    assert found.chosen["0.01"] >= 1


def test_pooled_states_are_means_and_maxima_in_units_of_the_training_cases() -> None:
    random = np.random.default_rng(8)
    rows = random.normal(size=(20, 5, 3)).astype(np.float16)

    train, test = pooled(rows, rows[:4])

    wide = np.concatenate([rows.astype(np.float32).mean(axis=1), rows.astype(np.float32).max(axis=1)], axis=1)
    expected = (wide - wide.mean(axis=0)) / wide.std(axis=0, ddof=1)
    assert train.values.numpy() == pytest.approx(expected, abs=1e-4)
    assert test.values.numpy() == pytest.approx(expected[:4], abs=1e-4)
    assert isinstance(train, Dense)


def test_a_probe_of_rows_finds_a_planted_direction_and_no_other() -> None:
    """A case is positive if one of its rows points along a direction: means over rows say little, P(any) all of it."""
    random = np.random.default_rng(9)
    rows = random.normal(size=(1500, 12, 6)).astype(np.float16)
    labels = np.stack([rows[:, :, 2].max(axis=1) > 2, random.random(1500) < 0.3], axis=1)
    sets = split_sets(random, labels[:1200])

    found = row_probe(rows[:1200], rows[1200:], sets)

    truth = labels[1200:]
    assert roc_auc(found.scores[:, 0], truth[:, 0]) > 0.97
    assert abs(roc_auc(found.scores[:, 1], truth[:, 1]) - 0.5) < 0.1
    losses = [loss for _, loss in found.curve]
    assert losses[-1] < 0.7 * losses[0]
    assert losses[-2] - losses[-1] < 0.001 * losses[-2]  # it has stopped falling
    train, test = pooled(rows[:1200], rows[1200:])
    assert roc_auc(logistic(train, test, sets).scores[:, 0], truth[:, 0]) > 0.9  # the maximum knows it, too
