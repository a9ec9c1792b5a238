"""Programs of steering: what they say, what they come to, and what becomes of a text."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch

from concept_models import CATALOG, SHAPE, with_heads
from conftest import GEMMA
from daguerre.canvas import Canvas
from daguerre.decoding.request import Decode
from daguerre.decoding.steering import MOST_NAMED, Operation, Steering, add, controls, forbid
from daguerre.errors import DataError, InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.catalog import Catalog, NamedConcept
from daguerre.models.forward import Logits
from daguerre.models.session import compute
from daguerre.models.wrappers.steering import Steered

BACKENDS = ("torch", "native")
PROMPT = "def area(width, height):\n    return "
AMOUNTS = ("shift", "scale", "ban")


@pytest.fixture(scope="module", params=BACKENDS)
def model(make_model: Callable[..., Model], request: pytest.FixtureRequest) -> Model:
    return with_heads(make_model, request.param)


@pytest.fixture(scope="module")
def plain(make_model: Callable[..., Model]) -> Model:
    return with_heads(make_model)


def operation(kind: Any, *concepts: str | int, **more: Any) -> Operation:
    return Operation(kind=kind, concepts=concepts, **more)


def amounts_of(model: Model, program: Steering, canvas: Canvas, positions: list[int]) -> list[dict[str, Any]]:
    """What a program comes to, as a dictionary from concepts to (shift, scale, ban) for each position."""
    found = controls(program, model.denoiser.heads, CATALOG)
    arrays = found.at(canvas, np.array(positions))
    assert all(array.dtype == np.float32 and array.shape == (len(positions), len(found.concepts)) for array in arrays)
    return [
        {name: dict(zip(found.concepts.tolist(), array[row].tolist(), strict=True)) for name, array in named}
        for row in range(len(positions))
        for named in [list(zip(AMOUNTS, arrays, strict=True))]
    ]


def half_open(committed: int = 0) -> Canvas:
    """Two gaps, [2, 6) and [8, 14), of which the first tokens are committed."""
    opened = np.zeros(15, dtype=bool)
    gaps = np.r_[2:6, 8:14]
    opened[gaps[committed:]] = True
    return Canvas(np.full(15, 20), opened, ((2, 6), (8, 14)), (2, 14))


def peak(model: Model, concept: int) -> float:
    """By how much a concept's vector raises its top token above the mean of the tokens that may be predicted."""
    backbone = model.backbone
    assert backbone.concepts is not None
    logits = backbone.logits(backbone.concepts.vectors(torch.tensor([concept])))[0]
    return float(logits.max() - logits[torch.isfinite(logits)].mean())


def test_operations_change_a_weight_one_after_the_other(plain: Model) -> None:
    """Programs of several operations on one concept, against the weights that each leaves, computed one by one."""
    rng = np.random.default_rng(0)
    top = peak(plain, 1)
    for _ in range(40):
        steps = [
            (kind, float(rng.uniform(0, 1) if kind == "suppress" else rng.uniform(-2, 2)))
            for kind in rng.choice(["add", "suppress", "set"], size=rng.integers(1, 5))
        ]
        program = Steering(tuple(operation(kind, "for_loop", strength=strength) for kind, strength in steps))
        (found,) = amounts_of(plain, program, half_open(), [3])
        for weight in (0.0, 0.7):
            after = weight
            for kind, strength in steps:
                after = {"add": after + strength / top, "suppress": (1 - strength) * after, "set": strength}[kind]
            assert (1 + found["scale"][1]) * weight + found["shift"][1] == pytest.approx(after, abs=1e-5)


def test_a_later_set_overrides_an_earlier_add_and_a_later_add_does_not(plain: Model) -> None:
    added, fixed = operation("add", 3, strength=5.0), operation("set", 3, strength=0.25)
    (first,) = amounts_of(plain, Steering((added, fixed)), half_open(), [3])
    assert (first["shift"][3], first["scale"][3]) == (0.25, -1)
    (last,) = amounts_of(plain, Steering((fixed, added)), half_open(), [3])
    assert last["shift"][3] == pytest.approx(0.25 + 5 / peak(plain, 3))


def test_several_concepts_are_steered_at_once_each_alike(plain: Model) -> None:
    program = Steering((operation("add", "loop", "discovered 3", strength=2.0), operation("suppress", "call")))
    (found,) = amounts_of(plain, program, half_open(), [9])
    assert set(found["shift"]) == {0, 2, 11}
    assert found["shift"][11] == pytest.approx(2 / peak(plain, 11))
    assert found["shift"][2] == 0
    assert found["scale"] == {0: 0, 2: -1, 11: 0}


def steered_logits(model: Model, program: Steering, canvas: Canvas, position: int) -> tuple[np.ndarray, np.ndarray]:
    """The logits of a position, float64 (V,), without the program and with it."""
    out = []
    for denoiser in (model.denoiser, Steered(model.denoiser, controls(program, model.denoiser.heads, CATALOG))):
        answer = compute(
            denoiser.session(canvas, "none").ask(canvas, np.array([position]), Logits()), model.denoiser.backend
        )
        assert answer.logits is not None
        out.append(answer.logits[0].astype(np.float64))
    return out[0], out[1]


def canvas_of(model: Model, num: int = 6) -> Canvas:
    ids = [*model.config.first, *model.tokenizer.encode(PROMPT)]
    canvas = Canvas.lay_out([ids, []], [num], model.config.placeholder)
    return canvas.at(canvas.gaps[0])


def test_adding_raises_the_logit_of_the_concepts_top_token_by_the_strength(model: Model) -> None:
    canvas = canvas_of(model)
    at = canvas.gaps[0][0]
    heads, backbone = model.backbone.concepts, model.backbone
    assert heads is not None
    for concept, strength in ((1, 3.0), (11, -2.0)):
        top = int(backbone.logits(heads.vectors(torch.tensor([concept])))[0].argmax())
        before, after = steered_logits(model, add(concept, strength), canvas, at)
        fine = np.isfinite(before)
        mean = (after[fine] - before[fine]).mean()
        assert after[top] - before[top] - mean == pytest.approx(strength, abs=1e-4)


def test_forbidding_takes_the_concept_out_and_bans_its_tokens_without_helping_others(model: Model) -> None:
    """Against W (h - w K) - b relu(P) / peak, where P is W K less its mean, from the hidden state itself."""
    canvas = canvas_of(model)
    at = canvas.gaps[0][0]
    backbone, heads = model.backbone, model.backbone.concepts
    assert heads is not None
    before, after = steered_logits(model, forbid("for_loop", strength=7.0), canvas, at)
    vector = heads.vectors(torch.tensor([1]))
    promoted = backbone.logits(vector)[0].double().numpy()
    fine = np.isfinite(promoted)
    hidden = np.linalg.lstsq(backbone.projection.double().numpy()[fine], before[fine], rcond=None)[0]
    weight = float(heads.weights(torch.from_numpy(hidden).float()[None])[0, 1])
    above = promoted[fine] - promoted[fine].mean()
    banned = 7.0 * np.maximum(above, 0) / above.max()
    assert banned.max() == pytest.approx(7.0)
    assert (banned >= 0).all()
    np.testing.assert_allclose(after[fine], before[fine] - weight * promoted[fine] - banned, atol=2e-4)


def test_a_span_is_a_gap_or_a_run_of_tokens_of_all_gaps(plain: Model) -> None:
    canvas = half_open()

    def steered(span: Any) -> list[int]:
        program = add(0, 1.0, span=span)
        found = amounts_of(plain, program, canvas, list(range(20)))
        return [position for position, amounts in enumerate(found) if amounts["shift"][0]]

    assert steered(None) == list(range(20))  # also where a block has rows behind the end
    assert steered(0) == [2, 3, 4, 5]
    assert steered(1) == [8, 9, 10, 11, 12, 13]
    assert steered(2) == []
    assert steered((1, 6)) == [3, 4, 5, 8, 9]


def test_schedules_read_how_much_is_committed(plain: Model) -> None:
    program = Steering(
        (
            operation("add", 0, strength=4.0, schedule="until", tokens=3),
            operation("add", 1, strength=4.0, schedule="fade"),
            operation("set", 2, strength=0.5, schedule="fade"),
            operation("forbid", 3, strength=10.0, schedule="fade"),
        )
    )
    for committed in range(10):
        (found,) = amounts_of(plain, program, half_open(committed), [13])
        left = 1 - committed / 10
        assert found["shift"][0] == pytest.approx(4.0 / peak(plain, 0) * (committed < 3))
        assert found["shift"][1] == pytest.approx(4.0 / peak(plain, 1) * left)
        assert (found["shift"][2], found["scale"][2]) == (pytest.approx(0.5 * left), pytest.approx(-left))
        assert (found["scale"][3], found["ban"][3]) == (pytest.approx(-left), pytest.approx(10 * left))
    assert not program.steady
    assert forbid("call").steady


def test_json_is_canonical_and_read_back() -> None:
    program = Steering(
        (
            operation("add", "for_loop", 3, strength=2, span=[0, 4], schedule="until", tokens=7),
            operation("forbid", "eval_exec"),
        )
    )
    text = program.to_json()
    assert Steering.from_json(text) == program
    assert Steering.from_json(json.dumps(json.loads(text), indent=3)).to_json() == text
    assert Steering.from_json(json.dumps(json.loads(text)["operations"])) == program
    assert text.index('"operations"') < text.index('"version"')
    assert ": " not in text


WRONG: list[tuple[str, type[Exception], str]] = [
    ("{", DataError, "is not JSON"),
    ("3", DataError, "is not a JSON object"),
    ('{"version":2,"operations":[]}', DataError, "version 2 and 1 is read"),
    ('{"version":1,"ops":[]}', DataError, "no key 'ops'"),
    ('{"version":1}', InputError, "steer must be a list of operations"),
    ('[{"kind":"ad","concepts":["a"]}]', InputError, "did you mean 'add'"),
    ('[{"kind":"add","concept":["a"]}]', InputError, "did you mean 'concepts'"),
    ('[{"kind":"add"}]', InputError, "needs 'concepts'"),
    ('[{"kind":"add","concepts":["a"]}]', InputError, "add needs a strength: give one in logits"),
    ('[{"kind":"set","concepts":["a"]}]', InputError, "set needs a strength: give one the weight"),
    ('[{"kind":"add","concepts":["a"],"strength":"4"}]', InputError, "must be a finite number"),
    ('[{"kind":"add","concepts":["a"],"strength":NaN}]', InputError, "must be a finite number"),
    ('[{"kind":"add","concepts":["a"],"strength":true}]', InputError, "must be a finite number"),
    ('[{"kind":"add","concepts":["a"],"strength":-1e30}]', InputError, "from -1,000,000 to 1,000,000"),
    (f'[{{"kind":"set","concepts":["a"],"strength":1{"0" * 400}}}]', InputError, "from -1,000,000 to 1,000,000"),
    ('[{"kind":["add"],"concepts":["a"],"strength":1}]', InputError, "unknown kind of steering"),
    ('[{"kind":"suppress","concepts":["a"],"strength":1.5}]', InputError, "is a share, 0 to 1, not 1.5"),
    ('[{"kind":"forbid","concepts":["a"],"strength":0}]', InputError, "above 0, not 0"),
    ('[{"kind":"forbid","concepts":[]}]', InputError, "names or numbers of one concept or more"),
    ('[{"kind":"forbid","concepts":[1.5]}]', InputError, "names or numbers of one concept or more"),
    ('[{"kind":"forbid","concepts":["a"],"span":[3,3]}]', InputError, "a span is the number of a gap"),
    ('[{"kind":"forbid","concepts":["a"],"span":-1}]', InputError, "a span is the number of a gap"),
    ('[{"kind":"forbid","concepts":["a"],"schedule":"until"}]', InputError, "give both or neither"),
    ('[{"kind":"forbid","concepts":["a"],"tokens":3}]', InputError, "give both or neither"),
    ('[{"kind":"forbid","concepts":["a"],"schedule":"until","tokens":0}]', InputError, "from 1 up or None, not 0"),
    ('[{"kind":"forbid","concepts":["a"],"schedule":"linear"}]', InputError, "unknown schedule of steering"),
    (
        '[{"kind":"forbid","concepts":["a"]},{"kind":"add","concepts":["b","a"],"strength":1}]',
        InputError,
        "forbids 'a' and adds it",
    ),
]


def test_a_wrong_program_is_refused_in_one_line(subtests: pytest.Subtests) -> None:
    for given, error, said in WRONG:
        with subtests.test(given[:80]):
            with pytest.raises(error, match=said) as caught:
                Steering.from_json(given)
            assert "\n" not in str(caught.value)


def test_what_is_forbidden_in_one_place_may_be_added_in_another() -> None:
    apart = operation("forbid", "a", span=0), operation("add", "a", strength=1.0, span=1)
    assert len(Steering(apart).operations) == 2
    runs = operation("forbid", "a", span=(0, 4)), operation("add", "a", strength=1.0, span=(4, 8))
    assert len(Steering(runs).operations) == 2
    with pytest.raises(InputError, match="forbids 'a' and adds it"):
        Steering((runs[0], operation("add", "a", strength=1.0, span=(3, 8))))
    by_number = Steering((operation("forbid", "for_loop"), operation("set", 1, strength=1.0)))
    with pytest.raises(InputError, match="forbids 1 and sets it"):
        by_number.resolved(CATALOG)


def test_what_is_refused_as_a_conflict_is_what_two_operations_disagree_about() -> None:
    """Beside every pair of operations, one after the other."""
    kinds, spans = (
        [("add", 1.0), ("set", 1.0), ("suppress", 1.0), ("forbid", 2.0)],
        [None, 0, 1, (0, 2), (2, 4), (1, 3)],
    )
    random, refused = np.random.default_rng(0), 0
    for _ in range(300):
        drawn = [(kinds[random.integers(4)], random.choice(4, 2).tolist(), spans[random.integers(6)]) for _ in range(3)]
        program = [Operation(kind=kind, concepts=at, strength=s, span=where) for (kind, s), at, where in drawn]  # type: ignore[arg-type]
        wrong = any(
            {one.kind, other.kind} in ({"forbid", "add"}, {"forbid", "set"})
            and set(one.concepts) & set(other.concepts)
            and shared(one.span, other.span)
            for one, other in combinations(program, 2)
        )
        refused += wrong
        try:
            Steering(tuple(program))
        except InputError:
            assert wrong
        else:
            assert not wrong
    assert 50 < refused < 250


def shared(one: Any, other: Any) -> bool:
    """Whether spans of tokens have one in common, or gaps are the same; a gap may hold any token."""
    sets = [set(range(*span)) if isinstance(span, tuple) else span for span in (one, other)]
    if None in sets or isinstance(one, int) != isinstance(other, int):
        return True
    return sets[0] == sets[1] if isinstance(one, int) else bool(sets[0] & sets[1])


def test_a_program_names_a_bounded_number_of_concepts() -> None:
    places = [(2 * n, 2 * n + 1) for n in range(MOST_NAMED // 2)]
    several = [Operation(kind="forbid", concepts=("a",), span=place) for place in places]
    several += [Operation(kind="add", concepts=("a",), strength=1.0, span=(b, b + 1)) for _, b in places]
    assert len(Steering(tuple(several)).operations) == MOST_NAMED
    many = Operation(kind="forbid", concepts=tuple(range(MOST_NAMED + 1)))
    for program in ([*several, Operation(kind="forbid", concepts=("b",))], [many]):
        with pytest.raises(InputError, match="name at most 1,000 concepts in all, not 1,001: leave some out"):
            Steering(tuple(program))


def test_a_concept_that_promotes_nothing_cannot_be_steered_in_logits(make_model: Callable[..., Model]) -> None:
    model = make_model(concepts=SHAPE)
    with torch.no_grad():
        model.backbone.concepts.known_embedding.weight[1] = 0  # type: ignore[union-attr]
    for program in (add("for_loop", 1.0), forbid("for_loop")):
        with pytest.raises(InputError, match="'for_loop' promotes no token"):
            controls(program, model.denoiser.heads, CATALOG)
    controls(Steering((operation("suppress", "for_loop"),)), model.denoiser.heads, CATALOG)


def test_a_program_is_replayed_from_the_json_of_a_result(model: Model) -> None:
    steer = [{"kind": "add", "concepts": ["loop"], "strength": 6}, {"kind": "suppress", "concepts": ["call"]}]
    first = model.generate(PROMPT, 12, steer=steer, forbid=["import"], temperature=0.8, seed=3)
    assert first.text != model.generate(PROMPT, 12, temperature=0.8, seed=3).text
    assert first.steering is not None
    again = model.generate(PROMPT, 12, steer=Steering.from_json(first.steering.to_json()), temperature=0.8, seed=3)
    assert (again.text, again.steering) == (first.text, first.steering)
    assert model.generate(PROMPT, 4).steering is None


def test_no_operation_changes_nothing(model: Model) -> None:
    plain = model.generate(PROMPT, 8)
    for steer in ([], Steering(), [{"kind": "add", "concepts": [0], "strength": 0}]):
        assert model.generate(PROMPT, 8, steer=steer).text == plain.text


def test_forbid_is_short_for_operations_that_forbid(model: Model) -> None:
    operations = [{"kind": "forbid", "concepts": ["loop", "call"]}]
    for how in ({"mode": "ar"}, {"mode": "block", "temperature": 0.7}):
        short = model.generate(PROMPT, 10, forbid=["loop", "call"], **how)
        assert short.text == model.generate(PROMPT, 10, steer=operations, **how).text
        assert (
            model.generate(PROMPT, 10, forbid="loop", **how).text
            == model.generate(PROMPT, 10, forbid=("loop",), **how).text
        )


def test_a_forbidden_concepts_top_tokens_are_not_written(model: Model) -> None:
    """A concept whose vector is what the model writes: its token is gone with a strength that beats its lead."""
    backbone = model.backbone
    assert backbone.concepts is not None
    token = model.generate(PROMPT, 1, heal=False).tokens[0].id
    row = backbone.projection[token].float()
    with torch.no_grad():
        old = backbone.concepts.known_embedding.weight[4].clone()
        backbone.concepts.known_embedding.weight[4] = row / row.norm() ** 2
    try:
        free = model.generate(PROMPT, 16, heal=False)
        forbidden = model.generate(PROMPT, 16, heal=False, steer=forbid("import", strength=60.0))
    finally:
        with torch.no_grad():
            backbone.concepts.known_embedding.weight[4] = old
    assert token in [one.id for one in free.tokens]
    assert token not in [one.id for one in forbidden.tokens]


def test_speculation_draws_the_steered_distribution(make_model: Callable[..., Model]) -> None:
    programs = (add("for_loop", 5.0, schedule="until", tokens=4), add(11, 6.0, schedule="fade"), add(0, 4.0))
    for backend in BACKENDS:
        model = with_heads(make_model, backend, draft_head=24)  # type: ignore[arg-type]
        for seed, program in product(range(3), programs):
            how: dict[str, Any] = {"steer": program, "temperature": 1.0, "seed": seed, "heal": False}
            slow = model.generate(PROMPT, 14, mode="ar", **how)
            assert model.generate(PROMPT, 14, mode="speculative", **how).text == slow.text, (backend, seed, program)


def test_exactly_forbidden_texts_do_not_occur(plain: Model) -> None:
    written = [plain.generate(PROMPT, 12, temperature=1.0, seed=seed).text[1:4] for seed in range(3)]
    names = Catalog((NamedConcept(number=0, name="habit", texts=tuple(written)),), SHAPE.known, SHAPE.discovered)
    model = Model(plain.backbone, plain.tokenizer, "torch", concepts=names)
    steered = operation("forbid", "habit", strength=0.001)
    for seed in range(3):
        free = model.generate(PROMPT, 12, temperature=1.0, seed=seed, steer=[steered]).text
        assert any(text in free for text in written)
        how: dict[str, Any] = {"forbid": ["habit"], "forbid_exactly": True, "temperature": 1.0, "seed": seed}
        exact = model.generate(PROMPT, 12, **how).text
        assert exact
        assert not any(text in exact for text in written)
    with pytest.raises(InputError, match="every instance of the concept 'loop'"):
        plain.generate(PROMPT, 4, forbid=["eval_exec", "loop"], forbid_exactly=True)


def test_wrong_options_are_refused_in_one_line(subtests: pytest.Subtests) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"steer": {"kind": "add"}}, "steer must be a list of operations"),
        ({"steer": "add"}, "steer must be a list of operations"),
        ({"forbid": [""]}, "forbid must be a string or several"),
        ({"explain": 1}, "explain must be True or False"),
        ({"forbid_exactly": True}, "forbid_exactly is not used without forbid"),
        ({"forbid": ["loop"], "steer": [{"kind": "add", "concepts": ["loop"], "strength": 1}]}, "forbids 'loop' and"),
    ]
    for options, said in wrong:
        with subtests.test(str(options)):
            with pytest.raises(InputError, match=said) as caught:
                Decode(**options)
            assert "\n" not in str(caught.value)


def test_a_model_without_heads_says_so(causal: Model) -> None:
    needing: dict[str, Any] = {"explain": True, "forbid": ["loop"], "steer": add(1, 2.0)}
    for needed_by, value in needing.items():
        said = f"no concept heads, which {needed_by} needs: use one that has"
        with pytest.raises(UnsupportedError, match=said) as caught:
            causal.generate(PROMPT, 4, **{needed_by: value})
        assert "\n" not in str(caught.value)


def test_a_name_that_the_model_does_not_know_is_refused(plain: Model) -> None:
    for options in ({"forbid": ["for_lop"]}, {"steer": add("for_lop", 1.0)}):
        with pytest.raises(InputError, match="did you mean 'for_loop'"):
            plain.generate(PROMPT, 4, **options)  # type: ignore[arg-type]


def test_a_span_behind_the_gaps_is_refused(plain: Model) -> None:
    spans: dict[Any, str] = {1: "there is no gap 1", (40, 50): r"the span \[40, 50\) begins behind"}
    for span, said in spans.items():
        with pytest.raises(InputError, match=said) as caught:
            plain.generate(PROMPT, 8, steer=add(0, 1.0, span=span))
        assert "\n" not in str(caught.value)
    plain.fill("<gap> = <gap>\n", 4, steer=add(0, 1.0, span=1))


MODES: dict[str, dict[str, Any]] = {
    "ar": {},
    "speculative": {},
    "block": {},
    "full": {},
    "beam": {},
    "ancestral": {"context": "full", "shift": False, "process": "uniform", "mask_id": None, "time_input": True},
}


def test_every_mode_is_steered_or_says_why_not(subtests: pytest.Subtests, make_model: Callable[..., Model]) -> None:
    for mode, facts in MODES.items():
        with subtests.test(mode):
            check_steering(with_heads(make_model, **facts), mode)


def check_steering(model: Model, mode: str) -> None:
    how: dict[str, Any] = {"mode": mode, "seed": 1} | ({"steps": 6} if mode == "ancestral" else {"heal": False})

    def run(**more: Any) -> str:
        if mode == "beam":
            return model.infill(PROMPT, "\nx = 1\n", 4, **how, **more).text
        return model.generate(PROMPT, 8, **how, **more).text

    free = run()
    assert run(explain=True) == free
    assert run(steer=add(0, 12.0)) != free
    if mode == "beam":
        with pytest.raises(UnsupportedError, match="leave out the spans of steer, or choose another mode"):
            run(steer=add(0, 12.0, span=(0, 4)))
    else:
        assert run(steer=add(0, 12.0, span=(0, 4))) != free
    if mode in ("beam", "ancestral"):
        with pytest.raises(UnsupportedError, match="commits nothing before the end"):
            run(steer=add(0, 12.0, schedule="fade"))
    else:
        assert run(steer=add(0, 12.0, schedule="fade")) != free


@pytest.mark.parametrize("backend", BACKENDS)
def test_canvases_that_are_drawn_again_are_steered(make_model: Callable[..., Model], backend: Any) -> None:
    model = with_heads(make_model, backend, **GEMMA)
    how: dict[str, Any] = {"mode": "renoise", "seed": 1, "steps": 4, "heal": False}
    free = model.generate(PROMPT, 8, **how).text
    assert model.generate(PROMPT, 8, steer=add(0, 12.0), **how).text != free
    assert model.generate(PROMPT, 8, steer=add(0, 12.0, span=(2, 3)), **how).text != free
    with pytest.raises(UnsupportedError, match="caps its logits"):
        model.generate(PROMPT, 8, explain=True, **how)
    with pytest.raises(UnsupportedError, match="commits nothing before the end"):
        model.generate(PROMPT, 8, steer=add("loop", 8.0, schedule="until", tokens=32), **how)


def test_steering_does_not_choose_another_mode(plain: Model) -> None:
    free = plain.infill(PROMPT, "\nx = 1\n", 4).usage.mode
    assert free == "beam"
    for options in ({"explain": True}, {"forbid": ["loop"]}, {"steer": add(0, 3.0)}):
        assert plain.infill(PROMPT, "\nx = 1\n", 4, **options).usage.mode == free  # type: ignore[arg-type]
    for depending in (add("loop", 8.0, schedule="until", tokens=32), add(0, 3.0, span=0), add(0, 3.0, span=(1, 3))):
        assert plain.infill(PROMPT, "\nx = 1\n", 4, steer=depending).usage.mode == "block"
    free = plain.generate(PROMPT, 4).usage.mode
    assert plain.generate(PROMPT, 4, steer=add(0, 3.0, span=0)).usage.mode == free


def test_spans_have_no_place_where_text_moves(make_model: Callable[..., Model]) -> None:
    model = with_heads(make_model, context="full", expand_id=20)
    free = model.generate(PROMPT, 8, mode="expand", seed=1)
    assert model.generate(PROMPT, 8, mode="expand", seed=1, explain=True).text == free.text
    assert model.generate(PROMPT, 8, mode="expand", seed=1, steer=add(0, 12.0)).text != free.text
    with pytest.raises(UnsupportedError, match='mode "expand" moves text'):
        model.generate(PROMPT, 8, mode="expand", steer=add(0, 1.0, span=0))
