"""A recipe: everything that decides a training run, in one TOML file; a key it leaves out has the default here.

Unknown keys are errors with the nearest name; `--set section.key=value` replaces single values.
"""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from daguerre.errors import CheckpointError, InputError, unknown
from daguerre.models.core.attention import ATTN_IMPLS
from daguerre.models.core.config import ModelConfig, ModelShape
from daguerre.models.core.limits import NAMES
from daguerre.models.scaling import read_scaling
from daguerre.models.tokenizer import Tokenizer
from daguerre.noise.process import process_of
from daguerre.train.concept_loss import ConceptTraining
from daguerre.train.convert import CONVERSIONS, Convert
from daguerre.train.data import Mixture
from daguerre.train.distill.options import Distill
from daguerre.train.distill.start import check_distill
from daguerre.train.lora import Lora
from daguerre.train.objectives import Objective, Parts
from daguerre.train.precision import PRECISIONS
from daguerre.train.prefer.options import Prefer
from daguerre.train.reinforce.options import Reinforce
from daguerre.train.sft.presets import Sft
from daguerre.train.stage import Stage, at_least

OWN = "own"
"""The name of a vocabulary that is made from the text that is trained on."""
FILES = ("python", "text")
"""What is read of a folder: Python source, or text of any language."""


@dataclass(frozen=True, kw_only=True)
class TrainedShape(ModelShape):
    """What a recipe says of a model that it trains from scratch."""

    def __post_init__(self) -> None:
        at_least(1, self, "width", "num_layers", "num_heads", "num_kv_heads", "mlp_width", "max_positions")
        for name, known in NAMES.items():
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        if (self.context == "block") != (self.block_size is not None and self.block_size > 0):
            raise InputError('recipe: model.block_size, 1 or more, belongs to context = "block", which needs it')
        if self.context == "reordered":
            raise InputError("recipe: no layout of training has reordered context: take another model.context")
        if self.context == "block" and self.shift:
            raise InputError("recipe: a model with block context cannot be shifted: set model.shift = false")
        if self.experts is not None:
            raise InputError("recipe: model.experts cannot be trained from scratch: no loss balances them")
        if self.time_input and self.context != "full":
            raise InputError('recipe: model.time_input needs model.context = "full"')
        if self.process != "absorbing" and (self.shift or not self.time_input):
            raise InputError(f"recipe: the {self.process} process needs model.time_input = true, model.shift = false")
        try:
            self.config(vocab_size=16, mask_id=3, eos_id=2, bos_id=1, pad_id=0)
        except CheckpointError as error:
            raise InputError(f"recipe: model: {error}") from None

    def config(self, **facts: Any) -> ModelConfig:
        """The config of such a model, with the facts of its vocabulary."""
        return ModelConfig(**facts, **{f.name: getattr(self, f.name) for f in fields(self)})


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """Muon on hidden matrices, AdamW on the rest, concept heads at a rate of their own; linear warm-up, stable, linear
    decay to zero over the last share.

    `warmup` and `decay` are shares of the run; `ema` is the decay of the weight average per step. After `passes` over
    the training text rates also fall with the square of the number of passes, so that a small text is not learned by
    heart however long the run; 0 is no such limit.
    """

    muon_lr: float = 0.02
    muon_momentum: float = 0.95
    adamw_lr: float = 4e-3
    concepts_lr: float = 4e-3
    weight_decay: float = 0.1
    clip: float = 1.0
    warmup: float = 0.02
    decay: float = 0.6
    ema: float = 0.999
    passes: float = 0.0

    def __post_init__(self) -> None:
        at_least(0, self, *(f.name for f in fields(self)))
        for name in ("muon_momentum", "warmup", "decay", "ema"):
            if getattr(self, name) > 1:
                raise InputError(f"recipe: optim.{name} is a share of one, not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Share(Parts):
    """One objective of the mixture and its share of the sequences."""

    share: float


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole run. The budget is `steps`, `minutes`, or whichever ends first; 0 means no such limit.

    `anneal` converts a causal model to full context: over that share of the run its attention to what follows opens,
    edge by edge at random; 0 is at once. `draft_head` trains a draft head of that inner width, and nothing else
    (`daguerre.train.drafting`); a model that has none gets one. With `draft_rank` it also trains low-rank weights of
    that rank, which act on the masked rows of drafts alone (`daguerre.train.acceptance`). `concepts` trains concept
    heads with the model (`daguerre.train.concept_loss`), in a corpus of Python. `lora` trains factors of low rank
    beside the matrices of a model (`daguerre.train.lora`), `train` the weights that it names
    (`daguerre.train.chosen`). With `checkpoint_layers` the inner results of layers are computed again in the backward
    pass, which takes less memory and a third more time. Of the processes that `torchrun` starts, `tensor_parallel`
    share the matrices of each layer (`daguerre.train.devices`). `precision` is "auto", "bf16"
    or "float32" (`daguerre.train.precision`), `attn_impl` a key of ATTN_IMPLS. With `sft` the data is prompts and
    answers (`daguerre.train.sft`), in place of a `mixture` of objectives on plain text; with `prefer` it is prompts
    with two answers each, of which one is preferred (`daguerre.train.prefer`), and with `reinforce` prompts, whose
    answers the model draws (`daguerre.train.reinforce`); `convert` makes an autoregressive model one of block or full
    context first (`daguerre.train.convert`), and `distill` teaches a model to decode answers in fewer steps
    (`daguerre.train.distill`). A checkpoint is due after
    `checkpoint_minutes`, and after every `checkpoint_steps` if those are not 0; held-out figures after every
    `eval_steps`, and at the end. `rope_scaling`, such as "yarn:4", gives the model to start from more positions
    (`daguerre.models.scaling`).
    """

    name: str
    tokenizer: str
    model: TrainedShape | None = None
    mixture: Mapping[str, Share] = field(default_factory=dict)
    sft: Sft | None = None
    prefer: Prefer | None = None
    reinforce: Reinforce | None = None
    convert: Convert | None = None
    distill: Distill | None = None
    stages: Sequence[Stage]
    optim: Optimization = field(default_factory=Optimization)
    seed: int = 0
    steps: int = 0
    minutes: float = 0.0
    anneal: float = 0.0
    rope_scaling: str = ""
    draft_head: int = 0
    draft_rank: int = 0
    concepts: ConceptTraining | None = None
    lora: Lora | None = None
    train: Sequence[str] = ()
    checkpoint_layers: bool = False
    tensor_parallel: int = 1
    files: str = "python"
    precision: str = "auto"
    attn_impl: str = "matmul"
    compile: bool = False
    loaders: int = 0
    log_steps: int = 10
    eval_steps: int = 200
    checkpoint_minutes: float = 1.0
    checkpoint_steps: int = 0

    def __post_init__(self) -> None:
        at_least(0, self, "seed", "steps", "minutes", "anneal", "draft_head", "draft_rank", "loaders")
        if self.anneal > 1:
            raise InputError(f"recipe: anneal is a share of the run, not {self.anneal}")
        at_least(0, self, "eval_steps", "checkpoint_steps", "checkpoint_minutes")
        at_least(1, self, "log_steps", "tensor_parallel")
        if not self.steps and not self.minutes:
            raise InputError("a recipe needs a budget: set `steps` or `minutes` (or pass --max-minutes)")
        if self.draft_rank and not self.draft_head:
            raise InputError("recipe: draft_rank needs draft_head: both are trained on drafts, and all else is frozen")
        self._check_trained()
        if self.rope_scaling and (self.model is not None or self.convert is not None):
            raise InputError("recipe: rope_scaling is for a model to start from, without [model] and [convert]")
        if self.rope_scaling:
            read_scaling(self.rope_scaling)
        if self.files not in FILES:
            raise unknown("files", self.files, FILES)
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if self.attn_impl not in ATTN_IMPLS:
            raise unknown("attn_impl", self.attn_impl, ATTN_IMPLS)
        if not self.stages or any(a.until >= b.until for a, b in pairwise(self.stages)):
            raise InputError("a recipe needs [[stages]] in the order of their `until`")
        if self.stages[-1].until < 1.0:
            raise InputError("the last stage must have `until = 1.0`")
        self._check_sft()
        self._check_reinforce()
        if self.prefer is not None:
            self._check_prefer()
        elif self.sft is None and self.reinforce is None:
            self.make_mixture(self.model)

    def _check_sft(self) -> None:
        if self.distill is not None:
            check_distill(self.sft, self.stages, self.model is not None or self.convert is not None)
        if self.sft is None:
            if any(stage.block_size or stage.corruption != "none" for stage in self.stages):
                raise InputError("recipe: stages.N.block_size and corruption belong to [sft]: leave them out")
        elif self.mixture or self.draft_head or self.concepts is not None:
            raise InputError("recipe: [sft] trains answers and nothing else: leave out mixture, draft_head, concepts")
        elif self.sft.keep and (self.distill is not None or self.convert is not None or self.model is not None):
            raise InputError("recipe: sft.keep keeps what a trained model does: leave out distill, convert and model")
        if self.convert is not None and (self.sft is None or self.model is not None):
            raise InputError("recipe: [convert] needs [sft], and a model to start from in place of [model]")
        opens = self.convert is not None and CONVERSIONS[self.convert.to]["context"] == "full"
        if self.sft is not None and self.anneal and not opens:
            raise InputError("recipe: anneal opens the attention of a model that becomes full: it needs [convert]")

    def _check_prefer(self) -> None:
        given = (self.mixture, self.sft, self.draft_head, self.concepts, self.convert, self.anneal)
        if any(given) or self.model is not None:
            raise InputError(
                "recipe: [prefer] changes what a model prefers and nothing else: leave out model, mixture, sft, "
                "draft_head, concepts, convert and anneal, and name the model with --from"
            )

    def _check_reinforce(self) -> None:
        if self.reinforce is None:
            return
        names = "mixture sft prefer distill model draft_head concepts convert loaders anneal"
        for name in names.split():
            if getattr(self, name):
                raise InputError(f"recipe: [reinforce] trains what a model draws, and nothing else: leave out {name}")
        if self.lora is not None and self.lora.dropout:
            raise InputError("recipe: [reinforce] compares a model's answers with its own: set lora.dropout = 0.0")
        stage, group = self.stages[0], self.reinforce.group
        if len(self.stages) > 1 or stage.sequences * stage.micro_batches % group:
            raise InputError(
                f"recipe: [reinforce] needs one stage, whose sequences times micro_batches are groups of {group}"
            )

    def _check_trained(self) -> None:
        """InputError for two answers to the question which weights are trained."""
        named = {"train": bool(self.train), "[lora]": self.lora is not None, "draft_head": bool(self.draft_head)}
        named["[concepts]"] = self.concepts is not None
        given = [name for name, is_given in named.items() if is_given]
        if len(given) > 1:
            raise InputError(f"recipe: {given[0]} and {given[1]} both say which weights are trained: leave out one")

    def make_mixture(self, model: TrainedShape | ModelConfig | None = None) -> Mixture:
        """The mixture, for a model of these facts; None: shifted. Only a whole ModelConfig says what noise may draw."""
        facts: dict[str, Any] = {} if model is None else {"shift": model.shift, "block_size": model.block_size}
        if isinstance(model, ModelConfig) and model.process != "absorbing":
            facts["process"] = process_of(model)
        names = [f.name for f in fields(Parts)]
        objectives = {
            name: Objective(**{part: getattr(share, part) for part in names}, **facts)
            for name, share in self.mixture.items()
        }
        return Mixture(objectives, {name: share.share for name, share in self.mixture.items()})

    def model_config(self, tokenizer: Tokenizer) -> ModelConfig:
        """The model to train from scratch; it has a gap filler only if infilling teaches it where gaps end."""
        if self.model is None:
            raise InputError(f"recipe {self.name!r} has no [model]: start it from a model with --from")
        special = {f"{n}_id": getattr(tokenizer, f"{n}_id") for n in ("mask", "eos", "bos", "pad")}
        if "infill" in self.layouts:
            special["null_id"] = tokenizer.null_id
        return self.model.config(vocab_size=tokenizer.vocab_size, **special)

    @property
    def layouts(self) -> set[str]:
        """The layouts of the mixture."""
        return {share.layout for share in self.mixture.values()}

    def stage(self, progress: float) -> Stage:
        return next((s for s in self.stages if progress < s.until), self.stages[-1])


def _build(kind: Any, values: Any, where: str) -> Any:
    """Turn parsed TOML into the type `kind`, strictly; `where` is the dotted place for errors."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if values is None else _build(args[0], values, where)
    if origin is typing.Literal:
        return _plain(str, values, where)  # the dataclass knows what it may be
    if origin is not None and issubclass(origin, Mapping):
        return {k: _build(args[1], v, f"{where}{k}.") for k, v in _table(values, where).items()}
    if origin is not None and issubclass(origin, Sequence):
        if not isinstance(values, list | tuple):
            raise InputError(f"recipe: {where.rstrip('.')} must be a list, not {values!r}")
        return tuple(_build(args[0], v, f"{where}{i}.") for i, v in enumerate(values))
    if is_dataclass(kind):
        return _build_dataclass(kind, _table(values, where), where)
    return _plain(kind, values, where)


def _build_dataclass(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    for key in table:
        if key not in hints:
            raise InputError(f"recipe: {unknown('key', where + key, [where + f.name for f in fields(kind)])}")
    try:
        return kind(**{k: _build(hints[k], v, f"{where}{k}.") for k, v in table.items()})
    except (TypeError, CheckpointError) as error:
        raise InputError(f"recipe: {where or 'top level'}: {error}") from None


def _plain(kind: Any, value: Any, where: str) -> Any:
    """A number, a word or a truth value; a whole number may stand for a float."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"recipe: {where.rstrip('.')} must be {kind.__name__}, not {value!r}")
    return value


def _table(values: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise InputError(f"recipe: {where.rstrip('.') or 'the file'} must be a table")
    return values


def recipe_path(name: str) -> Path:
    """A path as given, or a recipe of that name (small, race/mdlm): from the installed package, or the repository."""
    given = Path(name)
    if given.is_file():
        return given
    if given.suffix == ".toml":
        raise InputError(f"no recipe at {name}")
    folders = (Path(__file__).parents[1] / "recipes", Path(__file__).parents[3] / "recipes")
    known = {p.relative_to(f).with_suffix("").as_posix(): p for f in folders for p in f.glob("**/*.toml")}
    if name not in known:
        raise unknown("recipe", name, known)
    return known[name]


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply `section.key=value` overrides (values in TOML, bare words as text)."""
    path = recipe_path(name)
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the recipe {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"recipe {path.name} is not valid TOML: {error}") from None
    for item in overrides:
        _override(values, item)
    return _build(Recipe, values, "")


def recipe_from_dict(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that `asdict` wrote into a run's folder, with `section.key=value` overrides. Version 0.1 had other
    names for two options."""
    values = dict(_table(values, ""))
    if "backend" in values:
        values["attn_impl"] = values.pop("backend")
    if isinstance(values.get("mixture"), Mapping):
        values["mixture"] = {name: _renamed_teacher(share) for name, share in values["mixture"].items()}
    for item in overrides:
        _override(values, item)
    return _build(Recipe, values, "")


def changed_settings(before: Recipe, now: Recipe) -> list[str]:
    """Each setting that two recipes differ in, as "sft.keep 12.0 -> 6.0"."""
    old, new = (dict(_settings(asdict(recipe), "")) for recipe in (before, now))
    return [f"{key} {old.get(key)!r} -> {new.get(key)!r}" for key in old | new if old.get(key) != new.get(key)]


def _settings(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """A table's settings with dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _renamed_teacher(share: Any) -> Any:
    named_own = isinstance(share, Mapping) and share.get("teacher") == "own"
    return {**share, "teacher": "self"} if named_own else share


def _override(values: dict[str, Any], item: str) -> None:
    key, sign, text = item.partition("=")
    if not sign or not key:
        raise InputError(f"--set takes key=value, for example --set optim.muon_lr=0.01, not {item!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text
    *parents, last = key.split(".")
    place: Any = values
    for parent in parents:
        if isinstance(place, list):
            if not parent.isdecimal() or int(parent) >= len(place):
                raise InputError(f"--set {key}: name the entry by its number, 0 to {len(place) - 1}")
            place = place[int(parent)]
        else:
            if place.get(parent) is None:  # a section that a saved recipe says it does not have
                place[parent] = {}
            place = place[parent]
        if not isinstance(place, dict | list):
            raise InputError(f"--set {key}: {parent} is a value, not a table")
    if isinstance(place, list):
        raise InputError(f"--set {key}: name the entry by its number and its key, for example stages.0.length")
    place[last] = value
