"""Embeddings of texts: the mean of a model's final hidden states over a text's tokens, of length 1.

A text's rows see what clean text sees in the model's context: causal and reordered, the tokens up to their own; block,
those up to the end of their block; full, the whole text. The row of <bos> is computed, if the model has one, and left
out of the mean. These models were trained to write, not to compare texts, and an embedding is as good as that allows.

Letters: N texts, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index

import numpy as np

from daguerre.decoding.request import Text
from daguerre.errors import ContextError, InputError
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Backend, Forward, Hidden, Layout
from daguerre.models.tokenizer import Tokenizer

ROWS_AT_ONCE = 2048
"""Rows of a batch; more take another."""


def embed(backend: Backend, tokenizer: Tokenizer, texts: Sequence[Text]) -> np.ndarray:
    """Embeddings of texts, or of token ids, float32 (N, D), each of Euclidean length 1.

    InputError for a text without a token, or one with an id outside the vocabulary; ContextError for one that is longer
    than the model's context.
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InputError(f"embed takes a list of texts, not {type(texts).__name__}: write [text]")
    config = backend.config
    ids = [checked_ids(config, tokenizer, text) for text in texts]
    out = np.zeros((len(ids), config.width), dtype=np.float32)
    for numbers in _batches([len(one) for one in ids]):
        answers = backend.forward([_forward(config, ids[number]) for number in numbers])
        for number, answer in zip(numbers, answers, strict=True):
            assert answer.hidden is not None
            mean = answer.hidden.astype(np.float64).mean(axis=0)
            out[number] = mean / max(np.linalg.norm(mean), np.finfo(np.float64).tiny)
    return out


def checked_ids(config: ModelConfig, tokenizer: Tokenizer, text: Text) -> list[int]:
    """The tokens of a text that can be embedded; see `embed`."""
    try:
        ids = tokenizer.encode(text) if isinstance(text, str) else [index(token) for token in text]
    except TypeError:
        raise InputError(f"a text to embed is a string or token ids, not {text!r:.40}") from None
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


def _forward(config: ModelConfig, ids: Sequence[int]) -> Forward:
    """The rows of a text, of which those after <bos> are wanted. In full context no row is clean."""
    tokens = np.array([*config.first, *ids], dtype=np.int64)
    num, place = len(tokens), np.arange(len(tokens))
    if config.context == "full":
        layout = Layout(place, np.full(num, num, dtype=np.int32), 0)
    elif config.context == "block":
        assert config.block_size is not None
        ends = np.minimum((place // config.block_size + 1) * config.block_size, num)
        layout = Layout(place, ends.astype(np.int32), num)
    else:
        layout = Layout(place, (place + 1).astype(np.int32), num)
    wanted = np.arange(len(config.first), num, dtype=np.int32)
    return Forward(tokens, layout, None, wanted, Hidden(), 0.0 if config.time_input else None)
