"""Everything that a model with concept heads can do is done by heads that lie beside a published model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("torch")

import daguerre
from backends import needs_compiler
from daguerre import Operation, Steering
from daguerre.decoding.result import Result
from daguerre.errors import InputError
from daguerre.files import CACHE
from daguerre.model import Model
from daguerre.models.chat_template import ChatTemplate
from models.test_head_files import DATA, write
from test_cli import Called
from test_cli import call as call

pytestmark = needs_compiler
TURNS = "{% for one in messages %}<{{ one.role }}>{{ one.content }}\n{% endfor %}<assistant>"
TALK = [{"role": "user", "content": "def f(x):"}]
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
PROGRAM = Steering((Operation(kind="add", concepts="call", strength=6.0, schedule="until", tokens=3),))
STEERED: dict[str, Any] = {"steer": PROGRAM, "forbid": ["loop"], "explain": True, "temperature": 0.0}
SOURCE = "def f(x):\n    for y in x:\n        print(y)\n\n\ndef g():\n    return [1]\n"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published model with heads beside it."""
    path = tmp_path_factory.mktemp("models") / "llama-q4_k.gguf"
    shutil.copy(DATA / path.name, path)
    write(path.with_name(f"{path.name}.concepts"), path)
    return path


@pytest.fixture(scope="module")
def model(file: Path) -> Model:
    loaded = daguerre.load(file, dtype="float32")
    loaded.tokenizer.chat_template = ChatTemplate({"default": TURNS})  # type: ignore[attr-defined]
    return loaded


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.py").write_text(SOURCE)
    return tmp_path / "source"


WAYS: dict[str, Callable[[Model], Result]] = {
    "a conversation": lambda model: model.chat(TALK, 8, **STEERED),
    "a conversation, speculative, with a schema": lambda model: model.chat(
        TALK, 32, schema=SCHEMA, mode="speculative", drafter="lookup", **STEERED
    ),
    "a gap": lambda model: model.infill("def f(x):\n    return ", "\n", 6, explain=True),
    "an edit": lambda model: model.edit("def f(x):\n    return x\n", spans=[(4, 5)], max_tokens=4, explain=True),
    "several samples": lambda model: model.generate("x = ", 6, n=2, **STEERED | {"temperature": 1.0}),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_was_written_is_explained_and_attributed(way: str, model: Model) -> None:
    result = WAYS[way](model)
    assert result.concepts is not None and result.concepts.error() < 1e-4
    asked = [number for number, token in enumerate(result.concepts.tokens) if token.logit is not None]
    assert asked and len(result.concepts.tokens) == len(result.tokens)
    attributed = model.attribute(result, asked[0])
    assert np.abs(attributed.scores).max() > 0 and abs(attributed.error) < 0.05


def test_the_command_line_finds_the_heads(
    call: Callable[..., Called], file: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    page, steer = tmp_path / "page.html", tmp_path / "steer.json"
    steer.write_text(PROGRAM.to_json())
    own, search = ("-m", str(file)), ("concepts", "search", "loop - call", "--in", str(source))

    written = call("generate", *own, "def f(x):", "--max-tokens", "6", "--explain-html", str(page), "--why", "1")
    read = call("concepts", "explain", str(source / "a.py"), *own, "--json")
    named = call("generate", *own, "x", "--max-tokens", "6", "--steer", str(steer), "--forbid", "loop", "--json")
    searched = [call(*search, *own, *more) for more in ((), (), ("--concepts", f"{file}.concepts"))]
    saved = call("export", str(file), "--saelens", str(tmp_path / "sae"))

    assert [code for code, _, _ in (written, read, named, *searched)] == [0] * 6, (written, read, named, searched)
    assert saved[0] == 0, saved
    assert "for_loop" in page.read_text() and json.loads(read[1])["error"] < 1e-2
    (source / "letter.md").write_text("Dear reader,\n\nit rained, and we were sorry.\n")
    prose = call(*search, *own, "--prose", "--num", "20")[1]
    assert "letter.md:3-3" in prose and "letter.md" not in call(*search, *own)[1]
    assert searched[0][1] == searched[1][1] == searched[2][1] and "a.py:1-3  f" in searched[0][1]
    assert "loop" in call("concepts", "find", "loop", "--model", str(file))[1]


def test_records_of_conversations_constraints_and_gaps_are_replayed(model: Model, file: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from daguerre.audit.keys import SigningKey
    from daguerre.audit.recorder import Recorder
    from daguerre.audit.verification import verify

    key, ledger = SigningKey.make(tmp_path / "audit.key"), tmp_path / "audit.jsonl"
    with Recorder(str(ledger), model, key, name=str(file)) as recorder:
        recorder.generate(model.chat_prompt(TALK), 8, **STEERED)
        recorder.generate("x = ", 32, schema=SCHEMA, mode="speculative", drafter="lookup", **STEERED)
        recorder.infill("def f(x):\n    return ", "\n", 6, explain=True, forbid=["call"])

    report = verify(ledger, model, public=key.public)
    assert list(report.complaints()) == [] and report.num_replayed == 3


def test_a_server_converses_with_concepts(model: Model) -> None:
    client = pytest.importorskip("fastapi.testclient")
    from daguerre.server.app import make_app
    from daguerre.server.models import ModelPool

    own = {"explain": True, "forbid": ["loop"], "steer": json.loads(PROGRAM.to_json())["operations"]}
    body = {"messages": TALK, "max_tokens": 8, "temperature": 0, "daguerre": own}
    expected = model.chat(TALK, 8, **STEERED)
    with client.TestClient(make_app(ModelPool({"m": lambda: model}))) as asked:
        answer = asked.post("/v1/chat/completions", json=body).json()
        stream = asked.post("/v1/chat/completions", json=body | {"stream": True}).text
        about = asked.get("/v1/models/m").json()
        page = asked.get("/", headers={"accept": "text/html"}).text

    (choice,) = answer["choices"]
    assert choice["message"]["content"] == expected.text
    assert expected.concepts is not None
    assert choice["daguerre"]["concepts"]["tokens"] == json.loads(expected.concepts.to_json())["tokens"]
    assert '"concepts"' in stream and stream.rstrip().endswith("[DONE]")
    assert "concepts" in json.dumps(about) and 'id="concepts-card"' in page


def test_a_concept_that_there_is_not_is_named(model: Model) -> None:
    with pytest.raises(InputError, match="did you mean 'for_loop'"):
        model.generate("x", 4, forbid=["for_lop"])
