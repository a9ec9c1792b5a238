"""Bits per byte: windows that cover the text, and figures that agree with scores made one by one."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from daguerre.errors import DataError, InputError, UnsupportedError
from daguerre.evals.bits import NUM_BUCKETS, _estimated_figure, _Sums, bits_per_byte, make_windows, spread
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.likelihood import score_tokens


def document(text: str, name: str = "a.py") -> Document:
    return Document("package", "1.0", "MIT", name, hashlib.sha256(text.encode()).hexdigest(), text)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    """Texts of several lengths, some of more than one window of 256, with characters of several bytes."""
    rng = np.random.default_rng(0)
    words = ["def ", "return ", "x = ", "für ", "“”", "\n    ", "self.", "(a, b)", "12", "\t"]
    return [document("".join(rng.choice(words, size=n)), f"{n}.py") for n in (3, 40, 90, 150, 400, 700)]


def test_windows_cover_every_byte_once(tokenizer: Tokenizer, documents: list[Document]) -> None:
    windows = make_windows(documents, tokenizer, 64)

    for index, each in enumerate(documents):
        some = [window for window in windows if window.document == index]
        body = [token for window in some for token in window.tokens[1:].tolist()]
        assert body[-1] == tokenizer.eos_id
        assert tokenizer.decode_bytes(body) == each.text.encode()
        assert sum(window.num_bytes.sum() for window in some) == len(each.text.encode())
    assert all(window.tokens[0] == tokenizer.bos_id and len(window.tokens) <= 64 for window in windows)


@pytest.mark.parametrize(("positions", "length"), [(None, 256), (64, 64)])
def test_the_exact_figure_is_that_of_the_scores_of_the_windows(
    causal: Model, documents: list[Document], positions: int | None, length: int
) -> None:
    windows = make_windows(documents, causal.tokenizer, length)
    nats = sum(score_tokens(causal.denoiser.backend, window.tokens.tolist()).value for window in windows)
    num_bytes = sum(len(each.text.encode()) for each in documents)

    how = {"layouts": ["ar"], "positions": positions}
    (figure,) = bits_per_byte(causal.denoiser.backend, causal.tokenizer, documents, **how)  # type: ignore[arg-type]

    assert figure.value == pytest.approx(nats / np.log(2) / num_bytes)
    assert (figure.num_bytes, figure.num_windows, figure.num_scored) == (num_bytes, len(windows), len(windows))
    assert (figure.exact, figure.stderr, figure.ratio) == (True, 0.0, 1.0)
    assert figure.text_stderr is not None
    assert figure.text_stderr > 0


def test_a_bound_on_all_windows_is_what_was_scored(causal: Model, documents: list[Document]) -> None:
    windows = make_windows(documents, causal.tokenizer, 256)
    scores = [
        score_tokens(causal.denoiser.backend, w.tokens.tolist(), kind="elbo", layout=8, samples=3, seed=(5, i))
        for i, w in enumerate(windows)
    ]
    num_bytes = sum(len(each.text.encode()) for each in documents)

    options = {"bound_windows": None, "samples": 3, "seed": 5}
    exact, figure = bits_per_byte(causal.denoiser.backend, causal.tokenizer, documents, layouts=["ar", 8], **options)
    (alone,) = bits_per_byte(causal.denoiser.backend, causal.tokenizer, documents, layouts=[8], **options)

    assert figure.value == pytest.approx(sum(score.value for score in scores) / np.log(2) / num_bytes)
    assert alone.stderr == pytest.approx(np.sqrt(sum(s.stderr**2 for s in scores)) / np.log(2) / num_bytes)
    assert 0 < figure.stderr <= alone.stderr
    assert figure.ratio == pytest.approx(figure.value / exact.value)
    assert alone.value == pytest.approx(figure.value)
    assert alone.direct == figure.direct == pytest.approx(figure.value)
    assert alone.ratio is None


def test_a_bound_on_some_windows_stands_for_all_of_them(causal: Model, documents: list[Document]) -> None:
    many = [document(each.text[i:], f"{each.file}{i}") for each in documents[1:4] for i in range(16)]
    score = {"layouts": ["ar", 4], "samples": 4}
    everything = bits_per_byte(causal.denoiser.backend, causal.tokenizer, many, bound_windows=None, **score)[1]

    some = bits_per_byte(causal.denoiser.backend, causal.tokenizer, many, bound_windows=20, seed=1, **score)[1]

    assert some.num_scored == 20
    assert some.num_windows == everything.num_windows > 40
    assert abs(some.value - everything.value) < 4 * np.hypot(some.stderr, everything.stderr)
    assert everything.stderr < some.stderr < 0.1 * some.value
    windows = make_windows(many, causal.tokenizer, 256)
    scored = {i: windows[i] for i in spread(len(windows), 20)}
    nats = [
        score_tokens(causal.denoiser.backend, w.tokens.tolist(), kind="elbo", layout=4, samples=4, seed=(1, i)).value
        for i, w in enumerate(scored.values())
    ]
    num_bytes = sum(window.num_bytes.sum() for window in scored.values())
    assert some.direct == pytest.approx(sum(nats) / np.log(2) / num_bytes)
    assert some.by_position[0] == pytest.approx(everything.by_position[0], rel=0.2)


def test_a_chain_is_scored_on_every_eighth_window_of_those_that_are_bounded(
    causal: Model, documents: list[Document]
) -> None:
    many = [document(each.text[i:], f"{each.file}{i}") for each in documents[1:4] for i in range(16)]
    windows = make_windows(many, causal.tokenizer, 256)
    chosen = spread(len(windows), 40)[spread(40, 5)]
    nats = [
        score_tokens(causal.denoiser.backend, windows[i].tokens.tolist(), kind="chain", layout=4, order="left").value
        for i in chosen
    ]
    num_bytes = sum(windows[i].num_bytes.sum() for i in chosen)

    ar, bound, chain = bits_per_byte(
        causal.denoiser.backend, causal.tokenizer, many, layouts=["ar", 4, "chain 4"], bound_windows=40
    )

    assert (bound.num_scored, chain.num_scored, chain.num_windows) == (40, 5, len(windows))
    assert (bound.exact, chain.exact, chain.samples) == (False, True, 1)
    assert chain.direct == pytest.approx(sum(nats) / np.log(2) / num_bytes)
    assert chain.ratio == pytest.approx(chain.value / ar.value)
    assert chain.stderr > 0


def test_figures_are_given_by_position_in_the_context(causal: Model) -> None:
    texts = [document("x = 1\n" * 20)]

    (figure,) = bits_per_byte(causal.denoiser.backend, causal.tokenizer, texts, layouts=["ar"])

    reached = [value is not None for value in figure.by_position]
    assert len(reached) == 8
    assert reached[0]
    assert not reached[-1]
    assert figure.text_stderr is None


@pytest.mark.parametrize("name", ["causal", "full", "block"])
def test_every_context_has_its_default_layouts(name: str, models: dict[str, Model], documents: list[Document]) -> None:
    figures = bits_per_byte(models[name].denoiser.backend, models[name].tokenizer, documents[:2], bound_windows=2)

    causal = ["ar", "4", "16", "64", "full", "chain 4", "chain 16"]
    expected = {"causal": causal, "block": ["8", "chain 8"]}.get(name, ["full"])
    assert [figure.layout for figure in figures] == expected
    assert all(figure.value > 0 for figure in figures)


def test_progress_counts_the_windows_of_each_layout(causal: Model, documents: list[Document]) -> None:
    shown: list[tuple[str, int, int]] = []

    bits_per_byte(
        causal.denoiser.backend,
        causal.tokenizer,
        documents[:3],
        layouts=["ar", "full"],
        progress=lambda *step: shown.append(step),
    )

    assert shown == [(layout, done, 3) for layout in ("ar", "full") for done in range(4)]


def test_what_cannot_be_scored_is_refused_before_any_work(models: dict[str, Model], documents: list[Document]) -> None:
    full, causal = models["full"], models["causal"]
    with pytest.raises(UnsupportedError, match="no autoregressive likelihood"):
        bits_per_byte(full.denoiser.backend, full.tokenizer, documents, layouts=["full", "ar"])
    with pytest.raises(InputError, match="layout='half'"):
        bits_per_byte(causal.denoiser.backend, causal.tokenizer, documents, layouts=["half"])
    with pytest.raises(InputError, match="layout='left'"):
        bits_per_byte(causal.denoiser.backend, causal.tokenizer, documents, layouts=["chain left"])
    with pytest.raises(DataError, match="no text"):
        bits_per_byte(causal.denoiser.backend, causal.tokenizer, [document("")])


def test_windows_are_spread_evenly() -> None:
    assert spread(10, None).tolist() == list(range(10))
    assert spread(10, 20).tolist() == list(range(10))
    assert spread(10, 5).tolist() == [1, 3, 5, 7, 9]
    with pytest.raises(InputError):
        spread(10, 1)


def test_the_error_of_a_bound_on_some_windows_is_that_of_repeated_choices() -> None:
    rng = np.random.default_rng(0)
    num = 300
    tokens = rng.integers(100, 1000, size=num).astype(float)
    exact = tokens * rng.uniform(0.5, 6, size=num)
    mask_variance = (0.1 * exact) ** 2
    bound = 0.8 * exact + 2.5 * tokens + rng.normal(0, 0.05 * exact)

    def sums(bits: np.ndarray) -> _Sums:
        columns = [np.repeat(values[:, None], NUM_BUCKETS + 1, axis=1) for values in (bits, tokens, tokens)]
        return _Sums(*columns, document=np.arange(num), mask_variance=mask_variance)

    values, stated = [], []
    for _ in range(300):
        chosen = rng.permutation(num)[:60]
        drawn = sums(bound + rng.normal(0, np.sqrt(mask_variance)))
        figure = _estimated_figure("16", drawn.take(chosen), sums(exact), sums(exact).take(chosen), 2)
        values.append(figure.value)
        stated.append(figure.stderr)

    truth = bound.sum() / tokens.sum()
    assert np.mean(values) == pytest.approx(truth, abs=4 * np.std(values) / np.sqrt(300))
    assert np.mean(stated) / np.std(values) == pytest.approx(1, abs=0.15)
