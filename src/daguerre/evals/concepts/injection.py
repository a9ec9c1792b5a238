"""Injection: does a concept that is asked for appear in the next tokens?

Prompts are held-out files cut just before a statement of a function. Three ways: nothing is asked; steering adds the
concept; a comment above the statement names the concept and says what it is. A continuation counts if it uses the
concept (`endings.uses`); a comment of ours does not count, since it is part of the prompt.

The strength of steering, and for how many tokens it lasts, are chosen for each concept on other prompts than those that
are measured: those with the largest rate of use times parse rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from daguerre.concepts.labels import Labels
from daguerre.concepts.prompts import FilePrompt, before_statements
from daguerre.concepts.taxonomy import Concept, taxonomy
from daguerre.errors import DataError
from daguerre.evals.concepts.partial_results import PartialResults
from daguerre.evals.concepts.suppression import NONE
from daguerre.evals.concepts.writing import NEW_TOKENS, Write, figures
from daguerre.evals.workers import Progress

STEERED, COMMENT = "steering", "a comment"
STRENGTHS = (4.0, 6.0, 8.0, 10.0)
LASTING = (3, 6, 16, NEW_TOKENS)
PROMPTS, TUNING = 60, 20
"""Prompts that are measured and, beside them, prompts on which strengths are chosen."""
LEAST_USED, LEAST_PARSING = 0.7, 0.9
ASKED = (
    *("for_loop", "while_loop", "if_else", "try_block", "with_statement", "raise_statement", "raises_value_error"),
    *("assert_statement", "return_statement", "return_bool", "yield_expression", "list_comprehension", "slicing"),
    *("dict_comprehension", "lambda_expression", "ternary_expression", "fstring", "none_check", "type_check"),
    *("membership_test", "print_call", "string_join", "dict_literal", "float_literal", "comment"),
    "augmented_assignment",
)


def asked_concepts() -> list[Concept]:
    """The concepts whose injection is measured."""
    return [taxonomy().named(name) for name in ASKED]


def measure_injection(
    texts: Sequence[tuple[int, str, Labels]],
    concepts: Sequence[Concept],
    write: Write,
    num: int,
    kept: PartialResults,
    progress: Progress,
    seed: int = 0,
) -> dict[str, Any]:
    """The part "injection" of the report: an entry for each concept, and means. num: generations for a concept and a
    way. DataError for too few texts.
    """
    prompts = before_statements(texts, PROMPTS + TUNING, seed)
    tuning = prompts[: len(prompts) * TUNING // (PROMPTS + TUNING)]
    measured = prompts[len(tuning) :]
    if not tuning:
        raise DataError("injection needs more held-out files with functions: give more documents, or leave it out")
    rows = kept.each("injection", concepts, lambda one: _measure(one, tuning, measured, write, num, seed), progress)
    means = {
        way: {name: float(np.mean([row["ways"][way][name] for row in rows])) for name in ("rate", "parses")}
        for way in (NONE, STEERED, COMMENT)
    }
    return {"prompts": len(measured), "tuning": len(tuning), "generations": num, "rows": rows, "means": means}


def _measure(
    concept: Concept, tuning: Sequence[FilePrompt], prompts: Sequence[FilePrompt], write: Write, num: int, seed: int
) -> dict[str, Any]:
    """The figures of one concept."""
    curve = [
        {"strength": strength, "tokens": tokens, **figures(tuning, concept, write, 2 * len(tuning), seed, controls)}
        for strength, tokens in product(STRENGTHS, LASTING)
        for controls in [added(concept, strength, tokens)]
    ]
    best = max(curve, key=lambda one: one["rate"] * one["parses"])
    strength, tokens = best["strength"], best["tokens"]
    commented = [FilePrompt(prompt.file, with_comment(prompt.text, concept)) for prompt in prompts]
    ways = {
        NONE: figures(prompts, concept, write, num, seed, {}),
        STEERED: figures(prompts, concept, write, num, seed, added(concept, strength, tokens)),
        COMMENT: figures(commented, concept, write, num, seed, {}),
    }
    chosen = {"strength": strength, "tokens": tokens}
    return {"concept": concept.name, "lexical": concept.lexical, **chosen, "curve": curve, "ways": ways}


def added(concept: Concept, strength: float, tokens: int) -> dict[str, Any]:
    """The controls that add a concept by so many logits until so many tokens are written."""
    operation = {"kind": "add", "concepts": [concept.name], "strength": strength, "schedule": "until", "tokens": tokens}
    return {"steer": [operation]}


def with_comment(prompt: str, concept: Concept) -> str:
    """A prompt that ends before a statement, with a comment above the statement."""
    indent = prompt[prompt.rfind("\n") + 1 :]
    return f"{prompt}# {concept.name.replace('_', ' ')}: {concept.description}\n{indent}"
