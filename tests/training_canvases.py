"""The canvases that decoding has for what a training example shows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from daguerre.canvas import Canvas
from daguerre.models.core.config import ModelConfig
from daguerre.train.noising import IGNORE, Example


def canvases_of(example: Example, config: ModelConfig, infilling: bool = False) -> Iterator[tuple[np.ndarray, Canvas]]:
    """The noisy rows of each span of an example, by their indices, and the canvas that they stand for.

    A clean row's token is given, a noisy one's too unless it is masked. Behind the span of a completion all is open.
    """
    shift = int(config.shift)
    for span in np.unique(example.span[example.num_clean :]):
        rows = np.flatnonzero(example.span == span)
        answers = example.position[rows] + shift
        if config.context == "full":
            answers = answers[(answers > 0) & (answers < len(rows))]
        length = int(max(example.position.max(), answers.max())) + 1
        tokens, opened = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=bool)
        clean = slice(0, example.num_clean)
        tokens[example.position[clean]] = example.tokens[clean]
        tokens[example.position[rows]] = example.tokens[rows]
        opened[example.position[rows][example.target[rows] != IGNORE] + shift] = True
        start, end = int(answers[0]), int(answers[-1]) + 1
        if infilling:
            edges = np.flatnonzero(np.diff(answers) > 1)
            starts, ends = answers[np.append(0, edges + 1)], answers[np.append(edges, -1)] + 1
            gaps = tuple(zip(starts.tolist(), ends.tolist(), strict=True))
        elif config.context == "full":
            gaps = ((start, end),)
        else:
            opened[end:], gaps = True, ((1, length),)
        yield rows, Canvas(tokens, opened, gaps).at((start, end))
