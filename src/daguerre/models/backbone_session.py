"""Sessions of our own backends: from a question about a canvas to forwards, with an exact cache between them.

`models.rows` decides which rows a question needs. The cache holds exactly the clean rows that the current canvas needs,
so no mask ever hides a cached key: a span's anchor row is noisy, and its key enters the cache only once it is no longer
the anchor.

Letters: A wanted positions, D tokens of a draft, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from daguerre.canvas import Canvas
from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import (
    Answer,
    Ask,
    Cycle,
    DraftStep,
    Forward,
    Hidden,
    KeyCache,
    Layout,
    Logits,
    LogProbs,
    Rules,
    SequentialDraws,
)
from daguerre.models.rows import (
    NONE,
    RowPlan,
    Tree,
    first_run,
    index_range,
    plan_draft,
    plan_noisy,
    plan_rows,
    plan_text,
    plan_tree,
    plan_verification,
)
from daguerre.models.session import Asking, Counts, NextLogits, Verification


class BackboneSession:
    """The state of one request: its cache, and which clean rows are in it.

    Each call compares the cached rows with those that its canvas needs and discards them from the first difference on,
    so an answer is a function of the canvas alone.
    """

    draws, explains = True, False

    def __init__(self, config: ModelConfig, cache: KeyCache | None) -> None:
        self.config, self.counts = config, Counts()
        self._cache = cache
        self._held_tokens, self._held_rows = NONE, RowPlan(0, NONE, 0)

    def restart(self) -> None:
        """Reset the counts, for another request whose canvas has the same length; the cache is kept."""
        self.counts = Counts()

    def ask(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Asking[Answer]:
        """An answer about positions of the active span; see `Session`.

        UnsupportedError unless the model's process is absorbing: other processes do not fill open positions.
        """
        config = self.config
        if config.process != "absorbing":
            raise UnsupportedError(f"a model of the {config.process} process does not fill open positions")
        if isinstance(ask, SequentialDraws) and self._drafts(canvas, positions):
            (answer,) = yield [self._drafting(canvas, positions, ask)]
            return answer
        plan = plan_rows(config, canvas)
        noisy = plan.noisy_tokens(config, canvas) if len(plan.noisy) else NONE
        level = noise_level(canvas) if config.time_input else None
        (answer,) = yield [self._forward(plan, plan.tokens(canvas), noisy, positions, ask, level)]
        return answer

    def sequential_logits(self, canvas: Canvas) -> Asking[NextLogits]:
        """The distributions of the first masked positions, one at a time; see `Session`."""
        positions = first_run(canvas.active_positions())
        if self._drafts(canvas, positions):
            (answer,) = yield [self._drafting(canvas, positions, Hidden())]
        else:
            answer = yield from self.ask(canvas, positions, Hidden())
        assert answer.hidden is not None
        return DraftRows(answer.hidden, None)

    def ask_noisy(self, tokens: np.ndarray, level: float, positions: np.ndarray) -> Asking[Answer]:
        """Logits of the clean tokens of a text at noise level t; see `Session`."""
        assert self.config.context == "full"
        rows, time = positions - int(self.config.shift), level if self.config.time_input else None
        layout = Layout(np.arange(len(tokens)), np.full(len(tokens), len(tokens), dtype=np.int32), 0)
        self._count(len(tokens))
        (answer,) = yield [Forward(tokens, layout, None, rows.astype(np.int32), Logits(), time)]
        return answer

    def ask_tokens(self, clean: np.ndarray, noisy: np.ndarray, ask: Ask, conditioning: Any = None) -> Asking[Answer]:
        """An answer about noisy tokens after clean ones; see `Session`."""
        assert self.config.context == "causal" and not self.config.shift
        plan = RowPlan(len(clean), index_range(len(clean), len(clean) + len(noisy)), 0)
        forward = self._forward(plan, clean, noisy, plan.noisy, ask)
        forward.conditioning = conditioning
        (answer,) = yield [forward]
        return answer

    def verify(
        self, canvas: Canvas, draft: np.ndarray, ahead: int, ends: tuple[int, ...] | None = None
    ) -> Asking[Verification]:
        """The distributions of a draft and of the positions after it; see `Session`."""
        config = self.config
        known = config.has_draft_rows, config.mask_id is None
        plan, groups = plan_verification(canvas, len(draft), ahead, ends, *known)
        (answer,) = yield [self._verifying(canvas, plan, draft, Hidden(), groups)]
        assert answer.hidden is not None
        hidden, groups = answer.hidden, groups + len(draft) + 1
        (read,) = yield [DraftStep(hidden[: len(draft) + 1])]
        assert read.logits is not None

        def following(row: int) -> NextLogits:
            return DraftRows(hidden[groups[row] : groups[row + 1]], hidden[row : row + 1])

        return Verification(read.logits, following, read.evidence)

    def cycle(
        self,
        canvas: Canvas,
        draft: np.ndarray,
        ahead: int,
        ends: tuple[int, ...] | None,
        rules: Rules,
        worth: float,
    ) -> Asking[Answer]:
        """Verify, draw, accept and draft; see `Session`."""
        assert canvas.span is not None
        positions = index_range(canvas.span[0], canvas.span[0] + len(draft) + 1)
        config = self.config
        known = config.has_draft_rows, config.mask_id is None
        plan, groups = plan_verification(canvas, len(draft), ahead, ends, *known)
        (answer,) = yield [self._verifying(canvas, plan, draft, Cycle(rules, positions, draft, groups, worth), groups)]
        return answer

    def draft(self, canvas: Canvas, num: int, ask: Ask) -> Asking[Answer]:
        """An answer about the next positions as a draft; see `Session`."""
        assert self.config.masks_in_place and canvas.continues and canvas.span is not None
        start = canvas.span[0]
        plan, positions = plan_noisy(self.config, start, start + num), index_range(start, start + num)
        noisy = plan.noisy_tokens(self.config, canvas)
        forward = self._forward(plan, plan.tokens(canvas), noisy, positions, ask)
        forward.drafting = self.config.draft_rank > 0
        (answer,) = yield [forward]
        return answer

    def tree_logits(self, given: np.ndarray, tree: Tree, wanted: np.ndarray) -> Asking[Answer]:
        """The distributions after tokens of a tree; see `Session`."""
        in_tree, num, found = wanted >= 0, len(given), list[tuple[np.ndarray, Answer]]()
        if not in_tree.all() or (self._cache is not None and not self._holds(given)):
            (answer,) = yield [self._forward(plan_text(num), given, NONE, np.array([num]), Logits())]
            found.append((~in_tree, answer))
        if in_tree.any():
            plan = plan_tree(num, tree)
            rows = (wanted[in_tree] + num).astype(np.int32)  # among all rows, clean ones first
            (answer,) = yield [self._forward(plan, given, tree.tokens, rows, Logits(), by_row=True)]
            found.append((in_tree, answer))
        return _gathered(found)

    def tree_log_probs(self, given: np.ndarray, tree: Tree, wanted: np.ndarray) -> Asking[np.ndarray]:
        """The log-probabilities of the tokens of a tree; see `Session`. The last given token is its root, so that one
        forward is enough. What is cached behind the given tokens stays, unseen.
        """
        num, after_root = len(given) - 1, tree.parents + 1
        whole = Tree(np.concatenate([given[-1:], tree.tokens]), np.concatenate([[-1], after_root]))
        kept = self._cache is not None and self._cache.reaches(num) and self._holds(given)
        clean = self._held_tokens if kept else given[:-1]
        rows, ask = (len(clean) + after_root[wanted]).astype(np.int32), LogProbs(tree.tokens[wanted])
        plan = plan_tree(num, whole, len(clean))
        (answer,) = yield [self._forward(plan, clean, whole.tokens, rows, ask, by_row=True)]
        assert answer.log_probs is not None
        return answer.log_probs

    def _holds(self, given: np.ndarray) -> bool:
        """Whether the cache begins with these tokens, as one run from position 0 on."""
        segment = self._held_rows.segment
        one_run = segment is None or not segment[: len(given)].any()
        return one_run and np.array_equal(self._held_tokens[: len(given)], given)

    def _drafts(self, canvas: Canvas, positions: np.ndarray) -> bool:
        """Whether these open positions can be drafted from the left as mode "speculative" drafts: all of the active
        span that is left to fill, at the end of a text of a causal model with a shift. Where masks are in place the
        noisy rows of `plan_rows` give the same without low-rank weights.
        """
        if not (self.config.can_draft and canvas.continues and len(positions) > 1 and canvas.span is not None):
            return False
        if self.config.masks_in_place:
            return False
        return bool(positions[-1] + 1 == canvas.span[1]) and 1 not in canvas.open[: positions[0]].tobytes()

    def _drafting(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Forward:
        """A forward that drafts these positions from the left."""
        start, num = int(positions[0]), len(positions)
        masks, wanted = _masks(self.config.placeholder, num - 1), index_range(start - 1, start + num - 1, np.int32)
        plan = plan_draft(start, num)
        forward = self._forward(plan, canvas.tokens[:start], masks, wanted, ask, by_row=True)
        forward.drafting = self.config.draft_rank > 0
        return forward

    def _verifying(self, canvas: Canvas, plan: RowPlan, draft: np.ndarray, ask: Ask, groups: np.ndarray) -> Forward:
        """The forward of `verify`. Wanted rows in order: the clean rows that are read, then the masked rows of each; in
        a model without rows that draft each clean row again, as often as its group says: its draft head reads that.
        """
        assert canvas.span is not None and canvas.continues and not (self.config.masks_in_place and len(plan.noisy))
        random = self.config.draft_rows == "random"
        masks = random_tokens(self.config, plan.noisy) if random else _masks(self.config.placeholder, len(plan.noisy))
        wanted = index_range(plan.num_clean - plan.num_read, plan.num_clean + len(masks), np.int32)
        if not len(masks) and groups[-1]:
            wanted = np.concatenate([wanted, np.repeat(wanted, np.diff(groups))])
        clean = np.concatenate([canvas.tokens[: canvas.span[0]], draft])
        forward = self._forward(plan, clean, masks, wanted, ask, by_row=True)
        forward.drafting = bool(self.config.draft_rank and len(masks))
        return forward

    def _forward(
        self,
        plan: RowPlan,
        clean: np.ndarray,
        noisy: np.ndarray,
        wanted: np.ndarray,
        ask: Ask,
        level: float | None = None,
        by_row: bool = False,
    ) -> Forward:
        """The forward of all rows that are not cached; `clean` and `noisy` are the tokens of the plan's rows.

        wanted  positions to predict; with `by_row`, rows of the plan, clean ones first
        """
        past = self._reuse(plan, clean)
        rows = wanted - np.int32(past) if by_row else plan.rows_of(wanted, past)
        tokens = np.concatenate([clean[past:], noisy]) if len(noisy) else clean[past:]
        return Forward(tokens, plan.layout(self.config, past), self._cache, rows, ask, level)

    def _reuse(self, plan: RowPlan, tokens: np.ndarray) -> int:
        """Discard cached rows from the first that this plan does not need on, and count; returns how many are kept."""
        held, held_rows = self._held_tokens, self._held_rows
        common = known = min(plan.num_clean - plan.num_read, len(held))
        moved = plan.clean is not None or held_rows.clean is not None
        if moved or held[:common].tobytes() != tokens[:common].tobytes():
            differs = held[:common] != tokens[:common]
            if moved:
                differs |= (_places(plan)[:, :common] != _places(held_rows)[:, :common]).any(axis=0)
            known = int(differs.argmax()) if differs.any() else common
        if self._cache is not None:  # where the last forward was never computed it holds less
            known = min(known, self._cache.length)
        if self.config.block_size is not None and self.config.context == "block":  # its rows see each other
            known -= known % self.config.block_size
        if self._cache is not None:
            self._cache.truncate(known)
            known = self._cache.length  # 0, where windows have let go of what the next rows see
        self._held_tokens, self._held_rows = tokens, plan
        query, new = len(plan.noisy) + plan.num_read, plan.num_clean - known - plan.num_read
        if self._cache is None:
            self._count(query, new, again=known)
            return 0
        self._count(query, new, reused=known)
        return known

    def _count(self, query: int, new: int = 0, again: int = 0, reused: int = 0) -> None:
        """Count a forward that computes `query` rows whose outputs are used and, of others, `new` ones for the first
        time and some `again`, and that reads `reused` ones from the cache.
        """
        counts = self.counts
        if counts.forwards:
            counts.finalized_tokens += new
        else:
            counts.prefill_tokens += new
        counts.forwards += 1
        counts.query_tokens += query
        counts.recomputed_tokens += again
        counts.reused_tokens += reused


def noise_level(canvas: Canvas) -> float:
    """The noise level of a canvas: the open share of its gaps."""
    return float(canvas.open.sum() / canvas.in_gap.sum())


def _gathered(found: Sequence[tuple[np.ndarray, Answer]]) -> Answer:
    """Logits and evidence of rows, of which each answer has one row, or one for each row that its mask, (A,), names."""
    out = Answer()
    for name in ("logits", "evidence"):
        for rows, answer in found:
            part = getattr(answer, name)
            if part is not None and getattr(out, name) is None:
                setattr(out, name, np.empty((len(rows), *part.shape[1:]), dtype=part.dtype))
            if part is not None:
                getattr(out, name)[rows] = part
    return out


def random_tokens(config: ModelConfig, positions: np.ndarray) -> np.ndarray:
    """Tokens of rows that draft at these positions, int64, each a function of its position."""
    ids, spread = config.ordinary_ids, (positions + 1) * 0x9E3779B1 % (1 << 32)  # a Weyl sequence
    return ids[spread * len(ids) >> 32]


@lru_cache(maxsize=256)
def _masks(mask_id: int, num: int) -> np.ndarray:
    """The tokens of masked rows, int64 (num,); a shared array that must not be written to."""
    return np.full(num, mask_id)


def _places(plan: RowPlan) -> np.ndarray:
    """Position and segment of each clean row, int64 (2, S)."""
    clean = index_range(0, plan.num_clean) if plan.clean is None else plan.clean
    return np.stack([clean, np.zeros_like(clean) if plan.segment is None else plan.segment])


class DraftRows:
    """Distributions of consecutive masked rows with hidden states (A, D); uses the draft head if the model has one.

    state  (1, D): the state before the first row; None: the first row has read the token before it
    """

    def __init__(self, rows: np.ndarray, state: np.ndarray | None) -> None:
        self._rows, self._state, self._place = rows, state, 0
        self.evidence: np.ndarray | None = None

    def after(self, token: int) -> Asking[np.ndarray | None]:
        """The logits of the next position; see `NextLogits`."""
        place = self._place
        if place == len(self._rows):
            return None
        self._place += 1
        (answer,) = yield [DraftStep(self._rows[place : place + 1], token, self._state)]
        self._state, self.evidence = answer.hidden, answer.evidence
        assert answer.logits is not None
        return answer.logits[0]
