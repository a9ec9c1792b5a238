"""Micro-batches of texts with answers: which texts are in each, how they share sequences, and the norm of the loss.

An epoch has every text once. Texts that are packed keep their company from one epoch to the next.

Letters: B sequences, T tokens of a text.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from daguerre.errors import DataError
from daguerre.models.core.config import ModelConfig
from daguerre.train.batch import Batch, collate
from daguerre.train.noising import IGNORE, REVISED, Example, Ints
from daguerre.train.sft.presets import AnswerLoss
from daguerre.train.sft.texts import Text, examples_of
from daguerre.train.shards import Shard
from daguerre.train.stage import Stage

ARRAYS = "tokens position span segment horizon gap target weight level guess time origin document".split()


@dataclass(frozen=True)
class AnswerBatches:
    """Micro-batch number `index` of a run: `sequences` sequences of at most `length` tokens of texts.

    rainbow  the tokens that follow an end of text in turn, with the padding of that name
    """

    shard: Shard
    loss: AnswerLoss
    config: ModelConfig
    seed: int
    rainbow: tuple[int, ...] = ()

    def draw(self, index: int, stage: Stage) -> Batch:
        rng = np.random.default_rng([self.seed, index])
        size = stage.block_size or self.config.block_size
        config = replace(self.config, block_size=size) if self.config.context == "block" else self.config
        first = index * stage.sequences
        packs = [self._pack(first + i, stage.length) for i in range(stage.sequences)]
        documents = [[self.text(document) for document in pack.tolist()] for pack in packs]
        texts = self._padded(documents, size)
        offset, num, made = rng.random(), sum(map(len, texts)), 0
        rows: list[list[Example]] = []
        answers, plain = list[int](), list[list[bool]]()
        for whole, together in zip(documents, texts, strict=True):
            copies = []
            for text in together:
                u = (offset + made / num) % 1.0
                copies.append(examples_of(text, self.loss, config, u, rng, size, stage.corruption))
                made += 1
            rows += map(list, zip(*copies, strict=True))
            answers += [int(text.answer.sum()) for text in together] * len(copies[0])
            plain += [[bool(text.answer[len(config.first) :].all()) for text in whole]] * len(copies[0])
        batch = batch_of(rows, answers, self.loss, config)
        return replace(batch, seed=int(rng.integers(2**63)), plain=_rows_of(plain, batch))

    def text(self, document: int) -> Text:
        """One text of the corpus."""
        start, end = self.shard.starts[document : document + 2]
        assert self.shard.answers is not None
        tokens = np.asarray(self.shard.tokens[start:end], dtype=np.int64)
        return Text(tokens, np.asarray(self.shard.answers[start:end], dtype=bool))

    # ---- which texts --------------------------------------------------------------------------------------------

    def _pack(self, number: int, length: int) -> Ints:
        """The texts of sequence `number` of a run."""
        packs = self._packs(length)
        epoch, place = divmod(number, len(packs))
        return packs[order_of(self.seed, epoch, len(packs))[place]]

    def _packs(self, length: int) -> list[Ints]:
        """The texts that share a sequence, in every epoch."""
        if length not in self._known:
            sizes = np.diff(self.shard.starts)
            fitting = np.flatnonzero(sizes <= length)
            if not len(fitting):
                raise DataError(
                    f"no text of {self.shard.folder} fits a stage of {length} tokens: the shortest has "
                    f"{sizes.min() if len(sizes) else 0}; set stages.N.length higher"
                )
            shuffled = np.random.default_rng([self.seed, length]).permutation(fitting)
            self._known[length] = (
                list(packed(shuffled, sizes, length)) if self.loss.packing else list(shuffled[:, None])
            )
        return self._known[length]

    @cached_property
    def _known(self) -> dict[int, list[Ints]]:
        return {}

    # ---- padding ------------------------------------------------------------------------------------------------

    def _padded(self, texts: list[list[Text]], size: int | None) -> list[list[Text]]:
        """The texts with what follows them, in blocks of this size: see `Sft`."""
        if self.config.context == "block" and size is not None:
            return [[self._filled(text, -len(text.tokens) % size) for text in together] for together in texts]
        if self.config.context == "full" and self.loss.padding != "unsupervised":
            longest = max(len(text.tokens) for text in chain(*texts))
            return [[self._filled(text, longest - len(text.tokens)) for text in together] for together in texts]
        return texts

    def _filled(self, text: Text, num: int) -> Text:
        room = self.config.max_positions - len(text.tokens)
        if (num := min(num, room)) <= 0:
            return text
        if self.loss.padding == "unsupervised":
            more = np.full(num, self.config.placeholder)
        else:
            cycle = self.rainbow or (self.config.eos_id,)
            more = np.resize(np.array(cycle), num)
        trained = np.full(num, self.loss.padding != "unsupervised")
        return Text(np.concatenate([text.tokens, more]), np.concatenate([text.answer, trained]))


def batch_of(rows: Sequence[Sequence[Example]], answers: Sequence[int], loss: AnswerLoss, config: ModelConfig) -> Batch:
    """Sequences of texts as a batch, with the loss's norm; each text has so many tokens of answers."""
    examples = list(chain(*rows))
    kinds = [_kinds(example) for example in examples]
    num_clean, num_masked, num_revised = (sum(int(each[i].sum()) for each in kinds) for i in range(3))
    noised = [
        num for num, (_, masked, revised) in zip(answers, kinds, strict=True) if masked.any() or not revised.any()
    ]
    norm = max(1, _norm(loss, noised, num_clean, num_masked))
    for example, num_answer, (clean, masked, revised) in zip(examples, answers, kinds, strict=True):
        example.weight[clean] *= norm / max(1, num_clean)
        example.weight[revised] *= norm / max(1, num_revised)
        if loss.normalizer == "answer":
            example.weight[masked] /= num_answer
    objective = replace(loss.objective, block_size=config.block_size)
    batch = collate([joined(together) for together in rows], objective, config.pad_id)
    window = loss.noisy and loss.normalizer == "window"
    return replace(batch, norm=float(norm), window=window)


def _norm(loss: AnswerLoss, answers: Sequence[int], num_clean: int, num_masked: int) -> int:
    if not loss.noisy:
        return num_clean
    if loss.normalizer == "answer":
        return len(answers)
    return sum(answers) if loss.normalizer == "supervised" else num_masked


def _rows_of(documents: Sequence[Sequence[bool]], batch: Batch) -> Tensor:
    """Which rows (B, R) are of these documents of each sequence."""
    chosen = torch.zeros(len(documents), max(map(len, documents)), dtype=torch.bool)
    for row, values in zip(chosen, documents, strict=True):
        row[: len(values)] = torch.tensor(values)
    return chosen.gather(1, batch.layout.rows.document)


def _kinds(example: Example) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which rows learn the next token, what is masked, and what is to be corrected, bool each."""
    learns, revised = example.target != IGNORE, example.level == REVISED
    clean = np.arange(len(learns)) < example.num_clean
    return learns & clean, learns & ~clean & ~revised, learns & revised


def packed(order: Ints, sizes: Ints, length: int) -> Iterator[Ints]:
    """Texts, in this order, in groups of at most `length` tokens: each joins the fullest open group that has room."""
    groups: list[list[int]] = []
    open_groups: list[tuple[int, int]] = []  # the room that is left, and the group, in order
    for text in order.tolist():
        size = int(sizes[text])
        at = bisect_left(open_groups, (size, 0))
        if at < len(open_groups):
            left, group = open_groups.pop(at)
        else:
            left, group = length, len(groups)
            groups.append([])
        groups[group].append(text)
        if left > size:
            insort(open_groups, (left - size, group))
    return map(np.array, groups)


@lru_cache(maxsize=4)
def order_of(seed: int, epoch: int, num: int) -> Ints:
    """The order of `num` texts in an epoch."""
    return np.random.default_rng([seed, epoch, num]).permutation(num)


def joined(examples: Sequence[Example]) -> Example:
    """Texts that share a sequence, each a document: their clean rows, then their noisy ones."""
    if len(examples) == 1:
        return examples[0]
    numbered = [replace(each, document=np.full(len(each.tokens), i)) for i, each in enumerate(examples)]
    values = {
        name: np.concatenate(
            [getattr(each, name)[: each.num_clean] for each in numbered]
            + [getattr(each, name)[each.num_clean :] for each in numbered]
        )
        for name in ARRAYS
    }
    num_clean, num_tokens = (sum(getattr(each, name) for each in numbered) for name in ("num_clean", "num_tokens"))
    return Example(num_clean, num_tokens, **values)


def with_common_norm(batches: Iterable[Batch], mean: Callable[[float], float] = float) -> Iterator[Batch]:
    """The micro-batches of a step; where their loss is a mean over all of them, they have one norm: its mean, which
    `mean` takes over processes that have as many each.
    """
    stream = iter(batches)
    for batch in stream:
        if not batch.window:
            yield batch
            continue
        window = [batch, *stream]
        norm = mean(sum(each.norm for each in window) / len(window))
        yield from (replace(each, norm=norm) for each in window)
