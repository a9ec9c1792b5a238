"""Shares: how much of a model's predictions goes through its concepts, and what dropping a part costs.

A hidden state is h = k + u + e: known concepts, discovered ones, the residual (`models.core.concept_heads`), with the
few largest weights kept, as when the model explains. With W_y the row of the vocabulary projection of the target token
y, over scored positions:

    cc         mean of (|k.W_y| + |u.W_y|) / (|k.W_y| + |u.W_y| + |e.W_y|): "aggregated"
    cc_known   mean of |k.W_y| / (the same)
    cc_each    the same as cc with the absolute contributions of single concepts, sum_c |w_c K_c.W_y|, in place of
               |k.W_y| and |u.W_y|: concepts that cancel one another count in full
    cancelled  mean of 1 - |(k + u).W_y| / (|k.W_y| + |u.W_y|): what of the two parts takes away from one another
    fvu        sum |e|^2 / sum |h - mean h|^2
    cosine     mean cosine of k + u and h
    cost_X     mean rise of the negative log-likelihood of y, in nats, where X (residual, known, discovered) is dropped
               from h; bits_X the same in bits per byte of y's text
    kl         mean KL divergence of the distribution without the residual from the full one, in nats
    agreement  share of positions where the most likely token stays the same without the residual

Scored are the masked positions of held-out spans, at several shares of masked positions, and in the clean stream all
positions of held-out windows, where bits per byte with and without the residual are compared. Intervals are over files.

Letters: A scored rows, D width, V vocabulary, K kept concepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daguerre.evals.bits import BitsWindow, evenly, make_windows
from daguerre.evals.concepts.cases import AT_ONCE, ConceptCase, Condition
from daguerre.evals.concepts.metrics import resampled_ratio
from daguerre.evals.concepts.partial_results import PartialResults
from daguerre.evals.workers import Progress
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.concept_heads import ConceptHeads, Decomposition
from daguerre.models.forward import Forward, Hidden, Layout, LogProbs
from daguerre.models.session import compute, together

RATES = (0.15, 0.3, 0.5, 0.7, 0.9)
LEAST_SHARE, MOST_COST, MOST_TAX = 0.84, 0.1, 0.02
ROWS = 1024
"""Rows that are decomposed at once."""
PARTS = ("residual", "known", "discovered")
ROUTES = ("cc", "cc_known", "cc_each", "cancelled", "cosine", "kl", "agreement")
MEANS = (*ROUTES, *(f"cost_{part}" for part in PARTS), "nats")


@torch.inference_mode()
def measures(backbone: Backbone, hidden: Tensor, target: Tensor) -> dict[str, np.ndarray]:
    """The quantities of the module for rows (A, D) with the tokens (A,) that they should predict, float64 (A,) each:
    those of MEANS, and |e|^2 ("residual_square") and h ("hidden", (A, D)) for the unexplained share. nats is the
    negative log-likelihood of the target.
    """
    heads = backbone.concepts
    assert heads is not None
    parts = [_measures(backbone, heads, *some) for some in zip(hidden.split(ROWS), target.split(ROWS), strict=True)]
    return {name: torch.cat([part[name] for part in parts]).double().numpy() for name in parts[0]}


def _measures(backbone: Backbone, heads: ConceptHeads, hidden: Tensor, target: Tensor) -> dict[str, Tensor]:
    found, h = heads.decompose(hidden), hidden.float()
    row = backbone.projection[target].float()
    signed = [(part * row).sum(-1) for part in (found.known, found.discovered, found.residual)]
    known, discovered, rest = (part.abs() for part in signed)
    each = _each(heads, found, row)
    full = backbone.logits(h).log_softmax(-1)
    without = backbone.logits(h - found.residual).log_softmax(-1)
    nats = -full.gather(-1, target[:, None])[:, 0]
    out = {
        "cc": (known + discovered) / (known + discovered + rest),
        "cc_known": known / (known + discovered + rest),
        "cc_each": each / (each + rest),
        "cancelled": 1 - (signed[0] + signed[1]).abs() / (known + discovered),
        "cosine": torch.cosine_similarity(found.known + found.discovered, h, dim=-1),
        "kl": (full.exp() * (full - without)).nan_to_num(0.0).sum(-1),
        "agreement": full.argmax(-1) == without.argmax(-1),
        "nats": nats,
        "residual_square": found.residual.square().sum(-1),
        "hidden": h,
    }
    for part in PARTS:
        logits = without if part == "residual" else backbone.logits(h - getattr(found, part)).log_softmax(-1)
        out[f"cost_{part}"] = -logits.gather(-1, target[:, None])[:, 0] - nats
    return out


def _each(heads: ConceptHeads, found: Decomposition, row: Tensor) -> Tensor:
    """sum_c |w_c K_c.W_y| over the kept concepts, (A,), of rows W_y (A, D)."""
    inner = row @ heads.discovered_basis.weight.float()
    known = row @ heads.known_embedding.weight.float().T
    discovered = inner @ heads.discovered_coefficients.weight.float().T
    of_known = found.known_weights * known.gather(-1, found.known_ids)
    of_discovered = found.discovered_weights * discovered.gather(-1, found.discovered_ids - heads.shape.known)
    return of_known.abs().sum(-1) + of_discovered.abs().sum(-1)


def measure_shares(
    model: Model,
    plain: Model | None,
    cases: Sequence[ConceptCase],
    documents: Sequence[Document],
    num_windows: int,
    kept: PartialResults,
    progress: Progress,
    seed: int = 0,
) -> dict[str, Any]:
    """The part "shares" of the report: an entry for each of RATES, their means, and the clean stream."""
    rates = []
    for number, rate in enumerate(RATES):
        progress("shares, masked", number, len(RATES))
        rates.append(kept.figures(f"shares-{number}", lambda r=rate: masked_shares(model, cases, r, seed)))  # type: ignore[misc]
    names = [name for name, value in rates[0].items() if isinstance(value, float) and name != "rate"]
    mean = {name: float(np.mean([each[name] for each in rates])) for name in names}
    clean = kept.figures("shares-clean", lambda: clean_shares(model, plain, documents, num_windows, progress, seed))
    return {"rates": rates, "mean": mean, "clean": clean}


def masked_shares(model: Model, cases: Sequence[ConceptCase], rate: float, seed: int) -> dict[str, Any]:
    """The figures at one share of masked positions, over the masked positions of all cases."""
    found, files, sizes = list[dict[str, np.ndarray]](), list[np.ndarray](), list[np.ndarray]()
    condition = Condition(f"{rate:g} masked", rate)
    for first in range(0, len(cases), AT_ONCE):
        some = cases[first : first + AT_ONCE]
        hidden = compute(together(*(_read(model, case, condition) for case in some)), model.denoiser.backend)
        target = np.concatenate([case.span[case.scored(condition)] for case in some])
        found.append(measures(model.backbone, torch.from_numpy(np.concatenate(hidden)), torch.from_numpy(target)))
        files.append(np.repeat([case.text.file for case in some], [len(rows) for rows in hidden]))
        sizes.append(np.array([len(model.tokenizer.token_bytes(token)) for token in target.tolist()]))
    joined = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
    return {"rate": rate, **figures(joined, np.concatenate(files), np.concatenate(sizes), seed)}


def _read(model: Model, case: ConceptCase, condition: Condition) -> Any:
    """The hidden states of the masked positions' rows, (A, D)."""
    canvas = case.canvas(condition, model.config)
    session = model.denoiser.session(canvas, "none")
    answer = yield from session.ask(canvas, canvas.gaps[0][0] + case.scored(condition), Hidden())
    return answer.hidden


def figures(found: dict[str, np.ndarray], files: np.ndarray, sizes: np.ndarray, seed: int) -> dict[str, Any]:
    """Means of `measures` over rows of these files, (A,), with tokens of so many bytes, (A,), and their intervals."""
    hidden, ones = found["hidden"], np.ones(len(files))
    spread = np.square(hidden - hidden.mean(axis=0)).sum(axis=1)
    ratios = {name: (found[name], ones) for name in MEANS} | {"fvu": (found["residual_square"], spread)}
    ratios |= {f"bits_{part}": (found[f"cost_{part}"] / np.log(2), sizes.astype(float)) for part in PARTS}
    ratios["bits"] = found["nats"] / np.log(2), sizes.astype(float)
    out: dict[str, Any] = {"positions": len(files)}
    for name, (above, below) in ratios.items():
        out[name], out[f"{name}_interval"] = resampled_ratio(above, below, files, seed)
    return out


def clean_shares(
    model: Model, plain: Model | None, documents: Sequence[Document], num: int, progress: Progress, seed: int
) -> dict[str, Any]:
    """Bits per byte of the clean stream with and without the residual, over at most `num` windows, evenly spread; and,
    with a plain model, its bits per byte of the same windows.
    """
    windows = make_windows(documents, model.tokenizer, model.config.max_positions)
    windows = [windows[place] for place in evenly(len(windows), min(num, len(windows)))]
    sums, plain_bits, files = list[dict[str, float]](), list[float](), [window.document for window in windows]
    for number, window in enumerate(windows):
        progress("shares, clean stream", number, len(windows))
        target = torch.from_numpy(window.tokens[1:].astype(np.int64))
        hidden = _stream(model, window, Hidden())
        found = measures(model.backbone, torch.from_numpy(hidden), target)
        sums.append({name: float(found[name].sum()) for name in MEANS} | {"tokens": float(len(target))})
        sums[-1]["bytes"] = float(window.num_bytes.sum())
        if plain is not None:
            plain_bits.append(-float(_stream(plain, window, LogProbs(target.numpy())).sum()) / np.log(2))
    column = {name: np.array([each[name] for each in sums]) for name in sums[0]}
    bits, dropped = (column[name] / np.log(2) for name in ("nats", "cost_residual"))
    out: dict[str, Any] = {"windows": len(windows), "tokens": int(column["tokens"].sum())}
    for name in ROUTES:
        out[name], out[f"{name}_interval"] = resampled_ratio(column[name], column["tokens"], files, seed)
    out["bits"], out["bits_interval"] = resampled_ratio(bits, column["bytes"], files, seed)
    out["cost"], out["cost_interval"] = resampled_ratio(dropped, bits, files, seed)
    if plain is not None:
        reference = np.array(plain_bits)
        out["plain_bits"] = float(reference.sum() / column["bytes"].sum())
        out["tax"], out["tax_interval"] = resampled_ratio(bits - reference, reference, files, seed)
    return out


def _stream(model: Model, window: BitsWindow, ask: Hidden | LogProbs) -> np.ndarray:
    """What the clean rows of a window answer: row i about the token after it."""
    tokens = window.tokens[:-1].astype(np.int64)
    rows = np.arange(len(tokens))
    layout = Layout(rows, (rows + 1).astype(np.int32), len(rows))
    forward = Forward(tokens, layout, None, rows.astype(np.int32), ask)
    (answer,) = model.denoiser.backend.forward([forward])
    found = answer.hidden if isinstance(ask, Hidden) else answer.log_probs
    assert found is not None
    return found
