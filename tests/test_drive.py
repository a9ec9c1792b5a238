"""Runs, searches and scorers yield what they need computed, and compute nothing themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import main_path
from daguerre.canvas import Canvas
from daguerre.decoding.denoise import Deadline, Run, heal
from daguerre.decoding.lengths import look_alone, look_together
from daguerre.decoding.modes.ar import one_by_one
from daguerre.decoding.modes.block import denoise_spans
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample
from daguerre.decoding.sampler import TokenSampler
from daguerre.model import Model
from daguerre.models.forward import Answer, Backend, DraftStep, Forward, Hidden
from daguerre.models.session import Counts, compute
from daguerre.sampling.random import Counter
from daguerre.scoring.decisions import Choice, label_texts, score_texts
from daguerre.scoring.likelihood import score_tokens
from daguerre.trace import Event
from driving import Recorded, Recording, finished, run_steps
from plans import make_plan

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "embedding", "scaled_dot_product")


class OnlyIn(TorchDispatchMode):
    """Products and embeddings are computed while a backend's `forward` runs, and at no other time."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.num = False, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in func.__name__ for name in PRODUCTS):
            assert self.inside, f"{func} outside of a backend"
            self.num += 1
        return func(*args, **(kwargs or {}))


class Watched(Recording):
    """A recorded backend that is the only place of products."""

    def __init__(self, backend: Backend, only: OnlyIn) -> None:
        super().__init__(backend)
        self._only = only

    def forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        self._only.inside = True
        try:
            return super().forward(batch)
        finally:
            self._only.inside = False


class WatchedDenoiser(Recorded):
    """A denoiser whose backend is watched."""

    def __init__(self, model: Model, only: OnlyIn) -> None:
        denoiser = Model(model.backbone, model.tokenizer, "torch").denoiser
        super().__init__(denoiser)
        self.backend: Any = Watched(denoiser.backend, only)


def scorer(canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
    return np.sin(np.add.outer(positions * 7.0, np.arange(logits.shape[1])))


PROMPT, SUFFIX = "import os\nx = impo", "\nprint(x)\n"
REQUESTS: list[tuple[str, bool, dict[str, Any]]] = [
    ("causal", False, {"mode": "ar", "temperature": 1.0}),
    ("causal", False, {"mode": "ar", "regex": "[a-z ]{4,}"}),
    ("causal", False, {"mode": "ar", "draft": "import re\nx = 1\n"}),
    ("causal", False, {"mode": "block", "policy": "entropy", "steps": 3, "block_size": 6}),
    ("causal", True, {"mode": "full", "scorer": scorer, "guidance": 2.0}),
    ("causal", True, {"mode": "beam", "num_beams": 4}),
    ("causal", False, {"mode": "block", "revise": 1, "revise_threshold": 0.2, "revise_reading": "leave_one_out"}),
    ("causal", False, {"mode": "block", "draft": "import re\nx = 1\n"}),
    ("drafting", False, {"mode": "speculative", "block_size": 4}),
    ("drafting", False, {"mode": "speculative", "guidance": 2.0, "temperature": 1.0}),
    ("drafting", True, {"policy": "chain", "threshold": 0.2}),
    ("drafting", False, {"policy": "chain", "threshold": 0.2, "guidance": 2.0, "block_size": 5}),
    ("full", True, {"policy": "random", "temperature": 1.0}),
    ("block", False, {"policy": "margin"}),
    ("block_shifted", False, {"guidance": 3.0}),
]


@pytest.fixture(scope="module")
def every(models: dict[str, Model], drafting: Model) -> dict[str, Model]:
    return {**models, "drafting": drafting}


def test_a_request_computes_nothing_but_by_the_forwards_that_it_yields(every: dict[str, Model]) -> None:
    for name, infilling, options in REQUESTS:
        model, given = every[name], dict(options)
        draft = given.pop("draft", None)
        decode = Decode(seed=1, **given)
        plan = make_plan(model.config, model.tokenizer, decode, PROMPT, SUFFIX if infilling else None, 12, None, draft)
        want = finished(Sample(Model(model.backbone, model.tokenizer, "torch").denoiser, plan, 0, None)).result()
        with OnlyIn() as only, torch.inference_mode():
            denoiser = WatchedDenoiser(model, only)
            sample = finished(Sample(denoiser, plan, 0, None))
        result, backend = sample.result(), denoiser.backend
        assert result.text == want.text, options
        assert result.usage.forwards == len(backend.forwards) > 0
        assert only.num > len(backend.forwards)
        assert result.usage.computed_tokens == sum(len(one.tokens) for one in backend.forwards)


def test_both_questions_of_guidance_are_in_one_batch(every: dict[str, Model]) -> None:
    """Steps of a draft head too: a batch has two of them, for the two questions."""
    for name, options in (
        ("drafting", {"policy": "chain", "threshold": 0.0, "block_size": 6}),
        ("drafting", {"mode": "speculative", "block_size": 4}),
        ("causal", {"mode": "ar"}),
        ("full", {"mode": "full", "threshold": 0.3}),
        ("block", {"threshold": 0.3}),
    ):
        model = every[name]
        recorded = Recorded(model.denoiser)
        main_path.generate(recorded, model.tokenizer, PROMPT, 12, heal=False, guidance=2.0, **options)
        kinds = [[type(one) for one in batch] for batch in recorded.backend.batches]
        assert all(kind in ([Forward] * 2, [DraftStep] * 2) for kind in kinds), kinds
        assert ([DraftStep] * 2 in kinds) == (name == "drafting")


def test_a_length_search_yields_its_forwards(every: dict[str, Model]) -> None:
    """What is given once, then all candidates in one batch; alone, one batch has a forward for each."""
    t = every["causal"].tokenizer
    for name, num_given in (("causal", 1), ("causal_unshifted", 1), ("full_unshifted", 0)):
        config = every[name].config
        segments = [[t.bos_id, *t.encode(PROMPT)], t.encode(SUFFIX)]
        canvases = [Canvas.lay_out(segments, [num], config.mask_id) for num in (1, 4, 7)]
        canvases = [canvas.at(canvas.gaps[0]) for canvas in canvases]
        found = []
        for look, sizes in ((look_together, [1] * num_given + [3]), (look_alone, [3])):
            denoiser = Model(every[name].backbone, t, "torch").denoiser
            with OnlyIn() as only, torch.inference_mode():
                watched, counts = Watched(denoiser.backend, only), Counts()
                found.append(compute(look(denoiser, canvases, counts), watched))
            assert [len(batch) for batch in watched.batches] == sizes
            assert counts.forwards == (len(sizes) if look is look_together else 3)
        for one, other in zip(*found, strict=True):
            assert np.allclose(np.exp(one), np.exp(other), atol=1e-3)


def test_decisions_and_likelihoods_are_computed_by_the_backend_alone(every: dict[str, Model]) -> None:
    question = Choice(before=" = ", labels=["open", "x", "reader(1)"], after="\n")
    for name in ("causal", "causal_unshifted", "full", "block", "block_shifted"):
        model = every[name]
        backend = Model(model.backbone, model.tokenizer, "torch").denoiser.backend
        texts = label_texts(model.config, model.tokenizer, PROMPT, question)
        ids = [model.tokenizer.bos_id, *model.tokenizer.encode(PROMPT)]
        kinds = ["elbo", "chain", *(["ar"] if name.startswith("causal") else [])]
        with OnlyIn() as only, torch.inference_mode():
            watched = Watched(backend, only)
            compute(score_texts(model.config, texts, Counts()), watched)
            assert len(watched.batches) == 1, "all questions are one batch"
            for kind in kinds:
                score_tokens(watched, ids, kind=kind, **({"samples": 4} if kind == "elbo" else {}))
        assert only.num > 0


def run_of(model: Model, **options: Any) -> Run:
    """A run of mode "ar"."""
    decode = Decode(mode="ar", **options)
    plan = make_plan(model.config, model.tokenizer, decode, PROMPT, None, 14, None)
    session = model.denoiser.session(plan.canvas, decode.cache)
    constraint = plan.constraint
    return Run(
        plan, session, TokenSampler(decode.sampling, Counter(3), False, constraint), Deadline(None), session.counts
    )


def says(hidden: torch.Tensor, model: Model) -> tuple[torch.Tensor, np.ndarray]:
    """A head with evidence for each row."""
    return model.backbone.logits(hidden), hidden[:, :2].float().numpy()


@pytest.mark.parametrize("head", [False, True])
def test_one_token_after_the_other_is_blocks_of_one(causal: Model, head: bool) -> None:
    """The loop of mode "ar" has the events of `denoise` on spans of one position, by the same sampler."""
    given: Callable[..., Any] | None = (lambda hidden: says(hidden, causal)) if head else None
    model = Model(causal.backbone, causal.tokenizer, head=given)
    for options in (
        {},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.8, "stop": ("e", "\n"), "logit_bias": {40: 2.0}},
        {"min_tokens": 14, "cache": "none"},
        {"regex": "[a-z]{3,8}(, [0-9]+)*", "temperature": 1.0},
        {"keywords": "ab", "forbidden": "e"},
    ):
        fast, slow = run_of(model, **options), run_of(model, **options)
        backend = model.denoiser.backend
        _, healed = run_steps(heal(fast, fast.plan.canvas), backend)
        run_steps(heal(slow, slow.plan.canvas), backend)
        events, canvas = run_steps(one_by_one(fast, healed), backend)
        others, other = run_steps(denoise_spans(slow, healed, 0), backend)
        assert len(events) == len(others) > 1
        for one, two in zip(events, others, strict=True):
            assert same_event(one, two)
        assert np.array_equal(canvas.tokens, other.tokens)
        assert np.array_equal(canvas.open, other.open)
        assert fast.counts == slow.counts
        assert head == any(event.evidence is not None for event in events)


def same_event(one: Event, other: Event) -> bool:
    """Equal in every number; the same evidence."""
    names = ("positions", "tokens", "probabilities", "confidence", "reopen", "replace")
    return (
        (one.step, one.canvas.span) == (other.step, other.canvas.span)
        and all(np.array_equal(getattr(one.decision, n), getattr(other.decision, n)) for n in names)
        and np.array_equal(one.canvas.tokens, other.canvas.tokens)
        and (one.evidence is None) == (other.evidence is None)
        and (one.evidence is None or np.array_equal(one.evidence, other.evidence, equal_nan=True))
    )


def test_an_asking_of_hidden_states_is_a_plain_generator(causal: Model) -> None:
    """By hand: it yields one batch, is sent the answers, and returns what it was asked for."""
    canvas = Canvas.lay_out([[1, 20, 21]], [3], 3).at((3, 6))
    asking = causal.denoiser.session(canvas).ask(canvas, np.arange(3, 6), Hidden())
    (forward,) = next(asking)
    assert isinstance(forward, Forward)
    assert forward.tokens.tolist() == [1, 20, 21, 3, 3]
    assert forward.wanted.tolist() == [2, 3, 4]
    answer = Answer(hidden=np.zeros((3, causal.config.width), dtype=np.float32))
    with pytest.raises(StopIteration) as end:
        asking.send([answer])
    assert end.value.value is answer
