"""The concepts of an existing text: which of them the model sees at each token, and what they do for its logit.

Rows are clean: they see what clean text sees in the model's context (`daguerre.scoring.embedding`). In a model with a
shift the row of a token is the one before it, which has not read it: its concepts are a forecast of the token. In one
without a shift the row is the token's own and has read it.

A text that is longer than the model's context is read in windows that overlap by half: a token's row sees half a window
before it, or all of the text before it.

Letters: T tokens, N known concepts, D width.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from daguerre.decoding.explanation import Explanation, TokenExplanation, explain
from daguerre.errors import InputError, no_concept_heads
from daguerre.models.catalog import Catalog
from daguerre.models.forward import Backend
from daguerre.models.heads import Heads, sigmoid
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.concept_search import windows
from daguerre.scoring.embedding import clean_forward


@dataclass(frozen=True)
class TextConcepts:
    """The concepts of a text.

    explanation    of the text's tokens; the first has no logit where nothing stands before it
    probabilities  float32 (T, N): of each known concept in each token's row; 0 for a token without a row
    forecast       rows have not read their tokens
    num_windows    and `window`: in how many windows of how many positions the text was read
    """

    explanation: Explanation
    probabilities: np.ndarray = field(repr=False)
    forecast: bool
    num_windows: int
    window: int


def text_concepts(
    backend: Backend, heads: Heads | None, tokenizer: Tokenizer, catalog: Catalog | None, text: str
) -> TextConcepts:
    """The concepts of a text. UnsupportedError for a model without concept heads; InputError for an empty text."""
    if heads is None or catalog is None:
        raise no_concept_heads()
    ids = tokenizer.encode_plain(text)
    if not ids:
        raise InputError("the text is empty, so it has no concepts: give a file with text")
    config = heads.config
    texts, most = list(_texts(tokenizer, ids)), config.max_positions - len(config.first)
    todo = list(windows(len(ids), most, most // 2))
    told, probabilities = list[TokenExplanation](), np.zeros((len(ids), catalog.num_known), dtype=np.float32)
    for start, first, end in todo:
        forward = clean_forward(config, ids[start:end])
        scored = np.arange(first, end)
        rows = scored - start + len(config.first) - int(config.shift)
        told += [TokenExplanation(texts[at], ids[at], at) for at in scored[rows < 0].tolist()]
        scored, rows = scored[rows >= 0], rows[rows >= 0]
        forward.wanted = rows.astype(np.int32)
        (answer,) = backend.forward([forward])
        assert answer.hidden is not None
        places = [(texts[at], ids[at], at) for at in scored.tolist()]
        evidence = np.concatenate([np.ones((len(rows), 1, 1), np.float32), answer.hidden[:, None]], axis=2)
        told += explain(heads, None, evidence, places)
        probabilities[scored] = sigmoid(heads.known_logits(answer.hidden))
    size = len(config.first) + min(most, len(ids))
    return TextConcepts(Explanation(tuple(told), catalog), probabilities, config.shift, len(todo), size)


def _texts(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[str]:
    """The texts of tokens, which join to the whole; a character belongs to the token with its last byte."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for index, token in enumerate(ids):
        yield decoder.decode(tokenizer.token_bytes(token), final=index + 1 == len(ids))
