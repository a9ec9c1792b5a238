"""Controls of detection: what the visible tokens alone, and the plain model's hidden states, say of concepts.

All learn from spans of training text, in the same conditions as the held-out cases and from the same visible tokens,
one decision a concept. Some files of the training text are for validation: there the strength of regularization is
chosen, for each concept, and training goes on until the validation loss falls no more. A concept's losses are divided
by the entropy of its prevalence, so that rare ones are trained as far as frequent ones.

Letters: S cases, P features, R scored rows, D width, N concepts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.evals.concepts.features import CaseFeatures, Presence
from daguerre.evals.concepts.metrics import log_some
from daguerre.scoring.agreement import roc_auc

SMOOTHING = (0.1, 1.0, 10.0)
STRENGTHS = (1e-2, 1e-3, 1e-4, 1e-5)
"""Strengths of regularization, the strongest first: each begins where the one before it ended."""
DECAYS = (0.0, 1e-3)
ROUND, ROUNDS, PATIENCE = 20, 30, 1e-3
"""Steps of L-BFGS between two looks at the validation loss, how many rounds there are at most, and by what share the
loss falls in a round if training goes on."""
BATCH, EPOCHS, RATE, HALVINGS = 128, 60, 3e-2, 5
"""Of Adam: cases in a step, passes at most, the first rate, and how often it is halved before training ends."""
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Sets:
    """Cases to learn from, of which bool (S,) `validation` choose, and the labels of all, bool (S, N)."""

    labels: np.ndarray
    validation: np.ndarray


@dataclass(eq=False)
class Fitted:
    """What a control says: log-probabilities float32 (S, N) of the held-out cases, and how it was trained.

    curve   (step, validation loss) of the strength that most concepts chose; of rows the lowest so far
    chosen  how many concepts chose each strength of regularization
    """

    scores: np.ndarray
    curve: list[tuple[int, float]] = field(default_factory=list)
    chosen: dict[str, int] = field(default_factory=dict)


def naive_bayes(train: Presence, test: Presence, sets: Sets) -> Fitted:
    """Naive Bayes of the presence and absence of tokens (Bernoulli), with counts smoothed by what the validation files
    rank best with, concept by concept.
    """
    learned, chosen = ~sets.validation, train.take(sets.validation)
    some, labels = train.take(learned), torch.from_numpy(sets.labels[learned]).float()
    counts, positive = some.transposed_product(labels), labels.sum(dim=0)
    other = some.transposed_product(torch.ones(len(labels), 1)) - counts
    negative, tried = len(labels) - positive, []
    for smoothing in SMOOTHING:
        with_concept = torch.log((counts + smoothing) / (positive + 2 * smoothing))
        without = torch.log((other + smoothing) / (negative + 2 * smoothing))
        absent = torch.log1p(-with_concept.exp()) - torch.log1p(-without.exp())
        bias = torch.log((positive + smoothing) / (negative + smoothing)) + absent.sum(dim=0)
        tried.append((with_concept - without - absent, bias))
    truth = sets.labels[sets.validation]
    ranks = [
        [roc_auc(column, hits) for column, hits in zip((chosen.product(w) + b).numpy().T, truth.T, strict=True)]
        for w, b in tried
    ]
    best = np.nanargmax(np.nan_to_num(np.array(ranks), nan=0.5), axis=0)
    weight, bias = _of_each(tried, best)
    return Fitted(F.logsigmoid(test.product(weight) + bias).numpy(), chosen=_counts(SMOOTHING, best))


def logistic(train: CaseFeatures, test: CaseFeatures, sets: Sets, report: Report = lambda *_: None) -> Fitted:
    """Logistic regression, a concept a column, by L-BFGS: the mean over concepts of cross-entropy and, times half a
    strength, of squared weights. The problem is convex; each strength is trained until the validation loss stops.
    """
    learned = ~sets.validation
    some, chosen = train.take(learned), train.take(sets.validation)
    labels, truth = (torch.from_numpy(sets.labels[which]).float() for which in (learned, sets.validation))
    rate, entropy = _prior(labels)
    weight = torch.zeros(train.width, labels.shape[1], requires_grad=True)
    bias = torch.logit(rate).requires_grad_()
    tried, losses, curves = [], [], []
    for number, strength in enumerate(STRENGTHS):
        report("logistic regression", number, len(STRENGTHS))

        def objective(strength: float = strength) -> Tensor:
            loss = _cross_entropy(some.product(weight) + bias, labels) / entropy
            return loss.mean() + strength / 2 * weight.square().sum() / len(entropy)

        descend = _descent([weight, bias], objective)
        curve = [(0, _mean_loss(chosen.product(weight) + bias, truth, entropy))]
        for _ in range(ROUNDS):
            descend()
            curve.append((curve[-1][0] + ROUND, _mean_loss(chosen.product(weight) + bias, truth, entropy)))
            if curve[-2][1] - curve[-1][1] < PATIENCE * curve[-2][1]:
                break
        with torch.no_grad():
            losses.append(_cross_entropy(chosen.product(weight) + bias, truth))
        tried.append((weight.detach().clone(), bias.detach().clone()))
        curves.append(curve)
    best = torch.stack(losses).argmin(dim=0).numpy()
    weight_of, bias_of = _of_each(tried, best)
    most = int(np.bincount(best).argmax())
    return Fitted(F.logsigmoid(test.product(weight_of) + bias_of).numpy(), curves[most], _counts(STRENGTHS, best))


def row_probe(train: np.ndarray, test: np.ndarray, sets: Sets, report: Report = lambda *_: None) -> Fitted:
    """A linear map of every scored row (S, R, D) to logits, trained as the model's own are scored: cross-entropy of
    P(any) over the rows. Adam, with the rate halved in every epoch in which the validation loss falls no more; of each
    concept the weights of its best epoch count, with its best decay of weights.
    """
    rows, labels = torch.from_numpy(train), torch.from_numpy(sets.labels).float()
    learned, chosen = (torch.from_numpy(np.flatnonzero(which)) for which in (~sets.validation, sets.validation))
    sample = rows[learned[:: max(1, len(learned) // 500)]].float().flatten(0, 1)
    mean, scale = sample.mean(dim=0), sample.std(dim=0).clamp_min(1e-6)
    tried = [
        _Probe(mean, scale, labels[learned], rows.shape[1], decay).train(rows, labels, learned, chosen, report)
        for decay in DECAYS
    ]
    best = torch.stack([probe.best_loss for probe in tried]).argmin(dim=0).numpy()
    weight, bias = _of_each([(probe.best_weight, probe.best_bias) for probe in tried], best)
    probe = tried[int(np.bincount(best).argmax())]
    probe.weight, probe.bias = weight, bias
    blocks = [log_some(probe.none(block)) for block in torch.from_numpy(test).split(BATCH)]
    return Fitted(torch.cat(blocks).numpy(), probe.curve, _counts(DECAYS, best))


class _Probe:
    """A linear map of rows under training; `best_weight`, `best_bias` are of the best epoch of each concept."""

    def __init__(self, mean: Tensor, scale: Tensor, labels: Tensor, num_rows: int, decay: float) -> None:
        rate, self.entropy = _prior(labels)
        self.mean, self.scale, self.decay = mean, scale, decay
        self.weight = torch.zeros(len(mean), labels.shape[1])
        self.bias = torch.logit(1 - (1 - rate) ** (1 / num_rows), eps=1e-7)
        self.best_weight, self.best_bias = self.weight.clone(), self.bias.clone()
        self.best_loss = torch.full_like(self.bias, torch.inf)
        self.curve: list[tuple[int, float]] = []

    def none(self, rows: Tensor) -> Tensor:
        """-log P(none), (S, N), of rows (S, R, D)."""
        normal = (rows.float() - self.mean) / self.scale
        return F.softplus(normal @ self.weight + self.bias).sum(dim=1).double()

    def loss(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of P(any), (N,), a mean over cases."""
        none = self.none(rows)
        return -torch.where(labels > 0, log_some(none), -none).mean(dim=0)

    def train(self, rows: Tensor, labels: Tensor, learned: Tensor, chosen: Tensor, report: Report) -> _Probe:
        """Train until the validation loss has stopped falling at the lowest rate."""
        self.weight.requires_grad_()
        self.bias.requires_grad_()
        optimizer = torch.optim.Adam([self.weight, self.bias], lr=RATE)
        generator, lowest, halvings = torch.Generator().manual_seed(0), self._look(rows, labels, chosen, 0), 0
        for epoch in range(EPOCHS):
            report("linear probe of rows", epoch, EPOCHS)
            for batch in learned[torch.randperm(len(learned), generator=generator)].split(BATCH):
                optimizer.zero_grad()
                loss = (self.loss(rows[batch], labels[batch]) / self.entropy).mean()
                (loss + self.decay / 2 * self.weight.square().sum() / len(self.entropy)).backward()
                optimizer.step()
            last, lowest = lowest, self._look(rows, labels, chosen, epoch + 1)
            if lowest > last * (1 - PATIENCE):
                halvings += 1
                for group in optimizer.param_groups:
                    group["lr"] /= 2
            if halvings > HALVINGS:
                break
        self.weight.requires_grad_(False)
        self.bias.requires_grad_(False)
        return self

    @torch.no_grad()
    def _look(self, rows: Tensor, labels: Tensor, chosen: Tensor, epoch: int) -> float:
        """The mean over concepts of the lowest validation loss so far, whose weights are kept."""
        parts = [self.loss(rows[batch], labels[batch]) * len(batch) for batch in chosen.split(BATCH)]
        loss = torch.stack(parts).sum(dim=0) / len(chosen)
        better = loss < self.best_loss
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_weight = torch.where(better, self.weight, self.best_weight)
        self.best_bias = torch.where(better, self.bias, self.best_bias)
        self.curve.append((epoch, float((self.best_loss / self.entropy).mean())))
        return self.curve[-1][1]


def _prior(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The prevalence of each concept, (N,), kept from 0 and 1, and its entropy in nats."""
    rate = (labels.sum(dim=0) + 0.5) / (len(labels) + 1)
    return rate, -(rate * rate.log() + (1 - rate) * torch.log1p(-rate))


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each concept, (N,), a mean over cases."""
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=0)


@torch.no_grad()
def _mean_loss(logits: Tensor, labels: Tensor, entropy: Tensor) -> float:
    return float((_cross_entropy(logits, labels) / entropy).mean())


def _descent(parameters: list[Tensor], objective: Callable[[], Tensor]) -> Callable[[], Any]:
    """What makes ROUND steps of L-BFGS at each call, and keeps what it has learned of the curvature."""
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=ROUND, history_size=ROUND, line_search_fn="strong_wolfe", tolerance_change=1e-12
    )

    def closure() -> float:
        optimizer.zero_grad()
        value = objective()
        value.backward()
        return float(value.detach())

    return lambda: optimizer.step(closure)


def _of_each(tried: Sequence[tuple[Tensor, Tensor]], best: np.ndarray) -> tuple[Tensor, Tensor]:
    """The weights (P, N) and biases (N,) of the best try, (N,), of each concept."""
    index, columns = torch.from_numpy(best), torch.arange(len(best))
    weights, biases = torch.stack([w for w, _ in tried]), torch.stack([b for _, b in tried])
    return weights[index, :, columns].T.contiguous(), biases[index, columns]


def _counts(values: Sequence[float], best: np.ndarray) -> dict[str, int]:
    """How many concepts chose each value."""
    return {f"{value:g}": int((best == place).sum()) for place, value in enumerate(values)}
