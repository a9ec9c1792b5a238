"""The example of retrieval: what it cites is what it was shown, with the library and with a server."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest

from daguerre.model import load
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from server.conftest import running

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "rag.py"
FILES = {
    "files.py": (
        "def read_lines(path):\n    with open(path) as file:\n        return file.read().splitlines()\n\n\n"
        "def write_lines(path, lines):\n    with open(path, 'w') as file:\n        file.write('\\n'.join(lines))\n"
    ),
    "numbers.py": (
        "def mean(values):\n    return sum(values) / len(values)\n\n\n"
        "def is_prime(n):\n    return n > 1 and all(n % k for k in range(2, n))\n"
    ),
    "tree/walk.py": (
        "class Node:\n    def add_child(self, node):\n        self.children.append(node)\n        node.parent = self\n"
    ),
}


@pytest.fixture(scope="module")
def rag() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("rag", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rag"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five functions in three files."""
    top = tmp_path_factory.mktemp("code")
    for name, text in FILES.items():
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text(text, encoding="utf-8")
    return top


@pytest.fixture(scope="module")
def library(rag: ModuleType) -> Any:
    """The default model in this process."""
    return rag.Library("default")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server of the default model, in this process; the command itself is in tests/clients."""
    with running(make_app(ModelPool({"default": load}))) as url:
        yield url


def test_every_function_is_a_passage(rag: ModuleType, folder: Path) -> None:
    passages = rag.read_passages(folder)

    assert [one.place for one in passages] == [
        "files.py:1", "files.py:6", "numbers.py:1", "numbers.py:5", "tree/walk.py:2"
    ]  # fmt: skip
    assert passages[2].text == "def mean(values):\n    return sum(values) / len(values)"


def test_a_function_is_found_by_its_own_text_and_by_its_body(rag: ModuleType, folder: Path, library: Any) -> None:
    passages = rag.read_passages(folder)
    assert len(passages) == 5
    for one in passages:
        assert rag.retrieve(library, one.text, passages, 1) == [one]
        assert one in rag.retrieve(library, one.text.partition("\n")[2], passages, 2), one.place


def test_the_answer_cites_what_was_shown(rag: ModuleType, folder: Path, library: Any) -> None:
    passages = rag.read_passages(folder)
    said = rag.answer_question(library, "def read_text(path):", passages, num=3)

    assert said["answer"]
    assert said["citations"] and set(said["citations"]) <= set(said["shown"])
    assert len(said["shown"]) == 3


def test_a_citation_of_nothing_is_not_valid(rag: ModuleType) -> None:
    schema = rag.schema_of(2)

    jsonschema.validate({"answer": "x", "citations": [2, 1]}, schema)
    for wrong in ([], [3], [0], ["1"]):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"answer": "x", "citations": wrong}, schema)


def test_a_server_retrieves_the_same_and_its_answer_is_valid(
    rag: ModuleType, folder: Path, library: Any, address: str
) -> None:
    passages = rag.read_passages(folder)
    server = rag.Server(address, "default")
    question = "def read_text(path):"

    assert rag.retrieve(server, question, passages, 3) == rag.retrieve(library, question, passages, 3)
    jsonschema.validate(json.loads(server.write("answer = ", rag.schema_of(3))), rag.schema_of(3))
    said = rag.answer_question(server, question, passages, num=3)
    assert said["citations"] and set(said["citations"]) <= set(said["shown"])


def test_the_command_prints_json(folder: Path, address: str) -> None:
    words = [sys.executable, str(EXAMPLE), "def median(values):", "--folder", str(folder), "--server", address]
    done = subprocess.run(words, capture_output=True, text=True, check=True)

    assert set(json.loads(done.stdout)) == {"question", "answer", "citations", "shown"}


def test_a_folder_without_functions_is_one_line_of_error(tmp_path: Path) -> None:
    words = [sys.executable, str(EXAMPLE), "x", "--folder", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.strip().endswith("has no Python functions: name another --folder")
