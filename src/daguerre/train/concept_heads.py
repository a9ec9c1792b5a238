"""A model with concept heads to be trained, and what the labels of its corpus say of them.

Letters: D width, N known concepts, T tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from daguerre.concepts.taxonomy import taxonomy
from daguerre.errors import InputError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.shapes import ConceptShape
from daguerre.train.concept_loss import ConceptTraining, TokensOf
from daguerre.train.data import LabeledWindows
from daguerre.train.optim import LOW_RANK

COUNTED_WINDOWS, WINDOW = 20_000, 512
LIFTED = 2.0
"""A concept makes a token likelier if P(token | concept) is at least this many times P(token)."""
FEWEST = 5
"""How often a token must be seen with a concept, so that its lift is no accident."""
RAREST = 1e-5
SPARSE = -2.0
"""The bias of discovered concepts at first: a weight of about .12."""


def with_concept_heads(model: Backbone, options: ConceptTraining, seed: int) -> Backbone:
    """The model with fresh heads for the concepts of the taxonomy, or with those it has. Drafts are left as they are.

    InputError where the model has heads of another shape.
    """
    known = taxonomy().num_ids
    shape = ConceptShape(
        known=known,
        discovered=options.discovered * known,
        rank=options.rank,
        kept_known=options.kept_known,
        kept_discovered=options.kept_discovered,
        taxonomy=taxonomy().sha256,
    )
    if model.config.concepts is None:
        grown = Backbone(replace(model.config, concepts=shape)).initialize(seed)
        grown.load_state_dict(model.state_dict(), strict=False)
        model = grown
    elif model.config.concepts != shape:
        raise InputError("the model has concept heads of another shape or taxonomy: start from a model without")
    for name, weight in model.named_parameters():
        weight.requires_grad_(not name.startswith("draft_head.") and LOW_RANK not in name)
    return model


@dataclass(frozen=True, eq=False)
class ConceptCounts:
    """How often tokens and concepts occur together in windows of a corpus.

    together   int64 (N, V): tokens that have a concept
    tokens     int64 (V,): tokens in all
    """

    together: np.ndarray
    tokens: np.ndarray

    @property
    def prevalence(self) -> np.ndarray:
        """The share of tokens that have each concept, (N,)."""
        return self.together.sum(axis=1) / self.tokens.sum()

    @property
    def lift(self) -> np.ndarray:
        """P(token | concept) / P(token), (N, V); 0 for what is never seen together."""
        given = self.together / np.maximum(1, self.together.sum(axis=1, keepdims=True))
        return given / np.maximum(1e-12, self.tokens / self.tokens.sum())

    @property
    def liked(self) -> np.ndarray:
        """The tokens that each concept makes likelier, bool (N, V)."""
        out: np.ndarray = (self.lift >= LIFTED) & (self.together >= FEWEST)
        return out

    def tokens_of(self) -> TokensOf:
        """The tokens that each concept makes likelier, as the loss takes them."""
        liked, lift = self.liked, self.lift
        usual = self.tokens / self.tokens.sum()
        given = self.together / np.maximum(1, self.together.sum(axis=1, keepdims=True))
        most = np.log(np.where(liked, lift, 1.0).max(axis=1))
        return TokensOf(
            torch.from_numpy(usual).float(),
            torch.from_numpy(given).float(),
            torch.from_numpy(liked),
            torch.from_numpy(most).float(),
        )


def count_concepts(windows: LabeledWindows, vocab_size: int, num_windows: int = COUNTED_WINDOWS) -> ConceptCounts:
    """Counts over so many windows, the same ones each time."""
    rng = np.random.default_rng(0)
    together = np.zeros((windows.labels.num_concepts, vocab_size), dtype=np.int64)
    tokens = np.zeros(vocab_size, dtype=np.int64)
    for _ in range(num_windows):
        window = windows.place(WINDOW, rng)
        token, concept = np.nonzero(windows.concepts(window, window.tokens))
        np.add.at(together, (concept, window.tokens[token]), 1)
        np.add.at(tokens, window.tokens[1:], 1)
    return ConceptCounts(together, tokens)


@torch.no_grad()
def initialize_heads(model: Backbone, counts: ConceptCounts, seed: int) -> None:
    """Heads that predict each concept as often as it occurs, with small vectors."""
    heads = model.concepts
    assert heads is not None
    generator = torch.Generator().manual_seed(seed)
    width, rank = model.config.width, heads.shape.rank
    share = torch.from_numpy(counts.prevalence).clamp(RAREST, 1 - RAREST)
    for weight, scale in (
        (heads.known_predictor.weight, 0.1 * width**-0.5),
        (heads.known_embedding.weight, 0.1),
        (heads.discovered_down.weight, width**-0.5),
        (heads.discovered_up.weight, rank**-0.5),
        (heads.discovered_coefficients.weight, rank**-0.5),
        (heads.discovered_basis.weight, 0.5),
    ):
        weight.copy_(torch.empty(weight.shape).normal_(0, scale, generator=generator))
    heads.known_predictor.bias[: len(share)] = torch.logit(share).float()
    heads.discovered_up.bias.fill_(SPARSE)
