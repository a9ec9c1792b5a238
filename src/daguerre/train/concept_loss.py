"""The loss of a model with concept heads (Steerling-8B, arXiv 2608.07594, equations 9 to 15, 31 and 32).

    L = L_LM + presence L_presence + any L_any + reconstruction L_rec + independence L_indep + respond, express
        + residual L_residual + alignment L_alignment

The last two are not of the report: heads of a small model need them. Without L_residual the language loss lets known
vectors grow, and what concepts leave of hidden states grows with them; without L_alignment the vectors of rare concepts
promote any tokens.

L_LM is the objective's own loss, on h or, in sequences that are drawn at random, on h without its residual, so that the
concepts alone must carry the prediction. As long as the heads alone learn, losses are those of single rows that are
drawn from many batches (`train.row_pool`), and no row has its residual. Every row is labeled with the concepts of the
token that it predicts: clean rows, which have not seen it (forecasting), masked rows, and the other rows of noisy
spans, which have (reading).

Letters: B sequences, T tokens of a text, R rows, A labeled rows, D width, N known concepts, M discovered ones, S spans.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.train.batch import Batch, LossReport, hidden_states, loss_of_hidden
from daguerre.train.keys import Section, key
from daguerre.train.noising import IGNORE
from daguerre.train.row_pool import CLEAN, MASKED, PooledRows, spans_of

CONCEPTS = "concepts."
"""What the names of the weights of concept heads begin with."""
MIN_LOG = 1e-7
"""The log-probability that no row of a span has a concept is at most -MIN_LOG, so that its complement is above 0."""
KNOWN_FORCED, KNOWN_FALLEN, KNOWN_FLOOR = 0.15, 0.5, 0.5
"""Teacher forcing of known concepts: 1 up to the first share of the run, then a cosine to the floor at the second."""
DISCOVERED_FORCED = 0.25
"""Teacher forcing of discovered concepts: 1 up to this share, then linear to KNOWN_FLOOR at the end."""


EVEN = 0.1
"""The share of P(v) that the loss of alignment spreads evenly over all tokens."""
WEIGHTS = ("presence", "any", "reconstruction", "independence", "residual", "alignment", "respond", "express")
"""The weights of losses."""
_share = partial(key, low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class ConceptTraining(Section, place="concepts."):
    """How concept heads are trained: the table [concepts] of a recipe. Shares are of the run. As long as only the heads
    learn, the language loss is taken without the residual in all sequences. Before `unforced`, labels take the place of
    weights as `forced_known` and `forced_discovered` say.
    """

    labeled: int = key("labeled tokens of the corpus, in whole documents", 14_000_000, low=1)
    discovered: int = key("discovered concepts per known one", 3, low=1)
    rank: int = key("rank of the discovered concepts' weights", 128, low=1)
    kept_known: int = key("known concepts that a row keeps", 32, low=1)
    kept_discovered: int = key("discovered concepts that a row keeps", 128, low=1)
    frozen: float = _share("first share of the run, in which only the heads learn", 0.2)
    sparse: float = _share("share of the run after which only a row's heaviest concepts count", 0.1)
    unforced: float = _share("first share of the run, in which labels take the place of weights", 0.1)
    residual_drop: float = _share("share of sequences whose language loss has no residual", 0.3)
    presence: float = key("weight of the loss of each known concept", 0.1, low=0)
    any: float = key("weight of the loss of concepts over a span", 0.02, low=0)
    reconstruction: float = key("weight of the loss of what concepts leave of h", 1.0, low=0)
    independence: float = key("weight of the correlation of known and discovered parts", 1.0, low=0)
    residual: float = key("weight of the loss of the residual's size", 3.0, low=0)
    alignment: float = key("weight of the loss that aligns concepts with tokens they raise", 0.1, low=0)
    respond: float = key("weight of the loss of recognizing an injected concept", 0.1, low=0)
    express: float = key("weight of the loss of writing an injected concept", 0.1, low=0)
    inject: float = _share("share of the run after which concepts are injected", 0.2)
    strength: float = key("logits by which an injected concept raises its top token", 4.0)
    detached: bool = key("the language loss does not train the discovered head", True)
    labels_only: bool = key("weights of known concepts learn from labels alone, vectors from all losses", False)


@dataclass(frozen=True, eq=False)
class TokensOf:
    """What a corpus says of the tokens of concepts (`concept_heads.ConceptCounts`).

    usual   float32 (V,): P(v) of each token v
    given   float32 (N, V): P(v | c), of the tokens of concept c; 0 for a concept that is never seen
    liked   bool (N, V): the tokens that a concept makes likelier
    most    float32 (N,): the largest log P(v | c) / P(v) of those; 0 where there are none
    """

    usual: Tensor
    given: Tensor
    liked: Tensor
    most: Tensor

    def to(self, device: torch.device | str) -> TokensOf:
        return TokensOf(*(getattr(self, each.name).to(device) for each in fields(self)))


@dataclass(frozen=True, eq=False)
class ConceptLoss:
    """`BatchLoss` at a share of the run; at share 1 the figures are those of the model as it will be used. tokens:
    None: nothing is injected or aligned.
    """

    options: ConceptTraining
    tokens: TokensOf | None = None
    share: float = 1.0
    training: bool = False

    def at(self, share: float) -> ConceptLoss:
        """The loss that is trained at this share of the run."""
        return replace(self, share=share, training=True)

    @property
    def heads_alone(self) -> bool:
        """Whether the backbone stays as it is: then the loss is that of rows (`of_rows`)."""
        return self.training and self.share < self.options.frozen

    def __call__(self, model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> LossReport:
        """The loss of a labeled batch, and its parts in the report."""
        assert batch.concepts is not None
        hidden = hidden_states(model, batch, attn_impl)
        labeled = batch.origin != IGNORE
        sequence, row = labeled.nonzero(as_tuple=True)
        masked, span = batch.level[sequence, row] >= 0, batch.layout.rows.span[sequence, row]
        y = batch.concepts[sequence, batch.origin[sequence, row]].float()
        with torch.autocast(hidden.device.type, enabled=False):
            h = hidden[sequence, row].float()
            losses, z, alone = self.losses_of(model, h, y, masked, batch.seed)
            losses["any"] = any_loss(z, y, spans_of(sequence, span, masked))
        composed = hidden
        if self.training:
            generator = torch.Generator().manual_seed(batch.seed)
            drawn = torch.rand(len(hidden), generator=generator) < self.options.residual_drop
            dropped = drawn.to(hidden.device)[sequence, None]
            composed = hidden.index_put((sequence, row), torch.where(dropped, alone, h).to(hidden.dtype))
        report = loss_of_hidden(model, batch, composed)
        return replace(report, loss=report.loss + self._weighted(losses), parts=_parts(losses))

    def of_rows(self, model: Backbone, rows: PooledRows, whole: PooledRows, seed: int) -> LossReport:
        """The loss of rows of a backbone that stays as it is, without their residual. L_any needs all rows of each
        span, and rows are drawn from many, so it is that of `whole`: all rows of one micro-batch (`row_pool.rows_of`).
        """
        with torch.autocast(rows.hidden.device.type, enabled=False):
            masked = rows.kind == MASKED
            with only_heads(model):
                losses, _, alone = self.losses_of(model, rows.hidden, rows.concepts.float(), masked, seed)
                # The first token of a text is read and never predicted.
                said = ~torch.isin(rows.token, model.never)  # type: ignore[arg-type]
                ce = F.cross_entropy(model.logits(alone[said]), rows.token[said], reduction="none")
                assert model.concepts is not None
                seen = model.concepts.known_logits(whole.hidden)
                losses["any"] = any_loss(seen, whole.concepts.float(), whole.span)
        clean = ce.detach()[rows.kind[said] == CLEAN]
        loss = ce.mean() + self._weighted(losses)
        return LossReport(loss, float(clean.sum()), len(clean), parts=_parts(losses))

    def _weighted(self, losses: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([getattr(self.options, name) * loss for name, loss in losses.items()]).sum()

    def losses_of(
        self, model: Backbone, h: Tensor, y: Tensor, masked: Tensor, seed: int
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Of rows (A, D) with labels (A, N): losses, logits of known concepts (A, N), and the rows' concepts alone."""
        options, heads = self.options, model.concepts
        assert heads is not None
        z, detached = heads.known_logits(h), h.detach()
        sparse = not self.training or self.share >= options.sparse
        weights = _kept(z.sigmoid(), options.kept_known if sparse else None)
        known = heads.known_sum(weights.detach() if options.labels_only else weights)
        found = heads.discovered_logits(detached).sigmoid()
        discovered = heads.discovered_sum(_kept(found, options.kept_discovered if sparse else None))
        true_known = heads.known_sum(y)
        target = (detached - true_known).detach()
        losses = {
            "presence": presence_loss(z, y),
            "reconstruction": reconstruction_loss(discovered, target),
            "independence": independence_loss(known.detach(), discovered),
            "residual": unexplained(detached, heads.known_sum(weights.detach()) + discovered),
        }
        if self.tokens is not None:
            promoted = model.promoted(heads.known_embedding.weight[: y.shape[1]])
            losses["alignment"] = alignment_loss(promoted, self.tokens)
        if self._injects:
            losses |= self._injected(model, heads, h[masked], y[masked], seed)
        if self.training:
            known_share, discovered_share = self._forced()
            known = known_share * true_known + (1 - known_share) * known
            discovered = discovered_share * target + (1 - discovered_share) * discovered
        return losses, z, known + (discovered.detach() if options.detached else discovered)

    def _forced(self) -> tuple[float, float]:
        if self.share >= self.options.unforced:
            return 0.0, 0.0
        return forced_known(self.share), forced_discovered(self.share)

    @property
    def _injects(self) -> bool:
        return self.training and self.tokens is not None and self.share >= self.options.inject

    def _injected(self, model: Backbone, heads: ConceptHeads, h: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
        """The losses of adding one concept to each masked row (a, D), drawn from those that its token has."""
        assert self.tokens is not None
        usable = y * self.tokens.liked.any(dim=1).to(y)
        rows = usable.sum(dim=1) > 0
        if not rows.any():
            return {}
        generator = torch.Generator().manual_seed(seed ^ 1)
        concept = torch.multinomial(usable[rows].cpu(), 1, generator=generator)[:, 0].to(h.device)
        vectors = heads.known_embedding.weight[concept].float()
        peak = model.promoted(vectors).detach().amax(dim=1, keepdim=True).clamp_min(MIN_LOG)
        injected = h[rows].detach() + self.options.strength * vectors / peak
        z = heads.known_logits(injected).gather(1, concept[:, None])
        log_probs = F.log_softmax(model.logits(injected), dim=-1)
        liked = log_probs.masked_fill(~self.tokens.liked[concept], -math.inf).logsumexp(dim=-1)
        return {"respond": -F.logsigmoid(z).mean(), "express": -liked.mean()}


@contextmanager
def only_heads(model: Backbone) -> Iterator[None]:
    """Inside, only the concept heads get gradients."""
    others = [w for n, w in model.named_parameters() if w.requires_grad and not n.startswith(CONCEPTS)]
    for weight in others:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in others:
            weight.requires_grad_(True)


def _parts(losses: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: float(loss.detach()) for name, loss in losses.items()}


def _kept(weights: Tensor, num: int | None) -> Tensor:
    """Weights (A, C) with all but the `num` largest of each row set to 0; None: all are kept."""
    if num is None or num >= weights.shape[-1]:
        return weights
    values, places = weights.topk(num, dim=-1)
    return torch.zeros_like(weights).scatter(-1, places, values)


def presence_loss(z: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of logits (A, N) and labels: summed over concepts, mean over rows."""
    return F.binary_cross_entropy_with_logits(z, y, reduction="none").sum(dim=1).mean()


def any_loss(z: Tensor, y: Tensor, number: Tensor) -> Tensor:
    """`any_losses`, summed over concepts."""
    return any_losses(z, y, number).sum()


def any_losses(z: Tensor, y: Tensor, number: Tensor) -> Tensor:
    """Cross-entropy (N,) of the probability that some row of a span has a concept, 1 - prod_t (1 - sigmoid(z_t)), of
    logits and labels (A, N): mean over spans (equations 9 and 10). number: int64 (A,), of `spans_of`.
    """
    counted = number >= 0
    spans, number = torch.unique(number[counted], return_inverse=True)
    if not len(spans):
        return z.sum(dim=0) * 0
    log_none = z.new_zeros(len(spans), z.shape[1]).index_add(0, number, -F.softplus(z[counted]))
    log_none = log_none.clamp_max(-MIN_LOG)
    has = z.new_zeros(len(spans), z.shape[1]).index_add(0, number, y[counted]) > 0
    return -torch.where(has, torch.log(-torch.expm1(log_none)), log_none).mean(dim=0)


def reconstruction_loss(discovered: Tensor, target: Tensor) -> Tensor:
    """||u - (h - k)||^2 of discovered parts u and what labels leave of h, (A, D) each, mean over rows (equation 12), as
    a share of the mean square of h - k, so that its weight does not depend on the size of hidden states.
    """
    return (discovered - target).square().sum(dim=1).mean() / target.square().sum(dim=1).mean().clamp_min(MIN_LOG)


def independence_loss(known: Tensor, discovered: Tensor) -> Tensor:
    """||U'K||_F^2 / (D^2 (A - 1)) of centered known and discovered parts (A, D), the linear HSIC (equation 14)."""
    k, u = known - known.mean(dim=0), discovered - discovered.mean(dim=0)
    return (u.T @ k).square().sum() / (known.shape[1] ** 2 * max(1, len(known) - 1))


def unexplained(h: Tensor, explained: Tensor) -> Tensor:
    """The fraction of the variance of rows (A, D) that concepts leave: ||h - explained||^2 / ||h - mean h||^2."""
    return (h - explained).square().sum() / (h - h.mean(dim=0)).square().sum().clamp_min(MIN_LOG)


def alignment_loss(promoted: Tensor, tokens: TokensOf) -> Tensor:
    """Cross-entropy of the tokens of a concept and softmax_v(log P(v) + a_c r_cv), mean over the concepts that make any
    token likelier. r (N, V) is how far the vector of each concept raises each token (`Backbone.promoted`), and a_c
    makes the largest of r_c the largest log-lift of the concept. So a vector points where adding it to what predicts
    P(v) predicts P(v | c), by Bayes' rule, and its length is left to the other losses. EVEN of P goes to all tokens
    alike, so that no vector gives its largest product to a token that hardly ever occurs.
    """
    some = tokens.liked.any(dim=1)
    if not some.any():
        return promoted.sum() * 0
    raised = promoted[some]
    scale = tokens.most[some] / raised.detach().amax(dim=1).clamp_min(MIN_LOG)
    usual = (1 - EVEN) * tokens.usual + EVEN / len(tokens.usual)
    log_probs = F.log_softmax(usual.log() + scale[:, None] * raised, dim=-1)
    return -(tokens.given[some] * log_probs).sum(dim=1).mean()


def forced_known(share: float) -> float:
    """Teacher forcing of known concepts at a share of the run (table 33)."""
    if share <= KNOWN_FORCED:
        return 1.0
    place = min(1.0, (share - KNOWN_FORCED) / (KNOWN_FALLEN - KNOWN_FORCED))
    return KNOWN_FLOOR + (1 - KNOWN_FLOOR) * (1 + math.cos(math.pi * place)) / 2


def forced_discovered(share: float) -> float:
    """Teacher forcing of discovered concepts at a share of the run (table 33)."""
    place = max(0.0, (share - DISCOVERED_FORCED) / (1 - DISCOVERED_FORCED))
    return 1 - place * (1 - KNOWN_FLOOR)
