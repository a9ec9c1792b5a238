"""The requests: `generate`, `infill`, `fill`, `edit` and `stream`.

Each becomes a plan (`planning.plan_request`), whose samples (`sample.Sample`) are driven to their results (`drive`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from daguerre.decoding.drive import Together, drive
from daguerre.decoding.lengths import search_length as find_length
from daguerre.decoding.lengths import wants_search
from daguerre.decoding.modes import SEARCHED_TOKENS
from daguerre.decoding.options import Decode
from daguerre.decoding.plan import Plan
from daguerre.decoding.planning import keep_drafts, plan_request
from daguerre.decoding.reading import committed_text, draft_text
from daguerre.decoding.request import Request, Text, encoded, is_infilling
from daguerre.decoding.result import Result, StreamEvent
from daguerre.decoding.sample import Sample
from daguerre.decoding.text_spans import CharSpan, find_spans, split_at, split_template
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.denoiser import Denoiser
from daguerre.models.tokenizer import Tokenizer

MAX_TOKENS = 64
INFILL_TOKENS = 24
"""The default of a gap: well within the lengths of text and gap filler that infilling is trained with."""
EDIT_SLACK = 8
"""By default an edited part may have this many tokens more than before."""


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

    `options` are fields of `Decode` and take precedence over those of `decode`. heal: redraw the prompt's last word,
    which may be cut off; the result's text follows the prompt byte for byte either way. timeout: seconds for each
    sample; as they run out more is committed in a forward, so that the whole budget is filled in time
    (`daguerre.decoding.deadline`). Modes "ar" and "speculative" keep their distribution and their pace, and block
    context takes at least one forward for each block: positions that are open when time is up are left out, or, under a
    constraint, completed with the fewest tokens and without the model. With n samples, the result is the first and
    `choices` are all.

    draft: the likely text. Modes "ar" and "speculative" verify its tokens, several a forward, and find their place in
    it again after a difference; the tokens are those without a draft. In the other modes it takes the place of masks:
    one forward for each span reads it, tokens with a probability of `threshold` or more stay, and the rest is denoised.
    A model that was trained to correct keeps right tokens best. `usage` counts accepted and rejected tokens.
    """
    how = Decode.of(decode, **options)
    segments = encoded(prompt, None, tokenizer, denoiser.config)
    request = _request(denoiser, how, segments, [(how.min_tokens, max_tokens)], heal=heal, draft=draft)
    return _all_samples(denoiser, _plan(denoiser, tokenizer, request, timeout), timeout)


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
    """The text between `prefix` and `suffix`, at most `max_tokens`; exactly as many if `min_tokens` is equal to it.

    search_length: first find the length, from min_tokens to max_tokens, by scoring a gap of each length
    (`daguerre.decoding.lengths`), then fill exactly as many; None: only for a model that has no <null> to end the gap
    with. Guidance and a scorer change what is drawn, not the search. The result's `searched` has the scores; forwards
    and time of a search count in the usage and the timeout of the first sample.
    With an empty suffix it is a completion, as by `generate`, and <eos> ends it. The other arguments are those of
    `generate`. UnsupportedError for a model that cannot see a suffix.
    """
    if suffix is None:
        raise InputError("infill needs the text after the gap: give a suffix, or call generate")
    how = Decode.of(decode, **options)
    segments = encoded(prefix, suffix, tokenizer, denoiser.config)
    request = _request(
        denoiser, how, segments, [(how.min_tokens, max_tokens)], bool(search_length), timeout, heal=heal, draft=draft
    )
    return _all_samples(denoiser, _plan(denoiser, tokenizer, request, timeout, search_length), timeout)


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
    """Fill every gap of `template`, a text with a `mark` at each gap, in one run in which the gaps see each other.

    max_tokens, min_tokens: of each gap, one number for all or one for each. The result's `text` is the filled template,
    `texts` are those of the gaps. The length of a single gap alone can be searched. The other arguments are those of
    `infill`.
    """
    pieces = split_template(template, mark)
    how = Decode.of(decode, **options)
    most = _for_each(max_tokens, len(pieces) - 1, "max_tokens")
    fewest = _for_each(how.min_tokens if min_tokens is None else min_tokens, len(pieces) - 1, "min_tokens")
    segments, budgets = _encoded(tokenizer, pieces), list(zip(fewest, most, strict=True))
    request = _request(denoiser, how, segments, budgets, bool(search_length), timeout, heal=heal, around=pieces)
    return _all_samples(denoiser, _plan(denoiser, tokenizer, request, timeout, search_length), timeout)


def edit(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    text: str,
    spans: Sequence[CharSpan] | None = None,
    max_tokens: int | Sequence[int] | None = None,
    decode: Decode | None = None,
    *,
    lines: Sequence[CharSpan] | None = None,
    pattern: str | None = None,
    strength: float = 1.0,
    search_length: bool | None = None,
    heal: bool | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Result:
    """Rewrite parts of `text`, all in one run; the rest comes back character for character.

    The parts are given by `spans`, `lines` or a `pattern` (see `text_spans.find_spans`). max_tokens: of each part, or
    one number for all; None: EDIT_SLACK more than the part has. With a `strength` below 1 only that share of the parts'
    tokens is drawn again, in their positions; the other tokens stay. The result has the whole `text`, its `diff`, and
    the `spans` of the new text. The other arguments are those of `infill`.
    """
    found = find_spans(text, spans, lines, pattern)
    pieces, how = split_at(text, found), Decode.of(decode, **options)
    drafts = [tokenizer.encode_plain(text[start:end], begins=False) for start, end in found]
    if strength == 1.0:
        each = [len(draft) + EDIT_SLACK for draft in drafts] if max_tokens is None else max_tokens
        budgets = [(how.min_tokens, most) for most in _for_each(each, len(found), "max_tokens")]
    else:
        if max_tokens is not None or how.min_tokens or heal or search_length:
            raise InputError(
                "with a strength below 1 an edit keeps its length: leave out max_tokens, min_tokens, heal and "
                "search_length"
            )
        if not all(drafts):
            raise InputError("with a strength below 1 every span needs text: leave out those that are empty")
        budgets, heal, search_length = [(len(draft), len(draft)) for draft in drafts], False, False
    segments = _encoded(tokenizer, pieces)
    denoise = strength != 1.0 or bool(search_length)
    request = _request(denoiser, how, segments, budgets, denoise, timeout, heal=heal, around=pieces)
    plan = _plan(denoiser, tokenizer, request, timeout, search_length)
    if strength != 1.0:
        plan = keep_drafts(plan, drafts, strength)
    return _all_samples(denoiser, replace(plan, original=text), timeout)


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

    max_tokens: None is the default of either. Wrong arguments raise at the call, not at the first event.
    """
    how = Decode.of(decode, **options)
    one = begin(denoiser, tokenizer, prompt, max_tokens, how, suffix=suffix, heal=heal, timeout=timeout, draft=draft)
    return stream_events(one)


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
    changeable: bool = False,
) -> Sample:
    """The one sample of a request to `stream`, before its first step; `changeable`: of one that its caller changes."""
    if max_tokens is None:
        max_tokens = MAX_TOKENS if suffix is None else INFILL_TOKENS
    segments, budgets = encoded(prompt, suffix, tokenizer, denoiser.config), [(decode.min_tokens, max_tokens)]
    request = _request(denoiser, decode, segments, budgets, changeable, timeout, heal=heal, draft=draft)
    if changeable and not request.decode.mode_entry.changeable:
        raise UnsupportedError(
            f'mode "{request.decode.mode}" cannot be changed while it runs: use mode "block", or call stream'
        )
    plan = _plan(denoiser, tokenizer, request, timeout, None)
    if plan.decode.n != 1:
        raise InputError(f"a stream gives one sample and n={plan.decode.n}: leave out n")
    return Sample(denoiser, plan, 0, timeout)


def stream_events(one: Sample) -> Iterator[StreamEvent]:
    """The events of a sample, with the text after each, and its result."""
    for event in drive(one):
        yield StreamEvent(draft_text(one.plan, event.canvas), committed_text(one.plan, event.canvas), event)
    result = one.result()
    yield StreamEvent(result.text, result.text, None, result)


def _request(
    denoiser: Denoiser,
    decode: Decode,
    segments: Sequence[Sequence[int]],
    budgets: Sequence[tuple[int, int]],
    denoise: bool = False,
    timeout: float | None = None,
    **more: Any,
) -> Request:
    """A request, with a mode where its options name none (see `modes.choose_mode` for `denoise`)."""
    short = len(budgets) == 1 and budgets[0][0] == 0 and budgets[0][1] <= SEARCHED_TOKENS
    searches = short and timeout is None and more.get("draft") is None
    resolved = decode.resolved(denoiser.config, is_infilling(segments, budgets), denoise, searches)
    return Request(resolved, segments, budgets, **more)


def _plan(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    request: Request,
    timeout: float | None,
    search_length: bool | None = False,
) -> Plan:
    """A request's plan. A search of its gap's length runs here."""
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise InputError(f"timeout must be a number of seconds above 0, not {timeout}")
    if search_length not in (None, True, False):
        raise InputError(f"search_length must be True, False or None, not {search_length!r}")
    for what, asked in (("a stop string", request.decode.stop), ("heal=True", request.heal)):
        if asked:
            tokenizer.require_bytes(what)
    if wants_search(denoiser.config, request, search_length):
        return find_length(denoiser, tokenizer, request)
    return plan_request(denoiser.config, tokenizer, request)


def _encoded(tokenizer: Tokenizer, pieces: Sequence[str]) -> list[list[int]]:
    """The texts around gaps, of which the first begins the canvas."""
    return [tokenizer.encode(piece, begins=index == 0) for index, piece in enumerate(pieces)]


def _for_each(value: int | Sequence[int], num: int, name: str) -> list[int]:
    """One number for each of `num` gaps; InputError where there are more or fewer."""
    if isinstance(value, int):
        return [value] * num
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != num:
        raise InputError(f"{name} must be one number, or one for each of the {num} gaps, not {value!r}")
    return list(value)


def _all_samples(denoiser: Denoiser, plan: Plan, timeout: float | None) -> Result:
    samples = [Sample(denoiser, plan, index, timeout) for index in range(plan.decode.n)]
    if len(samples) == 1:
        for _ in drive(samples[0]):
            pass
    else:
        Together(denoiser.backend, samples).run()
    first, *others = [sample.result() for sample in samples]
    return replace(first, others=tuple(others)) if others else first
