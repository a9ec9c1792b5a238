"""A recipe: everything that decides a training run, in one TOML file; a key it leaves out has the default here.

Unknown keys are errors with the nearest name; `--set section.key=value` replaces single values.
"""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from daguerre.errors import InputError, unknown
from daguerre.models.attention import BACKENDS
from daguerre.models.config import CONTEXTS, PROCESS_NAMES, ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.noise.process import process_of
from daguerre.train.data import MIN_WINDOW, Mixture
from daguerre.train.objectives import Objective, Parts


def _at_least(least: int, options: Any, *names: str) -> None:
    for name in names:
        if not getattr(options, name) >= least:
            raise InputError(f"recipe: {name} must be at least {least}, not {getattr(options, name)}")


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Shape of the backbone, widths in units, `max_positions` in tokens, and how it reads: see `ModelConfig`."""

    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    mlp_width: int
    max_positions: int
    context: str = "causal"
    shift: bool = True
    block_size: int | None = None
    process: str = "absorbing"
    time_input: bool = False

    def __post_init__(self) -> None:
        _at_least(1, self, *(f.name for f in fields(self) if f.type == "int"))
        if self.context not in CONTEXTS:
            raise unknown("context", self.context, CONTEXTS)
        if (self.context == "block") != (self.block_size is not None and self.block_size > 0):
            raise InputError('recipe: model.block_size, 1 or more, belongs to context = "block", which needs it')
        if self.context == "block" and self.shift:
            raise InputError("recipe: a model with block context cannot be shifted: set model.shift = false")
        if self.process not in PROCESS_NAMES:
            raise unknown("process", self.process, PROCESS_NAMES)
        if self.time_input and self.context != "full":
            raise InputError('recipe: model.time_input needs model.context = "full"')
        if self.process != "absorbing" and (self.shift or not self.time_input):
            raise InputError(f"recipe: the {self.process} process needs model.time_input = true, model.shift = false")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Windows of `length` tokens, `sequences` a micro-batch, `micro_batches` a step, until that share of the run."""

    until: float
    length: int
    sequences: int
    micro_batches: int

    def __post_init__(self) -> None:
        _at_least(MIN_WINDOW, self, "length")
        _at_least(1, self, "sequences", "micro_batches")


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """Muon on hidden matrices, AdamW on the rest; linear warm-up, stable, linear decay to zero over the last share.

    `warmup` and `decay` are shares of the run; `ema` is the decay of the weight average per step.
    """

    muon_lr: float = 0.02
    muon_momentum: float = 0.95
    adamw_lr: float = 4e-3
    weight_decay: float = 0.1
    clip: float = 1.0
    warmup: float = 0.02
    decay: float = 0.6
    ema: float = 0.999

    def __post_init__(self) -> None:
        _at_least(0, self, *(f.name for f in fields(self)))
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
    (`daguerre.train.drafting`); a model that has none gets one. A checkpoint is due after `checkpoint_minutes`, and
    after every `checkpoint_steps` if those are not 0; held-out figures after every `eval_steps`, and at the end.
    """

    name: str
    tokenizer: str
    model: ModelShape | None = None
    mixture: Mapping[str, Share]
    stages: Sequence[Stage]
    optim: Optimization = field(default_factory=Optimization)
    seed: int = 0
    steps: int = 0
    minutes: float = 0.0
    anneal: float = 0.0
    draft_head: int = 0
    precision: str = "bf16"
    backend: str = "matmul"
    compile: bool = False
    loaders: int = 0
    log_steps: int = 10
    eval_steps: int = 200
    checkpoint_minutes: float = 5.0
    checkpoint_steps: int = 0

    def __post_init__(self) -> None:
        _at_least(0, self, "seed", "steps", "minutes", "anneal", "draft_head", "loaders")
        if self.anneal > 1:
            raise InputError(f"recipe: anneal is a share of the run, not {self.anneal}")
        _at_least(0, self, "eval_steps", "checkpoint_steps", "checkpoint_minutes")
        _at_least(1, self, "log_steps")
        if not self.steps and not self.minutes:
            raise InputError("a recipe needs a budget: set `steps` or `minutes` (or pass --max-minutes)")
        if self.precision not in ("bf16", "float32"):
            raise unknown("precision", self.precision, ("bf16", "float32"))
        if self.backend not in BACKENDS:
            raise unknown("attention backend", self.backend, BACKENDS)
        if not self.stages or any(a.until >= b.until for a, b in pairwise(self.stages)):
            raise InputError("a recipe needs [[stages]] in the order of their `until`")
        if self.stages[-1].until < 1.0:
            raise InputError("the last stage must have `until = 1.0`")
        self.make_mixture(self.model)

    def make_mixture(self, model: ModelShape | ModelConfig | None = None) -> Mixture:
        """The mixture, for a model of these facts; None: shifted. Only a whole ModelConfig says what noise may draw."""
        facts: dict[str, Any] = {} if model is None else {"shift": model.shift, "block_size": model.block_size}
        if isinstance(model, ModelConfig) and model.process != "absorbing":
            facts["process"] = process_of(model)
        parts = {name: {k: v for k, v in asdict(s).items() if k != "share"} for name, s in self.mixture.items()}
        objectives = {name: Objective(**part, **facts) for name, part in parts.items()}
        return Mixture(objectives, {name: share.share for name, share in self.mixture.items()})

    def model_config(self, tokenizer: Tokenizer) -> ModelConfig:
        """The model to train from scratch; it has a null only if infilling teaches it where gaps end."""
        if self.model is None:
            raise InputError(f"recipe {self.name!r} has no [model]: start it from a model with --from")
        special = {f"{n}_id": getattr(tokenizer, f"{n}_id") for n in ("mask", "eos", "bos", "pad")}
        if any(share.layout == "infill" for share in self.mixture.values()):
            special["null_id"] = tokenizer.null_id
        return ModelConfig(vocab_size=tokenizer.vocab_size, **special, **asdict(self.model))

    def stage(self, progress: float) -> Stage:
        return next((s for s in self.stages if progress < s.until), self.stages[-1])


def _build(kind: Any, values: Any, where: str) -> Any:
    """Turn parsed TOML into the dataclass `kind`, strictly; `where` is the dotted place for errors."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if values is None else _build(args[0], values, where)
    if origin is not None and issubclass(origin, Mapping):
        return {k: _build(args[1], v, f"{where}{k}.") for k, v in _table(values, where).items()}
    if origin is not None and issubclass(origin, Sequence):
        if not isinstance(values, list | tuple):
            raise InputError(f"recipe: {where.rstrip('.')} must be a list, not {values!r}")
        return tuple(_build(args[0], v, f"{where}{i}.") for i, v in enumerate(values))
    if isinstance(kind, type) and is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        table = _table(values, where)
        for key in table:
            if key not in hints:
                raise InputError(f"recipe: {unknown('key', where + key, [where + f.name for f in fields(kind)])}")
        try:
            return kind(**{k: _build(hints[k], v, f"{where}{k}.") for k, v in table.items()})
        except TypeError as error:
            raise InputError(f"recipe: {where or 'top level'}: {error}") from None
    if kind is float and isinstance(values, int) and not isinstance(values, bool):
        return float(values)
    if not isinstance(values, kind) or (kind is int and isinstance(values, bool)):
        raise InputError(f"recipe: {where.rstrip('.')} must be {kind.__name__}, not {values!r}")
    return values


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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"recipe {path.name} is not valid TOML: {error}") from None
    for item in overrides:
        _override(values, item)
    return _build(Recipe, values, "")


def recipe_from_dict(values: Mapping[str, Any]) -> Recipe:
    """The recipe that `asdict` wrote into a checkpoint."""
    return _build(Recipe, values, "")


def _override(values: dict[str, Any], item: str) -> None:
    key, sign, text = item.partition("=")
    if not sign or not key:
        raise InputError(f"--set takes key=value, for example --set optim.muon_lr=0.01, not {item!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, last = key.split(".")
    place: Any = values
    for parent in parents:
        if isinstance(place, list):
            if not parent.isdecimal() or int(parent) >= len(place):
                raise InputError(f"--set {key}: name the entry by its number, 0 to {len(place) - 1}")
            place = place[int(parent)]
        else:
            place = place.setdefault(parent, {})
        if not isinstance(place, dict | list):
            raise InputError(f"--set {key}: {parent} is a value, not a table")
    if isinstance(place, list):
        raise InputError(f"--set {key}: name the entry by its number and its key, for example stages.0.length")
    place[last] = value
