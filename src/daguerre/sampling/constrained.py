"""A request under a constraint: every gap gets a text of a formal language, in any order of commits.

All tokens that a step proposes for a gap are on one path, a whole valid completion. Whichever of them a policy commits,
the rest of the path still completes the gap, so every run ends in a valid text.

Letters: A wanted positions, V vocabulary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from daguerre.cancellation import compiling
from daguerre.canvas import Canvas, Decision, Span
from daguerre.errors import InputError
from daguerre.files import cache_folder
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints import (
    Budget,
    Programme,
    TokenAutomaton,
    compile_choices,
    compile_regex,
    compile_schema,
    compile_tools,
)
from daguerre.sampling.constraints.budget import MAX_NODES
from daguerre.sampling.constraints.caching import cached
from daguerre.sampling.constraints.indices import DEAD, NONE
from daguerre.sampling.constraints.product import intersect_tokens
from daguerre.sampling.constraints.programme import Weighed, shortest
from daguerre.sampling.constraints.store import kept
from daguerre.sampling.constraints.wording import Wording, compile_wording
from daguerre.sampling.logits import Proposals, SamplingParams

COMPILERS: dict[str, Callable[[Any, Tokenizer, bool, bool], TokenAutomaton]] = {
    "schema": lambda schema, tokenizer, lenient, strict: compile_schema(
        schema, tokenizer, lenient=lenient, strict=strict
    ),
    "regex": lambda pattern, tokenizer, lenient, strict: compile_regex(pattern, tokenizer),
    "choices": lambda texts, tokenizer, lenient, strict: compile_choices(texts, tokenizer),
    "tools": lambda how, tokenizer, lenient, strict: compile_tools(
        **how, tokenizer=tokenizer, lenient=lenient, strict=strict
    ),
}
"""By option of `Decode`; each takes the value of `DecodeOptions.language`, then the options lenient and strict."""
WORTH = 0.05
"""Seconds of processor time; an automaton that compiles faster is not kept on disk."""
MAX_BYTES = 64 << 20
"""Of the automata that are kept in memory."""
STRIDE = 16
"""The state is cached at every multiple of this many tokens of a text."""
NO_COMMIT = Decision(*np.zeros((4, 0)))


@dataclass(frozen=True, eq=False)
class Constraint:
    """The text of each gap is in the language of the gap's automaton.

    automata  by gap
    filler    the token that fills a gap after its text, which the automata accept; None: texts are as long as their
    gap
    floors    the first position in each gap that may be filled
    """

    automata: Mapping[Span, TokenAutomaton]
    filler: int | None
    floors: Mapping[Span, int]
    _programmes: dict[Span, tuple[Canvas, Programme]] = field(default_factory=dict)
    _shortened: set[tuple[int, bytes]] = field(default_factory=set)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The parts of a schema that were left out; the same for every gap."""
        return next(iter(self.automata.values())).ignored

    def check(self, canvas: Canvas, span_size: int) -> None:
        """InputError when a gap has too few tokens for the language, no text agrees with the tokens that are kept, or
        spans of `span_size` positions are too long for an automaton as large as this one.
        """
        states = max(automaton.num_states for automaton in self.automata.values())
        most = max(1, MAX_NODES // states)
        if span_size > most:
            raise InputError(
                f"the constraint is too large for a span of {span_size} positions: it has {states:,} states, and the "
                f"limit is {MAX_NODES:,} states times positions; use mode block with a block_size of {most} or fewer, "
                "or loosen the constraint"
            )
        for start, end in canvas.gaps:
            fits, need = shortest(self.automata[start, end], end - start)
            if not fits:
                raise InputError(
                    f"max_tokens={end - start} is too few for the constraint: its shortest text has {need} tokens"
                )
            self._programme(canvas, (start, end)).check()

    def propose(
        self, canvas: Canvas, positions: np.ndarray, logits: np.ndarray, params: SamplingParams, u: np.ndarray
    ) -> Proposals:
        """`logits.propose` within the language: the most likely completion of each gap, or a drawn one.

        Temperature and top-k are applied before the constraint, top-p to the probabilities given it; a cut that leaves
        no text is not made.
        """
        tokens = np.empty(len(positions), dtype=np.int64)
        probabilities, marginals = np.empty(len(positions)), np.empty(len(positions))
        for gap, held in canvas.gap_of(positions):
            rows = logits if len(held) == len(positions) else logits[held]
            programme = self._programme(canvas, gap)
            tokens[held], weighed = _chosen(programme, rows, params, u[held])
            if programme.too_long is not None and positions[held[0]] == gap[0] + programme.positions[0]:
                longer, fitting = (_highest(rows[0], programme.automaton, each) for each in programme.too_long)
                if longer > fitting:
                    self._note_short(canvas, gap)
            marginals[held] = np.minimum(weighed.probabilities(tokens[held]), 1.0)
            probabilities[held] = np.exp(rows[np.arange(len(held)), tokens[held]] - weighed.weights.total_A)
        return Proposals(positions, tokens, probabilities, marginals)

    def forced(self, canvas: Canvas) -> Decision:
        """The positions of the active span at which all texts that agree with the committed tokens have one token.

        Perhaps empty. Probability and confidence are 1: no other token is possible, and the model is not used.
        """
        parts = []
        for gap, held in canvas.gap_of(canvas.active_positions()):
            programme = self._programme(canvas, gap)
            positions, tokens = programme.forced(len(held))
            if len(positions) and programme.too_long is not None and positions[0] == programme.positions[0]:
                self._note_short(canvas, gap)
            if len(positions):
                parts.append(Decision(gap[0] + positions, tokens, np.ones(len(tokens)), np.ones(len(tokens))))
        return Decision.join(parts) if parts else NO_COMMIT

    def finish(self, canvas: Canvas) -> Decision:
        """Commit everything that is open, with the fewest tokens that complete the text. The model is not used, so each
        token has the probability of a uniform draw and no confidence.
        """
        positions = np.flatnonzero(canvas.open)
        tokens = np.empty(len(positions), dtype=np.int64)
        for gap, held in canvas.gap_of(positions):
            logits = np.zeros((len(held), self.automata[gap].vocab_size))
            if self.filler is not None:
                logits[:, self.filler] = 1.0
            tokens[held] = self._programme(canvas, gap).best(logits)
        alike = np.full(len(positions), 1 / self.automata[canvas.gaps[0]].vocab_size)
        return Decision(positions, tokens, alike, np.zeros(len(positions)))

    def allowed(self, canvas: Canvas, decision: Decision) -> Decision:
        """The decision without the commits after which, together with those before them, a gap has no text."""
        if self._completes(canvas.apply(decision)):
            return decision
        kept = np.zeros(len(decision), dtype=bool)
        for index in range(len(decision)):
            kept[index] = True
            kept[index] = self._completes(canvas.apply(decision.keep(kept)))
        return decision.keep(kept)

    def _completes(self, canvas: Canvas) -> bool:
        try:
            self.check(canvas, 1)
        except InputError:
            return False
        return True

    def ended(self, gap: Span, tokens: np.ndarray) -> bool:
        """Whether the tokens are a text of the gap's language that only the filler may follow."""
        automaton = self.automata[gap]
        state = _state_after(automaton, tokens.astype(np.int64).tobytes())
        following = automaton.next_classes(state)
        filler = NONE if self.filler is None else automaton.class_of_token[self.filler]
        return bool(automaton.accept[state]) and bool((following == filler).all())

    def shortened(self, canvas: Canvas) -> bool:
        """Whether the budget cut a text: at some place the likeliest token that the language allows, or one where the
        model was not asked, would have left too few positions for the rest. Known where texts are written in order.
        """
        filled = {gap[0]: canvas.filled(gap).astype(np.int64).tobytes() for gap in canvas.gaps}
        return any(filled.get(start, b"").startswith(before) for start, before in self._shortened)

    def _note_short(self, canvas: Canvas, gap: Span) -> None:
        self._shortened.add((gap[0], canvas.filled(gap).astype(np.int64).tobytes()))

    def _programme(self, canvas: Canvas, gap: Span) -> Programme:
        """The programme of a gap from the active span on, or from its first open position left of that. The last one of
        each gap is cached, since a canvas is used twice, for forced positions and for proposals.
        """
        held = self._programmes.get(gap)
        if held is None or held[0] is not canvas:
            held = self._programmes[gap] = canvas, self._make_programme(canvas, gap)
        return held[1]

    def _make_programme(self, canvas: Canvas, gap: Span) -> Programme:
        automaton, begun, (start, end) = self.automata[gap], canvas.filled(gap), gap
        if canvas.span is not None:
            begun = begun[: max(0, canvas.span[0] - start)]
        state = _state_after(automaton, begun.tobytes())
        if state == DEAD:
            raise InputError("the constraint allows no text that begins like the draft or the pins: open more of it")
        row, floor = (canvas.tokens[start:end], canvas.open[start:end]), max(0, self.floors[gap] - start)
        return Programme(automaton, *row, state, self.filler, floor, len(begun))


def make_constraint(
    option: str | None,
    value: Any,
    lenient: bool,
    wordings: Mapping[Span, Wording],
    tokenizer: Tokenizer,
    filler: int | None,
    floors: Mapping[Span, int],
    logit_bias: Mapping[int, float] | None,
    strict: bool = False,
) -> Constraint:
    """The constraint of an option of `Decode`, or of none, and of the wording of each gap. Tokens that the bias forbids
    are not in the language.

    InputError or UnsupportedError for what cannot be compiled.
    """
    ready = value if isinstance(value, TokenAutomaton) else None
    if ready is not None and ready.vocab_size != tokenizer.vocab_size:
        raise InputError(
            f"{option} was compiled for {ready.vocab_size:,} tokens, and the model has {tokenizer.vocab_size:,}: "
            "compile it with model.tokenizer"
        )
    banned = tuple(sorted(token for token, bias in (logit_bias or {}).items() if bias == -math.inf))
    filler = None if filler in banned else filler
    try:
        content = json.dumps(None if ready is not None else value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{option} is not JSON, or nested too deep: {error}; correct it") from error
    template = _template_of(tokenizer) if isinstance(value, Mapping) and "chat_format" in value else ""
    automata = {
        gap: _compiled(option, content, ready, lenient, strict, wording, tokenizer, banned, filler, template)
        for gap, wording in wordings.items()
    }
    return Constraint(automata, filler, floors)


def automaton_of(option: str, value: Any, tokenizer: Tokenizer, *, lenient: bool = False) -> TokenAutomaton:
    """The automaton of an option of `Decode` alone, kept as those of requests are. `value`: as
    `DecodeOptions.language` has it. InputError for what cannot be compiled.
    """
    return _compiled(option, json.dumps(value), None, lenient, False, Wording(), tokenizer, (), None)


def _template_of(tokenizer: Tokenizer) -> str:
    """The chat template of a tokenizer, which equal tokenizers may differ in."""
    template = getattr(tokenizer, "chat_template", None)
    return "" if template is None else repr((template.sources, template.tokens))


def _num_bytes(automaton: TokenAutomaton) -> int:
    return automaton.num_bytes


@cached(MAX_BYTES, _num_bytes, compiling)
def _compiled(
    option: str | None,
    content: str,
    ready: TokenAutomaton | None,
    lenient: bool,
    strict: bool,
    wording: Wording,
    tokenizer: Tokenizer,
    banned: Sequence[int],
    filler: int | None,
    template: str = "",
) -> TokenAutomaton:
    """One automaton for equal constraints and tokenizers; automata never change. Kept on disk if it took long. ready:
    what the option is, where the caller compiled it; template: what calls are written by.
    """

    def made() -> TokenAutomaton:
        automaton = compile_wording(wording, tokenizer)
        if option is not None:
            compiled = COMPILERS[option](json.loads(content), tokenizer, lenient, strict) if ready is None else ready
            automaton = _both(compiled, option, wording, automaton)
        if banned:
            automaton = automaton.without(banned)
        return automaton if filler is None else automaton.with_filler(filler)

    folder = cache_folder() if ready is None else None
    what = [option, content, lenient, strict, repr(wording), banned, filler, template]
    return kept(None if folder is None else folder / "constraints", what, tokenizer, made, WORTH)


def _both(constraint: TokenAutomaton, option: str, wording: Wording, worded: TokenAutomaton) -> TokenAutomaton:
    """The texts of a constraint that also have the wording."""
    if not wording.constrains:
        return constraint
    try:
        return intersect_tokens(constraint, worded, Budget())
    except InputError as error:
        raise InputError(f"the option {option} together with keywords, forbidden, ending and pins: {error}") from None


def _chosen(
    programme: Programme, logits: np.ndarray, params: SamplingParams, u: np.ndarray
) -> tuple[np.ndarray, Weighed]:
    """(tokens (A,) of the most likely completion, or of a drawn one; the logits, weighed at temperature 1). Min-p is of
    the probabilities given the constraint, and comes before top-p.
    """
    if params.temperature == 0:
        weighed = programme.weigh(logits, best=True)
        return weighed.best(), weighed
    if params.top_k is not None or params.min_p:
        with suppress(InputError):
            kept = logits if params.top_k is None else _most_likely(logits, params.top_k)
            weighed = programme.weigh(kept, temperature=params.temperature)
            if params.min_p:
                probs = weighed.marginals()
                kept = np.where(probs >= params.min_p * probs.max(axis=-1, keepdims=True), kept, -np.inf)
                weighed = programme.weigh(kept.astype(logits.dtype), temperature=params.temperature)
            return weighed.sample(u, params.top_p), programme.weigh(logits)
    temperatures = [1.0] if params.temperature == 1 else [1.0, params.temperature]
    plain, *warm = programme.weigh_each(logits, temperatures)
    return (warm or [plain])[0].sample(u, params.top_p), plain


def _highest(row: np.ndarray, automaton: TokenAutomaton, classes: np.ndarray) -> float:
    """The highest logit, of a row (V,), of the tokens of some classes (C,)."""
    held = row[(automaton.class_of_token != NONE) & classes[automaton.class_of_token]]
    return float(held.max(initial=-np.inf))


def _most_likely(logits: np.ndarray, num: int) -> np.ndarray:
    """The highest `num` of each row of logits (A, V), and minus infinity for all others."""
    cut = np.argsort(-logits, axis=-1, kind="stable")[:, num:]
    out = logits.copy()
    np.put_along_axis(out, cut, -np.inf, axis=-1)
    return out


@lru_cache(maxsize=1024)
def _state_after(automaton: TokenAutomaton, tokens: bytes) -> int:
    """The state after int64 tokens, DEAD where there is none; cached every STRIDE tokens, since texts grow."""
    ids = np.frombuffer(tokens, dtype=np.int64)
    kept = max(0, len(ids) - 1) // STRIDE * STRIDE
    state = _state_after(automaton, ids[:kept].tobytes()) if kept else 0
    return automaton.walk(ids[kept:].tolist(), state)
