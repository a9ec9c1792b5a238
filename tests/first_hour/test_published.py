"""A folder in a publisher's layout, as transformers writes it: what it is, and a conversation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import daguerre
from daguerre.model import load

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    from published import CASES

    path = CASES["llada"].write(tmp_path_factory.mktemp("published"))
    values = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(values | {"chat_template": TEMPLATE}))
    return path


def test_what_a_folder_holds_is_said_with_the_name_of_its_class(folder: Path) -> None:
    said = daguerre("inspect", folder)
    facts = dict(line.split(maxsplit=1) for line in said.stdout.splitlines())

    assert said.returncode == 0, said.stderr
    assert facts["class"] == "LLaDAModelLM (model_type 'llada')"
    assert facts["family"] == "llada"
    assert "chat" in facts["operations"].split(", ")


def test_loading_and_chatting(folder: Path) -> None:
    talked = daguerre("chat", "--model", folder, "--max-tokens", "6", stdin="hello\nmore\n/exit\n")

    assert talked.returncode == 0, talked.stderr
    assert talked.stdout.count("(6 tokens, ") == 2
    assert "Traceback" not in talked.stderr


def test_the_conversation_goes_on_in_python(folder: Path) -> None:
    assert len(load(folder).chat([{"role": "user", "content": "hello"}], max_tokens=6).tokens) == 6
