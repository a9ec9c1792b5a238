"""From the arguments of a request to its plan. `generate` runs it, and so does the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from daguerre.arguments import checks
from daguerre.decoding.context import HEALED, TOKEN_LENGTH, Context, Files, Showing, choose, kept_files, whole
from daguerre.decoding.defaults import chosen
from daguerre.decoding.lengths import search_length as find_length
from daguerre.decoding.lengths import wants_search
from daguerre.decoding.modes import SEARCHED_TOKENS
from daguerre.decoding.plan import Mode, Plan
from daguerre.decoding.planning import keep_drafts, plan_request
from daguerre.decoding.request import (
    CALLS,
    EDITS,
    REQUIRED,
    Decode,
    Request,
    Text,
    check_changeable,
    encoded,
    is_infilling,
)
from daguerre.decoding.text_spans import MARK, CharSpan, find_spans, split_at, split_template
from daguerre.errors import InputError, UnsupportedError, shown
from daguerre.models.catalog import Catalog
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import Denoiser
from daguerre.models.tokenizer import Tokenizer

MAX_TOKENS = 64
INFILL_TOKENS = Mode.gap_tokens
"""The default of a gap in most modes."""
REPOSITORY_TOKENS = 8
"""What is left for the tokens and names around each file of a repository."""
EDIT_SLACK = 8
"""By default an edited part may have this many tokens more than before."""


Defaults = Mapping[str, Any] | None
"""Options that hold unless a request without a `Decode` excludes them (`defaults.chosen`)."""


@checks(REQUIRED)
def plan_generate(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prompt: Text,
    max_tokens: int = MAX_TOKENS,
    decode: Decode | None = None,
    *,
    heal: bool | None = None,
    timeout: float | None = None,
    draft: str | None = None,
    context: Showing = "auto",
    special_tokens: bool | None = None,
    defaults: Defaults = None,
    catalog: Catalog | None = None,
    **options: Any,
) -> Plan:
    """The plan of `generate.generate`."""
    how = _chosen(denoiser, catalog, decode, options, defaults, infilling=False)
    texts = _Texts((prompt, ""), [max_tokens], context, special_tokens)
    request = _request(denoiser, tokenizer, how, texts, [how.min_tokens], heal=heal, draft=draft)
    return _plan(denoiser, tokenizer, catalog, request, timeout)


@checks(CALLS)
def plan_infill(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prefix: Text,
    suffix: Text,
    max_tokens: int | None = None,
    decode: Decode | None = None,
    *,
    search_length: bool | None = None,
    heal: bool | None = None,
    timeout: float | None = None,
    draft: str | None = None,
    context: Showing = "auto",
    special_tokens: bool | None = None,
    files: Files | None = None,
    defaults: Defaults = None,
    catalog: Catalog | None = None,
    **options: Any,
) -> Plan:
    """The plan of `generate.infill`."""
    if suffix is None:
        raise InputError("infill needs the text after the gap: give a suffix, or call generate")
    infilling, search = is_infilling((prefix, suffix), (None,)), bool(search_length)
    how = _chosen(denoiser, catalog, decode, options, defaults, infilling=infilling, denoise=search)
    texts = _Texts((prefix, suffix), [max_tokens or _gap_tokens(denoiser, how, infilling)], context, special_tokens)
    more = {"heal": heal, "draft": draft}
    request = _request(denoiser, tokenizer, how, texts, [how.min_tokens], search, timeout, files, **more)
    return _plan(denoiser, tokenizer, catalog, request, timeout, search_length)


@checks(EDITS)
def plan_fill(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    template: str,
    max_tokens: int | Sequence[int] | None = None,
    decode: Decode | None = None,
    *,
    min_tokens: int | Sequence[int] | None = None,
    mark: str = MARK,
    search_length: bool | None = None,
    heal: bool | None = None,
    timeout: float | None = None,
    context: Showing = "auto",
    special_tokens: bool | None = None,
    files: Files | None = None,
    defaults: Defaults = None,
    catalog: Catalog | None = None,
    **options: Any,
) -> Plan:
    """The plan of `generate.fill`."""
    pieces = split_template(template, mark)
    infilling, search = is_infilling(pieces, pieces[1:]), bool(search_length)
    how = _chosen(denoiser, catalog, decode, options, defaults, infilling=infilling, denoise=search)
    each = _gap_tokens(denoiser, how, infilling) if max_tokens is None else max_tokens
    most = _for_each(each, len(pieces) - 1, "max_tokens")
    fewest = _for_each(how.min_tokens if min_tokens is None else min_tokens, len(pieces) - 1, "min_tokens")
    texts = _Texts(pieces, most, context, special_tokens, [mark] * len(most))
    request = _request(denoiser, tokenizer, how, texts, fewest, search, timeout, files, heal=heal, around=pieces)
    return _plan(denoiser, tokenizer, catalog, request, timeout, search_length)


@checks(EDITS)
def plan_edit(
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
    context: Showing = "auto",
    special_tokens: bool | None = None,
    files: Files | None = None,
    defaults: Defaults = None,
    catalog: Catalog | None = None,
    **options: Any,
) -> Plan:
    """The plan of `generate.edit`."""
    found = find_spans(text, spans, lines, pattern)
    pieces, denoise = split_at(text, found), strength != 1.0 or bool(search_length)
    infilling = is_infilling(pieces, pieces[1:])
    how = _chosen(denoiser, catalog, decode, options, defaults, infilling=infilling, denoise=denoise)
    drafts = [tokenizer.encode_plain(text[start:end], begins=False) for start, end in found]
    if strength == 1.0:
        each = [len(draft) + EDIT_SLACK for draft in drafts] if max_tokens is None else max_tokens
        most, fewest = _for_each(each, len(found), "max_tokens"), [how.min_tokens] * len(found)
    else:
        if max_tokens is not None or how.min_tokens or heal or search_length:
            raise InputError(
                "with a strength below 1 an edit keeps its length: leave out max_tokens, min_tokens, heal and "
                "search_length"
            )
        if not all(drafts):
            raise InputError("with a strength below 1 every span needs text: leave out those that are empty")
        most, heal, search_length = [len(draft) for draft in drafts], False, False
        fewest = most
    texts = _Texts(pieces, most, context, special_tokens, [text[start:end] for start, end in found])
    request = _request(denoiser, tokenizer, how, texts, fewest, denoise, timeout, files, heal=heal, around=pieces)
    plan = _plan(denoiser, tokenizer, catalog, request, timeout, search_length)
    if strength != 1.0:
        plan = keep_drafts(plan, drafts, strength)
    return replace(plan, original=text)


@checks(CALLS)
def plan_stream(
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
    changeable: bool = False,
    context: Showing = "auto",
    special_tokens: bool | None = None,
    files: Files | None = None,
    defaults: Defaults = None,
    catalog: Catalog | None = None,
    **options: Any,
) -> Plan:
    """The plan of `generate.stream`; `changeable`: that of `running.start`."""
    if changeable and draft is not None:
        raise UnsupportedError("a request that may be changed while it runs takes no draft: leave it out, or pin text")
    around = prompt, "" if suffix is None else suffix
    kind = {"infilling": is_infilling(around, (None,)), "denoise": changeable, "changeable": changeable}
    how = _chosen(denoiser, catalog, decode, options, defaults, **kind)
    if max_tokens is None:
        max_tokens = MAX_TOKENS if suffix is None else _gap_tokens(denoiser, how, kind["infilling"])
    texts = _Texts(around, [max_tokens], context, special_tokens)
    more = {"heal": heal, "draft": draft}
    request = _request(denoiser, tokenizer, how, texts, [how.min_tokens], changeable, timeout, files, **more)
    if changeable:
        check_changeable(request.decode, denoiser.config)
    return _plan(denoiser, tokenizer, catalog, request, timeout, None)


def _gap_tokens(denoiser: Denoiser, how: Decode, infilling: bool) -> int:
    """The default of a gap."""
    return how.resolved(denoiser.config, infilling).mode_entry.gap_tokens


def _catalog(denoiser: Denoiser, catalog: Catalog | None) -> Catalog | None:
    """Names of the model's concepts; None for a model without concept heads."""
    shape = denoiser.config.concepts
    return None if shape is None else catalog or Catalog.numbered(shape)


def _chosen(
    denoiser: Denoiser,
    catalog: Catalog | None,
    decode: Decode | None,
    options: Mapping[str, Any],
    defaults: Defaults,
    **how: bool,
) -> Decode:
    """`defaults.chosen`, with the strings of `forbid_exactly` among those that are forbidden. InputError for a concept
    that the model does not have.
    """
    out, names = chosen(denoiser.config, decode, options, defaults, **how), _catalog(denoiser, catalog)
    if names is not None:
        out.steering.resolved(names)
        if out.forbid_exactly:
            out = replace(out, forbidden=tuple(dict.fromkeys((*out.forbidden, *names.texts(out.forbid)))))
    return out


@dataclass(frozen=True)
class _Texts:
    """The texts around the gaps of a request, or their token ids; the most tokens of each gap; how much is shown;
    whether names of special tokens stand for them (None: in the prompt of a completion); and what stands in the gaps:
    None, nothing.
    """

    around: Sequence[Text]
    most: Sequence[int]
    context: Showing
    special_tokens: bool | None = None
    between: Sequence[str] | None = None

    @property
    def infilling(self) -> bool:
        """True unless it is a completion."""
        return is_infilling(self.around, self.most)

    def read(self, tokenizer: Tokenizer, config: ModelConfig, kept: int) -> tuple[list[list[int]], Context | None]:
        """The token ids of what is shown, and what that is; token ids are shown as they are, without a context. kept:
        positions that the mode needs beside them. InputError for what is neither a text nor token ids.
        """
        texts = [text for text in self.around if isinstance(text, str)]
        between = self.between or [""] * len(self.most)
        room = config.max_positions - len(config.first) - sum(self.most) - kept
        if len(texts) < len(self.around):
            return encoded(self.around, tokenizer, config, self.special_tokens), None
        shown = whole(texts, between)
        short = self.context == "whole" or room < 1 or sum(map(len, texts)) <= room * TOKEN_LENGTH
        if self.context == "whole":
            tokenizer.check_size(*texts, longest=1)
        segments = encoded(texts, tokenizer, config, self.special_tokens) if short else None
        if segments is None or (self.context == "auto" and sum(map(len, segments)) > room > len(self.most)):
            shown = choose(tokenizer, texts, between, max(1, room - len(self.most) * HEALED))
            segments = encoded(shown.texts, tokenizer, config, self.special_tokens)
        return segments, shown


def _request(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    decode: Decode,
    texts: _Texts,
    fewest: Sequence[int],
    denoise: bool = False,
    timeout: float | None = None,
    files: Files | None = None,
    **more: Any,
) -> Request:
    """A request, with a mode where its options name none (see `modes.choose_mode` for `denoise`)."""
    config = denoiser.config
    budgets = list(zip(fewest, texts.most, strict=True))
    short = len(budgets) == 1 and budgets[0][0] == 0 and budgets[0][1] <= SEARCHED_TOKENS
    searches = short and timeout is None and more.get("draft") is None
    resolved = decode.resolved(config, texts.infilling, denoise, searches)
    kept = resolved.mode_entry.num_arranging(config)
    segments, context = texts.read(tokenizer, config, kept)
    if files:
        room = config.max_positions - len(config.first) - sum(texts.most) - kept - sum(map(len, segments))
        files = kept_files(tokenizer, files, room - REPOSITORY_TOKENS * (1 + len(files)))
    return Request(resolved, segments, budgets, context=context, files=files, **more)


def _plan(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    catalog: Catalog | None,
    request: Request,
    timeout: float | None,
    search_length: bool | None = False,
) -> Plan:
    """A request's plan. A search of its gap's length runs here; it is not steered. InputError for a span of `steer`
    that is behind the gaps.
    """
    for what, asked in (("a stop string", request.decode.stop), ("heal=True", request.heal)):
        if asked:
            tokenizer.require_bytes(what)
    searches = wants_search(denoiser.config, request, search_length)
    plan_of = partial(plan_request, denoiser.config, tokenizer)
    plan = find_length(denoiser, request, plan_of) if searches else plan_of(request)
    plan.decode.steering.check_spans(plan.canvas, searches)
    return replace(plan, catalog=_catalog(denoiser, catalog))


def _for_each(value: int | Sequence[int], num: int, name: str) -> list[int]:
    """One number for each of `num` gaps; InputError where there are more or fewer."""
    if isinstance(value, int):
        return [value] * num
    if len(value) != num:
        raise InputError(f"{name} must be one number, or one for each of the {num} gaps, not {shown(value)}")
    return list(value)
