"""The runtime where PyTorch is not installed: it is hidden by an import hook, in subprocesses too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backends import needs_compiler
from torchless import needs_torch

HIDING = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Hidden())
"""
NEEDS_IT = (
    *("train", "evals.bench", "evals.concepts", "models.core", "models.lora_factors", "noise", "models.republish"),
    *("models.residual_modes", "models.tensor_parallel"),
    *("models.backends.answering", "models.backends.packed", "models.backends.sliding"),
    *("models.backends.torch_backend", "scoring.gradients"),
)
"""The packages and modules of training and of the reference backend, of which some modules may need it."""
IMPORTS = """
import importlib, json, pkgutil, daguerre

failed = []

def walk(path, prefix):
    for one in pkgutil.iter_modules(path, prefix):
        try:
            module = None if one.name.endswith("__main__") else importlib.import_module(one.name)
        except ImportError:
            failed.append(one.name.removeprefix("daguerre."))
        else:
            if one.ispkg:
                walk(module.__path__, one.name + ".")

walk(daguerre.__path__, "daguerre.")
print(json.dumps(failed))
"""
USES = """
import json, daguerre

model = daguerre.load()
before, after = "def f(x):\\n    ", "\\n    return y\\n"
schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
made = {
    "speculative": model.generate("def f", max_tokens=8).text,
    "ar": model.generate("def f", max_tokens=8, mode="ar").text,
    "block": model.generate("def f", max_tokens=8, mode="block", temperature=1.0, seed=1).text,
    "infill": model.infill(before, after).text,
    "search": model.infill(before, after, search_length=True).text,
    "beam": model.infill(before, after, mode="beam").text,
    "fill": model.fill("def <gap>(x):\\n    return <gap>\\n").text,
    "edit": model.edit("def f(x):\\n    return x\\n", lines=[(2, 2)]).text,
    "schema": model.generate("x = ", schema=schema, max_tokens=24).text,
    "regex": model.generate("x = ", regex="[0-9]{3}", max_tokens=8).text,
    "stream": [event.text for event in model.stream("def f", max_tokens=8)][-1],
    "int8": daguerre.load(quantize="int8").generate("def f", max_tokens=8).text,
    "int4": daguerre.load(quantize="approximate_int4").generate("def f", max_tokens=8).text,
    "float32": daguerre.load(dtype="float32").generate("def f", max_tokens=8).text,
    "kept in 8 bits": model.generate("def f", max_tokens=8, cache="approximate_int8").text,
    "bits": round(model.nll("def f(x): return x").value, 3),
    "embedding": round(float(model.embed(["def f"])[0, 0]), 4),
    "concepts": daguerre.load("concepts").generate("def f", max_tokens=8).text,
}
print(json.dumps(made))
"""
CONCEPTS = """
import json, tempfile, daguerre
from pathlib import Path
from daguerre.audit import Recorder, SigningKey, verify
from daguerre.audit.summary import input_attribution
from daguerre.scoring.concept_search import SearchedText, parse_query, search

model = daguerre.load("concepts")
text = "for name in sorted(names):\\n    print(name)\\n"
steer = [{"kind": "add", "concepts": ["for_loop"], "strength": 4.0}, {"kind": "suppress", "concepts": [0]}]
steered = model.generate("def f(x):\\n    ", max_tokens=12, steer=steer, explain=True)
terms = parse_query("for_loop - try_block", model.concepts)
found = search(model.denoiser, model.denoiser.heads, model.tokenizer, terms, [SearchedText("a", text)])
with tempfile.TemporaryDirectory() as folder:
    ledger, key = Path(folder, "audit.jsonl"), SigningKey.make(Path(folder, "key"))
    with Recorder(ledger, model, key, inputs=input_attribution(model, 1, 4)) as recorder:
        recorder.generate("def f(x):\\n    ", max_tokens=6, steer=steer, explain=True)
    (record,) = [json.loads(line)["record"] for line in ledger.read_text().splitlines() if "generation" in line]
    report = verify(ledger, model)
made = {
    "steered": steered.text,
    "explained": steered.concepts.to_dict(),
    "forbidden": model.generate("def f(x):\\n    ", max_tokens=8, forbid=["for_loop"]).text,
    "attributed": model.attribute(steered, 3, 8).scores.tolist(),
    "text": model.explain(text).probabilities.tolist(),
    "embedded": [model.embed([text], kind)[0].tolist() for kind in ("known", "discovered", "composed", "concepts")],
    "searched": [[one.unit, one.score] for one in found],
    "audited": [report.sound, report.num_replayed, record["model"], record["concepts"]],
}
print(json.dumps(made))
"""
FILES = """
import hashlib, json, sys, tempfile
import numpy as np
from pathlib import Path
from safetensors.numpy import save_file
import daguerre
from daguerre.cli import main

answers, sys.stdout = sys.stdout, sys.stderr

def called(*words):
    sys.argv = ["daguerre", *map(str, words)]
    try:
        main()
    except SystemExit as error:
        assert not error.code

def hashed(folder):
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return [[path.name, hashlib.sha256(path.read_bytes()).hexdigest()] for path in files]

with tempfile.TemporaryDirectory() as name:
    folder, rng = Path(name), np.random.default_rng(0)
    (adapter := folder / "adapter").mkdir()
    config, module = daguerre.load().config, "base_model.model.model.layers.1.mlp.down_proj"
    shapes = {"lora_A": (4, config.mlp_width), "lora_B": (config.width, 4)}
    tensors = {f"{module}.{key}.weight": rng.normal(0, 0.1, shape).astype("f4") for key, shape in shapes.items()}
    save_file(tensors, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 2}))
    called("export", "default", "--out", folder / "out", "--adapter", adapter)
    called("export", "concepts", "--saelens", folder / "saelens")
    called("export", "default", "--gguf", folder / "m.gguf", "--dtype", "q8_0")
    called("export", "default", "--gguf", folder / "a.gguf", "--adapter", adapter, "--alone")
    merged = daguerre.load(adapter=adapter)
    made = {
        "files": hashed(folder),
        "merged": merged.generate("def f", max_tokens=12).text,
        "exported": daguerre.load(folder / "out").generate("def f", max_tokens=12, mode="ar").text,
        "written": daguerre.load(folder / "m.gguf").generate("def f", max_tokens=12, mode="ar").text,
    }
print(json.dumps(made), file=answers)
"""
REFUSED = """
import daguerre
from daguerre.errors import DaguerreError

model = daguerre.load()
for call in (
    lambda: daguerre.load(backend="torch").generate("x", max_tokens=1),
    lambda: daguerre.load(device="cuda"),
    lambda: model.backbone,
):
    try:
        call()
    except DaguerreError as error:
        print(error)
"""
COMMANDS = """
import sys
from pathlib import Path
import daguerre
from daguerre.cli import main

data = str(Path(daguerre.__file__).with_name("http"))
sys.stderr = sys.stdout
for command in (
    ["train", "tiny", data],
    ["eval", "default", "--data", data, "--what", "draft"],
    ["calibrate", "default", "--data", data],
    ["average", "a", "b", "--out", "out"],
    ["bench", "--what", "rows"],
):
    sys.argv = ["daguerre", *command]
    try:
        main()
    except SystemExit as error:
        assert error.code == 2
"""
HERE = "import torch; torch.set_num_threads(1)\n"


def run(script: str, folder: Path | None, **more: str) -> str:
    """What a script prints; with a folder PyTorch is hidden from it and from its children."""
    environment = os.environ | more
    if folder is not None:
        (folder / "sitecustomize.py").write_text(HIDING)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


def test_every_module_of_the_runtime_imports(tmp_path: Path) -> None:
    failed = json.loads(run(IMPORTS, tmp_path))
    assert failed, "PyTorch is not hidden"
    assert [name for name in failed if not name.startswith(NEEDS_IT)] == []


@needs_compiler
@needs_torch
@pytest.mark.parametrize("script", [USES, CONCEPTS, FILES], ids=["uses", "concepts", "files"])
def test_what_the_runtime_makes_is_what_it_makes_beside_pytorch(script: str, tmp_path: Path) -> None:
    assert json.loads(run(script, tmp_path)) == json.loads(run(HERE + script, None))


SAID = "torch is not installed: run `pip install 'daguerre[torch]'`"


@needs_compiler
def test_what_needs_it_says_which_extra(tmp_path: Path) -> None:
    assert run(REFUSED, tmp_path).splitlines() == [SAID] * 3


def test_commands_that_need_it_say_so_in_one_line(tmp_path: Path) -> None:
    assert run(COMMANDS, tmp_path).splitlines() == [f"daguerre: {SAID}"] * 5


def test_without_a_compiler_an_error_names_both_ways_out(tmp_path: Path) -> None:
    script = """
import daguerre, sys
from daguerre.errors import DaguerreError
for backend in (None, "native"):
    try:
        daguerre.load(backend=backend).generate("x", max_tokens=1)
    except DaguerreError as error:
        print(error)
"""
    said = run(script, tmp_path, DAGUERRE_CACHE="off", CXX="no-such-compiler", DAGUERRE_COMPILE="1").splitlines()
    assert len(said) == 2
    for line in said:
        assert "install a C++ compiler" in line and "a wheel" in line and "pip install 'daguerre[torch]'" in line


@pytest.mark.skipif(sys.platform == "win32", reason="no threads of OpenMP are counted there")
def test_threads_are_those_that_were_asked_for(tmp_path: Path) -> None:
    script = """
import daguerre
from daguerre.models.contention import num_threads
before = num_threads()
daguerre.load(threads=3)
print(before, num_threads())
"""
    assert run(script, tmp_path, OMP_NUM_THREADS="2") == "2 3\n"
