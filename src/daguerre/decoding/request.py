"""A request, and the checks that need no plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daguerre.arguments import TOKENS, Whole
from daguerre.decoding.context import Context
from daguerre.decoding.draft import Draft
from daguerre.decoding.options import Decode
from daguerre.decoding.repository import Files
from daguerre.errors import InputError, UnsupportedError, shown
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer

Text = str | Sequence[int]


@dataclass(frozen=True)
class Request:
    """One request.

    segments  token ids, with a gap between each and the next; a single gap with nothing after it is a completion
    budgets   of each gap: the fewest and the most tokens that it gets
    heal      draw cut words before the gaps again; None: where that is possible
    draft     the likely text of the only gap
    around    the texts around the gaps, where the result is the whole text; None: the result is the gap alone
    context   what the segments are of the texts that the caller gave; None: those were token ids
    files     the other files of the text's repository; None: nothing is said of a repository
    """

    decode: Decode
    segments: Sequence[Sequence[int]]
    budgets: Sequence[tuple[int, int]]
    heal: bool | None = None
    draft: str | None = None
    around: tuple[str, ...] | None = None
    context: Context | None = None
    files: Files | None = None

    @property
    def infilling(self) -> bool:
        """True unless it is a completion."""
        return is_infilling(self.segments, self.budgets)


def is_infilling(segments: Sequence[Sequence[object]], budgets: Sequence[object]) -> bool:
    """Whether there is text after a gap."""
    return len(budgets) > 1 or bool(segments[-1])


def encoded(
    texts: Sequence[Text], tokenizer: Tokenizer, config: ModelConfig, special_tokens: bool | None = None
) -> list[list[int]]:
    """The segments of a request, from texts or token ids. special_tokens: whether names of special tokens stand for
    them; None: in the prompt of a completion, and not around gaps. InputError, in one line, for anything else.
    """
    completes = len(texts) == 2 and not len(texts[1])
    encode = tokenizer.encode if (completes if special_tokens is None else special_tokens) else tokenizer.encode_plain
    return [_encoded(text, encode, config, not number) for number, text in enumerate(texts)]


def _encoded(text: Text, encode: Callable[..., list[int]], config: ModelConfig, begins: bool) -> list[int]:
    read: str | list[int] = TOKENS("the text", text)
    if isinstance(read, str):
        return encode(read, begins=begins)
    for token in read:
        if not 0 <= token < config.vocab_size:
            raise InputError(f"token id {shown(token)} is outside the vocabulary: ids are 0 to {config.vocab_size - 1}")
    return read


def check_request(config: ModelConfig, request: Request) -> bool:
    """Check a request before it is laid out; returns whether the last words before its gaps are healed. InputError or
    UnsupportedError, in one line.
    """
    decode = request.decode
    mode = decode.mode_entry
    if request.infilling:
        _check_sees_suffix(config, mode.writes_gaps)
    check_end_of_text(decode, request.infilling)
    mode.check_request(len(request.budgets), request.infilling, request.heal)
    for fewest, most in request.budgets:
        check_budget(fewest, most)
    decode.check_model(config)
    if config.context == "reordered":
        _check_unseen(request)
    heal = _check_infilling(config, request) if request.infilling and not mode.writes_gaps else request.heal
    if heal and decode.shaping:
        raise InputError(f"with the option {decode.shaping[0]} the last word is not healed: leave out heal")
    return heal is not False and mode.heals and not decode.shaping


def check_end_of_text(decode: Decode, infilling: bool) -> None:
    """UnsupportedError for `end_of_text` in gaps, in a mode that does not read it there."""
    if infilling and "end_of_text" in decode.given and not decode.mode_entry.ends_gaps:
        raise UnsupportedError(
            "end_of_text is about completions, and a gap has text after it: leave out end_of_text, or the suffix"
        )


def check_changeable(decode: Decode, config: ModelConfig) -> None:
    """UnsupportedError for a mode whose canvas the caller cannot change between its steps."""
    if not decode.mode_entry.changeable:
        instead = "call stream" if config.mask_id is None else 'use mode "block", or call stream'
        raise UnsupportedError(f'mode "{decode.mode}" cannot be changed while it runs: {instead}')


def _check_sees_suffix(config: ModelConfig, writes_gaps: bool) -> None:
    """UnsupportedError for a model that sees no text after a gap. writes_gaps: by a mode that needs no masks."""
    if config.context == "block":
        raise UnsupportedError("a model with block context cannot infill: no block sees what comes after it")
    if config.mask_id is None and config.process == "absorbing" and not writes_gaps:
        raise UnsupportedError(
            "an autoregressive model cannot infill, since it never sees the text after a gap: leave out the suffix"
        )


def _check_unseen(request: Request) -> None:
    """UnsupportedError for what asks about tokens that the model sees. In reordered context it answers about masks
    alone: the row of a known token was never trained to predict that token.
    """
    decode, why = request.decode, "a model with reordered context predicts no token that it sees"
    if request.draft is not None:
        raise UnsupportedError(f"{why}, so it reads no draft: leave the draft out")
    if decode.revise and decode.revise_reading == "unmasked":
        raise UnsupportedError(f'{why}: use revise_reading="leave_one_out"')
    if decode.commit_policy.edits:
        raise UnsupportedError(f'{why}, so policy "{decode.policy_name}" cannot edit any: use policy "threshold"')


def check_budget(fewest: int, most: int) -> None:
    """InputError for numbers of tokens that a gap cannot have."""
    Whole(low=1)("max_tokens", most)
    if fewest > most:
        raise InputError(f"min_tokens={fewest} is more than max_tokens={most}: lower the first")


def _check_infilling(config: ModelConfig, request: Request) -> bool | None:
    """Check that this model can end the gaps; returns `heal`, or False for a model that cannot heal."""
    if config.null_id is not None:
        return request.heal
    if any(fewest != most for fewest, most in request.budgets):
        raise UnsupportedError(f"this model has no <null> to end a gap with: {_known_length(config, request)}")
    if request.heal:
        raise UnsupportedError("this model has no <null>, so healing could not keep the gap's length: use heal=False")
    return False


def _known_length(config: ModelConfig, request: Request) -> str:
    """What to do where a gap's length must be known."""
    most = request.budgets[0][1]
    given = f"give its length, min_tokens={most} with max_tokens={most}"
    if len(request.budgets) > 1:
        return "give the length of each, the same number as min_tokens and max_tokens"
    if request.decode.mode_entry.searches_length:
        return f"{given}, or have it found by search_length=True"
    return f'{given}, or have it found in mode="block"' if config.process == "absorbing" else given


def read_draft(request: Request, tokenizer: Tokenizer) -> Draft | None:
    """The request's draft. InputError or UnsupportedError for a draft that cannot be used."""
    if request.draft is None:
        return None
    request.decode.mode_entry.check_draft(request.decode)
    return Draft(request.draft, tokenizer)
