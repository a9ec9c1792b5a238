"""PyTorch, which is no part of a bare installation: what needs it asks for it here, when it computes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

from daguerre.errors import MissingExtra

P = ParamSpec("P")
R = TypeVar("R")


def pytorch() -> Any:
    """The module `torch`. MissingExtra, which says how to install it, where it is not there."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "torch") from None
    return torch


def has_pytorch() -> bool:
    """Whether PyTorch is installed; it is not imported."""
    try:
        return find_spec("torch") is not None
    except (ImportError, ValueError):
        return False


def without_gradients(function: Callable[P, R]) -> Callable[P, R]:
    """A function that PyTorch computes without gradients."""

    @functools.wraps(function)
    def call(*values: P.args, **options: P.kwargs) -> R:
        with pytorch().no_grad():
            return function(*values, **options)

    return call
