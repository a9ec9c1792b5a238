"""The backbone of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.gemma import GemmaBackbone


def make_backbone(config: ModelConfig) -> Backbone:
    """A backbone with the core that the configuration asks for; its weights are those of PyTorch's initialization."""
    return Backbone(config) if config.gemma is None else GemmaBackbone(config)


def make_shapes(config: ModelConfig) -> Backbone:
    """A backbone on the meta device: its weights have shapes and no memory."""
    with torch.device("meta"), _Uninitialized():
        return make_backbone(config)


class _Uninitialized(TorchFunctionMode):
    """Leaves weights as they are: to draw numbers that nobody sees PyTorch would import hundreds of modules."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)
