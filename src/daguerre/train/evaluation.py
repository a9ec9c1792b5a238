"""What a run is measured on: fixed batches, and prompts of plain text, of the validation split, drawn once: the
same for every step, and for a run that is resumed.

`num_rows` is how many rows the forwards of a measurement have in all, by which its time is estimated.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import BatchLoss
from daguerre.train.data import MicroBatches
from daguerre.train.monitor import DRAFT, SLACK, HeldOut, ends_gaps, held_losses, held_out
from daguerre.train.sft.batches import AnswerBatches
from daguerre.train.stage import Stage

VAL_SEED = 1
VAL_MICRO_BATCHES, VAL_SEQUENCES, VAL_TOKENS = 12, 4, 1024
"""Micro-batches, and the most sequences and tokens of each."""
PROMPTS, PROMPT_LENGTH = 32, 96


class Evaluation:
    """Windows of plain text of the first stage's length, and prompts."""

    def __init__(self, maker: MicroBatches, config: ModelConfig, length: int, device: torch.device) -> None:
        sequences = _sequences(length)
        self.batches = [maker.make(i, sequences, length).to(device) for i in range(VAL_MICRO_BATCHES)]
        rng = np.random.default_rng(VAL_SEED)
        drawn: list[np.ndarray] = []
        for _ in range(50 * PROMPTS):
            window = maker.windows.draw(PROMPT_LENGTH, rng)
            if len(window) == PROMPT_LENGTH and len(drawn) < PROMPTS:
                drawn.append(window)
        prompts = np.stack(drawn) if drawn else np.full((1, 2), config.bos_id)
        self.prompts_BP = torch.from_numpy(prompts).to(device)
        self.token_bytes_V = _token_bytes(maker.cutter.tokenizer, device)
        self.num_rows = sum(batch.tokens.numel() for batch in self.batches)
        num, length = prompts.shape
        self.num_rows += num * (length + 2 * DRAFT) if config.can_draft else 0
        self.num_rows += 2 * num * (length + SLACK) if ends_gaps(config, length) else 0

    def measure(self, model: Backbone, attn_impl: str, loss: BatchLoss) -> HeldOut:
        """The figures of a model as it is."""
        return held_out(model, self.batches, self.prompts_BP, self.token_bytes_V, attn_impl, loss)


class AnswerEvaluation:
    """Answers to prompts, under the same masks at every step."""

    def __init__(self, maker: AnswerBatches, tokenizer: Tokenizer, stage: Stage, device: torch.device) -> None:
        small = replace(stage, sequences=_sequences(stage.length), corruption="none")
        self.batches = [maker.draw(number, small).to(device) for number in range(VAL_MICRO_BATCHES)]
        self.token_bytes_V = _token_bytes(tokenizer, device)
        self.num_rows = sum(batch.tokens.numel() for batch in self.batches)

    def measure(self, model: Backbone, attn_impl: str, loss: BatchLoss) -> HeldOut:
        """The figures of a model as it is."""
        return held_losses(model, self.batches, self.token_bytes_V, attn_impl, loss)


def _sequences(length: int) -> int:
    return max(1, min(VAL_SEQUENCES, VAL_TOKENS // length))


def _token_bytes(tokenizer: Tokenizer, device: torch.device) -> torch.Tensor:
    return torch.tensor([len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)], device=device)
