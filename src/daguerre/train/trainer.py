"""The training loop: one for CPU and CUDA.

A run folder holds recipe.json, checkpoints/, log.csv, curves.png, TensorBoard events, and model/, which `daguerre.load`
reads. A run with a budget in steps ends with the same weights however often it was killed and resumed (float32, one
device).
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.errors import CheckpointError, DataError, InputError, TrainingError, UnsupportedError
from daguerre.files import atomic_write
from daguerre.models.backbone import Backbone
from daguerre.models.config import ModelConfig
from daguerre.models.loading import load_model, save_model
from daguerre.models.tokenizer import DEFAULTS, Tokenizer
from daguerre.train.batch import Batch, BatchLoss, batch_loss, opened_over_time
from daguerre.train.checkpoint import (
    CHECKPOINTS,
    find_checkpoint,
    is_disk_full,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from daguerre.train.data import Cutter, MicroBatches, Windows
from daguerre.train.drafting import check_drafts, draft_head_loss, with_draft_head
from daguerre.train.examples import NUM_LEVELS
from daguerre.train.feed import Feed
from daguerre.train.monitor import Held, held_out, mean_by_level
from daguerre.train.objectives import CONTEXT_OF
from daguerre.train.optim import Average, Optimizer
from daguerre.train.own import with_own_words
from daguerre.train.recipe import Recipe, Stage
from daguerre.train.report import Reporter, StepReport
from daguerre.train.shards import Shard, read_meta

VAL_SEED = 1
VAL_SEQUENCES = 4
VAL_MICRO_BATCHES = 12
PROMPTS, PROMPT_LENGTH = 64, 96
OWN_DATA = "data"  # the folder in a run of the corpus that was made for it

Corpus = Path | Callable[[Tokenizer], Path]


def named_tokenizer(name: str) -> Tokenizer:
    """A tokenizer of the package ("2k", "8k") or the path of a tokenizer.json."""
    return Tokenizer.default(name) if name in DEFAULTS else Tokenizer.load(name)


@dataclass
class Progress:
    """Where a run stands: finished steps, micro-batches drawn, tokens of text seen, minutes spent."""

    step: int = 0
    micro: int = 0
    tokens: int = 0
    minutes: float = 0.0


class Trainer:
    """One run. `run()` returns when the budget is spent or a SIGINT or SIGTERM has asked it to stop after its step.

    `data` is a corpus, or makes one for a tokenizer: it is called when all else has been checked. `clock` gives the
    seconds that a budget in minutes counts.
    """

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        data: Corpus,
        *,
        start_from: str | None = None,
        resume: bool = False,
        device: str = "cpu",
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recipe, self.out, self.device, self.clock = recipe, out, torch.device(device), clock
        found = find_checkpoint(out, resume)
        saved = load_checkpoint(found) if found else None
        torch.manual_seed(recipe.seed)
        self.model, self.tokenizer = self._make_model(start_from, data, saved[1] if saved else {})
        self.optimizer = Optimizer(self.model, recipe.optim)
        self.average = Average(self.model, recipe.optim.ema)
        self.progress = Progress()
        folder = data(self.tokenizer) if callable(data) else data
        self.data = _data_facts(folder, out)
        self.shard = Shard.open(folder, "train", self.tokenizer.sha256)
        self.batches = self._micro_batches(self.shard, recipe.seed)
        self.val_shard = Shard.open(folder, "val", self.tokenizer.sha256)
        no_val = not self.val_shard.num_documents
        self.stop_asked = False
        self._measured_step = -1
        out.mkdir(parents=True, exist_ok=True)
        if found is not None and saved is not None:
            self._restore(found, *saved)
        with atomic_write(out / "recipe.json") as file:
            file.write((json.dumps(asdict(recipe), indent=2) + "\n").encode())
        self.reporter = Reporter(out, recipe, self.progress.step, quiet=quiet)
        if no_val:
            self.val_shard = self.shard
            self.reporter.say("the data has no validation split: held-out figures are of the training text itself")
        self.forward_model: Any = self.model
        self.loss: BatchLoss = draft_head_loss if recipe.draft_head else batch_loss
        if recipe.compile:
            for layer in self.model.layers:
                layer.compile(dynamic=False)

    def _make_model(self, start_from: str | None, data: Corpus, saved: dict[str, Any]) -> tuple[Backbone, Tokenizer]:
        """A fresh model of the recipe's shape, the one to start from, or, to be filled, the one that was saved."""
        if start_from is not None:
            model, tokenizer = load_model(start_from, dtype=torch.float32, device="cpu")
            model = _converted(self.recipe, model, tokenizer).requires_grad_(True).train()
        elif self.recipe.model is None and "model" in saved and isinstance(data, Path):
            model, tokenizer = Backbone(ModelConfig.from_dict(saved["model"])), Tokenizer.load(data / "tokenizer.json")
        else:
            tokenizer = named_tokenizer(self.recipe.tokenizer)
            config = self.recipe.model_config(tokenizer)
            if "model" in saved:  # a run from a model may have what no recipe gives it
                own = ModelConfig.from_dict(saved["model"])
                config = replace(config, draft_head=own.draft_head, null_id=own.null_id)
            model = Backbone(config).initialize(self.recipe.seed, scale=0.25)
        _check_trainable(model.config, self.recipe)
        if self.recipe.draft_head:
            model = with_draft_head(model, self.recipe.draft_head, self.recipe.seed)
        return model.to(self.device), tokenizer

    def _micro_batches(self, shard: Shard, seed: int) -> MicroBatches:
        windows = Windows(shard, self.tokenizer.bos_id)
        return MicroBatches(windows, Cutter(self.tokenizer), self.recipe.make_mixture(self.model.config), seed)

    # ---- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> Path:
        """Train to the end of the budget; the folder of the exported model. TrainingError when it cannot go on."""
        try:
            with self._signals():
                self._counted, self._saved_at = self.clock(), time.monotonic()
                with Feed(self.batches, self.recipe.loaders) as feed:
                    while not self.stop_asked and (share := self._share_done()) < 1.0:
                        self.reporter.step(self._step(share, feed))
                        self._after_step()
                self.save()
                finished = self._share_done() >= 1.0
                self._measure()
                self.reporter.say("the budget is spent" if finished else "stopped early; --resume goes on")
                return self.export()
        except OSError as error:
            reason = "the disk is full: free room" if is_disk_full(error) else f"{error}: mend it"
            raise TrainingError(
                f"{self.out} cannot be written, its checkpoints are whole; {reason}, then --resume"
            ) from error
        finally:
            self.reporter.close()

    def _after_step(self) -> None:
        """Held-out figures and a checkpoint, when they are due."""
        recipe, step = self.recipe, self.progress.step
        if recipe.eval_steps and step % recipe.eval_steps == 0:
            self._measure()
        late = time.monotonic() - self._saved_at > 60 * recipe.checkpoint_minutes
        if late or (recipe.checkpoint_steps and step % recipe.checkpoint_steps == 0):
            self.save()

    def _measure(self) -> None:
        """Report held-out figures, once a step."""
        if self._measured_step != self.progress.step:
            self._measured_step = self.progress.step
            self.reporter.held(self.progress.step, self.evaluate())

    def _share_done(self) -> float:
        """Share of the budget spent, in [0, 1]: of steps or of minutes, whichever is further along."""
        self._tick()
        by_steps = self.progress.step / self.recipe.steps if self.recipe.steps else 0.0
        by_minutes = self.progress.minutes / self.recipe.minutes if self.recipe.minutes else 0.0
        return min(1.0, max(by_steps, by_minutes))

    def _tick(self) -> None:
        now = self.clock()
        self.progress.minutes += (now - self._counted) / 60
        self._counted = now

    def _step(self, share: float, feed: Feed) -> StepReport:
        """Gradients of the stage's micro-batches, clipped, one update, one update of the average."""
        stage, began = self.recipe.stage(share), time.monotonic()
        totals = StepTotals()
        for index, batch in enumerate(feed.take(self.progress.micro, stage), self.progress.micro):
            batch = self._annealed(batch.to(self.device), share, index)
            with self._precision():
                batch = with_own_words(self.model, batch, self.recipe.backend)
                report = self.loss(self.forward_model, batch, self.recipe.backend)
            (report.loss / stage.micro_batches).backward()
            totals.add(report, batch.num_tokens, stage)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optim.clip))
        if not (math.isfinite(totals.loss) and math.isfinite(norm)):
            saved = list_checkpoints(self.out / CHECKPOINTS)
            raise TrainingError(
                f"step {self.progress.step + 1} has a loss of {totals.loss} and a gradient of norm {norm}: lower "
                "optim.muon_lr and optim.adamw_lr, then "
                + (f"--resume: {saved[-1].name} is whole" if saved else "start again: nothing was saved yet")
            )
        factor = self.optimizer.step(share)
        self.average.update(self.model)
        self.progress.step += 1
        self.progress.micro += stage.micro_batches
        self.progress.tokens += totals.num_tokens
        self._tick()
        return totals.report(self.progress, norm, factor, share, time.monotonic() - began, stage)

    def _annealed(self, batch: Batch, share: float, index: int) -> Batch:
        """Micro-batch number `index` as the model sees it at this share of the run: see `Recipe.anneal`."""
        if share >= self.recipe.anneal:
            return batch
        return opened_over_time(batch, share / self.recipe.anneal, np.random.default_rng([self.recipe.seed, index, 1]))

    def _precision(self) -> Any:
        enabled = self.recipe.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    # ---- held-out figures -----------------------------------------------------------------------------------------

    def evaluate(self) -> Held:
        """Figures of the averaged weights on fixed batches and prompts of the validation split."""
        if not hasattr(self, "_val"):
            maker = self._micro_batches(self.val_shard, VAL_SEED)
            length = self.recipe.stages[0].length
            batches = [maker.make(i, VAL_SEQUENCES, length).to(self.device) for i in range(VAL_MICRO_BATCHES)]
            rng = np.random.default_rng(VAL_SEED)
            drawn: list[np.ndarray] = []
            for _ in range(50 * PROMPTS):
                window = maker.windows.draw(PROMPT_LENGTH, rng)
                if len(window) == PROMPT_LENGTH and len(drawn) < PROMPTS:
                    drawn.append(window)
            prompts = np.stack(drawn) if drawn else np.full((1, 2), self.model.config.bos_id)
            self._val = batches, torch.from_numpy(prompts).to(self.device)
        batches, prompts_BP = self._val
        num_bytes = [len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.vocab_size)]
        with self.averaged_weights(), self._precision():
            num_bytes_V = torch.tensor(num_bytes, device=self.device)
            return held_out(self.model, batches, prompts_BP, num_bytes_V, self.recipe.backend, self.loss)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """The model with its averaged weights inside the block, its own afterwards."""
        own = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        try:
            self._load_weights(self.average.values)
            yield
        finally:
            self._load_weights(own)

    @torch.no_grad()
    def _load_weights(self, values: dict[str, torch.Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(values[name])

    # ---- saving ---------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint; the time it takes counts against a budget in minutes."""
        tensors = {
            "model": {n: p.detach() for n, p in self.model.named_parameters()},
            "average": self.average.values,
            "optimizer": self.optimizer.state_dict(),
        }
        state = {
            "progress": asdict(self.progress),
            "average_count": self.average.count,
            "recipe": asdict(self.recipe),
            "model": asdict(self.model.config),
            "tokenizer_sha256": self.tokenizer.sha256,
            "data": self.data,
        }
        save_checkpoint(self.out / CHECKPOINTS, self.progress.step, tensors, state)
        self._saved_at = time.monotonic()

    def _restore(self, path: Path, tensors: dict[str, Any], state: dict[str, Any]) -> None:
        """Go on from a checkpoint. CheckpointError or DataError when it is of another tokenizer, model or data."""
        if state["tokenizer_sha256"] != self.tokenizer.sha256:
            raise CheckpointError(f"{path} was trained with another tokenizer than the data has: pass that run's data")
        if _shapes(tensors["model"]) != _shapes(dict(self.model.named_parameters())):
            raise CheckpointError(f"{path} holds another model than the recipe describes: resume with its own recipe")
        if state.get("data", {}).get("splits") not in (None, self.data["splits"]):
            raise DataError(f"{self.shard.folder} is not what {path} was trained on: leave --data out")
        self._load_weights(tensors["model"])
        self.average.values = {n: tensors["average"][n].to(self.device) for n in self.average.values}
        self.average.count = state["average_count"]
        self.optimizer.load_state_dict(tensors["optimizer"])
        self.progress = Progress(**state["progress"])

    def export(self) -> Path:
        """Write the averaged weights as a model folder."""
        folder = self.out / "model"
        averaged = Backbone(self.model.config)
        averaged.load_state_dict(self.average.values)
        extra = {"trained": asdict(self.progress), "recipe": self.recipe.name}
        return save_model(folder, averaged, self.tokenizer, extra=extra)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM ask the loop to stop after the step in progress; a second one interrupts at once."""

        def ask(number: int, frame: object) -> None:
            if self.stop_asked:
                raise KeyboardInterrupt
            self.stop_asked = True
            with suppress(RuntimeError):  # the signal came while the same stream was being written
                self.reporter.say("stopping after this step; the run can be resumed with --resume")

        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _data_facts(data: Path, run: Path) -> dict[str, Any]:
    """Where a run's data is, and what tells it from other data."""
    place, out = data.resolve(), run.resolve()
    return {
        "path": str(place.relative_to(out) if place.is_relative_to(out) else place),
        "splits": read_meta(data)["splits"],
    }


def _check_trainable(config: ModelConfig, recipe: Recipe) -> None:
    """InputError or UnsupportedError for what the objectives cannot train."""
    longest = max(stage.length for stage in recipe.stages)
    if longest > config.max_positions:
        raise InputError(f"a stage has windows of {longest} tokens, the model's context is {config.max_positions}")
    for name, objective in recipe.make_mixture(config).objectives.items():
        if objective.context != config.context:
            fitting = ", ".join(layout for layout, context in CONTEXT_OF.items() if context == config.context)
            raise UnsupportedError(
                f"mixture.{name} has the layout {objective.layout!r}, which is for {objective.context} context, and "
                f"the model has {config.context} context: its layouts are {fitting}"
            )
    if recipe.draft_head:
        check_drafts(recipe.make_mixture(config).objectives)
    if recipe.anneal and not (config.context == "full" and config.shift):
        raise UnsupportedError('anneal opens the attention of a causal model: it needs context = "full" and a shift')
    if config.null_id is None and any(share.layout == "infill" for share in recipe.mixture.values()):
        raise UnsupportedError("the model has no null token, which infilling needs: take infill out of the mixture")


def _converted(recipe: Recipe, model: Backbone, tokenizer: Tokenizer) -> Backbone:
    """The model to start from, as the recipe's [model] has it: a causal one turns full where that asks for it.

    Shift and weights are kept (DiffuGPT, Gong et al. 2024). InputError when [model] differs in anything else.
    """
    if recipe.model is None:
        if recipe.anneal:
            raise InputError('recipe: anneal converts a causal model: it needs a [model] with context = "full"')
        return model
    converts = (model.config.context, recipe.model.context, model.config.shift) == ("causal", "full", True)
    _check_same_shape(recipe, replace(model.config, context="full") if converts else model.config, tokenizer)
    if not converts:
        return model
    full = Backbone(recipe.model_config(tokenizer))
    full.load_state_dict(model.state_dict())
    return full


def _check_same_shape(recipe: Recipe, config: ModelConfig, tokenizer: Tokenizer) -> None:
    """InputError when a recipe's own [model] is not the model that the run starts from."""
    for name, asked in asdict(recipe.model).items():  # type: ignore[arg-type]
        if asked != getattr(config, name):
            raise InputError(
                f"the recipe has model.{name} = {asked}, the model to start from {getattr(config, name)}: "
                "take a recipe without [model], such as adapt, or leave out --from"
            )
    if named_tokenizer(recipe.tokenizer) != tokenizer:
        raise InputError(
            f"the recipe has tokenizer = {recipe.tokenizer!r}, the model to start from another: take a recipe without "
            "[model], such as adapt, or leave out --from"
        )


def _shapes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


class StepTotals:
    """Sums over the micro-batches of one step."""

    def __init__(self) -> None:
        self.loss, self.clean_sum, self.clean_count, self.num_tokens = 0.0, 0.0, 0, 0
        self.level_sum, self.level_count = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS, dtype=np.int64)

    def add(self, report: Any, num_tokens: int, stage: Stage) -> None:
        self.loss += float(report.loss.detach()) / stage.micro_batches
        self.num_tokens += num_tokens
        self.clean_sum += report.clean_sum
        self.clean_count += report.clean_count
        self.level_sum += report.level_sum
        self.level_count += report.level_count

    def report(
        self, progress: Progress, norm: float, factor: float, share: float, seconds: float, stage: Stage
    ) -> StepReport:
        return StepReport(
            step=progress.step,
            tokens=progress.tokens,
            minutes=progress.minutes,
            share=share,
            length=stage.length,
            loss=self.loss,
            clean=self.clean_sum / self.clean_count if self.clean_count else math.nan,
            by_level=tuple(mean_by_level(self.level_sum, self.level_count)),
            level_count=tuple(self.level_count.tolist()),
            grad_norm=norm,
            lr_factor=factor,
            tokens_per_second=self.num_tokens / seconds,
        )
