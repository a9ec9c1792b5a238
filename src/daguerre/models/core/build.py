"""The backbone of a configuration."""

from __future__ import annotations

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.gemma import GemmaBackbone


def make_backbone(config: ModelConfig) -> Backbone:
    """A backbone with the core that the configuration asks for; its weights are those of PyTorch's initialization."""
    return Backbone(config) if config.gemma is None else GemmaBackbone(config)
