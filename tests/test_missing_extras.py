"""Every optional package that is not there: each command and function that needs it says in one line which extra it is
of. Packages are hidden from a process of its own, as if they were not installed.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from torchless import HAS_TORCH

SOURCE = Path(__file__).resolve().parents[1] / "src" / "daguerre"
SERVE = "fastapi", "serve"
ROUTE = "ddsketch", "route"
COMMANDS: list[tuple[str, list[str], tuple[str, str]]] = [
    ("fastapi", ["serve"], SERVE),
    ("uvicorn", ["serve"], SERVE),
    ("orjson", ["batch", "requests.jsonl", "answers.jsonl"], SERVE),
    ("prometheus_client", ["route", "--config", "route.toml"], SERVE),
    ("aiohttp", ["route", "--config", "route.toml", "--check"], ROUTE),
    ("ddsketch", ["route", "schema"], ROUTE),
    ("httptools", ["route", "replay", "log.jsonl"], ROUTE),
    ("cryptography", ["audit", "key", "key"], ("cryptography", "audit")),
    ("matplotlib", ["generate", "x", "--max-tokens", "1", "--picture", "x.png"], ("matplotlib", "train")),
]
"""A package as it is imported, a command that needs it, and what the error names."""
CALLS: list[tuple[str, str, tuple[str, str]]] = [
    ("rfc8785", "audit.canonical: canonical({})", ("rfc8785", "audit")),
    ("fastjsonschema", "audit.schema: complaint({})", ("fastjsonschema", "audit")),
    ("cryptography", "audit.keys: SigningKey.make('key')", ("cryptography", "audit")),
    ("matplotlib", "view.charts: new_figure()", ("matplotlib", "train")),
    ("gguf", "models.gguf.file: slow_numbers(None, 'Q4_0')", ("gguf", "gguf")),
    ("litellm", "router.litellm_api: loaded()", ("litellm", "litellm")),
    ("sklearn", "router.quality_fit: _need_sklearn()", ("scikit-learn", "fit")),
    ("jsonschema", "router.graders: asyncio.run(_by_schema({}, None, 1))", ("jsonschema", "route")),
]
"""The same for functions: the module within `daguerre`, and a call of one of its names."""
WITH_TORCH: list[tuple[str, Any, tuple[str, str]]] = [
    ("gguf", ["export", "default", "--gguf", "model.gguf"], ("gguf", "gguf")),
    ("pyarrow", "train.sft.files: list(_parquet('x.parquet'))", ("pyarrow", "data")),
    ("matplotlib", "train.curves: draw_curves(Path('run'))", ("matplotlib", "train")),
    ("tensorboard", "train.report: _tensorboard(Path('run'), 0)", ("tensorboard", "train")),
    ("lm_eval", "evals.lm_eval: adapter()", ("lm-eval", "eval")),
]
"""Commands and functions whose modules import PyTorch."""
ELSEWHERE = {("mcp", "litellm"), ("torch", "torch"), ("langdetect", "eval")}
"""What tests/router/test_litellm_api.py, tests/test_without_torch.py and tests/evals/test_following.py prove; bench is
for tests/evals/bench.
"""
SCRIPT = """
import asyncio, importlib, io, json, sys
from contextlib import redirect_stderr
from pathlib import Path

class Without:  # a finder of modules that does not find the package that is hidden
    hidden = None
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] == Without.hidden else self.finder.find_spec(name, path, target)

def command(words):
    from daguerre.cli import main
    sys.argv = ["daguerre", *words]
    with redirect_stderr(io.StringIO()) as said:
        try:
            main()
        except SystemExit as error:
            return [error.code, said.getvalue()]

def call(text):
    from daguerre.errors import MissingExtra
    module, _, code = text.partition(": ")
    try:
        names = vars(importlib.import_module("daguerre." + module))
        eval(code, {"Path": Path, "asyncio": asyncio} | names)
    except MissingExtra as error:
        return str(error)
    except Exception as error:
        return repr(error)

sys.meta_path[:] = map(Without, sys.meta_path)
said = []
for hidden, asked in json.loads(sys.stdin.read()):
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == hidden}
    Without.hidden = hidden
    said.append(call(asked) if isinstance(asked, str) else command(asked))
    sys.modules.update(kept)
print(json.dumps(said))
"""


def line(package: str, extra: str) -> str:
    return f"{package} is not installed: run `pip install 'daguerre[{extra}]'`"


def said(rows: Sequence[tuple[str, Any]], folder: Path) -> list[Any]:
    """What each call or command says, run in order by one process, in which its package alone is hidden."""
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, input=json.dumps(rows), cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return out


def test_each_says_which_extra(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Some seconds: a process imports the router, the server, and PyTorch for training."""
    table = [*COMMANDS, *CALLS, *(WITH_TORCH if HAS_TORCH else ())]
    answers = said([(hidden, asked) for hidden, asked, _ in table], tmp_path)
    for answer, (hidden, asked, names) in zip(answers, table, strict=True):
        with subtests.test(f"{asked} without {hidden}"):
            assert answer == (line(*names) if isinstance(asked, str) else [2, f"daguerre: {line(*names)}\n"])


def test_every_extra_that_is_asked_for_is_in_a_table() -> None:
    found = set[tuple[str, str]]()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "MissingExtra":
                package, extra = map(ast.literal_eval, node.args)
                if extra != "bench":
                    found.add((package, extra))
    assert found == ELSEWHERE | {names for *_, names in (*COMMANDS, *CALLS, *WITH_TORCH)}
