"""Mode "speculative" compared with mode "ar": whether their tokens are the same, and how much faster it is.

Every prompt is written in both modes in turn, in one process, so that both meet the same machine. Beside every figure
is the share of texts that loop (`loops`): a text that repeats itself is easier to draft than text that a user wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from daguerre.decoding.options import DrafterName
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result, Usage
from daguerre.evals.completion import AR, attempts
from daguerre.evals.lines import MissingLine
from daguerre.evals.statistics import ratio_interval
from daguerre.evals.workers import ItemProgress
from daguerre.model import Model

NEW_TOKENS, FIRST_TOKENS = 128, 16
TEMPERATURES = (0.0, 0.7, 1.0)
FEW_TEMPERATURES = (0.0, 1.0)
"""Temperatures of the first tokens alone, and of single drafters."""
FEW_PROMPTS = 200
"""How many prompts every drafter continues."""
DRAFTERS: tuple[DrafterName, ...] = ("auto", "head", "lookup")
DRAFTED = ("drafted", "accepted", "lookup_drafted", "lookup_accepted", "head_drafted", "head_accepted")
"""Counts of draft tokens."""
RUN, EARLY = 6, 40
"""The length of a run of tokens whose second occurrence is a loop; a loop is early if it is by this token."""


def loops(text: Sequence[int], by: int | None = None) -> bool:
    """Whether in the first `by` tokens of a text (None: in all) a run of RUN tokens occurs a second time."""
    seen: set[tuple[int, ...]] = set()
    for end in range(RUN, len(text[:by]) + 1):
        run = tuple(text[end - RUN : end])
        if run in seen:
            return True
        seen.add(run)
    return False


@dataclass(frozen=True, kw_only=True)
class SpeculationOutcome:
    """At one temperature, over all prompts.

    drafter             where mode "speculative" took its drafts from (`Decode.drafter`)
    new_tokens          the most tokens of a text
    identical           prompts whose tokens were those of mode "ar"
    tokens_per_forward  of mode "speculative"; mode "ar" has one
    rows_per_forward    query tokens of a forward
    drafted, accepted   draft tokens that were verified, and how many of them were accepted; also of those that were
                        looked up in the text, and of those of the model
    speedup             seconds of "ar" over seconds of "speculative", prefill included, the median over prompts
    total_speedup       the same ratio of the seconds of all prompts
    loops, loops_early  shares of the texts of "ar" that loop, in all and by token EARLY
    """

    temperature: float
    drafter: str
    new_tokens: int
    prompts: int
    identical: int
    tokens_per_forward: float
    rows_per_forward: float
    drafted: int
    accepted: int
    lookup_drafted: int
    lookup_accepted: int
    head_drafted: int
    head_accepted: int
    speedup: float
    total_speedup: float
    loops: float
    loops_early: float


@dataclass(frozen=True)
class KeptResult:
    """What is kept of a result: the ids of its tokens, and what it took."""

    ids: tuple[int, ...]
    usage: Usage

    @classmethod
    def of(cls, result: Result) -> KeptResult:
        return cls(tuple(token.id for token in result.tokens), result.usage)


def compare(
    model: Model,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    progress: ItemProgress,
    *,
    new_tokens: int = NEW_TOKENS,
    drafters: Sequence[DrafterName] = ("auto",),
) -> list[SpeculationOutcome]:
    """Continue every prompt, token ids, in mode "ar" and with each drafter in turn, prompt i with seed i."""
    found: list[list[KeptResult]] = []
    for seed, prompt in enumerate(prompts):
        decode = Decode(mode="ar", temperature=temperature, seed=seed)
        written = [model.generate(prompt, new_tokens, decode, heal=False)]
        for drafter in drafters:
            options = {"mode": "speculative", "drafter": drafter}
            written.append(model.generate(prompt, new_tokens, decode, heal=False, **options))
        found.append([KeptResult.of(result) for result in written])
        progress(seed + 1, len(prompts))
    ar, *others = zip(*found, strict=True)
    return [
        _outcome(temperature, drafter, new_tokens, ar, other) for drafter, other in zip(drafters, others, strict=True)
    ]


def _outcome(
    temperature: float, drafter: str, new_tokens: int, ar: Sequence[KeptResult], other: Sequence[KeptResult]
) -> SpeculationOutcome:
    def total(name: str) -> int:
        return sum(int(getattr(each.usage, name)) for each in other)

    seconds = [(one.usage.seconds, more.usage.seconds) for one, more in zip(ar, other, strict=True)]
    return SpeculationOutcome(
        temperature=temperature,
        drafter=drafter,
        new_tokens=new_tokens,
        prompts=len(ar),
        identical=sum(one.ids == more.ids for one, more in zip(ar, other, strict=True)),
        tokens_per_forward=total("completion_tokens") / total("forwards"),
        rows_per_forward=total("query_tokens") / total("forwards"),
        **{name: total(name) for name in DRAFTED},
        speedup=median_ratio(seconds),
        total_speedup=total_ratio(seconds),
        loops=share_that_loops([one.ids for one in ar]),
        loops_early=share_that_loops([one.ids for one in ar], EARLY),
    )


@dataclass(frozen=True, kw_only=True)
class LineOutcome:
    """Next lines at temperature 0, as `daguerre.evals.completion` counts them: the prompt's prefill is not in seconds,
    and tokens and forwards end with the line's break.

    identical, speedup, total_speedup, loops  as in `SpeculationOutcome`, of a line's tokens
    """

    lines: int
    identical: int
    tokens_per_forward: float
    tokens_per_forward_interval: tuple[float, float] | None
    speedup: float
    total_speedup: float
    loops: float


def compare_lines(model: Model, examples: Sequence[MissingLine], progress: ItemProgress) -> LineOutcome:
    """Write the next line of every example in both modes in turn."""
    found = []
    for number, example in enumerate(examples, 1):
        found.append(attempts(model, [AR, Decode(mode="speculative")], example)[1])
        progress(number, len(examples))
    seconds = [(ar.seconds, other.seconds) for ar, other in found]
    tokens, forwards = (
        np.array([getattr(other, name) for _, other in found], dtype=float) for name in ("tokens", "forwards")
    )
    groups = np.array([example.document.sha256 for example in examples])
    return LineOutcome(
        lines=len(found),
        identical=sum(ar.ids == other.ids for ar, other in found),
        tokens_per_forward=float(tokens.sum() / forwards.sum()),
        tokens_per_forward_interval=ratio_interval(tokens, forwards, groups),
        speedup=median_ratio(seconds),
        total_speedup=total_ratio(seconds),
        loops=share_that_loops([ar.ids for ar, _ in found]),
    )


def share_that_loops(texts: Sequence[Sequence[int]], by: int | None = None) -> float:
    """The share of texts that loop in their first `by` tokens."""
    return sum(loops(text, by) for text in texts) / len(texts)


def median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """The median of first over second."""
    return median(first / second for first, second in pairs)


def total_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """The sum of the first over the sum of the second."""
    return sum(first for first, _ in pairs) / sum(second for _, second in pairs)
