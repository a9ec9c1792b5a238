"""What is asked of a model before noise is undone; without PyTorch."""

from __future__ import annotations

from typing import Any

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig


def check_process(config: ModelConfig) -> None:
    """UnsupportedError for a model without the mask that its process needs."""
    if config.process != "uniform" and config.mask_id is None:
        raise UnsupportedError('this model has no mask, so there is no noise that it undoes: use mode "ar"')


def check_inside(t_B: Any) -> None:
    """InputError unless every t, of an array or a tensor, is in (0, 1): at the ends some weight of a loss is 0/0."""
    if not ((t_B > 0) & (t_B < 1)).all():
        raise InputError("a loss needs noise levels t strictly between 0 and 1: draw t from (0, 1)")


def check_step(t: float, s: float) -> None:
    """InputError unless 0 <= s < t <= 1."""
    if not 0 <= s < t <= 1:
        raise InputError(f"the posterior goes from t to an earlier s: 0 <= s < t <= 1, not s={s}, t={t}")
