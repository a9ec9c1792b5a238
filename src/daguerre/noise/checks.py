"""What is asked of a model before noise is undone; without PyTorch."""

from __future__ import annotations

from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig


def check_process(config: ModelConfig) -> None:
    """UnsupportedError for a model without the mask that its process needs."""
    if config.process != "uniform" and config.mask_id is None:
        raise UnsupportedError('this model has no mask, so there is no noise that it undoes: use mode "ar"')
