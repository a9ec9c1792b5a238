"""The operations on texts, and what runs each: `run` gives the result of a `Request`.

A request names one of OPERATIONS, which turns its arguments into `Gaps`: texts around gaps, and how large these are.
All else is common: `plan_of` chooses options and what is shown of long texts, and lays the canvas out; samples are then
driven to their results (`drive`), here, by the engine, or by a recorder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from daguerre.arguments import Kind
from daguerre.decoding.context import HEALED, TOKEN_LENGTH, Context, choose, kept_files, whole
from daguerre.decoding.defaults import chosen
from daguerre.decoding.drive import OnStep, only_sample, run_samples, stream_events
from daguerre.decoding.lengths import search_length, wants_search
from daguerre.decoding.modes import SEARCHED_TOKENS
from daguerre.decoding.plan import Mode, Plan
from daguerre.decoding.planning import keep_drafts, plan_request
from daguerre.decoding.request import (
    CALLS,
    EDITS,
    REQUIRED,
    Decode,
    Text,
    TokenRequest,
    check_changeable,
    encoded,
    is_infilling,
)
from daguerre.decoding.result import Result, StreamEvent
from daguerre.decoding.running import Running
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


# ---- the operations --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gaps:
    """What an operation makes of its arguments.

    around      the texts around the gaps, or their token ids
    most        of each gap or of all, the most tokens; None: the operation's or the mode's default
    fewest      likewise, the fewest; None: `min_tokens` of the options
    between     what stands in the gaps; None: nothing
    edits       the text whose parts the gaps are
    strength    of their tokens, the share that is drawn again
    changeable  the canvas may be changed while it is written
    joined      the result is the whole text
    """

    around: Sequence[Text]
    most: int | Sequence[int] | None
    fewest: int | Sequence[int] | None = None
    between: Sequence[str] | None = None
    edits: str | None = None
    strength: float = 1.0
    changeable: bool = False
    joined: bool = False

    @property
    def num(self) -> int:
        """How many there are."""
        return len(self.around) - 1

    @property
    def infilling(self) -> bool:
        """True unless it is a completion."""
        return is_infilling(self.around, self.around[1:])


def _completion(prompt: Text, max_tokens: int = MAX_TOKENS) -> Gaps:
    return Gaps((prompt, ""), max_tokens)


def _gap(prefix: Text, suffix: Text, max_tokens: int | None = None) -> Gaps:
    if suffix is None:
        raise InputError("infill needs the text after the gap: give a suffix, or call generate")
    return Gaps((prefix, suffix), max_tokens)


def _stream(
    prompt: Text, max_tokens: int | None = None, *, suffix: Text | None = None, changeable: bool = False
) -> Gaps:
    most = MAX_TOKENS if max_tokens is None and suffix is None else max_tokens
    return Gaps((prompt, "" if suffix is None else suffix), most, changeable=changeable)


def _template(
    template: str,
    max_tokens: int | Sequence[int] | None = None,
    *,
    min_tokens: int | Sequence[int] | None = None,
    mark: str = MARK,
) -> Gaps:
    pieces = split_template(template, mark)
    return Gaps(pieces, max_tokens, min_tokens, [mark] * (len(pieces) - 1), joined=True)


def _edit(
    text: str,
    spans: Sequence[CharSpan] | None = None,
    max_tokens: int | Sequence[int] | None = None,
    *,
    lines: Sequence[CharSpan] | None = None,
    pattern: str | None = None,
    strength: float = 1.0,
) -> Gaps:
    found = find_spans(text, spans, lines, pattern)
    parts = [text[start:end] for start, end in found]
    return Gaps(split_at(text, found), max_tokens, None, parts, text, strength, joined=True)


@dataclass(frozen=True)
class Operation:
    """One operation: `gaps` of its arguments, the arguments that planning takes beside these, and all their kinds."""

    gaps: Callable[..., Gaps]
    planned: tuple[str, ...] = ()
    kinds: Mapping[str, Kind] = field(default_factory=lambda: CALLS)

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The arguments that its gaps are made of; those that have a place come first."""
        return tuple(inspect.signature(self.gaps).parameters)

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The arguments that have no default: its texts."""
        parameters = inspect.signature(self.gaps).parameters.values()
        return tuple(each.name for each in parameters if each.default is each.empty)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The arguments that have a place."""
        parameters = inspect.signature(self.gaps).parameters.values()
        return (*(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD), "decode")

    @cached_property
    def names(self) -> frozenset[str]:
        """All arguments."""
        return frozenset((*self.own, *self.planned, "heal", "timeout", "context", "special_tokens"))


OPERATIONS: dict[str, Operation] = {
    "generate": Operation(_completion, ("draft",), REQUIRED),
    "infill": Operation(_gap, ("draft", "files", "search_length")),
    "fill": Operation(_template, ("files", "search_length"), EDITS),
    "edit": Operation(_edit, ("files", "search_length"), EDITS),
    "stream": Operation(_stream, ("draft", "files")),
}


@dataclass(frozen=True)
class Request:
    """What is asked of a model: an operation of OPERATIONS, its arguments by name, and options of `Decode`, which take
    precedence over those of `decode`.

    defaults  options that hold unless a request without a `decode` excludes them (`defaults.chosen`)
    catalog   names of the model's concepts; None: their numbers
    """

    operation: str
    arguments: Mapping[str, Any]
    decode: Decode | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] | None = None
    catalog: Catalog | None = None

    @classmethod
    def of(cls, operation: str, *values: Any, **named: Any) -> Request:
        """The request of a call: arguments by their places or names, and options. InputError for an argument that is
        of another kind than it should be.
        """
        asked = OPERATIONS[operation]
        placed = asked.order[: len(values)]
        if len(placed) < len(values) or named.keys() & set(placed):
            raise TypeError(f"{operation} takes {', '.join(asked.order)} by place, and each once")
        named.update(zip(placed, values, strict=True))
        beside = {name: named.pop(name, None) for name in ("decode", "defaults", "catalog")}
        arguments = {name: named.pop(name) for name in list(named) if name in asked.names}
        arguments = {name: asked.kinds[name](name, value) for name, value in arguments.items()}
        return cls(operation, arguments, options=named, **beside)

    @property
    def gaps(self) -> Gaps:
        """What the operation makes of its arguments."""
        asked = OPERATIONS[self.operation]
        return asked.gaps(**{name: self.arguments[name] for name in asked.own if name in self.arguments})

    @property
    def timeout(self) -> float | None:
        """Seconds for each sample."""
        return self.arguments.get("timeout")


# ---- their plan ------------------------------------------------------------------------------------------------------


def plan_of(denoiser: Denoiser, tokenizer: Tokenizer, request: Request) -> Plan:
    """The plan of a request. A search of its gap's length runs here; it is not steered. InputError or UnsupportedError,
    in one line, for what cannot be asked.
    """
    given, gaps = request.arguments, request.gaps
    if gaps.changeable and given.get("draft") is not None:
        raise UnsupportedError("a request that may be changed while it runs takes no draft: leave it out, or pin text")
    denoise = gaps.changeable or gaps.strength != 1.0 or bool(given.get("search_length"))
    how = _chosen(denoiser, request, gaps, denoise)
    if gaps.strength == 1.0:
        most, fewest, drafts = _most(denoiser, tokenizer, how, gaps), _fewest(how, gaps), None
    else:
        drafts = _old_tokens(tokenizer, how, gaps, given)
        most = fewest = [len(draft) for draft in drafts]
        given = {**given, "heal": False, "search_length": False}
    asked = _tokens_of(denoiser, tokenizer, how, gaps, list(zip(fewest, most, strict=True)), denoise, given)
    if gaps.changeable:
        check_changeable(asked.decode, denoiser.config)
    plan = _lay_out(denoiser, tokenizer, asked, given.get("search_length"))
    if drafts is not None:
        plan = keep_drafts(plan, drafts, gaps.strength)
    return replace(plan, catalog=_catalog(denoiser, request), original=gaps.edits)


def _catalog(denoiser: Denoiser, request: Request) -> Catalog | None:
    """Names of the model's concepts; None for a model without concept heads."""
    shape = denoiser.config.concepts
    return None if shape is None else request.catalog or Catalog.numbered(shape)


def _chosen(denoiser: Denoiser, request: Request, gaps: Gaps, denoise: bool) -> Decode:
    """The options, with the strings of `forbid_exactly` among those that are forbidden. InputError for a concept that
    the model does not have.
    """
    if request.decode is not None or not request.defaults:
        out = Decode.of(request.decode, **request.options)
    else:
        kind = {"infilling": gaps.infilling, "denoise": denoise, "changeable": gaps.changeable}
        out = chosen(denoiser.config, request.options, request.defaults, **kind)
    names = _catalog(denoiser, request)
    if names is not None and out.steers:
        out.steering.resolved(names)
        if out.forbid_exactly:
            out = replace(out, forbidden=tuple(dict.fromkeys((*out.forbidden, *names.texts(out.forbid)))))
    return out


def _most(denoiser: Denoiser, tokenizer: Tokenizer, how: Decode, gaps: Gaps) -> list[int]:
    """The most tokens of each gap."""
    if gaps.most is not None:
        return _for_each(gaps.most, gaps.num, "max_tokens")
    if gaps.edits is not None and gaps.between is not None:
        return [len(tokenizer.encode_plain(part, begins=False)) + EDIT_SLACK for part in gaps.between]
    return [how.resolved(denoiser.config, gaps.infilling).mode_entry.gap_tokens] * gaps.num


def _fewest(how: Decode, gaps: Gaps) -> list[int]:
    """The fewest tokens of each gap."""
    return _for_each(how.min_tokens if gaps.fewest is None else gaps.fewest, gaps.num, "min_tokens")


def _for_each(value: int | Sequence[int], num: int, name: str) -> list[int]:
    """One number for each of `num` gaps; InputError where there are more or fewer."""
    if isinstance(value, int):
        return [value] * num
    if len(value) != num:
        raise InputError(f"{name} must be one number, or one for each of the {num} gaps, not {shown(value)}")
    return list(value)


def _old_tokens(tokenizer: Tokenizer, how: Decode, gaps: Gaps, given: Mapping[str, Any]) -> list[list[int]]:
    """The tokens of edited parts, of which a share is drawn again."""
    assert gaps.between is not None
    if gaps.most is not None or how.min_tokens or given.get("heal") or given.get("search_length"):
        raise InputError(
            "with a strength below 1 an edit keeps its length: leave out max_tokens, min_tokens, heal and search_length"
        )
    drafts = [tokenizer.encode_plain(part, begins=False) for part in gaps.between]
    if not all(drafts):
        raise InputError("with a strength below 1 every span needs text: leave out those that are empty")
    return drafts


def _tokens_of(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    decode: Decode,
    gaps: Gaps,
    budgets: list[tuple[int, int]],
    denoise: bool,
    given: Mapping[str, Any],
) -> TokenRequest:
    """A request in tokens, with a mode where its options name none (see `modes.choose_mode` for `denoise`)."""
    config, files, draft = denoiser.config, given.get("files"), given.get("draft")
    short = len(budgets) == 1 and budgets[0][0] == 0 and budgets[0][1] <= SEARCHED_TOKENS
    searches = short and given.get("timeout") is None and draft is None
    decode = decode.resolved(config, gaps.infilling, denoise, searches)
    kept = len(config.first) + sum(most for _, most in budgets) + decode.mode_entry.num_arranging(config)
    segments, context = _shown(tokenizer, config, gaps, config.max_positions - kept, given)
    if files:
        room = config.max_positions - kept - sum(map(len, segments))
        files = kept_files(tokenizer, files, room - REPOSITORY_TOKENS * (1 + len(files)))
    around = tuple(map(str, gaps.around)) if gaps.joined else None
    return TokenRequest(decode, segments, budgets, given.get("heal"), draft, around, context, files)


def _shown(
    tokenizer: Tokenizer, config: ModelConfig, gaps: Gaps, room: int, given: Mapping[str, Any]
) -> tuple[list[list[int]], Context | None]:
    """The token ids of what is shown, and what that is; token ids are shown as they are, without a context. room:
    positions for them. InputError for what is neither a text nor token ids.
    """
    texts = [text for text in gaps.around if isinstance(text, str)]
    special, showing = given.get("special_tokens"), given.get("context", "auto")
    if len(texts) < len(gaps.around):
        return encoded(gaps.around, tokenizer, config, special), None
    between = gaps.between or [""] * gaps.num
    context = whole(texts, between)
    short = showing == "whole" or room < 1 or sum(map(len, texts)) <= room * TOKEN_LENGTH
    if showing == "whole":
        tokenizer.check_size(*texts, longest=1)
    segments = encoded(texts, tokenizer, config, special) if short else None
    if segments is None or (showing == "auto" and sum(map(len, segments)) > room > gaps.num):
        context = choose(tokenizer, texts, between, max(1, room - gaps.num * HEALED))
        segments = encoded(context.texts, tokenizer, config, special)
    return segments, context


def _lay_out(denoiser: Denoiser, tokenizer: Tokenizer, request: TokenRequest, search: bool | None) -> Plan:
    """The plan of a request in tokens. InputError for a span of `steer` that is behind the gaps."""
    for what, asked in (("a stop string", request.decode.stop), ("heal=True", request.heal)):
        if asked:
            tokenizer.require_bytes(what)
    searches = bool(search or request.infilling) and wants_search(denoiser.config, request, search)
    make = partial(plan_request, denoiser.config, tokenizer)
    plan = search_length(denoiser, request, make) if searches else make(request)
    if plan.decode.steers:
        plan.decode.steering.check_spans(plan.canvas, searches)
    return plan


# ---- and their result ------------------------------------------------------------------------------------------------


def run(denoiser: Denoiser, tokenizer: Tokenizer, request: Request, on_step: OnStep | None = None) -> Result:
    """The result of a request, whose samples are driven together."""
    return run_samples(denoiser, plan_of(denoiser, tokenizer, request), request.timeout, on_step)


def generate(
    denoiser: Denoiser, tokenizer: Tokenizer, *values: Any, on_step: OnStep | None = None, **named: Any
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
    return run(denoiser, tokenizer, Request.of("generate", *values, **named), on_step)


def infill(
    denoiser: Denoiser, tokenizer: Tokenizer, *values: Any, on_step: OnStep | None = None, **named: Any
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
    return run(denoiser, tokenizer, Request.of("infill", *values, **named), on_step)


def fill(denoiser: Denoiser, tokenizer: Tokenizer, *values: Any, on_step: OnStep | None = None, **named: Any) -> Result:
    """Fill every gap of `template`, a text with a `mark` at each gap, in one run in which the gaps see each other.

    max_tokens, min_tokens: of each gap, one number for all or one for each. The result's `text` is the filled template,
    `texts` are those of the gaps. The length of a single gap alone can be searched. The other arguments are those of
    `infill`.
    """
    return run(denoiser, tokenizer, Request.of("fill", *values, **named), on_step)


def edit(denoiser: Denoiser, tokenizer: Tokenizer, *values: Any, on_step: OnStep | None = None, **named: Any) -> Result:
    """Rewrite parts of `text`, all in one run; the rest comes back character for character.

    The parts are given by `spans`, `lines` or a `pattern` (see `text_spans.find_spans`). max_tokens: of each part, or
    one number for all; None: EDIT_SLACK more than the part has. With a `strength` below 1 only that share of the parts'
    tokens is drawn again, in their positions; the other tokens stay. The result has the whole `text`, its `diff`, and
    the `spans` of the new text. The other arguments are those of `infill`.
    """
    return run(denoiser, tokenizer, Request.of("edit", *values, **named), on_step)


def stream(denoiser: Denoiser, tokenizer: Tokenizer, *values: Any, **named: Any) -> Iterator[StreamEvent]:
    """`generate`, or with a `suffix` `infill`, as events: one for each step, and a last one that has the result.

    max_tokens: None is the default of either. Wrong arguments raise at the call, not at the first event.
    """
    request = Request.of("stream", *values, **named)
    return stream_events(only_sample(denoiser, plan_of(denoiser, tokenizer, request), request.timeout))


def start(denoiser: Denoiser, tokenizer: Tokenizer, *values: Any, **named: Any) -> Running:
    """`stream`, as a request that may be changed between its steps. The last word of the prompt is not healed, so that
    positions count new tokens alone.

    The default mode is "block". UnsupportedError for stop strings, which may end the text before a pin, and for modes
    "speculative", "beam" and "ancestral".
    """
    for name in named.keys() & OPERATIONS["stream"].names - {"prompt", "max_tokens", "suffix", "timeout", "context"}:
        Decode(**{name: named[name]})  # says that it belongs to other calls
    request = Request.of("stream", *values, **named, heal=False, changeable=True)
    plan = plan_of(denoiser, tokenizer, request)
    if plan.decode.stop:
        raise UnsupportedError("a request that may be changed while it runs takes no stop strings: leave out stop")
    return Running(only_sample(denoiser, plan, request.timeout), tokenizer)
