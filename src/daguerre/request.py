"""A request: what is asked for, and whether it makes sense, before anything is laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer, check_unicode
from daguerre.sampling.decode import Decode
from daguerre.sampling.draft import Draft

Text = str | Sequence[int]


@dataclass(frozen=True)
class Request:
    """What is asked for: `segments` are token ids, with a gap between each and the next, which gets from least to most
    tokens (`budgets`); one gap with nothing behind it is a completion.

    heal: None is where it can be. `draft` is of the only gap. `around` are the texts of the segments where the result
    is the whole text; None: the gap alone.
    """

    decode: Decode
    segments: Sequence[Sequence[int]]
    budgets: Sequence[tuple[int, int]]
    heal: bool | None = None
    draft: str | None = None
    around: tuple[str, ...] | None = None

    @property
    def infilling(self) -> bool:
        """True unless it is a completion."""
        return len(self.budgets) > 1 or bool(self.segments[-1])


def encoded(prefix: Text, suffix: Text | None, tokenizer: Tokenizer, config: ModelConfig) -> list[list[int]]:
    """The segments of a request with one gap: the tokens of two texts, or those that are given, checked; a suffix of
    None has none. InputError, in one line.
    """
    return [_encoded(text, tokenizer, config) for text in (prefix, "" if suffix is None else suffix)]


def _encoded(text: Text, tokenizer: Tokenizer, config: ModelConfig) -> list[int]:
    if isinstance(text, str):
        return tokenizer.encode(text)
    if isinstance(text, bytes | bytearray):
        raise InputError("the text is bytes: decode it first, with text.decode('utf-8')")
    try:
        ids = [index(token) for token in text]
    except TypeError:
        raise InputError(f"the text must be a string or a sequence of token ids, not {type(text).__name__}") from None
    for token in ids:
        if not 0 <= token < config.vocab_size:
            raise InputError(f"token id {token} is outside the vocabulary: ids are 0 to {config.vocab_size - 1}")
    return ids


def check_request(config: ModelConfig, request: Request) -> bool:
    """Check what can be told before a request is laid out; returns whether the last words before its gaps are healed.
    InputError or UnsupportedError, in one line.
    """
    _check_beam(request)
    for least, most in request.budgets:
        check_budget(least, most)
    request.decode.check_model(config)
    return _check_healing(config, request)


def check_budget(least: int, most: int) -> None:
    """InputError for a number of tokens that a gap cannot have."""
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise InputError(f"max_tokens must be a whole number from 1 up, not {most!r}")
    if least > most:
        raise InputError(f"min_tokens={least} is more than max_tokens={most}: lower the first")


def _check_beam(request: Request) -> None:
    """InputError or UnsupportedError where mode "beam" has nothing to compare fillings by, or too much to fill."""
    if request.decode.mode != "beam":
        return
    if not request.infilling:
        raise InputError('mode "beam" compares fillings by what stands behind them: give a suffix, or use mode "ar"')
    if len(request.budgets) > 1:
        raise UnsupportedError(
            f'mode "beam" fills one gap, and these are {len(request.budgets)}: use mode "block" or "full"'
        )


def _check_healing(config: ModelConfig, request: Request) -> bool:
    """Whether the last words are healed: unless told, where they can be."""
    decode = request.decode
    heal = _check_infilling(config, request) if request.infilling else request.heal
    if heal and decode.mode == "ancestral":
        raise InputError('mode "ancestral" writes all of a gap anew and heals no word: leave out heal')
    if heal and decode.shaping:
        raise InputError(f"with the option {decode.shaping[0]} the last word is not healed: leave out heal")
    return heal is not False and decode.mode != "ancestral" and not decode.shaping


def _check_infilling(config: ModelConfig, request: Request) -> bool | None:
    """Whether this model can infill as asked; returns `heal`, False where the model cannot."""
    if request.decode.autoregressive:
        raise UnsupportedError(
            f'mode "{request.decode.mode}" cannot infill, since it never sees the suffix: use mode "block" or "full"'
        )
    if config.context == "block":
        raise UnsupportedError("a model with block context cannot infill: no block sees what comes after it")
    if config.null_id is not None:
        return request.heal
    if any(least != most for least, most in request.budgets):
        raise UnsupportedError(
            "this model has no <null> to end a gap with: give each gap's length, min_tokens equal to max_tokens, or "
            "with one gap search_length=True"
        )
    if request.heal:
        raise UnsupportedError("this model has no <null>, so healing could not keep the gap's length: use heal=False")
    return False


def read_draft(request: Request, tokenizer: Tokenizer) -> Draft | None:
    """The draft, encoded. InputError or UnsupportedError for a draft that the request cannot begin with."""
    draft, decode = request.draft, request.decode
    if not isinstance(draft, str | None):
        raise InputError(f"the draft must be a text, not {draft!r:.40}")
    check_unicode(draft or "", "the draft")
    if draft is not None and decode.autoregressive and any(not pin.floats for pin in decode.pins):
        raise UnsupportedError(f'mode "{decode.mode}" tests a draft where nothing is pinned: leave out draft or pins')
    if draft is not None and decode.mode == "ancestral":
        raise UnsupportedError('mode "ancestral" begins with noise and not with a draft: leave out one of the two')
    if draft is not None and decode.mode == "beam":
        raise UnsupportedError('mode "beam" begins with nothing written: leave out the draft')
    return None if draft is None else Draft(draft, tokenizer)
