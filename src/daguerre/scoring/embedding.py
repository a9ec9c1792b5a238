"""Embeddings of texts: the mean of a model's final hidden states over a text's tokens, of length 1.

Of a model with concept heads (`models.core.concept_heads`) there are other kinds, each a mean over the same rows:

    known, discovered   the part of the hidden states that is of these concepts
    composed            known + discovered: the hidden states without their residual
    concepts            the weights of all concepts, one number for each: N known ones, then M discovered ones

A text's rows see what clean text sees in the model's context: causal and reordered, the tokens up to their own; block,
those up to the end of their block; full, the whole text. The row of <bos> is computed, if the model has one, and left
out of the mean. In a shifted model the concepts of a row are those of the token after it. These models were trained to
write, not to compare texts, and an embedding is as good as that allows.

Letters: T texts, R rows, A wanted rows, D width, C = N + M concepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np

from daguerre.cancellation import current_cancellation
from daguerre.decoding.request import Text
from daguerre.errors import ContextError, InputError, no_concept_heads
from daguerre.kinds import TOKENS, Kind, OneOf, Several, checks
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Backend, Forward, Hidden, Layout
from daguerre.models.heads import Heads
from daguerre.models.tokenizer import Tokenizer

EmbeddingKind = Literal["hidden", "known", "discovered", "composed", "concepts"]
KINDS: tuple[EmbeddingKind, ...] = get_args(EmbeddingKind)
ROWS_AT_ONCE = 2048
"""Rows of a batch; more take another."""
WEIGHED_AT_ONCE = 256
"""Rows whose concepts' weights are in memory together."""


ARGUMENTS: dict[str, Kind] = {
    "texts": Several(one=TOKENS, what="a list of texts, or of lists of token ids"),
    "kind": OneOf(known=KINDS, what="kind of embedding"),
}
"""The kinds of the arguments of `embed`."""


@checks(ARGUMENTS)
def embed(
    backend: Backend,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    kind: EmbeddingKind = "hidden",
    heads: Heads | None = None,
) -> np.ndarray:
    """Embeddings of texts, or of token ids, float32 (T, D), of kind "concepts" (T, C), each of Euclidean length 1;
    zeros where a text's mean is zero. `heads`: the model's, for all kinds but "hidden".

    InputError for a text without a token, or one with an id outside the vocabulary; ContextError for one that is longer
    than the model's context; UnsupportedError for a kind that needs concept heads, of a model that has none.
    """
    if kind != "hidden" and heads is None:
        raise no_concept_heads(f'kind="{kind}"')
    config = backend.config
    ids = [checked_ids(config, tokenizer, text) for text in texts]
    num = heads.shape.known + heads.shape.discovered if heads is not None and kind == "concepts" else config.width
    out = np.zeros((len(ids), num), dtype=np.float32)
    for numbers in _batches([len(one) for one in ids]):
        answers = backend.forward([clean_forward(config, ids[number]) for number in numbers])
        for number, answer in zip(numbers, answers, strict=True):
            assert answer.hidden is not None
            if heads is None or kind == "hidden":
                mean = answer.hidden.astype(np.float64).mean(axis=0)
            else:
                mean = _of_concepts(answer.hidden, kind, heads)
            out[number] = mean / max(np.linalg.norm(mean), np.finfo(np.float64).tiny)
    return out


def _of_concepts(hidden: np.ndarray, kind: EmbeddingKind, heads: Heads) -> np.ndarray:
    """The mean over hidden states (A, D) of their concepts' weights, float64 (C,), or of the part that is of concepts,
    (D,), which is the sum of vectors by these mean weights.
    """
    some = (hidden[start : start + WEIGHED_AT_ONCE] for start in range(0, len(hidden), WEIGHED_AT_ONCE))
    mean = np.stack([heads.weights(rows).sum(axis=0, dtype=np.float64) for rows in some]).sum(axis=0) / len(hidden)
    if kind != "concepts":
        known, discovered = heads.sums(mean)
        mean = {"known": known, "discovered": discovered, "composed": known + discovered}[kind].astype(np.float64)
    return mean


def checked_ids(config: ModelConfig, tokenizer: Tokenizer, text: Text) -> list[int]:
    """The tokens of a text that can be embedded; see `embed`. Looks at whether somebody still waits for them."""
    current_cancellation().check()
    read: str | list[int] = TOKENS("a text to embed", text)
    ids = tokenizer.encode(read) if isinstance(read, str) else read
    if not ids:
        raise InputError("a text to embed needs a token: this one is empty")
    if min(ids) < 0 or max(ids) >= config.vocab_size:
        raise InputError(f"a token id is outside the vocabulary: ids are 0 to {config.vocab_size - 1}")
    if len(config.first) + len(ids) > config.max_positions:
        raise ContextError(
            f"a text to embed has {len(ids)} tokens and the model {config.max_positions} positions: embed it in parts"
        )
    return ids


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of the texts, in batches of at most ROWS_AT_ONCE rows, or of one text."""
    batch, rows = list[int](), 0
    for number, length in enumerate(lengths):
        if batch and rows + length > ROWS_AT_ONCE:
            yield batch
            batch, rows = [], 0
        batch.append(number)
        rows += length
    if batch:
        yield batch


def clean_forward(config: ModelConfig, ids: Sequence[int]) -> Forward:
    """The rows of a text, of which those after <bos> are wanted."""
    tokens = np.array([*config.first, *ids], dtype=np.int64)
    wanted = np.arange(len(config.first), len(tokens), dtype=np.int32)
    level = 0.0 if config.time_input else None
    return Forward(tokens, clean_layout(config, len(tokens)), None, wanted, Hidden(), level)


def clean_layout(config: ModelConfig, num: int) -> Layout:
    """The layout of the rows of a text of `num` tokens; in full context no row is clean."""
    place = np.arange(num)
    if config.context == "full":
        return Layout(place, np.full(num, num, dtype=np.int32), 0)
    size = (config.block_size if config.context == "block" else None) or 1
    return Layout(place, np.minimum((place // size + 1) * size, num).astype(np.int32), num)
