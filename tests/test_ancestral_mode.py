"""Mode "ancestral": texts of models of uniform and hybrid noise, through the same requests as any other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.modes.ancestral import Sampler, step_tokens, times
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.noise.process import process_of
from daguerre.sampling.logits import SamplingParams, tempered
from daguerre.sampling.random import TOKEN, Counter
from driving import logits_of, run_steps
from oracles.reverse import undone

PROCESSES = ("uniform", "hybrid", "absorbing")
each = pytest.mark.parametrize("process", PROCESSES)


@pytest.fixture(scope="module")
def noisy(make_model: Any) -> dict[str, Model]:
    facts = {"context": "full", "shift": False, "time_input": True, "null_id": None}
    return {process: make_model(process=process, **facts) for process in PROCESSES}


@pytest.mark.parametrize(
    ("process", "temperature"), [("uniform", 0.0), ("uniform", 1.0), ("hybrid", 1.0), ("absorbing", 1.0)]
)
def test_a_completion_is_the_sampler_s(noisy: dict[str, Model], process: str, temperature: float) -> None:
    """The slow reference: the whole distribution of every position, from the plain backbone, given to the sampler."""
    model = noisy[process]
    prompt, num, steps = model.tokenizer.encode("x = 1\n"), 12, 5
    canvas = Canvas.lay_out([[model.config.bos_id, *prompt]], [num], 0)
    canvas = canvas.at(canvas.gaps[0])

    def probs(tokens: np.ndarray, t: float, positions: np.ndarray) -> Any:
        every = np.arange(len(tokens))
        answer = yield from model.denoiser.session(canvas).ask_noisy(tokens, t, every)
        return tempered(answer.logits[positions].astype(np.float64), SamplingParams(temperature))

    sampler = Sampler(undone(process_of(model.config)), probs, times(steps)).run(canvas, Counter(3, 0))
    _, last = run_steps(sampler, model.denoiser.backend)
    want = last.tokens[canvas.gaps[0][0] :].tolist()
    result = model.generate("x = 1\n", num, mode="ancestral", steps=steps, seed=3, temperature=temperature)
    got = [token.id for token in result.tokens]
    assert got == want[: len(got)]
    assert len(got) == num or want[len(got)] == model.config.eos_id
    assert result.usage.forwards == steps


@pytest.mark.parametrize("name", ["full", "full_unshifted"])
def test_a_masked_model_needs_no_time_input(models: dict[str, Model], name: str) -> None:
    """Step by step, from the logits of the canvas, which a step that changes nothing does not compute again."""
    model, num, steps, rng = models[name], 12, 12, Counter(3, 0)
    prompt, params = model.tokenizer.encode("x = 1\n"), SamplingParams(1.0)
    canvas = Canvas.lay_out([[model.config.bos_id, *prompt]], [num], 0)
    canvas = canvas.at(canvas.gaps[0])
    positions, process = canvas.active_positions(), undone(process_of(model.config))
    tokens, same, forwards = np.full((1, num), model.config.mask_id), False, 0
    for step in range(steps):
        now = canvas
        for place in np.flatnonzero(tokens[0] != model.config.mask_id):
            decision = Decision.plain(positions[[place]], tokens[0, [place]], np.ones(1), np.ones(1))
            now = now.apply(decision)
        answer = logits_of(model.denoiser, now.at(canvas.span), positions)
        answer[:, [model.config.null_id]] = -np.inf
        probs, forwards = tempered(answer, params), forwards + (not same)
        before, u = tokens, rng.uniform(TOKEN, positions, step)[None]
        tokens = step_tokens(process, tokens, probs[None], 1 - step / steps, 1 - (step + 1) / steps, u)
        same = np.array_equal(before, tokens)
    result = model.generate("x = 1\n", num, min_tokens=0, mode="ancestral", steps=steps, seed=3, temperature=1.0)
    got = [token.id for token in result.tokens]
    assert got == tokens[0, : len(got)].tolist()
    assert len(got) == num or tokens[0, len(got)] == model.config.eos_id
    assert result.usage.forwards == forwards < steps


def test_a_greedy_tail_takes_the_most_likely_tokens(models: dict[str, Model], noisy: dict[str, Model]) -> None:
    for model in (models["full_unshifted"], noisy["uniform"], noisy["hybrid"]):
        options: dict[str, Any] = {"mode": "ancestral", "temperature": 1.0, "steps": 4}
        texts = [model.generate("x = 1\n", 12, greedy_tail=tail, **options).text for tail in (False, True)]
        assert texts[0] != texts[1]
        once = model.generate("x = 1\n", 12, mode="ancestral", temperature=1.0, steps=1, greedy_tail=True)
        cold = model.generate("x = 1\n", 12, mode="ancestral", temperature=0.0, steps=1)
        assert once.text == cold.text


@each
def test_all_of_a_request_s_promises_hold(noisy: dict[str, Model], process: str) -> None:
    model = noisy[process]
    result = model.infill("def f(", "):\n    pass\n", 6, min_tokens=6, mode="ancestral", steps=4, temperature=1.0)
    assert len(result.tokens) == 6
    assert all(
        token.logprob is not None and np.isfinite(token.logprob) and token.logprob > -200 for token in result.tokens
    )
    *_, canvas = result.trace.replay()
    assert not canvas.open.any()
    assert [t.id for t in result.tokens] == canvas.tokens[canvas.in_gap].tolist()
    filled = model.fill("def <gap>(a):\n    return <gap>\n", [2, 3], min_tokens=[2, 3], mode="ancestral", steps=3)
    assert filled.text.startswith("def ")
    assert len(filled.texts) == 2
    again = model.fill("def <gap>(a):\n    return <gap>\n", [2, 3], min_tokens=[2, 3], mode="ancestral", steps=3)
    assert again.text == filled.text


def test_a_stream_commits_nothing_before_the_end(noisy: dict[str, Model]) -> None:
    events = list(noisy["uniform"].stream("x = 1\n", 8, mode="ancestral", steps=4, temperature=1.0))
    assert len(events) == 1 + 4 + 1
    assert all(event.committed == "" for event in events[:-1])
    assert events[-1].committed == events[-1].result.text
    drafts = [event.text for event in events[:-1]]
    assert len(set(drafts)) > 2


def test_the_end_of_text_is_held_back_as_long_as_asked(noisy: dict[str, Model]) -> None:
    model = noisy["uniform"]
    for seed in range(4):
        options: dict[str, Any] = {"mode": "ancestral", "steps": 2, "seed": seed, "temperature": 1.0}
        biased = {model.config.eos_id: 60.0}
        assert model.generate("a", 8, logit_bias=biased, **options).text == ""
        assert len(model.generate("a", 8, min_tokens=5, logit_bias=biased, **options).tokens) == 5


def test_a_late_request_goes_to_the_end_in_one_forward(noisy: dict[str, Model]) -> None:
    result = noisy["hybrid"].generate("x = 1\n", 10, mode="ancestral", steps=10, timeout=1e-9, temperature=1.0)
    *_, canvas = result.trace.replay()
    assert result.usage.forwards == 1
    assert not canvas.open.any()


def test_what_it_cannot_do_is_an_error_that_says_what_to_do(noisy: dict[str, Model], models: dict[str, Model]) -> None:
    uniform = noisy["uniform"]
    with pytest.raises(UnsupportedError, match='use mode "ancestral"'):
        uniform.generate("a", 4, mode="block")
    with pytest.raises(InputError, match="policy is not used in mode 'ancestral'"):
        uniform.generate("a", 4, policy="confidence")
    for name in ("causal", "block"):
        with pytest.raises(UnsupportedError, match="first_hitting"):
            models[name].generate("a", 4, mode="ancestral")
    with pytest.raises(UnsupportedError, match="regex"):
        uniform.generate("a", 4, mode="ancestral", regex="a+")
    for option in ({"policy": "confidence"}, {"threshold": 0.5}, {"revise": 1}, {"block_size": 4}):
        with pytest.raises(InputError, match="not used in mode 'ancestral'"):
            uniform.generate("a", 4, mode="ancestral", **option)
    full = models["full"]
    plain, anew = (full.generate("x = ", 6, mode="ancestral", cache=cache) for cache in ("auto", "none"))
    assert (plain.text, plain.usage.forwards) == (anew.text, anew.usage.forwards)
    with pytest.raises(UnsupportedError, match='cache="approximate_dual" keeps numbers: leave out cache'):
        full.generate("x = ", 6, mode="ancestral", cache="approximate_dual")
    with pytest.raises(InputError, match="heal"):
        uniform.generate("a", 4, mode="ancestral", heal=True)
    assert uniform.generate("a", 4, mode="ancestral", steps=9).usage.forwards == 9  # steps commit nothing for good
    with pytest.raises(UnsupportedError, match="null"):
        uniform.infill("a", "b", 4, mode="ancestral")
