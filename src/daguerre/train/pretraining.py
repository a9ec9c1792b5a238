"""The methods that learn from plain text: a mixture of objectives, a draft head, and concept heads."""

from __future__ import annotations

from dataclasses import replace

import torch
from rich.console import Console

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import Batch, BatchLoss, LossReport, batch_loss, hidden_states
from daguerre.train.concept_heads import count_concepts, initialize_heads, with_concept_heads
from daguerre.train.concept_labels import corpus_labels
from daguerre.train.concept_loss import ConceptLoss
from daguerre.train.data import Cutter, LabeledWindows, MicroBatches, TextWindows
from daguerre.train.drafting import check_drafts, drafting_loss, with_draft_head
from daguerre.train.evaluation import VAL_SEED, Evaluation
from daguerre.train.method import Method
from daguerre.train.objectives import CONTEXT_OF
from daguerre.train.optim import Average
from daguerre.train.row_pool import DRAWN, PooledRows, RowPool, rows_of
from daguerre.train.shards import Shard, data_line
from daguerre.train.stage import Stage


class Pretraining(Method):
    """A mixture of objectives on plain text."""

    batches: MicroBatches

    def check(self, config: ModelConfig) -> None:
        mixture = self.recipe.make_mixture(config)
        for name, objective in mixture.objectives.items():
            if objective.context != config.context:
                fitting = ", ".join(layout for layout, context in CONTEXT_OF.items() if context == config.context)
                raise UnsupportedError(
                    f"mixture.{name} has the layout {objective.layout!r}, which is for {objective.context} context, "
                    f"and the model has {config.context} context: its layouts are {fitting}"
                )
            if config.masks_in_place and objective.layout != "next_token":
                raise UnsupportedError(
                    f"mixture.{name} trains masked rows to predict the next token, and this model's predict their own: "
                    'take layout = "next_token"'
                )
        self.check_layouts(config)
        if self.recipe.anneal and not (config.context == "full" and config.shift):
            raise UnsupportedError(
                'anneal opens the attention of a causal model: it needs context = "full" and a shift'
            )
        if config.null_id is None and "infill" in self.recipe.layouts:
            raise UnsupportedError("the model has no gap filler, which infilling needs: take infill out of the mixture")

    def check_layouts(self, config: ModelConfig) -> None:
        """InputError for layouts that are for another method."""
        if "groups" in self.recipe.layouts:
            raise InputError('the layout "groups" trains a draft head: set draft_head')

    def make_loss(self) -> BatchLoss:
        return batch_loss

    def check_data(self, shard: Shard) -> None:
        super().check_data(shard)
        if shard.answers is not None:
            raise InputError(
                f"{shard.folder} holds prompts, or prompts and answers: train on it with the recipe for them"
            )

    def maker(self, shard: Shard, seed: int) -> MicroBatches:
        windows = TextWindows(shard, self.tokenizer.bos_id)
        return MicroBatches(windows, Cutter(self.tokenizer), self.recipe.make_mixture(self.model.config), seed)

    def line(self) -> str:
        return data_line(self.train, self.val)

    def make_figures(self) -> Evaluation:
        length = self.recipe.stages[0].length
        return Evaluation(self.maker(self.val, VAL_SEED), self.model.config, length, self.device)


class Drafting(Pretraining):
    """A draft head, and low-rank weights of drafts, on drafts of a model that stays as it is."""

    def check_layouts(self, config: ModelConfig) -> None:
        check_drafts(self.recipe.make_mixture(config).objectives, self.recipe.draft_rank)

    def prepared(self, model: Backbone, tokenizer: Tokenizer, family: str | None) -> Backbone:
        return with_draft_head(model, self.recipe.draft_head, self.recipe.seed, self.recipe.draft_rank)

    def make_loss(self) -> BatchLoss:
        return drafting_loss

    def largest(self) -> None:
        return None


class ConceptLearning(Pretraining):
    """Concept heads with their model, or first alone, on labeled text."""

    loss: ConceptLoss
    forecasts = False
    _is_fresh = False
    _pool: tuple[Stage, RowPool] | None = None
    """The rows of a stage's micro-batches, as long as the backbone stays as it is."""

    def prepared(self, model: Backbone, tokenizer: Tokenizer, family: str | None) -> Backbone:
        assert self.recipe.concepts is not None
        self._is_fresh = model.config.concepts is None
        return with_concept_heads(model, self.recipe.concepts, self.recipe.seed)

    def make_loss(self) -> ConceptLoss:
        assert self.recipe.concepts is not None
        return ConceptLoss(self.recipe.concepts)

    def maker(self, shard: Shard, seed: int) -> MicroBatches:
        assert self.recipe.concepts is not None
        plain = super().maker(shard, seed)
        with Console(stderr=True, quiet=self.quiet).status("labeling") as status:

            def show(done: int, asked: int) -> None:
                status.update(f"labeling concepts: {done / 1e6:.1f}M of {asked / 1e6:.1f}M tokens")

            labels = corpus_labels(shard, self.tokenizer, self.recipe.concepts.labeled, show)
        return replace(plain, labeled=LabeledWindows(plain.windows, labels, self.tokenizer))

    def open(self, train: Shard, val: Shard) -> None:
        super().open(train, val)
        assert self.batches.labeled is not None
        counts = count_concepts(self.batches.labeled, self.tokenizer.vocab_size)
        self.loss = replace(self.loss, tokens=counts.tokens_of().to(self.device))
        if self._is_fresh:
            initialize_heads(self.model, counts, self.recipe.seed)
            self.average.values = Average(self.model, self.average.decay).values

    def largest(self) -> None:
        return None

    def loss_at(self, share: float) -> ConceptLoss:
        return self.loss.at(share)

    def report(self, batch: Batch, share: float, index: int, stage: Stage) -> LossReport:
        loss = self.loss_at(share)
        if not loss.heads_alone:
            self._pool = None
            return super().report(batch, share, index, stage)
        whole = self._rows(batch)
        rows = self._row_pool(stage).draw(index, whole, DRAWN, batch.seed)
        return loss.of_rows(self.model, rows, whole, batch.seed)

    def _row_pool(self, stage: Stage) -> RowPool:
        if self._pool is None or self._pool[0] != stage:
            self._pool = stage, RowPool(lambda number: self._rows(self.batches.draw(number, stage)))
        return self._pool[1]

    @torch.no_grad()
    def _rows(self, batch: Batch) -> PooledRows:
        """The rows of a batch, for heads that learn alone."""
        batch = batch.to(self.device)
        with self.mixed():
            return rows_of(batch, hidden_states(self.model, batch, self.recipe.attn_impl))
