"""Evidence and steering through sessions and modes: what an event says of a token gives its probability again.

Letters: k commits of an event, P parts of evidence, J steered concepts, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
import torch

from backends import BACKENDS, NATIVE, needs_compiler
from conftest import CONTEXTS
from daguerre.canvas import Canvas, Decision
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample, drive
from daguerre.decoding.sampler import evidence_at
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.shapes import ConceptShape
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Draws, Forward, Logits, Rules
from daguerre.models.guidance import Guidance
from daguerre.models.session import compute
from daguerre.models.wrappers.explaining import Explained
from daguerre.models.wrappers.guidance import Guided
from daguerre.models.wrappers.rewriting import predicted, with_draft
from daguerre.models.wrappers.steering import Steered
from daguerre.trace import Event
from driving import OnLogits, Recorded
from forwards import same_bits
from pairwise import covering, of
from plans import make_plan

PROMPT, SUFFIX = "def area(w, h):\n    return ", "\n\nprint(area(2, 3))\n"
CONCEPTS = ConceptShape(known=11, discovered=40, rank=6, kept_known=5, kept_discovered=20)
TIMED: dict[str, Any] = {"context": "full", "shift": False, "time_input": True}
FACTS: dict[str, dict[str, Any]] = CONTEXTS | {
    "drafting": {"draft_head": 24},
    "clean_anchor": {"context": "block", "block_size": 8, "anchor": "clean"},
    "in_place": {"context": "causal", "masks_in_place": True},
    "timed": TIMED,
    "uniform": TIMED | {"process": "uniform", "null_id": None},
    "growing": {"context": "full", "shift": False, "expand_id": 5},
}
MODES: list[tuple[str, dict[str, Any]]] = [
    ("drafting", {"mode": "ar"}),
    ("drafting", {"mode": "ar", "regex": "[a-z ]+;"}),
    ("drafting", {"mode": "ar", "draft": "w * h + 1, w, h"}),
    ("drafting", {"mode": "speculative", "block_size": 4}),
    ("causal", {"mode": "speculative", "block_size": 4}),
    ("in_place", {"mode": "speculative", "block_size": 4, "drafter": "head"}),
    ("drafting", {"mode": "speculative", "block_size": 4, "regex": "[a-z ]+;"}),
    ("drafting", {"mode": "speculative", "block_size": 4, "regex": "(alpha [0-9]|bravo [a-z])+;"}),
    ("drafting", {"mode": "block", "threshold": 0.5}),
    ("drafting", {"mode": "block", "revise": 1, "revise_threshold": 0.1, "block_size": 6}),
    ("drafting", {"mode": "block", "policy": "chain", "threshold": 0.3}),
    ("causal", {"mode": "block", "draft": "w * h + 1, w, h", "threshold": 0.3}),
    ("causal", {"mode": "block", "block_size": 6, "suffix": SUFFIX}),
    ("in_place", {"mode": "block", "block_size": 4}),
    ("causal_unshifted", {"mode": "full", "policy": "entropy"}),
    ("block", {"mode": "block", "policy": "confidence"}),
    ("block_shifted", {"mode": "block", "policy": "confidence"}),
    ("clean_anchor", {"mode": "block", "policy": "confidence"}),
    ("reordered", {"mode": "block", "block_size": 6}),
    ("full", {"mode": "full", "regex": "[a-z ]+;"}),
    ("full", {"mode": "block", "block_size": 4, "cache": "approximate_dual"}),
    ("growing", {"mode": "expand", "suffix": SUFFIX}),
    ("causal", {"mode": "beam", "num_beams": 3, "suffix": SUFFIX}),
    ("timed", {"mode": "ancestral", "steps": 4}),
    ("uniform", {"mode": "ancestral", "steps": 4}),
]
GUIDED = {"ar", "speculative", "block", "full"}


class Moving:
    """Controls whose amounts differ from position to position, and change with what is committed; with `strength` 0
    they are nothing. Positions count from the first gap.
    """

    def __init__(self, backbone: Backbone, strength: float = 1.0, num: int = 4, steady: bool = False) -> None:
        rng, config = np.random.default_rng(6), backbone.config
        self.concepts, self.strength, self.steady = np.array([3, 8, 14, 45], dtype=np.int32)[:num], strength, steady
        self.write = rng.standard_normal((num, config.width)).astype(np.float32)
        self.mask = np.maximum(rng.standard_normal((num, config.vocab_size)), 0).astype(np.float32)
        for array in (self.concepts, self.write, self.mask):
            array.setflags(write=False)

    def at(self, canvas: Canvas, positions: np.ndarray) -> Any:
        num_written = 0 if self.steady else int(canvas.in_gap.sum() - canvas.open.sum())
        place = (positions - canvas.gaps[0][0])[:, None] + 0.3 * num_written + np.arange(len(self.concepts))
        made = (np.sin(place), 2 * np.cos(1.7 * place), np.maximum(np.sin(0.6 * place), 0))
        return tuple((self.strength * one).astype(np.float32) for one in made)


@pytest.fixture(scope="module")
def backbones(make_model: Any) -> dict[str, Backbone]:
    return {name: make_model(concepts=CONCEPTS, **facts).backbone for name, facts in FACTS.items()}


def events_of(denoiser: Any, tokenizer: Any, options: dict[str, Any], **changes: Any) -> list[Event]:
    given = options | changes
    suffix, draft = given.pop("suffix", None), given.pop("draft", None)
    decode = Decode(**given)
    plan = make_plan(denoiser.config, tokenizer, decode, PROMPT, suffix, 12, False, draft)
    return list(drive(Sample(denoiser, plan, 0, None)))


def tokens_of(events: list[Event]) -> list[int]:
    return events[-1].canvas.tokens.tolist()  # type: ignore[no-any-return]


def logits_of(backbone: Backbone, evidence: np.ndarray, controls: Moving | None) -> np.ndarray:
    """Logits (k, V) by the formula, from evidence (k, P, E)."""
    width = backbone.config.width
    weight, hidden, amounts = evidence[..., 0], evidence[..., 1 : 1 + width], evidence[..., 1 + width :]
    total = np.zeros((len(evidence), backbone.config.vocab_size))
    for part in range(evidence.shape[1]):
        h, banned = hidden[:, part], 0.0
        if controls is not None:
            shift, scale, ban = np.split(amounts[:, part], 3, axis=1)
            weights = backbone.concepts.weights(torch.from_numpy(h.copy())).numpy()  # type: ignore[union-attr]
            h = h + (shift + scale * weights[:, controls.concepts]) @ controls.write
            banned = ban @ controls.mask
        logits = h @ backbone.projection.numpy().T - banned
        total += weight[:, part : part + 1] * logits
    return total


def chances(backbone: Backbone, logits: np.ndarray, token: int) -> Iterator[float]:
    """The probability of a token under logits (V,), with any of the ends of text that rules may forbid."""
    config = backbone.config
    for ends in chain.from_iterable(combinations(config.ends, num) for num in range(len(config.ends) + 1)):
        allowed = np.array([*config.ordinary_ids, *ends])
        yield float(
            np.exp(logits[token] - logits[allowed].max()) / np.exp(logits[allowed] - logits[allowed].max()).sum()
        )


def check(backbone: Backbone, events: list[Event], controls: Moving | None, num_parts: int) -> int:
    """That the evidence of every token gives the probability with which it was committed. Returns of how many."""
    num = 0
    more = 0 if controls is None else 3 * len(controls.concepts)
    for event in events:
        if event.evidence is None:
            continue
        assert event.evidence.shape == (len(event.decision), num_parts, 1 + backbone.config.width + more)
        assert event.evidence.dtype == np.float32
        known = np.isfinite(event.evidence).all(axis=(1, 2)) & ~np.isin(event.decision.tokens, backbone.config.ends)
        logits = logits_of(backbone, event.evidence[known], controls)
        pairs = zip(logits, event.decision.tokens[known].tolist(), event.decision.probabilities[known], strict=True)
        for row, token, probability in pairs:
            assert any(np.isclose(probability, one, rtol=2e-3, atol=1e-5) for one in chances(backbone, row, token))
            num += 1
    return num


DRAWINGS: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.8, "seed": 4}]
EVERY_WAY = covering({"number": range(len(MODES)), "backend": ["native", "torch"], "drawing": DRAWINGS})


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_every_mode_the_evidence_of_a_token_gives_its_probability_again(
    backbones: Any, tokenizer: Any, backend: Any, subtests: pytest.Subtests
) -> None:
    """Plain, steered and under guidance; of the most likely token, and of draws from the likeliest few."""
    for number, _, drawing in map(dict.values, of(EVERY_WAY, backend=backend)):
        name, options = MODES[number]
        if options["mode"] == "beam":
            drawing = {}
        if options["mode"] == "ancestral":
            drawing = {**drawing, "top_p": 1.0, "temperature": 1.0}
        with subtests.test(name, **options | drawing):
            backbone = backbones[name]
            denoiser, controls = Explained(BackboneDenoiser(backbone, backend)), Moving(backbone)
            plain = events_of(denoiser, tokenizer, options, **drawing)
            assert check(backbone, plain, None, 1) >= 3
            steered = events_of(Steered(denoiser, controls), tokenizer, options, **drawing)
            assert check(backbone, steered, controls, 1) >= 3
            assert tokens_of(plain) != tokens_of(steered)
            if options["mode"] in GUIDED and "cache" not in options:
                guided = events_of(Steered(denoiser, controls), tokenizer, options, **drawing, guidance=1.5)
                assert check(backbone, guided, controls, 2) >= 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_token_that_was_drawn_has_evidence(backbones: Any, tokenizer: Any, backend: Any) -> None:
    """Else a mode that drops some would pass. A constraint that leaves one token asks nothing."""
    for name, options in MODES:
        if "regex" in options or options["mode"] in ("ancestral", "expand"):
            continue
        backbone = backbones[name]
        drawing = {} if options["mode"] == "beam" else {"temperature": 0.9, "seed": 1}
        for event in events_of(Explained(BackboneDenoiser(backbone, backend)), tokenizer, options, **drawing):
            assert event.evidence is not None
            said = np.isfinite(event.evidence).all(axis=(1, 2))
            assert (said | np.isin(event.decision.tokens, backbone.config.ends)).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_speculation_is_lossless_for_the_steered_law(
    backbones: Any, tokenizer: Any, backend: Any, subtests: pytest.Subtests
) -> None:
    """Also where amounts change with what is committed; with draws of the backend, from logits, and constrained."""
    drawings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 0.8, "regex": "[a-z (,]+"},
    ]
    names = {"name": ["drafting", "causal"], "steady": [False, True], "wrap": [lambda one: one, OnLogits]}
    for name, steady, wrap, drawing, size in map(dict.values, covering(names | {"drawing": drawings, "size": [2, 5]})):
        with subtests.test(name, **drawing, steady=steady, size=size, on_logits=wrap is OnLogits):
            backbone = backbones[name]
            steered = Steered(BackboneDenoiser(backbone, backend), Moving(backbone, steady=steady))
            one = tokens_of(events_of(steered, tokenizer, {"mode": "ar"}, **drawing))
            options = {"mode": "speculative", "block_size": size}
            assert tokens_of(events_of(wrap(steered), tokenizer, options, **drawing)) == one
            assert tokens_of(events_of(steered, tokenizer, {"mode": "ar", "draft": "w * h"}, **drawing)) == one


@pytest.mark.parametrize("backend", BACKENDS)
def test_drafts_are_drawn_from_the_steered_law_and_so_are_accepted(
    backbones: Any, tokenizer: Any, backend: Any
) -> None:
    """Where steering makes one token nearly certain everywhere, drafts have it."""
    backbone = backbones["drafting"]
    token = tokenizer.encode("x")[-1]
    controls = Moving(backbone, num=1, steady=True)
    away = np.ones((1, backbone.config.vocab_size), dtype=np.float32) * 200
    away[0, token] = 0
    controls.mask = away
    one = np.ones((1, 1), dtype=np.float32)
    controls.at = lambda canvas, positions: tuple(one.repeat(len(positions), 0) * x for x in (0, 0, 1))  # type: ignore[method-assign]
    steered = Steered(BackboneDenoiser(backbone, backend), controls)
    for denoiser in (steered, OnLogits(steered)):
        options = {"mode": "speculative", "block_size": 4, "drafter": "head"}
        events = events_of(denoiser, tokenizer, options, temperature=0.8)
        assert {token} == set(np.concatenate([event.decision.tokens for event in events]).tolist())
        assert len(events) <= 5 and len(events[1].decision) == 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_controls_that_do_nothing_change_nothing(
    backbones: Any, tokenizer: Any, backend: Any, subtests: pytest.Subtests
) -> None:
    """Nor does explaining: the same tokens, and probabilities bit for bit."""
    for name, options in MODES:
        with subtests.test(name, **options):
            backbone = backbones[name]
            drawing: dict[str, Any] = {} if options["mode"] == "beam" else {"temperature": 0.8, "seed": 9}
            plain = BackboneDenoiser(backbone, backend)
            idle = Steered(plain, Moving(backbone, strength=0.0))
            want = events_of(plain, tokenizer, options, **drawing)
            for denoiser in (idle, Explained(plain), Steered(Explained(plain), Moving(backbone, strength=0.0))):
                got = events_of(denoiser, tokenizer, options, **drawing)
                assert len(got) == len(want)
                for one, other in zip(got, want, strict=True):
                    assert np.array_equal(one.canvas.tokens, other.canvas.tokens)
                    assert np.array_equal(one.decision.probabilities, other.decision.probabilities)
                    assert one.step == other.step


@pytest.mark.parametrize("backend", [NATIVE])
def test_explained_and_steered_draws_stay_in_the_backend(backbones: Any, tokenizer: Any, backend: Any) -> None:
    """As many forwards as without, of the same kinds, and none for hidden states."""
    backbone, kinds = backbones["drafting"], []
    for wrap in (lambda one: one, Explained, lambda one: Steered(Explained(one), Moving(backbone, 1e-6))):
        recorded: Any = Recorded(wrap(BackboneDenoiser(backbone, backend)))
        for options in ({"mode": "speculative", "block_size": 4}, {"mode": "block", "policy": "chain"}):
            events_of(recorded, tokenizer, options)
        kinds.append([type(one.ask).__name__ for one in recorded.backend.forwards])
        assert len(recorded.backend.forwards) == sum(map(len, recorded.backend.batches))
    assert kinds[0] == kinds[1] == kinds[2]
    assert set(kinds[0]) == {"Cycle", "Draws", "SequentialDraws"}


def test_the_positions_that_rows_predict_are_those_that_were_asked_for(
    backbones: Any, subtests: pytest.Subtests
) -> None:
    for name in [*CONTEXTS, "in_place"]:
        with subtests.test(name):
            denoiser = BackboneDenoiser(backbones[name], "torch")
            layouts = [Canvas.lay_out([range(20, 37)], [7], 3)]
            if name != "reordered":
                layouts.append(Canvas.lay_out([range(20, 37), range(50, 54)], [7], 3))
            for canvas in layouts:
                canvas = canvas.at((17, 24))
                positions = np.array([17, 18, 21])
                asking = denoiser.session(canvas).ask(canvas, positions, Draws(Rules(), positions))
                (forward,) = next(asking)
                assert isinstance(forward, Forward)
                assert predicted(denoiser.config, forward).tolist() == positions.tolist()
            if denoiser.config.can_draft:
                one = layouts[0].at((17, 18))
                (forward,) = next(denoiser.session(one).ask(one, np.array([17]), Logits()))
                assert predicted(denoiser.config, forward).tolist() == [17]  # type: ignore[arg-type]


def test_amounts_are_asked_for_with_the_canvas_on_which_a_draft_is_read(backbones: Any, tokenizer: Any) -> None:
    """Each row of a verification: the canvas with as many tokens of the draft as the row has read."""
    backbone, asked = backbones["causal"], list[tuple[list[int], list[int], Any]]()
    controls = Moving(backbone)
    at = controls.at

    def watched(canvas: Canvas, positions: np.ndarray) -> Any:
        asked.append((positions.tolist(), canvas.tokens[~canvas.open].tolist(), canvas.span))
        return at(canvas, positions)

    controls.at = watched  # type: ignore[method-assign]
    ids = tokenizer.encode(PROMPT)[:6]
    canvas = Canvas.lay_out([ids], [8], 3).at((6, 14))
    steered = Steered(BackboneDenoiser(backbone, "torch"), controls)
    draft = np.array([40, 41])
    compute(steered.session(canvas).cycle(canvas, draft, 2, None, Rules(), 0.0), steered.backend)
    assert asked == [
        ([6, 7, 8], ids, (6, 7)),
        ([7, 8, 9], [*ids, 40], (7, 8)),
        ([8, 9, 10], [*ids, 40, 41], (8, 9)),
    ]
    asked.clear()
    found = compute(steered.session(canvas).verify(canvas, draft, 2), steered.backend)
    assert asked == [([6], ids, (6, 7)), ([7], [*ids, 40], (7, 8)), ([8], [*ids, 40, 41], (8, 9))]
    asked.clear()
    following = found.following(1)
    compute(following.after(44), steered.backend)
    compute(following.after(45), steered.backend)
    assert asked == [([8], [*ids, 40], (7, 8)), ([9], [*ids, 40], (7, 8))]
    assert with_draft(canvas, draft[:0]).span == (6, 7)


def test_evidence_under_guidance_has_two_parts_whether_the_second_is_computed_or_not(
    backbones: Any, tokenizer: Any
) -> None:
    """At a scale of 1 the weights are 1 and 0; the logits are those of both."""
    backbone = backbones["causal"]
    denoiser = Explained(BackboneDenoiser(backbone, "torch"))
    ids = tokenizer.encode(PROMPT)[:6]
    canvas = Canvas.lay_out([ids], [8], 3).at((6, 14))
    positions = np.arange(6, 14)
    for guidance, weights in ((Guidance(2.5), (2.5, -1.5)), (Guidance(2.5, "linear"), (1.0, 0.0))):
        session = Guided(denoiser, guidance, np.array([1])).session(canvas)
        answer = compute(session.ask(canvas, positions, Logits()), denoiser.backend)
        assert answer.evidence is not None and answer.logits is not None
        assert answer.evidence.shape == (8, 2, 1 + backbone.config.width)
        assert np.allclose(answer.evidence[..., 0], weights)
        want = logits_of(backbone, answer.evidence, None)
        assert np.allclose(answer.logits[:, 20:], want[:, 20:], atol=1e-3)
    scored = Guided(denoiser, Guidance(scorer=lambda canvas, asked, logits: np.float32(1)), None).session(canvas)
    answer = compute(scored.ask(canvas, positions, Logits()), denoiser.backend)
    assert answer.evidence is not None and answer.evidence.shape[1] == 1


def test_commits_that_nothing_was_drawn_for_have_no_evidence() -> None:
    said = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    for at, rows in (
        ([3, 7], [0, 1]),
        ([7], [1]),
        ([1, 3, 5, 7, 9], [None, 0, None, 1, None]),
        ([8], [None]),
        ([], []),
    ):
        decision = Decision(np.array(at, dtype=np.int64), np.zeros(len(at)), np.ones(len(at)), np.ones(len(at)))
        found = evidence_at(decision, np.array([3, 7]), said)
        assert found is not None and found.shape == (len(at), 2, 2)
        for one, row in zip(found, rows, strict=True):
            assert np.isnan(one).all() if row is None else np.array_equal(one, said[row])
    assert evidence_at(decision, np.array([3, 7]), None) is None
    nothing = evidence_at(Decision(np.array([4]), [1], [1.0], [1.0]), np.zeros(0, dtype=np.int64), said[:0])
    assert nothing is not None and nothing.shape == (1, 2, 2) and np.isnan(nothing).all()


def test_counts_and_drawing_of_a_wrapped_session_are_those_of_the_inner_one(backbones: Any) -> None:
    denoiser = BackboneDenoiser(backbones["causal"], "torch")
    canvas = Canvas.lay_out([[1, 40, 41]], [4], 3).at((3, 7))
    inner = denoiser.session(canvas)

    class One:
        config, backend = denoiser.config, denoiser.backend

        def session(self, canvas: Canvas, cache: Any = "auto") -> Any:
            return inner

    session = Steered(Explained(One()), Moving(backbones["causal"])).session(canvas)
    assert session.counts is inner.counts and session.draws and session.explains and not inner.explains
    compute(session.ask(canvas, np.arange(3, 7), Logits()), denoiser.backend)
    assert inner.counts.forwards == 1
    session.draws = False
    assert not inner.draws


@needs_compiler
def test_a_request_is_explained_and_steered_alike_beside_others(backbones: Any) -> None:
    """One session alone, and in a batch with plain ones."""
    backbone = backbones["causal"]
    denoiser = BackboneDenoiser(backbone, "native")
    canvas = Canvas.lay_out([[1, 40, 41]], [4], 3).at((3, 7))
    positions = np.arange(3, 7)

    def asking(wrapped: bool) -> Any:
        one = Steered(Explained(denoiser), Moving(backbone)) if wrapped else denoiser
        return one.session(canvas).ask(canvas, positions, Draws(Rules(), positions))

    alone = [compute(asking(wrapped), denoiser.backend) for wrapped in (True, False)]
    running = [asking(wrapped) for wrapped in (True, False, True)]
    answers = denoiser.backend.forward([next(one)[0] for one in running])
    found = []
    for one, answer in zip(running, answers, strict=True):
        with pytest.raises(StopIteration) as end:
            one.send([answer])
        found.append(end.value.value)
    assert same_bits(found[0], alone[0]) and same_bits(found[1], alone[1]) and same_bits(found[2], alone[0])
    assert found[1].evidence is None
