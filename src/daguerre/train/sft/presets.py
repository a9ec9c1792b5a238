"""Losses of supervised fine-tuning by name: what each family trained with, and the table [sft] of a recipe.

With A the answer's tokens of a text, M those that are masked, and t the share |M| / |A|, a loss is

    sum over the texts of sum over M of w(t) CE, divided by a norm,

and beside it, in causal context, `clean` times the mean next-token loss over the answers' tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from daguerre.errors import InputError, UnsupportedError
from daguerre.instructions import TASKS
from daguerre.models.core.config import ModelConfig
from daguerre.noise.process import process_of
from daguerre.train.keys import Section, key
from daguerre.train.objectives import TIMES, WEIGHTS, Objective

AUTO = "auto"
NORMALIZERS = ("answer", "supervised", "masked", "window")
LEVELS = ("text", "block")
PADDINGS = ("supervised", "unsupervised", "rainbow")
CART = "cart"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A loss of supervised fine-tuning.

    times, weight  as those of an objective; the weight "cart" is Dream's: half the sum over visible tokens of
                   p (1 - p)^(d - 1), d their distance (arXiv 2508.15487)
    normalizer     "answer": each text's sum is divided by its answer's length, and the mean is taken over texts;
                   "supervised": by the number of answers' tokens of a micro-batch; "masked": by the number of its
                   masked ones; "window": by that of all micro-batches of a step
    levels         a noise level is drawn for each "text", or each "block" of it, in block and causal context
    complementary  a text is there twice, the second time with the masks where the first has none
    clean          weight of the mean next-token loss of answers, where clean rows predict
    padding        what follows an answer; see `Sft`
    """

    times: str = "uniform"
    weight: str = "one"
    normalizer: str = "supervised"
    levels: str = "block"
    complementary: bool = False
    clean: float = 1.0
    padding: str = "unsupervised"


PRESETS: dict[str, Preset] = {
    "daguerre": Preset(times="half_full"),
    "ar": Preset(),
    "llada": Preset(weight="elbo", normalizer="answer", levels="text", padding="supervised"),
    "dream": Preset(weight="elbo", normalizer="masked", levels="text", padding="supervised"),
    "dream_cart": Preset(weight=CART, normalizer="masked", levels="text", padding="supervised"),
    "nemotron": Preset(normalizer="window"),
    "llada2": Preset(times="clipped", normalizer="masked", levels="text", complementary=True, padding="supervised"),
    "sdar": Preset(weight="elbo", padding="supervised"),
    "fast_dllm": Preset(normalizer="masked", complementary=True),
}
OF_FAMILY = {name: name for name in ("llada", "dream", "nemotron", "llada2", "sdar", "fast_dllm")}
OF_FAMILY["llada_moe"] = "llada"
"""The preset of each family that has one of its own; others have that of their context."""
_noise = partial(key, default=None, methods=("sft",))


@dataclass(frozen=True, kw_only=True)
class Sft(Section, place="sft."):
    """What a recipe says of supervised fine-tuning: the preset, and what differs from it.

    `padding` is what follows an answer, up to the longest text of a micro-batch in full context, and to the end of the
    block in block context: "supervised": ends of text, which are trained as the answer is (LLaDA); "unsupervised":
    nothing in full context, and masks that are no targets in block context (Fast-dLLM v2); "rainbow": an end of text
    and then `rainbow` distinct tokens in turn, which are trained (arXiv 2510.03680).
    """

    preset: str = key("loss; auto: by family or context", AUTO, names=(AUTO, *PRESETS))
    times: str | None = _noise("how noise levels are drawn", names=TIMES)
    weight: str | None = _noise("weight by noise level", names=(*WEIGHTS, CART))
    normalizer: str | None = _noise("divides the loss", names=NORMALIZERS)
    levels: str | None = _noise("unit of a noise level", names=LEVELS)
    complementary: bool | None = _noise("each text is used twice, with complementary masks")
    clean: float | None = _noise("weight of the next-token loss of answers", low=0)
    padding: str | None = key("what follows an answer", None, names=PADDINGS)
    packing: bool | None = key("several texts share a sequence; none: if answers have no padding", None)
    cart: float = key("p of the weight cart", 0.1, above=0, below=1)
    errors: float = key("share of tokens that a corruption changes; of edits, at most", 0.1, above=0, below=1)
    rainbow: int = key("distinct tokens that cycle after an end of text, with padding rainbow", 7, low=1)
    held_out: float = key("share of the rows held out", 0.1, above=0, below=1)
    late: float = _noise("how much likelier masks are at a block's end; 0: as anywhere", default=0.0, low=0)
    gaps: float = _noise(
        "share of the texts that are noised in a gap of an answer, with text behind it", default=0.0, low=0, high=1
    )
    keep: float = _noise("weight of KL(start || model) on plain text; 0: the text is learned", default=0.0, low=0)
    keep_of: str = key("a model in place of the start, for keep", "")
    tasks: Sequence[str] = key("tasks that the rows teach and the server then answers", (), names=TASKS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_of and not self.keep:
            raise InputError("recipe: sft.keep_of names the model whose predictions sft.keep keeps: set sft.keep, too")


@dataclass(frozen=True, kw_only=True)
class AnswerLoss(Preset):
    """The loss of a run: a preset, with what the recipe changes, and the facts of the model.

    objective  draws noise levels, and weighs masks
    packing    several texts share a sequence
    cart       p of the weight "cart"
    errors     share of the tokens that a stage's corruption changes
    late       the last token of a block is masked as if e^late times likelier than the first
    gaps       share of the texts that are noised in a gap
    """

    name: str
    objective: Objective
    packing: bool
    cart: float
    errors: float
    late: float = 0.0
    gaps: float = 0.0

    @property
    def noisy(self) -> bool:
        """Whether answers are noised at all."""
        return self.objective.layout != "next_token"


def taught(options: Sft | None) -> dict[str, list[str]]:
    """What a model says of what it was trained to do."""
    return {} if options is None or not options.tasks else {"tasks": list(options.tasks)}


def preset_for(config: ModelConfig, family: str | None) -> str:
    """The name of the preset of a family, or else of a context."""
    if family in OF_FAMILY:
        return OF_FAMILY[family]
    if config.context == "full":
        return "dream" if config.shift else "llada"
    if config.context == "block":
        return "fast_dllm" if config.shift else "sdar"
    if config.mask_id is None:
        return "ar"
    return "nemotron" if config.masks_in_place else "daguerre"


def answer_loss(options: Sft, config: ModelConfig, family: str | None) -> AnswerLoss:
    """The loss that a recipe asks for, on a model. InputError or UnsupportedError where the two do not fit."""
    name = preset_for(config, family) if options.preset == AUTO else options.preset
    given = {f.name: getattr(options, f.name) for f in fields(Preset) if getattr(options, f.name) is not None}
    chosen = replace(PRESETS[name], **given)
    layout = _layout(config, name)
    pads = config.context == "full" and chosen.padding != "unsupervised"
    packing = not pads if options.packing is None else options.packing
    if packing and pads:
        raise InputError(
            f'packed texts have no padding: set sft.padding = "unsupervised", not {chosen.padding!r}, or leave out '
            "sft.packing"
        )
    if chosen.complementary and layout == "next_token":
        raise InputError("sft.complementary needs masks, and this loss has none: leave it out")
    objective = Objective(
        layout=layout,
        times=chosen.times,
        weight="one" if chosen.weight == CART else chosen.weight,
        clean=chosen.clean,
        process=None if config.process == "absorbing" else process_of(config),
        shift=config.shift,
        block_size=config.block_size,
    )
    if options.gaps and (layout != "blocks" or config.null_id is None or config.masks_in_place):
        raise InputError("sft.gaps are for causal context with masks and a gap filler: leave it out")
    if options.gaps and chosen.complementary:
        raise InputError("sft.gaps and sft.complementary exclude each other: leave out one")
    values = {f.name: getattr(chosen, f.name) for f in fields(Preset)}
    values |= {name: getattr(options, name) for name in ("cart", "errors", "late", "gaps")}
    return AnswerLoss(name=name, objective=objective, packing=packing, **values)


def _layout(config: ModelConfig, preset: str) -> str:
    """How answers are noised in a model's context: a layout of `train.objectives`."""
    if config.context == "reordered":
        raise UnsupportedError("no loss of answers has reordered context: start from another model")
    if config.context == "block" and config.shift and config.anchor != "clean":
        raise UnsupportedError(
            "block context with a shift and a noisy anchor has no loss of answers: take another model"
        )
    if config.context == "causal" and config.process != "absorbing":
        raise UnsupportedError(
            "no loss of answers is built for a canvas that is noised by other tokens behind a causal text, as "
            "DiffusionGemma's is: take another model"
        )
    if preset == "ar":
        if config.context != "causal" or not config.shift:
            raise InputError(f'sft.preset = "ar" needs causal context and a shift, and the model has {config.context}')
        return "next_token"
    if config.mask_id is None and config.process == "absorbing":
        raise InputError(f'the model has no mask token, which the loss {preset!r} needs: take sft.preset = "ar"')
    return {"full": "full", "block": "bd3", "causal": "blocks"}[config.context]
