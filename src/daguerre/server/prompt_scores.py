"""Log-probabilities of a prompt's tokens, for answers that echo it: of models with causal context, by the
autoregressive distribution, each token given all before it.

Letters: A wanted rows, V vocabulary.
"""

from __future__ import annotations

import codecs

import numpy as np

from daguerre.errors import ContextError, UnsupportedError
from daguerre.model import Model
from daguerre.models.forward import Forward, Layout, Logits
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.logits import log_softmax
from daguerre.server.logprobs import LEAST, Scored

ROWS = 128
"""Rows whose logits are held at once."""


def score_prompt(model: Model, ids: list[int], num: int) -> list[Scored]:
    """Each token of a prompt with `num` alternatives; the first of a model without <bos> has no log-probability.

    UnsupportedError for a model without an autoregressive distribution; ContextError for a prompt that is longer than
    the model's context.
    """
    config = model.config
    if len(config.first) + len(ids) > config.max_positions:
        raise ContextError(
            f"the prompt has {len(ids)} tokens and the model {config.max_positions} positions: shorten it"
        )
    texts = token_texts(model.tokenizer, ids)
    if config.context != "causal" or not config.shift:
        raise UnsupportedError(
            "this model has no probabilities from left to right for a prompt: leave out echo, or logprobs"
        )
    out = [] if config.first else [Scored(text, token, None) for text, token in zip(texts[:1], ids[:1], strict=True)]
    tokens = np.array([*config.first, *ids], dtype=np.int64)
    backend, num_rows = model.denoiser.backend, len(tokens) - 1
    cache = backend.cache(max(1, num_rows))
    for start in range(0, num_rows, ROWS):
        rows = np.arange(start, min(num_rows, start + ROWS))
        layout = Layout(rows, (rows + 1).astype(np.int32), len(rows))
        ask = Forward(tokens[rows], layout, cache, np.arange(len(rows), dtype=np.int32), Logits())
        (answer,) = backend.forward([ask])
        assert answer.logits is not None
        logp = log_softmax(answer.logits)
        for row, place in enumerate(rows - len(config.first) + 1):
            out.append(_scored(texts[place], ids[place], logp[row], num))
    return out


def _scored(text: str, token: int, logp: np.ndarray, num: int) -> Scored:
    best = np.argsort(-logp, kind="stable")[:num]
    found = [(int(one), float(logp[one])) for one in best if np.isfinite(logp[one])]
    return Scored(text, token, max(LEAST, float(logp[token])), -1, found)


def token_texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The texts of tokens, which join to the text of all: half a character's comes with its last token."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(tokenizer.token_bytes(token)) for token in ids]
    if texts:
        texts[-1] += decoder.decode(b"", final=True)
    return texts
