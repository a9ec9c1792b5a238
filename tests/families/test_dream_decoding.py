"""The decoding of Dream and of DiffuLLaMA, token for token, as restated in `oracles.published`."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import main_path
from daguerre.canvas import Canvas
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.decoding.sampler import TokenSampler
from daguerre.model import Model
from daguerre.sampling import logits
from daguerre.sampling.logits import SamplingParams
from daguerre.sampling.policies.base import LAST_TIME
from daguerre.sampling.random import ORDER, TOKEN, Counter
from oracles.full_context import FullContext
from oracles.published import Decoded, Dream, diffullama, probabilities
from pairwise import covering

NUM, SEED = 16, 7
LENGTHS = (1, 6, 15)


@pytest.fixture(scope="module")
def model(make_model: Any, tokenizer: Any) -> Model:
    """As Dream is: a row predicts the next position, and nothing is reserved but the mask."""
    made: Model = make_model(context="full", bos_id=None, null_id=None, reserved_ids=(tokenizer.mask_id,))
    return Model(made.backbone, made.tokenizer, "torch")


def prompts(model: Model) -> list[list[int]]:
    """Token ids, of which one is a literal mask, which is text like any other."""
    rng = np.random.default_rng(11)
    out = [rng.choice(model.config.ordinary_ids, length).tolist() for length in LENGTHS]
    out[1][2] = model.config.mask_id
    return out


def masked(model: Model, prompt: list[int]) -> np.ndarray:
    return np.array([*prompt, *[model.config.mask_id] * NUM], dtype=np.int64)


def ours(model: Model, prompt: list[int], **options: Any) -> Result:
    given = {"mode": "full", "heal": False, "end_of_text": "plain", "seed": SEED} | options
    return main_path.generate(model.denoiser, model.tokenizer, prompt, NUM, **given)


def check(model: Model, result: Result, want: Decoded) -> None:
    """Each forward commits the same positions, and they have the same tokens, up to where the text has ended."""
    *_, canvas = result.trace.replay()
    commits = [step.decision.positions.tolist() for step in result.trace.steps]
    assert result.usage.forwards == len(commits), "steps that commit nothing take no forward"
    assert commits == want.commits[: len(commits)]
    done = ~canvas.open
    assert np.array_equal(canvas.tokens[done], want.tokens[done])
    if len(commits) < len(want.commits):
        assert model.config.eos_id in canvas.filled(canvas.gaps[0])


class Shared:
    """Our random numbers. A position has one time for all steps, from which what a step compares is made: it is
    uniform among the positions that are open then.
    """

    def __init__(self, model: Model, length: int, times: np.ndarray | None = None) -> None:
        self._model, self._positions, self._rng, self._times = model, np.arange(length), Counter(SEED), times

    def exponential(self, forward: int) -> np.ndarray:
        return self._rng.exponential(TOKEN, self._positions, forward, self._model.config.vocab_size)

    def uniform(self, forward: int) -> np.ndarray:
        if self._times is None:
            return self._rng.uniform(ORDER, self._positions, forward)
        return 1 - self._rng.uniform(ORDER, self._positions, 0) / self._times[forward]


def times(steps: int, last: float) -> np.ndarray:
    return np.linspace(1, last, steps + 1)


def test_the_model_is_about_as_sure_as_a_model_is(model: Model) -> None:
    oracle = FullContext(model.backbone)
    surest = [probabilities(oracle.of(masked(model, prompt)))[-NUM:].max(-1).mean() for prompt in prompts(model)]
    assert 0.3 < np.mean(surest) < 0.75


NAMES = {"maskgit_plus": "confidence", "topk_margin": "margin", "entropy": "entropy"}
DRAWN: list[dict[str, Any]] = [
    {},
    {"temperature": 0.2, "top_p": 0.95},
    {"temperature": 0.6, "top_k": 5},
    {"temperature": 1.0},
    {"top_p": 0.5},
]


def test_dream_commits_the_same_tokens_in_the_same_order(model: Model, subtests: pytest.Subtests) -> None:
    """Fewer steps than positions, as many, and more; the highest rank, and ranks drawn at a temperature."""
    oracle = FullContext(model.backbone)
    asked = list(zip(prompts(model), (5, NUM, 27), (0.0, 0.3, 0.0), strict=True))
    for alg, drawn, (prompt, steps, heat) in map(
        dict.values, covering({"alg": [*NAMES], "drawn": DRAWN, "asked": asked})
    ):
        with subtests.test(alg, steps=steps, **drawn):
            how = Dream(steps=steps, alg=alg, alg_temp=heat, **drawn)
            canvas = masked(model, prompt)
            want = how.decode(oracle.of, canvas, len(prompt), Shared(model, len(canvas)))
            options = {"schedule": "time", "rank_by": "drawn", "rank_temperature": heat}
            check(model, ours(model, prompt, policy=NAMES[alg], steps=steps, **options, **drawn), want)


def test_dreams_origin_commits_the_same_tokens_in_the_same_order(model: Model, subtests: pytest.Subtests) -> None:
    oracle = FullContext(model.backbone)
    for drawn in DRAWN:
        with subtests.test(**drawn):
            for prompt, steps in zip(prompts(model), (5, NUM, 27), strict=True):
                how = Dream(steps=steps, alg="origin", **drawn)
                canvas = masked(model, prompt)
                want = how.decode(oracle.of, canvas, len(prompt), Shared(model, len(canvas), times(steps, LAST_TIME)))
                check(model, ours(model, prompt, policy="origin", steps=steps, **drawn), want)


def test_the_sampler_of_diffullama_is_first_hitting_in_steps(model: Model, subtests: pytest.Subtests) -> None:
    oracle = FullContext(model.backbone)
    for steps, temperature in [(5, 0.9), (NUM, 0.95), (30, 0.5)]:
        with subtests.test(steps=steps, temperature=temperature):
            for prompt in prompts(model):
                canvas = masked(model, prompt)
                shared = Shared(model, len(canvas), times(steps, 0.0))
                want = diffullama(oracle.of, canvas, len(prompt), steps, temperature, shared)
                check(model, ours(model, prompt, policy="first_hitting", steps=steps, temperature=temperature), want)


def test_ranks_of_the_drawn_distributions_give_another_text(model: Model) -> None:
    """At temperature 0 without cuts, and at temperature 1, the two are the same distributions."""

    def texts(**drawn: Any) -> list[list[list[int]]]:
        """The tokens of each way to rank, of each prompt."""
        results = [
            [ours(model, prompt, policy="entropy", steps=8, rank_by=by, **drawn) for prompt in prompts(model)]
            for by in ("model", "drawn")
        ]
        return [[[token.id for token in one.tokens] for one in each] for each in results]

    for same in ({}, {"temperature": 1.0}):
        one, other = texts(**same)
        assert one == other
    for differs in ({"temperature": 0.3}, {"temperature": 1.0, "top_k": 2}, {"top_p": 0.5}):
        one, other = texts(**differs)
        assert one != other


def test_the_probability_of_a_token_is_the_models_whatever_policies_rank_by(model: Model) -> None:
    oracle, prompt = FullContext(model.backbone), prompts(model)[1]
    result = ours(model, prompt, policy="confidence", steps=1, rank_by="drawn", temperature=0.3, top_k=4)
    logits = oracle.of(masked(model, prompt))
    (step,) = result.trace.steps
    decision = step.decision
    chosen = decision.positions, decision.tokens
    assert np.allclose(decision.probabilities, probabilities(logits)[chosen], atol=1e-5)
    weights = np.exp((logits - logits.max(-1, keepdims=True)) / 0.3)
    best_four = np.sort(weights, axis=-1)[:, -4:].sum(-1)
    assert np.allclose(decision.confidence, weights[chosen] / best_four[decision.positions], atol=1e-5)


def test_a_draft_head_or_a_threshold_may_rank_by_the_drawn_distributions_too(models: dict[str, Model]) -> None:
    for name, options in (("causal", {"policy": "chain", "threshold": 0.99}), ("full", {"threshold": 0.99})):
        forwards = [
            models[name]
            .generate("x = ", 16, mode="block", rank_by=by, top_k=1, min_tokens=16, heal=False, **options)
            .usage.forwards
            for by in ("model", "drawn")
        ]
        assert forwards[1] == 1 < forwards[0], "a distribution that is cut to one token is sure of it"


def test_published_defaults_are_options(model: Model) -> None:
    """Of Dream-v0-Instruct-7B's card."""
    Decode(
        mode="full", policy="entropy", schedule="time", rank_by="drawn", steps=512, temperature=0.2, top_p=0.95
    ).check_steps(512)


@pytest.mark.parametrize("options", [{"temperature": 0.4, "top_p": 0.9}, {"temperature": 0.0, "top_k": 5}])
def test_rows_drawn_a_few_at_a_time_are_those_drawn_together(
    model: Model, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"mode": "full", "policy": "margin", "rank_by": "drawn", "heal": False, "logit_bias": {40: 1.0}, **options}
    whole = model.generate("def area(w, h):", 24, **how)
    monkeypatch.setattr(logits, "DRAWN", 3 * model.config.vocab_size)
    few = model.generate("def area(w, h):", 24, **how)
    for one, other in zip(whole.trace.steps, few.trace.steps, strict=True):
        for name in ("positions", "tokens", "probabilities", "confidence"):
            assert np.array_equal(getattr(one.decision, name), getattr(other.decision, name)), name


def test_the_memory_of_draws_does_not_grow_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the logits themselves: at most some copies in float64 of as many numbers as are drawn at a time."""
    vocabulary, num = 4000, 400
    canvas = Canvas.lay_out([[1], []], [num], 3)
    sampler = TokenSampler(SamplingParams(0.4, top_p=0.9), Counter(0), reads=("best",), as_drawn=True)
    found = np.random.default_rng(0).normal(size=(num, vocabulary)).astype(np.float32)
    monkeypatch.setattr(logits, "DRAWN", 10 * vocabulary)
    tracemalloc.start()
    sampler.from_logits(canvas, 1 + np.arange(num), found, [], 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 8 * 10 * vocabulary
