"""The core of DiffusionGemma: logits, caches and refinements, beside those of transformers.

The weights are read from files that transformers writes.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from daguerre.errors import CheckpointError, UnsupportedError
from daguerre.models.backbone_session import BackboneSession
from daguerre.models.backends import answering, sliding
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.models.core.build import make_backbone
from daguerre.models.core.cache import LayeredCache
from daguerre.models.core.config import Experts, ModelConfig, RopeScaling
from daguerre.models.core.gemma import GemmaBackbone
from daguerre.models.core.gemma_shape import GemmaShape
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Answer, Forward, Hidden, Logits, Refinement, Rules
from daguerre.models.session import compute
from daguerre.sampling.logits import SamplingParams, biased, entropies, inverse_cdf, softmax, tempered
from daguerre.sampling.random import TOKEN, Counter
from forwards import causal_layout, difference
from oracles.gemma import CANVAS, SIZES, VOCABULARY, ours, theirs

LENGTHS = (3, 15, 16, 17, 40)
"""Of prompts: shorter than the window, as long as it, and longer."""
CLOSE = 1e-4


@cache
def pair(seed: int = 0) -> tuple[Any, Backbone]:
    model = theirs(seed)
    with TemporaryDirectory() as folder:
        return model, ours(model, Path(folder))


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return TorchBackend(pair()[1])


def tokens(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((length, seed)).integers(0, VOCABULARY, length)


def expected(clean: np.ndarray, noisy: np.ndarray, before: np.ndarray | None = None, model: Any = None) -> np.ndarray:
    """Logits (A, V) of transformers, one text at a time; `before`: the logits of the step before."""
    conditioning = None if before is None else torch.from_numpy(before)[None]
    given = {"input_ids": torch.from_numpy(clean)[None], "decoder_input_ids": torch.from_numpy(noisy)[None]}
    with torch.no_grad():
        out: np.ndarray = (model or pair()[0])(**given, self_conditioning_logits=conditioning).logits[0].numpy()
    return out


def canvas_forward(clean: np.ndarray, noisy: np.ndarray, **changes: Any) -> Forward:
    """A forward about a canvas, nothing of which is cached."""
    num, total = len(clean), len(clean) + len(noisy)
    layout = causal_layout(0, total)
    layout.num_clean, layout.end[num:] = num, total
    forward = Forward(np.concatenate([clean, noisy]), layout, None, np.arange(num, total, dtype=np.int32), Logits())
    return replace(forward, **changes)


def logits_of(answer: Answer) -> np.ndarray:
    assert answer.logits is not None
    return answer.logits


def heat(seed: int = 0, **changes: Any) -> Rules:
    return Rules(temperature=0.6, rng=Counter(seed), purpose=TOKEN, **changes)


def test_canvases_have_the_logits_of_transformers(backend: TorchBackend) -> None:
    texts = [(tokens(length), tokens(CANVAS, length)) for length in LENGTHS]
    answers = backend.forward([canvas_forward(*text) for text in texts])
    for text, answer in zip(texts, answers, strict=True):
        wanted = expected(*text)
        assert np.abs(logits_of(answer) - wanted).max() < CLOSE
    assert 0.4 < softmax(np.concatenate([expected(*text) for text in texts])).max(-1).mean() < 0.6


def test_self_conditioning_is_that_of_transformers(backend: TorchBackend) -> None:
    texts = [(tokens(length), tokens(CANVAS, length)) for length in LENGTHS]
    before = [expected(*text) for text in texts]
    ask = [Refinement(heat(), len(clean) + np.arange(CANVAS)) for clean, _ in texts]
    first = backend.forward([canvas_forward(*text, ask=one) for text, one in zip(texts, ask, strict=True)])
    kept = [backend.backbone.conditioning(torch.from_numpy(one / 0.6)) for one in before]
    for one, answer in zip(kept, first, strict=True):
        assert one is not None and one.shape == (CANVAS, SIZES["hidden_size"])
        assert difference(answer.conditioning.numpy(), one.numpy()) < CLOSE
    kept[1] = None  # a first step among later ones
    again = backend.forward([canvas_forward(*text, conditioning=one) for text, one in zip(texts, kept, strict=True)])
    for number, (text, answer) in enumerate(zip(texts, again, strict=True)):
        wanted = before[number] if number == 1 else expected(*text, before[number] / 0.6)
        assert np.abs(logits_of(answer) - wanted).max() < CLOSE
        assert number == 1 or np.abs(wanted - before[number]).max() > 1


def test_bfloat16_errs_as_little_as_in_transformers() -> None:
    model, ours_half = copy.deepcopy(pair()[0]).bfloat16(), TorchBackend(copy.deepcopy(pair()[1]).bfloat16())
    model.set_experts_implementation("eager")
    errors = []
    for seed in range(12):
        clean, noisy = tokens(30, seed), tokens(CANVAS, seed)
        (answer,) = ours_half.forward([canvas_forward(clean, noisy)])
        half = (logits_of(answer), expected(clean, noisy, model=model))
        errors.append([np.abs(one - expected(clean, noisy)).mean() for one in half])
    own, of_transformers = np.mean(errors, axis=0)
    assert 0.05 < own < 1.3 * of_transformers


def test_clean_rows_have_the_logits_of_the_encoder(backend: TorchBackend) -> None:
    model = pair()[0]
    for length in LENGTHS:
        text = tokens(length)
        with torch.no_grad():
            hidden = model.model.encoder(input_ids=torch.from_numpy(text)[None]).last_hidden_state[0]
            wanted = 60 * torch.tanh(model.lm_head(hidden) / 60)
        rows = np.arange(length, dtype=np.int32)
        (answer,) = backend.forward([Forward(text, causal_layout(0, length), None, rows, Logits())])
        assert np.abs(logits_of(answer) - wanted.numpy()).max() < CLOSE


@pytest.mark.parametrize("cached", [True, False])
def test_a_text_that_grows_canvas_by_canvas_has_the_logits_of_transformers(backend: TorchBackend, cached: bool) -> None:
    cache = backend.cache(200) if cached else None
    session = BackboneSession(backend.config, cache)
    text = tokens(21)
    for number in range(4):
        for seed in (10 + number, 20 + number):  # a canvas is drawn again and again
            noisy = tokens(CANVAS, seed)
            answer = compute(session.ask_tokens(text, noisy, Logits()), backend)
            assert np.abs(logits_of(answer) - expected(text, noisy)).max() < CLOSE
        text = np.concatenate([text, noisy])
    assert cache is None or cache.length == 21 + 3 * CANVAS
    known = 2 * (21 + 29 + 37) + 45
    assert session.counts.recomputed_tokens == (0 if cached else known)
    assert session.counts.reused_tokens == (known if cached else 0)


def test_what_changed_is_computed_again(backend: TorchBackend) -> None:
    session = BackboneSession(backend.config, backend.cache(200))
    text, noisy = tokens(30), tokens(CANVAS)
    compute(session.ask_tokens(text, noisy, Logits()), backend)
    text = text.copy()
    text[20] = (text[20] + 1) % VOCABULARY
    answer = compute(session.ask_tokens(text, noisy, Logits()), backend)
    assert np.abs(logits_of(answer) - expected(text, noisy)).max() < CLOSE
    assert session.counts.reused_tokens == 20


def test_a_forward_alone_has_the_answer_of_a_batch(backend: TorchBackend) -> None:
    forwards = [canvas_forward(tokens(length), tokens(CANVAS, length)) for length in LENGTHS]
    text = tokens(33)
    forwards.append(Forward(text, causal_layout(0, 33), None, np.arange(33, dtype=np.int32), Logits()))
    for one, answer in zip(forwards, backend.forward(forwards), strict=True):
        (alone,) = backend.forward([one])
        assert difference(logits_of(alone), logits_of(answer)) < 1e-5


def test_what_a_row_sees_in_a_sliding_layer_is_what_a_window_at_its_position_holds() -> None:
    for past, num_clean, num_noisy in ((0, 9, 0), (0, 9, 4), (7, 0, 3), (6, 5, 3)):
        layout = causal_layout(past, num_clean + num_noisy)
        layout.num_clean, layout.end[num_clean:] = num_clean, past + num_clean + num_noisy
        for window in (1, 3, 100):
            seen = layout.within(window, past).dense(past)
            for row, key in np.ndindex(seen.shape):
                at, clean = past + row, past + num_clean
                if row < num_clean:
                    assert seen[row, key] == (at - window < key <= at)
                else:
                    assert seen[row, key] == (key > clean - window)


def test_few_rows_at_a_time_attend_as_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    random, past = torch.Generator().manual_seed(0), 6
    layout = causal_layout(past, 20)
    layout.num_clean, layout.end[13:] = 13, 26
    q, k, v = (torch.randn(1, heads, rows, 8, generator=random) for heads, rows in ((4, 20), (2, 26), (2, 26)))
    for few in (1, 3, 512):
        monkeypatch.setattr(sliding, "ROWS", few)
        for one in (layout, layout.within(5, past)):
            keys, values = (x.repeat_interleave(2, dim=1) for x in (k, v))
            scores = (q @ keys.transpose(-1, -2)).masked_fill(~torch.from_numpy(one.dense(past)), -torch.inf)
            wanted = scores.softmax(-1) @ values
            assert torch.allclose(sliding.attend(q, k, v, one, 1.0), wanted, atol=1e-5)
            assert torch.allclose(sliding.attend(q * 8**0.5, k, v, one), wanted, atol=1e-5)


def test_a_refinement_is_that_of_the_reference(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, noisy = tokens(20), tokens(CANVAS)
    positions, banned = 20 + np.arange(CANVAS), int(expected(clean, noisy)[0].argmax())
    rules = heat(step=4, logit_bias={5: 2.0}, bans=np.array([[banned, 20, 22]]))
    (whole,) = backend.forward([canvas_forward(clean, noisy, ask=Refinement(rules, positions))])
    params = SamplingParams(0.6, logit_bias={5: 2.0})
    logits = biased(logits_of(backend.forward([canvas_forward(clean, noisy)])[0]), params)
    logits[:2, banned] = -np.inf
    probs, plain = tempered(logits, params), softmax(logits)
    drawn = inverse_cdf(probs, Counter(0).uniform(TOKEN, positions, 4))
    rows = np.arange(CANVAS)
    assert whole.tokens is not None and np.array_equal(whole.tokens, drawn)
    assert whole.best_tokens is not None and np.array_equal(whole.best_tokens[:, 0], logits.argmax(-1))
    assert whole.probabilities is not None and np.allclose(whole.probabilities, plain[rows, drawn], atol=1e-5)
    assert whole.best_probabilities is not None and np.allclose(
        whole.best_probabilities[:, 0], plain.max(-1), atol=1e-5
    )
    assert whole.entropies is not None and np.allclose(whole.entropies, entropies(probs), atol=1e-5)
    mean = probs @ backend.backbone.embedding.weight.double().numpy() * SIZES["hidden_size"] ** 0.5
    assert np.abs(whole.conditioning.numpy() - mean).max() < 1e-4 * np.abs(mean).max()
    sizes, of_backbone = list[int](), backend.backbone.logits

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(len(hidden))
        return of_backbone(hidden)

    monkeypatch.setattr(answering, "LOGITS_AT_ONCE", 3 * VOCABULARY)
    monkeypatch.setattr(backend.backbone, "logits", counted)
    (parts,) = backend.forward([canvas_forward(clean, noisy, ask=Refinement(rules, positions))])
    assert sizes == [3, 3, 2]  # the logits of a canvas are never whole in memory
    assert torch.allclose(parts.conditioning, whole.conditioning, atol=1e-4)
    whole.conditioning = parts.conditioning = None
    assert np.array_equal(parts.tokens, whole.tokens) and np.allclose(parts.entropies, whole.entropies, atol=1e-5)


def test_where_no_token_is_left_none_is_drawn(backend: TorchBackend) -> None:
    every = np.array([[token, 20, 21] for token in range(VOCABULARY)])
    ask = Refinement(heat(bans=every), 20 + np.arange(CANVAS))
    (answer,) = backend.forward([canvas_forward(tokens(20), tokens(CANVAS), ask=ask)])
    assert answer.tokens is not None and answer.tokens[0] == -1 and (answer.tokens[1:] >= 0).all()


def test_keys_of_each_layer_have_their_shape(backend: TorchBackend) -> None:
    cache = backend.cache(100)
    assert isinstance(cache, LayeredCache)
    (_,) = backend.forward([Forward(tokens(9), causal_layout(0, 9), cache, np.zeros(0, dtype=np.int32), Hidden())])
    shapes = [cache._place[layer][0].read(cache._place[layer][1])[0].shape for layer in range(4)]
    assert [tuple(shape) for shape in shapes] == [(1, 2, 9, 16), (1, 1, 9, 32)] * 2
    assert cache.num_bytes == 2 * 4 * 64 * (2 * 2 * 16 + 2 * 1 * 32)
    cache.truncate(4)
    assert cache.length == 4
    with pytest.raises(UnsupportedError, match="cannot be moved"):
        cache.moved(np.zeros(4, dtype=np.int64))


def test_8_bit_keys_are_rounded_the_same_way_whether_they_are_cached_or_not(backend: TorchBackend) -> None:
    text, noisy, answers = tokens(30), tokens(CANVAS), []
    for parts in ((30,), (22, 30)):
        session = BackboneSession(backend.config, backend.cache(100, int8=True))
        for part in parts:
            answer = compute(session.ask_tokens(text[:part], noisy, Logits()), backend)
        answers.append(logits_of(answer))
    assert difference(*answers) < 1e-5
    assert difference(answers[0], expected(text, noisy)) > 1e-3


def test_a_config_is_read_back(tmp_path: Path) -> None:
    config = pair()[1].config
    config.save(tmp_path / "config.json")
    again = ModelConfig.from_dict(json.loads((tmp_path / "config.json").read_text()))
    assert again == config
    assert isinstance(make_backbone(again), GemmaBackbone)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"context": "full"}, "context='causal'"),
    ({"shift": True}, "shift=False"),
    ({"process": "absorbing", "noise_ids": None}, "process='uniform'"),
    ({"time_input": True, "context": "full"}, "context='causal'"),
    ({"adaptive_width": 8}, "adaptive_width=0"),
    ({"tied": False}, "tied=True"),
    ({"gated_mlp": False}, "gated_mlp=True"),
    ({"qkv_bias": True}, "qkv_bias=False"),
    ({"out_bias": True}, "out_bias=False"),
    ({"norm": "layer"}, "norm='rms'"),
    ({"norm_placement": "post"}, "norm_placement='pre'"),
    ({"qk_norm": False}, "qk_norm=True"),
    ({"qk_norm_scope": "all"}, "qk_norm_scope='head'"),
    ({"positions": "learned"}, "positions='rotary'"),
    ({"rope_share": 0.5}, "rope_share=1.0"),
    ({"rope_scaling": RopeScaling(kind="linear", factor=2.0)}, "rope_scaling=None"),
    ({"experts": Experts(num=6, per_token=2, width=20, shared_width=8)}, "none shared"),
    ({"experts": Experts(num=6, per_token=2, width=20, bias=True)}, "without a bias"),
    ({"experts": None}, "has experts"),
    ({"block_size": None}, "block_size"),
    ({"num_layers": 2}, "numbers of layers"),
    ({"windows": None}, "has windows"),
]


def test_a_config_of_another_core_is_refused(subtests: pytest.Subtests) -> None:
    for change, message in WRONG:
        with subtests.test(message), pytest.raises(CheckpointError, match=message):
            replace(pair()[1].config, **change)


def test_a_wrong_shape_is_refused(subtests: pytest.Subtests) -> None:
    shape = {"global_head_width": 32, "global_kv_heads": 1}
    for change in [{"global_head_width": 15}, {"softcap": 0.0}, {"global_kv_heads": 0}]:
        with subtests.test(**change), pytest.raises(CheckpointError, match="gemma: "):
            GemmaShape(**{**shape, **change})


def test_a_backend_is_made_again_when_the_numbers_of_a_layer_change() -> None:
    denoiser = BackboneDenoiser(copy.deepcopy(pair()[1]))
    made = denoiser.backend
    assert denoiser.backend is made
    with torch.no_grad():
        denoiser.backbone.layers[2].get_buffer("scalars").mul_(2)
    assert denoiser.backend is not made


def test_what_cannot_run_it_says_so() -> None:
    backbone = pair()[1]
    with pytest.raises(UnsupportedError, match="cannot be trained"):
        run_batch(backbone, torch.zeros(1, 4, dtype=torch.int64), BatchLayout.causal(4))
