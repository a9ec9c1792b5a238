"""One-shot drafts compared with the model's own greedy text: what self-speculation could accept.

A prompt is `<bos>` and the tokens of a document around its middle. The model drafts the next tokens in one forward, all
of them masked, and writes as many greedily, one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from daguerre.errors import DataError
from daguerre.evals.bits import evenly
from daguerre.evals.statistics import mean_stderr
from daguerre.evals.workers import Progress, no_progress
from daguerre.extras import pytorch
from daguerre.heldout import Document
from daguerre.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from daguerre.models.core.backbone import Backbone

PROMPT_TOKENS, DRAFT_TOKENS = 128, 16
AT_ONCE = 64


@dataclass(frozen=True)
class DraftPrompt:
    """Tokens, `<bos>` first, and the number of the document they are from."""

    document: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class DraftShares:
    """Shares of `prompts`. A standard error takes the prompts of a document together; None where there is only one.

    match_by_position     position i of the draft equals that of the greedy text
    accepted_by_position  positions 1 .. i all do
    accepted_a_cycle      tokens: the longest matching start and a bonus token, no more than were drafted
    """

    prompts: int
    documents: int
    match_by_position: tuple[float, ...]
    match_stderr: tuple[float | None, ...]
    accepted_by_position: tuple[float, ...]
    accepted_a_cycle: float
    accepted_stderr: float | None


def make_prompts(
    documents: Sequence[Document], tokenizer: Tokenizer, limit: int, task: str = "draft"
) -> list[DraftPrompt]:
    """At most `limit` prompts, spread evenly over the documents: the middle of each, then parts around it.

    DataError when no document is long enough; `task` is named in the message.
    """
    parts = [_parts(tokenizer.encode(document.text)) for document in documents]
    out: list[DraftPrompt] = []
    for rank in range(max(map(len, parts), default=0)):
        found = [DraftPrompt(n, (tokenizer.start_id, *some[rank])) for n, some in enumerate(parts) if rank < len(some)]
        out += [found[i] for i in evenly(len(found), min(len(found), limit - len(out)))]
    if not out:
        raise DataError(f"no document has {2 * PROMPT_TOKENS} tokens: give longer ones, or leave {task!r} out")
    return out


def _parts(ids: list[int]) -> list[list[int]]:
    """Disjoint parts of a document: first the one that begins in its middle, then the nearest ones."""
    size, middle = PROMPT_TOKENS - 1, len(ids) // 2
    if middle + size > len(ids):
        return []
    starts = range(middle % size, len(ids) - size + 1, size)
    return [ids[start : start + size] for start in sorted(starts, key=lambda start: abs(start - middle))]


def measure_drafts(backbone: Backbone, prompts: Sequence[DraftPrompt], progress: Progress = no_progress) -> DraftShares:
    """Draft DRAFT_TOKENS after each prompt; `progress` is called as progress("", prompts done, to do)."""
    torch = pytorch()
    from daguerre.train.monitor import accepted_a_cycle, draft_equals

    parts = []
    for start in range(0, len(prompts), AT_ONCE):
        progress("", start, len(prompts))
        rows = torch.tensor([prompt.tokens for prompt in prompts[start : start + AT_ONCE]])
        parts.append(draft_equals(backbone, rows.to(backbone.embedding.weight.device), DRAFT_TOKENS))
    progress("", len(prompts), len(prompts))
    equal = np.concatenate(parts)
    document = np.array([prompt.document for prompt in prompts])
    accepted = accepted_a_cycle(equal)
    return DraftShares(
        prompts=len(prompts),
        documents=len(set(document.tolist())),
        match_by_position=tuple(equal.mean(0).tolist()),
        match_stderr=tuple(mean_stderr(column, document) for column in equal.T),
        accepted_by_position=tuple(np.cumprod(equal, axis=1).mean(0).tolist()),
        accepted_a_cycle=float(accepted.mean()),
        accepted_stderr=mean_stderr(accepted, document),
    )
