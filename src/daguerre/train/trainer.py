"""The training loop: one for CPU and CUDA, and for every method (`train/method.py`).

A run folder holds recipe.json, checkpoints/, log.csv, curves.png, TensorBoard events, and model/, which `daguerre.load`
reads. A run with a budget in steps ends with the same weights however often it was killed and resumed (float32, one
device and processor).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from daguerre.errors import DataError, TrainingError
from daguerre.files import write_json
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import Batch, LossReport, batch_seed
from daguerre.train.budget import CHECKPOINT, GRADIENTS, STEP, RunBudget, RunProgress
from daguerre.train.checkpoint import find_checkpoint, is_disk_full, load_checkpoint
from daguerre.train.devices import Devices
from daguerre.train.feed import Feed
from daguerre.train.figures import HeldFigures
from daguerre.train.held_files import HeldFiles
from daguerre.train.memory import memory_of
from daguerre.train.methods import method_of
from daguerre.train.origin import keep
from daguerre.train.recipe import Recipe
from daguerre.train.report import Reporter, StepTotals
from daguerre.train.shards import Shard, data_facts
from daguerre.train.spending import SLOW, Spending
from daguerre.train.stage import Stage
from daguerre.train.stopping import stopped_by_signals
from daguerre.train.trained_model import TrainedModel
from daguerre.train.user_folder import files_read

RECIPE = "recipe.json"
DATA = "data"
"""The folder in a run of the corpus that was made for it."""
Corpus = Path | Callable[[Tokenizer, ModelConfig], Path]


class Trainer:
    """One run. `run()` returns when the budget is spent or a SIGINT or SIGTERM has asked it to stop after its step.

    `data` is a corpus, or makes one for a tokenizer and a model: it is called when all else has been checked. `clock`
    gives the seconds that a budget in minutes counts, from its reading `began` on (None: from now on).
    """

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        data: Corpus,
        *,
        start_from: str | None = None,
        resume: bool = False,
        device: str | torch.device = "cpu",
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        began: float | None = None,
    ) -> None:
        self.devices = Devices()
        self.device = self.devices.start(recipe, torch.device(device))
        self.recipe, self.out, quiet = recipe, out, quiet or not self.devices.is_first
        self.budget = RunBudget(recipe.steps, recipe.minutes, RunProgress(), clock, began)
        found = find_checkpoint(out, resume)
        tensors, state = load_checkpoint(found) if found else ({}, {})
        self.devices.wait()  # until all have seen whether there is a run
        torch.manual_seed(recipe.seed)
        self.method = method_of(recipe, quiet=quiet)
        self.trained = TrainedModel(recipe, out, self.method, self.devices, self.device, start_from, data, state)
        self.model, self.tokenizer = self.trained.model, self.trained.tokenizer
        self._open_data(data)
        self.stop_asked, self._resumed = False, found is not None
        out.mkdir(parents=True, exist_ok=True)
        if self.devices.is_first:
            keep(start_from, out, self._resumed, recipe.convert, self.trained.config)
        self.method.keep(out, self._resumed)
        if found is not None:
            self._restore(found, tensors, state)
        own = self.devices.folder(out)
        own.mkdir(parents=True, exist_ok=True)
        write_json(own / RECIPE, asdict(recipe), indent=2)
        self.reporter = Reporter(own, recipe, self.progress.step if found else None, quiet=quiet)
        self.spending = Spending(recipe, self.budget, self.reporter.say)
        files = HeldFiles(self.shard, self.val_shard, self.tokenizer, self.trained.config, own)
        self.figures = HeldFigures(self.trained, files, self.budget, self.spending, self.reporter)
        self._say_what_is_trained(files)

    @property
    def progress(self) -> RunProgress:
        """Where the run stands."""
        return self.budget.progress

    def _open_data(self, data: Corpus) -> None:
        made = self.devices.agreed(lambda: str(data(self.tokenizer, self.trained.config) if callable(data) else data))
        folder = Path(made)
        self.data = data_facts(folder, self.out)
        self.shard = Shard.open(folder, "train", self.tokenizer.sha256)
        val_shard = Shard.open(folder, "val", self.tokenizer.sha256)
        self.val_shard = val_shard if val_shard.num_documents else self.shard
        self.method.open(self.shard, self.val_shard)

    def _say_what_is_trained(self, files: HeldFiles) -> None:
        say, trained = self.reporter.say, self.trained
        say(trained.precision)
        if trained.adapter is not None:
            say(trained.adapter.line(self.model))
        if (rows := self.method.largest()) is not None:
            say(memory_of(self.model, self.recipe, rows, trained.dtype, self.devices.size).line())
        if line := files_read(self.shard.folder):
            say(line)
        say(self.method.line())
        if not self._resumed:
            files.forget()
        if files.files and self.val_shard is not self.shard:
            say(files.line())

    # ---- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> Path:
        """Train to the end of the budget; the folder of the exported model. TrainingError when it cannot go on."""
        try:
            with stopped_by_signals(self._ask_to_stop):
                self._saved_at = time.monotonic()
                if not self._resumed:  # so that a kill before the next one loses nothing that was set up
                    self.save()
                self.figures.leave_out()
                self._take_steps()
                finished = self.budget.share() >= 1.0
                self.budget.close()
                self.save()
                self.figures.after()
                self.reporter.say("the budget is spent" if finished else "stopped early; --resume goes on")
                made = self.export()
                self.devices.leave()
                return made
        except OSError as error:
            reason = "the disk is full: free room" if is_disk_full(error) else f"{error}: fix this"
            raise TrainingError(
                f"{self.out} cannot be written, its checkpoints are whole; {reason}, then --resume"
            ) from error
        finally:
            self.reporter.close()

    def _take_steps(self) -> None:
        with Feed(self.method.batches, self.recipe.loaders, self.devices.numbers) as feed:
            self._measure_before()
            self.recipe = self.spending.shrunk()
            while not self.stop_asked and self.spending.begins_step(share := self.budget.share()):
                self.reporter.step(self._step(share, feed), share)
                self._after_step()
                self.stop_asked = self.devices.any(self.stop_asked)
        if not self.progress.step and not self.stop_asked:
            raise self.spending.too_short()

    def _after_step(self) -> None:
        """A checkpoint and held-out figures, when they are due."""
        recipe, step = self.recipe, self.progress.step
        late = self.devices.any(time.monotonic() - self._saved_at > 60 * recipe.checkpoint_minutes)
        if late or (recipe.checkpoint_steps and step % recipe.checkpoint_steps == 0):
            self.save()
        if recipe.eval_steps and step % recipe.eval_steps == 0:
            self.figures.measure()

    def _measure_before(self) -> None:
        """Report held-out figures of the model that a run starts from, where its budget has time for more than that."""
        begins = not self.progress.step and not self.stop_asked
        if self.trained.starts and begins and self.budget.share() < 1.0:
            self.figures.before()
        if begins and self.recipe.minutes and self.budget.share() < 1.0 and self.method.forecasts:
            self._forecast()

    def _forecast(self) -> None:
        """Say what the budget buys, from the time of a micro-batch's gradients, which are thrown away."""
        stage, num_tokens = self.recipe.stage(0.0), 0
        self.reporter.phase("measuring the speed")
        with torch.random.fork_rng(devices=[]):
            for index in range(2):  # the first one also warms up, and counts alone where it is slow
                batch = self.method.batches.draw(index, stage)
                with self.budget.timing(GRADIENTS):
                    self._gradients(batch, 0.0, index, stage)
                num_tokens = batch.num_tokens
                if self.budget.seconds[GRADIENTS] > SLOW:
                    break
        self.model.zero_grad(set_to_none=True)
        self.spending.say_what_it_buys(stage, num_tokens, self.shard.num_tokens)

    def _step(self, share: float, feed: Feed) -> dict[str, Any]:
        """Gradients of the stage's micro-batches, clipped, one update, one update of the average; a row of log.csv."""
        stage, totals = self.recipe.stage(share), StepTotals()
        with self.budget.timing(STEP):
            with self.budget.timing(GRADIENTS):
                drawn = self.method.step(feed.take(self.progress.micro, stage), self.devices.mean)
                for index, batch in zip(self.devices.numbers(self.progress.micro, stage), drawn, strict=True):
                    totals.add(self._gradients(batch, share, index, stage), batch, stage)
                self.devices.add_up(totals)
            passes = self.progress.tokens / self.shard.num_tokens
            norm, factor = self.trained.update(share, passes, totals.loss, self.progress.step + 1)
        self.progress.step += 1
        self.progress.micro += stage.micro_batches
        self.progress.tokens += totals.num_tokens
        self.budget.tick()
        self.spending.expect_evaluation(self.method.figures.num_rows, totals.num_rows)
        return totals.row(self.progress, norm, factor, self.budget.seconds[STEP], stage)

    def _gradients(self, batch: Batch, share: float, index: int, stage: Stage) -> LossReport:
        """Add the gradients of micro-batch number `index`; its loss."""
        adapter = self.trained.adapter
        if adapter is not None and adapter.options.dropout:  # which a resumed run draws again
            torch.manual_seed(batch_seed(self.recipe.seed, index))
        report = self.method.report(batch, share, index, stage)
        (report.loss / self.devices.share(stage)).backward()
        return report

    def _ask_to_stop(self) -> bool:
        """Stop after the step in progress; whether that was asked before."""
        before, self.stop_asked = self.stop_asked, True
        if not before:
            with suppress(RuntimeError):  # the signal came while the same stream was being written
                self.reporter.say("stopping after this step; the run can be resumed with --resume")
        return before

    def save(self) -> None:
        """Write a checkpoint; the time it takes counts against a budget in minutes."""
        with self.budget.timing(CHECKPOINT):
            self.trained.save(self.progress, self.recipe, self.data)
        self._saved_at = time.monotonic()

    def _restore(self, path: Path, tensors: dict[str, Any], state: dict[str, Any]) -> None:
        """Go on from a checkpoint. CheckpointError or DataError when it is of another tokenizer, model or data."""
        self.trained.check(path, tensors, state)
        if state.get("data", {}).get("splits") not in (None, self.data["splits"]):
            raise DataError(f"{self.shard.folder} is not what {path} was trained on: leave --data out")
        self.trained.restore(path, tensors, state)
        self.budget.go_on_from(RunProgress(**state["progress"]))

    def export(self) -> Path:
        """Write the averaged weights, or an adapter; the folder."""
        return self.trained.export(self.progress, self.shard.folder)
