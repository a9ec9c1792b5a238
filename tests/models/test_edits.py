"""Edits of hidden states by concepts, and evidence: answers against a restatement in NumPy, in both backends.

Letters: A wanted rows, J concepts of an edit, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from backends import BACKENDS, every_isa, needs_compiler
from conftest import GEMMA
from daguerre.errors import UnsupportedError
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.shapes import ConceptShape
from daguerre.models.forward import (
    Answer,
    Backend,
    Cycle,
    DraftStep,
    Draws,
    Edit,
    Forward,
    Hidden,
    Layout,
    Logits,
    LogProbs,
    Refinement,
    Rules,
    SequentialDraws,
    acceptance_of,
    num_agreed,
)
from daguerre.sampling.logits import log_softmax
from daguerre.sampling.random import Counter
from forwards import NUM_KINDS, difference, drawn, make, same_bits

CONCEPTS = ConceptShape(known=11, discovered=70, rank=6, kept_known=4, kept_discovered=20)
NUMBERS = [number for number in range(NUM_KINDS) if number % 6]
"""Forwards that ask for more than hidden states."""


def backbone_of(backend: Any) -> Backbone:
    """The backbone that a backend computes, whatever it holds of it."""
    made: Backbone = backend.weights.module() if isinstance(backend, NativeBackend) else backend.backbone
    return made


@pytest.fixture(scope="module")
def backbone(make_model: Any) -> Backbone:
    return concepts_of(make_model(concepts=CONCEPTS).backbone)


@pytest.fixture(scope="module")
def drafting(make_model: Any) -> Backbone:
    return concepts_of(make_model(concepts=CONCEPTS, draft_head=24).backbone)


def concepts_of(backbone: Backbone) -> Backbone:
    """The backbone, with biases of its heads that are not 0."""
    generator = torch.Generator().manual_seed(8)
    for layer in (backbone.concepts.known_predictor, backbone.concepts.discovered_up):  # type: ignore[union-attr]
        layer.bias.normal_(0, 0.5, generator=generator)
    return backbone


def backend_of(name: Any, backbone: Backbone, **more: Any) -> Backend:
    return (NativeBackend if name == "native" else TorchBackend)(backbone, **more)


def edit_of(config: Any, num_rows: int, seed: int = 0) -> Edit:
    """Random amounts, of which some are 0, of three known concepts and three discovered ones."""
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    concepts = np.array([9, 30, 2, 11, 80, 5], dtype=np.int32)
    shift, scale, ban = (numbers(num_rows, 6) * rng.integers(0, 2, (num_rows, 6)).astype(np.float32) for _ in range(3))
    mask = np.maximum(numbers(6, config.vocab_size), 0)
    return Edit(concepts, numbers(6, config.width), mask, shift, scale, ban)


def row_of(edit: Edit, row: int) -> Edit:
    one = slice(row, row + 1)
    return replace(edit, shift=edit.shift[one], scale=edit.scale[one], ban=edit.ban[one])


def edited(backbone: Backbone, hidden: np.ndarray, edit: Edit) -> np.ndarray:
    """Hidden states (A, D) after an edit."""
    heads, shape = backbone.concepts, CONCEPTS
    assert heads is not None
    w = {name: weight.float().numpy() for name, weight in heads.state_dict().items()}
    of_known = hidden @ w["known_predictor.weight"].T + w["known_predictor.bias"]
    inner = hidden @ w["discovered_down.weight"].T
    of_found = inner @ w["discovered_up.weight"].T + w["discovered_up.bias"]
    weights = np.zeros((len(hidden), shape.known + shape.discovered), dtype=np.float32)
    for logits, first, num in ((of_known, 0, shape.kept_known), (of_found, shape.known, shape.kept_discovered)):
        clamped = np.clip(logits, -15, 15)
        kept = np.argsort(-clamped, axis=1, kind="stable")[:, :num]
        np.put_along_axis(weights[:, first:], kept, np.take_along_axis(1 / (1 + np.exp(-clamped)), kept, 1), 1)
    amounts = edit.shift + edit.scale * weights[:, edit.concepts]
    out: np.ndarray = hidden + amounts @ edit.write
    return out


def logits_of(backend: Any, hidden: np.ndarray, edit: Edit | None) -> np.ndarray:
    """The logits of edited states (A, D), by the backend's own projection."""
    changed = hidden if edit is None else edited(backbone_of(backend), hidden, edit)
    (answer,) = backend.forward([DraftStep(changed.astype(np.float32))])
    banned = 0 if edit is None or edit.mask is None else edit.ban @ edit.mask
    out: np.ndarray = answer.logits - banned
    return out


def answer_of(backend: Any, forward: Forward, **changes: Any) -> Answer:
    """The answer to a forward with other fields, after which its cache is as before."""
    past = 0 if forward.cache is None else forward.cache.length
    (answer,) = backend.forward([replace(forward, **changes)])
    if forward.cache is not None:
        forward.cache.truncate(past)
    return answer  # type: ignore[no-any-return]


def hidden_of(backend: Any, forward: Forward) -> np.ndarray:
    hidden = answer_of(backend, forward, ask=Hidden(), edit=None, explain=False).hidden
    assert hidden is not None
    return hidden


@pytest.mark.parametrize("name", BACKENDS)
def test_some_concepts_of_these_edits_are_kept_and_some_are_not(backbone: Backbone, name: Any) -> None:
    """Else a weight that is always 0, or never, would do."""
    backend, kept = backend_of(name, backbone), []
    for number in NUMBERS:
        forward = make(backend, number)
        weights = backbone.concepts.weights(torch.from_numpy(hidden_of(backend, forward)))  # type: ignore[union-attr]
        kept.append(weights[:, [9, 2, 5, 11, 30, 80]].numpy() > 0)
    share = np.concatenate(kept).mean(axis=0)
    assert (share[:3].max() > 0.1 and share[:3].min() < 0.9) and (share[3:].max() > 0.1 and share[3:].min() < 0.9)


@pytest.mark.parametrize(("dtype", "int8", "limit"), [("float32", False, 1e-5), ("bfloat16", False, 1e-2)])
@pytest.mark.parametrize("name", BACKENDS)
def test_edited_logits_are_those_of_states_that_numpy_edits(
    backbone: Backbone, name: Any, dtype: str, int8: bool, limit: float
) -> None:
    backend: Any = backend_of(name, in_type(backbone, dtype))
    for number in NUMBERS:
        check_logits(backend, number, limit)


@needs_compiler
def test_quantized_products_leave_the_heads_in_float32(backbone: Backbone) -> None:
    backend: Any = NativeBackend(backbone, "int8")
    for number in NUMBERS[::2]:
        check_logits(backend, number, 2e-2)


@every_isa
def test_edited_logits_are_those_on_every_instruction_set(backbone: Backbone, isa: str) -> None:
    backend: Any = NativeBackend(backbone)
    for number in NUMBERS[::3]:
        check_logits(backend, number, 1e-5)


def check_logits(backend: Any, number: int, limit: float) -> None:
    forward = make(backend, number)
    edit = edit_of(backend.config, len(forward.wanted), number)
    hidden = hidden_of(backend, forward)
    answer = answer_of(backend, forward, ask=Logits(), edit=edit)
    assert answer.logits is not None and answer.evidence is None
    want = logits_of(backend, hidden, edit)
    assert difference(answer.logits, want) < limit
    assert difference(want, logits_of(backend, hidden, None)) > 10 * limit, "the edit does something"


def in_type(backbone: Backbone, dtype: str) -> Backbone:
    out = Backbone(backbone.config).requires_grad_(False).eval()
    out.load_state_dict(backbone.state_dict())
    return out.to(getattr(torch, dtype))


@pytest.mark.parametrize("name", BACKENDS)
def test_of_equal_weights_the_first_are_kept(backbone: Backbone, name: Any) -> None:
    """Equal by their logits, or since they are clamped."""
    tied = in_type(backbone, "float32")
    assert tied.concepts is not None
    tied.concepts.known_predictor.weight.zero_()
    tied.concepts.known_predictor.bias.fill_(0.5)
    tied.concepts.discovered_up.weight.zero_()
    tied.concepts.discovered_up.bias.copy_(torch.linspace(20, 90, CONCEPTS.discovered))
    backend: Any = backend_of(name, tied)
    forward = make(backend, 1)
    hidden = hidden_of(backend, forward)
    one = np.ones((len(hidden), 4), dtype=np.float32)
    numbers = np.random.default_rng(2).standard_normal((4, tied.config.width)).astype(np.float32)
    for concepts, weights in (
        ([0, 3, 4, 10], [1 / (1 + np.exp(-0.5))] * 2 + [0, 0]),
        ([11, 30, 31, 80], [1 / (1 + np.exp(-15))] * 2 + [0, 0]),
    ):
        edit = Edit(np.array(concepts, dtype=np.int32), numbers, None, 0 * one, one, 0 * one)
        got = answer_of(backend, forward, ask=Logits(), edit=edit).logits
        want = logits_of(backend, hidden + np.array(weights) @ numbers, None)
        assert difference(got, want) < 1e-5


class Expected:
    """The answer to an edited forward, from states that NumPy edits and the NumPy reference of draws."""

    def __init__(self, backend: Any, forward: Forward, edit: Edit) -> None:
        self._backend, self._edit, self._rows = backend, edit, hidden_of(backend, forward)
        self.states = self._rows
        ask = forward.ask
        logits = logits_of(backend, self._rows, edit)
        if isinstance(ask, Logits):
            self.answer = Answer(logits=logits)
        elif isinstance(ask, LogProbs):
            self.answer = Answer(log_probs=log_softmax(logits)[np.arange(len(ask.tokens)), ask.tokens])
        elif isinstance(ask, Draws):
            self.answer = drawn(logits, ask.rules, ask.positions, ask.entropy, ask.num_best)
        elif isinstance(ask, SequentialDraws):
            self.answer = self._sequential(ask)
        else:
            assert isinstance(ask, Cycle)
            self.answer = self._cycle(ask, logits)

    def _chain(self, rules: Rules, positions: np.ndarray, rows: range, token: int, state: np.ndarray | None) -> Any:
        for row, position in zip(rows, positions, strict=False):
            (step,) = self._backend.forward([DraftStep(self._rows[row : row + 1], token, state)])
            state = step.hidden
            logits = logits_of(self._backend, state, row_of(self._edit, row))
            made = drawn(logits, rules, np.array([position]))
            assert made.tokens is not None and made.probabilities is not None
            token = int(made.tokens[0])
            yield token, float(made.probabilities[0]), state

    def _sequential(self, ask: SequentialDraws) -> Answer:
        tokens, probabilities, states = list[int](), list[float](), list[np.ndarray]()
        for token, probability, state in self._chain(ask.rules, ask.positions, range(len(self._rows)), 0, None):
            tokens.append(token)
            probabilities.append(probability)
            states.append(state)
            if len(tokens) > 1 and probability < ask.threshold:
                break
        self.states = np.concatenate(states)
        return Answer(tokens=np.array(tokens), probabilities=np.array(probabilities))

    def _cycle(self, ask: Cycle, logits: np.ndarray) -> Answer:
        num = len(ask.draft) + 1
        self.states = self._rows[:num]
        answer = drawn(logits[:num], ask.rules, ask.positions)
        assert answer.tokens is not None
        last = num_agreed(answer.tokens, ask.draft)
        rows = range(num + int(ask.groups[last]), num + int(ask.groups[last + 1]))
        positions, joint = int(ask.positions[last]) + 1 + np.arange(len(rows)), 1.0
        draft = list[int]()
        before = self._rows[last : last + 1]
        for token, probability, _ in self._chain(ask.rules, positions, rows, int(answer.tokens[last]), before):
            joint *= acceptance_of(probability, ask.rules.temperature)
            if joint < ask.worth:
                break
            draft.append(token)
        return replace(answer, draft=np.array(draft, dtype=np.int64))


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("name", BACKENDS)
def test_everything_that_is_drawn_is_drawn_from_the_edited_law(
    backbone: Backbone, drafting: Backbone, name: Any, head: bool
) -> None:
    """Tokens one by one, in sequence, in cycles with their drafts, log-probabilities; and the states, as evidence."""
    backend: Any = backend_of(name, drafting if head else backbone)
    kinds, changed = set[tuple[type, bool]](), 0
    for number in [*NUMBERS, *(number + NUM_KINDS for number in NUMBERS)]:
        forward = make(backend, number)
        edit = edit_of(backend.config, len(forward.wanted), number)
        if isinstance(forward.ask, Cycle):
            forward.ask = replace(forward.ask, draft=agreeing(backend, forward, edit, number // 6 % 3))
        expected = Expected(backend, forward, edit)
        got, want = answer_of(backend, forward, edit=edit, explain=True), expected.answer
        for field, limit in (("tokens", 0), ("logits", 1e-5), ("log_probs", 1e-5), ("probabilities", 1e-4)):
            one, other = getattr(got, field), getattr(want, field)
            assert (one is None) == (other is None)
            assert one is None or (one.shape == other.shape and difference(one, other) <= limit), (number, field)
        if got.draft is not None and not (head and name == "native"):  # there drafts are made of 8-bit numbers
            assert np.array_equal(got.draft, want.draft)  # type: ignore[arg-type]
            kinds.add((Cycle, len(got.draft) > 0 and number // 6 % 3 > 0))
        assert got.evidence is not None and got.evidence.dtype == np.float32
        assert got.evidence.shape == expected.states.shape
        assert difference(got.evidence, expected.states) < 1e-5
        if isinstance(forward.ask, SequentialDraws):
            kinds.add((SequentialDraws, len(got.evidence) > 2))
        plain = answer_of(backend, forward)
        changed += any(
            one is not None and not np.array_equal(one, other)
            for one, other in ((got.tokens, plain.tokens), (got.logits, plain.logits))
        )
    assert changed > 10 and (SequentialDraws, True) in kinds
    assert (Cycle, True) in kinds or (head and name == "native")


def agreeing(backend: Any, forward: Forward, edit: Edit, num: int) -> np.ndarray:
    """A draft (2,) whose first `num` tokens are those that are drawn, and no others."""
    tokens = answer_of(backend, forward, edit=edit).tokens
    assert tokens is not None
    return np.where(np.arange(2) < num, tokens[:2], tokens[:2] + 1)


@needs_compiler
def test_drafts_of_eight_bits_are_of_the_edited_law(drafting: Backbone) -> None:
    """They begin with the tokens of float32 more often than drafts without the edit do."""
    exact, rounded, same, unedited = TorchBackend(drafting), NativeBackend(drafting), 0, 0
    for number in [number for number in range(4 * NUM_KINDS) if number % 6 == 5]:
        forward = make(exact, number)
        if not isinstance(forward.ask, Cycle):
            continue
        edit = edit_of(exact.config, len(forward.wanted), number)
        edit.shift *= 3
        want = answer_of(exact, forward, edit=edit).draft
        plain = answer_of(exact, forward).draft
        got = answer_of(rounded, make(rounded, number), edit=edit).draft
        assert want is not None and got is not None and plain is not None
        if len(want):
            same += want[0] in got[:1]
            unedited += want[0] in plain[:1]
    assert same >= 5 and same > 2 * unedited


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_has_the_same_bits_alone_in_any_batch_and_on_any_number_of_threads(
    drafting: Backbone, dtype: str
) -> None:
    """Edited rows, explained ones, and rows of requests without either beside them."""
    backend: Any = NativeBackend(in_type(drafting, dtype))
    forwards = [make(backend, number) for number in range(NUM_KINDS)]
    for number, one in enumerate(forwards):
        if number % 6 and number % 4:
            one.edit = edit_of(backend.config, len(one.wanted), number)
        one.explain = number % 6 != 0 and number % 3 > 0
    alone = [answer_of(backend, one) for one in forwards]
    together = backend.forward(forwards[:14])
    for one in forwards:
        if one.cache is not None:
            one.cache.truncate(one.cache.length - one.layout.num_clean if one in forwards[:14] else one.cache.length)
    torch.set_num_threads(3)
    try:
        others = backend.forward(forwards[3:])
    finally:
        torch.set_num_threads(1)
    for one, other in [*zip(alone[:14], together, strict=True), *zip(alone[3:], others, strict=True)]:
        assert same_bits(one, other)


@pytest.mark.parametrize("name", BACKENDS)
def test_amounts_of_nothing_and_rows_without_amounts_change_no_bit(backbone: Backbone, name: Any) -> None:
    backend: Any = backend_of(name, backbone)
    for number in NUMBERS:
        forward = make(backend, number)
        edit = edit_of(backend.config, len(forward.wanted), number)
        nothing = replace(edit, shift=0 * edit.shift, scale=0 * edit.scale, ban=0 * edit.ban)
        plain = answer_of(backend, forward)
        assert same_bits(answer_of(backend, forward, edit=nothing), plain)
        assert same_bits(replace(answer_of(backend, forward, explain=True), evidence=None), plain)
        half = replace(edit, shift=edit.shift.copy(), scale=edit.scale.copy(), ban=edit.ban.copy())
        for amounts in (half.shift, half.scale, half.ban):
            amounts[::2] = 0
        logits = [answer_of(backend, forward, ask=Logits(), edit=one).logits for one in (None, half)]
        assert np.array_equal(logits[0][::2], logits[1][::2])  # type: ignore[index]


@pytest.mark.parametrize("name", BACKENDS)
def test_steps_of_a_caller_are_edited_and_explained(drafting: Backbone, name: Any) -> None:
    """Of rows as they are, and of the draft head, whose next state is that before the edit."""
    backend: Any = backend_of(name, drafting)
    rows = hidden_of(backend, make(backend, 1))[:3]
    for step in (DraftStep(rows), DraftStep(rows[:1], 40, rows[1:2])):
        edit = edit_of(backend.config, len(step.rows), 3)
        (plain,) = backend.forward([step])
        (said,) = backend.forward([replace(step, edit=edit, explain=True)])
        assert np.array_equal(said.hidden, plain.hidden) and np.array_equal(said.evidence, plain.hidden)
        assert difference(said.logits, logits_of(backend, plain.hidden, edit)) < 1e-5
        assert plain.evidence is None


@pytest.mark.parametrize("name", BACKENDS)
def test_the_arrays_of_an_edit_may_be_read_only_or_views_and_stay_as_they_are(backbone: Backbone, name: Any) -> None:
    backend: Any = backend_of(name, backbone)
    forward = make(backend, 1)
    edit = edit_of(backend.config, len(forward.wanted))
    arrays = {one.name: getattr(edit, one.name) for one in fields(edit)}
    copies = {name: array.copy() for name, array in arrays.items()}
    views = {name: array.repeat(2, axis=-1)[..., ::2] for name, array in arrays.items()}
    want = answer_of(backend, forward, ask=Logits(), edit=edit)
    for array in arrays.values():
        array.flags.writeable = False
    for other in (edit, Edit(**views)):
        assert same_bits(answer_of(backend, forward, ask=Logits(), edit=other), want)
    assert all(np.array_equal(arrays[name], copies[name]) for name in arrays)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_model_without_heads_takes_what_reads_none(causal: Any, name: Any) -> None:
    backend: Any = backend_of(name, causal.backbone)
    forward = make(backend, 1)
    edit = edit_of(backend.config, len(forward.wanted))
    with pytest.raises(UnsupportedError, match="no concept heads"):
        answer_of(backend, forward, edit=edit)
    with pytest.raises(UnsupportedError, match="no concept heads"):
        backend.forward([DraftStep(hidden_of(backend, forward), edit=edit)])
    only = replace(edit, scale=0 * edit.scale)
    hidden = hidden_of(backend, forward)
    (want,) = backend.forward([DraftStep(hidden + only.shift @ only.write)])
    got = answer_of(backend, forward, ask=Logits(), edit=only).logits
    assert difference(got, want.logits - only.ban @ only.mask) < 1e-5  # type: ignore[arg-type, operator]


@pytest.mark.parametrize("name", BACKENDS)
def test_without_a_mask_nothing_is_banned(backbone: Backbone, name: Any) -> None:
    backend: Any = backend_of(name, backbone)
    forward = make(backend, 1)
    edit = edit_of(backend.config, len(forward.wanted))
    bare, calm = replace(edit, mask=None), replace(edit, ban=0 * edit.ban)
    assert same_bits(*(answer_of(backend, forward, ask=Logits(), edit=one) for one in (bare, calm)))


@pytest.mark.parametrize("name", BACKENDS)
def test_a_head_in_place_of_the_projection_is_edited_and_not_explained(backbone: Backbone, name: Any) -> None:
    headed: Any = backend_of(name, backbone, head=lambda hidden: (backbone.logits(hidden), None))
    plain: Any = TorchBackend(backbone)
    for number in (1, 2):
        forward = make(headed, number)
        edit = edit_of(headed.config, len(forward.wanted))
        got, want = answer_of(headed, forward, edit=edit), answer_of(plain, make(plain, number), edit=edit)
        for one, other in ((got.logits, want.logits), (got.log_probs, want.log_probs)):
            assert one is None or difference(one, other) < 1e-5  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="leave out head"):
            answer_of(headed, forward, explain=True)


@needs_compiler
def test_a_refinement_is_of_the_edited_law(make_model: Any) -> None:
    """Tokens and conditioning; `refine` has a test of its own against NumPy."""
    backbone = make_model(**GEMMA, concepts=CONCEPTS).backbone
    native, torch_ = NativeBackend(backbone), TorchBackend(backbone)
    num, layout = 6, Layout(np.arange(6), np.full(6, 6, dtype=np.int32), 0)
    rules = Rules(temperature=0.7, rng=Counter(5, 0), purpose=1)
    forward = Forward(
        np.arange(40, 46), layout, None, np.arange(num, dtype=np.int32), Refinement(rules, np.arange(num))
    )
    edit = edit_of(backbone.config, num)
    found = [answer_of(one, forward, edit=edit, explain=True) for one in (native, torch_)]
    hidden = hidden_of(torch_, forward)
    heads = backbone.concepts
    weights = heads.weights(torch.from_numpy(hidden)).numpy()[:, edit.concepts]
    changed = hidden + (edit.shift + edit.scale * weights) @ edit.write
    logits = backbone.logits(torch.from_numpy(changed)).numpy() - edit.ban @ edit.mask  # type: ignore[operator]
    for answer in found:
        assert answer.best_tokens is not None and answer.conditioning is not None
        assert answer.best_tokens[:, 0].tolist() == logits.argmax(-1).tolist()
        assert np.array_equal(answer.tokens, found[0].tokens)  # type: ignore[arg-type]
        assert difference(answer.evidence, hidden) < 1e-4  # type: ignore[arg-type]
        want = backbone.conditioning(torch.from_numpy(logits) / 0.7).numpy()
        assert difference(np.asarray(answer.conditioning), want) < 1e-3
    plain = answer_of(torch_, forward)
    assert plain.best_tokens is not None and plain.best_tokens[:, 0].tolist() != logits.argmax(-1).tolist()
