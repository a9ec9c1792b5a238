"""The settings of `daguerre train heads --from MODEL`, given as `--set name=value`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from daguerre.errors import InputError
from daguerre.models.core.shapes import ConceptShape
from daguerre.train.concept_loss import ConceptTraining
from daguerre.train.settings import check_positive

FEWEST_DISCOVERED = 384
"""Discovered concepts of heads that have few known ones."""


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """How concept heads are trained for a published model.

    tokens      whose hidden states are computed and learned from; those that are held out come on top
    labeled     tokens that are labeled, of which those are chosen
    window      tokens of a text that the model reads at once
    fewest      spans with each concept that are chosen at least, where there are as many
    held        tokens of held-out packages on which the heads are measured
    gigabytes   of hidden states on the disk, at most: fewer tokens are taken where they need more
    discovered  discovered concepts per known one; there are FEWEST_DISCOVERED at least
    rank        of the discovered concepts' weights
    kept_known, kept_discovered   concepts that a row keeps
    rows        of a step; `words` of them have the loss over words, with `vocabulary` of all tokens, drawn anew
    predictor_steps   of the maps that tell concepts, which are learned first
    passes      over all rows, of all other weights; the rate falls to 0 over the last `decay` of them
    rate        learning rate of AdamW
    agreement   Cohen's kappa with marks that a concept of your own has at least, or is left out
    seed        of the weights, and of what is drawn
    """

    begins: ClassVar = (
        "tokens", "labeled", "window", "fewest", "held", "gigabytes", "discovered", "rank", "kept_known",
        "kept_discovered", "agreement", "seed",
    )  # fmt: skip
    tokens: int = 1_000_000
    labeled: int = 12_000_000
    window: int = 512
    fewest: int = 200
    held: int = 80_000
    gigabytes: float = 4.0
    discovered: int = 3
    rank: int = 192
    kept_known: int = 32
    kept_discovered: int = 128
    rows: int = 2048
    words: int = 512
    vocabulary: int = 2048
    predictor_steps: int = 1500
    passes: float = 6.0
    rate: float = 4e-3
    decay: float = 0.7
    agreement: float = 0.4
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(self, ("seed",))
        if self.decay > 1:
            raise InputError("decay is a share, at most 1")
        if self.words > self.rows or self.rank < 2 or self.kept_discovered < 2:
            raise InputError("words are some of the rows, and rank and kept_discovered are 2 or more")

    def shape(self, num: int, taxonomy: str) -> ConceptShape:
        """The shape of heads for so many known concepts of a taxonomy."""
        return ConceptShape(
            known=num,
            discovered=max(self.discovered * num, self.kept_discovered, FEWEST_DISCOVERED),
            rank=self.rank,
            kept_known=min(self.kept_known, num),
            kept_discovered=self.kept_discovered,
            reads=True,
            taxonomy=taxonomy,
        )

    def losses(self) -> ConceptTraining:
        """The weights of losses; those of `recipes/heads.toml`, but for `labels_only`."""
        kept = {"kept_known": self.kept_known, "kept_discovered": self.kept_discovered - 1}
        always = {"frozen": 1.0, "sparse": 0.0, "unforced": 0.0, "inject": 1.0, "labels_only": True, "detached": False}
        return ConceptTraining(alignment=0.5, **always, **kept)  # type: ignore[arg-type]
