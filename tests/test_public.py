"""The public names, exactly, and what importing the package costs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import daguerre
from daguerre.model import Model, Operations


def test_the_public_names_are_exactly_these() -> None:
    assert set(daguerre.__all__) == {
        "Canvas",
        "ChatFormat",
        "DaguerreError",
        "Decision",
        "Decode",
        "Model",
        "Operation",
        "Pin",
        "Result",
        "Running",
        "Steering",
        "StreamEvent",
        "Tokenizer",
        "Trace",
        "__version__",
        "load",
        "load_tokenizer",
    }
    for name in daguerre.__all__:
        assert getattr(daguerre, name) is not None
    assert set(daguerre.__all__) <= set(dir(daguerre))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        daguerre.lode  # noqa: B018


def test_a_model_is_loaded_by_name_and_scores_text_alone(causal: Model) -> None:
    for name in (123, None, ["default"]):
        with pytest.raises(daguerre.DaguerreError, match="name must be a name or a path"):
            daguerre.load(name)  # type: ignore[arg-type]
    with pytest.raises(daguerre.DaguerreError, match="unknown dtype"):
        daguerre.load("default", dtype=["float32"])  # type: ignore[arg-type]
    for text in (5, None, b"x = 1", ["x"]):
        with pytest.raises(daguerre.DaguerreError, match="must be a string"):
            causal.nll(text)  # type: ignore[arg-type]


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import daguerre, sys; print(sorted({'torch', 'numpy', 'tokenizers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_help_of_every_method_stands_alone(subtests: pytest.Subtests) -> None:
    for name, method in (vars(Operations) | vars(daguerre.Model)).items():
        if not callable(method) or name[0] == "_":
            continue
        doc, parameters = inspect.getdoc(method) or "", inspect.signature(method).parameters
        named = set(re.findall(r"\w+", doc))

        with subtests.test(name):
            assert len(doc.split()) >= 12 or len(parameters) <= 1
            assert not re.search(r"\bsee `", doc), "say it here"
            missing = [each for each in parameters if each not in named and each not in ("self", "options")]
            assert not missing or name in ("chat", "chat_prompt", "with_defaults"), missing
