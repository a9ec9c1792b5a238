"""From a request's texts and options to a canvas, its rules and its spans: all that is known before a forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

from daguerre.canvas import Canvas, Run
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.decode import Decode
from daguerre.sampling.healing import Healing, TokenBytes, num_to_take_back
from daguerre.sampling.rules import EndOfText, Never, Nulls, Rule

Text = str | Sequence[int]


@dataclass(frozen=True)
class Plan:
    """One request, laid out. `canvas` has one gap, which begins with what `healing` took back from the prefix."""

    config: ModelConfig
    decode: Decode
    canvas: Canvas
    healing: Healing
    max_tokens: int
    num_prompt: int
    infilling: bool

    @property
    def gap(self) -> Run:
        return self.canvas.gaps[0]

    @property
    def ending(self) -> int | None:
        """The token that ends the text: <null> in a gap, <eos> in a completion."""
        return self.config.null_id if self.infilling else self.config.eos_id

    def rules(self, canvas: Canvas) -> list[Rule]:
        """What the healed canvas is denoised under."""
        floor = self.healing.end(canvas) - self.max_tokens + self.decode.min_tokens
        never = self.config.eos_id if self.infilling else self.config.null_id
        rules: list[Rule] = [] if never is None else [Never((never,))]
        if not self.infilling:
            rules.append(EndOfText(self.config.eos_id, floor))
        elif self.config.null_id is not None:
            rules.append(Nulls(self.config.null_id, ((self.gap, floor),)))
        return rules

    def spans(self, canvas: Canvas) -> list[Run]:
        """The spans of the healed canvas, in the order they are denoised."""
        start, end = self.healing.where(canvas)[0], self.healing.end(canvas)
        grid = self.config.block_size if self.config.context == "block" else None
        size = self._span_size
        out = []
        while start < end:
            stop = min(end, start + size if grid is None else (start // grid + 1) * grid)
            out.append((start, stop))
            start = stop
        return out

    def finished(self, canvas: Canvas) -> bool:
        """True when nothing within the budget is open."""
        healed = not self.healing.where(canvas)[1]
        return healed and not canvas.open[self.gap[0] : self.healing.end(canvas)].any()

    @property
    def _span_size(self) -> int:
        return self.decode.span_size(self.config, self.max_tokens, self.infilling)

    @property
    def bound(self) -> int:
        """The most forwards that this request can take: healing's, and for each span those of the policy."""
        size = min(self._span_size, self.max_tokens)
        num_spans = -(-self.max_tokens // size) + int(self.config.context == "block")
        by_policy = num_spans * self.decode.rule_of_commit.bound(size)
        return self.healing.slots + min(by_policy, self.max_tokens)


def make_plan(
    config: ModelConfig,
    tokenizer: Tokenizer,
    decode: Decode,
    prefix: Text,
    suffix: Text | None,
    max_tokens: int,
    heal: bool | None,
) -> Plan:
    """Check a request and lay it out; a `suffix` of None or of no text is a completion.

    InputError or UnsupportedError, in one line.
    """
    _check_budget(decode, max_tokens)
    decode.check_model(config)
    before = _ids(prefix, tokenizer, config)
    after = [] if suffix is None else _ids(suffix, tokenizer, config)
    infilling = bool(after)
    decode.span_size(config, max_tokens, infilling)
    if infilling:
        heal = _check_infilling(config, decode, max_tokens, heal)
    total = 1 + len(before) + len(after) + max_tokens
    if total > config.max_positions:
        raise InputError(
            f"<bos>, the text and max_tokens={max_tokens} need {total} positions and the model has "
            f"{config.max_positions}: shorten the text or ask for fewer tokens"
        )
    table = TokenBytes.make(tokenizer)
    taken = 0 if heal is False else num_to_take_back(before, table)
    kept = [config.bos_id, *before[: len(before) - taken]]
    slots = taken + int(taken > 0 and total < config.max_positions)
    healing = Healing(
        table,
        start=len(kept),
        text=tokenizer.decode_bytes(before[len(before) - taken :]),
        slots=slots,
        limit=max_tokens,
        filler=config.null_id if infilling else None,
    )
    canvas = Canvas.lay_out([kept, after], [slots + max_tokens], config.mask_id)
    return Plan(config, decode, canvas, healing, max_tokens, len(before) + len(after), infilling)


def _ids(text: Text, tokenizer: Tokenizer, config: ModelConfig) -> list[int]:
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


def _check_budget(decode: Decode, max_tokens: int) -> None:
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise InputError(f"max_tokens must be a whole number from 1 up, not {max_tokens!r}")
    if decode.min_tokens > max_tokens:
        raise InputError(f"min_tokens={decode.min_tokens} is more than max_tokens={max_tokens}: lower the first")


def _check_infilling(config: ModelConfig, decode: Decode, max_tokens: int, heal: bool | None) -> bool | None:
    """Whether this model can infill as asked; returns `heal`, False where the model cannot."""
    if decode.autoregressive:
        raise UnsupportedError(
            f'mode "{decode.mode}" cannot infill, since it never sees the suffix: use mode "block" or "full"'
        )
    if config.context == "block":
        raise UnsupportedError("a model with block context cannot infill: no block sees what comes after it")
    if config.null_id is not None:
        return heal
    if decode.min_tokens != max_tokens:
        raise UnsupportedError(
            "this model has no <null> to end a gap with: give the gap's length, min_tokens equal to max_tokens"
        )
    if heal:
        raise UnsupportedError("this model has no <null>, so healing could not keep the gap's length: use heal=False")
    return False
