"""Where a model comes from: what a source of any kind is asked. `daguerre.models.loading.open_source` makes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daguerre.models.bits import NumberType
from daguerre.models.catalog import Catalog
from daguerre.models.core.config import ModelConfig
from daguerre.models.lora_names import AdapterNames, names_in
from daguerre.models.model_weights import ModelWeights
from daguerre.models.shards import Progress as Progress
from daguerre.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from daguerre.models.core.backbone import Backbone


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model that was loaded from a source.

    family   the name in `daguerre.models.families.FAMILIES`; None for Daguerre's own layout
    decode   the published defaults of generation, as options of `daguerre.Decode`
    sampling how an autoregressive model's publisher has answers drawn, likewise; empty where nothing is said
    concepts names of the concepts of a model with concept heads; None for any other
    """

    weights: ModelWeights
    tokenizer: Tokenizer
    source: ModelSource
    family: str | None = None
    decode: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    concepts: Catalog | None = None

    @property
    def backbone(self) -> Backbone:
        """The backbone, ready for inference, with PyTorch."""
        return self.weights.module()


class ModelSource(ABC):
    """A model's files. What is asked is read then, and once.

    path          a folder or a GGUF file
    is_published  whether it is in a publisher's layout, not in Daguerre's own
    """

    path: Path
    is_published: bool

    @property
    def file_bytes(self) -> int | None:
        """The size of a GGUF file; None for a folder."""
        return None

    @property
    @abstractmethod
    def family_name(self) -> str | None:
        """The name of the family; None for Daguerre's own layout."""

    @abstractmethod
    def config(self) -> ModelConfig:
        """The config, without the weights."""

    @abstractmethod
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, without the weights; None where there is none."""

    @abstractmethod
    def weights_hash(self) -> str:
        """A hash that tells the weights from others: in Daguerre's own layout SHA-256 of the weights file."""

    def weight_files(self) -> list[Path]:
        """The files that hold weights, by which drafts know them; none in Daguerre's own layout."""
        return []

    @abstractmethod
    def load(
        self,
        numbers: NumberType,
        device: str = "cpu",
        *,
        adapter: Path | None = None,
        progress: Progress | None = None,
        defer: bool = False,
    ) -> Loaded:
        """The model, ready for inference, with an adapter merged if one is given; see `loading.load_folder`."""

    def names(self) -> AdapterNames:
        """The names by which an adapter has the model's matrices."""
        return names_in(self.config(), self.family_name)
