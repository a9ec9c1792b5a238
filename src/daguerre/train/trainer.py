"""The training loop: one for CPU and CUDA.

A run folder holds recipe.json, checkpoints/, log.csv, curves.png, TensorBoard events, and model/, which `daguerre.load`
reads. A run with a budget in steps ends with the same weights however often it was killed and resumed (float32, one
device and processor).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.concepts.texts import catalog_of
from daguerre.errors import CheckpointError, DataError, TrainingError
from daguerre.files import atomic_write
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.loading import open_source
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.acceptance import MEASURES
from daguerre.train.batch import Batch, LossReport, batch_loss, batch_seed, opened_over_time
from daguerre.train.budget import (
    CHECKPOINT,
    CURVES,
    EVALUATION,
    FILES,
    GRADIENTS,
    STEP,
    Budget,
    RunProgress,
)
from daguerre.train.checkpoint import (
    CHECKPOINTS,
    find_checkpoint,
    is_disk_full,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from daguerre.train.chosen import choose_weights
from daguerre.train.concept_heads import count_concepts, initialize_heads
from daguerre.train.concept_loss import ConceptLoss, hidden_states
from daguerre.train.corpus_facts import data_facts, manifest_hash
from daguerre.train.devices import Devices
from daguerre.train.distill.loss import Distillation
from daguerre.train.evaluation import Evaluation
from daguerre.train.feed import Feed
from daguerre.train.held_files import HeldFiles
from daguerre.train.makers import BatchMaker, line_of, make_evaluation, make_loss, make_maker
from daguerre.train.memory import largest, memory_of
from daguerre.train.monitor import Held
from daguerre.train.optim import FACTORS, Average, Optimizer
from daguerre.train.origin import family_of, keep, tokenizer_of_run, write_model
from daguerre.train.precision import choose_precision
from daguerre.train.prefer.loss import PreferenceLoss
from daguerre.train.recipe import OWN, Recipe
from daguerre.train.reinforce.batches import PolicyBatches
from daguerre.train.reinforce.loss import RewardEvaluation
from daguerre.train.report import Reporter, StepReport, StepTotals
from daguerre.train.row_pool import DRAWN, RowPool, Rows, rows_of
from daguerre.train.self_generated import with_self_generated_tokens
from daguerre.train.sft.batches import with_common_norm
from daguerre.train.sft.evaluation import AnswerEvaluation
from daguerre.train.sft.keeping import KeepingLoss
from daguerre.train.sft.presets import taught
from daguerre.train.sft.start import loss_of_answers, prepared
from daguerre.train.sharded_checkpoint import Held as HeldState
from daguerre.train.sharded_checkpoint import load_shards, load_whole, save_shards
from daguerre.train.shards import Shard
from daguerre.train.spending import SLOW, Spending, seconds_a_row
from daguerre.train.stage import Stage
from daguerre.train.start import first_model
from daguerre.train.stopping import stopped_by_signals
from daguerre.train.user_folder import files_read, own_vocabulary

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
        self.recipe, self.out, self._quiet = recipe, out, quiet or not self.devices.is_first
        self.budget = Budget(recipe.steps, recipe.minutes, RunProgress(), clock, began)
        found = find_checkpoint(out, resume)
        saved = load_checkpoint(found) if found else None
        self.devices.wait()  # until all have seen whether there is a run
        torch.manual_seed(recipe.seed)
        self._make_model(start_from, data, saved[1] if saved else {})
        make = data if callable(data) else lambda *_: data
        self._open_data(Path(self.devices.agreed(lambda: str(make(self.tokenizer, self.model.config)))))
        self.stop_asked, self._resumed = False, found is not None
        self._adapts, self._measured_step = start_from is not None, -1
        self._acceptance: tuple[tuple[float, ...], ...] = ()
        self._pool: tuple[Stage, RowPool] | None = None
        out.mkdir(parents=True, exist_ok=True)
        if self.devices.is_first:
            keep(start_from, out, self._resumed, recipe.convert, self.model.config)
        if isinstance(self.loss, PreferenceLoss | KeepingLoss):
            self.loss.reference.keep(out, self._resumed, recipe.sft.keep_of if recipe.sft else "")
        if found is not None and saved is not None:
            self._restore(found, *saved)
        own = self.devices.folder(out)
        own.mkdir(parents=True, exist_ok=True)
        with atomic_write(own / RECIPE) as file:
            file.write((json.dumps(asdict(recipe), indent=2) + "\n").encode())
        self.reporter = Reporter(own, recipe, self.progress.step if found else None, quiet=self._quiet)
        self.spending = Spending(recipe, self.budget, self.reporter.say)
        self.dtype, line = choose_precision(recipe.precision, self.device)
        self.reporter.say(line)
        if self.adapter is not None:
            self.reporter.say(self.adapter.line(self.model))
        counted = self.loss is batch_loss or isinstance(self.loss, PreferenceLoss | KeepingLoss | Distillation)
        if counted or isinstance(self.batches, PolicyBatches):
            rows = largest(self.batches, recipe.stages)
            self.reporter.say(memory_of(self.model, recipe, rows, self.dtype, self.devices.size).line())
        if line := files_read(self.shard.folder):
            self.reporter.say(line)
        self.reporter.say(line_of(recipe, self.shard, self.val_shard))
        self.files = HeldFiles(self.shard, self.val_shard, self.tokenizer, self.model.config, own)
        if not self._resumed:
            self.files.forget()
        if self.files.files and self.val_shard is not self.shard:
            self.reporter.say(self.files.line())

    @property
    def progress(self) -> RunProgress:
        """Where the run stands."""
        return self.budget.progress

    def _make_model(self, start_from: str | None, data: Corpus, saved: dict[str, Any]) -> None:
        recipe, config = self.recipe, saved.get("model")
        start_from = start_from or saved.get("base", {}).get("path")
        saved_tokenizer = None
        if config is not None and recipe.model is None and isinstance(data, Path):
            saved_tokenizer = tokenizer_of_run(self.out, data, config)
        own = own_vocabulary(data) if recipe.tokenizer == OWN and start_from is None else None
        model, self.tokenizer = first_model(recipe, start_from, config, saved_tokenizer, own)
        had_heads = start_from is not None and open_source(Path(start_from)).config().concepts is not None
        self._fresh_heads = recipe.concepts is not None and not had_heads
        family = family_of(start_from, self.out)
        self.answers = loss_of_answers(recipe, model.config, family)
        model = prepared(model, recipe, self.answers, self.tokenizer)
        self.adapter = choose_weights(model, recipe, start_from, choose_precision(recipe.precision, self.device)[0])
        self.model = model.to(self.device)
        self.config = model.config
        self.devices.shard(self.model, choose_precision(recipe.precision, self.device)[0])
        self.optimizer = Optimizer(self.model, recipe.optim, self.devices.splits)
        self.average = Average(self.model, recipe.optim.ema)
        self.loss = make_loss(recipe, self.model, self.average, batch_loss)
        if recipe.compile:
            for layer in self.model.layers:
                layer.compile(dynamic=False)

    def _open_data(self, folder: Path) -> None:
        self.data = data_facts(folder, self.out)
        self.shard = Shard.open(folder, "train", self.tokenizer.sha256)
        self.batches = self._maker(self.shard, self.recipe.seed)
        val_shard = Shard.open(folder, "val", self.tokenizer.sha256)
        self.val_shard = val_shard if val_shard.num_documents else self.shard
        labeled = getattr(self.batches, "labeled", None)
        if labeled is not None and isinstance(self.loss, ConceptLoss):
            counts = count_concepts(labeled, self.tokenizer.vocab_size)
            self.loss = replace(self.loss, tokens=counts.tokens_of().to(self.device))
            if self._fresh_heads:
                initialize_heads(self.model, counts, self.recipe.seed)
                self.average = Average(self.model, self.recipe.optim.ema)

    def _maker(self, shard: Shard, seed: int) -> BatchMaker:
        facts = self.model, self.tokenizer, self.answers, self._autocast
        return make_maker(self.recipe, shard, seed, *facts, quiet=self._quiet)

    # ---- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> Path:
        """Train to the end of the budget; the folder of the exported model. TrainingError when it cannot go on."""
        try:
            with stopped_by_signals(self._ask_to_stop):
                self._saved_at = time.monotonic()
                if not self._resumed:  # so that a kill before the next one loses nothing that was set up
                    self.save()
                self._leave_out_figures()
                with Feed(self.batches, self.recipe.loaders, self.devices.numbers) as feed:
                    self._measure_before()
                    self.recipe = self.spending.shrunk()
                    while not self.stop_asked and self.spending.begins_step(share := self.budget.share()):
                        self.reporter.step(self._step(share, feed))
                        self._after_step()
                        self.stop_asked = self.devices.any(self.stop_asked)
                if not self.progress.step and not self.stop_asked:
                    raise self.spending.too_short()
                finished = self.budget.share() >= 1.0
                self.budget.close()
                self.save()
                self._measure()
                self.reporter.compare()
                self._score_files(self.files.after)
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

    def _after_step(self) -> None:
        """A checkpoint and held-out figures, when they are due."""
        recipe, step = self.recipe, self.progress.step
        late = self.devices.any(time.monotonic() - self._saved_at > 60 * recipe.checkpoint_minutes)
        if late or (recipe.checkpoint_steps and step % recipe.checkpoint_steps == 0):
            self.save()
        if recipe.eval_steps and step % recipe.eval_steps == 0:
            self._measure()

    def _leave_out_figures(self) -> None:
        """Do without the figures that a budget in minutes has no time for."""
        self.spending.leave_out_figures(
            2 if self._adapts else 1,
            lambda: {EVALUATION: self.evaluation.num_rows, FILES: self.files.num_rows},
            lambda: seconds_a_row(self.model, self._autocast),
        )

    def _measure_before(self) -> None:
        """Report held-out figures of the model that a run starts from, where its budget has time for more than that."""
        begins = not self.progress.step and not self.stop_asked
        if self._adapts and begins and self.budget.share() < 1.0:
            self.reporter.phase("measuring the model as it is")
            if self.reporter.held_log.last_step < 0:  # else a run that was killed has measured it
                self._measure()
            if not self.files.has_before():
                self._score_files(self.files.before)
        if begins and self.recipe.minutes and self.budget.share() < 1.0:
            self._forecast()

    def _score_files(self, score: Callable[[Backbone], str]) -> None:
        """Score the user's held-out files, and say the figures."""
        if not self.files.files or self.budget.leaves_out(FILES):
            return
        if self.budget.is_too_long(FILES):
            self.spending.leave_out(FILES)
        else:
            self.reporter.phase("scoring held-out files")
            rounded = self.adapter is not None or self.devices.many  # weights that no float32 is multiplied with
            mixed = self._autocast() if rounded else nullcontext()
            with self.budget.timing(FILES), self.averaged_weights(), mixed:
                line = score(self.model)
            self.reporter.say(line)

    def _forecast(self) -> None:
        """Say what the budget buys, from the time of a micro-batch's gradients, which are thrown away."""
        if isinstance(self.loss, ConceptLoss) or isinstance(self.batches, PolicyBatches):
            return
        stage, num_tokens = self.recipe.stage(0.0), 0
        self.reporter.phase("measuring the speed")
        with torch.random.fork_rng(devices=[]):
            for index in range(2):  # the first one also warms up, and counts alone where it is slow
                batch = self.batches.draw(index, stage)
                with self.budget.timing(GRADIENTS):
                    self._gradients(batch, 0.0, index, stage)
                num_tokens = batch.num_tokens
                if self.budget.seconds[GRADIENTS] > SLOW:
                    break
        self.model.zero_grad(set_to_none=True)
        self.spending.say_what_it_buys(stage, num_tokens, self.shard.num_tokens)

    def _measure(self) -> None:
        """Report held-out figures, once a step."""
        if self._measured_step == self.progress.step or self.budget.leaves_out(EVALUATION):
            return
        if self.budget.is_too_long(EVALUATION):
            self.spending.leave_out(EVALUATION)
            return
        self._measured_step = self.progress.step
        with self.budget.timing(EVALUATION):
            held = self.evaluate()
        self._acceptance = held.acceptance
        with self.budget.timing(CURVES):
            self.reporter.held(self.progress.step, held)

    def _step(self, share: float, feed: Feed) -> StepReport:
        """Gradients of the stage's micro-batches, clipped, one update, one update of the average."""
        stage, totals = self.recipe.stage(share), StepTotals()
        with self.budget.timing(STEP):
            with self.budget.timing(GRADIENTS):
                drawn = with_common_norm(feed.take(self.progress.micro, stage), self.devices.mean)
                for index, batch in zip(self.devices.numbers(self.progress.micro, stage), drawn, strict=True):
                    totals.add(self._gradients(batch, share, index, stage), batch, stage)
                self.devices.add_up(totals)
            norm = self.devices.clip(self.model, self.recipe.optim.clip)
            self._check_finite(totals.loss, norm)
            factor = self.optimizer.step(share, self.progress.tokens / self.shard.num_tokens)
            self.average.update(self.model)
        self.progress.step += 1
        self.progress.micro += stage.micro_batches
        self.progress.tokens += totals.num_tokens
        self.budget.tick()
        self.spending.expect_evaluation(self.evaluation.num_rows, totals.num_rows)
        return totals.report(self.progress, norm, factor, share, self.budget.seconds[STEP], stage)

    def _gradients(self, batch: Batch, share: float, index: int, stage: Stage) -> LossReport:
        """Add the gradients of micro-batch number `index`; its loss."""
        if self.adapter is not None and self.adapter.options.dropout:  # which a resumed run draws again
            torch.manual_seed(batch_seed(self.recipe.seed, index))
        loss = self.loss.at(share) if isinstance(self.loss, ConceptLoss | Distillation) else self.loss
        if isinstance(loss, ConceptLoss) and loss.heads_alone:
            whole = self._rows(batch)
            rows = self._row_pool(stage).draw(index, whole, DRAWN, batch.seed)
            report = loss.of_rows(self.model, rows, whole, batch.seed)
        else:
            self._pool = None
            batch = self._annealed(batch.to(self.device), share, index)
            with self._autocast():
                batch = with_self_generated_tokens(self.model, batch, self.recipe.attn_impl)
                report = loss(self.model, batch, self.recipe.attn_impl)
        (report.loss / self.devices.share(stage)).backward()
        return report

    def _row_pool(self, stage: Stage) -> RowPool:
        """The pool of rows of this stage's micro-batches, for the time that the backbone stays as it is."""

        def compute(number: int) -> Rows:
            return self._rows(self.batches.draw(number, stage))

        if self._pool is None or self._pool[0] != stage:
            self._pool = stage, RowPool(compute)
        return self._pool[1]

    @torch.no_grad()
    def _rows(self, batch: Batch) -> Rows:
        """The rows of a batch, for heads that learn alone."""
        batch = batch.to(self.device)
        with self._autocast():
            return rows_of(batch, hidden_states(self.model, batch, self.recipe.attn_impl))

    def _check_finite(self, loss: float, norm: float) -> None:
        """TrainingError, before anything reaches the weights, when a loss or a gradient is not a number."""
        if math.isfinite(loss) and math.isfinite(norm):
            return
        saved = list_checkpoints(self.out / CHECKPOINTS)
        raise TrainingError(
            f"step {self.progress.step + 1} has a loss of {loss} and a gradient of norm {norm}: lower "
            f"optim.muon_lr and optim.adamw_lr, then --resume: {saved[-1].name} is whole"
        )

    def _annealed(self, batch: Batch, share: float, index: int) -> Batch:
        """Micro-batch number `index` as the model sees it at this share of the run: see `Recipe.anneal`."""
        if share >= self.recipe.anneal:
            return batch
        return opened_over_time(batch, share / self.recipe.anneal, np.random.default_rng([self.recipe.seed, index, 1]))

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype is torch.bfloat16)

    def _ask_to_stop(self) -> bool:
        """Stop after the step in progress; whether that was asked before."""
        before, self.stop_asked = self.stop_asked, True
        if not before:
            with suppress(RuntimeError):  # the signal came while the same stream was being written
                self.reporter.say("stopping after this step; the run can be resumed with --resume")
        return before

    # ---- held-out figures -----------------------------------------------------------------------------------------

    @cached_property
    def evaluation(self) -> Evaluation | AnswerEvaluation | RewardEvaluation:
        """The batches and prompts that the run is measured on."""
        facts = self.recipe, self.model.config, self.tokenizer, self.device
        return make_evaluation(self.batches, self.val_shard, self._maker, *facts)

    def evaluate(self) -> Held:
        """Figures of the averaged weights on fixed batches and prompts of the validation split."""
        with self.averaged_weights(), self._autocast():
            return self.evaluation.measure(self.model, self.recipe.attn_impl, self.loss)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """The model with its averaged weights inside the block, and with the trained ones again afterwards."""
        self.devices.cut()
        trained = {n: self.model.get_parameter(n).detach().clone() for n in self.average.values}
        try:
            self._load_weights(self.average.values)
            yield
        finally:
            self._load_weights(trained)

    @torch.no_grad()
    def _load_weights(self, values: dict[str, torch.Tensor]) -> None:
        self.devices.cut()
        for name, value in values.items():
            self.model.get_parameter(name).copy_(value)

    # ---- saving ---------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint; the time it takes counts against a budget in minutes."""
        self.devices.cut()
        tensors = {
            "model": {n: p.detach() for n, p in self._kept_weights().items()},
            "average": self.average.values,
            "optimizer": self.optimizer.state_dict(),
            **(self.loss.state() if isinstance(self.loss, Distillation) else {}),
            **({"drawn": self.batches.state()} if isinstance(self.batches, PolicyBatches) else {}),
        }
        state = {
            "progress": asdict(self.progress),
            "average_count": self.average.count,
            "recipe": asdict(self.recipe),
            "model": self.config.to_dict(),
            "tokenizer_sha256": self.tokenizer.sha256,
            "data": self.data,
            "adapts": self._adapts,
            **({} if self.adapter is None else {"base": self.adapter.base.facts()}),
        }
        with self.budget.timing(CHECKPOINT):
            if self.devices.many:
                save_shards(self._held(), self.out / CHECKPOINTS, self.progress.step, state)
            else:
                save_checkpoint(self.out / CHECKPOINTS, self.progress.step, tensors, state)
        self._saved_at = time.monotonic()

    def _kept_weights(self) -> dict[str, torch.Tensor]:
        """The weights that a checkpoint holds: all, but for an adapter's base, which has a folder."""
        weights: dict[str, torch.Tensor] = dict(self.model.named_parameters())
        return weights if self.adapter is None else {name: weights[name] for name in self.average.values}

    def _held(self) -> HeldState:
        """What a checkpoint of several processes holds."""
        weights = {name: weight.detach() for name, weight in self._kept_weights().items()}
        return HeldState(self.devices, weights, self.average.values, self.optimizer)

    def _restore(self, path: Path, tensors: dict[str, Any], state: dict[str, Any]) -> None:
        """Go on from a checkpoint. CheckpointError or DataError when it is of another tokenizer, model or data."""
        if state["tokenizer_sha256"] != self.tokenizer.sha256:
            raise CheckpointError(f"{path} was trained with another tokenizer than the data has: pass that run's data")
        if self.adapter is not None:
            self.adapter.base.check(state["base"], path)
        if tensors and not self.devices.many and _shapes(tensors["model"]) != _shapes(self._kept_weights()):
            raise CheckpointError(f"{path} holds another model than the recipe describes: resume with its own recipe")
        if state.get("data", {}).get("splits") not in (None, self.data["splits"]):
            raise DataError(f"{self.shard.folder} is not what {path} was trained on: leave --data out")
        self._adapts = state.get("adapts", self._adapts)
        if not tensors:
            load_shards(path, self._held())
        elif self.devices.many:
            load_whole(tensors, self._held())
        else:
            self._load_weights(tensors["model"])
            self.average.values = {n: tensors["average"][n].to(self.device) for n in self.average.values}
            self.optimizer.load_state_dict(tensors["optimizer"])
            if isinstance(self.loss, Distillation):
                self.loss.restore(tensors)
        if isinstance(self.batches, PolicyBatches):
            self.batches.load(tensors["drawn"])
        self.average.count = state["average_count"]
        self.budget.go_on_from(RunProgress(**state["progress"]))

    def export(self) -> Path:
        """Write the averaged weights as a model folder, with the acceptance of drafts if measured; or an adapter. An
        adapter of a model that was converted or scaled first is merged, since it says nothing of that.
        """
        self.devices.cut()
        config, whole = self.config, self.devices.whole
        values = {name: whole(name, value) for name, value in self.average.values.items()}
        frozen = {name: whole(name, value) for name, value in self.model.state_dict().items() if name not in values}
        if not self.devices.is_first:
            return self.devices.folder(self.out)
        if self._acceptance:
            measured = dict(zip(MEASURES, self._acceptance, strict=True))
            config = replace(config, draft_acceptance=(measured["greedy"], measured["race"]))
        extra = {
            "trained": asdict(self.progress),
            "recipe": self.recipe.name,
            "run": self.out.resolve().name,
            "data_sha256": manifest_hash(self.shard.folder),
        } | taught(self.recipe.sft)
        if self.adapter is not None and open_source(self.adapter.base.folder).config() == self.config:
            extra["base_sha256"] = self.adapter.base.facts()["weights_sha256"]
            return self.adapter.write(self.out / "adapter", self.model, values, extra)
        averaged = Backbone(config)
        averaged.load_state_dict({name: value for name, value in (frozen | values).items() if FACTORS not in name})
        if self.adapter is not None:
            self.adapter.merge(averaged, self.model, values)
        names = None if self.recipe.concepts is None or config.concepts is None else catalog_of(config.concepts)
        return write_model(self.out, averaged, self.tokenizer, extra, names)


def _shapes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
