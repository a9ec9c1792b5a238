"""How much memory a run takes, by arithmetic: the same whether a model is there or only its shapes.

Weights, gradients, the optimizer's state and the average are counted. What a forward keeps for the backward pass is a
formula of the operations of `models.core.backbone`, as PyTorch runs them on a CPU. Tests hold the sum to the measured
peak of a step.

In the formulas e is the bytes of a number.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from daguerre.heldout import load_frozen
from daguerre.models.core.attention import tiles
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.lora_factors import adapted
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import Batch
from daguerre.train.data import Cutter, MicroBatches, TextWindows
from daguerre.train.feed import Maker
from daguerre.train.noising import IGNORE
from daguerre.train.optim import is_hidden
from daguerre.train.recipe import Recipe
from daguerre.train.shards import Shard, write_shards
from daguerre.train.stage import Stage

FLOAT = 4
PASSES = 7
"""Numbers of a row of logits that are there at once while it is compared to a teacher's."""
DRAWN = 8
"""Micro-batches of each stage that are looked at for the largest one."""
DOCUMENTS = 40
"""Of the sample that stands for a corpus."""


@dataclass(frozen=True, order=True)
class BatchRows:
    """A micro-batch: all its rows, how many numbers of attention a head has for them, and how many rows are scored."""

    rows: int
    products: int
    scored: int

    @classmethod
    def of(cls, batch: Batch) -> BatchRows:
        """Of a micro-batch: rows are multiplied with the keys of their tile (`models.core.attention.tiles`)."""
        device = batch.tokens.device
        parts = [part for block in batch.layout.blocks(None) for *_, part in tiles(block, device)]
        products = len(batch.tokens) * sum(part.shape[2] * part.shape[3] for part in parts)
        return cls(batch.tokens.numel(), products, int((batch.target != IGNORE).sum()))


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of a run. Where a step is one micro-batch, gradients come as activations go: `at_once` is false."""

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    at_once: bool = True

    @property
    def total(self) -> int:
        """The peak."""
        both = self.gradients, self.activations
        return self.weights + self.optimizer + self.average + (sum(both) if self.at_once else max(both))

    def parts(self) -> dict[str, int]:
        """Bytes by what they are for."""
        return {name: num for name, num in asdict(self).items() if name != "at_once"}

    def line(self) -> str:
        """For people."""
        parts = ", ".join(f"{name} {in_megabytes(num)}" for name, num in self.parts().items())
        return f"memory of a step, by arithmetic: {in_megabytes(self.total)} ({parts})"


def in_megabytes(num: int) -> str:
    """Bytes for people."""
    return f"{num / 1e9:,.2f} GB" if num >= 1e9 else f"{num / 1e6:,.1f} MB"


def memory_of(model: Backbone, recipe: Recipe, rows: BatchRows, dtype: torch.dtype, devices: int = 1) -> TrainingMemory:
    """The memory of a step on micro-batches of so many rows; the model may be on the meta device. Of several devices
    each holds a part of all but the activations, to which the weights that are gathered are counted; the model may be
    cut already, as long as names have whole shapes.
    """
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    num = sum(weight.numel() for weight in trained.values())
    hidden = [weight for name, weight in trained.items() if weight.ndim == 2 and is_hidden(name)]
    muon = sum(weight.numel() for weight in hidden) if recipe.optim.muon else 0
    compared = recipe.prefer is not None or recipe.distill is not None or (recipe.sft is not None and recipe.sft.keep)
    compared = compared or (recipe.reinforce is not None and recipe.reinforce.kl)
    kept = FLOAT * num if compared else 0  # earlier values
    if recipe.teacher is not None:
        kept += sum(weight.numel() * dtype.itemsize for weight in model.parameters())
    return TrainingMemory(
        weights=(sum(weight.numel() * weight.itemsize for weight in model.parameters()) + kept) // devices,
        gradients=FLOAT * num // devices,
        optimizer=FLOAT * (muon + 2 * (num - muon)) // devices,
        average=FLOAT * num // devices,
        activations=_activations(model, recipe, rows, dtype.itemsize, devices > 1),
        at_once=any(stage.micro_batches > 1 for stage in recipe.stages),
    )


def _activations(model: Backbone, recipe: Recipe, rows: BatchRows, e: int, gathered: bool) -> int:
    config, first = model.config, _first_layer(model)
    norms = any(weight.requires_grad for name, weight in model.named_parameters() if "attention_norm" in name)
    layers = [_layer(config, layer, rows, e, recipe.attn_impl, norms) for layer in range(first, config.num_layers)]
    factors = sum(e * len(pair.a) for _, _, pair in adapted(model) if not pair.embedding) * rows.rows
    copies = _gathered(model, e) if gathered else _rounded(model, e)
    head = _norm(config.width, e, norms) * rows.rows + _head(config, e) * rows.scored
    if recipe.teacher is not None:  # a few rows at a time, of both; and the sum of their gradients of the projection
        part = min(rows.scored, recipe.teacher.rows)
        states = 2 * FLOAT * config.width * rows.scored
        head = _norm(config.width, e, norms) * rows.rows + states + PASSES * FLOAT * config.vocab_size * part
        head += 2 * FLOAT * model.projection.numel() * int(model.projection.requires_grad)
    if (
        recipe.checkpoint_layers and layers
    ):  # layers keep their inputs, and one at a time the rest, when logits are gone
        inputs = e * config.width * rows.rows * len(layers)
        return copies + inputs + max(head, max(layers) + factors // config.num_layers)
    return copies + sum(layers) + factors + head


def _rounded(model: Backbone, e: int) -> int:
    """Copies of float32 matrices in the type that they are multiplied in."""
    return e * sum(weight.numel() for weight in model.parameters() if weight.ndim > 1 and weight.itemsize > e)


def _gathered(model: Backbone, e: int) -> int:
    """Whole weights outside of layers, and two layers at a time: the one that is computed, and the next."""
    outside = {name: weight for name, weight in model.named_parameters() if not name.startswith("layers.")}
    first = sum(weight.numel() for name, weight in model.named_parameters() if name.startswith("layers.0."))
    return sum(weight.numel() * (weight.itemsize + e * (e < FLOAT)) for weight in outside.values()) + 2 * e * first


def _first_layer(model: Backbone) -> int:
    """The first layer that keeps anything: the first with weights that are trained, or that follows such weights."""
    trained = [name.split(".") for name, weight in model.named_parameters() if weight.requires_grad]
    behind = ("final_norm", "final_modulation", "output", "draft_head", "concepts")
    numbers = [int(words[1]) if words[0] == "layers" else 0 for words in trained if words[0] not in behind]
    return min(numbers, default=model.config.num_layers)


def _norm(width: int, e: int, trained: bool) -> int:
    """A norm's input, and its result if that is multiplied by a weight that is trained, in float32; and the product."""
    return FLOAT * (width * (1 + trained) + 1) + e * width


def _layer(config: ModelConfig, layer: int, rows: BatchRows, e: int, attn_impl: str, norms: bool) -> int:
    heads, keys, head = config.num_heads, config.num_kv_heads, config.head_width
    per_row = 2 * _norm(config.width, e, norms) + e * (heads + 2 * keys) * head  # norms; qkv
    if config.qk_norm:  # normalized heads; in 16 bits also what is normalized
        per_row += FLOAT * (heads + keys) * (1 + head * (norms + (e != FLOAT)))
    per_row += e * (heads + keys) * head + e * heads * head  # rotated queries and keys; what attention gives
    scores = e * heads * rows.products if attn_impl == "matmul" else FLOAT * heads * rows.rows
    modulated = e * 8 * config.width if config.adaptive_width else 0
    return (per_row + modulated + _mlp(config, layer, e)) * rows.rows + scores


def _mlp(config: ModelConfig, layer: int, e: int) -> int:
    """Of a row: the results of the first matrix, of the activation, and of its product with the gate."""
    experts = config.experts_of(layer)
    if experts is None:
        return e * config.mlp_width * (4 if config.gated_mlp else 2)
    chosen = experts.per_token * (e * (4 * experts.width + config.width) + FLOAT * config.width)
    return chosen + e * 4 * experts.shared_width + 2 * FLOAT * experts.num


def _head(config: ModelConfig, e: int) -> int:
    """Of a scored row, in float32: its logits with and without reserved tokens, and the logarithms of its chances; in
    16 bits also the logits as they are multiplied.
    """
    return 3 * FLOAT * config.vocab_size + (e if e != FLOAT else 0) * config.vocab_size + e * config.width


def largest(batches: Maker, stages: Iterable[Stage]) -> BatchRows:
    """The largest of the first micro-batches of every stage."""
    return max(BatchRows.of(batches.draw(index, stage)) for stage in stages for index in range(DRAWN))


def made_rows(recipe: Recipe, config: ModelConfig, tokenizer: Tokenizer | None) -> BatchRows:
    """The largest micro-batch of a recipe on the held-out sample of the package, for want of a corpus; without a
    vocabulary that marks where texts begin, three rows for each token.
    """
    if tokenizer is None or tokenizer.bos_id is None:
        stage = max(recipe.stages, key=lambda stage: stage.sequences * stage.length**2)
        num, length = stage.sequences, stage.length
        return BatchRows(3 * num * length, 7 * num * length**2, 3 * num * length)
    with tempfile.TemporaryDirectory() as folder:
        texts = [document.text for document in load_frozen()[:DOCUMENTS]]
        write_shards(Path(folder), {"train": texts, "val": []}, tokenizer)
        windows = TextWindows(Shard.open(Path(folder), "train"), tokenizer.bos_id)
        made = MicroBatches(windows, Cutter(tokenizer), recipe.make_mixture(config), recipe.seed)
        return largest(made, recipe.stages)
