"""Model: the facade that users hold."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from daguerre.decoding import generate as main_path
from daguerre.decoding.generate import INFILL_TOKENS, MAX_TOKENS
from daguerre.decoding.options import Decode
from daguerre.decoding.request import Text
from daguerre.decoding.result import Result, StreamEvent
from daguerre.decoding.running import Running, start
from daguerre.decoding.text_spans import CharSpan
from daguerre.errors import InputError, unknown
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import BackboneDenoiser, BackendName, Quantization
from daguerre.models.forward import Head
from daguerre.models.loading import DEFAULT_MODEL, load_model, model_folder, usable_device, weights_hash
from daguerre.models.processor import native_dtype
from daguerre.models.threads import check_threads, use_threads
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.calibration import Calibration, load_calibrations
from daguerre.scoring.decisions import Answer, Question, decide
from daguerre.scoring.likelihood import Order, SpanLayout, TokenScores, nll

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROCESSORS = {"cpu": "processor", "cuda": "GPU"}
LOG = logging.getLogger("daguerre")


class Model:
    """A backbone and its tokenizer. Calls share nothing that changes: a Model is safe to use from several threads.

    backend, quantize, head, graphs: see `daguerre.models.denoiser.BackboneDenoiser`. calibrations: those that questions
    to `decide` may name.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        backend: BackendName | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
        *,
        quantize: Quantization | None = None,
        head: Head | None = None,
        graphs: bool = False,
    ) -> None:
        self.backbone, self.tokenizer = backbone, tokenizer
        self.calibrations = dict(calibrations or {})
        self.denoiser = BackboneDenoiser(backbone, backend, quantize, head, graphs)

    @property
    def config(self) -> ModelConfig:
        """The facts of this model."""
        return self.backbone.config

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.backbone.embedding.weight.dtype

    def generate(
        self, prompt: Text, max_tokens: int = MAX_TOKENS, decode: Decode | None = None, **options: Any
    ) -> Result:
        """Continue `prompt`; see `daguerre.decoding.generate.generate` for the options."""
        return main_path.generate(self.denoiser, self.tokenizer, prompt, max_tokens, decode, **options)

    def infill(
        self, prefix: Text, suffix: Text, max_tokens: int = INFILL_TOKENS, decode: Decode | None = None, **options: Any
    ) -> Result:
        """Fill the gap between two texts; see `daguerre.decoding.generate.infill` for the options."""
        return main_path.infill(self.denoiser, self.tokenizer, prefix, suffix, max_tokens, decode, **options)

    def fill(
        self,
        template: str,
        max_tokens: int | Sequence[int] = INFILL_TOKENS,
        decode: Decode | None = None,
        **options: Any,
    ) -> Result:
        """Fill every `{}` of a template, the gaps seeing each other; see `daguerre.decoding.generate.fill`."""
        return main_path.fill(self.denoiser, self.tokenizer, template, max_tokens, decode, **options)

    def edit(
        self,
        text: str,
        spans: Sequence[CharSpan] | None = None,
        max_tokens: int | Sequence[int] | None = None,
        decode: Decode | None = None,
        **options: Any,
    ) -> Result:
        """Rewrite parts of a text and keep the rest verbatim; see `daguerre.decoding.generate.edit` for the options."""
        return main_path.edit(self.denoiser, self.tokenizer, text, spans, max_tokens, decode, **options)

    def stream(
        self, prompt: Text, max_tokens: int | None = None, decode: Decode | None = None, **options: Any
    ) -> Iterator[StreamEvent]:
        """`generate` (or `infill`, with suffix=...) as events; see `daguerre.decoding.generate.stream`."""
        return main_path.stream(self.denoiser, self.tokenizer, prompt, max_tokens, decode, **options)

    def start(
        self, prompt: Text, max_tokens: int | None = None, decode: Decode | None = None, **options: Any
    ) -> Running:
        """`stream` as a request that can be changed while it runs; see `daguerre.decoding.running.Running`."""
        return start(self.denoiser, self.tokenizer, prompt, max_tokens, decode, **options)

    def nll(
        self,
        text: str,
        kind: str = "ar",
        layout: SpanLayout | None = None,
        samples: int = 128,
        seed: int = 0,
        order: Order | None = None,
    ) -> TokenScores:
        """Negative log-likelihood of `text` in nats: exact ("ar"), a bound ("elbo"), or exact for one order ("chain").

        See `daguerre.scoring.likelihood`.
        """
        if not isinstance(text, str):
            raise InputError(f"the text to score must be a string, not {type(text).__name__}")
        backend = self.denoiser.backend
        return nll(backend, self.tokenizer, text, kind=kind, layout=layout, order=order, samples=samples, seed=seed)

    def decide(self, state: str, questions: Sequence[Question]) -> list[Answer]:
        """Answer questions about `state`, all in one forward; see `daguerre.scoring.decisions`."""
        return decide(self.denoiser, self.tokenizer, state, questions, self.calibrations)

    def __repr__(self) -> str:
        c, kind = self.config, _name(self.dtype)
        kind = f"{kind}, int8 matrices" if self.denoiser.quantize else kind
        return f"Model({self.backbone.num_parameters:,} parameters, {c.context} context, {c.vocab_size} tokens, {kind})"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def load(
    name: str | os.PathLike[str] = DEFAULT_MODEL,
    device: str = "cpu",
    dtype: str = "auto",
    *,
    backend: BackendName | None = None,
    quantize: Quantization | None = None,
    threads: int | Literal["auto"] | None = None,
    graphs: bool = False,
) -> Model:
    """The default model, or one from a folder in Daguerre's own layout, such as a training run writes.

    dtype     "float32", "bfloat16", or "auto": bfloat16 where the device multiplies it natively, else float32
    backend   "native" computes on a CPU, in C++ that is compiled for this processor on first use, in seconds, and
              kept in the cache's folder (`daguerre.files.cache_folder`); "torch" runs the plain modules, on any device.
              None: native on a CPU with a C++ compiler, else torch
    quantize  "int8": matrices as 8-bit numbers, which is faster and approximate; native backend only
    threads   how many PyTorch uses on the CPU from now on, in the whole process; "auto" times a few numbers on this
              model and takes the best; None changes nothing
    graphs    on a CUDA device, steps of decoding run as captured graphs; this has never run on a device

    CheckpointError when the folder is missing or damaged; UnsupportedError for a name on a model hub, and where the
    requested backend, quantize or graphs cannot run these weights here; InputError for a device that is not here.
    """
    if not isinstance(name, str | os.PathLike):
        raise InputError(f"a model is given by its name or folder, not by {name!r}")
    if dtype != "auto" and dtype not in tuple(DTYPES):
        raise unknown("dtype", dtype, ("auto", *DTYPES))
    check_threads(threads, device)
    folder, where = model_folder(name), usable_device(device)
    kind = native_dtype(where) if dtype == "auto" else DTYPES[dtype]
    if dtype == "auto":
        device_name = PROCESSORS.get(where.type, "device")
        does = "multiplies" if kind == torch.bfloat16 else "does not multiply"
        LOG.info("computing in %s: this %s %s bfloat16 natively", _name(kind), device_name, does)
    backbone, tokenizer = load_model(folder, kind, where)
    calibrations = load_calibrations(folder, weights_hash(folder))
    model = Model(backbone, tokenizer, backend, calibrations, quantize=quantize, graphs=graphs)
    if backend is not None or quantize is not None or graphs:
        model.denoiser.backend  # noqa: B018
    if threads is not None:
        use_threads(threads, model.denoiser.backend)
    return model
