"""Suppression: how often a forbidden concept is written all the same, in places where it is likely.

Prompts are held-out files cut just before an instance of the concept. One is kept if KEPT_USES of SAMPLES continuations
without steering use the concept (`endings.uses`). From those that are kept the concept is forbidden, first by steering
alone, and then also by a language constraint where the concept has one, in as many generations as asked for, spread
evenly over the prompts. Steering has its default strength; fewer generations say what others do. A rate is the share of
generations that use the concept; its interval takes generations of a prompt together. A concept with fewer than
FEWEST_PROMPTS prompts is reported and has no bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daguerre.concepts.endings import uses
from daguerre.concepts.labels import Labels
from daguerre.concepts.prompts import FilePrompt, before_uses
from daguerre.concepts.taxonomy import Concept, taxonomy
from daguerre.errors import InputError
from daguerre.evals.concepts.partial_results import PartialResults
from daguerre.evals.concepts.writing import Write, figures
from daguerre.evals.workers import Progress

SAMPLES, KEPT_USES = 20, 4
FEWEST_PROMPTS, MOST_PROMPTS, MOST_TRIED = 25, 50, 200
STRENGTHS = (5.0, 20.0)
"""Strengths of steering beside the default one, in logits."""
REFERENCE = 4
"""Where nothing is forbidden, and with other strengths, there are so many times fewer generations."""
MOST_USED, LEAST_PARSING = 0.02, 0.95
"""Bars: the largest rate by steering alone (with a constraint it is 0), and the least share of the parse rate without
steering that is left."""
FORBIDDEN = (
    *("print_call", "lambda_expression", "fstring", "list_comprehension", "assert_statement", "while_loop"),
    *("comment", "docstring", "raise_statement", "raises_value_error", "none_check", "type_check", "return_none"),
    *("broad_except", "ternary_expression", "pass_statement", "with_statement"),
)
"""Beside the risk group."""
STEERING, CONSTRAINT, NONE = "steering", "steering and constraint", "nothing forbidden"


def forbidden_concepts() -> list[Concept]:
    """The concepts whose suppression is measured: the risk group, and FORBIDDEN."""
    known = taxonomy()
    return [one for one in known.concepts if one.group == "risk"] + [known.named(name) for name in FORBIDDEN]


def measure_suppression(
    texts: Sequence[tuple[int, str, Labels]],
    concepts: Sequence[Concept],
    write: Write,
    num: int,
    kept: PartialResults,
    progress: Progress,
    seed: int = 0,
) -> dict[str, Any]:
    """The part "suppression" of the report: an entry for each concept. num: generations for a concept and a way."""
    rows = kept.each("suppression", concepts, lambda one: _measure(texts, one, write, num, seed), progress)
    return {"generations": num, "samples": SAMPLES, "kept_uses": KEPT_USES, "rows": rows}


def _measure(
    texts: Sequence[tuple[int, str, Labels]], concept: Concept, write: Write, num: int, seed: int
) -> dict[str, Any]:
    """The figures of one concept."""
    tried = before_uses(texts, concept, MOST_TRIED)
    found = kept_prompts(tried, concept, write, seed)
    row: dict[str, Any] = {"concept": concept.name, "group": concept.group, "tried": len(tried), "prompts": len(found)}
    row["has_bar"] = len(found) >= FEWEST_PROMPTS
    if not found:
        return row | {"ways": []}
    ways: list[tuple[str, dict[str, Any]]] = [(NONE, {}), (STEERING, {"forbid": [concept.name]})]
    for strength in STRENGTHS:
        operation = {"kind": "forbid", "concepts": [concept.name], "strength": strength}
        ways.append((f"{STEERING}, {strength:g} logits", {"steer": [operation]}))
    ways.append((CONSTRAINT, {"forbid": [concept.name], "forbid_exactly": True}))
    out = []
    for name, controls in ways:
        try:
            # The samples that chose the prompts would say too much: others are drawn, with another seed.
            some = num if name in (STEERING, CONSTRAINT) else max(1, num // REFERENCE)
            out.append({"way": name, **figures(found, concept, write, some, seed + 1, controls)})
        except InputError as error:
            if name != CONSTRAINT:
                raise
            row["no_constraint"] = str(error)
    return row | {"ways": out}


def kept_prompts(tried: Sequence[FilePrompt], concept: Concept, write: Write, seed: int) -> list[FilePrompt]:
    """At most MOST_PROMPTS prompts from which KEPT_USES of SAMPLES continuations use a concept."""
    out = list[FilePrompt]()
    for prompt in tried:
        written = write(prompt.text, SAMPLES, seed)
        if sum(uses(concept, prompt.text, text) for text in written) >= KEPT_USES:
            out.append(prompt)
        if len(out) == MOST_PROMPTS:
            break
    return out
