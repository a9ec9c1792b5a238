"""The samplers of MDLM, SEDD, Duo and BD3-LM, restated from their papers, beside ours: one step's distribution, and
whole runs token for token with the same random numbers.

The published schedule is alpha(t) = 1 - (1 - EPSILON) t over times from 1 down to TAIL in equal steps, and one last
forward at TAIL. Our t is the share of noise itself, so the published time t is ours times 1 - EPSILON. Under masks only
ratios of shares matter, and the factor can be left out.

Letters: L positions, A of them active, V tokens.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from daguerre.canvas import Canvas
from daguerre.decoding.denoise import Deadline, denoise
from daguerre.decoding.modes.ancestral import TAIL, Sampler, times
from daguerre.decoding.sampler import TokenSampler
from daguerre.models.core.backbone import Backbone
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.families.base import Published
from daguerre.models.families.ddit import BD3LM, DUO, MDLM
from daguerre.models.session import Asking
from daguerre.noise.process import Absorbing, Uniform
from daguerre.noise.reverse import reverse_of
from daguerre.sampling.logits import SamplingParams, tempered
from daguerre.sampling.policies import FirstHitting
from daguerre.sampling.random import NOISE, ORDER, TOKEN, Counter
from driving import run_steps
from oracles.ddit import LENGTH, Weights, ddit, published_config, published_weights

EPSILON = 1e-3
V = 5
MASK = V - 1


def published_times(num_steps: int) -> list[float]:
    return np.linspace(1, TAIL, num_steps + 1).tolist()


def alpha(t: float) -> float:
    return 1 - (1 - EPSILON) * t


def sigma(t: float) -> float:
    return -math.log(alpha(t))


def predictions(num: int, masked: bool = True, seed: int = 0) -> Tensor:
    """Random distributions (num, V), none on the mask."""
    out = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(V), num))
    if masked:
        out[:, MASK] = 0
    return out / out.sum(-1, keepdim=True)


# ---- one step, for every token that may be at a position ------------------------------------------------------------


def mdlm_step(token: int, clean_V: Tensor, t: float, s: float) -> Tensor:
    """MDLM (arXiv 2406.07524, eq. 7): a token stays; a mask goes to x_0 with (alpha_s - alpha_t) / (1 - alpha_t)."""
    if token != MASK:
        return torch.nn.functional.one_hot(torch.tensor(token), V).double()
    out = clean_V * (alpha(s) - alpha(t)) / (1 - alpha(t))
    out[MASK] = (1 - alpha(s)) / (1 - alpha(t))
    return out


def tweedie_step(token: int, score_V: Tensor, rates_VV: Tensor, d_sigma: float) -> Tensor:
    """SEDD's analytic sampler (arXiv 2310.16834, theorem 4.2): (e^{-dQ} s)_y (e^{dQ})_{x y}, with d = sigma_t - sigma_s
    and rates from column to row.
    """
    forward, backward = torch.matrix_exp(d_sigma * rates_VV), torch.matrix_exp(-d_sigma * rates_VV)
    return (backward @ score_V) * forward[token]


def absorbing_rates() -> Tensor:
    rates = -torch.eye(V, dtype=torch.float64)
    rates[MASK] = 1
    rates[:, MASK] = 0
    return rates


def score_of(token: int, clean_V: Tensor, t: float) -> Tensor:
    """p_t(y) / p_t(x) where x_0 has this distribution; 1 for the token itself (SEDD, section 3.3; RADD, theorem 1)."""
    out = torch.zeros(V, dtype=torch.float64)
    if token == MASK:
        out = clean_V / math.expm1(sigma(t))
    out[token] = 1
    return out


def duo_step(token: int, clean_V: Tensor, t: float, s: float) -> Tensor:
    """Duo's posterior (arXiv 2506.10892, eq. 4; UDLM, arXiv 2412.10193, eq. 15)."""
    here, ratio = torch.nn.functional.one_hot(torch.tensor(token), V).double(), alpha(t) / alpha(s)
    above = V * alpha(t) * clean_V * here + (ratio - alpha(t)) * here + (alpha(s) - alpha(t)) * clean_V
    return (above + (1 - ratio) * (1 - alpha(s)) / V) / (V * alpha(t) * clean_V[token] + 1 - alpha(t))


STEPS = [(0, 1), (1, 2), (3, 4), (6, 7), (7, 8), (2, 8)]


def test_a_step_of_mdlm_is_ours(subtests: pytest.Subtests) -> None:
    for first, last in STEPS:
        with subtests.test("step", first=first, last=last):
            t, s = published_times(8)[first], published_times(8)[last]
            clean = predictions(V)
            got = Absorbing(MASK).posterior(torch.arange(V)[None], clean[None], t, s)[0]
            for token in range(V):
                assert torch.allclose(got[token], mdlm_step(token, clean[token].clone(), t, s), atol=1e-12)


def test_a_step_of_sedd_is_ours_with_scores_of_a_model_of_clean_tokens(subtests: pytest.Subtests) -> None:
    """So the x_0 form is sampled by the published analytic sampler, and Euler's approximation of it is not needed."""
    for first, last in STEPS:
        with subtests.test("step", first=first, last=last):
            t, s = published_times(8)[first], published_times(8)[last]
            clean, d_sigma = predictions(V), sigma(t) - sigma(s)
            got = Absorbing(MASK).posterior(torch.arange(V)[None], clean[None], t, s)[0]
            for token in range(V):
                want = tweedie_step(token, score_of(token, clean[token], t), absorbing_rates(), d_sigma)
                assert torch.allclose(want.sum(), torch.ones((), dtype=torch.float64))
                assert torch.allclose(got[token], want, atol=1e-10)


def test_scores_that_do_not_add_up_only_change_how_often_sedd_unmasks() -> None:
    """SEDD's network is not normalized. With scores of a sum that is Z times too large its step unmasks Z times as
    often, to the same tokens. Ours is normalized, which also bounds the likelihood more tightly.
    """
    t, s = published_times(8)[4], published_times(8)[5]
    clean, excess = predictions(1)[0], 1.07
    score = score_of(MASK, clean, t) * excess
    score[MASK] = 1
    theirs = tweedie_step(MASK, score, absorbing_rates(), sigma(t) - sigma(s))
    ours = Absorbing(MASK).posterior(torch.tensor([[MASK]]), clean[None, None], t, s)[0, 0]
    assert torch.allclose(theirs[:MASK], excess * ours[:MASK], atol=1e-10)

    def loss(scale: float, token: int) -> float:  # what score entropy has at a mask, which the sum alone changes
        given = scale * clean[:MASK] / math.expm1(sigma(t))
        return float(given.sum() - given[token].log() / math.expm1(sigma(t)))

    for token in range(MASK):
        assert loss(1.0, token) < min(loss(excess, token), loss(1 / excess, token))


def test_a_step_of_duo_is_ours(subtests: pytest.Subtests) -> None:
    """Every token, one that the model gives no probability to included."""
    for first, last in STEPS:
        with subtests.test("step", first=first, last=last):
            t, s = published_times(8)[first], published_times(8)[last]
            for masked in (False, True):
                clean = predictions(V, masked, seed=1)
                process = Uniform((0, V))
                got = process.posterior(torch.arange(V)[None], clean[None], (1 - EPSILON) * t, (1 - EPSILON) * s)[0]
                for token in range(V):
                    want = duo_step(token, clean[token], t, s)
                    assert torch.allclose(want.sum(), torch.ones((), dtype=torch.float64))
                    assert torch.allclose(got[token], want, atol=1e-12)


# ---- whole runs, with the network of the family -------------------------------------------------------------------

NUM_STEPS = 9
PREFIX, SUFFIX = [56, 7, 3, 9], [11, 57, 2]  # the mask's id in a text that is given is the text's own
START, END = len(PREFIX), LENGTH - len(SUFFIX)
ACTIVE = np.arange(START, END)
FAMILIES = {"mdlm": MDLM, "duo": DUO, "bd3lm": BD3LM}


@cache
def weights_of(kind: str) -> Weights:
    return published_weights(published_config(kind))


@cache
def denoiser_of(kind: str) -> BackboneDenoiser:
    config = published_config(kind)
    family, weights = FAMILIES[kind], weights_of(kind)
    ours = family.read(Published(config=config))
    backbone = Backbone(ours).eval().requires_grad_(False)
    backbone.load_state_dict({piece.target: weights[piece.name] for piece in family.pieces(ours)})
    return BackboneDenoiser(backbone, "torch")


def network(kind: str, tokens_L: np.ndarray, level: float, visible_LL: Tensor | None = None) -> Tensor:
    """The published network's probabilities of clean tokens, float64 (L, V); none on the last id."""
    config, length = published_config(kind), len(tokens_L)
    visible_LL = torch.ones(length, length, dtype=torch.bool) if visible_LL is None else visible_LL
    out = ddit(config, weights_of(kind), torch.tensor(tokens_L)[None], torch.tensor([level]), visible_LL)
    out[..., -1] = -torch.inf
    return out[0].double().softmax(-1)


def draw(probs_AV: Tensor, u_A: np.ndarray) -> np.ndarray:
    """The first token whose cumulative probability exceeds a number in [0, 1)."""
    total = probs_AV.cumsum(-1)
    return (total <= torch.from_numpy(u_A)[:, None] * total[:, -1:]).sum(-1).numpy()


def canvas_of(placeholder: int) -> Canvas:
    return Canvas.lay_out([PREFIX, SUFFIX], [END - START], placeholder).at((START, END))


def our_run(kind: str, levels: list[float], rng: Counter, greedy: bool, steady: bool) -> tuple[np.ndarray, int]:
    """The text, and how many forwards it took."""
    denoiser = denoiser_of(kind)
    canvas = canvas_of(denoiser.config.placeholder)
    session = denoiser.session(canvas)

    def probs(tokens: np.ndarray, t: float, positions: np.ndarray) -> Asking[np.ndarray]:
        answer = yield from session.ask_noisy(tokens, t, positions)
        assert answer.logits is not None
        return tempered(answer.logits, SamplingParams(1.0))

    sampler = Sampler(reverse_of(denoiser.config), probs, levels, greedy, steady)
    _, last = run_steps(sampler.run(canvas, rng), denoiser.backend)
    return last.tokens, session.counts.forwards


def mdlm_run(rng: Counter) -> np.ndarray:
    """MDLM's sampler (section 4.2 and algorithm of appendix): posterior steps, then the most likely tokens."""
    given = np.array([*PREFIX, *[57] * len(ACTIVE), *SUFFIX])
    is_mask = (np.arange(LENGTH) >= START) & (np.arange(LENGTH) < END)
    tokens, levels = given.copy(), published_times(NUM_STEPS)
    for step in range(NUM_STEPS):
        t, s = levels[step], levels[step + 1]
        posterior = network("mdlm", tokens, 0.0)[ACTIVE] * (t - s) / t
        posterior[:, 57] = s / t
        drawn = draw(posterior, rng.uniform(TOKEN, ACTIVE, step))
        tokens[ACTIVE] = np.where(is_mask[ACTIVE], drawn, tokens[ACTIVE])
        is_mask[ACTIVE] &= drawn == 57
    clean = network("mdlm", tokens, 0.0).argmax(-1).numpy()
    return np.where(is_mask, clean, tokens)


def test_a_run_of_mdlm_is_ours_token_for_token(subtests: pytest.Subtests) -> None:
    """With prefix and suffix fixed. A step after one that changed nothing takes no forward, as in its own sampler."""
    levels = times(NUM_STEPS + 1, greedy_tail=True)
    texts = [mdlm_run(Counter(seed)).tolist() for seed in range(4)]
    assert len({tuple(text) for text in texts}) == 4
    for seed, want in enumerate(texts):
        with subtests.test(f"seed {seed}"):
            tokens, forwards = our_run("mdlm", levels, Counter(seed), greedy=True, steady=True)
            assert tokens.tolist() == want
            again, every = our_run("mdlm", levels, Counter(seed), greedy=True, steady=False)
            assert again.tolist() == want
            assert forwards <= every == NUM_STEPS + 1


def test_a_step_that_changes_nothing_saves_a_forward() -> None:
    _, forwards = our_run("mdlm", times(64), Counter(0), greedy=False, steady=True)
    assert forwards < 30 < 64


def duo_run(rng: Counter, greedy: bool) -> np.ndarray:
    """Duo's sampler: posterior steps from uniform noise, then one more to t = 0, or the most likely tokens."""
    tokens = np.array([*PREFIX, *(rng.uniform(NOISE, ACTIVE, 0) * 58).astype(np.int64), *SUFFIX])
    levels = published_times(NUM_STEPS)
    for step, t in enumerate(levels):
        clean = network("duo", tokens, sigma(t))[ACTIVE]
        alpha_s = alpha(levels[step + 1]) if step < NUM_STEPS else 1.0
        if step == NUM_STEPS and greedy:
            tokens[ACTIVE] = clean.argmax(-1).numpy()
            break
        alpha_t, here = alpha(t), torch.nn.functional.one_hot(torch.from_numpy(tokens[ACTIVE]), 58).double()
        ratio, own = alpha_t / alpha_s, (clean * here).sum(-1, keepdim=True)
        above = 58 * alpha_t * clean * here + (ratio - alpha_t) * here + (alpha_s - alpha_t) * clean
        above = above + (1 - ratio) * (1 - alpha_s) / 58
        tokens[ACTIVE] = draw(above / (58 * alpha_t * own + 1 - alpha_t), rng.uniform(TOKEN, ACTIVE, step))
    return tokens


def test_a_run_of_duo_is_ours_token_for_token(subtests: pytest.Subtests) -> None:
    """At the published noise levels; its last step, or its greedy tail, which changes what noise has left."""
    levels = [(1 - EPSILON) * t for t in published_times(NUM_STEPS)] + [0.0]
    for seed in range(3):
        texts = {greedy: duo_run(Counter(seed), greedy).tolist() for greedy in (False, True)}
        assert texts[False] != texts[True]
        for greedy, want in texts.items():
            with subtests.test(f"seed {seed}", greedy=greedy):
                tokens, forwards = our_run("duo", levels, Counter(seed), greedy, steady=False)
                assert tokens.tolist() == want
                assert forwards == NUM_STEPS + 1
                assert tokens[:START].tolist() == PREFIX and tokens[END:].tolist() == SUFFIX
                assert 57 not in tokens[ACTIVE]


class Running:
    """A run of first hitting over a session."""

    threshold, deadline = 0.0, Deadline(None)

    def __init__(self, session: Any, rng: Counter) -> None:
        self.policy, self.session, self.counts = FirstHitting(), session, session.counts
        self.sampler = TokenSampler(SamplingParams(1.0), rng, reads=self.policy.reads)

    def min_commits(self, canvas: Canvas) -> int:
        return 0


def bd3lm_run(rng: Counter, first: int, end: int, given: list[int]) -> np.ndarray:
    """BD3-LM's sampler (arXiv 2503.09573, section 5.2 and appendix B.3): block by block, the next position is any of
    the masked ones, each as likely, and its token is drawn from the network's distribution, by a race.
    """
    tokens, forward = np.array([*given, *[57] * (end - first)]), 0
    is_open = np.arange(end) >= first
    for start in range(first, end, 4):
        block, rows = np.arange(start, start + 4), np.arange(start + 4)
        visible = torch.from_numpy(rows[None] // 4 <= rows[:, None] // 4)
        while is_open[block].any():
            left = block[is_open[block]]
            place = left[rng.uniform(ORDER, left, 0).argmax()]
            probs = network("bd3lm", tokens[: start + 4], 0.0, visible)[place]
            noise = rng.exponential(TOKEN, np.array([place]), forward, 58)[0]
            tokens[place] = int((probs.numpy() / noise).argmax())
            is_open[place], forward = False, forward + 1
    return tokens


def test_a_run_of_bd3lm_is_ours_token_for_token(subtests: pytest.Subtests) -> None:
    """Its blocks come after a prefix of two of them."""
    for seed in range(3):
        with subtests.test(f"seed {seed}"):
            denoiser, given = denoiser_of("bd3lm"), [56, 7, 3, 9, 20, 21, 57, 23]
            canvas = Canvas.lay_out([given], [12], 57)
            run = Running(denoiser.session(canvas), Counter(seed))
            for start in (8, 12, 16):
                steps = denoise(run, canvas.at((start, start + 4)), [], lambda now: False)  # type: ignore[arg-type]
                _, canvas = run_steps(steps, denoiser.backend)
            assert canvas.tokens.tolist() == bd3lm_run(Counter(seed), 8, 20, given).tolist()
            assert run.counts.forwards == 12
