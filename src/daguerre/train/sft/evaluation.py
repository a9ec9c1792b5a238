"""Held-out figures of answers: next-token loss, and masked loss by noise level."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from daguerre.models.core.backbone import Backbone
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import BatchLoss
from daguerre.train.monitor import Held, mean_by_level
from daguerre.train.noising import IGNORE, NUM_LEVELS
from daguerre.train.sft.batches import AnswerBatches
from daguerre.train.stage import Stage

MICRO_BATCHES, SEQUENCES, TOKENS = 12, 4, 1024
"""Micro-batches, and the most sequences and tokens of each."""


class AnswerEvaluation:
    """What a run is measured on: the same held-out answers under the same masks at every step.

    num_rows: how many rows its forwards have in all, by which its time is estimated.
    """

    def __init__(self, maker: AnswerBatches, tokenizer: Tokenizer, stage: Stage, device: torch.device) -> None:
        sequences = max(1, min(SEQUENCES, TOKENS // stage.length))
        small = replace(stage, sequences=sequences, corruption="none")
        self.batches = [maker.draw(number, small).to(device) for number in range(MICRO_BATCHES)]
        num_bytes = [len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)]
        self.token_bytes_V = torch.tensor(num_bytes, device=device)
        self.num_rows = sum(batch.tokens.numel() for batch in self.batches)

    @torch.no_grad()
    def measure(self, model: Backbone, attn_impl: str, loss: BatchLoss) -> Held:
        """The figures of a model as it is."""
        nats, num_bytes, sums, counts = 0.0, 0, np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS)
        loss, parts = getattr(loss, "held", loss), dict[str, float]()
        for batch in self.batches:
            report = loss(model, batch, attn_impl)
            if report.clean_count:
                nats += report.clean_sum
                clean = (batch.target != IGNORE) & (batch.level == IGNORE)
                num_bytes += int(self.token_bytes_V[batch.target[clean]].sum())
            sums, counts = sums + report.level_sum, counts + report.level_count
            for name, value in report.parts.items():
                parts[name] = parts.get(name, 0.0) + value / len(self.batches)
        return Held(
            clean_bpb=float(nats / np.log(2) / num_bytes) if num_bytes else float("nan"),
            masked_by_level=tuple(value / np.log(2) for value in mean_by_level(sums, counts)),
            draft_match=(),
            accepted=float("nan"),
            ended=float("nan"),
            ended_early=float("nan"),
            parts=parts,
        )
