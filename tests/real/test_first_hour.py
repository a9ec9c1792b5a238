"""What a newcomer types with a file that was downloaded, and what is seen: a chat, JSON, a call, a training on 60 rows,
an edit.

$ daguerre chat -m SmolLM2-135M-Instruct.Q4_1.gguf
answers are drawn by default: temperature 0.7, top_p 0.95, min_p 0.05; /help
> What is the capital of Norway?
The capital of Norway is Oslo, ...
(34 tokens, 1.13 a forward, 0.7 s)
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from commands import daguerre
from daguerre.files import cache_folder
from daguerre.model import Model
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from real.conftest import FULL
from real.files import bring
from served import asked
from server.conftest import running

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
ASTRAY = ("hub", "quantize=", "Traceback", "folder that it was made of")
"""Words of messages that lead away from what was asked."""


def test_a_chat_json_and_a_call(smollm2: Model, tmp_path: Path) -> None:
    file = str(bring("smollm2"))
    asked_for = "What is the capital of Norway?\n/set temperature 0\n/regenerate\n/show\n/bye\n"
    talked = daguerre("chat", "-m", file, "--max-tokens", "40", stdin=asked_for)
    assert talked.returncode == 0, talked.stderr
    for words in ("temperature 0.7, top_p 0.95, min_p 0.05", "Oslo", "2 messages", "temperature 0, the likeliest"):
        assert words in talked.stdout
    given = daguerre("generate", "-m", file, "A city in JSON: ", "--schema", json.dumps(SCHEMA), "--max-tokens", "40")
    assert given.returncode == 0 and set(json.loads(given.stdout)) >= {"city"}
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    body = {"messages": messages, "tools": [tool], "tool_choice": "required", "max_tokens": 60}
    with (
        running(make_app(ModelPool({"m": lambda: smollm2}))) as url,
        httpx2.Client(base_url=url, timeout=600) as client,
    ):
        (choice,) = asked(client, "/v1/chat/completions", body)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather" and "city" in json.loads(call["function"]["arguments"])
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.skipif(not FULL, reason="make real runs it")
def test_sixty_rows_are_trained_on_and_what_is_printed_works_when_pasted(tmp_path: Path) -> None:
    file, rows = str(bring("smollm2")), tmp_path / "rows.jsonl"
    pairs = [(a, b) for a in range(8) for b in range(8)][:60]
    turns = [[("user", f"What is {a} plus {b}?"), ("assistant", f"{a} + {b} = {a + b}")] for a, b in pairs]
    rows.write_text("\n".join(json.dumps({"messages": [{"role": r, "content": c} for r, c in turn]}) for turn in turns))
    led = daguerre("train", "lora", "--from", file, "--data", str(rows), cwd=tmp_path)
    assert led.returncode != 0 and "daguerre train sft --from MODEL" in led.stderr
    done = daguerre(
        *("train", "sft", "--from", file, "--data", str(rows), "--max-minutes", "4", "--set", "lora.rank=8"),
        cwd=tmp_path,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert not [word for word in ASTRAY if word in done.stderr]
    (tried,) = re.findall(r"^try it:  daguerre (.+)$", done.stderr, re.MULTILINE)
    talked = daguerre(*shlex.split(tried), "--max-tokens", "12", stdin="What is 3 plus 9?\n/bye\n", cwd=tmp_path)
    assert talked.returncode == 0 and "+" in talked.stdout


def test_a_first_edit(tmp_path: Path) -> None:
    """A function of a program is renamed, and the program still works.

    $ daguerre edit app.py "Rename `load` to `read_numbers`." --model qwen2.5-coder-1.5b-instruct-q4_k_m.gguf --diff
    """
    program = (
        "import json\nimport sys\n\n\ndef load(name):\n    with open(name) as file:\n        return json.load(file)\n"
        "\n\ndef main():\n    numbers = load(sys.argv[1])\n    print(sum(numbers))\n\n\nmain()\n"
    )
    (tmp_path / "app.py").write_text(program)
    (tmp_path / "numbers.json").write_text("[1, 2, 3]")
    how = ("--model", str(bring("coder-1.5b" if FULL else "coder-0.5b")))
    edited = daguerre("edit", "app.py", "Rename `load` to `read_numbers`.", *how, "--write", cwd=tmp_path)
    assert edited.returncode == 0, edited.stderr
    text = (tmp_path / "app.py").read_text()
    assert text == program.replace("load(name)", "read_numbers(name)").replace("load(sys", "read_numbers(sys")
    ran = subprocess.check_output([sys.executable, "app.py", "numbers.json"], cwd=tmp_path, text=True)
    assert ran == "6\n"


def test_a_newcomer_asks_by_name(tmp_path: Path) -> None:
    """What somebody types who comes from Ollama; the package index is asked for the file."""
    home = cache_folder()
    if home is not None:  # so that nothing is compiled again
        (tmp_path / "compiled").symlink_to(home / "compiled")
    environment = os.environ | {"DAGUERRE_CACHE": str(tmp_path)}
    refused = daguerre("chat", stdin="", env=environment)
    assert refused.returncode == 2 and "daguerre chat --model smollm2" in refused.stderr
    listed = daguerre("models", env=environment)
    assert "Pulled: nothing" in listed.stdout and "smollm2:135m" in listed.stdout
    pulled = daguerre("pull", "smollm2", env=environment)
    assert pulled.returncode == 0 and pulled.stdout.startswith("smollm2  llama  "), pulled.stderr
    answered = daguerre("run", "smollm2", "What is the capital of Norway?", "--max-tokens", "20", env=environment)
    assert answered.returncode == 0 and answered.stdout.strip(), answered.stderr
    assert "here" in next(line for line in daguerre("models", env=environment).stdout.splitlines() if "135m* " in line)
    assert daguerre("rm", "smollm2", env=environment).stdout == "deleted smollm2, 98.4 MB\n"
