"""Requests: `generate`, `infill`, `fill`, `edit` and `stream`.

Each becomes a plan (`planning.lay_out`), and samples of it run (`sample.Sample`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from daguerre.editing import Span, find_spans, split_at, split_template
from daguerre.errors import InputError
from daguerre.lengths import search_length as find_length
from daguerre.lengths import wants_search
from daguerre.models.denoiser import Denoiser
from daguerre.models.tokenizer import Tokenizer
from daguerre.plan import Plan
from daguerre.planning import keep_drafts, lay_out
from daguerre.request import Request, Text, encoded
from daguerre.result import Result, StreamEvent, committed_text, draft_text
from daguerre.sample import Sample
from daguerre.sampling.decode import Decode

MAX_TOKENS = 64
INFILL_TOKENS = 24
"""A gap unless told: well within the lengths of text and <null> that infilling is trained with."""
EDIT_SLACK = 8
"""How many tokens more than it had an edited part may get unless told."""


def generate(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prompt: Text,
    max_tokens: int = MAX_TOKENS,
    decode: Decode | None = None,
    *,
    heal: bool | None = None,
    timeout: float | None = None,
    draft: str | None = None,
    **options: Any,
) -> Result:
    """Continue `prompt`, a text or its token ids, by at most `max_tokens`.

    `options` are fields of `Decode` and go before those of `decode`. heal: draw again a last word that may have been
    cut; the result's text follows the prompt byte for byte either way. timeout: seconds for each sample; as they run
    out more is committed a forward, so that the whole budget is filled in time (`daguerre.sampling.deadline`). Modes
    "ar" and "speculative" keep their law and their pace, and block context takes a forward a block or more: what is
    open when time is up is left out, or under a constraint completed in the fewest tokens, without the model. With n
    samples, the result is the first and `choices` are all.

    draft: what the text will likely be. Modes "ar" and "speculative" put its tokens to the test, many a forward, and
    find it again where the text has left it: the tokens are those without a draft. In the others it stands in place of
    masks: one forward a span reads it, tokens with a probability of `threshold` or more stay, the rest is denoised.
    What is right is best kept where the model was trained to correct. `usage` counts its accepted and rejected tokens.
    """
    asked = Decode.of(decode, **options)
    segments = encoded(prompt, None, tokenizer, denoiser.config)
    request = Request(asked, segments, [(asked.min_tokens, max_tokens)], heal, draft)
    return _all_samples(denoiser, _lay_out(denoiser, tokenizer, request, timeout), timeout)


def infill(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prefix: Text,
    suffix: Text,
    max_tokens: int = INFILL_TOKENS,
    decode: Decode | None = None,
    *,
    search_length: bool | None = None,
    heal: bool | None = None,
    timeout: float | None = None,
    draft: str | None = None,
    **options: Any,
) -> Result:
    """What goes between `prefix` and `suffix`, at most `max_tokens`; exactly as many with `min_tokens` equal to it.

    search_length: find the length among those from min_tokens to max_tokens by asking the model once about each
    (`daguerre.lengths`), then fill exactly as many; None: where the model has no <null> to end the gap with. Guidance
    and a scorer lean what is drawn, not the search. The result's `searched` says what was found; its forwards and time
    are in the usage and the timeout, of several samples in the first's.
    With nothing behind the gap it is a completion, which <eos> ends: an empty suffix is `generate`. Other arguments are
    those of `generate`. UnsupportedError for a model that cannot see a suffix.
    """
    if suffix is None:
        raise InputError("infill needs the text behind the gap: give a suffix, or call generate")
    asked = Decode.of(decode, **options)
    segments = encoded(prefix, suffix, tokenizer, denoiser.config)
    request = Request(asked, segments, [(asked.min_tokens, max_tokens)], heal, draft)
    return _all_samples(denoiser, _lay_out(denoiser, tokenizer, request, timeout, search_length), timeout)


def fill(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    template: str,
    max_tokens: int | Sequence[int] = INFILL_TOKENS,
    decode: Decode | None = None,
    *,
    min_tokens: int | Sequence[int] | None = None,
    mark: str = "{}",
    search_length: bool | None = None,
    heal: bool | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Result:
    """Fill every gap of `template`, a text with `mark` where one goes, in one run in which the gaps see each other.

    max_tokens, min_tokens: of each gap, one number for all or one for each. The result's `text` is the template filled,
    `texts` what its gaps got. Only a single gap's length can be searched. Other arguments are those of `infill`.
    """
    pieces = split_template(template, mark)
    asked = Decode.of(decode, **options)
    most = _for_each(max_tokens, len(pieces) - 1, "max_tokens")
    least = _for_each(asked.min_tokens if min_tokens is None else min_tokens, len(pieces) - 1, "min_tokens")
    segments = [tokenizer.encode(piece) for piece in pieces]
    request = Request(asked, segments, list(zip(least, most, strict=True)), heal, around=pieces)
    return _all_samples(denoiser, _lay_out(denoiser, tokenizer, request, timeout, search_length), timeout)


def edit(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    text: str,
    spans: Sequence[Span] | None = None,
    max_tokens: int | Sequence[int] | None = None,
    decode: Decode | None = None,
    *,
    lines: Sequence[Span] | None = None,
    pattern: str | None = None,
    strength: float = 1.0,
    search_length: bool | None = None,
    heal: bool | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Result:
    """Write parts of `text` anew, all in one run; what is outside them comes back character for character.

    What to edit is given by `spans`, `lines` or a `pattern` (see `editing.find_spans`). max_tokens: of each part, or
    one number for all; None: EDIT_SLACK more than it has. With a `strength` below 1 only that share of the parts'
    tokens is drawn again, at the places they had; the others stay as a draft. The result has the whole `text`, its
    `diff`, and the `spans` of what was written. Other arguments are those of `infill`.
    """
    found = find_spans(text, spans, lines, pattern)
    pieces, asked = split_at(text, found), Decode.of(decode, **options)
    drafts = [tokenizer.encode(text[start:end]) for start, end in found]
    segments = [tokenizer.encode(piece) for piece in pieces]
    if strength == 1.0:
        each = [len(draft) + EDIT_SLACK for draft in drafts] if max_tokens is None else max_tokens
        budgets = [(asked.min_tokens, most) for most in _for_each(each, len(found), "max_tokens")]
    else:
        if max_tokens is not None or asked.min_tokens or heal or search_length:
            raise InputError(
                "with a strength below 1 an edit keeps its length: leave out max_tokens, min_tokens, heal and "
                "search_length"
            )
        if not all(drafts):
            raise InputError("with a strength below 1 every span needs text: leave out those that are empty")
        budgets, heal, search_length = [(len(draft), len(draft)) for draft in drafts], False, False
    request = Request(asked, segments, budgets, heal, around=pieces)
    plan = _lay_out(denoiser, tokenizer, request, timeout, search_length)
    if strength != 1.0:
        plan = keep_drafts(plan, drafts, strength)
    return _all_samples(denoiser, replace(plan, original=text), timeout)


def _lay_out(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    request: Request,
    timeout: float | None,
    search_length: bool | None = False,
) -> Plan:
    """A request's plan; where the length of its gap is to be searched, the model is asked here."""
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise InputError(f"timeout must be a number of seconds above 0, not {timeout}")
    if search_length not in (None, True, False):
        raise InputError(f"search_length must be True, False or None, not {search_length!r}")
    if wants_search(denoiser.config, request, search_length):
        return find_length(denoiser, tokenizer, request)
    return lay_out(denoiser.config, tokenizer, request)


def _for_each(value: int | Sequence[int], num: int, name: str) -> list[int]:
    """One number for each of `num` gaps."""
    if isinstance(value, int):
        return [value] * num
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != num:
        raise InputError(f"{name} must be one number, or one for each of the {num} gaps, not {value!r}")
    return list(value)


def stream(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prompt: Text,
    max_tokens: int | None = None,
    decode: Decode | None = None,
    *,
    suffix: Text | None = None,
    heal: bool | None = None,
    timeout: float | None = None,
    draft: str | None = None,
    **options: Any,
) -> Iterator[StreamEvent]:
    """`generate`, or with a `suffix` `infill`, as events: one for each step, and a last one that has the result.

    max_tokens: None is the default of the one or the other. Wrong arguments raise at the call, not at the first event.
    """
    asked = Decode.of(decode, **options)
    one = begin(denoiser, tokenizer, prompt, max_tokens, asked, suffix=suffix, heal=heal, timeout=timeout, draft=draft)
    return told(one)


def begin(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prompt: Text,
    max_tokens: int | None,
    decode: Decode,
    *,
    suffix: Text | None,
    heal: bool | None,
    timeout: float | None,
    draft: str | None = None,
) -> Sample:
    """The one sample of a request to `stream`, before its first step."""
    if max_tokens is None:
        max_tokens = MAX_TOKENS if suffix is None else INFILL_TOKENS
    segments = encoded(prompt, suffix, tokenizer, denoiser.config)
    request = Request(decode, segments, [(decode.min_tokens, max_tokens)], heal, draft)
    plan = _lay_out(denoiser, tokenizer, request, timeout, None)
    if plan.decode.n != 1:
        raise InputError(f"a stream gives one sample and n={plan.decode.n}: leave out n")
    return Sample(denoiser, plan, 0, timeout)


def told(one: Sample) -> Iterator[StreamEvent]:
    """The events of a sample with what they make the text, and its result."""
    for event in one.steps():
        yield StreamEvent(draft_text(one.plan, event.canvas), committed_text(one.plan, event.canvas), event)
    result = one.result()
    yield StreamEvent(result.text, result.text, None, result)


def _all_samples(denoiser: Denoiser, plan: Plan, timeout: float | None) -> Result:
    results = []
    for index in range(plan.decode.n):
        sample = Sample(denoiser, plan, index, timeout)
        for _ in sample.steps():
            pass
        results.append(sample.result())
    first, *others = results
    return replace(first, others=tuple(others)) if others else first
