"""Mode "beam": what goes into a gap so that the whole text is most likely, as far as a beam finds it.

A model of causal context with a shift knows the probability of a text. Of two ways x to fill the gap between a prefix c
and a suffix s, the better one makes c x s more likely, and

    log p(x | c, s)  =  log p(x | c) + log p(s | c, x) - log p(s | c),

whose last term is the same for all. So tokens are searched for from the left, by the autoregressive law and without a
look at the suffix; each way may end the gap wherever the suffix can begin; and those that are likeliest with its first
token behind them are judged by as much of it as counts. Unlike denoising, which sees the suffix and settles the text
piece by piece, this compares whole fillings; it takes several times as long.

Letters: P paths, A asked tokens of a tree, S tokens of the suffix, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.errors import InputError
from daguerre.models.denoiser import Session
from daguerre.models.rows import Tree
from daguerre.plan import Plan, Slot
from daguerre.sampling.logits import biased

JUDGED = 32
"""Tokens of the suffix that judge a filling: with more of it no more lines were right (docs/log.md)."""
ROWS = 512
"""Rows of a forward that judges, about: as many fillings as have room, one at least."""


@dataclass(frozen=True)
class Path:
    """The first tokens of a filling, and their log-probabilities in nats.

    `rest` is what healing took back and the path has still to repeat; `num_new` counts the tokens that brought text;
    `written` is that text.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    rest: bytes
    num_new: int = 0
    written: bytes = b""

    @property
    def value(self) -> float:
        return sum(self.logprobs)

    def longer(self, token: int, piece: bytes, logprob: float) -> Path:
        """With one more token, whose bytes are `piece`."""
        new = piece[len(self.rest) :]
        return Path(
            (*self.tokens, token),
            (*self.logprobs, logprob),
            self.rest[len(piece) :],
            self.num_new + int(bool(new)),
            self.written + new,
        )


@dataclass(frozen=True)
class Filling:
    """A whole filling: its path, and how likely the suffix is behind it, of its first tokens, in nats."""

    path: Path
    suffix: float

    @property
    def value(self) -> float:
        return self.path.value + self.suffix


@dataclass(frozen=True)
class Around:
    """The lines around a gap, stripped, but for the one that it is in: of that what stands before it, and behind."""

    lines: frozenset[bytes]
    head: bytes
    tail: bytes

    @classmethod
    def of(cls, before: bytes, behind: bytes) -> Around:
        *above, head = before.split(b"\n")
        tail, *below = behind.split(b"\n")
        return cls(frozenset(line.strip() for line in (*above, *below)), head, tail)

    def repeated(self, written: bytes) -> bool:
        """Whether a filling brings no line but blank ones and those that stand around it."""
        lines = [line.strip() for line in (self.head + written + self.tail).split(b"\n")]
        return all(line in self.lines for line in lines if line)


def fill_by_beam(session: Session, plan: Plan, late: Callable[[], bool]) -> Decision | None:
    """The decision that fills the only gap of a plan; None where time is up before there is any filling.

    InputError where no token is left to draw.
    """
    canvas, (slot,) = plan.canvas, plan.slots
    found = likeliest(session, plan, late)
    if not found:
        return None
    before, (_, end) = canvas.tokens[: slot.start], canvas.gaps[0]
    found = judged(session, before, found, canvas.tokens[end : end + JUDGED], late)
    return _decision(canvas, plan.config.null_id, max(found, key=lambda filling: filling.value))


def likeliest(session: Session, plan: Plan, late: Callable[[], bool]) -> list[Filling]:
    """As many fillings as the beam is wide, best first, each judged by one token of the suffix; fewer where there are
    no more, or time is up.
    """
    canvas, (slot,), decode = plan.canvas, plan.slots, plan.decode
    before, first = canvas.tokens[: slot.start], int(canvas.tokens[canvas.gaps[0][1]])
    ways = _Ways(slot, decode.stop, plan.config.ends)
    around = _around(plan) if decode.novel else None
    paths, found = [Path((), (), slot.healing.text)], list[Filling]()
    while paths and not late():
        tree, taken = Tree.of([path.tokens for path in paths])
        logits = session.branches(before, tree, np.array([way[-1] if way else -1 for way in taken]))
        given = _log_softmax(logits)  # of what the caller wrote: no bias is on that
        logprobs = _log_softmax(biased(logits, decode.law)) if decode.logit_bias else given
        for path, law in zip(paths, given, strict=True):
            whole = path.num_new >= slot.min_tokens and not path.rest
            if whole and not (around and around.repeated(path.written)):
                found.append(Filling(path, float(law[first])))
        found = sorted(found, key=lambda filling: -filling.value)[: decode.num_beams]
        bar = found[-1].value if len(found) == decode.num_beams else -np.inf
        paths = [path for path in ways.longer(paths, logprobs, decode.num_beams) if path.value > bar]
    if not found and not late():
        raise InputError("no filling is left: loosen logit_bias, novel, stop, min_tokens or max_tokens")
    return found


def _around(plan: Plan) -> Around:
    canvas, (slot,) = plan.canvas, plan.slots
    piece, (_, end) = slot.healing.table.of, canvas.gaps[0]
    before, behind = canvas.tokens[: slot.start].tolist(), canvas.tokens[end:].tolist()
    return Around.of(b"".join(piece[t] for t in before) + slot.healing.text, b"".join(piece[t] for t in behind))


def judged(
    session: Session, before: np.ndarray, fillings: Sequence[Filling], suffix: np.ndarray, late: Callable[[], bool]
) -> list[Filling]:
    """The fillings, each with the probability of all of `suffix` (S,) behind it; of its first token they have it, and
    stay with that alone where time is up before all are judged.
    """
    if len(suffix) == 1:
        return list(fillings)
    out: list[Filling] = []
    size = max(1, ROWS // max(len(filling.path.tokens) + len(suffix) for filling in fillings))
    for start in range(0, len(fillings), size):
        if late():
            return list(fillings)
        some = fillings[start : start + size]
        tree, ways = Tree.of([[*filling.path.tokens, *suffix[:-1].tolist()] for filling in some])
        asked = np.array([way[len(filling.path.tokens) :] for way, filling in zip(ways, some, strict=True)])
        laws = _log_softmax(session.branches(before, tree, asked.reshape(-1)))
        told = laws[np.arange(len(laws)), np.tile(suffix[1:], len(some))].reshape(len(some), -1).sum(axis=1)
        out += [Filling(one.path, one.suffix + float(nats)) for one, nats in zip(some, told, strict=True)]
    return out


class _Ways:
    """How paths may go on in a gap: healed first, then any text without a stop string."""

    def __init__(self, slot: Slot, stop: Sequence[str], ends: Sequence[int]) -> None:
        self._slot, self._stop, self._table = slot, [text.encode() for text in stop], slot.healing.table
        stopping = [token for token, piece in enumerate(self._table.of) if self._stops(piece)] if stop else []
        self._never = np.array(sorted({*stopping, *ends}), dtype=np.int64)

    def longer(self, paths: Sequence[Path], logprobs: np.ndarray, num: int) -> list[Path]:
        """The `num` likeliest paths that are one token longer, best first; `logprobs` (P, V) are of that token."""
        values = np.full(logprobs.shape, -np.inf)
        for row, path in enumerate(paths):
            if path.rest:
                kept = self._healing(path)
                values[row, kept] = path.value + logprobs[row, kept]
            elif path.num_new < self._slot.max_tokens:
                values[row] = path.value + logprobs[row]
                values[row, self._never] = -np.inf
        out: list[Path] = []
        for place in _descending(values.reshape(-1), num + sum(map(len, self._stop))):
            row, token = divmod(place, logprobs.shape[1])
            path = paths[row].longer(token, self._table.of[token], float(logprobs[row, token]))
            if not self._stops(path.written):
                out.append(path)
        return out[:num]

    def _healing(self, path: Path) -> list[int]:
        """Tokens that repeat what was taken back, or begin to and leave enough places for the rest."""
        left, table = self._slot.healing.slots - len(path.tokens) - 1, self._table
        need, begun = table.fewest(path.rest), table.proper_beginnings(path.rest)
        return table.beginning_with(path.rest) + [t for t in begun if need[len(table.of[t])] <= left]

    def _stops(self, text: bytes) -> bool:
        return any(stop in text for stop in self._stop)


def _descending(values: np.ndarray, num: int) -> list[int]:
    """Places of the `num` largest of values (n,) above minus infinity, the largest first, the first of equals."""
    if num < len(values):
        kept = np.flatnonzero(values >= np.partition(values, -num)[-num])
    else:
        kept = np.arange(len(values))
    kept = kept[np.argsort(-values[kept], kind="stable")][:num]
    return kept[np.isfinite(values[kept])].tolist()


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """Float64 log-probabilities (A, V) of logits that are not all minus infinity."""
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def _decision(canvas: Canvas, null_id: int | None, filling: Filling) -> Decision:
    """Commit the filling's tokens, and close what it leaves of the gap."""
    (start, end), path = canvas.gaps[0], filling.path
    probabilities = np.exp(path.logprobs)
    decision = Decision(start + np.arange(len(path.tokens)), np.array(path.tokens), probabilities, probabilities)
    rest = np.arange(start + len(path.tokens), end)
    if not len(rest):
        return decision
    assert null_id is not None
    sure = np.ones(len(rest))
    return Decision.join([decision, Decision(rest, np.full(len(rest), null_id), sure, sure)])
