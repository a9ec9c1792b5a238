"""Model: the facade that users hold."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from daguerre.arguments import SWITCH, TEXT, WRONG, Call, Instance, Kind, OneOf, PathName, Words, checks
from daguerre.decoding.context import Showing
from daguerre.decoding.defaults import CHAT_SAMPLING, with_sampling
from daguerre.decoding.drive import OnStep
from daguerre.decoding.generate import MAX_TOKENS, Request, run, start, stream
from daguerre.decoding.request import Decode, Text
from daguerre.decoding.result import Result, StreamEvent
from daguerre.decoding.running import Running
from daguerre.decoding.text_spans import CharSpan
from daguerre.errors import InputError, UnsupportedError
from daguerre.instructions import tasks_in
from daguerre.models.catalog import Catalog
from daguerre.models.chat_prompt import chat_ids
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import (
    BACKENDS,
    PLACES,
    QUANTIZATIONS,
    BackboneDenoiser,
    BackendName,
    Place,
    Quantization,
    auto_dtype,
    can_compile,
)
from daguerre.models.forward import Head
from daguerre.models.loading import (
    DEFAULT_MODEL,
    advise,
    load_folder,
    model_folder,
    tokenizer_folder,
    usable_device,
)
from daguerre.models.published_weights import Progress
from daguerre.models.scaling import Extension, Scaling, read_scaling
from daguerre.models.tensor_parallel import join_others, split_layers
from daguerre.models.threads import Threads, check_threads, release_threads, use_threads
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.attribution import ARGUMENTS as ATTRIBUTE
from daguerre.scoring.attribution import STEPS, Attribution, attribute
from daguerre.scoring.calibration import Calibration, load_calibrations
from daguerre.scoring.decisions import Question, QuestionAnswer, decide
from daguerre.scoring.embedding import EmbeddingKind, embed
from daguerre.scoring.likelihood import Order, SpanLayout, TokenScores
from daguerre.scoring.text_concepts import TextConcepts, text_concepts
from daguerre.scoring.windows import nll

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Variables(Kind):
    """What a chat template sees beside the messages."""

    words: ClassVar[str] = "a mapping of names, of which none is messages, to values,"

    def read(self, name: str, value: Any) -> Any:
        right = isinstance(value, Mapping) and all(isinstance(each, str) and each != "messages" for each in value)
        return dict(value) if right else WRONG


INTERNAL = ("denoiser", "tokenizer", "defaults", "catalog")
"""Arguments of the functions behind the methods, which the model gives."""
LOAD: dict[str, Kind] = {
    "name": PathName(),
    "device": Words(empty=False),
    "dtype": OneOf(known=("auto", *DTYPES)),
    "backend": OneOf(known=BACKENDS, none=True),
    "quantize": OneOf(known=QUANTIZATIONS, none=True),
    "experts": OneOf(known=PLACES, none=True),
    "threads": Threads(none=True),
    "revision": Words(empty=False, none=True),
    "family": Words(empty=False, none=True),
    "adapter": PathName(none=True),
    "tokenizer": PathName(none=True),
    "rope_scaling": Scaling(none=True),
    "tensor_parallel": SWITCH,
    "progress": Call(none=True),
}
"""The kinds of the arguments of `load`."""
MODEL: dict[str, Kind] = {
    "backbone": Instance(of=(torch.nn.Module,), what="a Backbone"),
    "tokenizer": Instance(of=(Tokenizer,), what="a Tokenizer"),
    "calibrations": Instance(of=(Mapping,), what="a mapping of names to calibrations", none=True),
    "head": Call(none=True),
    "defaults": Instance(of=(Mapping,), what="a mapping of options", none=True),
    "sampling": Instance(of=(Mapping,), what="a mapping of options", none=True),
    "concepts": Instance(of=(Catalog,), what="a Catalog", none=True),
    "tasks": Instance(of=(tuple,), what="a tuple of names"),
}
MODEL |= {name: LOAD[name] for name in ("backend", "quantize", "experts", "family")}
"""The kinds of the arguments of `Model`."""
OPTIONS: dict[str, Kind] = {
    "decode": Instance(of=(Decode,), what="a Decode", none=True),
    "options": Instance(of=(Mapping,), what="a mapping of options"),
}
CHAT = {"template": Variables(none=True)}
CHAT_TOKENS = 512
PROCESSORS = {"cpu": "processor", "cuda": "GPU"}
LOG = logging.getLogger("daguerre")


class Model:
    """A backbone and its tokenizer. Calls share nothing that changes: a Model is safe to use from several threads.

    backend, quantize, head, experts: see `daguerre.models.denoiser.BackboneDenoiser`. calibrations: those that
    questions to `decide` may name. family, defaults: the name of the published family, and its defaults of generation,
    as options of `Decode`; sampling: how an autoregressive one has answers drawn. concepts: names of the concepts of a
    model with concept heads; it has numbers where they are not given. tasks: those of `daguerre.instructions` that the
    model was trained on.
    """

    @checks(MODEL)
    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        backend: BackendName | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
        *,
        quantize: Quantization | None = None,
        experts: Place | None = None,
        head: Head | None = None,
        family: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        concepts: Catalog | None = None,
        tasks: tuple[str, ...] = (),
    ) -> None:
        shape = backbone.config.concepts
        if concepts is not None and shape is None:
            raise UnsupportedError("names of concepts are for a model with concept heads: leave out concepts")
        if concepts is not None and shape is not None and concepts.num_known != shape.known:
            raise InputError(
                f"the names are of {concepts.num_known} concepts and the model has {shape.known}: give its own"
            )
        self.concepts = concepts if concepts is not None or shape is None else Catalog.numbered(shape)
        self.tokenizer = tokenizer
        self.family, self.defaults, self._sampling = family, dict(defaults or {}), dict(sampling or {})
        self.calibrations, self.tasks = dict(calibrations or {}), tasks
        self.denoiser = BackboneDenoiser(backbone, backend, quantize, head, experts)

    @property
    def backbone(self) -> Backbone:
        """The backbone. Of a published model that only the native backend has the weights of, in packed form, they are
        read from its files now, and stay in memory beside these.
        """
        return self.denoiser.with_weights()

    @property
    def num_parameters(self) -> int:
        """How many weights there are."""
        return self.denoiser.backbone.num_parameters

    @property
    def config(self) -> ModelConfig:
        """The facts of this model."""
        return self.denoiser.config

    @property
    def heal(self) -> bool | None:
        """What `heal` is where a request does not say: a published model heals no word."""
        return None if self.family is None else False

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.denoiser.backbone.embedding.weight.dtype

    def _run(self, operation: str, *values: Any, on_step: OnStep | None = None, **options: Any) -> Result:
        """The result of an operation of `decoding.generate.OPERATIONS`; the last of the values is `decode`."""
        request = Request.of(operation, *values, **self.with_defaults(values[-1], options))
        return run(self.denoiser, self.tokenizer, request, on_step)

    def generate(
        self, prompt: Text, max_tokens: int = MAX_TOKENS, decode: Decode | None = None, **options: Any
    ) -> Result:
        """The text that follows `prompt`, a text or its token ids: a `Result`, whose `text` has at most `max_tokens`.

        decode: options as an object, a `Decode`. options: its fields, which take precedence (`help(daguerre.Decode)`),
        such as mode, temperature, stop, schema, n; and heal, timeout, draft, on_step and context, which
        `daguerre.decoding.generate.generate` describes. InputError, in one line, for what cannot be asked.
        """
        return self._run("generate", prompt, max_tokens, decode, **options)

    def infill(
        self, prefix: Text, suffix: Text, max_tokens: int | None = None, decode: Decode | None = None, **options: Any
    ) -> Result:
        """The text between `prefix` and `suffix`, texts or token ids: a `Result`, whose `text` is the gap's, at most
        `max_tokens` tokens, and exactly as many if the option min_tokens is equal to it; None: 24, or 128 for a model
        that was trained to fill in the middle.

        decode, options: as for `generate`; search_length, which has the model asked how long the gap is; and files,
        texts of other files of the repository by their names.
        """
        return self._run("infill", prefix, suffix, max_tokens, decode, **options)

    def fill(
        self,
        template: str,
        max_tokens: int | Sequence[int] | None = None,
        decode: Decode | None = None,
        **options: Any,
    ) -> Result:
        """Fill every `<gap>` of `template` in one run, in which the gaps see each other: a `Result`, whose `text` is
        the filled template and whose `texts` are those of the gaps.

        max_tokens: of each gap, one number for all or one for each. decode, options: as for `infill`; and mark, which
        marks a gap in place of `<gap>`. InputError for a template without a gap.
        """
        return self._run("fill", template, max_tokens, decode, **options)

    def edit(
        self,
        text: str,
        spans: Sequence[CharSpan] | None = None,
        max_tokens: int | Sequence[int] | None = None,
        decode: Decode | None = None,
        **options: Any,
    ) -> Result:
        """`text` with parts of it written again, and the rest as it is, character for character: a `Result` with the
        whole `text`, its `diff`, and the `spans` of the new parts.

        spans: the parts, as pairs of characters [start, end); or the option lines, pairs from 1, both included; or
        pattern, a regular expression. max_tokens: of each part, or one number for all; None: 8 more than it has.
        decode, options: as for `infill`; and strength, the share of a part's tokens that is drawn again.
        """
        return self._run("edit", text, spans, max_tokens, decode, **options)

    def stream(
        self, prompt: Text, max_tokens: int | None = None, decode: Decode | None = None, **options: Any
    ) -> Iterator[StreamEvent]:
        """`generate` of `prompt`, or `infill` with the option suffix, as events: one for each step, with the `text` so
        far and the `committed` part of it, which never shrinks; and a last one, which has the `result`.

        max_tokens: None is the default of either. decode, options: theirs. Wrong arguments raise at the call.
        """
        options = self.with_defaults(decode, options)
        return stream(self.denoiser, self.tokenizer, prompt, max_tokens, decode, **options)

    def start(
        self, prompt: Text, max_tokens: int | None = None, decode: Decode | None = None, **options: Any
    ) -> Running:
        """`stream` of `prompt` as a request that can be changed while it runs: iterate it for its events, and call its
        `pin`, `unpin` and `remask` between them.

        max_tokens, decode, options: those of `stream`. UnsupportedError for stop strings, and for modes whose canvas
        cannot be changed.
        """
        check_names(options)
        defaults = None if self.family is None else self.defaults
        options = {"defaults": defaults, "catalog": self.concepts, **options}
        return start(self.denoiser, self.tokenizer, prompt, max_tokens, decode, **options)

    @checks(CHAT | {"decode": OPTIONS["decode"]})
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int = CHAT_TOKENS,
        decode: Decode | None = None,
        *,
        template: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Result:
        """The answer to `messages`, each with a "role" and a "content". `template`: what else the model's chat template
        takes. The other arguments are those of `generate`, and its `tools` are described to the model, too; what they
        do not say of sampling is `chat_sampling`.
        """
        tools = options.get("tools", None if decode is None else decode.tools)
        prompt = self.chat_prompt(messages, **{"tools": tools, **(template or {})})
        drawn = options if decode is not None else with_sampling(options, self.chat_sampling)
        return self.generate(prompt, max_tokens, decode, **drawn)

    @property
    def chat_sampling(self) -> dict[str, Any]:
        """How answers are drawn where a request does not say, as options of `Decode`: as the model's publisher
        recommends, else CHAT_SAMPLING. Empty, which is greedy, for models with masks.
        """
        if self.config.mask_id is not None or self.config.process != "absorbing":
            return {}
        return self._sampling or dict(CHAT_SAMPLING)

    @property
    def recommends_sampling(self) -> bool:
        """Whether the model's files say how answers are drawn."""
        return bool(self._sampling)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **template: Any) -> list[int]:
        """The tokens of a conversation that an answer follows. The text of a special token in a message is ordinary
        text (`models.chat_prompt`). A last message of the assistant is continued, unless continue_final_message or
        add_generation_prompt say otherwise (as in vLLM). UnsupportedError for a model without a chat template;
        InputError for what is no list of messages, each with a "role".
        """
        return chat_ids(self.tokenizer, messages, self.config.first, **template)

    @checks(OPTIONS)
    def with_defaults(self, decode: Decode | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """A request's options with the names of the model's concepts, and what a published family changes: `defaults`,
        which planning applies where the request has no `decode`, and no word is healed unless asked.
        """
        check_names(options)
        named = {} if self.concepts is None else {"catalog": self.concepts}
        if self.family is None:
            return {**named, **options}
        heal = options.get("heal")
        return {"defaults": self.defaults, **named, **options, "heal": False if heal is None else heal}

    def nll(
        self,
        text: str,
        kind: str = "ar",
        layout: SpanLayout | None = None,
        samples: int = 128,
        seed: int = 0,
        order: Order | None = None,
        context: Showing = "auto",
    ) -> TokenScores:
        """Negative log-likelihood of `text` in nats: exact ("ar"), a bound ("elbo"), or exact for one order ("chain").

        layout: tokens in a span, or "full". samples: draws of masks for a bound, with `seed`. order: that of "chain":
        left, random, or a permutation. Each is described at `daguerre.scoring.likelihood.score_tokens`. kind: one of
        the three. context: "auto" scores a text that is longer than the model's
        positions in windows that overlap (`daguerre.scoring.windows`); with "whole" it is an InputError.
        """
        backend = self.denoiser.backend
        how: dict[str, Any] = {"kind": kind, "layout": layout, "order": order, "samples": samples, "seed": seed}
        return nll(backend, self.tokenizer, text, context=context, **how)

    def embed(self, texts: Sequence[Text], kind: EmbeddingKind = "hidden") -> np.ndarray:
        """Embeddings of `texts`, T texts or lists of token ids, float32 (T, D) of length 1: of their hidden states, of
        a part of them, or (T, C) of the weights of their concepts, as `kind` says (`daguerre.scoring.embedding`).
        ContextError for a text that is longer than the model's positions.
        """
        return embed(self.denoiser.backend, self.tokenizer, texts, kind, self.denoiser.backbone.concepts)

    @checks({"text": TEXT})
    def explain(self, text: str) -> TextConcepts:
        """The concepts of each token of `text`, which exists already: a `TextConcepts`. What a request writes is
        explained by its option `explain`. UnsupportedError for a model without concept heads.
        """
        return text_concepts(self.denoiser.backend, self.backbone, self.tokenizer, self.concepts, text)

    @checks(ATTRIBUTE)
    def attribute(self, result: Result, token: int, num_steps: int = STEPS) -> Attribution:
        """How much each visible token is a reason for token number `token`, from 0, of `result`, which was asked for
        with explain=True: integrated gradients in `num_steps` steps (`daguerre.scoring.attribution`).
        """
        return attribute(self.backbone, self.tokenizer, self.concepts, result, token, num_steps)

    def decide(self, state: str, questions: Sequence[Question], context: Showing = "auto") -> list[QuestionAnswer]:
        """The answers to questions about `state`, a text, all in one forward.

        questions: `YesNo`, `Choice` and `Score` of `daguerre.scoring.decisions`. context: "auto" shows the last lines
        of a state that is longer than the model's positions, and each answer's `context` says which; "whole" refuses
        it.
        InputError for a text or a question that cannot be asked.
        """
        return decide(self.denoiser, self.tokenizer, state, questions, self.calibrations, context)

    def __repr__(self) -> str:
        c, kind = self.config, _name(self.dtype)
        kind = f"{kind}, {self.denoiser.quantize} matrices" if self.denoiser.quantize else kind
        return f"Model({self.num_parameters:,} parameters, {c.context} context, {c.vocab_size} tokens, {kind})"


def check_names(options: Mapping[str, Any]) -> None:
    """InputError for an option that is no caller's to give."""
    for name in INTERNAL:
        if name in options:
            raise InputError(f"{name} is given by the model, and is no option: leave it out")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@checks(LOAD)
def load(
    name: str | os.PathLike[str] = DEFAULT_MODEL,
    device: str = "cpu",
    dtype: str = "auto",
    *,
    backend: BackendName | None = None,
    quantize: Quantization | None = None,
    experts: Place | None = None,
    threads: int | Literal["auto"] | None = None,
    revision: str | None = None,
    family: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    rope_scaling: str | Mapping[str, Any] | Extension | None = None,
    tensor_parallel: bool = False,
    progress: Progress | None = None,
) -> Model:
    """A model of the package, "default" or "concepts", which has concept heads; one from a folder, such as a training
    run writes or a publisher's; a GGUF file, llama.cpp's; or one by its name on a model hub, owner/repository, which is
    downloaded once. `daguerre.models.families.FAMILIES` lists what is supported.

    dtype     "float32", "bfloat16", or "auto": the faster one here (`models.denoiser.auto_dtype`), mostly bfloat16
    backend   "native" computes on a CPU, in C++ that is compiled for this processor on first use, in seconds, and
              kept in the cache's folder (`daguerre.files.cache_folder`); "torch" runs the plain modules, on any device.
              None: native on a CPU with a C++ compiler, else torch
    quantize  "int8": matrices as 8-bit numbers; "approximate_int4": as 4-bit numbers with a scale for every 32 inputs.
              Both are faster, take less memory, and are approximate; native backend only
    experts   where the packed experts of a mixture are: in "memory"; or on the "disk", in the cache's folder, of which
              memory holds what it can; None: on the disk if they do not fit in free memory. Native backend only
    threads   how many PyTorch uses on the CPU from now on, in the whole process; "auto" times a few numbers on this
              model and takes the best; None changes nothing. The native backend uses fewer while other processes want
              the processors
    revision  of a name on a hub: a branch, tag or commit; by default the main branch
    family    what a published model is, where its files do not say it
    adapter   a LoRA adapter in PEFT's layout, which is merged: a folder, or a name on a hub
    tokenizer a tokenizer that a published model takes in place of its own: a folder, or a name on a hub
    rope_scaling  more positions than the model was trained on: "yarn:4" for four times as many, also linear, ntk,
              llama3 and none (as they are); or a mapping with the keys of transformers' `rope_scaling`
              (`daguerre.models.scaling`)
    tensor_parallel  the processes that torchrun started share every layer (`daguerre.models.tensor_parallel`); each
              must ask the same, and gets the whole answer. On GPUs each takes its own, and "cuda" is the device; torch
              backend only
    progress  called with the bytes of a published model that were read, and all of them

    CheckpointError when the folder is missing or damaged, or cannot be downloaded; UnsupportedError for a published
    model that cannot be computed, and where the requested backend or quantize cannot run these weights here;
    InputError for a name that the hub does not have, and for a device that is not here.
    """
    where = usable_device(device)
    check_threads(threads, where)
    if tensor_parallel:
        if backend == "native" or quantize is not None:
            raise UnsupportedError("layers are shared by the torch backend alone: leave out native and quantize")
        where, backend = join_others(where), "torch"
    folder = model_folder(name, revision, family=family)
    beside = None if adapter is None else model_folder(adapter, what="an adapter")
    kind = auto_dtype(where, backend) if dtype == "auto" else DTYPES[dtype]
    if dtype == "auto":
        LOG.info("computing in %s, which is fastest on this %s", _name(kind), PROCESSORS.get(where.type, "device"))
    words = tokenizer_folder(folder, tokenizer, family)
    scaling = read_scaling(rope_scaling) if isinstance(rope_scaling, str | Mapping) else rope_scaling
    defer = where.type == "cpu" and backend != "torch" and can_compile()
    loaded = load_folder(
        folder,
        kind,
        where,
        family=family,
        adapter=beside,
        tokenizer=words,
        rope_scaling=scaling,
        progress=progress,
        defer=defer,
    )
    if quantize is None and defer:
        advise(loaded, 8 * kind.itemsize)
    changed = adapter is not None or scaling is not None
    calibrations = {} if changed else load_calibrations(folder, loaded.source.weights_hash())  # of other answers
    model = Model(
        split_layers(loaded.backbone) if tensor_parallel else loaded.backbone,
        loaded.tokenizer,
        backend,
        calibrations,
        quantize=quantize,
        experts=experts,
        family=loaded.family,
        defaults=loaded.decode,
        sampling=loaded.sampling,
        concepts=loaded.concepts,
        tasks=tasks_in(folder, beside),
    )
    if backend is not None or quantize is not None or loaded.backbone.deferred is not None:
        model.denoiser.backend  # noqa: B018
    if threads is not None:
        use_threads(threads, model.denoiser.backend)
    release_threads()
    return model
