"""The method that learns answers to prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.tokenizer import NAMED_SPECIALS, NUM_SPECIALS, Tokenizer
from daguerre.train.batch import Batch, BatchLoss, batch_loss
from daguerre.train.earlier import Reference
from daguerre.train.evaluation import VAL_SEED, AnswerEvaluation
from daguerre.train.method import Method
from daguerre.train.sft.batches import AnswerBatches, with_common_norm
from daguerre.train.sft.corpus import answers_line
from daguerre.train.sft.keeping import KeepingLoss
from daguerre.train.sft.presets import AnswerLoss, Sft, answer_loss
from daguerre.train.shards import Shard
from daguerre.train.teach.batches import RolledBatches
from daguerre.train.teach.evaluation import TaughtEvaluation
from daguerre.train.teach.loss import TaughtLoss
from daguerre.train.teach.options import Rollouts
from daguerre.train.teach.rollouts import Student


class FineTuning(Method):
    """Supervised fine-tuning on prompts and answers; with `sft.keep`, what the model does with plain text is kept.

    answers    how they are laid out, and the loss of their tokens
    reference  the weights that the model began with, where the loss compares to them; a file of the run has them
    """

    rows = "prompts and answers"
    answers: AnswerLoss
    batches: AnswerBatches
    reference: Reference | None = None

    @property
    def options(self) -> Sft:
        assert self.recipe.sft is not None
        return self.recipe.sft

    def reading(self) -> dict[str, Any]:
        return {"held_out": self.options.held_out}

    def check(self, config: ModelConfig) -> None:
        """Nothing here: `answer_loss` checks."""

    def answer_loss(self, config: ModelConfig, family: str | None) -> AnswerLoss:
        """How answers are laid out for a model. InputError or UnsupportedError where it cannot be trained so."""
        return answer_loss(self.options, config, family)

    def prepared(self, model: Backbone, tokenizer: Tokenizer, family: str | None) -> Backbone:
        """The model with the blocks that the last stage trains, and the tokens of rainbow padding as ends of text."""
        config, last = model.config, self.recipe.stages[-1]
        self.answers = self.answer_loss(config, family)
        if self.recipe.teacher is not None:
            check_taught(self.answers, config)
        corrupted = any(stage.corruption != "none" for stage in self.recipe.stages)
        if corrupted and self.answers.gaps:
            raise InputError("no corruption is planted in texts with gaps: set sft.gaps=0, or leave out corruption")
        if corrupted and (not self.answers.noisy or config.process != "absorbing"):
            raise UnsupportedError(
                "corruption is planted among masks: this loss has none, so leave out stages.N.corruption"
            )
        if last.block_size and config.block_size:
            config = replace(config, block_size=last.block_size)
        self._rainbow = rainbow_ids(self.options, self.answers, tokenizer)
        model.config = replace(config, end_ids=tuple(dict.fromkeys((*config.end_ids, *self._rainbow))))
        model.never = torch.tensor(model.config.unpredictable_ids, dtype=torch.int64)
        return model

    def make_loss(self) -> BatchLoss:
        if self.recipe.teacher is not None and self.teacher is not None:
            return TaughtLoss(self.recipe.teacher, self.teacher)
        if not self.options.keep:
            return batch_loss
        loss = KeepingLoss(self.options.keep, self.model)
        self.reference = loss.reference
        return loss

    def keep(self, run: Path, resumed: bool) -> None:
        if self.reference is not None:
            self.reference.keep(run, resumed, self.options.keep_of)

    @property
    def held_loss(self) -> BatchLoss:
        """Plain text counts as answers do."""
        return batch_loss if self.teacher is None else self.loss

    def check_data(self, shard: Shard) -> None:
        super().check_data(shard)
        if shard.answers is None:
            raise InputError(
                f"{shard.folder} is plain text, and recipe {self.recipe.name!r} trains answers: give --data files of "
                "prompts and answers (docs/training.md)"
            )

    def maker(self, shard: Shard, seed: int) -> AnswerBatches:
        return self.answer_batches(shard, seed)

    def line(self) -> str:
        return answers_line(self.train, self.val)

    def step(self, batches: Iterable[Batch], mean: Callable[[float], float]) -> Iterator[Batch]:
        return with_common_norm(batches, mean)

    def answer_batches(self, shard: Shard, seed: int) -> AnswerBatches:
        """Micro-batches of the answers of a split."""
        return AnswerBatches(shard, self.answers, self.model.config, seed, self._rainbow)

    def rolled(self, shard: Shard, seed: int, options: Rollouts) -> RolledBatches:
        """Micro-batches of what the model answers to the prompts of a split."""
        student = Student(self.model, self.tokenizer, options, self.mixed)
        return RolledBatches(student, self.answer_batches(shard, seed))

    def make_figures(self) -> AnswerEvaluation:
        if self.teacher is not None:
            rolled = self.rolled(self.val, VAL_SEED, self.recipe.rollouts or Rollouts())
            return TaughtEvaluation(rolled, self.recipe.stages[-1], self.device)
        return AnswerEvaluation(self.maker(self.val, VAL_SEED), self.tokenizer, self.recipe.stages[-1], self.device)


def check_taught(loss: AnswerLoss, config: ModelConfig) -> None:
    """InputError or UnsupportedError where no teacher reads what a model learns."""
    if config.context == "full" or config.process != "absorbing":
        raise UnsupportedError(
            "[teacher] reads the clean text beside the masks, which causal and block context have: convert to one of "
            "these, or leave out [teacher]"
        )
    if loss.padding != "unsupervised":
        raise InputError(f'a teacher has no word on {loss.padding} padding: set sft.padding = "unsupervised"')


def rainbow_ids(options: Sft, loss: AnswerLoss, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that follow an end of text in turn: spare ones of Daguerre's vocabularies, and of others ids that no
    token has; none with other padding. InputError where there are too few.
    """
    if loss.padding != "rainbow":
        return ()
    spare = range(len(NAMED_SPECIALS), NUM_SPECIALS)
    if isinstance(tokenizer, PublishedTokenizer):
        spare = range(tokenizer.num_tokens, tokenizer.vocab_size)
    if len(spare) < options.rainbow:
        raise InputError(
            f"the vocabulary has {len(spare)} ids that no token has, and sft.rainbow asks for {options.rainbow}: "
            "set it lower, or take another sft.padding"
        )
    return tuple(spare[: options.rainbow])
