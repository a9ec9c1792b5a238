"""Draws of both backends equal those of `sampling.logits`, for the same logits and the same random numbers.

The logits are a test's, exactly: a model without branches, whose token t has the hidden state 8 e_t, and whose output
matrix has an eighth of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from backends import BACKENDS, every_isa
from daguerre.errors import InputError
from daguerre.models.backends import answering
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Answer, Backend, Draws, Forward, Layout, Logits, LogProbs, Rules
from daguerre.sampling.logits import log_softmax
from daguerre.sampling.random import Counter
from forwards import SAMPLING, drawn

WIDTH, VOCAB = 64, 150
MAKERS: dict[str, Callable[[Backbone], Backend]] = {"native": NativeBackend, "torch": TorchBackend}
HARDLY = np.float32(-1e30)
"""A logit without weight: minus infinity cannot be a product."""
SURE = 1e-9
"""What two orders of the same float64 sums differ by, and more."""


def that_says(logits: np.ndarray, reserved: tuple[int, ...] = ()) -> Backbone:
    """A model whose row with token t has the logits of row t, float32 (WIDTH, VOCAB)."""
    config = ModelConfig(
        vocab_size=VOCAB,
        width=WIDTH,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        mlp_width=16,
        max_positions=256,
        mask_id=3,
        eos_id=2,
        bos_id=1,
        pad_id=0,
        reserved_ids=reserved,
        tied=False,
        norm_eps=1e-30,  # so that the root mean square of e_t is 1/8 exactly
    )
    backbone = Backbone(config).initialize(0).eval().requires_grad_(False)  # branches add nothing
    backbone.embedding.weight.copy_(torch.eye(VOCAB, WIDTH))
    assert backbone.output is not None
    backbone.output.weight.copy_(torch.from_numpy(logits.T / 8))
    return backbone


def ask(backend: Backend, what: Any) -> Answer:
    (answer,) = ask_all(backend, [what])
    return answer


def ask_all(backend: Backend, asks: Sequence[Any]) -> list[Answer]:
    """One batch, with a request of all rows for each of these."""
    layout = Layout(np.arange(WIDTH), np.arange(1, WIDTH + 1, dtype=np.int32), WIDTH)
    rows = np.arange(WIDTH, dtype=np.int32)
    return backend.forward([Forward(np.arange(WIDTH), layout, None, rows, what) for what in asks])


def random_logits() -> np.ndarray:
    """Flat and sharp rows, with ties for the first place, at edges of cuts, and tokens that are never drawn."""
    out = np.random.default_rng(0).standard_normal((WIDTH, VOCAB)).astype(np.float32)
    out *= np.linspace(0.1, 8, WIDTH, dtype=np.float32)[:, None]
    out[5, [140, 30, 70]] = out[5].max() + 1  # the first of three equals
    out[6] = 0.0  # all alike: every cut is by token id
    out[7, ::2] = 1.0
    out[8, 20:] = HARDLY
    out[9, 1:] = HARDLY
    return out


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    return random_logits()


def rules(number: int, **changes: Any) -> Rules:
    """Every way to cut, beside bias, bans that touch some positions, and a position where little is allowed."""
    values: dict[str, Any] = {
        "logit_bias": {} if number % 2 else {11: 1.5, 12: -np.inf, 30: -0.25},
        "bans": np.array([[13, 0, 10**9], [14, 100, 110], [15, 130, 120]]),
        "rng": Counter(-3 - number, 2),
        "purpose": 4,
        "step": number,
    }
    if number % 3:
        values |= {"allowed_at": 120, "allowed": np.array([40, 13, 41], dtype=np.int32)}
    return Rules(**(SAMPLING[number % len(SAMPLING)] | values | changes))


def is_sure(logits: np.ndarray, how: Rules, positions: np.ndarray) -> bool:
    """Whether no number decides that is as near to an edge as rounding is wide: other numbers give the same tokens."""
    assert how.rng is not None
    tokens, counter = drawn(logits, how, positions).tokens, how.rng

    class Moved(Counter):
        def exponential(self, purpose: int, positions: np.ndarray, step: int, vocabulary: int) -> np.ndarray:
            noise = counter.exponential(purpose, positions, step, vocabulary)
            return noise * (1 + SURE * np.random.default_rng(self.sample).standard_normal(noise.shape))

    return all(
        np.array_equal(drawn(logits, replace(how, rng=Moved(0, number)), positions).tokens, tokens)
        for number in range(3)
    )


def check(backend: Backend, logits: np.ndarray, numbers: Sequence[int]) -> None:
    """Draws at several runs of positions, most with entropies and best tokens, all requests in one batch."""
    asks = []
    for number, start in product(numbers, (0, 90, 3000)):
        positions, how = start + np.arange(WIDTH), rules(number)
        assert is_sure(logits, how, positions)
        asks.append(Draws(how, positions, entropy=number % 5 != 3, num_best=4 - number % 5))
    for one, got in zip(asks, ask_all(backend, asks), strict=True):
        want = drawn(logits, one.rules, one.positions, one.entropy, one.num_best)
        assert np.array_equal(got.tokens, want.tokens)
        precise = 1e-6 if one.rules.temperature == 0 else 1e-12
        for name in ("probabilities", "entropies", "best_tokens", "best_probabilities"):
            given, other = getattr(got, name), getattr(want, name)
            assert (given is None) == (other is None), name
            assert given is None or np.allclose(given, other, rtol=precise, atol=precise), name


@pytest.mark.parametrize("name", BACKENDS)
def test_draws_are_those_of_the_reference(logits: np.ndarray, name: str) -> None:
    backend = MAKERS[name](that_says(logits))
    assert np.array_equal(ask(backend, Logits()).logits, logits)
    check(backend, logits, range(2 * len(SAMPLING)))


@every_isa
def test_draws_are_those_of_the_reference_on_every_instruction_set(logits: np.ndarray, isa: str) -> None:
    backend = NativeBackend(that_says(logits))
    check(backend, logits, (0, 2, 4))


def test_draws_of_a_few_rows_at_a_time_are_those_of_all_at_once(
    logits: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, positions = torch.from_numpy(logits), np.arange(len(logits))
    for temperature, top_p in ((1.0, 1.0), (0.7, 0.8)):
        rules = Rules(temperature, top_p, 9 if top_p < 1 else None, {4: 1.0}, rng=Counter(3), purpose=1)
        monkeypatch.setattr(answering, "LOGITS_AT_ONCE", 1 << 23)
        whole = answering.draw(rows, rules, positions, entropy=True, num_best=2)
        monkeypatch.setattr(answering, "LOGITS_AT_ONCE", 7 * VOCAB)
        parts = answering.draw(rows, rules, positions, entropy=True, num_best=2)
        for name in ("tokens", "probabilities", "entropies", "best_tokens", "best_probabilities"):
            assert torch.equal(getattr(whole, name), getattr(parts, name)), name


@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_cut_and_what_is_equal_is_decided_by_token_id(name: str) -> None:
    """With exact numbers: four tokens of one weight, and top_k or top_p in the middle of them."""
    logits = np.full((WIDTH, VOCAB), HARDLY)
    logits[:, [100, 20, 60, 80]] = 0.5
    backend, positions = MAKERS[name](that_says(logits)), np.arange(WIDTH)
    cuts: list[tuple[dict[str, Any], set[int]]] = [
        ({"top_k": 3}, {20, 60, 80}),
        ({"top_p": 0.3}, {20, 60}),
        ({"top_p": 0.5}, {20, 60}),
        ({"top_k": 2, "top_p": 0.5}, {20}),
        ({"min_p": 1.0}, {20, 60, 80, 100}),
        ({}, {20, 60, 80, 100}),
    ]
    for cut, kept in cuts:
        for temperature in (0.5, 1.0, 2.0):
            got = ask(backend, Draws(Rules(temperature, **cut, rng=Counter(1)), positions))
            assert got.tokens is not None and got.probabilities is not None
            assert set(got.tokens.tolist()) == kept
            assert np.array_equal(got.probabilities, np.full(WIDTH, 0.25))
    got = ask(backend, Draws(Rules(), positions, num_best=3))
    assert got.tokens is not None and got.best_tokens is not None
    assert set(got.tokens.tolist()) == {20}
    assert got.best_tokens[0].tolist() == [20, 60, 80]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", BACKENDS)
def test_where_no_token_is_left_none_is_drawn(logits: np.ndarray, name: str, temperature: float) -> None:
    """The others of the same forward are."""
    backend, positions = MAKERS[name](that_says(logits)), np.arange(WIDTH)
    how = Rules(
        temperature, logit_bias={0: -np.inf}, allowed_at=20, allowed=np.array([0], dtype=np.int32), rng=Counter(0)
    )
    got = ask(backend, Draws(how, positions, entropy=True, num_best=1))
    assert got.tokens is not None and got.probabilities is not None and got.entropies is not None
    assert np.flatnonzero(got.tokens < 0).tolist() == [20]
    assert got.probabilities[20] == 0
    assert np.isfinite(got.entropies).all()
    with pytest.raises(InputError, match="no token is left"):
        drawn(logits, how, positions)


@pytest.mark.parametrize("name", BACKENDS)
def test_reserved_tokens_are_never_drawn_wherever_they_stand(logits: np.ndarray, name: str) -> None:
    reserved = (2, 17, 30, 70, 140, 149)
    backend = MAKERS[name](that_says(logits, reserved))
    want = logits.copy()
    want[:, [17, 30, 70, 140, 149]] = -np.inf  # the end of text, 2, may be
    assert np.array_equal(ask(backend, Logits()).logits, want)
    got = ask(backend, Draws(rules(1), np.arange(WIDTH)))
    assert np.array_equal(got.tokens, drawn(want, rules(1), np.arange(WIDTH)).tokens)


@pytest.mark.parametrize("name", BACKENDS)
def test_log_probabilities_are_those_of_the_reference(logits: np.ndarray, name: str) -> None:
    tokens = np.random.default_rng(1).integers(0, 20, WIDTH)
    tokens[9] = 5
    got = ask(MAKERS[name](that_says(logits)), LogProbs(tokens)).log_probs
    assert got is not None
    want = log_softmax(logits)[np.arange(WIDTH), tokens]
    assert np.allclose(got, want, rtol=1e-12, atol=1e-12)
    assert got[9] == pytest.approx(HARDLY)
