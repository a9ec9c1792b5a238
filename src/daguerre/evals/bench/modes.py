"""Every mode of a model, accuracy beside speed: next-line completion of held-out Python (`daguerre.evals.completion`).

All settings complete the same lines in one process, each line in every setting in turn, in the type that `load`
chooses.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from daguerre.decoding.request import Decode
from daguerre.evals.completion import LINE_TOKENS, grid, next_line_completion
from daguerre.evals.lines import make_examples
from daguerre.evals.workers import Progress
from daguerre.heldout import load_frozen
from daguerre.model import load


def measure(options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """options: model, lines, grid_lines."""
    model = load(options["model"])
    examples = make_examples(load_frozen(), options["lines"])
    settings = [Decode(mode="speculative"), Decode(mode="full"), *grid()]
    result = next_line_completion(
        model, examples, settings=settings, grid_lines=options["grid_lines"], progress=progress
    )
    return {
        "parameters": model.num_parameters,
        "line_tokens": LINE_TOKENS,
        "lines": len(examples),
        "rows": [asdict(row) for row in result.rows],
        "best_no_worse": result.best_no_worse,
    }
