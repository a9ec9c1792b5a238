"""Texts with answers, as the rows of a forward: prompts are visible and no target, answers are noised.

Full context    The text is one noisy span; masks are among the answers' tokens.
Block context   A clean stream, and as noisy spans the blocks of the grid that hold tokens of an answer.
Causal context  A clean stream with next-token loss on answers, and as noisy spans blocks of them, counted from where
                each answer begins; they see what is before them. Where masks are in place (Nemotron) a block begins
                with a visible token.

                A share of the texts (`AnswerLoss.gaps`) have a gap in an answer instead, which sees what follows it.

A share t of the tokens of a span, or of all spans of a text, is masked: exactly so many, drawn without replacement, and
at least one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from daguerre.models.core.config import ModelConfig
from daguerre.train.examples import MAX_SLACK, infill
from daguerre.train.noising import IGNORE, REVISED, Example, Ints, NoisySpan, RowWriter, Source, add_span, add_whole
from daguerre.train.objectives import TIMES
from daguerre.train.sft.corruption import Planted, plant_edits, plant_hybrid, plant_random
from daguerre.train.sft.presets import CART, AnswerLoss

BLOCKS = (4, 8, 16, 32, 64)
"""Sizes of the blocks of a causal model that has none of its own; one is drawn for each text."""

LONGEST_GAP = 32
"""Tokens of a gap in an answer, at most."""


@dataclass(frozen=True)
class Text:
    """Tokens, int64 (T,), and which of them are an answer's, bool (T,)."""

    tokens: Ints
    answer: np.ndarray


@dataclass(frozen=True)
class AnswerSpan:
    """Positions [start, end) of a text that are noised together, and which of them may be, bool (end - start,)."""

    start: int
    end: int
    free: np.ndarray


def spans_of(text: Text, config: ModelConfig, block_size: int) -> Iterator[AnswerSpan]:
    """What is noised of a text. `block_size` is for block and causal context."""
    answer = text.answer.copy()
    answer[0] &= not config.shift  # no row is before it
    if config.context == "full":
        if answer.any():
            yield AnswerSpan(0, len(answer), answer)
        return
    runs = [(0, len(answer))] if config.context == "block" else _runs(answer)
    for first, last in runs:
        for start in range(first, last, block_size):
            end = min(start + block_size, last)
            free = answer[start:end].copy()
            free[0] &= not (config.anchor == "clean" or config.masks_in_place)
            if free.any():
                yield AnswerSpan(start, end, free)


def _runs(answer: np.ndarray) -> list[tuple[int, int]]:
    """Where answers begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], answer.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def examples_of(
    text: Text,
    loss: AnswerLoss,
    config: ModelConfig,
    u: float,
    rng: np.random.Generator,
    block_size: int | None = None,
    corruption: str = "none",
) -> list[Example]:
    """The rows of a text; with complementary masks, or with edits, those of all its copies.

    u in [0, 1) places the noise level; `block_size` is in place of the model's own.
    """
    if loss.gaps and rng.random() < loss.gaps and (gaps := gaps_of(text, rng)):
        return [gap_rows(text, gaps, loss, config, u, rng)]
    size = block_size or config.block_size or int(rng.choice(BLOCKS))
    spans = list(spans_of(text, config, size)) if loss.noisy else []
    num = len(spans) if loss.levels == "block" else 1
    levels = [TIMES[loss.times]((u + (i % num) / num) % 1.0) for i in range(len(spans))]
    masks = [_mask(span, t, rng, loss.late) for span, t in zip(spans, levels, strict=True)]
    planted: list[Planted | None] = [None] * len(spans)
    for index, (span, t, masked) in enumerate(zip(spans, levels, masks, strict=True)):
        tokens = text.tokens[span.start : span.end]
        read = np.ones(len(tokens), dtype=bool)
        read[-1] = config.context != "causal" or not config.noisy_offset  # else no row of the span reads the last
        if corruption == "hybrid":
            masks[index], wrong = plant_hybrid(tokens, span.free, t, loss.errors, config, rng)
            planted[index] = replace(wrong, learned=wrong.learned & read)
        elif corruption in ("random", "self"):
            visible = span.free & ~masked & read
            planted[index] = plant_random(tokens, visible, loss.errors, config, rng, corruption == "self")
    copies = [noised_rows(text, loss, config, spans, levels, masks, rng, planted)]
    bare, none = replace(loss, objective=replace(loss.objective, clean=0.0)), [None] * len(spans)
    if loss.complementary:
        rest = [span.free & ~mask for span, mask in zip(spans, masks, strict=True)]
        copies.append(noised_rows(text, bare, config, spans, [1 - t for t in levels], rest, rng, none))
    if corruption == "edit":
        changed = [plant_edits(text.tokens[s.start : s.end], s.free, loss.errors, config, rng) for s in spans]
        nothing = [np.zeros(len(span.free), dtype=bool) for span in spans]
        copies.append(noised_rows(text, bare, config, spans, levels, nothing, rng, changed))
    return [copies[0], *(replace(copy, num_tokens=0) for copy in copies[1:])]


def _mask(span: AnswerSpan, t: float, rng: np.random.Generator, late: float = 0.0) -> np.ndarray:
    """Which tokens of a span are masked at level t: of two places the one at the end is drawn e^late times as likely as
    the one at the beginning (Efficient-DLM, arXiv 2512.14067).
    """
    places = np.flatnonzero(span.free)
    masked, num = np.zeros(len(span.free), dtype=bool), max(1, int(np.ceil(t * len(places))))
    if late:  # the largest of logarithms of weights plus Gumbel noise are a draw without replacement
        scores = rng.gumbel(size=len(places)) + late * places / max(1, len(span.free) - 1)
        masked[places[np.argsort(-scores)[:num]]] = True
    else:
        masked[rng.permutation(places)[:num]] = True
    return masked


def gaps_of(text: Text, rng: np.random.Generator) -> tuple[tuple[int, int], ...]:
    """A gap [start, end) of up to LONGEST_GAP tokens, of log-uniform length, within an answer of a text: an answer's
    first and last token stay. None where no answer has room.
    """
    runs = [(first, last) for first, last in _runs(text.answer) if last - first > 2 and first]
    if not runs:
        return ()
    first, last = runs[int(rng.integers(len(runs)))]
    length = int(np.exp(rng.uniform(0, np.log(min(LONGEST_GAP, last - first - 2) + 1))))
    start = int(rng.integers(first + 1, last - length))
    return ((start, start + length),)


def gap_rows(
    text: Text,
    gaps: tuple[tuple[int, int], ...],
    loss: AnswerLoss,
    config: ModelConfig,
    u: float,
    rng: np.random.Generator,
) -> Example:
    """The rows of a text with gaps (`train.examples.infill`); half of them are masked up to their right end. Of the
    clean rows those learn the next token that the first gap does not hide from what is before it.
    """
    source = Source(text.tokens, config.placeholder, config.null_id, gaps=gaps)
    made = infill(source, replace(loss.objective, layout="infill", left=0.5), u, rng, len(text.tokens) + MAX_SLACK)
    clean = np.arange(len(made.tokens)) < made.num_clean
    learned = np.zeros(len(clean), dtype=bool)
    learned[: made.num_clean - 1] = text.answer[1:] & (loss.clean > 0)
    dropped = clean & ~(learned & (made.segment == 0))
    return replace(made, target=np.where(dropped, IGNORE, made.target), weight=np.where(dropped, 0.0, made.weight))


def noised_rows(
    text: Text,
    loss: AnswerLoss,
    config: ModelConfig,
    spans: Sequence[AnswerSpan],
    levels: Sequence[float],
    masks: Sequence[np.ndarray],
    rng: np.random.Generator,
    planted: Sequence[Planted | None] = (),
) -> Example:
    """The rows of a text with so much of its spans masked; `planted` are the wrong tokens of each span, where given."""
    source = Source(text.tokens, config.placeholder)
    writer, objective, num_clean = RowWriter(), loss.objective, 0
    if config.context != "full":
        num_clean = _clean_stream(writer, text, config, loss)
    for number, (span, t, masked) in enumerate(zip(spans, levels, masks, strict=True)):
        noisy = NoisySpan(number, span.start, text.tokens[span.start : span.end], t, masked=masked)
        if config.context == "causal" and not config.masks_in_place:
            before = text.tokens[span.start - 1] if span.start else config.placeholder
            add_span(writer, replace(noisy, before=before), source, objective, rng)
        else:
            in_place = replace(objective, shift=False) if config.masks_in_place else objective
            add_whole(writer, noisy, span.free, source, in_place, rng)
        if loss.weight == CART:
            _weigh_by_context(writer, span, masked, loss.cart, config)
        if planted and (wrong := planted[number]) is not None:
            _plant(writer, span, text, wrong, config)
    return writer.finish(num_clean, len(text.tokens))


def _plant(writer: RowWriter, span: AnswerSpan, text: Text, planted: Planted, config: ModelConfig) -> None:
    """Put wrong tokens into the span that was written last; the rows that predict them learn the right ones."""
    rows = {name: values[-1] for name, values in writer.parts.items()}
    place = rows["position"] - span.start
    held = (place >= 0) & (rows["tokens"] != config.mask_id)
    tokens = np.where(held, planted.read[np.maximum(place, 0)], rows["tokens"])
    predicted = place + config.noisy_offset
    inside = (predicted >= 0) & (predicted < len(planted.learned))
    learns = inside & planted.learned[np.where(inside, predicted, 0)]
    right = text.tokens[span.start : span.end][np.where(inside, predicted, 0)]
    changed = {
        "tokens": tokens,
        "guess": (held & planted.guessed[np.maximum(place, 0)]).astype(np.int64),
        "target": np.where(learns, right, rows["target"]),
        "weight": np.where(learns, 1.0, rows["weight"]),
        "level": np.where(learns, REVISED, rows["level"]),
    }
    for name, values in changed.items():
        writer.parts[name][-1] = values


def _clean_stream(writer: RowWriter, text: Text, config: ModelConfig, loss: AnswerLoss) -> int:
    """Clean rows; those before an answer's tokens predict them, if the context keeps what they predict from them."""
    num = len(text.tokens)
    predicts = np.append(text.answer[1:], False) & config.shift & (loss.clean > 0)
    if config.context == "block":  # a clean row sees its block to the end
        assert config.block_size is not None
        predicts &= np.arange(1, num + 1) % config.block_size == 0
    predicts &= loss.objective.clean > 0
    target = np.where(predicts, np.append(text.tokens[1:], IGNORE), IGNORE)
    origin = np.where(predicts, np.arange(1, num + 1), IGNORE)
    writer.add(text.tokens, np.arange(num), target, np.where(predicts, loss.objective.clean, 0.0), origin=origin)
    return num


def _weigh_by_context(writer: RowWriter, span: AnswerSpan, masked: np.ndarray, p: float, config: ModelConfig) -> None:
    """Multiply the weights of the span that was written last by those of CART."""
    weight = cart_weights(np.concatenate([np.zeros(span.start, dtype=bool), masked]), p)[span.start :]
    if config.noisy_offset:
        weight = np.append(weight[1:], 0.0) if config.context != "causal" else weight
    writer.parts["weight"][-1] = writer.parts["weight"][-1] * weight


def cart_weights(masked: np.ndarray, p: float) -> np.ndarray:
    """Half the sum over visible positions of p (1 - p)^(d - 1), d their distance: float64, as long as `masked`."""
    place = np.arange(len(masked))
    distance = np.abs(place[:, None] - place[None])
    near = np.where(distance > 0, p * (1 - p) ** np.maximum(distance - 1.0, 0.0), 0.0)
    return 0.5 * near @ ~masked
