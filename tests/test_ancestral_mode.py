"""Mode "ancestral": texts of models of uniform and hybrid noise, through the same requests as any other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from daguerre.canvas import Canvas
from daguerre.decoding.modes.ancestral import ancestral
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.noise.process import process_of
from daguerre.sampling.logits import SamplingParams, tempered
from daguerre.sampling.random import Counter
from driving import run_steps

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
        return torch.from_numpy(tempered(answer.logits[positions].astype(np.float64), SamplingParams(temperature)))

    sampler = ancestral(process_of(model.config), probs, canvas, Counter(3, 0), steps)
    _, last = run_steps(sampler, model.denoiser.backend)
    want = last.tokens[canvas.gaps[0][0] :].tolist()
    result = model.generate("x = 1\n", num, mode="ancestral", steps=steps, seed=3, temperature=temperature)
    got = [token.id for token in result.tokens]
    assert got == want[: len(got)]
    assert len(got) == num or want[len(got)] == model.config.eos_id
    assert result.usage.forwards == steps


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
    filled = model.fill("def {}(a):\n    return {}\n", [2, 3], min_tokens=[2, 3], mode="ancestral", steps=3)
    assert filled.text.startswith("def ")
    assert len(filled.texts) == 2
    again = model.fill("def {}(a):\n    return {}\n", [2, 3], min_tokens=[2, 3], mode="ancestral", steps=3)
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
    with pytest.raises(UnsupportedError, match="first_hitting"):
        models["full_unshifted"].generate("a", 4, mode="ancestral")
    with pytest.raises(UnsupportedError, match="regex"):
        uniform.generate("a", 4, mode="ancestral", regex="a+")
    for option in ({"policy": "confidence"}, {"threshold": 0.5}, {"revise": 1}, {"block_size": 4}, {"cache": "none"}):
        with pytest.raises(InputError, match="not used in mode 'ancestral'"):
            uniform.generate("a", 4, mode="ancestral", **option)
    with pytest.raises(InputError, match="heal"):
        uniform.generate("a", 4, mode="ancestral", heal=True)
    with pytest.raises(InputError, match="steps=9"):
        uniform.generate("a", 4, mode="ancestral", steps=9)
    with pytest.raises(UnsupportedError, match="null"):
        uniform.infill("a", "b", 4, mode="ancestral")
