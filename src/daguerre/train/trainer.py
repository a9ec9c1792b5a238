"""The training loop: one for CPU and CUDA.

A run folder holds recipe.json, checkpoints/, log.csv, curves.png, TensorBoard events, and model/, which `daguerre.load`
reads. A run with a budget in steps ends with the same weights however often it was killed and resumed (float32, one device).
"""

from __future__ import annotations

import copy
import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.errors import CheckpointError, InputError, TrainingError
from daguerre.models.backbone import Backbone
from daguerre.models.loading import load_model, save_model
from daguerre.models.tokenizer import DEFAULTS, Tokenizer
from daguerre.train.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from daguerre.train.data import Cutter, MicroBatches, Windows
from daguerre.train.feed import Feed
from daguerre.train.monitor import Held, held_out
from daguerre.train.objectives import NUM_LEVELS, batch_loss
from daguerre.train.optim import Average, Optimizer
from daguerre.train.recipe import Recipe, Stage
from daguerre.train.report import Reporter, StepReport
from daguerre.train.shards import Shard

VAL_SEED = 1
VAL_SEQUENCES = 4
VAL_MICRO_BATCHES = 12
PROMPTS, PROMPT_LENGTH = 64, 96


def named_tokenizer(name: str) -> Tokenizer:
    """A tokenizer of the package ("2k", "8k") or the path of a tokenizer.json."""
    return Tokenizer.default(name) if name in DEFAULTS else Tokenizer.load(name)


@dataclass
class Progress:
    """Where a run stands: finished steps, micro-batches drawn, clean tokens seen, minutes spent."""

    step: int = 0
    micro: int = 0
    tokens: int = 0
    minutes: float = 0.0


class Trainer:
    """One run. `run()` returns when the budget is spent or a SIGINT or SIGTERM has asked it to stop after its step."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        data: Path,
        *,
        start_from: str | None = None,
        resume: bool = False,
        device: str = "cpu",
        quiet: bool = False,
    ) -> None:
        self.recipe, self.out, self.device = recipe, out, torch.device(device)
        found = list_checkpoints(out / "checkpoints") if out.exists() else []
        if found and not resume:
            raise InputError(f"{out} holds a run already: pass --resume to go on with it, or another --out")
        if resume and not found:
            raise InputError(f"{out} holds no checkpoint to resume: start the run without --resume")
        self.tokenizer = named_tokenizer(recipe.tokenizer) if start_from is None else None
        torch.manual_seed(recipe.seed)
        self.model = self._make_model(start_from, data)
        self.optimizer = Optimizer(self.model, recipe.optim)
        self.average = Average(self.model, recipe.optim.ema)
        self.progress = Progress()
        self.shard = Shard.open(data, "train", self.tokenizer.sha256)
        self.batches = self._micro_batches(self.shard, recipe.seed)
        self.val_shard = Shard.open(data, "val", self.tokenizer.sha256)
        self.stop_asked = False
        out.mkdir(parents=True, exist_ok=True)
        if found:
            self._restore(found)
        (out / "recipe.json").write_text(json.dumps(asdict(recipe), indent=2) + "\n")
        self.reporter = Reporter(out, recipe, self.progress.step, quiet=quiet)
        self.forward_model: Any = self.model
        if recipe.compile:
            for layer in self.model.layers:
                layer.compile(dynamic=False)

    def _make_model(self, start_from: str | None, data: Path) -> Backbone:
        if start_from is None:
            assert self.tokenizer is not None
            config = self.recipe.model_config(self.tokenizer)
            model = Backbone(config).initialize(self.recipe.seed, scale=0.25)
        else:
            model, self.tokenizer = load_model(start_from, dtype=torch.float32, device="cpu")
            model.requires_grad_(True).train()
        longest = max(stage.length for stage in self.recipe.stages)
        if longest > model.config.max_positions:
            raise InputError(f"a stage has windows of {longest} tokens, the model's context is {model.config.max_positions}")
        return model.to(self.device)

    def _micro_batches(self, shard: Shard, seed: int) -> MicroBatches:
        assert self.tokenizer is not None
        windows = Windows(shard, self.tokenizer.bos_id)
        return MicroBatches(windows, Cutter(self.tokenizer), self.recipe.make_mixture(), seed)

    # ---- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> Path:
        """Train to the end of the budget; returns the folder of the exported model."""
        with self._signals(), Feed(self.batches, self.recipe.loaders) as feed:
            self._clock, self._saved_at = time.monotonic(), time.monotonic()
            while not self.stop_asked and (share := self._share_done()) < 1.0:
                report = self._step(share, feed)
                self.reporter.step(report)
                if self.recipe.eval_steps and self.progress.step % self.recipe.eval_steps == 0:
                    self.reporter.held(self.progress.step, self.evaluate())
                if time.monotonic() - self._saved_at > 60 * self.recipe.checkpoint_minutes:
                    self.save()
        self.save()
        finished = self._share_done() >= 1.0
        held = self.evaluate()
        self.reporter.held(self.progress.step, held)
        self.reporter.finish(finished, held)
        return self.export()

    def _share_done(self) -> float:
        """Share of the budget spent, in [0, 1]: of steps or of minutes, whichever is further along."""
        self._tick()
        by_steps = self.progress.step / self.recipe.steps if self.recipe.steps else 0.0
        by_minutes = self.progress.minutes / self.recipe.minutes if self.recipe.minutes else 0.0
        return min(1.0, max(by_steps, by_minutes))

    def _tick(self) -> None:
        now = time.monotonic()
        self.progress.minutes += (now - self._clock) / 60
        self._clock = now

    def _step(self, share: float, feed: Feed) -> StepReport:
        """Gradients of the stage's micro-batches, clipped, one update, one update of the average."""
        stage, began = self.recipe.stage(share), time.monotonic()
        totals = StepTotals()
        for batch in feed.take(self.progress.micro, stage):
            batch = batch.to(self.device)
            with self._precision():
                report = batch_loss(self.forward_model, batch, self.recipe.backend)
            (report.loss / stage.micro_batches).backward()
            totals.add(report, stage)
        if not math.isfinite(totals.loss):
            raise TrainingError(
                f"the loss is {totals.loss} at step {self.progress.step + 1}: lower optim.muon_lr and optim.adamw_lr, then "
                "--resume from the last checkpoint, which is whole"
            )
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optim.clip)
        factor = self.optimizer.step(share)
        self.average.update(self.model)
        self.progress.step += 1
        self.progress.micro += stage.micro_batches
        self.progress.tokens += totals.clean_count
        self._tick()
        return totals.report(self.progress, float(norm), factor, share, time.monotonic() - began, stage)

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
        with self.averaged_weights(), self._precision():
            per_token = self.val_shard.num_bytes / max(1, self.val_shard.num_tokens - self.val_shard.num_documents)
            return held_out(self.model, batches, prompts_BP, per_token, self.recipe.backend)

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
            "tokenizer_sha256": self.tokenizer.sha256,
        }
        save_checkpoint(self.out / "checkpoints", self.progress.step, tensors, state)
        self._saved_at = time.monotonic()

    def _restore(self, found: list[Path]) -> None:
        tensors, state = load_checkpoint(found[-1])
        if state["tokenizer_sha256"] != self.tokenizer.sha256:
            raise CheckpointError(f"{found[-1]} was trained with another tokenizer than the data has: pass that run's data")
        if set(tensors["model"]) != {n for n, _ in self.model.named_parameters()}:
            raise CheckpointError(f"{found[-1]} holds another model than the recipe describes: resume with its own recipe")
        self._load_weights(tensors["model"])
        self.average.values = {n: v.to(self.device) for n, v in tensors["average"].items()}
        self.average.count = state["average_count"]
        self.optimizer.load_state_dict(tensors["optimizer"])
        self.progress = Progress(**state["progress"])

    def export(self) -> Path:
        """Write the averaged weights as a model folder."""
        folder = self.out / "model"
        averaged = copy.deepcopy(self.model).cpu()
        with torch.no_grad():
            for name, parameter in averaged.named_parameters():
                parameter.copy_(self.average.values[name])
        save_model(folder, averaged, self.tokenizer, extra={"trained": asdict(self.progress), "recipe": self.recipe.name})
        return folder

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM ask the loop to stop after the step in progress; a second one interrupts at once."""

        def ask(number: int, frame: object) -> None:
            if self.stop_asked:
                raise KeyboardInterrupt
            self.stop_asked = True
            self.reporter.say("stopping after this step; the run can be resumed with --resume")

        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class StepTotals:
    """Sums over the micro-batches of one step."""

    def __init__(self) -> None:
        self.loss, self.clean_sum, self.clean_count = 0.0, 0.0, 0
        self.level_sum, self.level_count = np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS, dtype=np.int64)

    def add(self, report: Any, stage: Stage) -> None:
        self.loss += float(report.loss.detach()) / stage.micro_batches
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
            clean=self.clean_sum / max(1, self.clean_count),
            by_level=tuple((self.level_sum / np.maximum(1, self.level_count)).tolist()),
            level_count=tuple(self.level_count.tolist()),
            grad_norm=norm,
            lr_factor=factor,
            tokens_per_second=self.clean_count / seconds,
        )
