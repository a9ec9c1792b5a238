"""Temperature, top-k and top-p against plain definitions; the draw against its distribution."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from daguerre.errors import InputError
from daguerre.sampling.logits import (
    CACHED,
    SamplingParams,
    biased,
    inverse_cdf,
    most_likely,
    propose,
    race,
    softmax,
    tempered,
)
from daguerre.sampling.random import ORDER, TOKEN, Counter


def random_logits(rows: int, vocabulary: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (rows, vocabulary))


def naive(logits: np.ndarray, temperature: float, top_k: int | None, top_p: float) -> np.ndarray:
    """One row, by the book: temperature, then the k best, then the fewest best that reach p."""
    weights = {t: float(np.exp(x / temperature)) for t, x in enumerate(logits)}
    best = sorted(weights, key=lambda t: (-weights[t], t))[:top_k]
    total, kept, reached = sum(weights[t] for t in best), [], 0.0
    for token in best:
        kept.append(token)
        reached += weights[token] / total
        if reached >= top_p:
            break
    out = np.zeros(len(logits))
    out[kept] = [weights[t] for t in kept]
    return out / out.sum()


def test_the_tempered_distribution_is_the_one_by_the_book() -> None:
    logits = random_logits(6, 30)
    for temperature, top_k, top_p in product((0.5, 1.0, 2.0), (None, 1, 5, 100), (1.0, 0.9, 0.3, 1e-9)):
        got = tempered(logits, SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p))
        want = np.stack([naive(row, temperature, top_k, top_p) for row in logits])
        assert np.allclose(got, want, atol=1e-12), (temperature, top_k, top_p)


def test_min_p_is_that_of_transformers() -> None:
    """Its processor, after those of temperature, top-k and top-p."""
    from transformers.generation import logits_process as theirs

    logits = random_logits(6, 30)
    for temperature, top_k, top_p, min_p in product((0.7, 1.5), (None, 5), (1.0, 0.8), (0.05, 0.3, 1.0)):
        steps = [theirs.TemperatureLogitsWarper(temperature), theirs.MinPLogitsWarper(min_p)]
        steps[1:1] = [] if top_k is None else [theirs.TopKLogitsWarper(top_k)]
        steps[-1:-1] = [theirs.TopPLogitsWarper(top_p)] if top_p < 1 else []
        want = torch.from_numpy(logits)
        for step in steps:
            want = step(None, want)
        got = tempered(logits, SamplingParams(temperature, top_p, top_k, min_p=min_p))
        assert np.allclose(got, want.softmax(-1).numpy(), atol=1e-9), (temperature, top_k, top_p, min_p)


def test_nothing_is_changed_in_place() -> None:
    logits = random_logits(3, 20)
    before = logits.copy()
    params = SamplingParams(temperature=0.8, top_k=4, top_p=0.7, logit_bias={2: 5.0})
    propose(np.arange(3), biased(logits, params), params, np.ones((3, 20)), entropy=True, num_best=2)
    tempered(logits, params)
    assert np.array_equal(logits, before)


def test_a_bias_moves_only_its_token(subtests: pytest.Subtests) -> None:
    for temperature, dtype in ((0.0, np.float32), (0.5, np.float64)):
        with subtests.test(str(temperature)):
            logits = random_logits(2, 8).astype(np.float32)
            want = logits.astype(dtype)
            want[:, 3] += 2.5
            want[:, 5] = -np.inf
            out = biased(logits, SamplingParams(temperature, logit_bias={3: 2.5, 5: float("-inf")}))
            assert out.dtype == dtype
            assert np.array_equal(out, want)


def test_the_most_likely_token_has_its_probability_in_float64_too(subtests: pytest.Subtests) -> None:
    for vocabulary in (30, 5000, CACHED + 1):
        with subtests.test(str(vocabulary)):
            logits = random_logits(40 if vocabulary < CACHED else 2, vocabulary)
            logits[:, ::7] = -np.inf
            tokens, probabilities = most_likely(logits.astype(np.float32))
            assert np.array_equal(tokens, logits.argmax(axis=-1))
            assert np.allclose(probabilities, softmax(logits).max(axis=-1), rtol=1e-5)
            alone = [most_likely(row[None].astype(np.float32)) for row in logits]
            assert np.array_equal(probabilities, np.concatenate([p for _, p in alone]))


def test_a_position_without_a_token_is_an_error_when_the_best_is_taken_too() -> None:
    with pytest.raises(InputError, match="no token is left"):
        most_likely(np.full((1, 8), -np.inf, dtype=np.float32))


def chi_square_limit(cells: int) -> float:
    """What a chi-square variable of so many cells exceeds with a chance below 1e-5 (Wilson and Hilferty 1931)."""
    free = cells - 1
    return free * (1 - 2 / (9 * free) + 4.27 * (2 / (9 * free)) ** 0.5) ** 3


DRAWN: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6, "logit_bias": {3: 1.5, 4: float("-inf")}},
    {"temperature": 1.4, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.7, "logit_bias": {0: 2.0}},
    {"temperature": 1.3, "min_p": 0.2},
]


def noise_of(varied: str, num: int, vocabulary: int) -> np.ndarray:
    """Exponential numbers whose keys differ in one of their parts."""
    if varied == "positions":
        return Counter(seed=4).exponential(TOKEN, np.arange(num), 0, vocabulary)
    counters = [(Counter(i if varied == "seeds" else 4, i if varied == "samples" else 0), i) for i in range(num)]
    rows = [one.exponential(TOKEN, np.array([7]), i if varied == "steps" else 0, vocabulary) for one, i in counters]
    return np.concatenate(rows)


def test_draws_follow_their_distribution(subtests: pytest.Subtests) -> None:
    num, vocabulary = 4_000, 12
    for varied in ("seeds", "samples", "positions", "steps"):
        noise = noise_of(varied, num, vocabulary)
        for options in DRAWN:
            with subtests.test(varied, options=options):
                params = SamplingParams(**options)
                logits = biased(random_logits(1, vocabulary), params)
                probs = tempered(logits, params)[0]
                tokens = propose(np.arange(num), np.repeat(logits, num, axis=0), params, noise).tokens
                counts = np.bincount(tokens, minlength=vocabulary)
                assert not counts[probs == 0].any()
                kept = probs > 0
                chi_square = float(((counts - num * probs)[kept] ** 2 / (num * probs[kept])).sum())
                assert chi_square < chi_square_limit(int(kept.sum()))


def test_two_distributions_that_share_their_noise_agree_as_often_as_the_formula_says() -> None:
    """P = sum_v 1 / sum_w max(p_w / p_v, q_w / q_v): far more often than independent draws, sum_v p_v q_v."""
    p, q = softmax(random_logits(2, 9))
    num = 20_000
    noise = Counter(seed=1).exponential(TOKEN, np.arange(num), 0, 9)
    agreed = float((race(np.repeat(p[None], num, 0), noise) == race(np.repeat(q[None], num, 0), noise)).mean())
    want = sum(1 / np.maximum(p / p[v], q / q[v]).sum() for v in range(9))
    assert abs(agreed - want) < 4.5 * np.sqrt(want * (1 - want) / num)
    assert want > 1.3 * float(p @ q)
    overlap = float(np.minimum(p, q).sum())
    assert overlap / (2 - overlap) < want < overlap


def test_the_draw_never_leaves_the_support() -> None:
    probs = np.array([[0.0, 0.5, 0.0, 0.5, 0.0]])
    noise = np.array([[1e-300, 2.0, 1e-300, 1.0, 0.5], [1e-300, 1.0, 1e-300, 1.0, 0.5], [0.1, 3e2, 0.1, 4e2, 0.1]])
    assert race(np.repeat(probs, 3, axis=0), noise).tolist() == [3, 1, 1]


def test_the_inverse_of_the_distribution_function_never_leaves_the_support() -> None:
    probs = np.array([[0.0, 0.5, 0.0, 0.5, 0.0]])
    edges = np.array([0.0, np.nextafter(0.5, 0), 0.5, np.nextafter(1.0, 0)])
    assert inverse_cdf(np.repeat(probs, 4, axis=0), edges).tolist() == [1, 1, 3, 3]


def test_exponential_numbers_depend_on_their_keys_alone() -> None:
    counter = Counter(seed=9, sample=2)
    together = counter.exponential(TOKEN, np.arange(50), 3, 40)
    alone = [counter.exponential(TOKEN, np.array([p]), 3, 25)[0] for p in reversed(range(50))]
    assert np.array_equal(together[::-1, :25], np.stack(alone))
    assert len(np.unique(together)) == together.size
    assert abs(together.mean() - 1) < 4 / np.sqrt(together.size)
    assert together.min() > 0


def test_temperature_zero_is_the_most_likely_token_whatever_the_random_number() -> None:
    logits = random_logits(5, 40)
    for noise in (None, np.ones((5, 40)), Counter(3).exponential(TOKEN, np.arange(5), 0, 40)):
        proposals = propose(np.arange(5), logits, SamplingParams(), noise)
        assert np.array_equal(proposals.tokens, logits.argmax(axis=1))
        assert np.allclose(proposals.probabilities, softmax(logits).max(axis=1))


def test_no_token_left_is_an_error() -> None:
    with pytest.raises(InputError, match="no token is left"):
        softmax(np.full((1, 4), -np.inf))


def test_numbers_are_uniform_and_independent_across_every_key() -> None:
    positions = np.arange(2000)
    streams = [
        Counter(seed, sample).uniform(purpose, positions, step)
        for seed in (0, 1, 2**63 + 1)
        for sample in (0, 1)
        for purpose in (TOKEN, ORDER)
        for step in (0, 1, 2)
    ]
    table = np.stack(streams)
    assert table.min() >= 0
    assert table.max() < 1
    assert len(np.unique(table)) == table.size
    assert np.all(np.abs(table.mean(axis=1) - 0.5) < 4 * np.sqrt(1 / 12 / 2000))
    correlation = np.corrcoef(table) - np.eye(len(table))
    assert np.abs(correlation).max() < 5 / np.sqrt(2000)


def test_a_number_depends_on_its_key_alone() -> None:
    counter = Counter(seed=9, sample=2)
    together = counter.uniform(TOKEN, np.arange(50), 3)
    alone = [counter.uniform(TOKEN, np.array([p]), 3)[0] for p in reversed(range(50))]
    assert together.tolist() == alone[::-1]


def test_entropies_and_the_best_are_those_of_temperature_one() -> None:
    logits = random_logits(7, 50)
    logits[:, 5:9] = -np.inf
    probs = softmax(logits)
    want = -(np.where(probs > 0, probs * np.log(np.where(probs > 0, probs, 1)), 0)).sum(axis=1)
    for temperature in (0.0, 0.6):
        params = SamplingParams(temperature=temperature, top_k=2)
        made = propose(np.arange(7), logits, params, np.ones((7, 50)), entropy=True, num_best=3)
        assert np.allclose(made.entropies, want)
        assert np.allclose(made.best, -np.sort(-probs, axis=1)[:, :3])
        assert np.allclose(made.probabilities, probs[np.arange(7), made.tokens])
        plain = propose(np.arange(7), logits, params, np.ones((7, 50)))
        assert np.array_equal(plain.tokens, made.tokens)
        assert plain.entropies is plain.best is None
