"""A recipe: everything that decides a training run, in one TOML file; a key it leaves out has the default here.

Unknown keys are errors with the nearest name; `--set section.key=value` replaces single values. How keys are declared:
`daguerre.train.keys`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from daguerre.errors import InputError, unknown
from daguerre.models.core.attention import ATTN_IMPLS
from daguerre.models.core.config import ModelConfig
from daguerre.models.scaling import read_scaling
from daguerre.models.tokenizer import Tokenizer
from daguerre.noise.process import process_of
from daguerre.train.concept_loss import ConceptTraining
from daguerre.train.convert import CONVERSIONS, Convert
from daguerre.train.data import ObjectiveMixture
from daguerre.train.distill.options import Distill
from daguerre.train.keys import Section, build, key, table
from daguerre.train.lora import Lora
from daguerre.train.objectives import Objective, Parts
from daguerre.train.precision import PRECISIONS
from daguerre.train.prefer.options import Prefer
from daguerre.train.reinforce.options import Reinforce
from daguerre.train.sft.presets import Sft
from daguerre.train.shape import TrainedShape
from daguerre.train.stage import Stage
from daguerre.train.teach.options import Rollouts, Teaching

OWN = "own"
"""The name of a vocabulary that is made from the text that is trained on."""
FILES = ("python", "text")
"""What is read of a folder: Python source, or text of any language."""
BASE = "base"
"""The word of a file that is no key of a recipe: another recipe, from which it differs."""
MIXTURE = "mixture"
METHODS = ("reinforce", "rollouts", "distill", "prefer", "sft", "concepts", "draft_head")
"""Methods of training, each with the name of the key that asks for it; a recipe with none of them trains a mixture."""
PLAIN, ANSWERS = (MIXTURE, "concepts", "draft_head"), ("sft", "distill", "prefer")
"""Methods that train on plain text, and methods that train on answers."""
_size, _share = partial(key, low=0), partial(key, low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class Optimization(Section, place="optim."):
    """Muon on hidden matrices, AdamW on the rest, concept heads at a rate of their own; linear warm-up, stable, linear
    decay to zero over the last share. Shares are of the run.
    """

    muon: bool = key("Muon for hidden matrices; false: AdamW for all, which is cheaper for small steps", True)
    muon_lr: float = key("learning rate of Muon, for hidden matrices", 0.02, low=0)
    muon_momentum: float = key("momentum of Muon", 0.95, low=0, high=1)
    adamw_lr: float = key("learning rate of AdamW, for all other weights", 4e-3, low=0)
    concepts_lr: float = key("learning rate of AdamW for concept heads", 4e-3, low=0)
    weight_decay: float = key("weight decay, times the learning rate", 0.1, low=0)
    clip: float = key("greatest gradient norm of a step", 1.0, low=0)
    warmup: float = key("share of the run in which rates rise", 0.02, low=0, high=1)
    decay: float = key("last share of the run, in which rates fall to 0", 0.6, low=0, high=1)
    ema: float = key("decay of the averaged weights, which are saved", 0.999, low=0, high=1)
    passes: float = key(
        "passes over the text after which rates also fall by the square of their number; 0: never", 0.0, low=0
    )


@dataclass(frozen=True, kw_only=True)
class Share(Parts):
    """One objective of the mixture and its share of the sequences."""

    share: float = key("share of the sequences")


@dataclass(frozen=True, kw_only=True)
class Recipe(Section):
    """A whole run. The budget is `steps`, `minutes`, or whichever ends first."""

    name: str = key("name of the run and of its folder, runs/NAME")
    tokenizer: str = key("2k, 8k or bytes of the package; own: made from the files; or a tokenizer.json", "2k")
    model: TrainedShape | None = key("shape of a model to train from scratch", None, methods=(*PLAIN, "sft"))
    mixture: Mapping[str, Share] = key("objectives on plain text", dict, methods=PLAIN)
    sft: Sft | None = key("learns answers to prompts", None, methods=("sft", "distill", "rollouts"))
    prefer: Prefer | None = key("learns from chosen and rejected answers", None, methods=("prefer",))
    reinforce: Reinforce | None = key("learns from rewards for its answers", None)
    convert: Convert | None = key("turns an autoregressive model into one that fills masks", None, methods=("sft",))
    teacher: Teaching | None = key("learns from a frozen autoregressive model", None, methods=("sft", "rollouts"))
    rollouts: Rollouts | None = key("learns on its own answers; needs [teacher] and [sft]", None)
    distill: Distill | None = key("learns to decode in fewer steps; needs [sft]", None, methods=("distill",))
    stages: Sequence[Stage] = key("lengths and batches, by share of the run")
    optim: Optimization = key("the optimizer", Optimization)
    seed: int = key("seed of every random number", 0, low=0)
    steps: int = key("budget in optimizer steps; 0: no such limit", 0, low=0)
    minutes: float = key("budget in minutes, saving included; 0: no such limit", 0.0, low=0, option="--max-minutes")
    anneal: float = _share("share of the run over which attention opens", 0.0, methods=(*PLAIN, "sft"))
    rope_scaling: str = key('more positions for the model at the start, as KIND:FACTOR (yarn:4); "": none', "")
    draft_head: int = _size("inner width of a draft head, trained alone; 0: none", 0, methods=("draft_head",))
    draft_rank: int = _size("rank of weights for masked rows of drafts; needs draft_head", 0, methods=("draft_head",))
    concepts: ConceptTraining | None = key(
        "trains concept heads with the model, on Python", None, methods=("concepts",)
    )
    lora: Lora | None = key("trains an adapter; the model at the start stays as it is", None)
    train: Sequence[str] = key(
        "weights to train: layers.4, mlp, layers.*.attention, norms, embedding, head; none: all", ()
    )
    checkpoint_layers: bool = key("recomputes layers in the backward pass: less memory, a third more time", False)
    tensor_parallel: int = key("processes of torchrun that share each layer's matrices", 1, low=1)
    files: str = key("files read from a folder; text: of any language", "python", names=FILES)
    precision: str = key("type of matrix products; auto: bf16 where it is native", "auto", names=PRECISIONS)
    attn_impl: str = key("implementation of attention; sdpa is for long windows", "matmul", names=ATTN_IMPLS)
    compile: bool = key("compiles the layers with torch.compile", False)
    loaders: int = _size("processes that make batches; 0: none", 0, methods=(*PLAIN, *ANSWERS))
    log_steps: int = key("steps between printed lines, without a terminal", 10, low=1)
    eval_steps: int = key("steps between held-out measurements; 0: only at the end", 200, low=0)
    checkpoint_minutes: float = key("minutes between checkpoints", 1.0, low=0)
    checkpoint_steps: int = key("steps between additional checkpoints; 0: none", 0, low=0)

    @property
    def method(self) -> str:
        """What the recipe trains by: one of METHODS, or "mixture"."""
        return next((name for name in METHODS if getattr(self, name)), MIXTURE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.steps and not self.minutes:
            raise InputError("a recipe needs a budget: set `steps` or `minutes` (or pass --max-minutes)")
        if self.draft_rank and not self.draft_head:
            raise InputError("recipe: draft_rank needs draft_head: both are trained on drafts, and all else is frozen")
        self._check_trained()
        if self.rope_scaling and (self.model is not None or self.convert is not None):
            raise InputError("recipe: rope_scaling is for a model to start from, without [model] and [convert]")
        if self.rope_scaling:
            read_scaling(self.rope_scaling)
        if not self.stages or any(a.until >= b.until for a, b in pairwise(self.stages)):
            raise InputError("a recipe needs [[stages]] in the order of their `until`")
        if self.stages[-1].until < 1.0:
            raise InputError("the last stage must have `until = 1.0`")
        self._check_method()
        if self.method in PLAIN:
            self.make_mixture(self.model)

    def _check_method(self) -> None:
        """InputError for keys that the method does not read, and for those that it needs."""
        if self.distill is not None and self.sft is None:
            raise InputError("recipe: [distill] needs [sft], which says how prompts and answers are read")
        if self.rollouts is not None and (self.sft is None or self.teacher is None):
            raise InputError("recipe: [rollouts] needs [teacher], and [sft], which says how prompts are read")
        for name, methods in self.unread(self.method):
            read = ", ".join(methods)
            raise InputError(f"recipe: {self.method} does not read {name}, a key of {read}: leave out {name}")
        if self.sft is not None and self.sft.keep and (self.convert is not None or self.model is not None):
            raise InputError("recipe: sft.keep keeps what a trained model does: leave out convert and model")
        if self.teacher is not None and self.sft is not None and self.sft.keep:
            raise InputError("recipe: [teacher] and sft.keep both say what the model is held to: leave out one")
        if self.convert is not None and self.model is not None:
            raise InputError("recipe: [convert] needs a model to start from: leave out [model]")
        opens = self.convert is not None and CONVERSIONS[self.convert.to]["context"] == "full"
        if self.sft is not None and self.anneal and not opens:
            raise InputError("recipe: anneal opens the attention of a model that becomes full: it needs [convert]")
        if self.reinforce is not None:
            self._check_reinforce(self.reinforce)

    def _check_reinforce(self, options: Reinforce) -> None:
        if self.lora is not None and self.lora.dropout:
            raise InputError("recipe: [reinforce] compares a model's answers with its own: set lora.dropout = 0.0")
        stage = self.stages[0]
        if len(self.stages) > 1 or stage.sequences * stage.micro_batches % options.group:
            raise InputError(
                "recipe: [reinforce] needs one stage, whose sequences times micro_batches are groups of "
                f"{options.group}"
            )

    def _check_trained(self) -> None:
        """InputError for two answers to the question which weights are trained."""
        named = {"train": bool(self.train), "[lora]": self.lora is not None, "draft_head": bool(self.draft_head)}
        named["[concepts]"] = self.concepts is not None
        given = [name for name, is_given in named.items() if is_given]
        if len(given) > 1:
            raise InputError(f"recipe: {given[0]} and {given[1]} both say which weights are trained: leave out one")

    def make_mixture(self, model: TrainedShape | ModelConfig | None = None) -> ObjectiveMixture:
        """The mixture, for a model of these facts; None: shifted. Only a whole ModelConfig says what noise may draw."""
        facts: dict[str, Any] = {} if model is None else {"shift": model.shift, "block_size": model.block_size}
        if isinstance(model, ModelConfig) and model.process != "absorbing":
            facts["process"] = process_of(model)
        names = [f.name for f in fields(Parts)]
        objectives = {
            name: Objective(**{part: getattr(share, part) for part in names}, **facts)
            for name, share in self.mixture.items()
        }
        return ObjectiveMixture(objectives, {name: share.share for name, share in self.mixture.items()})

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
    """Read a recipe and apply `section.key=value` overrides (values in TOML, bare words as text).

    `base` names a recipe that gives all keys which this one lacks: tables are joined, lists and values replaced.
    """
    values = _read(recipe_path(name))
    if (base := values.pop(BASE, None)) is not None:
        whole = _read(recipe_path(str(base)))
        if BASE in whole:
            raise InputError(f"recipe: base = {base!r} has a base itself: name that one, and repeat what differs")
        values = _joined(whole, values)
    for item in overrides:
        _override(values, item)
    return build(Recipe, values)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the recipe {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"recipe {path.name} is not valid TOML: {error}") from None


def _joined(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A table with the values of another in place of its own."""
    pairs = {
        k: _joined(base[k], v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v
        for k, v in values.items()
    }
    return base | pairs


def recipe_from_dict(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that `asdict` wrote into a run's folder, with `section.key=value` overrides. Version 0.1 had other
    names for two options."""
    values = dict(table(values, ""))
    if "backend" in values:
        values["attn_impl"] = values.pop("backend")
    if isinstance(values.get("mixture"), Mapping):
        values["mixture"] = {name: _renamed_teacher(share) for name, share in values["mixture"].items()}
    for item in overrides:
        _override(values, item)
    return build(Recipe, values)


def changed_settings(before: Recipe, now: Recipe) -> list[str]:
    """Each setting that two recipes differ in, as "sft.keep 12.0 -> 6.0"."""
    old, new = (dict(_settings(asdict(recipe), "")) for recipe in (before, now))
    return [f"{key} {old.get(key)!r} -> {new.get(key)!r}" for key in old | new if old.get(key) != new.get(key)]


def _settings(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """A table's settings with dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _renamed_teacher(share: Any) -> Any:
    named_own = isinstance(share, Mapping) and share.get("teacher") == "own"
    return {**share, "teacher": "self"} if named_own else share


def _override(values: dict[str, Any], item: str) -> None:
    name, sign, text = item.partition("=")
    if not sign or not name:
        raise InputError(f"--set takes key=value, for example --set optim.muon_lr=0.01, not {item!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text
    *parents, last = name.split(".")
    place: Any = values
    for parent in parents:
        if isinstance(place, list):
            if not parent.isdecimal() or int(parent) >= len(place):
                raise InputError(f"--set {name}: name the entry by its number, 0 to {len(place) - 1}")
            place = place[int(parent)]
        else:
            if place.get(parent) is None:  # a section that a saved recipe says it does not have
                place[parent] = {}
            place = place[parent]
        if not isinstance(place, dict | list):
            raise InputError(f"--set {name}: {parent} is a value, not a table")
    if isinstance(place, list):
        raise InputError(f"--set {name}: name the entry by its number and its key, for example stages.0.length")
    place[last] = value
