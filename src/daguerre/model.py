"""Model: the facade that users hold."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np

from daguerre import scoring
from daguerre.decoding.context import Showing
from daguerre.decoding.defaults import CHAT_SAMPLING, with_sampling
from daguerre.decoding.generate import MAX_TOKENS, OPERATIONS, Request, run, start, stream
from daguerre.decoding.request import Decode, Text
from daguerre.decoding.result import Result, StreamEvent
from daguerre.decoding.running import Running
from daguerre.decoding.sample import OnStep
from daguerre.decoding.text_spans import CharSpan
from daguerre.errors import InputError, UnsupportedError, shown
from daguerre.instructions import tasks_in
from daguerre.kinds import TEXT, Call, Instance, Kind, Variables, Whole, checks, options_of
from daguerre.models import draft_files
from daguerre.models.bits import NumberType, number_type_of
from daguerre.models.catalog import Catalog
from daguerre.models.chat_prompt import chat_ids
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import BackboneDenoiser, auto_numbers, native_is_default
from daguerre.models.drafting_model import DraftingModel
from daguerre.models.forward import Head
from daguerre.models.load_options import DEFAULT_MODEL, BackendName, LoadOptions, Place, Quantization
from daguerre.models.load_options import DTYPES as DTYPES
from daguerre.models.loading import (
    Backbones,
    Loaded,
    joined,
    load_folder,
    model_folder,
    tokenizer_folder,
    usable_device,
)
from daguerre.models.model_weights import ModelWeights, torch_type, weights_of
from daguerre.models.scaling import Extension, read_scaling
from daguerre.models.shards import Progress
from daguerre.models.threads import check_threads, release_threads, use_threads
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.calibration import Calibration, load_calibrations

if TYPE_CHECKING:
    import torch

    from daguerre.models.core.backbone import Backbone
    from daguerre.scoring.attribution import Attribution
    from daguerre.scoring.decisions import Question, QuestionAnswer
    from daguerre.scoring.embedding import EmbeddingKind
    from daguerre.scoring.likelihood import Order, SpanLayout, TokenScores
    from daguerre.scoring.text_concepts import TextConcepts


INTERNAL = ("denoiser", "tokenizer", "defaults", "catalog")
"""Arguments of the functions behind the methods, which the model gives."""
LOADING = options_of(LoadOptions)
LOAD: dict[str, Kind] = {name: one.kind for name, one in LOADING.items()}
MODEL: dict[str, Kind] = {
    "backbone": Backbones(),
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
DECODE = Instance(of=(Decode,), what="a Decode", none=True)
STARTED = {"suffix", "timeout", "context"}
"""The arguments of `stream` that a request which is changed while it runs may have."""
ATTRIBUTION_STEPS, MOST_STEPS = 64, 65_536
ATTRIBUTE: dict[str, Kind] = {
    "result": Instance(of=(Result,), what="a Result"),
    "token": Whole(low=-(2**63), high=2**63 - 1),
    "num_steps": Whole(low=1, high=MOST_STEPS),
}
CHAT_TOKENS = 512
LOG = logging.getLogger("daguerre")
CHIPS = {"cpu": "processor", "cuda": "GPU"}
T = TypeVar("T")


class Operations(ABC, Generic[T]):
    """The operations on texts, for whoever runs a request: a model, an engine or a recorder."""

    @abstractmethod
    def _ask(self, operation: str, *values: Any, **options: Any) -> T:
        """What a request comes to; the last of the values is `decode`."""

    def generate(self, prompt: Text, max_tokens: int = MAX_TOKENS, decode: Decode | None = None, **options: Any) -> T:
        """The text that follows `prompt`, a text or its token ids: a `Result`, whose `text` has at most `max_tokens`.

        decode: options as an object, a `Decode`. options: its fields, which take precedence (`help(daguerre.Decode)`),
        such as mode, temperature, stop, schema, n; and

        heal     redraw the prompt's last word, which may be cut off; the text follows the prompt byte for byte anyway
        timeout  seconds for each sample; as they run out more is committed in a forward, so that the whole budget is
                 filled in time (`daguerre.decoding.denoise.Deadline`). Modes "ar" and "speculative" keep their
                 distribution and their pace, and block context takes at least one forward for each block: positions
                 that are open when time is up are left out, or, under a constraint, completed with the fewest tokens
                 and without the model
        draft    the likely text. Modes "ar" and "speculative" verify its tokens, several a forward, and find their
                 place in it again after a difference; the tokens are those without a draft. In other modes it takes
                 the place of masks: one forward for each span reads it, tokens with a probability of `threshold` or
                 more stay, and the rest is denoised. `usage` counts accepted and rejected tokens
        on_step  called with each event of the only sample, as `stream` gives them
        context  "auto" shows of a text that is longer than the model's positions whole lines around the gaps
                 (`daguerre.decoding.context`), and the result's `context` says which; "whole" refuses it

        InputError, in one line, for what cannot be asked. With n samples the result is the first, and `choices` has
        all.
        """
        return self._ask("generate", prompt, max_tokens, decode, **options)

    def infill(
        self, prefix: Text, suffix: Text, max_tokens: int | None = None, decode: Decode | None = None, **options: Any
    ) -> T:
        """The text between `prefix` and `suffix`, texts or token ids: a `Result`, whose `text` is the gap's, at most
        `max_tokens` tokens, and exactly as many if the option min_tokens is equal to it; None: 24, or 128 for a model
        that was trained to fill in the middle.

        decode, options: as for `generate`; files, texts of other files of the repository by their names; and
        search_length: first find the length, from min_tokens to max_tokens, by scoring a gap of each length
        (`daguerre.decoding.lengths`), then fill exactly as many; None: only for a model that has no <null> to end the
        gap with. Guidance and a scorer change what is drawn, not the search. With an empty suffix it is a completion.
        """
        return self._ask("infill", prefix, suffix, max_tokens, decode, **options)

    def fill(
        self,
        template: str,
        max_tokens: int | Sequence[int] | None = None,
        decode: Decode | None = None,
        **options: Any,
    ) -> T:
        """Fill every `<gap>` of `template` in one run, in which the gaps see each other: a `Result`, whose `text` is
        the filled template and whose `texts` are those of the gaps.

        max_tokens: of each gap, one number for all or one for each. decode, options: as for `infill`; and mark, which
        marks a gap in place of `<gap>`. InputError for a template without a gap.
        """
        return self._ask("fill", template, max_tokens, decode, **options)

    def edit(
        self,
        text: str,
        spans: Sequence[CharSpan] | None = None,
        max_tokens: int | Sequence[int] | None = None,
        decode: Decode | None = None,
        **options: Any,
    ) -> T:
        """`text` with parts of it written again, and the rest as it is, character for character: a `Result` with the
        whole `text`, its `diff`, and the `spans` of the new parts.

        spans: the parts, as pairs of characters [start, end); or the option lines, pairs from 1, both included; or
        pattern, a regular expression. max_tokens: of each part, or one number for all; None: 8 more than it has.
        decode, options: as for `infill`; and strength, the share of a part's tokens that is drawn again. Or, by a
        `Model` with a chat template, instruction: what is to change (`daguerre.editing.rewriting.carry_out`).
        """
        return self._ask("edit", text, spans, max_tokens, decode, **options)


class Model(Operations[Result]):
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
        backbone: Backbone | ModelWeights,
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
        weights = weights_of(backbone)
        shape = weights.config.concepts
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
        self.denoiser = BackboneDenoiser(weights, backend, quantize, head, experts)

    @property
    def backbone(self) -> Backbone:
        """The backbone. Of a published model that only the native backend has the weights of, in packed form, they are
        read from its files now, and stay in memory beside these.
        """
        return self.denoiser.with_weights()

    @property
    def num_parameters(self) -> int:
        """How many weights there are."""
        return self.denoiser.weights.num_parameters

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
        """PyTorch's type of the weights; their `numbers` are its name."""
        return torch_type(self.numbers)

    @property
    def numbers(self) -> NumberType:
        """The type of the weights, "float32" or "bfloat16"."""
        return self.denoiser.weights.numbers

    def _ask(self, operation: str, *values: Any, on_step: OnStep | None = None, **options: Any) -> Result:
        """The result of an operation of `decoding.generate.OPERATIONS`, or of an instruction."""
        if options.get("instruction") is not None:
            from daguerre.editing.rewriting import carry_out

            return carry_out(self, operation, *values, on_step=on_step, **options)
        request = Request.of(operation, *values, **self.with_defaults(values[-1], options))
        result: Result = run(self.denoiser, self.tokenizer, request, on_step)
        return result

    def stream(
        self, prompt: Text, max_tokens: int | None = None, decode: Decode | None = None, **options: Any
    ) -> Iterator[StreamEvent]:
        """`generate` of `prompt`, or `infill` with the option suffix, as events: one for each step, with the `text` so
        far and the `committed` part of it, which never shrinks; and a last one, which has the `result`.

        max_tokens: None is the default of either. decode, options: theirs. Wrong arguments raise at the call.
        """
        request = Request.of("stream", prompt, max_tokens, decode, **self.with_defaults(decode, options))
        return stream(self.denoiser, self.tokenizer, request)

    def start(
        self, prompt: Text, max_tokens: int | None = None, decode: Decode | None = None, **options: Any
    ) -> Running:
        """`stream` of `prompt` as a request that can be changed while it runs: iterate it for its events, and call its
        `pin`, `unpin` and `remask` between them.

        max_tokens, decode, options: those of `stream`. UnsupportedError for stop strings, and for modes whose canvas
        cannot be changed.
        """
        for name in OPERATIONS["stream"].names & options.keys() - STARTED:
            Decode(**{name: options[name]})  # says that it belongs to other calls
        options |= {"heal": False, "changeable": True}
        request = Request.of("stream", prompt, max_tokens, decode, **self.with_defaults(decode, options))
        return start(self.denoiser, self.tokenizer, request)

    @checks({"template": Variables(none=True), "decode": DECODE})
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

    def with_defaults(self, decode: Decode | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """A request's options with the names of the model's concepts, and what a published family changes: `defaults`,
        which planning applies where the request has no `decode`; then no word is healed unless asked or in a gap that
        is written behind the texts around it.
        """
        DECODE("decode", decode)
        if not isinstance(options, Mapping):
            raise InputError(f"options must be a mapping of options, not {shown(options)}")
        for name in INTERNAL:
            if name in options:
                raise InputError(f"{name} is given by the model, and is no option: leave it out")
        named = {} if self.concepts is None else {"catalog": self.concepts}
        published = {} if self.family is None else {"defaults": self.defaults}
        return {**published, **named, **options}

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
        how: dict[str, Any] = {"kind": kind, "layout": layout, "order": order, "samples": samples, "seed": seed}
        return scoring.nll(self.denoiser.backend, self.tokenizer, text, context=context, **how)

    def embed(self, texts: Sequence[Text], kind: EmbeddingKind = "hidden") -> np.ndarray:
        """Embeddings of `texts`, T texts or lists of token ids, float32 (T, D) of length 1: of their hidden states, of
        a part of them, or (T, C) of the weights of their concepts, as `kind` says (`daguerre.scoring.embedding`).
        ContextError for a text that is longer than the model's positions.
        """
        heads = None if self.config.concepts is None or kind == "hidden" else self.denoiser.heads
        return scoring.embed(self.denoiser.backend, self.tokenizer, texts, kind, heads)

    @checks({"text": TEXT})
    def explain(self, text: str) -> TextConcepts:
        """The concepts of each token of `text`, which exists already: a `TextConcepts`. What a request writes is
        explained by its option `explain`. UnsupportedError for a model without concept heads.
        """
        heads = None if self.config.concepts is None else self.denoiser.heads
        return scoring.text_concepts(self.denoiser.backend, heads, self.tokenizer, self.concepts, text)

    @checks(ATTRIBUTE)
    def attribute(self, result: Result, token: int, num_steps: int = ATTRIBUTION_STEPS) -> Attribution:
        """How much each visible token is a reason for token number `token`, from 0, of `result`, which was asked for
        with explain=True: integrated gradients in `num_steps` steps (`daguerre.scoring.attribution`).
        """
        return scoring.attribute(self.denoiser, self.tokenizer, self.concepts, result, token, num_steps)

    def decide(self, state: str, questions: Sequence[Question], context: Showing = "auto") -> list[QuestionAnswer]:
        """The answers to questions about `state`, a text, all in one forward.

        questions: `YesNo`, `Choice` and `Score` of `daguerre.scoring.decisions`. context: "auto" shows the last lines
        of a state that is longer than the model's positions, and each answer's `context` says which; "whole" refuses
        it.
        InputError for a text or a question that cannot be asked.
        """
        answers: list[QuestionAnswer] = run(self.denoiser, self.tokenizer, self.decision(state, questions, context))
        return answers

    def decision(self, state: str, questions: Sequence[Question], context: Showing = "auto") -> Request:
        """The request that `decide` runs, and `Engine.submit` takes. state, questions, context: as for `decide`."""
        return Request.of("decide", state, scoring.Questions(questions, self.calibrations), context)

    def __repr__(self) -> str:
        c, matrices = self.config, self.denoiser.quantize or ", ".join(self.denoiser.block_types)
        kind = f"{self.numbers}, {matrices} matrices" if matrices else self.numbers
        return f"Model({self.num_parameters:,} parameters, {c.context} context, {c.vocab_size} tokens, {kind})"


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
    drafts: str | os.PathLike[str] | None = None,
    concepts: str | os.PathLike[str] | None = None,
    drafts_quantize: Quantization | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    rope_scaling: str | Mapping[str, Any] | Extension | None = None,
    tensor_parallel: bool = False,
    progress: Progress | None = None,
) -> Model:
    """A model, whose arguments are described below.

    CheckpointError for a folder that is missing, damaged or cannot be downloaded; UnsupportedError for what cannot be
    computed, here or at all; InputError for a name that the hub does not have, and for a device that is not here.
    """
    device = usable_device(device)
    check_threads(threads, device)
    if tensor_parallel:
        device, backend = joined(device, backend, quantize), "torch"
    folder = model_folder(name, revision, family=family)
    adapter_folder = None if adapter is None else model_folder(adapter, what="an adapter")
    numbers = auto_numbers(device, backend) if dtype == "auto" else number_type_of(dtype)
    if dtype == "auto":
        LOG.info("computing in %s, which is fastest on this %s", numbers, CHIPS.get(device.partition(":")[0], "device"))
    scaling = read_scaling(rope_scaling) if isinstance(rope_scaling, str | Mapping) else rope_scaling
    defer, second = native_is_default(device, backend), drafts if draft_files.is_model(drafts) else None
    named: dict[str, Any] = {"family": family, "adapter": adapter_folder, "concepts": concepts, "progress": progress}
    loaded = load_folder(
        folder,
        numbers,
        device,
        **named,
        drafts="none" if second else drafts,
        tokenizer=tokenizer_folder(folder, tokenizer, family),
        rope_scaling=scaling,
        defer=defer,
    )
    weights: Backbone | ModelWeights = loaded.weights
    if tensor_parallel:
        from daguerre.models.tensor_parallel import split_layers

        weights = split_layers(loaded.backbone)
    changed = adapter is not None or scaling is not None  # so that calibrations are of other answers
    calibrations = {} if changed else load_calibrations(folder, loaded.source.weights_hash())
    how: dict[str, Any] = {"backend": backend, "quantize": quantize, "experts": experts}
    model = _model_of(loaded, weights, calibrations, tasks=tasks_in(folder, adapter_folder), **how)
    _settle(model, threads, backend is not None or quantize is not None or defer)
    if second is not None:
        add_drafts(model, second, device=device, dtype=dtype, backend=backend, quantize=drafts_quantize or quantize)
    return model


def add_drafts(model: Model, drafts: str | os.PathLike[str], **how: Any) -> None:
    """Let what `drafts` names draft for the model: a second model, which is loaded with the arguments `how`."""
    second = load(drafts, **how)
    own, clock = second.denoiser.fixed(), time.thread_time if how["device"] == "cpu" else time.perf_counter
    made = DraftingModel(model.config, model.tokenizer, own.backend, second.tokenizer, own.num_bytes, clock)
    made.beside(model.denoiser.backend)
    model.denoiser.drafting = made


def _settle(model: Model, threads: int | Literal["auto"] | None, packs: bool) -> None:
    """Pack the weights now, where that may fail or frees memory, and use so many threads."""
    if packs:
        model.denoiser.backend  # noqa: B018
    if threads is not None:
        use_threads(threads, model.denoiser.backend)
    release_threads()


load.__doc__ = "\n\n".join([str(load.__doc__), *(f"    {name}: {one.says}" for name, one in LOADING.items())])


def _model_of(
    loaded: Loaded, weights: Backbone | ModelWeights, calibrations: Mapping[str, Calibration], **how: Any
) -> Model:
    said: dict[str, Any] = {"family": loaded.family, "defaults": loaded.decode, "sampling": loaded.sampling}
    return Model(weights, loaded.tokenizer, calibrations=calibrations, concepts=loaded.concepts, **said, **how)
