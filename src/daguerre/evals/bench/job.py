"""What one side of a benchmark runs, and what one request of it took. Both travel between processes as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from daguerre.errors import InputError, unknown
from daguerre.evals import drafts
from daguerre.heldout import load_frozen
from daguerre.model import DTYPES, Model, load
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.model_weights import torch_type
from daguerre.models.processor import native_dtype
from daguerre.models.tokenizer import Tokenizer

FORCED = 4
"""Tokens that a forward is made to commit where weights are random, since no policy is sure of anything there."""
RANDOM = "random weights"
"""What reports call a model of random weights."""
TOKENIZERS = {2048: "2k", 8192: "8k"}
PROMPTS = 16
remarks: dict[str, str] = {}
"""What this process found out about a package, by its name; the report has it behind the package's version."""


@dataclass(frozen=True, kw_only=True)
class BenchShape:
    """A model's shape, and a request's: a prompt of `prompt_tokens`, <bos> included, and `new_tokens` after it."""

    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    mlp_width: int
    vocab_size: int
    prompt_tokens: int = 128
    new_tokens: int = 128

    def __post_init__(self) -> None:
        if self.vocab_size not in TOKENIZERS:
            known = " or ".join(str(size) for size in TOKENIZERS)
            raise InputError(f"a shape needs a vocabulary that comes with the package, not {self.vocab_size}: {known}")


YARDSTICK = BenchShape(width=512, num_layers=8, num_heads=8, num_kv_heads=8, mlp_width=1408, vocab_size=8192)
"""The shape that other engines are measured at: 34M parameters with an output matrix, 30M where it is the embedding."""


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """One side in one process.

    side     a name of `sides.SIDES`
    threads  of the CPU
    shape    of the request, and of the model where its weights are random
    model    a name that `daguerre.load` takes; None: random weights
    dtype    of sides whose name has no type, as `daguerre.load` takes it
    """

    side: str
    threads: int
    shape: BenchShape
    model: str | None = None
    dtype: str = "auto"

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> BenchJob:
        return cls(**(values | {"shape": BenchShape(**values["shape"])}))


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One request.

    seconds        from the request to its last token, prefill included
    first_seconds  until the first tokens were there, `first_tokens` of them
    tokens         what was written
    forwards       of the model, where the side counts them
    rows           that those computed, clean ones included; likewise
    """

    seconds: float
    first_seconds: float
    first_tokens: int
    tokens: tuple[int, ...]
    forwards: int | None = None
    rows: int | None = None

    @property
    def tokens_per_second(self) -> float:
        """End to end."""
        return len(self.tokens) / self.seconds

    @property
    def decode_tokens_per_second(self) -> float:
        """After the first tokens, which the prefill brings."""
        return (len(self.tokens) - self.first_tokens) / max(self.seconds - self.first_seconds, 1e-9)


Runner = Callable[[Sequence[int]], Timing]
"""Runs one request: the tokens of its prompt, <bos> first."""


def torch_dtype(name: str) -> torch.dtype:
    """The type of that name; "auto" is the one that this processor multiplies natively."""
    if name != "auto" and name not in DTYPES:
        raise unknown("dtype", name, ("auto", *DTYPES))
    return native_dtype() if name == "auto" else torch_type(name)


def random_config(shape: BenchShape, max_positions: int | None = None) -> ModelConfig:
    """A causal, shifted model of this shape, with room for one request, or for `max_positions`."""
    tokenizer = Tokenizer.default(TOKENIZERS[shape.vocab_size])
    return ModelConfig(
        vocab_size=shape.vocab_size,
        width=shape.width,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        mlp_width=shape.mlp_width,
        max_positions=max_positions or shape.prompt_tokens + shape.new_tokens,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        mask_id=tokenizer.mask_id,
        null_id=tokenizer.null_id,
    )


def random_model(shape: BenchShape, dtype: str, max_positions: int | None = None) -> Model:
    """Seeded random weights of this shape."""
    backbone = Backbone(random_config(shape, max_positions)).initialize(0, zero_outputs=False)
    tokenizer = Tokenizer.default(TOKENIZERS[shape.vocab_size])
    return Model(backbone.to(torch_dtype(dtype)).eval().requires_grad_(False), tokenizer)


def random_tokens(config: ModelConfig, shape: tuple[int, ...]) -> np.ndarray:
    """Seeded ordinary tokens, int64."""
    known = config.ordinary_ids
    drawn: np.ndarray = known[np.random.default_rng(0).integers(0, len(known), shape)]
    return drawn


def model_of(job: BenchJob, dtype: str | None = None) -> Model:
    """The model that a job is about, in the job's type or another."""
    dtype = dtype or job.dtype
    if job.model is None:
        return random_model(job.shape, dtype)
    return load(job.model, dtype=str(torch_dtype(dtype)).removeprefix("torch."))


def prompts(job: BenchJob) -> list[tuple[int, ...]]:
    """Prompts, <bos> first: held-out Python for a model; ordinary tokens at random for random weights."""
    if job.model is None:
        config = random_config(job.shape)
        drawn = random_tokens(config, (PROMPTS, job.shape.prompt_tokens))
        drawn[:, 0] = config.bos_id
        return [tuple(row) for row in drawn.tolist()]
    documents = load_frozen()
    some = documents[:: max(1, len(documents) // (2 * PROMPTS))]
    found = drafts.make_prompts(some, load(job.model).tokenizer, PROMPTS, "modes")
    return [prompt.tokens[: job.shape.prompt_tokens] for prompt in found]
