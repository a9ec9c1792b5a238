"""Every public argument is given values that nobody expects: a result, or one line that names the argument."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import daguerre
from concept_models import with_heads
from daguerre import Canvas, Decision, Decode, Model, Operation, Pin, Steering, Tokenizer, Trace
from daguerre.decoding.request import CALLS
from daguerre.errors import InputError
from daguerre.kinds import Kind, options_of
from daguerre.model import Operations
from daguerre.models.chat_template import ChatTemplate
from daguerre.sampling import constraints
from daguerre.sampling.constraints import Budget, Limits
from daguerre.scoring.decisions import Choice, Score, YesNo
from daguerre.trace import TraceStep
from hostile import HOSTILE, wrongly_met

TOOLS = [{"name": "f", "parameters": {}}]
COMPANY: dict[str, dict[str, Any]] = {
    **{name: {"mode": "block"} for name in ("threshold", "policy", "block_size", "sliding", "end_of_text", "revise")},
    **{
        name: {"mode": "block", "policy": "confidence"} for name in ("steps", "schedule", "rank_temperature", "rank_by")
    },
    **{name: {"mode": "block", "policy": "entropy_threshold"} for name in ("entropy_threshold", "position_penalty")},
    **{name: {"mode": "block", "revise": 1} for name in ("revise_threshold", "revise_reading")},
    **{name: {"mode": "block", "guidance": 2.0} for name in ("guidance_schedule", "negative")},
    **{name: {"tools": TOOLS} for name in ("tool_choice", "parallel_calls")},
    "factor": {"mode": "block", "policy": "factor"},
    "gamma": {"mode": "block", "policy": "entropy_bounded"},
    "edit_threshold": {"mode": "block", "policy": "joint_threshold"},
    "lenient": {"schema": {}},
    "forbid_exactly": {"forbid": ["x"]},
}
"""What an option is given with, so that it is read."""
ELSEWHERE = {
    "start_tokens": "expand",
    "num_beams": "beam",
    "no_repeat_context_lines": "beam",
    "explain": "concept",
    "steer": "concept",
    "forbid": "concept",
    "forbid_exactly": "concept",
}
"""Options that this model has no use for, and what its errors name in their place."""
MEANS = {
    "prompt": ("token id",),
    "prefix": ("token id",),
    "suffix": ("token id",),
    "texts": ("text",),
    "schema": ("constraint",),
    "tools": ("to call",),
    "tool_choice": ("function",),
    "regex": ("constraint", "pattern"),
    "choices": ("constraint",),
    "keywords": ("constraint",),
    "ending": ("constraint",),
    "device": ("threads",),
    "name": ("model", "folder"),
    "adapter": ("adapter",),
    "rules": ("rule",),
    "start": ("rule",),
    "choice": ("function",),
    "text": ("schema",),
    "written": ("pin",),
    "given": ("steer",),
}
"""Other words for an argument in errors that are about more than its type."""
UNCHECKED = {"on_step": ("class",), "scorer": ("class",)}
"""Values that are functions, and so are called: what they raise is their caller's."""


def values(name: str) -> dict[str, Any]:
    left_out = UNCHECKED.get(name, ())
    return {kind: value for kind, value in HOSTILE.items() if kind not in left_out}


def named(name: str) -> tuple[str, ...]:
    return (name, *MEANS.get(name, ()))


@pytest.fixture(scope="module")
def small(make_model: Any) -> Model:
    return make_model(num_layers=1, max_positions=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@dataclasses.dataclass(frozen=True)
class Case:
    """A public function, and arguments with which it returns. without: those that exclude an argument."""

    call: Callable[..., Any]
    given: dict[str, Any]
    others: tuple[str, ...] = ()
    without: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


REQUEST = ("decode", "heal", "timeout", "draft", "context", "special_tokens", "on_step")
INFILL = (*REQUEST, "search_length", "files")
SEVERAL = ("decode", "heal", "timeout", "context", "special_tokens", "on_step", "search_length", "files")


def model_cases(model: Model, chatting: Model, concepts: Model) -> dict[str, Case]:
    """The public methods of a model."""
    prompt: dict[str, Any] = {"prompt": "import os\n", "max_tokens": 2}
    gap: dict[str, Any] = {"prefix": "import os\n", "suffix": "\nx", "max_tokens": 2}
    text: dict[str, Any] = {"text": "import os\nx", "spans": [(7, 9)], "max_tokens": 2}
    explained = concepts.generate("import os\n", 2, mode="ar", explain=True)
    return {
        "generate": Case(model.generate, prompt, REQUEST),
        "infill": Case(model.infill, gap, INFILL),
        "fill": Case(model.fill, {"template": "a<gap>b", "max_tokens": 2}, (*SEVERAL, "mark", "min_tokens")),
        "edit": Case(
            model.edit,
            text,
            (*SEVERAL, "lines", "pattern", "strength"),
            {"lines": ("spans",), "pattern": ("spans",), "strength": ("max_tokens",)},
        ),
        "stream": Case(lambda **given: list(model.stream(**given)), prompt, ("decode", "heal", "timeout", "suffix")),
        "start": Case(
            lambda **given: model.start(**given).result(), prompt, ("decode", "timeout", "suffix", "context")
        ),
        "chat": Case(
            chatting.chat,
            {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "template": None},
            ("decode",),
        ),
        "chat_prompt": Case(chatting.chat_prompt, {"messages": [{"role": "user", "content": "x"}]}),
        "with_defaults": Case(model.with_defaults, {"decode": None, "options": {}}),
        "nll": Case(
            model.nll,
            {"text": "import os", "kind": "elbo", "samples": 4},
            ("layout", "seed", "context", "order"),
            {"order": ("kind", "samples")},
        ),
        "embed": Case(model.embed, {"texts": ["a"], "kind": "hidden"}),
        "explain": Case(concepts.explain, {"text": "a"}),
        "attribute": Case(concepts.attribute, {"result": explained, "token": 0, "num_steps": 2}),
        "decide": Case(model.decide, {"state": "a", "questions": [YesNo()], "context": "auto"}),
        "decision": Case(model.decision, {"state": "a", "questions": [YesNo()], "context": "auto"}),
    }


def object_cases(model: Model) -> dict[str, Case]:
    """What makes the public objects, and what their methods take."""
    canvas = Canvas.lay_out([[1, 20], [21]], [2], 3).at((2, 4))
    row = {"positions": [2], "tokens": [20], "probabilities": [1.0], "confidence": [1.0]}
    result = model.generate("a", 1)
    return {
        "load": Case(daguerre.load, {"name": "default", "backend": "torch"}),
        "load_tokenizer": Case(
            daguerre.load_tokenizer, {"path": str(Path(daguerre.__file__).parent / "assets" / "default")}
        ),
        "Model": Case(Model, {"backbone": model.backbone, "tokenizer": model.tokenizer}),
        "Canvas": Case(Canvas, {"tokens": [1, 2], "open": [False, True], "gaps": [(1, 2)]}, ("span", "pins")),
        "ChatFormat": Case(daguerre.ChatFormat, {"template": "{{ messages }}", "bos_token": "", "eos_token": ""}),
        "Decision": Case(Decision, row, ("reopen", "replace", "pin", "unpin")),
        "Pin": Case(Pin, {"text": "a", "at": 0, "gap": None}),
        "Operation": Case(Operation, {"kind": "add", "concepts": "x", "strength": 1.0}, ("span", "schedule", "tokens")),
        "Steering": Case(Steering, {"operations": ()}),
        "Tokenizer": Case(Tokenizer, {"content": model.tokenizer.to_bytes().decode()}),
        "Trace": Case(Trace, {"canvas": canvas, "steps": (TraceStep(0, (2, 4), Decision(**row)),)}),
        "Result": Case(
            type(result), {name: getattr(result, name) for name in inspect.signature(type(result)).parameters}
        ),
        "StreamEvent": Case(daguerre.StreamEvent, {"text": "", "committed": ""}, ("step", "result")),
        "Running": Case(daguerre.Running, {"sample": model.start("a", 2)._sample, "tokenizer": model.tokenizer}),
        "Canvas.at": Case(canvas.at, {"span": (2, 4)}),
        "Pin.parse": Case(Pin.parse, {"written": "0=a"}),
        "Running.pin": Case(lambda **given: model.start("a", 8).pin(**given), {"at": 0, "text": "b"}),
        "Running.unpin": Case(lambda **given: model.start("a", 8).unpin(**given), {"start": 0}, ("end",)),
        "Running.remask": Case(lambda **given: model.start("a", 8).remask(**given), {"start": 0}, ("end",)),
        "Steering.of": Case(Steering.of, {"given": []}),
        "Steering.from_json": Case(Steering.from_json, {"text": "[]"}),
        "Tokenizer.default": Case(Tokenizer.default, {"name": "2k"}),
        "Tokenizer.load": Case(Tokenizer.load, {"path": "none.json"}),
        "Tokenizer.encode": Case(model.tokenizer.encode, {"text": "a"}),
        "Tokenizer.encode_plain": Case(model.tokenizer.encode_plain, {"text": "a"}),
        "Tokenizer.decode": Case(model.tokenizer.decode, {"ids": [20]}),
        "Tokenizer.decode_bytes": Case(model.tokenizer.decode_bytes, {"ids": [20]}),
        "Tokenizer.token_bytes": Case(model.tokenizer.token_bytes, {"token": 20}),
        "Trace.from_json": Case(Trace.from_json, {"text": "{}"}),
        "YesNo": Case(YesNo, {"yes": "a", "no": "b"}, ("before", "after", "calibration")),
        "Choice": Case(Choice, {"labels": ["a", "b"]}, ("before", "after", "calibration")),
        "Score": Case(Score, {"low": 0, "high": 9}, ("before", "after", "calibration")),
    }


UNSET = {"began", "memory"}
"""Fields of a `Budget` that count, and that nobody gives."""


def constraint_cases(tokenizer: Tokenizer) -> dict[str, Case]:
    """What compiles constraints, and its limits."""
    kept = ("budget", "folder")
    reading = ("lenient", "strict", "depth", "limits", *kept)
    common = {"tokenizer": tokenizer}
    fields = {kind: tuple(one.name for one in dataclasses.fields(kind)) for kind in (Budget, Limits)}
    return {
        "compile_regex": Case(constraints.compile_regex, {"pattern": "a", **common}, kept),
        "compile_choices": Case(constraints.compile_choices, {"choices": ["a", "b"], **common}, kept),
        "compile_grammar": Case(
            constraints.compile_grammar, {"rules": {"a": "b"}, "start": "a", **common}, ("depth", *kept)
        ),
        "compile_schema": Case(constraints.compile_schema, {"schema": {}, **common}, ("any_depth", *reading)),
        "compile_tools": Case(
            constraints.compile_tools,
            {"tools": TOOLS, **common},
            ("choice", "parallel", "text", "marks", "chat_format", *reading),
        ),
        "Budget": Case(Budget, {}, tuple(name for name in fields[Budget] if name not in UNSET)),
        "Limits": Case(Limits, {}, fields[Limits]),
    }


NAMED_OTHERWISE = {
    "Running": "what `Model.start` makes: nobody else does",
    "Result": "an outcome: whatever it is given it holds",
}
"""Public names whose arguments are the library's own, and why these need no words of their own."""


def wrong_of(name: str, case: Case) -> Iterator[str]:
    for argument in (*case.given, *case.others):
        left_out = {argument, *case.without.get(argument, ())}
        given = {key: value for key, value in case.given.items() if key not in left_out}
        names = (
            *named(argument),
            "text",
            "trace",
            "program",
            "decision",
            "token",
            "position",
            "gap",
            "span",
            "concept",
            "label",
            "seed",
        )
        words = names if name in OBJECTS else named(argument)

        def call(value: Any, argument: str = argument, given: dict[str, Any] = given) -> object:
            return case.call(**given, **{argument: value})

        yield from (f"{name}({argument}=): {wrong}" for wrong in wrongly_met(call, words, values(argument)))


METHODS = (
    *("generate", "infill", "fill", "edit", "stream", "start", "chat", "chat_prompt", "with_defaults", "nll", "embed"),
    *("explain", "attribute", "decide", "decision"),
)
OBJECTS = (
    *(
        "Canvas",
        "ChatFormat",
        "Decision",
        "Pin",
        "Operation",
        "Steering",
        "Tokenizer",
        "Trace",
        "Result",
        "StreamEvent",
        "Running",
    ),
    *("Canvas.at", "Pin.parse", "Running.pin", "Running.unpin", "Running.remask", "Steering.of", "Steering.from_json"),
    *("Tokenizer.default", "Tokenizer.load", "Tokenizer.encode", "Tokenizer.encode_plain", "Tokenizer.decode"),
    *("Tokenizer.decode_bytes", "Tokenizer.token_bytes", "Trace.from_json", "YesNo", "Choice", "Score"),
)
CONSTRAINTS = (
    *("compile_regex", "compile_choices", "compile_grammar", "compile_schema", "compile_tools"),
    *("Budget", "Limits"),
)


@pytest.fixture(scope="module")
def of_models(small: Model, make_model: Any) -> dict[str, Case]:
    words = copy.copy(small.tokenizer)
    words.chat_template = ChatTemplate({"default": "{{ messages[0].content }}"})  # type: ignore[attr-defined]
    return model_cases(small, Model(small.backbone, words), with_heads(make_model, num_layers=1, max_positions=64))


@pytest.fixture(scope="module")
def of_objects(small: Model) -> dict[str, Case]:
    return object_cases(small)


@pytest.fixture(scope="module")
def of_constraints(small: Model) -> dict[str, Case]:
    return constraint_cases(small.tokenizer)


def public(owner: object) -> set[str]:
    return {name for name, value in vars(owner).items() if inspect.isroutine(value) and name[0] != "_"}


def test_every_public_argument_is_attacked(of_models: dict[str, Case], of_objects: dict[str, Case]) -> None:
    assert public(Model) | public(Operations) == set(METHODS) == set(of_models)
    assert set(daguerre.__all__) - {"DaguerreError", "Decode", "__version__"} <= of_objects.keys()
    assert set(options_of(Decode)) == {option.name for option in dataclasses.fields(Decode)}
    for name, case in (of_models | of_objects).items():
        method = getattr(Model, name, None) or getattr(daguerre, name, None)
        if method is not None:
            arguments = inspect.signature(method).parameters.values()
            taken = {each.name for each in arguments if each.kind != each.VAR_KEYWORD} - {"self"}
            extra = {"load": LOADED, "Model": MADE}.get(name, ())
            assert taken <= {*case.given, *case.others, *extra}, name
    tried = {argument for case in of_models.values() for argument in (*case.given, *case.others)}
    assert set(CALLS) - tried == {"changeable"}, "which `Model.start` sets"


def test_a_method_refuses_what_it_cannot_use(subtests: pytest.Subtests, of_models: dict[str, Case]) -> None:
    for name in METHODS:
        with subtests.test(name):
            assert not list(wrong_of(name, of_models[name]))


def test_an_object_refuses_what_it_cannot_hold(subtests: pytest.Subtests, of_objects: dict[str, Case]) -> None:
    for name in OBJECTS:
        with subtests.test(name):
            assert not list(wrong_of(name, of_objects[name]))


def test_every_argument_of_a_constraint_is_attacked(of_constraints: dict[str, Case]) -> None:
    assert set(constraints.__all__) - {"Programme", "TokenAutomaton"} == set(CONSTRAINTS) == set(of_constraints)
    for name, case in of_constraints.items():
        taken = inspect.signature(getattr(constraints, name)).parameters.keys() - UNSET
        assert taken == {*case.given, *case.others}, name


def test_a_constraint_refuses_what_it_cannot_use(
    subtests: pytest.Subtests, of_constraints: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CONSTRAINTS:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)  # where a folder named "no" is made
        with subtests.test(name):
            assert not list(wrong_of(name, of_constraints[name]))


SLOW = {"forbidden": ("long text",)}
"""An automaton of thousands of states is built for these, which takes its time budget."""


def test_an_option_refuses_what_it_cannot_be(subtests: pytest.Subtests, small: Model) -> None:
    for name in (option.name for option in dataclasses.fields(Decode)):
        more = COMPANY.get(name, {})
        tried = {kind: value for kind, value in values(name).items() if kind not in SLOW.get(name, ())}
        words = (*named(name), *([ELSEWHERE[name]] if name in ELSEWHERE else []))

        def call(value: Any, name: str = name, more: dict[str, Any] = more) -> object:
            return small.generate("import os\n", 3, **{**more, name: value})

        with subtests.test(name):
            assert not wrongly_met(call, words, tried)


LOADED = ("device", "dtype", "backend", "quantize", "experts", "threads", "revision", "family", "adapter")
LOADED = (
    *LOADED,
    "drafts",
    "drafts_quantize",
    "concepts",
    "tokenizer",
    "progress",
    "name",
    "rope_scaling",
    "tensor_parallel",
)
MADE = tuple(inspect.signature(Model).parameters)


def with_argument(case: Case, argument: str) -> Callable[[Any], Any]:
    """The call of a case with one argument in place of its own."""
    given = {name: value for name, value in case.given.items() if name != argument}
    return lambda value: case.call(**given, **{argument: value})


def test_loading_refuses_what_it_cannot_use(
    subtests: pytest.Subtests, of_objects: dict[str, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is right so far is not loaded: the folder is as far as it goes."""
    said = ""

    def refuse(*_: object, **__: object) -> None:
        raise InputError(said)

    monkeypatch.setattr("daguerre.model.load_folder", refuse)
    for argument in LOADED:
        said = argument
        with subtests.test(argument):
            call = with_argument(of_objects["load"], argument)
            assert not wrongly_met(call, named(argument), values(argument))


def test_a_model_is_made_of_what_fits(subtests: pytest.Subtests, of_objects: dict[str, Case]) -> None:
    for argument in MADE:
        with subtests.test(argument):
            assert not wrongly_met(with_argument(of_objects["Model"], argument), named(argument))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *[("generate", {"heal": heal}, "heal must be True, False or None") for heal in (0, "no", [])],
    *[("fill", {"min_tokens": few}, "min_tokens must be a whole number") for few in (-5, [1.5], [True], ["a"])],
    ("fill", {"min_tokens": [float("nan")]}, "min_tokens must be a whole number"),
    ("generate", {"max_tokens": b"\x06"}, "max_tokens must be a whole number"),
    ("generate", {"timeout": True}, "timeout must be a number of seconds"),
    ("nll", {"seed": 2**64}, "seed must be a whole number from 0 to 2"),
    ("nll", {"seed": -1}, "seed must be a whole number from 0 to 2"),
    ("nll", {"kind": "elbo", "samples": float("nan")}, "samples must be a whole number"),
    ("load", {"device": "cpu:7"}, "device 'cpu:7' cannot be used"),
    ("load", {"device": None}, "device must be a string"),
    ("load", {"threads": 10**12}, "threads must be a number from 1 to 1,024"),
    ("load", {"name": "a\0b"}, "name has a NUL character"),
    ("load", {"name": "x" * 5000}, "File name too long"),
    ("load", {"name": "a\ud800"}, "name has a character that no path has"),
    ("generate", {"logit_bias": {20: True}}, "logit_bias must map token ids"),
    ("infill", {"search_length": 0}, "search_length must be True, False or None"),
    ("infill", {"search_length": 1}, "search_length must be True, False or None"),
    ("generate", {"policy": "factor", "mode": "block", "factor": 0}, "factor must be a number above 0"),
    ("generate", {"policy": "factor", "mode": "block", "factor": float("inf")}, "factor must be a number above 0"),
    ("edit", {"strength": "x", "max_tokens": None}, "strength must be a number above 0 and at most 1"),
    ("edit", {"spans": 5}, "spans must be a list of pairs"),
    ("generate", {"denoiser": 1}, "denoiser is given by the model"),
    ("generate", {"catalog": 1}, "catalog is given by the model"),
    ("generate", {"n": 2**64}, "n must be a whole number from 1 to 4,096"),
    ("generate", {"mode": "block", "policy": "entropy", "schedule": "time", "steps": 2**64}, "steps must be"),
]
"""What passed once, or raised an error of Python's."""


def test_what_passed_once_is_refused(
    subtests: pytest.Subtests, of_models: dict[str, Case], of_objects: dict[str, Case]
) -> None:
    for name, options, said in REFUSED:
        case = (of_models | of_objects)[name]
        given = {key: value for key, value in case.given.items() if key not in ("kind", "samples") or name != "nll"}
        with subtests.test(f"{name}: {said}"), pytest.raises(InputError, match=f"^[^\\n]*{said}[^\\n]*$"):
            case.call(**given | options)


def test_a_published_model_checks_heal_too(small: Model) -> None:
    published = Model(small.backbone, small.tokenizer, family="qwen2")
    with pytest.raises(InputError, match="heal must be True, False or None"):
        published.generate("x", 2, heal="no")
    assert published.generate("x", 2, heal=None).text is not None


def test_numbers_of_numpy_are_numbers(small: Model) -> None:
    plain = small.generate("import os\n", 6, temperature=1.5, top_k=20, seed=7, logit_bias={20: 1.0}, n=2)
    numpy = small.generate(
        np.array(small.tokenizer.encode("import os\n")),
        np.int64(6),
        temperature=np.float32(1.5),
        top_k=np.int32(20),
        seed=np.uint64(7),
        logit_bias={np.int64(20): np.float64(1.0)},
        n=np.int8(2),
        heal=np.bool_(False),
    )
    assert [
        one.text
        for one in small.generate(
            "import os\n", 6, temperature=1.5, top_k=20, seed=7, n=2, logit_bias={20: 1.0}, heal=False
        ).choices
    ] == [one.text for one in numpy.choices]
    assert len(plain.choices) == 2
    assert small.fill("a<gap>b<gap>c", np.array([1, 2]), min_tokens=[np.int64(1), 2]).texts
    assert small.nll("import os", kind="elbo", samples=np.int64(4), seed=np.int64(1), layout=np.int64(4)).value > 0
    assert type(Decode(top_k=np.int64(3)).top_k) is int and type(Decode(temperature=np.float32(1)).temperature) is float


def test_what_a_kind_reads_it_reads_again_as_it_is() -> None:
    table = {name: each.kind for name, each in options_of(Decode).items()} | CALLS
    for name, each in table.items():
        if isinstance(each, Kind):
            for value in HOSTILE.values():
                try:
                    read = each(name, value)
                except InputError:
                    continue
                assert repr(each(name, read)) == repr(read), name
