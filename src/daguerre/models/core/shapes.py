"""Parts of a model's shape (`models.core.config`): scaled rotary positions, sliding windows, mixtures of experts and
concept heads; and tokens of fill-in-the-middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from daguerre.errors import CheckpointError
from daguerre.models.core.limits import CONCEPTS, EXPERTS, FIM, SCALING, WINDOWS, check

ScalingName = Literal["linear", "llama3", "yarn", "longrope"]
CLAMP = 15.0
"""Logits of concepts are kept within this distance of 0."""
SMALL = 4096
"""Concepts of a kind whose vectors are all multiplied, kept or not."""
ScoreName = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary positions were extended beyond `original_positions` (names and defaults as in transformers).

    linear  every position is divided by `factor`
    llama3  low frequencies are divided by `factor`, high ones are kept, those between are interpolated (Llama 3.1)
    yarn    the same, with limits given as numbers of turns within the original positions; cosines and sines are scaled
            by `attention_factor`, by default 0.1 ln(factor) + 1 (YaRN, arXiv 2309.00071)
    longrope  each frequency is divided by its number in `short` or, of a model with more than `original_positions`, in
            `long`; `attention_factor` is by default sqrt(1 + ln(factor) / ln(original_positions)) (arXiv 2402.13753)

    query_beta  queries are multiplied by 1 + query_beta ln(1 + floor(position / original_positions)), as in Llama 4
    """

    kind: ScalingName
    factor: float
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    query_beta: float = 0.0
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check(self, SCALING, "rope_scaling: ")
        for name in ("short", "long"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.kind == "longrope" and self.original_positions == 1 and self.attention_factor is None:
            raise CheckpointError(
                "rope_scaling of kind longrope needs original_positions above 1: copy the config again"
            )
        if (self.kind == "longrope") != bool(self.short and self.long):
            raise CheckpointError("rope_scaling of kind longrope, and no other, has lists `short` and `long`")
        if self.kind != "linear" and self.original_positions < 1:
            raise CheckpointError(f"rope_scaling of kind {self.kind} needs its original_positions")
        if self.query_beta and self.original_positions < 1:
            raise CheckpointError("rope_scaling with a query_beta needs its original_positions")


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Sliding layers: their rows see the last `size` keys up to their own, in place of all before it.

    layers      their numbers
    rope_theta  the base of their rotary positions, which are not scaled; None: these are as in all other layers
    """

    size: int
    layers: tuple[int, ...]
    rope_theta: float | None = None

    def __post_init__(self) -> None:
        check(self, WINDOWS, "windows: ")
        object.__setattr__(self, "layers", tuple(sorted({*self.layers})))


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the MLP: a router chooses a few experts for each token, and their results are
    added, weighted by their scores. Experts are gated MLPs without biases.

    num, per_token  the experts of a layer, and how many of them a token goes through
    width           inner width of an expert
    shared_width    inner width of one more expert, which every token goes through; 0: there is none
    first_layer     the first layer with experts; those before it have an MLP
    score           softmax: over all experts of a layer; sigmoid: of each by itself (DeepSeek-V3, arXiv 2412.19437)
    bias            each expert has a number that is added to its score for the choice, but not for the weight
    num_groups, kept_groups   experts are chosen from the groups whose two best scores have the largest sums
    normalized      the weights of the chosen experts are divided by their sum
    scale           what all weights are multiplied by
    """

    num: int
    per_token: int
    width: int
    shared_width: int = 0
    first_layer: int = 0
    score: ScoreName = "softmax"
    bias: bool = False
    num_groups: int = 1
    kept_groups: int = 1
    normalized: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        check(self, EXPERTS, "experts: ")
        of_group = self.num // self.num_groups
        if self.num % self.num_groups or (self.num_groups > 1 and of_group < 2):
            raise CheckpointError(f"{self.num} experts cannot be {self.num_groups} equal groups of two or more")
        if self.kept_groups > self.num_groups or self.per_token > self.kept_groups * of_group:
            raise CheckpointError(
                f"{self.per_token} experts cannot be chosen from {self.kept_groups} of {self.num_groups} groups of "
                f"{of_group}: lower per_token"
            )


@dataclass(frozen=True, kw_only=True)
class ConceptShape:
    """Concept heads (`models.core.concept_heads`), which write a hidden state as a sum of concepts and a residual.

    known, discovered            how many concepts have a name, and how many were found in training
    rank                         of the matrices of the discovered concepts
    kept_known, kept_discovered  how many concepts a hidden state has: those of the largest weights
    reads                        a map of its own says which known concepts the token has that a row has read
    bias                         the weights of concepts are computed with a bias
    spare_known, spare_discovered   rows that a published checkpoint's matrices have beyond their concepts
    taxonomy                     SHA-256 of the taxonomy whose numbers the known concepts have; "": another one
    """

    known: int
    discovered: int
    rank: int
    kept_known: int = 32
    kept_discovered: int = 64
    reads: bool = False
    bias: bool = True
    spare_known: int = 0
    spare_discovered: int = 0
    taxonomy: str = ""

    def __post_init__(self) -> None:
        check(self, CONCEPTS, "concepts: ")
        if self.kept_known > self.known or self.kept_discovered > self.discovered:
            raise CheckpointError("concept heads keep more concepts than they have: lower kept_known, kept_discovered")


@dataclass(frozen=True, kw_only=True)
class FimTokens:
    """Tokens of fill-in-the-middle (FIM, arXiv 2207.14255): the model reads what is before and after a gap, each behind
    a token that says which it is, and then writes the gap.

    prefix, suffix   before the text before the gap, and after it
    middle           before what is written; None: that follows without one
    suffix_first     the text after the gap comes first
    repository, file   before the name of a repository, and before that of each of its files; None: there is none
    """

    prefix: int
    suffix: int
    middle: int | None = None
    suffix_first: bool = False
    repository: int | None = None
    file: int | None = None

    def __post_init__(self) -> None:
        check(self, FIM, "fim: ")

    @property
    def named(self) -> dict[str, int | None]:
        """All ids, by the names of their fields."""
        names = ("prefix", "suffix", "middle", "repository", "file")
        return {f"fim.{name}": getattr(self, name) for name in names}
