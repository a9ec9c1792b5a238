"""Concept heads as sparse autoencoders: the files against the formulas, and read back by SAELens itself.

SAELens brings two gigabytes, so its tests are skipped where it is not installed; `make saelens` installs it apart.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import MakeModel
from daguerre.commands.models import export_model
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.catalog import Catalog, NamedConcept
from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.models.core.config import ConceptShape
from daguerre.models.export import export
from daguerre.models.loading import save_model
from daguerre.models.saelens import FOLDERS, READER, RELEASE, export_concepts

SHAPE = {"known": 12, "discovered": 20, "rank": 5, "kept_known": 4, "kept_discovered": 6, "taxonomy": "abc"}
SHAPES: dict[str, dict[str, Any]] = {
    "with biases": {},
    "without biases, with spare rows": {"bias": False, "spare_known": 3, "spare_discovered": 2},
}
NAMES = (
    NamedConcept(number=0, name="for_loop", group="control", description="a loop over items"),
    NamedConcept(number=7, name="lambda", group="functions"),
)


def with_heads(make_model: MakeModel, **facts: Any) -> Model:
    """A random model with heads of random weights of variance 1."""
    model = make_model(concepts=ConceptShape(**SHAPE | facts))
    random = torch.Generator().manual_seed(3)
    assert model.backbone.concepts is not None
    with torch.no_grad():
        for weight in model.backbone.concepts.parameters():
            weight.copy_(torch.randn(weight.shape, generator=random))
    return model


def catalog_of(model: Model) -> Catalog:
    return Catalog(NAMES, SHAPE["known"], SHAPE["discovered"], "abc")


def hidden_states(model: Model) -> torch.Tensor:
    """Rows (40, D), in the last of which most logits are cut off at 15, and equal."""
    out = 0.4 * torch.randn(40, model.config.width, generator=torch.Generator().manual_seed(1))
    out[-4:] *= 1000
    return out


def expected(heads: ConceptHeads, hidden: torch.Tensor, folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The kept weights and the part of hidden states, as the heads compute them."""
    weights, parts = heads.weights(hidden), heads.decompose(hidden)
    num = heads.shape.known
    return {
        "known": (weights[:, :num], parts.known),
        "discovered": (weights[:, num:], parts.discovered),
        "all": (weights, parts.known + parts.discovered),
    }[folder]


@pytest.fixture(params=SHAPES)
def model(request: pytest.FixtureRequest, make_model: MakeModel) -> Model:
    return with_heads(make_model, **SHAPES[request.param])


def test_the_written_tensors_give_the_weights_and_the_part_by_the_formula(
    model: Model, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    assert export_concepts(model.backbone, catalog_of(model), tmp_path / "out", "m") == FOLDERS
    for folder in FOLDERS:
        with subtests.test(folder):
            config = json.loads((tmp_path / "out" / folder / "cfg.json").read_text())
            tensors = {
                name: one.double().numpy()
                for name, one in load_file(tmp_path / "out" / folder / "sae_weights.safetensors").items()
            }
            assert tensors["W_enc"].shape == (config["d_in"], config["d_sae"]) == tensors["W_dec"].shape[::-1]
            assert tensors["b_enc"].shape == (config["d_sae"],)
            assert not tensors["b_dec"].any()

            hidden = hidden_states(model)
            logits = hidden.double().numpy() @ tensors["W_enc"] + tensors["b_enc"]
            assert np.abs(logits).max() > 20
            dense = 1 / (1 + np.exp(-np.clip(logits, -15, 15)))
            kept, first = np.zeros_like(dense), 0
            for num, most in config["heads"]:
                for row in range(len(dense)):
                    order = sorted(range(first, first + num), key=lambda place: (-dense[row, place], place))
                    kept[row, order[:most]] = dense[row, order[:most]]
                first += num
            assert first == config["d_sae"]

            assert model.backbone.concepts is not None
            weights, part = expected(model.backbone.concepts, hidden, folder)
            assert np.abs(kept - weights.numpy()).max() < 1e-5
            assert np.abs(kept @ tensors["W_dec"] - part.numpy()).max() < 1e-5 * np.abs(part.numpy()).max()


def test_the_config_says_what_and_where_and_concepts_have_their_names(make_model: MakeModel, tmp_path: Path) -> None:
    model = with_heads(make_model)
    export_concepts(model.backbone, catalog_of(model), tmp_path / "out", "here/m")
    configs = {name: json.loads((tmp_path / "out" / name / "cfg.json").read_text()) for name in FOLDERS}
    assert {name: one["heads"] for name, one in configs.items()} == {
        "known": [[12, 4]],
        "discovered": [[20, 6]],
        "all": [[12, 4], [20, 6]],
    }
    assert configs["discovered"]["metadata"] == {
        "model_name": "here/m",
        "model_class_name": "AutoModelForCausalLM",
        "hook_name": "model.norm",
        "context_size": 256,
        "prepend_bos": True,
        "neuronpedia_id": "here/m/final-discovered",
        "first_concept": 12,
        "taxonomy_sha256": "abc",
        "sae_lens_version": RELEASE,
        "sae_lens_training_version": None,
    }
    lines = [json.loads(line) for line in (tmp_path / "out" / "known" / "explanations.jsonl").read_text().splitlines()]
    assert [(one["index"], one["description"]) for one in lines] == [
        ("0", "for_loop: a loop over items"),
        ("7", "lambda"),
    ]
    assert {(one["modelId"], one["layer"]) for one in lines} == {("here/m", "final-known")}
    assert (tmp_path / "out" / "discovered" / "explanations.jsonl").read_text() == ""
    assert "the token after" in (tmp_path / "out" / "README.md").read_text()


def test_a_model_that_transformers_does_not_compute_has_no_hook(make_model: MakeModel, tmp_path: Path) -> None:
    model = with_heads(make_model)
    other = make_model(concepts=model.config.concepts, norm_placement="post", shift=False)
    export_concepts(other.backbone, catalog_of(other), tmp_path / "out", "m")
    assert "hook_name" not in json.loads((tmp_path / "out" / "all" / "cfg.json").read_text())["metadata"]
    assert "the token at" in (tmp_path / "out" / "README.md").read_text()


def test_the_command_writes_both_folders_and_the_heads_exactly(make_model: MakeModel, tmp_path: Path) -> None:
    model = with_heads(make_model)
    folder = save_model(tmp_path / "model", model.backbone, model.tokenizer, torch.float32, catalog=catalog_of(model))
    export_model(str(folder), out=tmp_path / "hf", saelens=tmp_path / "sae")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert load_file(tmp_path / "hf" / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16
    assert "concept heads" in (tmp_path / "hf" / "README.md").read_text()
    assert model.backbone.concepts is not None
    written = load_file(tmp_path / "sae" / "known" / "sae_weights.safetensors")
    assert torch.equal(written["W_dec"], model.backbone.concepts.known_embedding.weight)
    metadata = json.loads((tmp_path / "sae" / "known" / "cfg.json").read_text())["metadata"]
    assert metadata["model_name"] == str(tmp_path / "hf")
    assert "for_loop" in (tmp_path / "sae" / "known" / "explanations.jsonl").read_text()


def test_what_the_command_cannot_write_is_said(
    make_model: MakeModel, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    model = with_heads(make_model)
    folder = save_model(tmp_path / "model", model.backbone, model.tokenizer)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    for given, says in [
        ({}, "--out FOLDER"),
        ({"saelens": "a", "dtype": "float32"}, "--dtype is for --out"),
        ({"saelens": "a", "out": "a"}, "two folders"),
        ({"out": "a", "dtype": "float16"}, "unknown dtype"),
        ({"saelens": "full"}, "not an empty folder"),
    ]:
        with subtests.test(says), pytest.raises(InputError, match=says):
            export_model(
                str(folder), **{key: value if key == "dtype" else tmp_path / value for key, value in given.items()}
            )


def test_a_model_without_heads_is_refused_before_a_folder_is_made(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    with pytest.raises(UnsupportedError, match="no concept heads"):
        export_concepts(model.backbone, Catalog((), 1, 1), tmp_path / "out", "m")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def saelens(model: Model, tmp_path: Path) -> Iterator[tuple[Any, Path]]:
    """SAELens with the exported folder's own file imported, as its README.md says, and the folder."""
    package = pytest.importorskip("sae_lens", reason="make saelens installs it")
    out = tmp_path / "out"
    export_concepts(model.backbone, catalog_of(model), out, "m")
    spec = importlib.util.spec_from_file_location("concept_sae", out / READER)
    assert spec is not None and spec.loader is not None
    with pytest.MonkeyPatch.context() as patch:
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "concept_sae", module)
        spec.loader.exec_module(module)
        yield package, out


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("folder", FOLDERS)
def test_saelens_computes_our_weights_and_our_part(
    saelens: tuple[Any, Path], model: Model, folder: str, tmp_path: Path
) -> None:
    package, out = saelens
    sae = package.SAE.load_from_disk(out / folder)
    hidden = hidden_states(model)
    assert model.backbone.concepts is not None
    weights, part = expected(model.backbone.concepts, hidden, folder)
    with torch.no_grad():
        found = sae.encode(hidden)
        assert (found - weights).abs().max() < 1e-5
        assert ((found > 0) == (weights > 0)).all()
        assert (sae.decode(found) - part).abs().max() < 1e-5 * part.abs().max()
        assert (sae(hidden) - part).abs().max() < 1e-5 * part.abs().max()

    sae.save_model(tmp_path / "again")
    again = package.SAE.load_from_disk(tmp_path / "again")
    assert torch.equal(again.encode(hidden), found)
    with pytest.raises(NotImplementedError, match="fold_W_dec_norm"):
        package.SAE.load_from_disk(out / folder, fold_W_dec_norm=True)


@pytest.mark.filterwarnings("ignore")
def test_saelens_finds_the_hidden_states_in_the_exported_model(
    saelens: tuple[Any, Path], model: Model, tmp_path: Path
) -> None:
    """What its hook reads, and its autoencoder makes of it, is what this package computes."""
    from sae_lens.load_model import load_model

    package, out = saelens
    export(model.backbone, model.tokenizer, tmp_path / "hf", torch.float32)
    sae = package.SAE.load_from_disk(out / "known")
    theirs = load_model(sae.cfg.metadata.model_class_name, str(tmp_path / "hf"), "cpu")
    ids = model.tokenizer.encode("def f(x):\n    return [y for y in x]\n")
    with torch.no_grad():
        _, cache = theirs.run_with_cache(
            torch.tensor([[*model.config.first, *ids]]), names_filter=[sae.cfg.metadata.hook_name]
        )
        hidden = cache[sae.cfg.metadata.hook_name][0, len(model.config.first) :]
        mean = sae.encode(hidden).double().mean(dim=0)
    own = Model(model.backbone, model.tokenizer, "torch").embed([ids], kind="concepts")[0]
    ours = own[: sae.cfg.d_sae]
    assert np.abs((mean / mean.norm()).numpy() - ours / np.linalg.norm(ours)).max() < 1e-4
