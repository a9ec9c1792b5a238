"""DiffusionGemma on the native backend: on every instruction set of this machine equal to the torch backend, its
answers the same bit for bit whatever is computed beside them or cached.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from backends import every_isa, kinds, needs_compiler, threads
from conftest import GEMMA
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.backbone_session import BackboneSession
from daguerre.models.backends import gemma_packing
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.native_cache import LayeredNativeCache
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import Windows
from daguerre.models.core.gemma_shape import GemmaShape
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import (
    Answer,
    Ask,
    DraftStep,
    Draws,
    Forward,
    Hidden,
    Logits,
    LogProbs,
    Refinement,
    Rules,
    SequentialDraws,
)
from daguerre.models.session import compute
from daguerre.sampling.logits import SamplingParams, biased, entropies, inverse_cdf, log_softmax, softmax, tempered
from daguerre.sampling.random import TOKEN, Counter
from forwards import causal_layout, difference, same_bits
from oracles.gemma import CANVAS, SIZES, VOCABULARY, WINDOW, ours, theirs

pytestmark = needs_compiler
LENGTHS = (3, WINDOW - 1, WINDOW, WINDOW + 1, 40, 130)
"""Of prompts: shorter than the window, as long as it, and longer; and longer than two panels of keys."""
CLOSE = 1e-5


@cache
def backbone_of(dtype: torch.dtype = torch.float32) -> Backbone:
    if dtype != torch.float32:
        return copy.deepcopy(backbone_of()).to(dtype)
    with TemporaryDirectory() as folder:
        return ours(theirs(), Path(folder))


def tokens(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((length, seed)).integers(0, VOCABULARY, length)


def conditioning_of(seed: int) -> np.ndarray:
    """As large as that of the model."""
    random = np.random.default_rng(seed).standard_normal((CANVAS, SIZES["hidden_size"]))
    return (3 * random).astype(np.float32)


def rules_of(seed: int, start: int) -> Rules:
    return Rules(
        temperature=(0.4, 0.8, 1.0)[seed % 3],
        logit_bias={5: 2.0, 9: -np.inf} if seed % 2 else {},
        bans=np.array([[seed, start, start + 3]]),
        rng=Counter(seed, 1),
        purpose=TOKEN,
        step=seed % 4,
        **({"allowed_at": start + 1, "allowed": np.arange(20, 24, dtype=np.int32)} if seed % 3 == 0 else {}),
    )


def ask_of(number: int, positions: np.ndarray) -> Ask:
    rules = rules_of(number, int(positions[0]))
    asks: tuple[Ask, ...] = (
        Refinement(rules, positions),
        Logits(),
        Draws(rules, positions, entropy=True, num_best=2),
        LogProbs(tokens(CANVAS, number)),
        Hidden(),
        SequentialDraws(rules, positions),
    )
    return asks[number % len(asks)]


def canvas_forward(number: int, length: int, **changes: Any) -> Forward:
    """A forward about a canvas, with conditioning for odd numbers; nothing is cached."""
    total = length + CANVAS
    layout = causal_layout(0, total)
    layout.num_clean, layout.end[length:] = length, total
    wanted = np.arange(length, total, dtype=np.int32)
    given = np.concatenate([tokens(length, number), tokens(CANVAS, number + 100)])
    forward = Forward(given, layout, None, wanted, ask_of(number, wanted.astype(np.int64)))
    return replace(forward, **{"conditioning": conditioning_of(number) if number % 2 else None, **changes})


def text_forward(length: int, ask: Ask | None = None, cache: Any = None, seed: int = 0) -> Forward:
    """A forward about clean rows behind those that are cached."""
    past = 0 if cache is None else cache.length
    given = tokens(200, seed)[past : past + length]
    return Forward(given, causal_layout(past, length), cache, np.arange(length, dtype=np.int32), ask or Logits())


def logits_of(answer: Answer) -> np.ndarray:
    assert answer.logits is not None
    return answer.logits


@every_isa
def test_logits_equal_those_of_the_reference(isa: str) -> None:
    """Of canvases, in first steps and later ones, of clean rows, and of wanted rows in any order."""
    native, reference = NativeBackend(backbone_of()), TorchBackend(backbone_of())
    forwards = [canvas_forward(at, length, ask=Logits()) for at, length in enumerate(LENGTHS)]
    forwards += [text_forward(length) for length in (1, 30, 150)]
    forwards.append(replace(forwards[4], wanted=np.array([47, 3, 3, 40, 20, 0], dtype=np.int32)))
    told = [
        one if one.conditioning is None else replace(one, conditioning=torch.from_numpy(one.conditioning))
        for one in forwards
    ]
    for got, want in zip(native.forward(forwards), reference.forward(told), strict=True):
        assert difference(logits_of(got), logits_of(want)) < CLOSE
    free = [replace(one, conditioning=None) for one in forwards[:6]]
    far = [
        difference(logits_of(a), logits_of(b))
        for a, b in zip(native.forward(free), native.forward(forwards[:6]), strict=True)
    ]
    assert all(one > 0.01 if number % 2 else one == 0 for number, one in enumerate(far))


@every_isa
def test_other_shapes_equal_the_reference(isa: str, make_model: Any) -> None:
    """All layers sliding, or all global; no number of a head rotated, or all; rows and heads that fill no panel."""
    for layers, change in (
        ((0, 1), {}),
        ((), {"global_rope_share": 1.0}),
        ((1,), {"global_rope_share": 0.0, "softcap": 3.0}),
    ):
        shape = GemmaShape(global_head_width=20, global_kv_heads=2, **change)
        facts = {**GEMMA, "gemma": shape, "windows": Windows(size=5, layers=layers), "width": 36, "head_width": 10}
        backbone = make_model(**facts).backbone
        with torch.no_grad():
            for layer in backbone.layers:
                layer.scalars.copy_(torch.tensor([0.8, 1.3]))
        native, reference = NativeBackend(backbone), TorchBackend(backbone)
        for past in (0, 9):
            caches = [backend.cache(50) for backend in (native, reference)]
            answers = []
            for backend, own in zip((native, reference), caches, strict=True):
                if past:
                    backend.forward([text_forward(past, Hidden(), own)])
                layout = causal_layout(past, 12)
                layout.num_clean, layout.end[4:] = 4, past + 12
                forward = Forward(tokens(12, 7), layout, own, np.arange(12, dtype=np.int32), Logits())
                answers.append(logits_of(backend.forward([forward])[0]))
            assert difference(*answers) < CLOSE


@every_isa
def test_a_refinement_is_that_of_numpy(isa: str) -> None:
    native, num = NativeBackend(backbone_of()), len(LENGTHS)
    weight = backbone_of().embedding.weight.double().numpy() * SIZES["hidden_size"] ** 0.5
    forwards = [canvas_forward(6 * number, length) for number, length in enumerate(LENGTHS)]
    asked = native.forward(forwards)
    told = native.forward([replace(one, ask=Logits()) for one in forwards])
    chances = []
    for forward, answer, plain in zip(forwards, asked, told, strict=True):
        assert isinstance(forward.ask, Refinement)
        rules, positions, rows = forward.ask.rules, forward.ask.positions, np.arange(CANVAS)
        assert rules.rng is not None
        params = SamplingParams(rules.temperature, logit_bias=dict(rules.logit_bias))
        logits = biased(logits_of(plain), params)
        logits[:3, rules.bans[0, 0]] = -np.inf
        if rules.allowed is not None:
            kept = logits[1, rules.allowed]
            logits[1] = -np.inf
            logits[1, rules.allowed] = kept
        probs, whole = tempered(logits, params), softmax(logits)
        drawn = inverse_cdf(probs, rules.rng.uniform(TOKEN, positions, rules.step))
        assert answer.tokens is not None and np.array_equal(answer.tokens, drawn)
        assert answer.best_tokens is not None and np.array_equal(answer.best_tokens, logits.argmax(-1)[:, None])
        assert answer.best_probabilities is not None and answer.probabilities is not None
        assert np.allclose(answer.probabilities, whole[rows, drawn], rtol=1e-4, atol=1e-7)
        assert np.allclose(answer.best_probabilities[:, 0], whole.max(-1), rtol=1e-4)
        assert answer.entropies is not None and np.allclose(answer.entropies, entropies(probs), atol=1e-5)
        assert difference(answer.conditioning, (probs @ weight).astype(np.float32)) < CLOSE
        chances += whole.max(-1).tolist()
    assert 0.4 < np.mean(chances) < 0.6 and len(chances) == num * CANVAS


@every_isa
def test_mean_embeddings_are_summed_in_parts(
    isa: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    want = NativeBackend(backbone_of()).forward([canvas_forward(0, 20)])[0].conditioning
    for tokens_at_once in [64, 1000, 1024, 4096]:
        with subtests.test(tokens_at_once=tokens_at_once):
            monkeypatch.setattr(gemma_packing, "TOKENS", tokens_at_once)
            for dtype in (torch.float32, torch.bfloat16):
                got = NativeBackend(backbone_of(dtype)).forward([canvas_forward(0, 20)])[0].conditioning
                if dtype == torch.float32:
                    assert difference(got, want) < CLOSE
                else:
                    assert np.isfinite(got).all()


@every_isa
def test_draws_are_of_capped_logits(isa: str) -> None:
    native = NativeBackend(backbone_of())
    for number in (2, 3, 5):
        forward = canvas_forward(number, 40)
        logits = logits_of(native.forward([replace(forward, ask=Logits())])[0]).astype(np.float64)
        (answer,) = native.forward([forward])
        if isinstance(forward.ask, LogProbs):
            assert answer.log_probs is not None
            want = log_softmax(logits)[np.arange(CANVAS), forward.ask.tokens]
            assert np.allclose(answer.log_probs, want, atol=1e-5)
        elif number == 2:
            assert isinstance(forward.ask, Draws)
            logits[:3, forward.ask.rules.bans[0, 0]] = -np.inf
            assert answer.best_probabilities is not None
            want = -np.sort(-softmax(logits), axis=-1)[:, :2]
            assert np.allclose(answer.best_probabilities, want, rtol=1e-4)
    (hidden,) = native.forward([canvas_forward(4, 40)])
    assert hidden.hidden is not None
    (step,) = native.forward([DraftStep(hidden.hidden)])
    assert np.array_equal(logits_of(step), logits_of(native.forward([canvas_forward(4, 40, ask=Logits())])[0]))
    assert np.abs(logits_of(step)).max() < 60


@every_isa
def test_an_answer_has_the_bits_that_it_has_alone(isa: str, subtests: pytest.Subtests) -> None:
    """Requests of every kind, in another order in each batch, on up to three threads."""
    for dtype, quantize in kinds():
        with subtests.test(dtype=dtype, quantize=quantize):
            backend = NativeBackend(backbone_of(dtype), quantize)
            forwards = [canvas_forward(number, LENGTHS[number % 5]) for number in range(12)] + [text_forward(70)]
            alone = [backend.forward([one])[0] for one in forwards]
            for num_threads in (1, 3):
                order = np.random.default_rng(num_threads).permutation(len(forwards)).tolist()
                with threads(num_threads):
                    answers = backend.forward([forwards[number] for number in order])
                for number, answer in zip(order, answers, strict=True):
                    assert same_bits(answer, alone[number]), (num_threads, number)


@every_isa
def test_a_row_has_the_same_bits_whatever_is_cached(isa: str, subtests: pytest.Subtests) -> None:
    for dtype, quantize in kinds():
        with subtests.test(dtype=dtype, quantize=quantize):
            backend = NativeBackend(backbone_of(dtype), quantize)
            (whole,) = backend.forward([text_forward(150)])
            for parts in ((100, 1, 1, 5, 13, 30), (15, 1, 1, 47, 1, 64, 21)):
                own: Any = backend.cache(150)
                found = [logits_of(backend.forward([text_forward(num, cache=own)])[0]) for num in parts]
                assert np.array_equal(np.concatenate(found), logits_of(whole))
            assert own.length == 150 and logits_of(whole).std() > 0.5


@every_isa
def test_a_text_that_grows_canvas_by_canvas_is_that_of_the_reference(isa: str, subtests: pytest.Subtests) -> None:
    """From shorter than the window to far longer, with what each step says in the next one."""
    for caching in ["none", "exact", "int8"]:
        with subtests.test(caching):
            texts = []
            for backend in (NativeBackend(backbone_of()), TorchBackend(backbone_of())):
                own = None if caching == "none" else backend.cache(200, int8=caching == "int8")
                session, text, found = BackboneSession(backend.config, own), tokens(9), []
                for number in range(9):
                    told = None
                    for step in range(2):
                        noisy, places = tokens(CANVAS, 10 * number + step), len(text) + np.arange(CANVAS)
                        ask = Refinement(Rules(temperature=0.6, rng=Counter(number), purpose=TOKEN, step=step), places)
                        answer = compute(session.ask_tokens(text, noisy, ask, told), backend)
                        told = answer.conditioning
                        found += [answer.tokens, np.asarray(told), answer.entropies]
                    text = np.concatenate([text, noisy])
                texts.append(found)
            close = 1e-4 if caching != "int8" else 0.02  # rounding grows in self-conditioning
            for got, want in zip(*texts, strict=True):
                if got.dtype == np.int64:
                    assert np.array_equal(got, want) or caching == "int8"
                else:
                    assert difference(got.astype(np.float64), want.astype(np.float64)) < close


def test_smaller_numbers_err_as_little_as_in_pytorch() -> None:
    errors = []
    backends = [kind(backbone_of(torch.bfloat16)) for kind in (NativeBackend, TorchBackend)]
    backends += [NativeBackend(backbone_of(), "int8"), NativeBackend(backbone_of(torch.bfloat16), "int8")]
    exact = TorchBackend(backbone_of())
    for seed in range(12):
        forward = canvas_forward(2 * seed, 30, ask=Logits())
        want = logits_of(exact.forward([forward])[0])
        errors.append([np.abs(logits_of(one.forward([forward])[0]) - want).mean() for one in backends])
    native, pytorch, *int8 = np.median(errors, axis=0)
    assert 0.02 < native < pytorch
    assert min(int8) > 0.05 and max(int8) < 3 * pytorch


def test_8_bit_keys_are_rounded_the_same_way_whether_they_are_cached_or_not() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        backend, text, noisy = NativeBackend(backbone_of(dtype)), tokens(30), tokens(CANVAS)
        answers = []
        for parts in ((30,), (22, 30)):
            session = BackboneSession(backend.config, backend.cache(100, int8=True))
            for part in parts:
                answer = compute(session.ask_tokens(text[:part], noisy, Logits()), backend)
            answers.append(logits_of(answer))
        assert np.array_equal(*answers)
        exact = BackboneSession(backend.config, backend.cache(100))
        assert difference(answers[0], logits_of(compute(exact.ask_tokens(text, noisy, Logits()), backend))) > 1e-3


def test_where_no_token_is_left_none_is_drawn() -> None:
    every = np.array([[token, 20, 21] for token in range(VOCABULARY)])
    rules = Rules(temperature=0.6, rng=Counter(0), purpose=TOKEN, bans=every)
    ask = Refinement(rules, 20 + np.arange(CANVAS))
    (answer,) = NativeBackend(backbone_of()).forward([canvas_forward(0, 20, ask=ask)])
    assert answer.tokens is not None and answer.tokens[0] == -1 and (answer.tokens[1:] >= 0).all()
    assert not answer.conditioning[0].any() and answer.conditioning[1:].any(-1).all()


def test_keys_of_each_layer_have_their_shape() -> None:
    backend = NativeBackend(backbone_of())
    own: Any = backend.cache(100)
    assert isinstance(own, LayeredNativeCache) and own.num_bytes == 0
    backend.forward([text_forward(9, Hidden(), own)])
    shapes = [part.read(layer)[0].shape for part in own._parts.values() for layer in range(2)]
    assert [tuple(shape) for shape in shapes] == [(1, 2, 9, 16)] * 2 + [(1, 1, 9, 32)] * 2
    assert own.num_bytes == 4 * 64 * (2 * 2 * (16 + 64) + 2 * (32 + 64))  # in pages of 64 rows, and in 64 columns
    reference: Any = TorchBackend(backbone_of()).cache(100)
    TorchBackend(backbone_of()).forward([text_forward(9, Hidden(), reference)])
    for layer in range(4):
        stored, place = reference._place[layer]
        for got, want in zip(own._parts[layer % 2].read(layer // 2), stored.read(place), strict=True):
            assert torch.allclose(got, want, atol=1e-4)
    own.truncate(4)
    assert own.length == 4
    with pytest.raises(UnsupportedError, match="cannot be moved"):
        own.moved(np.zeros(4, dtype=np.int64))
    with pytest.raises(InputError, match="holds 100 rows and 104 are needed"):
        own.address(100)


@pytest.mark.parametrize("int8", [False, True])
def test_copied_rows_are_as_good_as_computed_ones(int8: bool) -> None:
    backend = NativeBackend(backbone_of())
    own, other = (backend.cache(200, int8=int8) for _ in range(2))
    backend.forward([text_forward(140, Hidden(), own)])
    other.append(own.copy(0, 64))
    other.append(own.copy(64, 128))
    assert other.length == 128 and own.kind == other.kind != backend.cache(200, int8=not int8).kind
    own.truncate(128)
    want, got = (backend.forward([text_forward(20, cache=one)])[0] for one in (own, other))
    assert same_bits(got, want)
    other.free()
    assert other.length == 0 and other.num_bytes == 0
    assert same_bits(
        *(backend.forward([text_forward(9, cache=one)])[0] for one in (other, backend.cache(20, int8=int8)))
    )


@every_isa
def test_far_positions_are_rotated_as_in_the_reference(isa: str, make_model: Any) -> None:
    backbone = make_model(**GEMMA, max_positions=262144).backbone
    answers = []
    for backend in (NativeBackend(backbone), TorchBackend(backbone)):
        forward = text_forward(30)
        forward.layout.position += 262144 - 30
        answers.append(logits_of(backend.forward([forward])[0]))
    assert difference(*answers) < CLOSE
    forward.layout.position += 1
    with pytest.raises(IndexError, match="a position that the model does not have"):
        NativeBackend(backbone).forward([forward])


def test_another_head_is_given_what_the_vocabulary_projection_reads() -> None:
    backbone = backbone_of()

    def head(hidden: torch.Tensor) -> tuple[torch.Tensor, np.ndarray | None]:
        return backbone.logits(hidden).flip(-1), hidden.float().numpy()

    answers = []
    for kind in (NativeBackend, TorchBackend):
        backend, told = kind(backbone, head=head), None
        for _ in range(2):
            (answer,) = backend.forward([canvas_forward(0, 30, conditioning=told)])
            told = answer.conditioning
        answers.append(answer)
    got, want = answers
    assert np.array_equal(got.tokens, want.tokens)  # type: ignore[arg-type]
    assert isinstance(got.conditioning, np.ndarray)
    assert difference(got.conditioning, want.conditioning.numpy()) < CLOSE
    assert difference(got.evidence, want.evidence) < CLOSE  # type: ignore[arg-type]


def test_it_is_the_default_and_may_be_rounded() -> None:
    assert isinstance(BackboneDenoiser(backbone_of()).backend, NativeBackend)
    (answer,) = BackboneDenoiser(backbone_of(), quantize="int8").backend.forward([canvas_forward(0, 30)])
    assert answer.tokens is not None
