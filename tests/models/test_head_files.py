"""Concept heads of published models: they explain and steer a model whose own numbers they leave alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

pytest.importorskip("gguf")
pytest.importorskip("torch")

import daguerre
from backends import needs_compiler
from concept_models import CATALOG
from concept_models import SHAPE as SMALL
from daguerre import Operation, Steering
from daguerre.audit.facts import model_facts
from daguerre.decoding.result import Result
from daguerre.engine.engine import Engine
from daguerre.errors import CheckpointError, UnsupportedError
from daguerre.models.added_weights import fingerprint
from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.models.draft_files import save_draft_folder
from daguerre.models.export import export
from daguerre.models.head_files import CONFIG, WEIGHTS, save_head_folder
from daguerre.models.loading import load_folder, open_source
from daguerre.scoring.concept_search import ConceptReader
from daguerre.train.drafts.run import make_head

DATA = Path(__file__).parents[1] / "data" / "gguf"
FILES = ("llama-q4_k", "qwen2-q8_0", "qwen3-q6_k")
SHAPE = replace(SMALL, reads=True)
PROMPT = "def area(points):\n    "
KINDS: list[dict[str, Any]] = [{}, {"dtype": "float32", "quantize": "q8_0"}, {"backend": "torch", "dtype": "float32"}]


def write(folder: Path, file: Path, seed: int = 0) -> Path:
    """Random concept heads for a file."""
    width = load_folder(file, defer=True, drafts="none", concepts="none").weights.config.width
    import torch

    heads, generator = ConceptHeads(width, SHAPE), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in heads.parameters():
            weight.normal_(0, width**-0.5, generator=generator)
        heads.known_embedding.weight.mul_(8)
    tensors = {f"concepts.{name}": value for name, value in heads.state_dict().items()}
    save_head_folder(folder, tensors, {"name": file.name, "sha256": fingerprint([file])}, SHAPE, CATALOG, {})
    return folder


@pytest.fixture(scope="module", params=FILES)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    shutil.copy(DATA / path.name, path)
    return path


@pytest.fixture(scope="module")
def heads(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("heads"), file)


def tokens(result: Result) -> list[tuple[str, float]]:
    return [(token.text, token.logprob) for token in result.tokens]


@needs_compiler
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_distributions_keep_their_bits_and_explanations_add_up(file: Path, heads: Path, kind: dict[str, Any]) -> None:
    plain, model = daguerre.load(file, **kind), daguerre.load(file, concepts=heads, **kind)

    result = model.generate(PROMPT, 12, explain=True)

    assert tokens(result) == tokens(plain.generate(PROMPT, 12))
    assert plain.nll(PROMPT).value == model.nll(PROMPT).value
    assert result.concepts is not None and result.concepts.error() < (1e-5 if "dtype" in kind else 1e-2)
    assert {"loop", "call"} <= {*model.concepts.by_name} and plain.concepts is None  # type: ignore[union-attr]
    attributed = model.attribute(result, 0)
    assert abs(attributed.error) < 0.05 and np.abs(attributed.scores).max() > 0


@needs_compiler
def test_native_heads_are_those_of_the_modules(file: Path, heads: Path) -> None:
    native, modules = (
        daguerre.load(file, concepts=heads, dtype="float32", backend=backend).denoiser.heads
        for backend in ("native", "torch")
    )
    assert native is not None and modules is not None
    hidden = np.random.default_rng(0).standard_normal((5, native.config.width)).astype(np.float32)

    for name in ("logits", "read_logits", "weights"):
        np.testing.assert_allclose(getattr(native, name)(hidden), getattr(modules, name)(hidden), atol=1e-5)
    assert not np.allclose(native.read_logits(hidden), native.known_logits(hidden), atol=0.1)


@needs_compiler
def test_speculation_constraints_and_gaps_are_steered_and_explained(file: Path, heads: Path) -> None:
    model = daguerre.load(file, concepts=heads)
    program = Steering((Operation(kind="add", concepts="call", strength=6.0),))
    options: dict[str, Any] = {"steer": program, "forbid": ["literal"], "explain": True, "heal": False}

    ar = model.generate(PROMPT, 16, mode="ar", **options)
    speculative = model.generate(PROMPT, 16, mode="speculative", drafter="lookup", **options)
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    valid = model.generate(PROMPT, 32, schema=schema, **options)
    filled = model.infill("def f(x):\n    return ", "\n", 6, explain=True, forbid=["call"])

    assert tokens(ar) == tokens(speculative)
    assert tokens(ar) != tokens(model.generate(PROMPT, 16, mode="ar", heal=False))
    assert json.loads(valid.text)["n"] in (1, 2)
    for result in (ar, speculative, valid, filled):
        assert result.concepts is not None and len(result.concepts.tokens) == len(result.tokens)


@needs_compiler
def test_drafts_and_heads_go_together(file: Path, heads: Path, tmp_path: Path) -> None:
    shape = {"draft_head": 40, "draft_tokens": list(range(10, 300, 3))}
    config = replace(load_folder(file, defer=True, drafts="none").weights.config, **shape)  # type: ignore[arg-type]
    head = {f"draft_head.{name}": value for name, value in make_head(config, 1).state_dict().items()}
    save_draft_folder(tmp_path, head, {"name": file.name, "sha256": fingerprint([file])}, shape, {})
    model = daguerre.load(file, concepts=heads, drafts=tmp_path)

    result = model.generate(PROMPT, 16, mode="speculative", drafter="head", block_size=4, explain=True, heal=False)

    assert result.usage.head_drafted and result.concepts is not None
    assert result.text == daguerre.load(file).generate(PROMPT, 16, mode="ar", heal=False).text
    with Engine(model) as engine:
        job = engine.generate(PROMPT, 16, forbid=["call"], explain=True)
        assert job.result().text == model.generate(PROMPT, 16, forbid=["call"]).text


@needs_compiler
def test_what_was_read_is_read_by_a_map_of_its_own(file: Path, heads: Path) -> None:
    model = daguerre.load(file, concepts=heads, dtype="float32")
    ids, found = model.tokenizer.encode("def f(x):\n    return x"), model.denoiser.heads
    assert found is not None
    values = ConceptReader(model.denoiser, found, None, "peak").read([ids])[0]

    from daguerre.scoring.embedding import clean_forward

    (answer,) = model.denoiser.backend.forward([clean_forward(model.config, ids)])
    assert answer.hidden is not None
    np.testing.assert_allclose(values[:, : SHAPE.known], found.read_logits(answer.hidden), atol=1e-4)


def test_a_record_names_the_heads_beside_the_model(file: Path, heads: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"dtype": "float32", "backend": "torch"}
    plain, one, other = (
        model_facts(daguerre.load(file, concepts=chosen, **options), str(file))
        for chosen in ("none", heads, write(tmp_path, file, seed=1))
    )
    assert plain["weights_sha256"] == one["weights_sha256"] == other["weights_sha256"]
    assert plain["concepts_sha256"] is None and one["concepts_sha256"] != other["concepts_sha256"]
    assert one["catalog_sha256"] and not plain["catalog_sha256"]


def test_heads_beside_a_model_are_found_and_others_refused(file: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / file.name, tmp_path / "other.gguf"
    shutil.copy(file, copy)
    assert load_folder(copy, defer=True).concepts is None
    folder = write(tmp_path / f"{file.name}.concepts", copy)

    assert load_folder(copy, defer=True).weights.config.concepts == SHAPE
    assert load_folder(copy, defer=True).concepts == CATALOG
    assert load_folder(copy, defer=True, concepts="none").weights.config.concepts is None

    content = bytearray(file.read_bytes())
    content[-7] ^= 1
    other.write_bytes(content)
    with pytest.raises(CheckpointError, match="these are other weights"):
        load_folder(other, defer=True, concepts=folder)
    shutil.copytree(folder, tmp_path / "other.gguf.concepts")
    assert load_folder(other, defer=True).concepts is None  # beside it: left out, with a warning


def test_heads_beside_a_folder_are_found_by_the_hash_of_its_weights(file: Path, tmp_path: Path) -> None:
    loaded, folder = load_folder(file, defer=True, concepts="none"), tmp_path / "model"
    export(loaded.weights, loaded.tokenizer, folder, "bfloat16")
    (weights,) = open_source(folder).weight_files()
    write(tmp_path / "model.concepts", file)
    assert load_folder(folder, defer=True).concepts is None, "they are for the file"
    values = json.loads((tmp_path / "model.concepts" / CONFIG).read_text())
    values["base"]["sha256"] = fingerprint([weights])
    (tmp_path / "model.concepts" / CONFIG).write_text(json.dumps(values))
    assert load_folder(folder, defer=True).concepts == CATALOG


def test_damaged_heads_are_refused(file: Path, heads: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(heads, copy)
    values = json.loads((copy / CONFIG).read_text())
    (copy / CONFIG).write_text(json.dumps(values | {"shape": values["shape"] | {"rank": 6}}))
    with pytest.raises(CheckpointError, match="other tensors"):
        load_folder(file, defer=True, concepts=copy)
    (copy / CONFIG).write_text(json.dumps(values | {"shape": values["shape"] | {"kept_known": 600}}))
    with pytest.raises(CheckpointError, match="no shape of heads"):
        load_folder(file, defer=True, concepts=copy)
    (copy / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match="copy the whole folder"):
        load_folder(file, defer=True, concepts=copy)


def test_heads_are_not_of_a_model_with_an_adapter(file: Path, heads: Path, tmp_path: Path) -> None:
    name, rng = "base_model.model.model.layers.0.self_attn.o_proj.lora_", np.random.default_rng(0)
    width = load_folder(file, defer=True).weights.config.width
    factors = {
        f"{name}{key}.weight": rng.standard_normal(shape).astype(np.float32)
        for key, shape in (("A", (4, width)), ("B", (width, 4)))
    }
    save_file(factors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    with pytest.raises(UnsupportedError, match="without an adapter"):
        load_folder(file, defer=True, adapter=tmp_path, concepts=heads)
    assert load_folder(file, defer=True, adapter=tmp_path).concepts is None


@needs_compiler
def test_a_record_of_a_steered_answer_is_replayed(file: Path, heads: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from daguerre.audit.keys import SigningKey
    from daguerre.audit.recorder import Recorder
    from daguerre.audit.verification import verify

    key, ledger = SigningKey.make(tmp_path / "audit.key"), tmp_path / "audit.jsonl"
    model = daguerre.load(file, concepts=heads, dtype="float32")
    with Recorder(str(ledger), model, key, name=str(file)) as recorder:
        recorder.generate(PROMPT, 8, forbid=["call"], explain=True, heal=False)

    report = verify(ledger, model, public=key.public)
    assert list(report.complaints()) == [] and report.num_replayed == 1


@needs_compiler
def test_a_server_explains_and_steers_with_heads(file: Path, heads: Path) -> None:
    client = pytest.importorskip("fastapi.testclient")
    from daguerre.server.app import make_app
    from daguerre.server.models import ModelPool

    model = daguerre.load(file, concepts=heads)
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "daguerre": {"explain": True, "forbid": ["call"]}}
    with client.TestClient(make_app(ModelPool({"m": lambda: model}))) as asked:
        names = asked.get("/v1/daguerre/concepts").json()
        answer = asked.post("/v1/completions", json=body)

    assert "loop" in {one["name"] for one in names["data"]}
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["text"] == model.generate(PROMPT, 8, forbid=["call"], temperature=0).text
    assert "concepts" in json.dumps(answer.json()["choices"])
