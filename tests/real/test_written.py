"""llama.cpp reads what Daguerre writes: made weights in F32, of each architecture that has windows or experts. Those
that it has had for longer are in tests/models/test_gguf_llama_cpp.py, which needs llama-cpp-python.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from conftest import MakeModel
from daguerre.models.gguf import pieces, writing
from daguerre.models.gguf.header import read_header
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import load_folder
from models.test_gguf import MIXTURES, mixture
from published import CASES, NUM_TOKENS, ROWS, ours, seen_by
from real.files import bring_llama_cpp

HERE = Path(__file__).parent
WINDOWS = {"gemma3, transformers 4": "gemma3", "mistral, windows": "llama", "phi3": "phi3", "phi3, longrope": "phi3"}
"""llama.cpp's architecture of cases of tests/published.py."""
WITHOUT_WINDOWS = ("llama", "phi3")
"""Architectures in which llama.cpp has none: there a row's logits are the same as long as it sees all before it."""
BLOCKS = ("sdar_moe", "llada2")
"""What it computes as if it were causal."""
BACKBONE = "bailingmoe2"
"""The architecture of its releases that has the tensors, keys and sums of a LLaDA2, in causal context."""
NUM = 24
CLOSE = {"gemma3": 1e-2}
"""How far logits of up to 20 may differ, where it is not 1e-4: llama.cpp looks GELU up in a table of half floats."""


def llama_cpp(path: Path, texts: list[list[int]]) -> list[np.ndarray]:
    """Logits (R, V) of the tokens of each text; of each row less a number of its own."""
    body = {"packages": str(bring_llama_cpp()), "model": str(path), "texts": [], "context": 256}
    given = json.dumps({**body, "rows": texts, "prompts": []})
    ran = subprocess.run(["node", str(HERE / "llama.mjs")], input=given, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [np.array(rows) for rows in json.loads(ran.stdout)["rows"]]


def check(path: Path, arch: str) -> None:
    """The logits of random tokens; and of a causal model the greedy text behind the first of them."""
    assert read_header(path).metadata["general.architecture"] == arch
    model = daguerre.load(path, dtype="float32", backend="torch")
    config, seen = model.config, ROWS
    if arch in WITHOUT_WINDOWS and config.windows is not None:
        seen = config.windows.size
    tokens = np.random.default_rng(0).integers(0, 250, ROWS)
    texts, num = [tokens.tolist()], 0
    if config.context == "causal":
        prompt = [*config.first, *tokens[: min(20, seen // 2)].tolist()]
        num = min(NUM, seen - len(prompt)) if seen < ROWS else NUM
        options: dict[str, Any] = {"mode": "ar", "heal": False, "stop_loops": False, "min_tokens": num}
        written = [token.id for token in model.generate(prompt[len(config.first) :], num, **options).tokens]
        assert len(written) == num
        texts.append([*prompt, *written])
    found, *greedy = llama_cpp(path, texts)
    wanted = ours("torch", model.backbone, tokens, seen_by(config)).double().numpy()
    known = np.isfinite(wanted[0])
    assert config.windows is None or config.windows.size < ROWS
    assert apart(found[:seen], wanted[:seen]) < CLOSE.get(arch, 1e-4)
    assert seen == ROWS or apart(found, wanted, same=False) > 0.1, "it has windows now: compare all rows"
    for rows in greedy:
        never = np.isin(np.arange(len(known)), config.ends) | ~known
        rows[:, never] = -np.inf
        assert rows[-num - 1 : -1].argmax(1).tolist() == texts[1][-num:]


def apart(found: np.ndarray, wanted: np.ndarray, same: bool = True) -> float:
    """How far logits (R, V) are from those that are wanted, whose likeliest tokens are the `same`."""
    known = np.isfinite(wanted[0])
    best = np.where(known, wanted, -np.inf).argmax(1)
    assert len(set(best.tolist())) > 4 and wanted[:, known].std(1).min() > 0.1
    assert not same or (np.where(known, found, -np.inf).argmax(1) == best).all()
    differences = (found - wanted)[:, known]
    return float(np.abs(differences - differences.mean(1, keepdims=True)).max())


def with_merges(folder: Path) -> Path:
    """The folder of a case, whose tokenizer now has a merge and Phi-3's names: llama.cpp has no other of this kind."""
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"]["vocab"]["ab"], values["model"]["merges"] = NUM_TOKENS, [["a", "b"]]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for number, text in enumerate(("<unk>", "<s>", "</s>"), NUM_TOKENS + 1):
        values["added_tokens"].append({"id": number, "content": text, "special": True, **flags})
    path.write_text(json.dumps(values))
    return folder


def test_models_with_windows_are_read(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (name, arch) in enumerate(WINDOWS.items()):
        with subtests.test(name):
            (folder := tmp_path / str(number)).mkdir()
            loaded = load_folder(with_merges(CASES[name].write(folder)))
            write_gguf(loaded.backbone, loaded.tokenizer, folder / "m.gguf", "f32", loaded.family)
            check(folder / "m.gguf", arch)


def test_mixtures_of_experts_are_read(make_model: MakeModel, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for family, (arch, facts) in MIXTURES.items():
        with subtests.test(family):
            if family in BLOCKS:
                pytest.skip(f"llama.cpp has no block context: {family}")
            model = mixture(make_model, facts)
            write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf", "f32")
            check(tmp_path / "m.gguf", arch)


def test_a_llada2_has_the_logits_of_its_backbone(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written under the backbone's name, since no release has its own."""
    model = mixture(make_model, MIXTURES["llada2"][1])
    monkeypatch.setattr(writing, "arch_of", lambda *_: BACKBONE)
    monkeypatch.setattr(writing, "UNTIED", (BACKBONE,))
    monkeypatch.setitem(writing.ARCHITECTURES, BACKBONE, {})
    monkeypatch.setitem(pieces.FUSED, BACKBONE, pieces.FUSED["llada2"])
    write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf", "f32", "llada2")
    tokens = np.random.default_rng(0).integers(0, 250, ROWS)
    causal = torch.ones(ROWS, ROWS, dtype=torch.bool).tril()
    (found,) = llama_cpp(tmp_path / "m.gguf", [tokens.tolist()])
    assert apart(found, ours("torch", model.backbone, tokens, causal).double().numpy()) < 1e-4
