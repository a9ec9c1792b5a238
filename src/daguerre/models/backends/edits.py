"""What every backend asks of an edit of hidden states."""

from __future__ import annotations

from daguerre.errors import no_concept_heads
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Edit


def check_edit(config: ModelConfig, edit: Edit, num_rows: int) -> None:
    """UnsupportedError for a model without the heads that an edit of so many rows reads."""
    num = len(edit.concepts)
    assert edit.write.shape == (num, config.width) and edit.shift.shape == edit.scale.shape == edit.ban.shape
    assert edit.shift.shape == (num_rows, num) and (edit.mask is None or edit.mask.shape == (num, config.vocab_size))
    if not edit.scale.any():
        return
    if config.concepts is None:
        raise no_concept_heads("scaling by the weight of a concept")
    last = config.concepts.known + config.concepts.discovered
    assert ((edit.concepts >= 0) & (edit.concepts < last)).all(), "a concept that the model does not have"
