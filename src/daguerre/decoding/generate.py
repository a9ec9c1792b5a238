"""The requests: `generate`, `infill`, `fill`, `edit` and `stream`.

Each becomes a plan (`plans`), whose samples (`sample.Sample`) are driven to their results (`drive`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from daguerre.decoding.drive import OnStep, only_sample, run_samples, stream_events
from daguerre.decoding.plans import (
    MAX_TOKENS,
    plan_edit,
    plan_fill,
    plan_generate,
    plan_infill,
    plan_stream,
)
from daguerre.decoding.request import Decode, Text
from daguerre.decoding.result import Result, StreamEvent
from daguerre.decoding.text_spans import CharSpan
from daguerre.models.denoiser import Denoiser
from daguerre.models.tokenizer import Tokenizer


def generate(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prompt: Text,
    max_tokens: int = MAX_TOKENS,
    decode: Decode | None = None,
    *,
    timeout: float | None = None,
    on_step: OnStep | None = None,
    **options: Any,
) -> Result:
    """Continue `prompt`, a text or its token ids, by at most `max_tokens`.

    `options` are fields of `Decode` and take precedence over those of `decode`. heal: redraw the prompt's last word,
    which may be cut off; the result's text follows the prompt byte for byte either way. timeout: seconds for each
    sample; as they run out more is committed in a forward, so that the whole budget is filled in time
    (`daguerre.decoding.deadline`). Modes "ar" and "speculative" keep their distribution and their pace, and block
    context takes at least one forward for each block: positions that are open when time is up are left out, or, under a
    constraint, completed with the fewest tokens and without the model. With n samples, the result is the first and
    `choices` are all. on_step: called with each event of the only sample, as `stream` gives them. context: "auto" shows
    of a text that is longer than the model's positions whole lines around the gaps (`daguerre.decoding.context`), and
    the result's `context` says which; "whole" refuses it. Token ids are shown as they are.

    draft: the likely text. Modes "ar" and "speculative" verify its tokens, several a forward, and find their place in
    it again after a difference; the tokens are those without a draft. In the other modes it takes the place of masks:
    one forward for each span reads it, tokens with a probability of `threshold` or more stay, and the rest is denoised.
    A model that was trained to correct keeps right tokens best. `usage` counts accepted and rejected tokens.
    """
    return run_samples(
        denoiser,
        plan_generate(denoiser, tokenizer, prompt, max_tokens, decode, timeout=timeout, **options),
        timeout,
        on_step,
    )


def infill(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prefix: Text,
    suffix: Text,
    max_tokens: int | None = None,
    decode: Decode | None = None,
    *,
    timeout: float | None = None,
    on_step: OnStep | None = None,
    **options: Any,
) -> Result:
    """The text between `prefix` and `suffix`, at most `max_tokens`; exactly as many if `min_tokens` is equal to it.
    max_tokens: None is the default of the mode, 24, or 128 in mode "fim". files: other files of the repository, as
    texts by name, or pairs of both.

    search_length: first find the length, from min_tokens to max_tokens, by scoring a gap of each length
    (`daguerre.decoding.lengths`), then fill exactly as many; None: only for a model that has no <null> to end the gap
    with. Guidance and a scorer change what is drawn, not the search. The result's `searched` has the scores; forwards
    and time of a search count in the usage and the timeout of the first sample.
    With an empty suffix it is a completion, as by `generate`, and <eos> ends it. The other arguments are those of
    `generate`. UnsupportedError for a model that cannot see a suffix.
    """
    return run_samples(
        denoiser,
        plan_infill(denoiser, tokenizer, prefix, suffix, max_tokens, decode, timeout=timeout, **options),
        timeout,
        on_step,
    )


def fill(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    template: str,
    max_tokens: int | Sequence[int] | None = None,
    decode: Decode | None = None,
    *,
    timeout: float | None = None,
    on_step: OnStep | None = None,
    **options: Any,
) -> Result:
    """Fill every gap of `template`, a text with a `mark` at each gap, in one run in which the gaps see each other.

    max_tokens, min_tokens: of each gap, one number for all or one for each. The result's `text` is the filled template,
    `texts` are those of the gaps. The length of a single gap alone can be searched. The other arguments are those of
    `infill`.
    """
    return run_samples(
        denoiser,
        plan_fill(denoiser, tokenizer, template, max_tokens, decode, timeout=timeout, **options),
        timeout,
        on_step,
    )


def edit(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    text: str,
    spans: Sequence[CharSpan] | None = None,
    max_tokens: int | Sequence[int] | None = None,
    decode: Decode | None = None,
    *,
    timeout: float | None = None,
    on_step: OnStep | None = None,
    **options: Any,
) -> Result:
    """Rewrite parts of `text`, all in one run; the rest comes back character for character.

    The parts are given by `spans`, `lines` or a `pattern` (see `text_spans.find_spans`). max_tokens: of each part, or
    one number for all; None: EDIT_SLACK more than the part has. With a `strength` below 1 only that share of the parts'
    tokens is drawn again, in their positions; the other tokens stay. The result has the whole `text`, its `diff`, and
    the `spans` of the new text. The other arguments are those of `infill`.
    """
    return run_samples(
        denoiser,
        plan_edit(denoiser, tokenizer, text, spans, max_tokens, decode, timeout=timeout, **options),
        timeout,
        on_step,
    )


def stream(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prompt: Text,
    max_tokens: int | None = None,
    decode: Decode | None = None,
    *,
    timeout: float | None = None,
    **options: Any,
) -> Iterator[StreamEvent]:
    """`generate`, or with a `suffix` `infill`, as events: one for each step, and a last one that has the result.

    max_tokens: None is the default of either. Wrong arguments raise at the call, not at the first event.
    """
    plan = plan_stream(denoiser, tokenizer, prompt, max_tokens, decode, timeout=timeout, **options)
    return stream_events(only_sample(denoiser, plan, timeout))
