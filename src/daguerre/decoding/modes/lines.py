"""Gaps that stand for whole lines: what follows their text, and how likely lines are that repeat others.

A vocabulary has tokens of a line break with the indentation after it. So a text that is cut after a line break, where
completions and benchmarks cut it, has other tokens at the cut than the same text uncut, and a model that never saw such
a cut gives every whole line before it a low probability: the most likely filling is then a few spaces. Where a gap
stands for whole lines, its text is therefore searched without its last line break, and the text after it is scored with
that break before it.

Letters: S tokens of a suffix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daguerre.decoding.healing import Vocabulary
from daguerre.decoding.plan import Plan

REPEATED_NATS = -1.0
"""Log-prior of a filling whose lines are all in the context already: it repeats lines too often (docs/log.md)."""
BLANK_NATS = -1e4
"""Log-prior of a blank filling: any other one is preferred."""
BREAK = b"\n"
COMMENT_MARK = b"#"


@dataclass(frozen=True)
class ContextLines:
    """The lines around a gap, stripped of blanks at their ends. Of the line that the gap is in: what precedes it,
    `head`, and after it, `tail`.
    """

    lines: frozenset[bytes]
    head: bytes
    tail: bytes

    @classmethod
    def of(cls, before: bytes, behind: bytes) -> ContextLines:
        *above, head = before.split(BREAK)
        tail, *below = behind.split(BREAK)
        return cls(frozenset(line.strip() for line in (*above, *below)), head, tail)

    @property
    def whole(self) -> bool:
        """Whether the gap stands for whole lines: nothing but blanks are in its line."""
        return not self.head.strip() and not self.tail.strip()

    def repeated(self, written: bytes) -> bool:
        """Whether every line that this text makes is blank or one of `lines`."""
        lines = [line.strip() for line in (self.head + written + self.tail).split(BREAK)]
        return all(line in self.lines for line in lines if line)

    def log_prior(self, written: bytes) -> float:
        """The log-prior of a filling, in nats; 0 unless the gap stands for whole lines."""
        if not self.whole:
            return 0.0
        if is_blank(written):
            return BLANK_NATS
        return REPEATED_NATS if self.repeated(written) else 0.0


def is_blank(written: bytes) -> bool:
    """Whether a text has nothing but white space and comment marks."""
    return not written.replace(COMMENT_MARK, b"").strip()


@dataclass(frozen=True, eq=False)
class Edge:
    """What follows the text of a gap.

    suffix   int64 (S,), S at least 1: the tokens that fillings are scored by
    ending   the token of a line break that is committed after a filling, or None; its bytes begin `suffix`
    context  the lines around the gap, as `suffix` has them
    """

    suffix: np.ndarray
    ending: int | None
    context: ContextLines

    @classmethod
    def of(cls, plan: Plan) -> Edge:
        """The edge of a plan's only gap."""
        canvas, (gap,), vocabulary = plan.canvas, plan.gaps, plan.vocabulary
        suffix = canvas.tokens[canvas.gaps[0][1] :]
        before = vocabulary.bytes_of(canvas.tokens[: gap.start]) + gap.healing.text
        behind, ending = vocabulary.bytes_of(suffix), None
        if gap.max_tokens > 1 and behind[:1] not in (b"", b"\n", b"\r") and before[-1:] in (b"", BREAK):
            ending = _break_token(plan)
        if ending is not None:
            suffix, behind = after_break(vocabulary, suffix), BREAK + behind
        return cls(suffix, ending, ContextLines.of(before, behind))

    def ended(self, written: bytes) -> bytes:
        """The text of the gap whose filling is `written`."""
        return written if self.ending is None else written + BREAK

    @property
    def num_tokens(self) -> int:
        """How many tokens are committed after a filling."""
        return int(self.ending is not None)


def _break_token(plan: Plan) -> int | None:
    """The token that is a line break and nothing else; None where the request does not allow it."""
    written, decode = plan.vocabulary.written(BREAK), plan.decode
    token = written[-1] if written else None
    banned = token is not None and (decode.logit_bias or {}).get(token, 0.0) == -np.inf
    return None if banned or BREAK.decode() in decode.stop else token


def after_break(vocabulary: Vocabulary, suffix: np.ndarray) -> np.ndarray:
    """The tokens, int64, of a line break and the text of `suffix`, int64 (S,).

    From the left the longest token is taken, until one ends where a token of `suffix` does; the rest of `suffix` stays.
    """
    text = BREAK + vocabulary.bytes_of(suffix)
    ends = 1 + np.cumsum([len(vocabulary.of[token]) for token in suffix.tolist()])
    longest = vocabulary.longest
    kept = {1: 0} | {end: number + 1 for number, end in reversed(list(enumerate(ends.tolist())))}
    out: list[int] = []
    at = 0
    while at not in kept:
        out.append(vocabulary.proper_beginnings(text[at : at + longest] + BREAK)[-1])
        at += len(vocabulary.of[out[-1]])
    return np.concatenate([np.array(out, dtype=np.int64), suffix[kept[at] :]])
