"""The score of a label, one token a forward: the reference of `decide`."""

from __future__ import annotations

import numpy as np

from daguerre.canvas import Canvas
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Logits
from daguerre.models.session import compute
from daguerre.sampling.logits import log_softmax
from daguerre.scoring.decisions import ScoredLabel, predicted_span


def score_slowly(denoiser: BackboneDenoiser, text: ScoredLabel) -> float:
    """The score of one text alone, one token a forward, with the rows of decoding."""
    config = denoiser.config
    end = max(text.stop, predicted_span(config, text, text.stop - 1)[1])
    canvas = Canvas.lay_out([text.ids[: text.start], text.ids[end:]], [end - text.start], config.placeholder)
    session = denoiser.session(canvas, "none")
    total = 0.0
    for position in range(text.start, text.stop):
        now = canvas.at(predicted_span(config, text, position))
        answer = compute(session.ask(now, np.array([position]), Logits()), denoiser.backend)
        assert answer.logits is not None
        total += float(log_softmax(answer.logits)[0, text.ids[position]])
        tokens, opened = canvas.tokens.copy(), canvas.open.copy()
        tokens[position], opened[position] = text.ids[position], False
        canvas = Canvas(tokens, opened, canvas.gaps)
    return total
