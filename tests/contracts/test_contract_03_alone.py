"""Contract 3: a request's tokens depend on its own input, parameters and seed alone."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
import torch

from backends import ISAS, needs_compiler, of_isa, threads
from conftest import CONTEXTS
from daguerre.canvas import Canvas
from daguerre.decoding.generate import plan_request
from daguerre.decoding.pins import Pin
from daguerre.decoding.request import Decode, TokenRequest
from daguerre.decoding.result import Result
from daguerre.decoding.sample import Sample, Together, drive
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import Experts, RopeScaling
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Answer, DraftStep, Forward
from daguerre.models.load_options import Quantization
from daguerre.models.stale import RULES
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.policies import POLICIES
from daguerre.trace import Event

PROMPT = "def area(w, h):\n    return "
TIMED: dict[str, Any] = {"context": "full", "shift": False, "time_input": True}
EXPERTS = Experts(num=8, per_token=2, width=40, shared_width=24, first_layer=1, score="sigmoid", normalized=True)
ADAPTIVE: dict[str, Any] = {"norm": "layer", "norm_bias": False, "adaptive_width": 12}
FACTS = CONTEXTS | {
    "drafting": {"draft_head": 24},
    "timed": TIMED,
    "uniform": TIMED | {"process": "uniform", "null_id": None},
    "adaptive": TIMED | ADAPTIVE,
    "adaptive blocks": CONTEXTS["block"] | ADAPTIVE,
    "experts": CONTEXTS["block"] | {"experts": EXPERTS},
    "in_place": {"masks_in_place": True, "block_size": 5, "draft_rank": 8, "draft_matrices": ("out",)}
    | {"rope_scaling": RopeScaling(kind="yarn", factor=4.0, original_positions=16, query_beta=0.4)},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}


def ids(result: Result) -> list[int]:
    return [token.id for token in result.tokens]


def test_a_sample_does_not_depend_on_how_many_are_asked(causal: Model) -> None:
    few = causal.generate(PROMPT, 16, n=2, temperature=1.0, seed=5).choices
    many = causal.generate(PROMPT, 16, n=4, temperature=1.0, seed=5).choices
    assert [ids(r) for r in few] == [ids(r) for r in many[:2]]
    assert len({tuple(ids(r)) for r in many}) > 1


def test_threads_running_side_by_side_change_nothing(models: dict[str, Model]) -> None:
    jobs = [(name, seed) for name in models for seed in range(3)]

    def one(job: tuple[str, int]) -> list[int]:
        name, seed = job
        return ids(models[name].generate(PROMPT, 12, temperature=1.0, seed=seed))

    alone = [one(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, jobs)) == alone


# ---- many requests ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """One request: texts with a gap between each and the next, and options."""

    texts: Sequence[str] = (PROMPT, "")
    max_tokens: int = 14
    options: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)


GAP, GAPS = (PROMPT, "\n\nprint(area(2, 3))\n"), ("def f(", "):\n    return ", " + 1\n")
LONG = ("".join(f"x{n} = {n} * y\n" for n in range(14)) + PROMPT, "")
SAMPLED = {"temperature": 1.0}


def lean(canvas: Canvas, asked: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """A scorer that wants other tokens at every position."""
    return 3 * np.sin(np.add.outer(asked * 7.0, np.arange(logits.shape[1]) * 13.0))


def asked(texts: Sequence[str] = (PROMPT, ""), max_tokens: int = 14, draft: str | None = None, **options: Any) -> Asked:
    return Asked(texts, max_tokens, options, {} if draft is None else {"draft": draft})


def denoising(**options: Any) -> list[Asked]:
    """Every policy over a completion."""
    each = [asked(mode="block", policy=policy, **options) for policy in POLICIES]
    return [one for one in each if one.options["policy"] not in ("chain", "first_hitting")]


CAUSAL = [
    *denoising(block_size=5),
    asked(LONG, mode="block", policy="chain", threshold=0.3, **SAMPLED),
    asked(GAP, mode="block", policy="first_hitting", **SAMPLED),
    asked(mode="ar"),
    asked(LONG, mode="ar", cache="none", max_tokens=9, **SAMPLED),
    asked(("", ""), mode="ar", logit_bias={70: 4.0, 80: -np.inf}, top_k=9, **SAMPLED),
    asked(mode="ar", draft=" w * h\n    return w", **SAMPLED),
    asked(mode="ar", regex="[a-z ]+;", max_tokens=20),
    asked(LONG, mode="speculative", max_tokens=30),
    asked(mode="speculative", block_size=5, max_tokens=25, **SAMPLED),
    asked(mode="speculative", temperature=0.7, top_p=0.9, cache="approximate_int8"),
    asked(mode="speculative", draft="w * h\n", min_tokens=8),
    asked(mode="ar", choices=["one", "two or three"], **SAMPLED),
    asked(mode="speculative", guidance=2.0, **SAMPLED),
    asked(mode="block", guidance=2.0, negative="import re\n", guidance_schedule="linear"),
    asked(GAP, mode="block", scorer=lean, **SAMPLED),
    asked(mode="full", threshold=0.3),
    asked(mode="full", policy="confidence", steps=3, top_p=0.8, **SAMPLED),
    asked(GAP, mode="block", threshold=0.5),
    asked(GAP, mode="full", policy="entropy", cache="approximate_int8"),
    asked(GAPS, mode="block", policy="margin", steps=5, max_tokens=6, **SAMPLED),
    asked(GAPS, mode="block", regex="[a-z]+", max_tokens=6, threshold=0.6),
    asked(GAP, mode="beam", num_beams=3, max_tokens=6),
    asked(GAP, mode="beam", num_beams=2, no_repeat_context_lines=True, max_tokens=5),
    asked(mode="block", schema=SCHEMA, max_tokens=20, **SAMPLED),
    asked(LONG, mode="block", keywords="ab", forbidden=["\n"], policy="entropy_bounded", gamma=0.5, max_tokens=20),
    asked(mode="block", pins=[Pin("ab", at=3)], policy="random", **SAMPLED),
    asked(mode="block", revise=1, revise_threshold=0.3, block_size=6),
    asked(mode="block", revise=1, revise_reading="leave_one_out", revise_threshold=0.3, max_tokens=7),
    asked(mode="block", draft=" w * h * d", threshold=0.2),
    asked(mode="block", stop=["\n"], policy="factor", factor=2.0, cache="none"),
]
UNSHIFTED = [*denoising(**SAMPLED), asked(GAP, mode="block"), asked(GAPS, mode="full", **SAMPLED), asked(LONG)]
FULL = [asked(mode="full", policy="confidence", steps=4), asked(GAP, mode="block", **SAMPLED), asked(GAPS), asked(LONG)]
FULL += [asked(LONG, mode="block", block_size=5, cache=name, **SAMPLED) for name in RULES]
BLOCK = [asked(LONG), asked(**SAMPLED), asked(revise=1, revise_threshold=0.3), asked(regex="[a-z ]+;", max_tokens=20)]
IN_PLACE = [
    *(asked(LONG, max_tokens=24, **more) for more in ({"mode": "ar"}, {"mode": "block"}, {"mode": "full"})),
    *(asked(mode="speculative", drafter="head", block_size=size, **SAMPLED) for size in (3, None)),
    asked(LONG, mode="speculative", drafter="head", cache="approximate_int8", temperature=0.7),
    asked(mode="speculative", drafter="head", temperature=1.2, top_k=5, logit_bias={70: 4.0, 80: -np.inf}),
    asked(mode="speculative", drafter="head", guidance=2.0, **SAMPLED),
    asked(mode="speculative", draft="w * h\n", scorer=lean),
    asked(GAP, mode="block", threshold=0.3),
    asked(GAPS, mode="block", policy="chain", **SAMPLED),
    asked(mode="block", policy="chain", threshold=0.2, revise=1, revise_threshold=0.3, max_tokens=24),
]
WINDOW: dict[str, Any] = {"mode": "block", "sliding": True, "block_size": 5, "policy": "entropy_threshold"}
REORDERED = [
    *(asked(texts, **WINDOW, position_penalty=0.02, **SAMPLED) for texts in ((PROMPT, ""), GAP, GAPS, LONG)),
    asked(LONG, **WINDOW, entropy_threshold=2.0, cache="approximate_int8"),
    asked(GAP, mode="block", block_size=4, threshold=0.6),
    asked(GAPS, mode="full", policy="entropy", **SAMPLED),
    asked(mode="block", policy="chain", threshold=0.2, **SAMPLED),
    asked(mode="block", regex="[a-z ]+;", max_tokens=20),
    asked(mode="block", guidance=2.0, cache="none"),
]
NOISE = [asked(mode="ancestral", steps=4, texts=text, **SAMPLED) for text in ((PROMPT, ""), GAP, LONG, GAPS)]
REQUESTS = {
    "drafting": [*CAUSAL, *CAUSAL][:64],
    "causal_unshifted": UNSHIFTED,
    "full": FULL,
    "block": BLOCK,
    "block_shifted": BLOCK,
    "reordered": REORDERED,
    "experts": BLOCK,
    "in_place": IN_PLACE,
    "timed": [*FULL[:1], *NOISE],
    "uniform": NOISE,
    "adaptive": [*FULL[:2], *NOISE],
    "adaptive blocks": BLOCK,
}
KINDS: dict[str, tuple[torch.dtype, Quantization | None]] = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "int8": (torch.float32, "int8"),
    "int4": (torch.bfloat16, "approximate_int4"),
}
MANY = [of_isa(ISAS[-1], kind) for kind in KINDS]
MANY += [of_isa(isa, [*KINDS][number % 4]) for number, isa in enumerate(ISAS[:-1])]
"""Every type of numbers on the processor as it is, and every lesser instruction set with one of them."""


class Kept(Sample):
    """A sample that keeps the bits of each answer it is sent: of hidden states, logits, draws."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.bits: list[list[int]] = []

    def advance(self, answers: list[Answer] | None = None) -> Event | list[Forward | DraftStep] | None:
        for answer in answers or ():
            made = [getattr(answer, one.name) for one in fields(Answer)]
            self.bits.append([0 if x is None else hash(x.tobytes()) for x in made])
        return super().advance(answers)


def begin(denoiser: BackboneDenoiser, tokenizer: Tokenizer, requests: Sequence[Asked]) -> list[Kept]:
    """A sample of each, before its first step; their seeds differ."""
    out = []
    for seed, one in enumerate(requests):
        segments = [tokenizer.encode(text) for text in one.texts]
        budgets = [(one.options.get("min_tokens", 0), one.max_tokens)] * (len(segments) - 1)
        infilling = len(budgets) > 1 or bool(segments[-1])
        if denoiser.config.null_id is None and infilling:
            budgets = [(one.max_tokens, one.max_tokens)] * len(budgets)
        decode = Decode(**one.options, seed=seed).resolved(denoiser.config, infilling)
        plan = plan_request(denoiser.config, tokenizer, TokenRequest(decode, segments, budgets, **one.more))
        out.append(Kept(denoiser, plan, 0, None))
    return out


def finished(sample: Kept) -> Kept:
    for _ in drive(sample):
        pass
    return sample


def finished_together(samples: list[Kept], seed: int) -> list[Kept]:
    """All of them, each arriving at a random step, in a random order."""
    rng = random.Random(seed)
    arrivals = sorted((rng.randrange(30), rng.random(), index) for index in range(len(samples)))
    together, step, most = Together(samples[0].backend), 0, 0
    while arrivals or len(together):
        while arrivals and arrivals[0][0] <= step:
            together.add(samples[arrivals.pop(0)[2]])
        if len(together):
            together.step()
        most, step = max(most, len(together)), step + 1
    assert most >= len(samples) // 3, "they are computed side by side"
    return samples


def same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other, equal_nan=True) if isinstance(one, np.ndarray) else bool(one == other)


def same_events(one: Event, other: Event) -> bool:
    """Whether step, decision and canvas are the same to the bit."""
    parts = [(one.step, other.step), (one.evidence, other.evidence)]
    for a, b in ((one.decision, other.decision), (one.canvas, other.canvas)):
        parts += [(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)]
    return all(same(a, b) for a, b in parts)


def check_same(got: Kept, want: Kept) -> None:
    assert len(got.events) == len(want.events)
    assert got.bits == want.bits
    assert all(map(same_events, got.events, want.events))
    a, b = got.result(), want.result()
    assert [vars(t) for t in a.tokens] == [vars(t) for t in b.tokens]
    assert (a.text, a.finish_reason) == (b.text, b.finish_reason)
    assert got._run.counts == want._run.counts


@pytest.fixture(scope="module")
def backbones(make_model: Any) -> dict[str, Backbone]:
    return {name: make_model(**FACTS[name]).backbone for name in REQUESTS}


def all_alone(denoiser: BackboneDenoiser, tokenizer: Tokenizer, requests: Sequence[Asked]) -> list[Kept]:
    """Each request by itself, on one thread."""
    alone = [finished(sample) for sample in begin(denoiser, tokenizer, requests)]
    assert len({tuple(ids(sample.result())) for sample in alone}) > len(alone) // 2
    return alone


@needs_compiler
@pytest.mark.parametrize(("isa", "kind"), MANY, indirect=["isa"])
def test_requests_computed_together_are_as_each_alone(
    backbones: Any, tokenizer: Tokenizer, isa: str, kind: str
) -> None:
    """All modes and policies, guidance, constraints, infilling, drafts, lengths and caches, arriving at random: 64 in
    float32 on the processor as it is, and half of them on two threads and in other numbers.
    """
    dtype, quantize = KINDS[kind]
    denoiser = BackboneDenoiser(copy.deepcopy(backbones["drafting"]).to(dtype), "native", quantize)
    most = (isa, kind) == (ISAS[-1], "float32")
    requests = REQUESTS["drafting"] if most else CAUSAL
    alone = all_alone(denoiser, tokenizer, requests)
    for num_threads, some in ((1, requests), (2, CAUSAL))[: 1 + most]:
        with threads(num_threads):
            together = finished_together(begin(denoiser, tokenizer, some), num_threads)
        for got, want in zip(together, alone[: len(some)], strict=True):
            check_same(got, want)


class Shaken:
    """The vocabulary projection, its logits changed by more than another order of sums changes them."""

    def __init__(self, backbone: Backbone, seed: int) -> None:
        self._backbone, self._random = backbone, torch.Generator().manual_seed(seed)

    def __call__(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits = self._backbone.logits(hidden)
        return logits * (1 + 1e-5 * torch.randn(logits.shape, generator=self._random)).to(logits.device), None


def check_tokens(backbone: Backbone, tokenizer: Tokenizer, requests: Sequence[Asked]) -> None:
    """Of the torch backend, on any device: tokens are the same, but for a fifth of requests at most, whose
    tokens change as well when logits are changed by a hundred-thousandth; and probabilities to 1e-4.
    """
    denoiser = BackboneDenoiser(backbone, "torch")
    alone = [finished(sample).result() for sample in begin(denoiser, tokenizer, requests)]
    together = [sample.result() for sample in finished_together(begin(denoiser, tokenizer, requests), 0)]
    others = [at for at, (got, want) in enumerate(zip(together, alone, strict=True)) if ids(got) != ids(want)]
    assert len(others) < 0.2 * len(alone)
    for at in others:
        shaken = (BackboneDenoiser(backbone, "torch", head=Shaken(backbone, seed)) for seed in range(4))
        tokens = [ids(finished(begin(one, tokenizer, requests)[at]).result()) for one in shaken]
        assert any(row != ids(alone[at]) for row in tokens), (at, requests[at])
    for at in {*range(len(alone))} - {*others}:
        for name in ("logprob", "confidence"):
            a, b = ([getattr(token, name) for token in results[at].tokens] for results in (together, alone))
            assert np.allclose(np.array(a, dtype=float), np.array(b, dtype=float), atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", ["drafting", "causal_unshifted", "block", "experts", "in_place"])
def test_the_torch_backend_gives_the_same_tokens(backbones: Any, tokenizer: Tokenizer, name: str) -> None:
    """Not the same bits: PyTorch's products promise none, a row's last bits may change with the number of rows beside
    it. So it is float32 alone, and tokens may differ only in requests whose tokens also change when logits are changed
    by a hundred-thousandth.
    """
    check_tokens(backbones[name], tokenizer, REQUESTS[name][: len(CAUSAL)])
