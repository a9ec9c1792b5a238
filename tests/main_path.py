"""The operations on texts for any denoiser and tokenizer, without a `Model` and its defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from daguerre.decoding import generate as decoding
from daguerre.decoding.generate import MAX_TOKENS as MAX_TOKENS
from daguerre.decoding.generate import Request, run
from daguerre.decoding.result import Result, StreamEvent
from daguerre.decoding.running import Running
from daguerre.models.denoiser import Denoiser
from daguerre.models.tokenizer import Tokenizer


def _result(operation: str, denoiser: Denoiser, tokenizer: Tokenizer, *values: Any, **named: Any) -> Result:
    on_step = named.pop("on_step", None)
    return run(denoiser, tokenizer, Request.of(operation, *values, **named), on_step)


generate: Callable[..., Result] = partial(_result, "generate")
infill: Callable[..., Result] = partial(_result, "infill")
fill: Callable[..., Result] = partial(_result, "fill")
edit: Callable[..., Result] = partial(_result, "edit")


def stream(denoiser: Denoiser, tokenizer: Tokenizer, *values: Any, **named: Any) -> Iterator[StreamEvent]:
    return decoding.stream(denoiser, tokenizer, Request.of("stream", *values, **named))


def start(denoiser: Denoiser, tokenizer: Tokenizer, *values: Any, **named: Any) -> Running:
    request = Request.of("stream", *values, **named, heal=False, changeable=True)
    return decoding.start(denoiser, tokenizer, request)
