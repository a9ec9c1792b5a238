"""A head in place of the vocabulary projection: what it says of each token reaches the event, in every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backends import BACKENDS, needs_compiler
from conftest import CONTEXTS
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample, drive
from daguerre.model import Model
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.trace import Event
from forwards import NUM_KINDS, Expected, make
from pairwise import covering, of
from plans import make_plan

PROMPT, SUFFIX = "def area(w, h):\n    return ", "\n\nprint(area(2, 3))\n"
TIMED: dict[str, Any] = {"context": "full", "shift": False, "time_input": True}
FACTS = CONTEXTS | {
    "drafting": {"draft_head": 24},
    "timed": TIMED,
    "uniform": TIMED | {"process": "uniform", "null_id": None},
}
MODES: list[tuple[str, dict[str, Any]]] = [
    ("drafting", {"mode": "ar"}),
    ("drafting", {"mode": "ar", "regex": "[a-z ]+;"}),
    ("drafting", {"mode": "speculative", "block_size": 4}),
    ("drafting", {"mode": "speculative", "guidance": 1.5}),
    ("drafting", {"mode": "block", "threshold": 0.5}),
    ("drafting", {"mode": "block", "revise": 1, "revise_threshold": 0.1, "block_size": 6}),
    ("drafting", {"mode": "block", "policy": "chain", "threshold": 0.3}),
    ("drafting", {"mode": "block", "policy": "chain", "threshold": 0.3, "scorer": lambda canvas, asked, logits: 0.0}),
    ("causal_unshifted", {"mode": "full", "policy": "entropy"}),
    ("block", {"mode": "block", "policy": "confidence"}),
    ("full", {"mode": "full", "regex": "[a-z ]+;"}),
    ("timed", {"mode": "ancestral", "steps": 4}),
    ("uniform", {"mode": "ancestral", "steps": 4}),
]


class Concepts:
    """The vocabulary projection, with two numbers for each row: its hidden state's first, and its largest logit."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def __call__(self, hidden: Tensor) -> tuple[Tensor, np.ndarray]:
        logits = self._backbone.logits(hidden)
        return logits, torch.stack([hidden[:, 0].float(), logits.max(dim=-1).values], dim=-1).numpy()


class Silent(Concepts):
    """The same without a word."""

    def __call__(self, hidden: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return super().__call__(hidden)[0], None


@pytest.fixture(scope="module")
def backbones(make_model: Any) -> dict[str, Backbone]:
    return {name: make_model(**facts).backbone for name, facts in FACTS.items()}


def run(denoiser: BackboneDenoiser, tokenizer: Any, options: dict[str, Any], **changes: Any) -> list[Event]:
    decode = Decode(**options | changes).resolved(denoiser.config, False)
    plan = make_plan(denoiser.config, tokenizer, decode, PROMPT, None, 12, None)
    return list(drive(Sample(denoiser, plan, 0, None)))


DRAWINGS: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 2}]
EVERY_WAY = covering({"number": range(len(MODES)), "backend": ["native", "torch"], "drawing": DRAWINGS})


@pytest.mark.parametrize("backend", BACKENDS)
def test_evidence_reaches_the_events_and_the_projection_as_a_head_changes_no_token(
    backbones: Any, tokenizer: Any, backend: Any, subtests: pytest.Subtests
) -> None:
    for number, _, drawing in map(dict.values, of(EVERY_WAY, backend=backend)):
        name, options = MODES[number]
        with subtests.test(name, **options | drawing):
            backbone, some = backbones[name], 0
            projection = Silent(backbone) if backend == "native" else None  # products of one library: one result
            plain = run(BackboneDenoiser(backbone, backend, head=projection), tokenizer, options, **drawing)
            headed = BackboneDenoiser(backbone, backend, head=Concepts(backbone))
            events = run(headed, tokenizer, options, **drawing)
            assert len(events) == len(plain)
            for event, other in zip(events, plain, strict=True):
                assert other.evidence is None
                assert np.array_equal(event.decision.tokens, other.decision.tokens)
                assert np.array_equal(event.canvas.tokens, other.canvas.tokens)
                if event.evidence is None:
                    # Nothing was asked: a constraint left no choice, or it is the noise at the start.
                    assert "regex" in options or event is events[0]
                    continue
                assert event.evidence.shape == (len(event.decision), 2)
                known = np.isfinite(event.evidence).all(axis=1)
                some += int(known.sum())
                assert known.all() or 2 in event.decision.tokens  # what ends a text fills the rest of its span
            assert some >= 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_evidence_is_of_the_row_that_drew_the_token(backbones: Any, tokenizer: Any, backend: Any) -> None:
    """At temperature 0 the largest logit is the token's, whose log-probability is at most zero below it."""
    backbone = backbones["drafting"]
    by_mode = {}
    for mode in ("ar", "speculative"):
        events = run(BackboneDenoiser(backbone, backend, head=Concepts(backbone)), tokenizer, {"mode": mode})
        pairs = [zip(e.decision.positions.tolist(), e.evidence, strict=True) for e in events if e.evidence is not None]
        by_mode[mode] = {position: said for pair in pairs for position, said in pair}
    assert by_mode["ar"].keys() == by_mode["speculative"].keys()
    for position, said in by_mode["ar"].items():
        assert np.allclose(said, by_mode["speculative"][position], atol=1e-4)
    assert len({float(said[1]) for said in by_mode["ar"].values()}) > 6


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_answers_everything_that_is_asked(backbones: Any, dtype: torch.dtype) -> None:
    """Log-probabilities, draws in turn and cycles too, in the model's type of numbers."""
    backbone = Backbone(backbones["drafting"].config).requires_grad_(False).eval()
    backbone.load_state_dict(backbones["drafting"].state_dict())
    backbone.to(dtype)
    head = Concepts(backbone)
    for backend in (NativeBackend(backbone, head=head), TorchBackend(backbone, head)):
        for number in range(NUM_KINDS):
            (answer,) = backend.forward([make(backend, number)])
            if dtype == torch.float32:
                Expected(TorchBackend(backbone), number).check(answer, 1e-5)
            drawn = [x for x in (answer.tokens, answer.logits) if x is not None]
            assert (answer.evidence is not None) == bool(drawn)
            if drawn:
                assert answer.evidence is not None and answer.evidence.shape == (len(drawn[0]), 2)


def test_a_model_takes_a_head(backbones: Any, tokenizer: Any) -> None:
    backbone = backbones["causal"]

    def backwards(hidden: Tensor) -> tuple[Tensor, None]:
        return -backbone.logits(hidden).clamp_min(-1e4), None

    plain, turned = Model(backbone, tokenizer), Model(backbone, tokenizer, head=backwards)
    assert plain.generate(PROMPT, 8).text != turned.generate(PROMPT, 8).text
