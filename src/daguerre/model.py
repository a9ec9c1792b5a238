"""Model: the facade that users hold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from daguerre import generate as main_path
from daguerre.calibration import Calibration, load_calibrations
from daguerre.decide import Answer, Question, decide
from daguerre.editing import Span
from daguerre.errors import InputError, unknown
from daguerre.generate import INFILL_TOKENS, MAX_TOKENS
from daguerre.likelihood import Order, Score, SpanLayout, nll
from daguerre.models.backbone import Backbone
from daguerre.models.config import ModelConfig
from daguerre.models.denoiser import BackboneDenoiser, Execution
from daguerre.models.loading import DEFAULT_MODEL, load_model, model_folder, usable_device, weights_hash
from daguerre.models.threads import check_threads, use_threads
from daguerre.models.tokenizer import Tokenizer
from daguerre.request import Text
from daguerre.result import Result, StreamEvent
from daguerre.running import Running, start
from daguerre.sampling.decode import Decode

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Model:
    """A backbone and its tokenizer. Calls share nothing that changes: a Model is safe to use from several threads.

    execution: how decoding runs the backbone; see `daguerre.models.denoiser.BackboneDenoiser`.
    calibrations: what the questions of `decide` may name.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        execution: Execution | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
    ) -> None:
        self.backbone, self.tokenizer = backbone, tokenizer
        self.calibrations = dict(calibrations or {})
        self.denoiser = BackboneDenoiser(backbone, execution)

    @property
    def config(self) -> ModelConfig:
        """The facts of this model."""
        return self.backbone.config

    def generate(
        self, prompt: Text, max_tokens: int = MAX_TOKENS, decode: Decode | None = None, **options: Any
    ) -> Result:
        """Continue `prompt`; see `daguerre.generate.generate` for the options."""
        return main_path.generate(self.denoiser, self.tokenizer, prompt, max_tokens, decode, **options)

    def infill(
        self, prefix: Text, suffix: Text, max_tokens: int = INFILL_TOKENS, decode: Decode | None = None, **options: Any
    ) -> Result:
        """What goes between; see `daguerre.generate.infill` for the options."""
        return main_path.infill(self.denoiser, self.tokenizer, prefix, suffix, max_tokens, decode, **options)

    def fill(
        self,
        template: str,
        max_tokens: int | Sequence[int] = INFILL_TOKENS,
        decode: Decode | None = None,
        **options: Any,
    ) -> Result:
        """Fill every `{}` of a template, the gaps seeing each other; see `daguerre.generate.fill` for the options."""
        return main_path.fill(self.denoiser, self.tokenizer, template, max_tokens, decode, **options)

    def edit(
        self,
        text: str,
        spans: Sequence[Span] | None = None,
        max_tokens: int | Sequence[int] | None = None,
        decode: Decode | None = None,
        **options: Any,
    ) -> Result:
        """Write parts of a text anew, the rest verbatim; see `daguerre.generate.edit` for the options."""
        return main_path.edit(self.denoiser, self.tokenizer, text, spans, max_tokens, decode, **options)

    def stream(
        self, prompt: Text, max_tokens: int | None = None, decode: Decode | None = None, **options: Any
    ) -> Iterator[StreamEvent]:
        """`generate` (or `infill`, with suffix=...) as events; see `daguerre.generate.stream`."""
        return main_path.stream(self.denoiser, self.tokenizer, prompt, max_tokens, decode, **options)

    def start(
        self, prompt: Text, max_tokens: int | None = None, decode: Decode | None = None, **options: Any
    ) -> Running:
        """`stream` as a request that can be changed while it runs; see `daguerre.running.Running`."""
        return start(self.denoiser, self.tokenizer, prompt, max_tokens, decode, **options)

    def nll(
        self,
        text: str,
        kind: str = "ar",
        layout: SpanLayout | None = None,
        samples: int = 128,
        seed: int = 0,
        order: Order | None = None,
    ) -> Score:
        """Negative log-likelihood of `text` in nats: exact ("ar"), a bound ("elbo"), or exact for one order ("chain").

        See `daguerre.likelihood`.
        """
        if not isinstance(text, str):
            raise InputError(f"the text to score must be a string, not {type(text).__name__}")
        return nll(
            self.backbone, self.tokenizer, text, kind=kind, layout=layout, order=order, samples=samples, seed=seed
        )

    def decide(self, state: str, questions: Sequence[Question]) -> list[Answer]:
        """Answer questions about `state`, all in one forward; see `daguerre.decide`."""
        return decide(self.denoiser, self.tokenizer, state, questions, self.calibrations)

    def __repr__(self) -> str:
        c = self.config
        return f"Model({self.backbone.num_parameters:,} parameters, {c.context} context, {c.vocab_size} tokens)"


def load(
    name: str | os.PathLike[str] = DEFAULT_MODEL,
    device: str = "cpu",
    dtype: str = "float32",
    *,
    execution: Execution | None = None,
    threads: int | Literal["auto"] | None = None,
) -> Model:
    """The default model, or one from a folder in Daguerre's own layout, such as a training run writes.

    execution: "native" decodes on a CPU by C++ that is compiled for this processor at the first start of all, in
    seconds, and kept in the cache's folder (`daguerre.files.cache_folder`); "approximate_int8" the same with 8-bit
    matrices, about half as long a forward and slightly other answers; "lean" decodes from packed copies of the weights
    and takes no compiler; "reference" runs the plain modules; "compiled" runs code that PyTorch's compiler makes for
    these weights, up to a few minutes at their first start; on a CUDA device it replays captured graphs, and takes no
    compiler. None is the first of native, lean and the reference that can be had. threads: how many PyTorch uses on
    the CPU from now on, in the whole process; "auto" times a few numbers on this model and takes the best; None changes
    nothing.

    CheckpointError when the folder is missing or damaged; UnsupportedError for a name on a model hub, and for weights
    that cannot be run so, or compiled, where that was asked for; InputError for a device that is not here.
    """
    if not isinstance(name, str | os.PathLike):
        raise InputError(f"a model is given by its name or folder, not by {name!r}")
    if dtype not in tuple(DTYPES):
        raise unknown("dtype", dtype, DTYPES)
    check_threads(threads, device)
    folder = model_folder(name)
    backbone, tokenizer = load_model(folder, DTYPES[dtype], usable_device(device))
    model = Model(backbone, tokenizer, execution, load_calibrations(folder, weights_hash(folder)))
    if execution is not None:
        model.denoiser.executor  # noqa: B018
    if threads is not None:
        use_threads(threads, model.denoiser.executor, model.config.time_input)
    return model
