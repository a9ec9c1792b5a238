"""The operations on texts, and what runs each: `run` gives the result of a `Request`.

A request names one of OPERATIONS. All but a decision turn their arguments into `Gaps`: texts around gaps, and how large
these are. All else is common: `plan_of` chooses options and what is shown of long texts, and lays the canvas out;
samples are then driven to their results (`sample`), here, by the engine, or by a recorder.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from daguerre.canvas import Canvas
from daguerre.decoding.context import HEALED, TOKEN_LENGTH, Context, Showing, choose, context_of, kept_files
from daguerre.decoding.defaults import chosen
from daguerre.decoding.healing import Healing, Vocabulary
from daguerre.decoding.lengths import search_length, wants_search
from daguerre.decoding.modes import SEARCHED_TOKENS
from daguerre.decoding.pins import pinned
from daguerre.decoding.plan import Gap, Mode, Plan, filler_of
from daguerre.decoding.planning import constrain, keep_drafts, special_texts, unconditional_tokens
from daguerre.decoding.request import (
    CALLS,
    EDITS,
    REQUIRED,
    Decode,
    Text,
    TokenRequest,
    check_changeable,
    check_request,
    encoded,
    read_draft,
)
from daguerre.decoding.result import StreamEvent
from daguerre.decoding.running import Running
from daguerre.decoding.sample import OnStep, only_sample, run_samples, stream_events
from daguerre.decoding.text_spans import MARK, CharSpan, find_spans, split_at, split_template
from daguerre.errors import ContextError, InputError, UnsupportedError, shown
from daguerre.kinds import TEXT, Instance, Kind
from daguerre.models.catalog import Catalog
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import Denoiser
from daguerre.models.session import Asking, compute
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


class ScoredQuestions(ABC):
    """Questions about a text, which are answered by scores: nothing is written. See `daguerre.scoring.decisions`."""

    @abstractmethod
    def answers(self, config: ModelConfig, tokenizer: Tokenizer, state: str, context: Showing) -> Asking[list[Any]]:
        """The answers, by forwards that it yields. InputError or UnsupportedError for what cannot be asked."""


DECISION: dict[str, Kind] = {
    "state": TEXT,
    "questions": Instance(of=(ScoredQuestions,), what="daguerre.scoring.decisions.Questions"),
    "context": CALLS["context"],
}
"""The kinds of the arguments of a decision."""


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


Scoring = Callable[[ModelConfig, Tokenizer], Asking[list[Any]]]
"""The forwards of a request that writes nothing, and its result."""


def _decision(state: str, questions: ScoredQuestions, context: Showing = "auto") -> Scoring:
    return lambda config, tokenizer: questions.answers(config, tokenizer, state, context)


WRITING = ("heal", "timeout", "context", "special_tokens")
"""Arguments of all operations that write."""


@dataclass(frozen=True)
class Operation:
    """One operation: what it makes of its arguments, the arguments that planning takes beside these, and all their
    kinds. writes: whether that is gaps to write in, which options of `Decode` say how.
    """

    gaps: Callable[..., Any]
    planned: tuple[str, ...] = ()
    kinds: Mapping[str, Kind] = field(default_factory=lambda: CALLS)
    writes: bool = True

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
        placed = (each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)
        return (*placed, *(("decode",) if self.writes else ()))

    @cached_property
    def names(self) -> frozenset[str]:
        """All arguments."""
        return frozenset((*self.own, *self.planned, *(WRITING if self.writes else ())))


OPERATIONS: dict[str, Operation] = {
    "generate": Operation(_completion, ("draft",), REQUIRED),
    "infill": Operation(_gap, ("draft", "files", "search_length")),
    "fill": Operation(_template, ("files", "search_length"), EDITS),
    "edit": Operation(_edit, ("files", "search_length"), EDITS),
    "stream": Operation(_stream, ("draft", "files")),
    "decide": Operation(_decision, (), DECISION, writes=False),
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
        given = [name for name in named if name in asked.names]
        arguments = {name: asked.kinds[name](name, named.pop(name)) for name in given}
        if named and not asked.writes:
            raise InputError(f"{operation} takes {', '.join(asked.order)} and no option: leave out {min(named)}")
        return cls(operation, arguments, options=named, **beside)


# ---- their plan ------------------------------------------------------------------------------------------------------


def plan_of(denoiser: Denoiser, tokenizer: Tokenizer, request: Request) -> Plan:
    """The plan of a request. A search of its gap's length runs here; it is not steered. InputError or UnsupportedError,
    in one line, for what cannot be asked.
    """
    given, config, asked = request.arguments, denoiser.config, OPERATIONS[request.operation]
    gaps = asked.gaps(**{name: given[name] for name in asked.own if name in given})
    if gaps.changeable and given.get("draft") is not None:
        raise UnsupportedError("a request that may be changed while it runs takes no draft: leave it out, or pin text")
    denoise = gaps.changeable or gaps.strength != 1.0 or bool(given.get("search_length"))
    infilling = len(gaps.around) > 2 or bool(gaps.around[-1])
    names = None if config.concepts is None else request.catalog or Catalog.numbered(config.concepts)
    decode = _options(config, request, infilling, denoise, gaps.changeable, names)
    drafts = None if gaps.strength == 1.0 else _old_tokens(tokenizer, decode, gaps, given)
    if drafts is None:
        budgets = _budgets(config, tokenizer, decode, gaps, infilling)
    else:
        budgets = [(len(draft), len(draft)) for draft in drafts]
        given = {**given, "heal": False, "search_length": False}
    short = len(budgets) == 1 and budgets[0][0] == 0 and budgets[0][1] <= SEARCHED_TOKENS
    searches = short and given.get("timeout") is None and given.get("draft") is None
    decode = decode.resolved(config, infilling, denoise, searches)
    if given.get("heal") is None and request.defaults is not None:  # a published model
        given = {**given, "heal": None if decode.mode_entry.heals_unasked else False}
    in_tokens = _in_tokens(config, tokenizer, decode, gaps, budgets, given)
    if gaps.changeable:
        check_changeable(decode, config)
    for what, needed in (("a stop string", decode.stop), ("heal=True", given.get("heal"))):
        if needed:
            tokenizer.require_bytes(what)
    search = given.get("search_length")
    make = partial(plan_request, config, tokenizer, catalog=names, original=gaps.edits)
    searched = bool(search or in_tokens.infilling) and wants_search(config, in_tokens, search)
    plan = search_length(denoiser, in_tokens, make) if searched else make(in_tokens)
    if decode.uses_concepts and decode.steers:
        decode.steering.check_spans(plan.canvas, searched)
    return plan if drafts is None else keep_drafts(plan, drafts, gaps.strength)


def _options(
    config: ModelConfig, request: Request, infilling: bool, denoise: bool, changeable: bool, names: Catalog | None
) -> Decode:
    """The options, with the strings of `forbid_exactly` among those that are forbidden. InputError for a concept that
    the model does not have.
    """
    if request.decode is not None or not request.defaults:
        out = Decode.of(request.decode, **request.options)
    else:
        kind = {"infilling": infilling, "denoise": denoise, "changeable": changeable}
        out = chosen(config, request.options, request.defaults, **kind)
    if names is not None and out.uses_concepts and out.steers:
        out.steering.resolved(names)
        if out.forbid_exactly:
            out = replace(out, forbidden=tuple(dict.fromkeys((*out.forbidden, *names.texts(out.forbid)))))
    return out


def _budgets(
    config: ModelConfig, tokenizer: Tokenizer, decode: Decode, gaps: Gaps, infilling: bool
) -> list[tuple[int, int]]:
    """The fewest and the most tokens of each gap."""
    most, num = gaps.most, len(gaps.around) - 1
    if most is None and gaps.edits is not None and gaps.between is not None:
        most = [len(tokenizer.encode_plain(part, begins=False)) + EDIT_SLACK for part in gaps.between]
    elif most is None:
        most = decode.resolved(config, infilling).mode_entry.gap_tokens
    each = list[Sequence[int]]()
    fewest = decode.min_tokens if gaps.fewest is None else gaps.fewest
    for name, value in (("max_tokens", most), ("min_tokens", fewest)):
        if not isinstance(value, int) and len(value) != num:
            raise InputError(f"{name} must be one number, or one for each of the {num} gaps, not {shown(value)}")
        each.append([value] * num if isinstance(value, int) else value)
    budgets = [(least, longest) for longest, least in zip(*each, strict=True)]
    for least, longest in budgets:
        if least > longest:
            raise InputError(f"min_tokens={least} is more than max_tokens={longest}: lower the first")
    return budgets


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


def _in_tokens(
    config: ModelConfig,
    tokenizer: Tokenizer,
    decode: Decode,
    gaps: Gaps,
    budgets: list[tuple[int, int]],
    given: Mapping[str, Any],
) -> TokenRequest:
    """The request in tokens."""
    files = given.get("files")
    kept = len(config.first) + sum(most for _, most in budgets) + decode.mode_entry.num_arranging
    segments, context = _shown(tokenizer, config, gaps, config.max_positions - kept, given)
    if files:
        room = config.max_positions - kept - sum(map(len, segments))
        files = kept_files(tokenizer, files, room - REPOSITORY_TOKENS * (1 + len(files)))
    around = tuple(map(str, gaps.around)) if gaps.joined else None
    return TokenRequest(decode, segments, budgets, given.get("heal"), given.get("draft"), around, context, files)


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
    between = gaps.between or [""] * (len(texts) - 1)
    context = context_of(texts, between)
    short = showing == "whole" or room < 1 or sum(map(len, texts)) <= room * TOKEN_LENGTH
    if showing == "whole":
        tokenizer.check_size(*texts, longest=1)
    segments = encoded(texts, tokenizer, config, special) if short else None
    if segments is None or (showing == "auto" and sum(map(len, segments)) > room > len(between)):
        context = choose(tokenizer, texts, between, max(1, room - len(between) * HEALED))
        segments = encoded(context.texts, tokenizer, config, special)
    return segments, context


def plan_request(
    config: ModelConfig,
    tokenizer: Tokenizer,
    request: TokenRequest,
    catalog: Catalog | None = None,
    original: str | None = None,
) -> Plan:
    """Check a request and lay it out. InputError or UnsupportedError, in one line."""
    decode, vocabulary = request.decode, Vocabulary.make(tokenizer)
    mode, heals = decode.mode_entry, check_request(config, request)
    if request.heal is None and decode.accept_draft is not None:  # a draft that is taken begins behind the text
        heals = heals and not any(mode.num_healed(one, vocabulary) for one in request.segments[:-1])
    if decode.steps is not None:
        decode.check_steps(mode.span_size(decode, config, sum(most for _, most in request.budgets), request.infilling))
    read = request
    if request.files or mode.num_arranging:
        read = replace(request, segments=mode.arrange(config, tokenizer, request.segments, request.files, heals))
    canvas, gaps = _lay_out(config, vocabulary, read, heals)
    mode.check_canvas(decode, config, canvas, request.budgets)
    if decode.pins:
        canvas = pinned(canvas, decode.pins, tokenizer)
    constrains = bool(decode.shaping) and decode.constrained
    return Plan(
        config,
        decode,
        mode,
        vocabulary,
        canvas,
        gaps,
        sum(map(len, read.segments)),
        read.infilling,
        tuple(request.segments),
        around=request.around,
        original=original,
        constraint=constrain(config, tokenizer, decode, canvas, gaps, request.segments) if constrains else None,
        unconditional=None if decode.guidance == 1 else unconditional_tokens(config, tokenizer, decode, canvas),
        draft=None if request.draft is None and decode.accept_draft is None else read_draft(request, tokenizer),
        catalog=catalog,
        context=request.context,
        shown=None if decode.chat_format is None else special_texts(tokenizer),
    )


def _lay_out(
    config: ModelConfig, vocabulary: Vocabulary, request: TokenRequest, heals: bool
) -> tuple[Canvas, tuple[Gap, ...]]:
    """The canvas. A gap is as long as its budget and the tokens that healing took back, and one longer where there is
    room.
    """
    mode, segments = request.decode.mode_entry, request.segments
    total_budget = sum(most for _, most in request.budgets)
    room = config.max_positions - len(config.first) - sum(map(len, segments)) - total_budget
    if room < 0:
        raise ContextError(
            f"the text and max_tokens={total_budget} need {config.max_positions - room} positions and the model has "
            f"{config.max_positions}: shorten the text or ask for fewer tokens"
        )
    if config.shift and not (config.first or segments[0]):
        raise InputError("this model predicts a token from the one before it: begin with a text of a token or more")
    filler = filler_of(config, mode) if request.infilling else None
    kept: list[list[int]] = []
    sizes: list[int] = []
    gaps: list[Gap] = []
    start = 0
    for (fewest, most), segment in zip(request.budgets, segments, strict=False):
        needed = int(config.shift and not (kept or config.first))  # the first token of all is predicted by none
        taken = mode.num_healed(segment[needed:], vocabulary) if heals else 0
        spare = taken + int(taken > 0 and room > 0)
        room -= spare - taken
        kept.append([*([] if kept else config.first), *segment[: len(segment) - taken]])
        sizes.append(spare + most)
        start += len(kept[-1])
        text = b"".join(vocabulary.of[token] for token in segment[len(segment) - taken :])
        gaps.append(Gap(Healing(vocabulary, start, text, spare, limit=most, filler=filler), most, fewest))
        start += sizes[-1]
    return Canvas.lay_out([*kept, segments[-1]], sizes, config.placeholder), tuple(gaps)


# ---- and their result ------------------------------------------------------------------------------------------------


def run(denoiser: Denoiser, tokenizer: Tokenizer, request: Request, on_step: OnStep | None = None) -> Any:
    """The result of a request: a `Result`, of samples that are driven together, or the answers of a decision. on_step:
    called with each event of the only sample, as `stream` gives them.
    """
    if not OPERATIONS[request.operation].writes:
        return compute(scoring_of(denoiser.config, tokenizer, request), denoiser.backend)
    return run_samples(denoiser, plan_of(denoiser, tokenizer, request), request.arguments.get("timeout"), on_step)


def scoring_of(config: ModelConfig, tokenizer: Tokenizer, request: Request) -> Asking[list[Any]]:
    """The forwards of a request that writes nothing, and its result."""
    scoring: Scoring = OPERATIONS[request.operation].gaps(**request.arguments)
    return scoring(config, tokenizer)


def stream(denoiser: Denoiser, tokenizer: Tokenizer, request: Request) -> Iterator[StreamEvent]:
    """The events of a request: one for each step, and a last one that has the result. Wrong arguments raise at the
    call, not at the first event.
    """
    plan = plan_of(denoiser, tokenizer, request)
    return stream_events(only_sample(denoiser, plan, request.arguments.get("timeout")))


def start(denoiser: Denoiser, tokenizer: Tokenizer, request: Request) -> Running:
    """A request of `stream`, as one that may be changed between its steps: it is `changeable`, and the last word of its
    prompt is not healed, so that positions count new tokens alone. UnsupportedError for stop strings, which may end the
    text before a pin, and for modes whose canvas cannot be changed.
    """
    plan = plan_of(denoiser, tokenizer, request)
    if plan.decode.stop:
        raise UnsupportedError("a request that may be changed while it runs takes no stop strings: leave out stop")
    return Running(only_sample(denoiser, plan, request.arguments.get("timeout")), tokenizer)
