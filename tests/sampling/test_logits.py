"""Temperature, top-k and top-p against plain definitions; the draw against its distribution."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from daguerre.errors import InputError
from daguerre.sampling.logits import (
    CACHED,
    SamplingParams,
    biased,
    inverse_cdf,
    most_likely,
    propose,
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


def test_nothing_is_changed_in_place() -> None:
    logits = random_logits(3, 20)
    before = logits.copy()
    params = SamplingParams(temperature=0.8, top_k=4, top_p=0.7, logit_bias={2: 5.0})
    propose(np.arange(3), biased(logits, params), params, np.full(3, 0.5), entropy=True, num_best=2)
    tempered(logits, params)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize(("temperature", "dtype"), [(0.0, np.float32), (0.5, np.float64)])
def test_a_bias_moves_only_its_token(temperature: float, dtype: type) -> None:
    logits = random_logits(2, 8).astype(np.float32)
    want = logits.astype(dtype)
    want[:, 3] += 2.5
    want[:, 5] = -np.inf
    out = biased(logits, SamplingParams(temperature, logit_bias={3: 2.5, 5: float("-inf")}))
    assert out.dtype == dtype
    assert np.array_equal(out, want)


@pytest.mark.parametrize("vocabulary", [30, 5000, CACHED + 1])
def test_the_most_likely_token_has_its_probability_in_float64_too(vocabulary: int) -> None:
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


def test_draws_follow_their_distribution() -> None:
    probs = softmax(random_logits(1, 12))
    num = 40_000
    u = Counter(seed=4).uniform(TOKEN, np.arange(num), 0)
    drawn = inverse_cdf(np.repeat(probs, num, axis=0), u)
    counts = np.bincount(drawn, minlength=12)
    error = np.sqrt(num * probs[0] * (1 - probs[0]))
    assert np.all(np.abs(counts - num * probs[0]) < 4.5 * error)


def test_the_draw_never_leaves_the_support() -> None:
    probs = np.array([[0.0, 0.5, 0.0, 0.5, 0.0]])
    edges = np.array([0.0, np.nextafter(0.5, 0), 0.5, np.nextafter(1.0, 0)])
    assert inverse_cdf(np.repeat(probs, 4, axis=0), edges).tolist() == [1, 1, 3, 3]


def test_temperature_zero_is_the_most_likely_token_whatever_the_random_number() -> None:
    logits = random_logits(5, 40)
    for u in (0.0, 0.5, 0.999):
        proposals = propose(np.arange(5), logits, SamplingParams(), np.full(5, u))
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
        made = propose(np.arange(7), logits, params, np.full(7, 0.3), entropy=True, num_best=3)
        assert np.allclose(made.entropies, want)
        assert np.allclose(made.best, -np.sort(-probs, axis=1)[:, :3])
        assert np.allclose(made.probabilities, probs[np.arange(7), made.tokens])
        plain = propose(np.arange(7), logits, params, np.full(7, 0.3))
        assert np.array_equal(plain.tokens, made.tokens)
        assert plain.entropies is plain.best is None
