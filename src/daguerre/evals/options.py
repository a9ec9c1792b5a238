"""What is evaluated, how much of it, and with which backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from daguerre.errors import InputError
from daguerre.evals.bits import BOUND_WINDOWS
from daguerre.models.load_options import BackendName, Quantization


@dataclass(frozen=True, kw_only=True)
class EvalLimits:
    """How much is measured; None: all there is.

    exact_windows, bound_windows, samples, layouts  see `bits_per_byte`
    lines       lines that are infilled (at known and at unknown length), completed and corrected
    grid_lines  of the lines completed, how many every setting is tried on; promising settings run on all
    spans       token spans of each length
    texts       prompts continued in every number of steps
    edits       passages that are edited, in every setting
    literals    literals of each type, and as many arguments of calls
    prompts     prompts that drafts and speculation continue
    questions   questions of each kind that decisions are tested on; calibrations are fitted to a quarter as many
    concept_spans, control_spans   spans that concepts are detected in, and spans that controls learn from
    generations, injections        texts for a concept that is forbidden, and for one that is asked for, in each way
    """

    layouts: tuple[int | str, ...] | None = None
    exact_windows: int | None = None
    bound_windows: int | None = BOUND_WINDOWS
    samples: int | None = None
    lines: int = 200
    grid_lines: int = 100
    spans: int = 200
    texts: int = 16
    edits: int = 100
    literals: int = 100
    prompts: int = 256
    questions: int = 1000
    concept_spans: int = 6000
    control_spans: int = 12_000
    generations: int = 2000
    injections: int = 240

    def __post_init__(self) -> None:
        lows = {"exact_windows": 2, "bound_windows": 2, "samples": 2, "lines": 0, "prompts": 2}
        lows |= {"grid_lines": 1, "spans": 0, "texts": 0, "edits": 0, "literals": 0, "questions": 0}
        lows |= dict.fromkeys(("concept_spans", "control_spans", "generations", "injections"), 1)
        for name, low in lows.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise InputError(f"{name} must be {low} or more, not {value}")


DEFAULT = EvalLimits()
QUICK_TASKS = ("bits", "infill", "completion")
"""What a first look measures: on the slowest processor, AVX2 alone, it takes two minutes."""
QUICK = EvalLimits(
    exact_windows=24,
    bound_windows=4,
    lines=12,
    grid_lines=4,
    spans=8,
    texts=1,
    edits=8,
    literals=4,
    prompts=16,
    questions=40,
    concept_spans=256,
    control_spans=512,
    generations=40,
    injections=40,
)


OF_CONCEPTS = ("plain", "twin", "corpus", "keep", "parts")
"""Options of task "concepts" alone."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Options of an evaluation.

    what            names of `evals.tasks.TASKS`; None: all that the model's context and the documents allow
    seed            of every random choice
    workers         processes that examples are spread over, with the same results; "bits", "draft" and "speculation"
                    run in this one
    dtype, backend, quantize  of a model that is named, as in `daguerre.load`; "draft" is always computed by PyTorch
    revision, family, adapter, tokenizer, rope_scaling, drafts, concepts  likewise

    ifeval          of task "instructions": the file of IFEval's prompts, of which as many as `prompts` says are drawn
    decode          of task "instructions": options of decoding, as "name=value"; greedy answers in the default mode
    teacher         of task "teacher": the autoregressive model that the model was, as `daguerre.load` has it
    answers         of task "teacher": a folder of its answers (`daguerre data self`), of which `prompts` are used

    Of task "concepts" alone, None for none:

    plain   a model without concepts, whose hidden states are a control and whose bits per byte a reference (for the
            tax, of the same training without heads)
    twin    the same training with another seed; None: whether its concepts are the same is not measured
    corpus  a folder of token shards, for training text and for prompts; None: there are no controls
    keep    a folder in which finished parts are kept, and from which they are taken
    parts   names of `evals.concepts.measure.PARTS`; None: all
    """

    what: Sequence[str] | None = None
    limits: EvalLimits = DEFAULT
    seed: int = 0
    workers: int = 1
    dtype: str = "float32"
    backend: BackendName | None = None
    quantize: Quantization | None = None
    revision: str | None = None
    family: str | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    rope_scaling: str | None = None
    drafts: str | None = None
    concepts: str | None = None
    ifeval: Path | None = None
    decode: Sequence[str] | None = None
    teacher: str | None = None
    answers: Path | None = None
    plain: str | None = "default"
    twin: str | None = None
    corpus: Path | None = None
    keep: Path | None = None
    parts: Sequence[str] | None = None

    def __post_init__(self) -> None:
        given = [name for name in OF_CONCEPTS if getattr(self, name) != getattr(EvalOptions, name)]
        if given and "concepts" not in (self.what or ()):
            raise InputError(f'{given[0]} belongs to what "concepts": name that task, or leave {given[0]} out')
        if self.workers < 1:
            raise InputError(f"workers must be 1 or more, not {self.workers}")

    @property
    def chosen(self) -> dict[str, Any]:
        """Which model is meant, beside its name: options of `daguerre.load`."""
        names = ("revision", "family", "adapter", "tokenizer", "rope_scaling", "drafts", "concepts")
        named = {name: getattr(self, name) for name in names}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def compared(self) -> dict[str, Any]:
        """What else the figures depend on, where it is given."""
        given = {"decode": list(self.decode or ()), "teacher": self.teacher, "answers": self.answers}
        return {name: str(value) for name, value in given.items() if value}

    @classmethod
    def of(cls, options: EvalOptions | None = None, **given: Any) -> EvalOptions:
        """`options`, or the defaults, with what is given in place of their fields."""
        return cls(**given) if options is None else replace(options, **given)

    @classmethod
    def flat(cls, limits: EvalLimits, given: Mapping[str, Any]) -> EvalOptions:
        """Options from names of their fields and of those of `EvalLimits`; what is not given is as in `limits`."""
        names = {field.name for field in fields(EvalLimits)}
        changed = {name: value for name, value in given.items() if name in names}
        rest = {name: value for name, value in given.items() if name not in names}
        return cls(limits=replace(limits, **changed), **rest)
