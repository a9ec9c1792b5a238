"""A folder in a publisher's layout, as transformers writes it: what it is, and a conversation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(sys.executable).with_name("daguerre"))
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


def ran(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments], check=False, capture_output=True, text=True, timeout=120, input=stdin, errors="replace"
    )


def test_what_a_folder_holds_is_said_with_the_name_of_its_class(folder: Path) -> None:
    said = ran("inspect", str(folder))
    facts = dict(line.split(maxsplit=1) for line in said.stdout.splitlines())

    assert said.returncode == 0, said.stderr
    assert facts["class"] == "LLaDAModelLM (model_type 'llada')"
    assert facts["family"] == "llada"
    assert "chat" in facts["operations"].split(", ")


def test_loading_and_chatting(folder: Path) -> None:
    talked = ran("chat", "--model", str(folder), "--max-tokens", "6", stdin="hello\nmore\n/exit\n")

    assert talked.returncode == 0, talked.stderr
    assert talked.stdout.count("(6 tokens, ") == 2
    assert "Traceback" not in talked.stderr


def test_the_conversation_goes_on_in_python(folder: Path) -> None:
    script = (
        "import daguerre, sys\n"
        "model = daguerre.load(sys.argv[1])\n"
        "print(len(model.chat([{'role': 'user', 'content': 'hello'}], max_tokens=6).tokens))\n"
    )
    written = subprocess.run(
        [sys.executable, "-c", script, str(folder)], check=False, capture_output=True, text=True, timeout=120
    )
    assert (written.returncode, written.stdout) == (0, "6\n"), written.stderr
