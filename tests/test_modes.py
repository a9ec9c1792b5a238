"""The table of modes: which one a request gets, how one is added, and that nothing else knows their names."""

from __future__ import annotations

import ast
import copy
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import daguerre
from daguerre.canvas import Canvas, Decision
from daguerre.decoding.denoise import heal
from daguerre.decoding.modes import MODES, SEARCHED_TOKENS, choose_mode
from daguerre.decoding.modes.block import DENOISING
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.pins import Pin
from daguerre.decoding.plan import SAMPLING, Mode, Steps
from daguerre.decoding.request import Decode
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.config import FimTokens, ModelConfig
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies import POLICIES, Policy, Progress
from daguerre.sampling.policies.base import commit, commit_all
from daguerre.sampling.random import Counter
from daguerre.sampling.rules import complete
from daguerre.trace import Event
from plans import make_plan

SOURCE = Path(daguerre.__file__).parent

# ---- the mode of a request that names none ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def configs(models: dict[str, Model], drafting: Model, make_model: Any) -> dict[str, ModelConfig]:
    noise = {"context": "full", "shift": False, "time_input": True, "null_id": None}
    made = {process: make_model(process=process, **noise) for process in ("uniform", "hybrid")}
    return {name: model.config for name, model in {**models, "drafting": drafting, **made}.items()}


def chosen(config: ModelConfig, infilling: bool = False, denoise: bool = False, **options: Any) -> str:
    return choose_mode(Decode(**options), config, infilling, denoise)


BEAM: list[dict[str, Any]] = [{"num_beams": 4}, {"no_repeat_context_lines": True}]
DENOISES: list[dict[str, Any]] = [
    {"block_size": 4},
    {"policy": "random"},
    {"threshold": 0.5},
    {"policy": "factor", "factor": 2.0},
    {"policy": "entropy_bounded", "gamma": 0.5},
    {"policy": "confidence", "steps": 3},
    {"policy": "random", "schedule": "time"},
    {"policy": "margin", "rank_temperature": 0.5},
    {"rank_by": "drawn"},
    {"revise": 1},
    {"end_of_text": "plain"},
    {"policy": "joint_threshold", "edit_threshold": 0.3},
    {"policy": "entropy_threshold", "entropy_threshold": 0.3, "position_penalty": 0.1},
]
SLIDES: dict[str, Any] = {"sliding": True}
SHAPES: list[dict[str, Any]] = [
    {"regex": "a+"},
    {"schema": {"type": "integer"}},
    {"choices": ["a", "b"]},
    {"keywords": "a"},
    {"forbidden": "a"},
    {"ending": "a"},
    {"pins": [Pin("a", at=0)]},
]
LOSSLESS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 3},
    {"stop": "\n", "min_tokens": 3, "logit_bias": {20: 1.0}, "n": 2, "seed": 3},
    {"guidance": 2.0, "guidance_schedule": "linear", "negative": "import re"},
    {"cache": "none"},
]


def test_a_process_that_replaces_tokens_is_undone(configs: dict[str, ModelConfig]) -> None:
    for name in ("uniform", "hybrid"):
        assert {chosen(configs[name], infilling) for infilling in (False, True)} == {"ancestral"}
        assert chosen(configs[name], denoise=True, num_beams=4) == "ancestral"


def test_an_option_of_a_beam_asks_for_a_beam(configs: dict[str, ModelConfig]) -> None:
    for options in BEAM:
        assert {chosen(configs[name], True, **options) for name in ("causal", "drafting", "full")} == {"beam"}
        assert chosen(configs["drafting"], threshold=0.5, **options) == "beam"


def test_an_option_of_denoising_asks_for_blocks(configs: dict[str, ModelConfig]) -> None:
    assert {name for options in (*DENOISES, SLIDES) for name in options} == DENOISING | {"block_size", "sliding"}
    assert chosen(configs["causal"], **SLIDES) == chosen(configs["reordered"], **SLIDES) == "block"
    for name in ("causal", "drafting", "full", "block"):
        for options in DENOISES:
            assert {chosen(configs[name], infilling, **options) for infilling in (False, True)} == {"block"}
        assert chosen(configs[name], denoise=True) == "block"
        assert chosen(configs[name], denoise=True, regex="a+") == "block"


def test_a_gap_gets_blocks_and_so_does_a_model_without_an_autoregressive_distribution(
    configs: dict[str, ModelConfig],
) -> None:
    for options in (*LOSSLESS, *SHAPES):
        assert {chosen(configs[name], True, **options) for name in ("causal", "drafting", "full")} == {"block"}
        for name in ("causal_unshifted", "full", "full_unshifted", "block", "block_shifted"):
            assert chosen(configs[name], **options) == "block"


def test_a_completion_is_speculative_and_ar_under_a_constraint(
    configs: dict[str, ModelConfig],
) -> None:
    for options in LOSSLESS:
        assert chosen(configs["drafting"], **options) == chosen(configs["causal"], **options) == "speculative"
    for options in SHAPES:
        assert chosen(configs["drafting"], **options) == chosen(configs["causal"], **options) == "ar"


def test_one_short_gap_is_searched_by_beam_where_no_option_asks_for_denoising(configs: dict[str, ModelConfig]) -> None:
    def mode(name: str, denoise: bool = False, **options: Any) -> str:
        return choose_mode(Decode(**options), configs[name], True, denoise, searches=True)

    assert mode("causal") == mode("drafting", seed=3) == mode("causal", cache="none") == "beam"
    for options in (*DENOISES, *SHAPES, {"temperature": 1.0}, {"min_tokens": 2}, {"n": 2}, {"stop": "x"}):
        assert mode("causal", **options) == "block", options
    assert mode("causal", denoise=True) == "block"
    for name, config in configs.items():
        if not config.can_draft:
            assert mode(name) == chosen(config, True)


def test_the_modes_that_are_named_in_place_of_ar_serve_the_model(
    subtests: pytest.Subtests, models: dict[str, Model]
) -> None:
    for name in ("causal_unshifted", "full", "full_unshifted", "block", "block_shifted", "reordered"):
        with subtests.test(name):
            with pytest.raises(UnsupportedError, match="needs causal context and a shift") as error:
                models[name].generate("x", 4, mode="ar")
            named = re.findall(r'"(\w+)"', str(error.value).split(": use")[1])
            assert named
            for mode in named:
                assert models[name].generate("x", 4, mode=mode).usage.mode == mode


def test_which_gaps_are_searched_by_default(causal: Model) -> None:
    before, after = "def f(a):\n    return ", "\n\n\nprint(f(1))\n"
    assert causal.infill(before, after, 6).usage.mode == "beam"
    assert causal.infill(before, after, 6, seed=2).text == causal.infill(before, after, 6, mode="beam").text
    for options in ({"timeout": 60.0}, {"draft": "a"}, {"search_length": True}, {"min_tokens": 2}):
        assert causal.infill(before, after, 6, **options).usage.mode == "block", options
    assert causal.infill(before, after, SEARCHED_TOKENS + 1).usage.mode == "block"
    assert causal.fill(before + "<gap>" + after, 6).usage.mode == "beam"
    assert causal.fill(before + "<gap>, <gap>" + after, 6).usage.mode == "block"
    assert causal.edit(before + "x" + after, [(len(before), len(before) + 1)], 6).usage.mode == "beam"


def test_a_mode_that_is_named_stays(causal: Model) -> None:
    for mode in ("ar", "block", "full", "speculative"):
        decode = Decode(mode=mode)
        assert decode.resolved(causal.config, False) is decode
    assert Decode(threshold=0.5).resolved(causal.config, False) == Decode(mode="block", threshold=0.5)
    with pytest.raises(InputError, match="temperature is not used in mode 'beam'"):
        causal.infill("x", "y", 4, num_beams=4, temperature=1.0)


@pytest.mark.parametrize("name", ["causal", "drafting"])
def test_a_completion_has_the_tokens_of_ar_by_default(name: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    for options in (*LOSSLESS, *SHAPES, {"draft": "import os\nimport re\n"}):
        default, by_name = (model.generate("x = impo", 16, **options, **mode) for mode in ({}, {"mode": "ar"}))
        for one, other in zip(default.choices, by_name.choices, strict=True):
            assert [token.id for token in one.tokens] == [token.id for token in other.tokens], options
            assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
        *_, last = model.stream("x = impo", 16, **{k: v for k, v in options.items() if k != "n"})
        assert last.text == default.text
    plan = make_plan(model.config, model.tokenizer, Decode(), "x", None, 8, None)
    assert plan.decode.mode == "speculative"


# ---- one entry adds a mode, and one a policy -------------------------------------------------------------------------


class Pairs(Mode):
    """Two tokens a forward, whatever they are."""

    name = "pairs"
    options = SAMPLING
    infills = False

    def check_model(self, config: ModelConfig) -> None:
        super().check_model(config)
        if config.context == "block":
            raise UnsupportedError('mode "pairs" knows no blocks: use mode "block"')

    def span_size(self, settings: DecodeOptions, config: ModelConfig, max_tokens: int, infilling: bool) -> int:
        return 2

    def bound(self, plan: Any) -> int:
        return sum(gap.healing.num_tokens for gap in plan.gaps) + plan.num_spans

    def run(self, run: Any, canvas: Canvas) -> Steps:
        canvas = yield from heal(run, canvas)
        for span in run.plan.spans(canvas):
            if run.has_ended(canvas):
                break
            canvas, rules = canvas.at(span), run.plan.rules(canvas)
            step = run.counts.forwards
            proposals = yield from run.sampler.propose(run.session, canvas, rules, step)
            decision = complete(rules, canvas, commit_all(proposals))
            canvas = canvas.apply(decision)
            yield Event(step, decision, canvas)
        return canvas


def test_one_entry_adds_a_mode(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="unknown mode 'pairs'"):
        Decode(mode="pairs")
    monkeypatch.setitem(MODES, "pairs", Pairs())
    for name in ("causal", "causal_unshifted", "full"):
        model, options = models[name], {"mode": "pairs", "temperature": 1.0, "seed": 2, "min_tokens": 9}
        plan = make_plan(model.config, model.tokenizer, Decode(**options), "impo", None, 9, None)
        result = model.generate("impo", 9, **options)
        assert (result.finish_reason, len(result.tokens)) == ("length", 9)
        assert result.usage.forwards == len(result.trace.steps) <= plan.max_forwards
        assert max(len(step.decision) for step in result.trace.steps) == 2
        *events, last = model.stream("impo", 9, **options)
        assert last.text == last.committed == result.text
        assert len(events) == len(result.trace.steps)
        assert all(last.text.startswith(event.committed) for event in events)
        several = model.generate("impo", 9, n=3, **options).choices
        assert several[0].text == result.text
        assert len({one.text for one in several}) > 1
    with pytest.raises(InputError, match="policy is not used in mode 'pairs'"):
        Decode(mode="pairs", policy="random")
    with pytest.raises(UnsupportedError, match='mode "pairs" cannot infill'):
        models["causal"].infill("a", "b", 4, mode="pairs")
    with pytest.raises(UnsupportedError, match="knows no blocks"):
        models["block"].generate("a", 4, mode="pairs")


@dataclass(frozen=True)
class Rightmost(Policy):
    """The proposals at the right end, `steps` of them at a time."""

    steps: int | None = None
    options: ClassVar[tuple[str, ...]] = ("steps",)

    def bound(self, num_open: int) -> int:
        return -(-num_open // (self.steps or 1))

    def rank(self, proposals: Proposals, progress: Progress, rng: Counter) -> np.ndarray:
        return proposals.positions.astype(np.float64)

    def decide(self, proposals: Proposals, progress: Progress, rng: Counter) -> Decision:
        ranked = self.rank(proposals, progress, rng)
        return commit(proposals, np.arange(len(ranked)) >= len(ranked) - (self.steps or 1), ranked)


def test_one_entry_adds_a_policy(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="unknown policy 'rightmost'"):
        Decode(policy="rightmost")
    monkeypatch.setitem(POLICIES, "rightmost", Rightmost)
    for name in ("causal", "full_unshifted", "block"):
        model, options = models[name], {"policy": "rightmost", "steps": 3, "min_tokens": 12, "heal": False}
        result = model.generate("x = ", 12, **options, **({} if name == "block" else {"block_size": 6}))
        for step, canvas in zip(result.trace.steps, result.trace.replay(), strict=True):
            opened = np.flatnonzero(canvas.open[: step.span[1]])
            assert not opened.size or opened.max() < step.decision.positions.min(), "the right end comes first"
        assert (result.finish_reason, len(result.tokens)) == ("length", 12)
        assert result.usage.forwards == len(result.trace.steps)
    events = list(models["causal"].stream("x = ", 6, suffix="\n", policy="rightmost", min_tokens=6, heal=False))
    assert [event.committed for event in events[:-2]] == [""] * 5
    assert len(events) == 6 + 1
    with pytest.raises(InputError, match="threshold is not used by policy 'rightmost'"):
        Decode(policy="rightmost", threshold=0.5)


# ---- nothing else knows their names ----------------------------------------------------------------------------------


def is_named(node: ast.AST, name: str) -> bool:
    """`name`, `x.name` or `x["name"]`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == name
    return name in (getattr(node, "attr", None), getattr(node, "id", None))


def has_text(node: ast.AST) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts)


def comparisons(source: str, name: str) -> Iterator[str]:
    """The comparisons of something of this name with a text, and matches of it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(is_named(side, name) for side in sides) and any(map(has_text, sides)):
                yield ast.unparse(node)
        elif isinstance(node, ast.Match) and is_named(node.subject, name):
            yield ast.unparse(node)


def asks_for_kinds(source: str, kinds: set[str]) -> Iterator[str]:
    """The calls of `isinstance` or `issubclass` about a class of these names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            names = {getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(node.args[1])}
            if names & kinds:
                yield ast.unparse(node)


ASKING = """
if decode.mode == "ar" or mode in ("ar", "beam") or "full" != options["mode"] or self.mode is None: pass
match mode:
    case "ar": pass
if isinstance(policy, (Threshold, Chain)) or isinstance(mode, str): pass
"""
"""Four comparisons of modes and one question about a kind of policy, among others that are neither."""


def test_no_other_module_compares_the_names_of_modes() -> None:
    """Evaluations are no part of it: their rows have names of modes."""
    assert len(list(comparisons(ASKING, "mode"))) == 4
    for path in SOURCE.rglob("*.py"):
        inside = path.relative_to(SOURCE).parts
        if inside[0] != "evals" and inside[:2] != ("decoding", "modes"):
            text = path.read_text(encoding="utf-8")
            if re.search(r"\bmode\b", text):
                assert list(comparisons(text, "mode")) == [], path
                assert re.findall(r"\bmode\.name (?:==|!=|in|not in) .*", text) == [], path


def test_decoding_asks_for_no_kind_of_policy_or_mode() -> None:
    assert list(asks_for_kinds(ASKING, {"Chain"})) == ["isinstance(policy, (Threshold, Chain))"]
    kinds = {kind.__name__ for kind in (*POLICIES.values(), Policy, Mode, *map(type, MODES.values()))}
    for path in (SOURCE / "decoding").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert list(asks_for_kinds(text, kinds)) == list(comparisons(text, "policy")) == [], path


# ---- the page that says which mode a request gets --------------------------------------------------------------------

GAP = {"infilling": True, "searches": True}
"""A request for one short gap with text after it."""
SAID: dict[str, tuple[str, list[tuple[str, dict[str, Any]]]]] = {
    "ar": (
        "completions that `speculative` cannot do",
        [("drafting", {"regex": "a+"}), ("drafting", {"pins": [Pin("a", at=0)]})],
    ),
    "speculative": ("completions", [("drafting", {}), ("causal", {"temperature": 1.0}), ("drafting", {"n": 3})]),
    "block": (
        "gaps that `beam` does not get; whenever a policy, steps or a threshold is given",
        [
            ("drafting", {"infilling": True}),
            ("drafting", GAP | {"temperature": 1.0}),
            ("drafting", GAP | {"denoise": True}),
            ("drafting", GAP | {"threshold": 0.5}),
            ("drafting", {"policy": "random"}),
            ("drafting", {"policy": "confidence", "steps": 3}),
            ("drafting", {"threshold": 0.5}),
        ],
    ),
    "full": ("", []),
    "beam": (
        f"one gap of at most {SEARCHED_TOKENS} tokens, where no option asks for sampling, a deadline or denoising; "
        "any gap of a model that has neither masks nor the tokens of `fim`",
        [("drafting", GAP), ("causal", GAP | {"seed": 3}), ("unmasked", {"infilling": True})],
    ),
    "fim": (
        "one gap of a model without masks that has tokens of fill-in-the-middle",
        [("filling", GAP), ("filling", {"infilling": True, "denoise": True})],
    ),
    "ancestral": ("models of uniform and hybrid noise", [("uniform", {}), ("hybrid", {}), ("uniform", GAP)]),
    "renoise": ("that model", [("renoising", {}), ("renoising", {"infilling": True})]),
    "expand": ("gaps of that model", [("expanding", GAP), ("expanding", {"infilling": True})]),
}
"""What docs/canvas.md says of each mode that it is the default for, and requests that are such."""


def test_what_the_page_says_of_each_mode_is_so(configs: dict[str, ModelConfig]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "canvas.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|(?:[^|]*\|){2}([^|]*)\|$", page, flags=re.MULTILINE)
    known = configs | {
        "renoising": copy.copy(configs["uniform"]),
        "expanding": dataclasses.replace(configs["full"], expand_id=5),
        "filling": dataclasses.replace(configs["causal"], mask_id=None, fim=FimTokens(prefix=5, suffix=6, middle=7)),
        "unmasked": dataclasses.replace(configs["causal"], mask_id=None),
    }
    object.__setattr__(known["renoising"], "context", "block")  # as DiffusionGemma, of whose config nothing else counts

    assert {mode: said.strip() for mode, said in rows} == {mode: said for mode, (said, _) in SAID.items()}
    assert SAID.keys() == MODES.keys()
    for mode, (_, requests) in SAID.items():
        for name, options in requests:
            how = {key: options[key] for key in ("infilling", "denoise", "searches") if key in options}
            decode = Decode(**{key: value for key, value in options.items() if key not in how})
            assert choose_mode(decode, known[name], **{"infilling": False} | how) == mode, (mode, name, options)
