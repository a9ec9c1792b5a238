"""Mode "speculative" compared with mode "ar": whether their tokens are the same, and how much faster it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from daguerre.decoding.options import Decode
from daguerre.decoding.result import Result
from daguerre.evals.workers import ItemProgress
from daguerre.model import Model

NEW_TOKENS = 128
TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """At one temperature, over all prompts.

    identical           prompts whose tokens were those of mode "ar"
    tokens_per_forward  of mode "speculative"; mode "ar" has one
    rows_per_forward    query tokens of a forward
    drafted, accepted   draft tokens that were verified, and how many of them were accepted
    speedup             seconds of "ar" over seconds of "speculative", the median over prompts
    """

    temperature: float
    prompts: int
    identical: int
    tokens_per_forward: float
    rows_per_forward: float
    drafted: int
    accepted: int
    speedup: float


def compare(model: Model, prompts: Sequence[Sequence[int]], temperature: float, progress: ItemProgress) -> Outcome:
    """Continue every prompt, token ids, in both modes in turn, prompt i with seed i."""
    pairs: list[tuple[Result, Result]] = []
    for seed, prompt in enumerate(prompts):
        decode = Decode(mode="ar", temperature=temperature, seed=seed)
        one = model.generate(prompt, NEW_TOKENS, decode, heal=False)
        pairs.append((one, model.generate(prompt, NEW_TOKENS, decode, heal=False, mode="speculative")))
        progress(seed + 1, len(prompts))
    usages = [other.usage for _, other in pairs]
    forwards = sum(usage.forwards for usage in usages)
    return Outcome(
        temperature=temperature,
        prompts=len(pairs),
        identical=sum(ids(one) == ids(other) for one, other in pairs),
        tokens_per_forward=sum(usage.completion_tokens for usage in usages) / forwards,
        rows_per_forward=sum(usage.query_tokens for usage in usages) / forwards,
        drafted=sum(usage.drafted for usage in usages),
        accepted=sum(usage.accepted for usage in usages),
        speedup=median(one.usage.seconds / other.usage.seconds for one, other in pairs),
    )


def ids(result: Result) -> list[int]:
    return [token.id for token in result.tokens]
