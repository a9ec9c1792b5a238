"""Write concept heads as sparse autoencoders in SAELens' layout: `cfg.json` and `sae_weights.safetensors` in a folder.

A head is an autoencoder of hidden states x (D): weights = kept(sigmoid(clamp(x @ W_enc + b_enc))), its part of x is
weights @ W_dec + b_dec, and SAELens' error term is the residual. For the known head W_enc is the transposed predictor
and W_dec the concepts' vectors; for the discovered head both are the products of its low-rank matrices. b_dec is 0.

SAELens (6.54) knows no architecture with a sigmoid: its "topk" is relu(topk(z)), which keeps the same concepts and
gives them other weights. So the folder has a file, `concept_sae.py`, that registers one by SAELens' own means
(`register_sae_class`) and needs nothing of this package. tests/models/test_saelens.py reads a folder back with it.

Weights and parts are the heads' own up to rounding: within 2e-7 and 3e-6 on 4,151 held-out rows, with random heads on
the default model. W_enc of the discovered head is a product that the heads never form, so two of its concepts whose
weights are equal but for rounding may change places at the edge of what is kept: in one of these rows they did.

Letters: D width, C concepts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daguerre.errors import UnsupportedError, no_concept_heads
from daguerre.models.bits import floats
from daguerre.models.catalog import Catalog
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.shapes import CLAMP
from daguerre.models.export import as_json, class_of, make_folder, write_file, written
from daguerre.models.heads import CONCEPTS
from daguerre.models.model_weights import ModelWeights, weights_of
from daguerre.models.weights import formatted_arrays

if TYPE_CHECKING:
    from daguerre.models.core.backbone import Backbone

RELEASE = "6.54.12"
"""The version of SAELens whose layout this is, and that the folders were read back with."""
ARCHITECTURE = "daguerre_concepts"
READER = "concept_sae.py"
FOLDERS = ("known", "discovered", "all")
FINAL_NORM = "model.norm"
"""The module of transformers' Llama and Qwen whose output the heads read."""


@dataclass(frozen=True, eq=False)
class Autoencoder:
    """A head, or both, as SAELens has it.

    heads    for each head how many concepts it has, and how many a hidden state keeps
    tensors  W_enc (D, C), b_enc (C,), W_dec (C, D), b_dec (D,), float32
    first    the number of its first concept
    """

    heads: tuple[tuple[int, int], ...]
    tensors: dict[str, np.ndarray]
    first: int = 0

    @property
    def num(self) -> int:
        """C."""
        return len(self.tensors["b_enc"])


def export_concepts(model: Backbone | ModelWeights, catalog: Catalog, folder: Path, model_name: str) -> tuple[str, ...]:
    """Write the heads of a model into a new or empty folder: one folder for each of FOLDERS, and how to read them.
    Returns the names of these folders.

    model_name  what the metadata call the model, such as a folder that `models.export.export` wrote

    UnsupportedError for a model without concept heads; InputError for a folder that is not empty or cannot be written.
    """
    weights = weights_of(model)
    prepare(weights.config, folder)
    with written(folder):
        for name, one in autoencoders(weights).items():
            (folder / name).mkdir()
            layer = f"final-{name}"
            lines = [
                json.dumps(line, ensure_ascii=False) + "\n" for line in explanations(one, catalog, model_name, layer)
            ]
            write_file(folder / name / "sae_weights.safetensors", formatted_arrays(one.tensors))
            write_file(folder / name / "explanations.jsonl", "".join(lines))
            write_file(folder / name / "cfg.json", as_json(sae_config(one, weights.config, model_name, layer)))
        reader = resources.files("daguerre") / "assets" / "saelens" / "concept_sae.txt"
        write_file(folder / READER, reader.read_text(encoding="utf-8"))
        write_file(folder / "README.md", readme(weights.config))
    return FOLDERS


def prepare(config: ModelConfig, folder: Path) -> None:
    """Make the folder; with the errors of `export_concepts`, before any weights are read."""
    if config.concepts is None:
        raise no_concept_heads("the export")
    make_folder(folder)


def autoencoders(weights: ModelWeights) -> dict[str, Autoencoder]:
    """The heads, by the names in FOLDERS: each alone, and both together."""
    shape = weights.config.concepts
    assert shape is not None
    part = {name.removeprefix("concepts."): floats(x) for name, x in weights.outside(CONCEPTS).items()}
    known_rows, found_rows = slice(shape.known), slice(shape.discovered)
    down, basis = (part[f"discovered_{name}.weight"].astype(np.float64) for name in ("down", "basis"))
    known = _tensors(
        part["known_predictor.weight"][known_rows],
        part.get("known_predictor.bias"),
        part["known_embedding.weight"][known_rows],
    )
    discovered = _tensors(
        part["discovered_up.weight"][found_rows].astype(np.float64) @ down,
        part.get("discovered_up.bias"),
        part["discovered_coefficients.weight"][found_rows].astype(np.float64) @ basis.T,
    )
    both = {
        name: np.concatenate([known[name], discovered[name]], axis=int(name == "W_enc"))
        for name in ("W_enc", "b_enc", "W_dec")
    }
    of_known, of_discovered = (shape.known, shape.kept_known), (shape.discovered, shape.kept_discovered)
    return {
        "known": Autoencoder((of_known,), known),
        "discovered": Autoencoder((of_discovered,), discovered, shape.known),
        "all": Autoencoder((of_known, of_discovered), {**both, "b_dec": known["b_dec"]}),
    }


def _tensors(predictor: np.ndarray, bias: np.ndarray | None, vectors: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors of an autoencoder, of a predictor (C, D), its bias, with that of spare rows, and vectors (C, D)."""
    num, width = predictor.shape
    shift = np.zeros(num) if bias is None else bias[:num]
    tensors = {"W_enc": predictor.T, "b_enc": shift, "W_dec": vectors, "b_dec": np.zeros(width)}
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def sae_config(one: Autoencoder, config: ModelConfig, model_name: str, layer: str) -> dict[str, Any]:
    """The content of `cfg.json`: fields of SAELens' SAEConfig, those of `concept_sae.py`, and metadata."""
    assert config.concepts is not None
    return {
        "architecture": ARCHITECTURE,
        "d_in": config.width,
        "d_sae": one.num,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": False,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "heads": [list(head) for head in one.heads],
        "clamp": CLAMP,
        "metadata": {
            "model_name": model_name,
            **_hook(config),
            "context_size": config.max_positions,
            "prepend_bos": config.bos_id is not None,
            "neuronpedia_id": f"{model_name}/{layer}",
            "first_concept": one.first,
            "taxonomy_sha256": config.concepts.taxonomy,
            "sae_lens_version": RELEASE,
            "sae_lens_training_version": None,
        },
    }


def _hook(config: ModelConfig) -> dict[str, str]:
    """Where SAELens finds the hidden states, for a model that transformers computes."""
    try:
        class_of(config)
    except UnsupportedError:
        return {}
    return {"model_class_name": "AutoModelForCausalLM", "hook_name": FINAL_NORM}


def explanations(one: Autoencoder, catalog: Catalog, model_name: str, layer: str) -> Iterator[dict[str, Any]]:
    """A record of each concept that has a name, with the fields by which Neuronpedia knows explanations of features."""
    for named in sorted(catalog.concepts, key=lambda each: each.number):
        if one.first <= named.number < one.first + one.num:
            yield {
                "modelId": model_name,
                "layer": layer,
                "index": str(named.number - one.first),
                "description": ": ".join(part for part in (named.name, named.description) if part),
                "name": named.name,
                "group": named.group,
            }


def readme(config: ModelConfig) -> str:
    """How to read the folder, and what it means."""
    about = "the token after" if config.shift else "the token at"
    return f"""# Concept heads of a model of Daguerre, for SAELens

```python
import concept_sae  # the file in this folder: it registers the architecture
from sae_lens import SAE

sae = SAE.load_from_disk("known")  # or "discovered", or "all": both heads
weights = sae.encode(hidden)       # of hidden states after the model's last norm, (..., {config.width})
part = sae.decode(weights)         # hidden = part + residual
```

* The weights are those that the model itself computes: the sigmoid of a logit, 0 for all but the largest of each head.
* A hidden state's concepts are those of {about} its row.
* `explanations.jsonl` has the names and meanings of known concepts, in the fields that Neuronpedia uses.
* `hook_name` of `cfg.json` is the place of these hidden states in the folder that `daguerre export --out` writes; where
  there is none, transformers has no class for the model.
* SAELens' own architectures have no sigmoid. "topk" keeps the same concepts with relu(logit) in place of the weight:
  that is another decomposition, so none is written.
"""
