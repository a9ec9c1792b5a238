"""Micro-batches of pairs of answers: the rows that give both their log-probabilities.

In causal context an answer is its text, whose rows predict next tokens. In block context the views of an answer share a
sequence, each block of each view a noisy span behind the clean text; in full context each view is a sequence. What is
masked is drawn with the batch, so the model and its frozen start see the same masks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from daguerre.errors import DataError
from daguerre.train.batch import Batch, collate, stacked
from daguerre.train.noising import IGNORE, Example, Ints
from daguerre.train.prefer.masks import COMMON, Noised, noised_views
from daguerre.train.prefer.options import Prefer
from daguerre.train.sft.batches import AnswerBatches, order_of
from daguerre.train.sft.texts import Text, noised_rows, spans_of
from daguerre.train.stage import Stage


@dataclass(frozen=True)
class PairBatch(Batch):
    """A batch of texts 2i, chosen, and 2i + 1, rejected. Of each row, int64 (B, R): the text that it is of, and the
    draw of masks, or COMMON. `sizes`, (2P,): tokens of each answer; `times`: how many draws there are, 0 where
    log-probabilities are exact.
    """

    text: Tensor = field(kw_only=True)
    draw: Tensor = field(kw_only=True)
    sizes: Tensor = field(kw_only=True)
    times: int = field(kw_only=True)


@dataclass(frozen=True)
class PairBatches(AnswerBatches):
    """Micro-batch number `index` of a run: `sequences` pairs, of texts of at most `length` tokens each."""

    options: Prefer = field(kw_only=True)

    def draw(self, index: int, stage: Stage) -> PairBatch:
        rng = np.random.default_rng([self.seed, index])
        first = index * stage.sequences
        pairs = [self._pair(first + number, stage.length) for number in range(stage.sequences)]
        documents = [[self.text(2 * pair), self.text(2 * pair + 1)] for pair in pairs]
        texts = list(chain(*self._padded(documents, self.config.block_size)))
        made = [self._rows(text, rng) for text in texts]
        examples = [example for rows, _ in made for example in rows]
        batch = collate(examples, self.loss.objective, self.config.pad_id)
        num_clean, shape = batch.layout.num_clean, tuple(batch.tokens.shape)
        owner = np.repeat(np.arange(len(made)), [len(rows) for rows, _ in made])
        draws = [draw for _, found in made for draw in found]
        return PairBatch(
            **{each.name: getattr(batch, each.name) for each in fields(Batch)},
            text=torch.from_numpy(owner)[:, None].expand(shape).contiguous(),
            draw=stacked(np.full(shape, COMMON), num_clean, examples, draws),
            sizes=torch.tensor([int(text.answer.sum()) for text in texts]),
            times=self.options.times if self.loss.noisy else 0,
        )

    def _pair(self, number: int, length: int) -> int:
        """The pair that is number `number` of a run: an epoch has every pair once."""
        if length not in self._known:
            sizes = np.diff(self.shard.starts).reshape(-1, 2)
            fitting = np.flatnonzero((sizes <= length).all(1))
            if not len(fitting):
                raise DataError(
                    f"no pair of {self.shard.folder} fits a stage of {length} tokens: set stages.N.length higher"
                )
            self._known[length] = list(fitting[:, None])
        pairs = self._known[length]
        epoch, place = divmod(number, len(pairs))
        return int(pairs[order_of(self.seed, epoch, len(pairs))[place]][0])

    def _rows(self, text: Text, rng: np.random.Generator) -> tuple[list[Example], list[Ints]]:
        """The rows of a text, and the draw of each."""
        views: list[list[Noised]] = [[]]
        if self.loss.noisy:
            spans = list(spans_of(text, self.config, self.config.block_size or 0))
            views = noised_views(spans, self.options.times, self.options.antithetic, rng)
            if self.config.context == "block":
                views = [list(chain(*views))]
        examples, draws = [], []
        for view in views:
            shares, masks = [one.share for one in view], [one.masked for one in view]
            rows = noised_rows(text, self.loss, self.config, [one.span for one in view], shares, masks, rng)
            draws.append(np.full(len(rows.tokens), COMMON))
            rows.weight[:] = rows.target != IGNORE
            for number, one in enumerate(view):
                of_span = rows.span == number
                rows.weight[of_span] *= one.weight
                draws[-1][of_span] = one.draw
            examples.append(rows)
        return [examples[0], *(replace(rows, num_tokens=0) for rows in examples[1:])], draws
