"""The micro-batches of a run on the student's own answers, which are written when their first one is asked for.

The answers are a part of checkpoints, so that a run that is resumed between steps on the same ones goes on with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from daguerre.train.batch import Batch
from daguerre.train.noising import Example, Ints
from daguerre.train.sft.batches import AnswerBatches, batch_of, order_of
from daguerre.train.sft.texts import noised_rows
from daguerre.train.stage import Stage
from daguerre.train.teach.rollouts import Rolled, Student, figures_of, states_of


@dataclass(frozen=True, kw_only=True)
class RolledBatch(Batch):
    """A micro-batch of the student's answers; `figures`: those of all answers that were written with them."""

    figures: Mapping[str, float]


class RolledBatches:
    """Micro-batch number `index` of a run: `sequences` answers, each in a sequence of its own. `answers` has the data,
    of which the prompts are taken up to their first answer, and how the loss is normalized.
    """

    def __init__(self, student: Student, answers: AnswerBatches) -> None:
        self.student, self.answers = student, answers
        self.written: tuple[tuple[int, ...], list[Rolled]] | None = None
        """The answers of some steps; which of these they are, and what their stage asks for."""

    def draw(self, index: int, stage: Stage) -> RolledBatch:
        """A micro-batch. The first one of several steps writes their answers."""
        parts = stage.micro_batches * self.student.options.updates
        number = index // parts
        key = (number, stage.sequences, stage.micro_batches, stage.answer, self.block_size(stage))
        if self.written is None or self.written[0] != key:
            self.written = key, self._write(number, stage)
        texts, rng = self.written[1], np.random.default_rng([self.answers.seed, index])
        first = index % stage.micro_batches * stage.sequences
        part = texts[first : first + stage.sequences]
        batch = self.batch_of(part, stage, rng)
        held = {f.name: getattr(batch, f.name) for f in fields(batch)}
        return RolledBatch(**held, figures=figures_of(texts))

    def batch_of(self, texts: Sequence[Rolled], stage: Stage, rng: np.random.Generator) -> Batch:
        """A state of each block of texts, as a batch."""
        answers = self.answers
        size = self.block_size(stage)
        config = replace(answers.config, block_size=size)
        made = [states_of(one, config, size, rng) for one in texts]
        rows: list[list[Example]] = [
            [noised_rows(each.text, answers.loss, config, each.spans, each.levels, each.masks, rng)] for each in made
        ]
        return batch_of(rows, [int(each.text.answer.sum()) for each in made], answers.loss, config)

    def block_size(self, stage: Stage) -> int:
        """Tokens of a block in a stage."""
        return stage.block_size or self.answers.config.block_size or 4

    def prompts(self, first: int, num: int, most: int) -> list[Ints]:
        """Prompts that leave room for an answer, of the data's texts from number `first` on, which come around."""
        shard, out, place = self.answers.shard, list[Ints](), first
        room = self.answers.config.max_positions - most
        for place in range(first, first + num):
            epoch, index = divmod(place, shard.num_documents)
            text = self.answers.text(int(order_of(self.answers.seed, epoch, shard.num_documents)[index]))
            end = int(np.argmax(text.answer)) if text.answer.any() else len(text.answer)
            out.append(text.tokens[max(0, end - room) : end])
        return out

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        if self.written is None:
            return {"written": None}
        key, texts = self.written
        return {"written": (key, [one.state() for one in texts])}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        if state["written"] is not None:
            key, texts = state["written"]
            self.written = tuple(key), [Rolled.of(one) for one in texts]

    def _write(self, number: int, stage: Stage) -> list[Rolled]:
        num = stage.sequences * stage.micro_batches
        prompts, seed = self.prompts(number * num, num, stage.answer), self.answers.seed
        drawn = int(np.random.SeedSequence([seed, number, 2]).generate_state(1)[0])
        return self.student.write(prompts, stage.answer, self.block_size(stage), drawn)
