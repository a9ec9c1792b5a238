"""Training objectives in one form:  loss = sum_i w_i [masked_i] CE_i / norm.

An objective has five parts, each named in a recipe: how the noise level t is drawn, the weight w, the layout (which
spans are noisy and what they see), the shift, and the normalizer. In causal and block context one forward carries a
clean stream, in causal context with next-token loss on every token, and behind it noisy rows that see the clean stream
as decoding would. In full context nothing is clean: all rows are one noisy span.

`train/examples.py` writes the rows, `train/batch.py` takes the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from daguerre.errors import InputError
from daguerre.models.core.config import Context
from daguerre.noise.process import Process
from daguerre.noise.schedule import SCHEDULES
from daguerre.train.keys import Section, key

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
CONTEXT_OF: dict[str, Context] = {
    **dict.fromkeys(("next_token", "drafts", "groups", "blocks", "canvas", "suffix", "infill"), "causal"),
    **dict.fromkeys(("full", "full_suffix", "full_gap"), "full"),
    "bd3": "block",
}
"""The layouts, and the context that each is for."""


def times_full(u: float) -> float:
    """t = 1: every token of a span is masked (a one-shot draft)."""
    return 1.0


def times_uniform(u: float) -> float:
    """t uniform on (0, 1]; `u` is a stratified uniform number, so t is stratified over the batch."""
    return max(u, 1e-6)


def times_half_full(u: float) -> float:
    """Half of the spans fully masked, as they are when decoding starts; the other half uniform on (0, 1]."""
    return 1.0 if u >= 0.5 else times_uniform(2 * u)


def times_light(u: float) -> float:
    """Half of the spans without a mask, as a finished text that is to be corrected; the other half up to one half."""
    return max(0.0, u - 0.5)


def times_clipped(u: float) -> float:
    """t uniform on [0.3, 0.8]: the clipped schedule of BD3-LM for blocks of 16 (lower gradient variance, no bound)."""
    return 0.3 + 0.5 * u


def weight_one(share: float, rate: float) -> float:
    """Plain cross-entropy: best at small budgets (Sahoo et al. 2026)."""
    return 1.0


def weight_elbo(share: float, rate: float) -> float:
    """rate/share = -alpha'/(1-alpha): the negative ELBO; on the linear schedule 1/t."""
    return rate / share


def weight_clipped(share: float, rate: float) -> float:
    """The weight of the negative ELBO, at most 5."""
    return min(rate / share, 5.0)


TIMES = {
    "full": times_full,
    "uniform": times_uniform,
    "half_full": times_half_full,
    "light": times_light,
    "clipped": times_clipped,
}
WEIGHTS = {"one": weight_one, "elbo": weight_elbo, "clipped": weight_clipped}
NORMALIZERS = ("tokens", "masked")
TEACHERS = ("data", "self")
PROCESS_LOSSES = {"one": "cross_entropy", "elbo": "nelbo", "clipped": "dynamic_loss"}
"""What a weight stands for where tokens are replaced by others: the method of the process."""
MIN_TIME = 1e-4
"""t is at least this far from 0 and 1 where tokens are replaced by others: at the ends the losses are 0/0."""


@dataclass(frozen=True, kw_only=True)
class Parts(Section):
    """What a recipe says of an objective; see `Objective`."""

    layout: str = key("what is noisy, and what it sees (`daguerre.train.objectives`)", names=CONTEXT_OF)
    times: str = key("how the noise level is drawn; full: all is masked", "uniform", names=TIMES)
    schedule: str = key("share of masks at each time (docs/noise.md)", "linear", names=SCHEDULES)
    weight: str = key("weight of the masked loss by noise level; clipped: elbo, at most 5", "one", names=WEIGHTS)
    normalizer: str = key("divides the loss: clean tokens, or weights of masks", "tokens", names=NORMALIZERS)
    clean: float = key("weight of next-token loss on clean rows", 1.0)
    masked: float = key("factor of the masked loss, besides `weight`", 1.0)
    copies: int = key("noisy versions of each gap, at different levels; layout infill", 1, low=1)
    left: float = key("share of spans masked up to their right end, as in decoding", 0.0, low=0, high=1)
    next: float = key("weight of the first masked token of such spans", 1.0, above=0)
    teacher: str = key("how spans continue: as the data, or (self) as the model's greedy text", "data", names=TEACHERS)
    errors: float = key("share of visible tokens replaced by wrong ones to correct", 0.0, low=0, below=1)
    certainty: float = key("weight of the entropy of masked rows that are right already", 0.0, low=0)
    group: int = key("tokens of a draft; layout groups", 4, low=1)


@dataclass(frozen=True, kw_only=True)
class Objective(Parts):
    """The five parts. `layout` is a key of CONTEXT_OF; `clean` weighs the next-token loss of the clean stream.

    A time t drawn by `times` masks a share 1 - alpha(t) of a span's tokens on `schedule`, and `weight` is a function of
    that share (exact-k: the masks that were drawn, not the mean) and the rate -alpha'(t).

    `normalizer`: "tokens" divides by the number of clean tokens of the batch, whatever is masked; "masked" by the sum
    of the weights, so that a batch with few masks counts as much as one with many. Without `shift` a row predicts
    itself, so a clean row has nothing to predict and there is no next-token loss. `masked` weighs the masked loss, on
    top of `weight`; `copies` is how many noisy versions of its gaps an infilling example has, at different levels.
    `left` is the share of spans whose visible tokens are the leftmost ones, as decoding from left to right has them: a
    gap's end is decided in that state, which masks at random hardly ever show. In such a span the first masked token,
    which is what decoding draws, weighs `next` times as much.

    Self-generated tokens are put in place just before the forward (`train/self_generated.py`):

    teacher    "self": spans continue with the model's greedy text instead of the data's (sequence distillation, Kim
               and Rush 2016, from the same weights), so that drafts learn what the model would write one by one
    errors     share of a span's visible tokens that are replaced, half by random tokens and half by the model's wrong
               guesses; every visible token is then a target (token-to-token editing, LLaDA2.1)
    certainty  weight of the entropy of masked rows whose most likely token is right (CAP, LLaDA2.0); in the layout
               "groups" see `train/trajectory.py`

    `group` is how many masked rows a group has, and so the tokens of a draft, in the layout "groups".

    `shift`, `block_size` and `process` are facts of the model that is trained, not of a recipe's mixture. `process` is
    None for the absorbing one. Another replaces tokens by others, each independently with the probability of t on the
    process's schedule; then the loss is the process's, on every token that may have been replaced: see PROCESS_LOSSES.
    """

    shift: bool = True
    block_size: int | None = None
    process: Process | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_spans()
        if self.layout == "next_token" and not self.shift:
            raise InputError("the next_token layout needs a shifted model: without `shift` nothing is left to predict")
        if self.layout == "groups" and not self.shift:
            raise InputError("the groups layout is for drafts of a shifted model: without `shift` none are verified")
        if self.process is not None:
            self._check_process(self.process)

    def _check_spans(self) -> None:
        if self.copies > 1 and self.layout != "infill":
            raise InputError(f"copies={self.copies}: more than one only for the infill layout")
        if self.teacher == "self" and (self.layout not in ("drafts", "blocks") or not self.shift):
            raise InputError('teacher = "self" continues spans that see the text before: drafts and blocks, shifted')
        if self.errors and (self.teacher == "self" or not self.shift or self.layout == "next_token"):
            raise InputError('errors are planted in spans of the data, in a shifted model: leave out teacher = "self"')

    def _check_process(self, process: Process) -> None:
        name = type(process).__name__.lower()
        if self.context != "full" or self.shift:
            raise InputError(f"the {name} process is trained in full context without a shift: its layout is full")
        if self.schedule != "linear" or self.times not in ("uniform", "clipped"):
            raise InputError(f"the {name} process has its own schedule, and times 'uniform' or 'clipped'")
        if not hasattr(process, PROCESS_LOSSES[self.weight]):
            raise InputError(f"the {name} process has no weight {self.weight!r}: use 'one' or 'elbo'")

    @property
    def loss(self) -> Loss | None:
        """(logits, x_0, x_t, t) to nats; None for cross-entropy of what is masked."""
        return None if self.process is None else getattr(self.process, PROCESS_LOSSES[self.weight])

    @property
    def num_drafted(self) -> int:
        """How many masked rows a group has, in the layout "groups"; 0 in others."""
        return self.group if self.layout == "groups" else 0

    @property
    def context(self) -> Context:
        """The context that the layout is for."""
        return CONTEXT_OF[self.layout]
