"""Detection by the heads of a published model, in the held-out windows of a run of `daguerre train heads`, whose hidden
states are there already, or in those of other files (`text_of`), whose states the model computes.

A case is a span of SPAN tokens of a window. Concepts to come are scored on the rows that predict the span's tokens and
have not read them, those that were read on the span's own rows; a case is positive if a token of it has the concept.
Controls learn from the windows that the heads learned from: naive Bayes and logistic regression of the tokens that the
last of the rows has seen, at most PREFIX before the span, and a linear probe of the same rows. The rest is as in
`detection`.

Letters: S cases, R scored rows, D width, N concepts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.errors import InputError
from daguerre.evals.concepts.cases import PREFIX, SPAN, Condition
from daguerre.evals.concepts.controls import Fitted, Sets, logistic, naive_bayes, row_probe
from daguerre.evals.concepts.detection import LOGISTIC, NAIVE_BAYES, OURS, ROWS, VALIDATION, condition_figures
from daguerre.evals.concepts.features import Presence
from daguerre.evals.concepts.metrics import log_any
from daguerre.model import Model
from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.models.head_files import CONCEPTS, WEIGHTS, HeadFolder, read_head_folder
from daguerre.models.heads import Heads
from daguerre.models.shards import SafetensorsFile
from daguerre.train.heads.options import HeadOptions
from daguerre.train.heads.states import FILE, states_of
from daguerre.train.heads.subject import PYTHON, packages_of, places_in, texts_at
from daguerre.train.heads.windows import ChosenWindows, LabeledFiles, TextCutter, labeled, rows_of

COME, READ = Condition("to come", forecast=True), Condition("read")
FEWEST = 3
"""Training spans that a token is in, so that it is a feature."""
CONTROLS = (NAIVE_BAYES, LOGISTIC, ROWS)
Report = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class SpanText:
    """Windows, their hidden states float16 (T, D), and spans of them, int64 (S,): their first tokens among all, the
    first token of the window of each, and its file.
    """

    windows: ChosenWindows
    states: np.ndarray
    starts: np.ndarray
    window_starts: np.ndarray
    files: np.ndarray

    @classmethod
    def of(cls, windows: ChosenWindows, states: np.ndarray, held: bool) -> SpanText:
        """The spans of held-out windows, or of the others; the first token of a window is in none."""
        found = [
            (start, first, file)
            for first, size, out, file in zip(windows.starts, windows.sizes, windows.held, windows.files, strict=True)
            if out == held
            for start in range(int(first) + 1, int(first + size) - SPAN + 1, SPAN)
        ]
        return cls(windows, states, *np.array(found, np.int64).reshape(-1, 3).T)

    def some(self, num: int) -> SpanText:
        """At most so many of the spans, evenly chosen."""
        chosen = np.unique(np.linspace(0, len(self.starts) - 1, min(num, len(self.starts))).astype(int))
        spans = {name: getattr(self, name)[chosen] for name in ("starts", "window_starts", "files")}
        return replace(self, **spans)

    @property
    def labels(self) -> np.ndarray:
        """Which concepts a token of each span has, bool (S, N)."""
        places = self.starts[:, None] + np.arange(SPAN)
        bits = np.bitwise_or.reduce(self.windows.labels[places], axis=1)
        return np.unpackbits(bits, axis=1, count=self.windows.num).astype(bool)

    def rows(self, condition: Condition) -> np.ndarray:
        """The scored rows of the spans, int64 (S, R)."""
        return self.starts[:, None] - int(condition.forecast) + np.arange(SPAN)


def text_of(folder: Path, model: Model, most: int) -> SpanText:
    """The spans of the Python files of a folder, up to so many tokens, with the states that a model computes."""
    train, held = places_in(packages_of([folder]), 0)
    window = min(HeadOptions().window, model.config.max_positions - len(model.config.first))
    cutter = TextCutter(model.tokenizer, PYTHON, window)
    with tempfile.TemporaryDirectory() as kept:
        windows = labeled(texts_at([*train, *held], set()), cutter, True, most, LabeledFiles(Path(kept)))
    states = np.concatenate([states_of(model, windows, number) for number in range(len(windows.sizes))])
    return SpanText.of(windows, states, held=True)


def run_of(folder: Path) -> tuple[HeadFolder, ChosenWindows, np.ndarray]:
    """The heads of a run, its windows that have states, and these, float16 (T, D). InputError for a folder without."""
    from daguerre.train.heads.run import WINDOWS
    from daguerre.train.heads.training import HEADS

    if not (folder / WINDOWS).is_file():
        raise InputError(f"{folder} is no run of `daguerre train heads`: name its folder")
    kept, windows = read_head_folder(folder / HEADS), ChosenWindows.load(folder / WINDOWS)
    width = int(SafetensorsFile(kept.path / WEIGHTS).tensors()[f"{CONCEPTS}known_predictor.weight"].shape[1])
    states = np.memmap(folder / "states" / FILE, np.float16, "r").reshape(-1, width)
    windows = windows.take(np.arange(np.searchsorted(np.cumsum(windows.sizes), len(states), side="right")))
    return kept, windows, states


def heads_in(kept: HeadFolder) -> ConceptHeads:
    """The heads of a folder, as modules."""
    stored = SafetensorsFile(kept.path / WEIGHTS).tensors()
    heads = ConceptHeads(int(stored[f"{CONCEPTS}known_predictor.weight"].shape[1]), kept.shape)
    heads.load_state_dict(
        {name.removeprefix(CONCEPTS): torch.from_numpy(one.read("float32").copy()) for name, one in stored.items()}
    )
    return heads


def measure_heads(
    folder: Path,
    controls: Sequence[str] = CONTROLS,
    most: int = 6000,
    report: Report = lambda _: None,
    seed: int = 0,
    test: SpanText | None = None,
) -> dict[str, Any]:
    """How well the heads of a run tell concepts apart: figures of both conditions, as `detection.condition_figures`.
    most: training spans that controls learn from; test: what is measured, the held-out windows of the run by default.
    """
    kept, windows, states = run_of(folder)
    heads = heads_in(kept)
    train = SpanText.of(windows, states, held=False).some(most)
    test = SpanText.of(windows, states, held=True) if test is None else test
    if not len(test.starts):
        raise InputError(f"{folder} has no held-out text: train on folders with held-out packages")
    files = np.unique(test.files, return_inverse=True)[1]
    conditions = []
    for condition in (COME, READ):
        report(f"{condition.name}: heads")
        scores = {OURS: Fitted(scores_of(heads, test, condition))}
        sets = Sets(train.labels, np.unique(train.files, return_inverse=True)[1] % VALIDATION == 0)
        for name in controls:
            report(f"{condition.name}: {name}")
            scores[name] = _control(name, train, test, condition, sets)
        conditions.append(condition_figures(condition, scores, test.labels, files, seed, kept.names().concepts))
    return {
        "base": dict(kept.base),
        "trained": dict(kept.trained),
        "taxonomy": kept.shape.taxonomy,
        "span": SPAN,
        "cases": len(test.starts),
        "files": int(files.max()) + 1,
        "training_cases": len(train.starts),
        "conditions": conditions,
    }


def measure_shares(folder: Path, heads: Heads, most: int = 4000) -> dict[str, float]:
    """What share of the logits of held-out tokens goes through concepts, and what is lost without the residual.

    With k, u and e a row's known, discovered and residual parts times the row of the vocabulary projection of the token
    that follows, absolute: `aggregated` is the mean of (k + u) / (k + u + e), `known` of k / (k + u + e), and `single`
    the first with each concept's own part, absolute, in place of their sum. `nats` are lost of each token's likelihood
    where e is left out, `nats_whole` are those of the whole row.
    """
    _, windows, states = run_of(folder)
    held = rows_of(windows, held=True)
    rows = held[np.unique(np.linspace(0, len(held) - 1, min(most, len(held))).astype(int))]
    parts, num = list[np.ndarray](), heads.shape.kept_known
    for some in np.array_split(rows, max(1, len(rows) // 250)):
        hidden, token = states[some].astype(np.float32), windows.tokens[some + 1].astype(np.int64)
        kept, projected = heads.kept(hidden), heads.rows(token)
        each = kept.weights * heads.effects(token, kept.concepts)
        known, found = np.abs(each[:, :num].sum(axis=1)), np.abs(each[:, num:].sum(axis=1))
        rest, single = np.abs((kept.residual * projected).sum(axis=1)), np.abs(each).sum(axis=1)
        whole = known + found + rest
        nats = [_nats(heads, one, token) for one in (hidden - kept.residual, hidden)]
        parts.append(np.stack([(known + found) / whole, known / whole, single / (single + rest), *nats]))
    aggregated, of_known, single_share, alone, nats_whole = np.concatenate(parts, axis=1).mean(axis=1).tolist()
    shares = {"aggregated": aggregated, "known": of_known, "single": single_share}
    return shares | {"nats": alone - nats_whole, "nats_whole": nats_whole, "rows": float(len(rows))}


def _nats(heads: Heads, hidden: np.ndarray, token: np.ndarray) -> np.ndarray:
    """-log P of tokens (A,) by hidden states (A, D)."""
    every = np.arange(heads.config.vocab_size)
    logits = torch.from_numpy(hidden) @ torch.from_numpy(heads.rows(every)).T + torch.from_numpy(heads.bias(every))
    out: np.ndarray = torch.nn.functional.cross_entropy(logits, torch.from_numpy(token), reduction="none").numpy()
    return out


@torch.inference_mode()
def scores_of(heads: ConceptHeads, text: SpanText, condition: Condition) -> np.ndarray:
    """log P(any) of the heads, float64 (S, N)."""
    logits = heads.known_logits if condition.forecast else heads.read_logits
    parts = np.array_split(text.rows(condition), max(1, len(text.starts) // 64))
    found = [log_any(logits(torch.from_numpy(text.states[some].astype(np.float32)))) for some in parts]
    return torch.cat(found).numpy()


def _control(name: str, train: SpanText, test: SpanText, condition: Condition, sets: Sets) -> Fitted:
    if name == ROWS:
        return row_probe(train.states[train.rows(condition)], test.states[test.rows(condition)], sets)
    features = presence((train, test), condition)
    return naive_bayes(*features, sets) if name == NAIVE_BAYES else logistic(*features, sets)


def presence(both: tuple[SpanText, SpanText], condition: Condition) -> tuple[Presence, Presence]:
    """Which tokens were seen before each span, and in it, of those that are in FEWEST training spans."""
    seen = [
        [_seen(text.windows, *place, condition) for place in zip(text.starts, text.window_starts, strict=True)]
        for text in both
    ]
    count = np.bincount(np.concatenate(seen[0]))
    kept = np.flatnonzero(count >= FEWEST)
    place = np.full(1 + max(int(each.max(initial=0)) for some in seen for each in some), -1)
    place[kept] = np.arange(len(kept))
    found = [[columns[columns >= 0] for each in some for columns in (place[each],)] for some in seen]
    return tuple(  # type: ignore[return-value]
        Presence(np.concatenate(some), np.cumsum([len(each) for each in some], dtype=np.int64), len(kept))
        for some in found
    )


def _seen(windows: ChosenWindows, start: int, first: int, condition: Condition) -> np.ndarray:
    """The tokens before a span, twice their number, and those in it, twice their number and one."""
    before = np.unique(windows.tokens[max(first, start - PREFIX) : start]).astype(np.int64)
    inside = np.unique(windows.tokens[start : start + SPAN - int(condition.forecast)]).astype(np.int64)
    return np.concatenate([2 * before, 2 * inside + 1])
