"""The likelihood of a text that is longer than the model's positions, in windows that overlap.

Every token is scored once, in the first window that has it; of a later window the first half was scored before and is
given. So a token has at least half of the positions before it, where the text has as many, and the sum is the
likelihood of the text under a model that sees no further back: exact if the kind is. Of a process that replaces
tokens, which scores a text from its first token, windows do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daguerre.decoding.context import SHOWING, Showing
from daguerre.errors import InputError
from daguerre.kinds import SEED, TEXT, Kind, OneOf, Tokens, Whole, checks
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Backend
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.likelihood import KINDS, ORDERS, TokenScores, score_tokens

MOST_SAMPLES = 65_536
"""The most draws of masks: what takes a gigabyte for a text of a thousand tokens."""
GIVEN_SHARE = 0.5
"""Of a window but the first one: the share that was scored before."""


@dataclass(frozen=True)
class ScoringWindow:
    """Tokens, of which the first `given` are seen and not scored."""

    tokens: tuple[int, ...]
    given: int


def windows(config: ModelConfig, tokens: Sequence[int]) -> Iterator[ScoringWindow]:
    """The windows of `tokens`, which begin as a canvas does; only one where they fit."""
    first, size = len(config.first), config.max_positions
    overlap = _overlap(config)
    start, done = first, max(1, first)
    while True:
        end = min(len(tokens), start + size - first)
        yield ScoringWindow((*config.first, *tokens[start:end]), first + done - start)
        if end == len(tokens):
            return
        done = end
        start = end - overlap


def _overlap(config: ModelConfig) -> int:
    """How many tokens a window shares with the one before it, so that the given part ends on a block's edge."""
    first = len(config.first)
    if config.process != "absorbing":
        return 1 - min(first, 1)
    given = int(config.max_positions * GIVEN_SHARE)
    if config.context == "block":
        assert config.block_size is not None
        given = max(config.block_size, given // config.block_size * config.block_size)
    return max(1, min(given, config.max_positions - 1) - first)


def score_long(backend: Backend, tokens: Sequence[int], *, seed: int = 0, order: Any = None, **how: Any) -> TokenScores:
    """`likelihood.score_tokens` for any number of tokens. InputError for an order of single tokens where there are
    several windows, whose tokens are ordered apart.
    """
    each = list(windows(backend.config, tokens))
    if len(each) > 1 and order is not None and not isinstance(order, str):
        raise InputError(
            "an order of all tokens is for a text that fits into one window: give order='left' or 'random'"
        )
    scores = [
        score_tokens(
            backend, window.tokens, given=window.given, seed=[seed, number] if number else seed, order=order, **how
        )
        for number, window in enumerate(each)
    ]
    by_token = np.concatenate([score.by_token for score in scores])
    if len(scores) == 1:
        return scores[0]
    variance = sum(score.stderr**2 for score in scores)
    return TokenScores(float(by_token.sum()), variance**0.5, len(by_token), by_token, len(scores))


@dataclass(frozen=True, kw_only=True)
class LayoutKind(Kind):
    """A number of tokens in a span, or "full"."""

    words: ClassVar[str] = "a number of tokens in a span, 'full'"

    def read(self, name: str, value: Any) -> Any:
        return value if isinstance(value, str) and value == "full" else Whole(low=1).read(name, value)


@dataclass(frozen=True, kw_only=True)
class OrderKind(Kind):
    """The name of an order, or the numbers of the tokens."""

    words: ClassVar[str] = "'left', 'random', the numbers of the text's tokens"

    def read(self, name: str, value: Any) -> Any:
        return OneOf(known=ORDERS).read(name, value) if isinstance(value, str) else Tokens().read(name, value)


ARGUMENTS: dict[str, Kind] = {
    "text": TEXT,
    "kind": OneOf(known=KINDS),
    "layout": LayoutKind(none=True),
    "order": OrderKind(none=True),
    "samples": Whole(low=2, high=MOST_SAMPLES),
    "seed": SEED,
    "context": OneOf(known=SHOWING),
}
"""The kinds of the arguments of `nll`."""


@checks(ARGUMENTS)
def nll(backend: Backend, tokenizer: Tokenizer, text: str, *, context: Showing = "auto", **how: Any) -> TokenScores:
    """The likelihood of a text of any length; context="whole": InputError for one that is longer than the model's
    positions.
    """
    tokens = [*backend.config.first, *tokenizer.encode(text)]
    return score_tokens(backend, tokens, **how) if context == "whole" else score_long(backend, tokens, **how)
