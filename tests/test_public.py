"""The public names, exactly, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import daguerre


def test_the_public_names_are_exactly_these() -> None:
    assert set(daguerre.__all__) == {
        "Canvas",
        "DaguerreError",
        "Decision",
        "Decode",
        "Model",
        "Result",
        "StreamEvent",
        "Tokenizer",
        "Trace",
        "__version__",
        "load",
    }
    for name in daguerre.__all__:
        assert getattr(daguerre, name) is not None
    assert set(daguerre.__all__) <= set(dir(daguerre))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        daguerre.lode  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import daguerre, sys; print(sorted({'torch', 'numpy', 'tokenizers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
