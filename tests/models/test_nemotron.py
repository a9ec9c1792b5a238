"""Nemotron-Labs-Diffusion: the published config, the core, and its ways of decoding, against Ministral 3 of
transformers and the published loops on it (`oracles.nemotron`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backends import BACKENDS, needs_compiler
from daguerre.canvas import Canvas
from daguerre.decoding import drafters
from daguerre.decoding.modes import ar
from daguerre.model import Model
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.rotary import frequencies, query_scale
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Logits
from daguerre.models.session import compute
from daguerre.models.tokenizer import Tokenizer
from driving import logits_of
from forwards import NUM_KINDS, Expected, make
from forwards import difference as relative

T = Tokenizer.default("2k")
PROMPT = [T.bos_id, *T.encode("import os\n\n"), T.mask_id, T.eos_id, *T.encode("def area(w, h):\n    return w")]
"""With a mask and an end of text that are the user's text."""
NEVER = {T.eos_id: float("-inf")}
GREEDY: dict[str, Any] = {"heal": False, "logit_bias": NEVER, "end_of_text": "plain"}


@cache
def nemotron() -> Any:
    """The published loops and models of their kind, by transformers."""
    pytest.importorskip("transformers.models.ministral3")
    from oracles import nemotron as made

    return made


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    """With many different tokens in what it writes."""
    return nemotron().backbone_of(0)


def difference(got: np.ndarray, want: Tensor) -> float:
    """The largest difference of probabilities."""
    logits = torch.from_numpy(got)
    logits[:, T.eos_id] = -torch.inf
    return float((logits.softmax(-1) - want).abs().max())


def test_frequencies_and_the_scale_of_queries_are_those_of_ministral(backbone: Backbone) -> None:
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    oracle, position = nemotron().loops(backbone).plain.model.rotary_emb, torch.arange(200)
    turns, scale = frequencies(backbone.config)
    assert oracle.attention_scaling == scale == 1.0
    assert torch.allclose(turns, oracle.inv_freq, rtol=1e-6, atol=0)
    plain = 100.0 ** (-torch.arange(8) / 8)
    assert ((turns > 1.01 * plain / 16) & (turns < 0.99 * plain)).sum() > 3  # between kept and divided
    found = query_scale(backbone.config, position, torch.float32)
    assert found is not None and float(found.max()) > 2
    want = get_llama_4_attn_scale(position[None], 0.5, 16)
    assert torch.allclose(found[:, 0, 0], want[0, 0, :, 0], rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_clean_rows_are_those_of_ministral(backend: Any, subtests: pytest.Subtests) -> None:
    """Far beyond the original 16 positions. Hidden states and logits: probabilities to 1e-5, logits to 1e-4."""
    for tied in [False, True]:
        with subtests.test(tied=tied):
            backbone = nemotron().backbone_of(1, tie_word_embeddings=tied)
            tokens = np.random.default_rng(0).choice(backbone.config.ordinary_ids, 90).tolist()
            oracle = nemotron().loops(backbone, tie_word_embeddings=tied)
            want = oracle.plain(torch.tensor([tokens])).logits[0]
            denoiser = BackboneDenoiser(backbone, backend)
            canvas, known = Canvas.lay_out([tokens], [1], T.mask_id), np.arange(16, T.vocab_size)
            for length in (1, 2, 15, 16, 17, 40, 89):
                row = logits_of(
                    denoiser,
                    Canvas.lay_out([tokens[:length]], [1], T.mask_id).at((length, length + 1)),
                    np.array([length]),
                )
                assert np.abs(row[0, known] - want[length - 1, known].numpy()).max() < 1e-4 * float(want.abs().max())
            assert len(canvas) == 91


@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_rows_see_both_ways_and_predict_their_own_position(
    backbone: Backbone, backend: Any, subtests: pytest.Subtests
) -> None:
    """Blocks, and in mode "full" one as long as the budget, after 20 clean tokens, some of them written already."""
    for size in [3, 8, 40]:
        with subtests.test(size=size):
            rng, given = np.random.default_rng(size), 21
            tokens = rng.choice(backbone.config.ordinary_ids, given + size - 1)
            canvas = Canvas.lay_out([tokens[:given]], [size - 1], T.mask_id)
            written, opened = canvas.tokens.copy(), canvas.open.copy()
            places = given + np.flatnonzero(rng.random(size - 1) < 0.3)
            written[places], opened[places] = tokens[places], False
            canvas = replace(canvas, tokens=written, open=opened).at((given, given + size - 1))
            oracle = nemotron().loops(backbone)
            oracle.rows(tokens[: given - 1].tolist(), True, True)
            block, positions = np.where(canvas.open, T.mask_id, canvas.tokens)[given - 1 :], canvas.active_positions()
            want = oracle.rows(block.tolist(), False, False)[positions - given + 1]
            assert difference(logits_of(BackboneDenoiser(backbone, backend), canvas, positions), want) < 1e-5


def test_a_gap_is_read_by_its_own_rows(backbone: Backbone) -> None:
    """They see all; each of the two texts around the gap sees itself, causally. Nothing is shifted."""
    before, behind, size = PROMPT[:9], PROMPT[9:], 6
    canvas = Canvas.lay_out([before, behind], [size], T.mask_id)
    canvas, num, end = canvas.at(canvas.gaps[0]), len(canvas), len(before) + size
    seen = torch.ones(num, num, dtype=torch.bool).tril()
    seen[len(before) : end], seen[end:, :end] = True, False
    mask = torch.zeros(num, num).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    oracle = nemotron().loops(backbone)
    logits = oracle.plain(torch.tensor(canvas.tokens.tolist())[None], attention_mask=mask).logits[0, len(before) : end]
    logits[:, oracle.banned] = -torch.inf
    got = logits_of(BackboneDenoiser(backbone, "torch"), canvas, canvas.active_positions())
    assert difference(got, logits.softmax(-1)) < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_draft_is_that_of_the_adapter_on_all_rows_of_its_block(backbone: Backbone, backend: Any) -> None:
    oracle, canvas = nemotron().loops(backbone), Canvas.lay_out([PROMPT], [12], T.mask_id)
    oracle.rows(PROMPT[:-1], True, True)
    block = [PROMPT[-1]] + [T.mask_id] * 7
    want, plain = oracle.rows(block, False, False, oracle.drafting)[1:], oracle.rows(block, False, False)[1:]
    assert float((want - plain).abs().max()) > 0.05
    denoiser = BackboneDenoiser(backbone, backend)
    session, active = denoiser.session(canvas), canvas.at((len(PROMPT), len(canvas)))
    for _ in range(2):  # the second time from the cache
        answer = compute(session.draft(active, 7, Logits()), denoiser.backend)
        assert answer.logits is not None and difference(answer.logits, want) < 1e-5
    assert session.counts.reused_tokens == len(PROMPT) - 1


@cache
def diffused(seed: int, num: int, size: int, threshold: float) -> tuple[list[int], int]:
    """Tokens and number of forwards of the published loop."""
    oracle = nemotron().loops(nemotron().backbone_of(seed))
    return oracle.diffusion(PROMPT, num, size, threshold), oracle.forwards


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_are_those_of_the_published_loop(backend: Any) -> None:
    """Tokens and numbers of forwards, in blocks of 8, of 5 and of the whole budget."""
    steps = 0
    for seed in range(2):
        model = Model(nemotron().backbone_of(seed), T, backend)
        for num, size, threshold in ((43, 8, 0.9), (24, 5, 0.3), (30, 30, 0.5)):
            want, forwards = diffused(seed, num, size, threshold)
            mode = {"mode": "full"} if size == num else {"mode": "block", "block_size": size}
            got = model.generate(PROMPT[1:], num, threshold=threshold, **mode, **GREEDY)
            assert [token.id for token in got.tokens] == want
            assert got.usage.forwards == forwards
            assert len({*want}) > 6
            steps += num - forwards
    assert steps > 20


WEIGHTS: list[tuple[int, dict[str, Any]]] = [
    (0, {}),
    (2, {"shared": 2.0, "layers": 2.0, "sharp": 4.0}),
    (0, {"shared": 3.0, "layers": 3.0}),
]


@cache
def speculated(case: int, num: int, size: int) -> tuple[list[int], Any, int]:
    """Tokens of the published loop of speculation, the loop, and the forwards of the one that is autoregressive."""
    seed, weights = WEIGHTS[case]
    backbone = nemotron().backbone_of(seed, **weights)
    oracle, alone = nemotron().loops(backbone), nemotron().loops(backbone)
    tokens = oracle.linear_spec(PROMPT, num, size)
    assert tokens == alone.ar(PROMPT, num)
    return tokens, oracle, alone.forwards


@pytest.mark.parametrize("backend", BACKENDS)
def test_speculation_is_the_published_loop(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and numbers of forwards and of accepted tokens, if all of every draft is verified, as rows were free."""
    monkeypatch.setattr(drafters, "MIN_ACCEPTED", 0.0)
    monkeypatch.setattr(ar, "row_time", lambda crowd=1: 0.0)
    options: dict[str, Any] = {"heal": False, "logit_bias": NEVER, "drafter": "head", "mode": "speculative"}
    for case, (seed, weights) in enumerate(WEIGHTS):
        model, accepted = Model(nemotron().backbone_of(seed, **weights), T, backend), 0
        for num, size in ((40, 8), (23, 4)):
            want, oracle, forwards = speculated(case, num, size)
            got = model.generate(PROMPT[1:], num, block_size=size, **options)
            assert [token.id for token in got.tokens] == want
            assert got.usage.forwards == oracle.forwards < 2 * forwards
            assert got.usage.drafted == sum(map(len, oracle.drafts))
            assert got.usage.head_accepted == oracle.accepted
            accepted += oracle.accepted
        assert accepted > 8 or not weights


@needs_compiler
def test_both_backends_answer_alike(backbone: Backbone) -> None:
    """Rows at positions up to 150, where queries are multiplied by up to 2.2; drafts have low-rank weights."""
    reference, native = TorchBackend(backbone), NativeBackend(backbone)
    for number in range(NUM_KINDS):
        (answer,) = native.forward([make(native, number)])
        Expected(reference, number).check(answer, 1e-5)
        one, other = ((backend, make(backend, number, ask=Logits(), drafting=True)) for backend in (reference, native))
        got, want = (backend.forward([forward])[0].logits for backend, forward in (other, one))
        assert got is not None and want is not None and relative(got, want) < 1e-5
