"""The training loop: one for CPU and CUDA.

A run folder holds recipe.json, checkpoints/, log.csv, curves.png, TensorBoard events, and model/, which `daguerre.load`
reads. A run with a budget in steps ends with the same weights however often it was killed and resumed (float32, one
device and processor).
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from daguerre.concepts.texts import catalog_of
from daguerre.errors import CheckpointError, DataError, TrainingError
from daguerre.files import atomic_write
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.models.core.config import ModelConfig
from daguerre.models.loading import config_of
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.acceptance import MEASURES
from daguerre.train.batch import Batch, BatchLoss, LossReport, batch_loss, opened_over_time
from daguerre.train.budget import (
    CHECKPOINT,
    CURVES,
    EVALUATION,
    FIGURES,
    FILES,
    GRADIENTS,
    MOST,
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
from daguerre.train.concept_heads import count_concepts, initialize_heads
from daguerre.train.concept_labels import corpus_labels
from daguerre.train.concept_loss import ConceptLoss, hidden_states
from daguerre.train.corpus_facts import data_facts, data_line, manifest_hash
from daguerre.train.data import Cutter, LabeledWindows, MicroBatches, Windows
from daguerre.train.drafting import drafting_loss
from daguerre.train.evaluation import VAL_SEED, Evaluation
from daguerre.train.feed import Feed
from daguerre.train.held_files import HeldFiles
from daguerre.train.monitor import Held
from daguerre.train.optim import Average, Optimizer
from daguerre.train.origin import family_of, keep, tokenizer_of_run, write_model
from daguerre.train.precision import choose_precision
from daguerre.train.recipe import OWN, Recipe
from daguerre.train.report import Reporter, StepReport, StepTotals
from daguerre.train.row_pool import DRAWN, RowPool, Rows, rows_of
from daguerre.train.self_generated import with_self_generated_tokens
from daguerre.train.sft.batches import AnswerBatches, with_common_norm
from daguerre.train.sft.corpus import answers_line
from daguerre.train.sft.evaluation import AnswerEvaluation
from daguerre.train.sft.presets import answer_loss
from daguerre.train.sft.start import check_answers, prepared, rainbow_ids
from daguerre.train.shards import Shard
from daguerre.train.stage import Stage
from daguerre.train.start import first_model
from daguerre.train.user_folder import files_read, own_vocabulary

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
        self.recipe, self.out, self.device, self._quiet = recipe, out, torch.device(device), quiet
        self.budget = Budget(recipe.steps, recipe.minutes, RunProgress(), clock, began)
        found = find_checkpoint(out, resume)
        saved = load_checkpoint(found) if found else None
        torch.manual_seed(recipe.seed)
        self._make_model(start_from, data, saved[1] if saved else {})
        self._open_data(data(self.tokenizer, self.model.config) if callable(data) else data)
        self.stop_asked, self._resumed = False, found is not None
        self._adapts, self._measured_step = start_from is not None, -1
        self._acceptance: tuple[tuple[float, ...], ...] = ()
        self._pool: tuple[Stage, RowPool] | None = None
        self._row = 0.0
        out.mkdir(parents=True, exist_ok=True)
        keep(start_from, out, self._resumed)
        if found is not None and saved is not None:
            self._restore(found, *saved)
        with atomic_write(out / "recipe.json") as file:
            file.write((json.dumps(asdict(recipe), indent=2) + "\n").encode())
        self.reporter = Reporter(out, recipe, self.progress.step if found else None, quiet=quiet)
        self.dtype, line = choose_precision(recipe.precision, self.device)
        self.reporter.say(line)
        if line := files_read(self.shard.folder):
            self.reporter.say(line)
        says = data_line if self.answers is None else answers_line
        self.reporter.say(says(self.shard, self.val_shard))
        self.files = HeldFiles(self.shard, self.val_shard, self.tokenizer, self.model.config, out)
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
        saved_tokenizer = None
        if config is not None and recipe.model is None and isinstance(data, Path):
            saved_tokenizer = tokenizer_of_run(self.out, data, config)
        own = own_vocabulary(data) if recipe.tokenizer == OWN and start_from is None else None
        model, self.tokenizer = first_model(recipe, start_from, config, saved_tokenizer, own)
        had_heads = start_from is not None and config_of(Path(start_from)).concepts is not None
        self._fresh_heads = recipe.concepts is not None and not had_heads
        family = family_of(start_from, self.out)
        self.answers = None if recipe.sft is None else answer_loss(recipe.sft, model.config, family)
        self.model = prepared(model, recipe, self.answers, self.tokenizer).to(self.device)
        self.optimizer = Optimizer(self.model, recipe.optim)
        self.average = Average(self.model, recipe.optim.ema)
        self.loss: BatchLoss = drafting_loss if recipe.draft_head else batch_loss
        if recipe.concepts is not None:
            self.loss = ConceptLoss(recipe.concepts)
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

    def _maker(self, shard: Shard, seed: int) -> MicroBatches | AnswerBatches:
        """What makes the micro-batches of a split: of plain text, or of prompts and answers."""
        check_answers(shard, self.recipe)
        if self.answers is not None:
            pads = rainbow_ids(self.recipe, self.answers, self.tokenizer)
            return AnswerBatches(shard, self.answers, self.model.config, seed, pads)
        return self._micro_batches(shard, seed)

    def _micro_batches(self, shard: Shard, seed: int) -> MicroBatches:
        windows, labeled = Windows(shard, self.tokenizer.bos_id), None
        if self.recipe.concepts is not None:
            with Console(stderr=True, quiet=self._quiet).status("labeling") as status:

                def show(done: int, asked: int) -> None:
                    status.update(f"labeling concepts: {done / 1e6:.1f}M of {asked / 1e6:.1f}M tokens")

                labels = corpus_labels(shard, self.tokenizer, self.recipe.concepts.labeled, show)
            labeled = LabeledWindows(windows, labels, self.tokenizer)
        mixture = self.recipe.make_mixture(self.model.config)
        return MicroBatches(windows, Cutter(self.tokenizer), mixture, seed, labeled)

    # ---- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> Path:
        """Train to the end of the budget; the folder of the exported model. TrainingError when it cannot go on."""
        try:
            with self._signals():
                self._saved_at = time.monotonic()
                if not self._resumed:  # so that a kill before the next one loses nothing that was set up
                    self.save()
                self._leave_out_figures()
                with Feed(self.batches, self.recipe.loaders) as feed:
                    self._measure_before()
                    while not self.stop_asked and self._has_time(share := self.budget.share()):
                        self.reporter.step(self._step(share, feed))
                        self._after_step()
                finished = self.budget.share() >= 1.0
                self.budget.close()
                self.save()
                self._measure()
                self.reporter.compare()
                self._score_files(self.files.after)
                self.reporter.say("the budget is spent" if finished else "stopped early; --resume goes on")
                return self.export()
        except OSError as error:
            reason = "the disk is full: free room" if is_disk_full(error) else f"{error}: fix this"
            raise TrainingError(
                f"{self.out} cannot be written, its checkpoints are whole; {reason}, then --resume"
            ) from error
        finally:
            self.reporter.close()

    def _has_time(self, share: float) -> bool:
        """Whether another step begins: while there is time, and the first one only if it is expected to end in time."""
        stage = self.recipe.stage(share)
        rows = ROWS_A_TOKEN * stage.micro_batches * stage.sequences * stage.length
        takes = 0.0 if self.progress.step else self._row * rows / FORWARD_SHARE
        has = share < 1.0 and takes <= self.budget.left()
        if not has and not self.progress.step:
            about = f" (about {takes:.0f} s)" if takes else ""
            self.reporter.say(
                f"the budget of {self.recipe.minutes:g} minutes is too short for a step{about}: setting up took "
                f"{self.progress.minutes:.2f} minutes, saving takes time too, and the model is as it was"
            )
        return has

    def _after_step(self) -> None:
        """A checkpoint and held-out figures, when they are due."""
        recipe, step = self.recipe, self.progress.step
        late = time.monotonic() - self._saved_at > 60 * recipe.checkpoint_minutes
        if late or (recipe.checkpoint_steps and step % recipe.checkpoint_steps == 0):
            self.save()
        if recipe.eval_steps and step % recipe.eval_steps == 0:
            self._measure()

    def _leave_out_figures(self) -> None:
        """Do without the figures that would take too much of a budget in minutes, and say so."""
        if not self.recipe.minutes or self.progress.step or self.recipe.draft_rank:  # whose model needs its figures
            return
        times = 2 if self._adapts else 1
        left, takes = self.budget.left(), dict.fromkeys((EVALUATION, FILES), math.inf)
        if left > 0:
            self._row = self._seconds_a_row()
            rows = {EVALUATION: self.evaluation.num_rows, FILES: self.files.num_rows}
            takes = {phase: times * self._row * num for phase, num in rows.items()}
            left = self.budget.left()
        for phase in takes:
            if takes[phase] > MOST * left:
                self._leave_out(phase, f" ({takes[phase]:.0f} s)" if left > 0 else "")

    def _leave_out(self, phase: str, why: str = "") -> None:
        """Do without a phase, and say so; without figures there are no curves."""
        self.budget.leave_out(phase)
        if phase == EVALUATION:
            self.budget.leave_out(CURVES)
        self.reporter.say(f"the budget has no time for {FIGURES[phase]}{why}")

    @torch.no_grad()
    def _seconds_a_row(self) -> float:
        """The time of a row of a forward, measured on a few."""
        num = min(TRIED_ROWS, self.model.config.max_positions)
        layout = BatchLayout.causal(num, device=self.device)
        tokens = torch.zeros((1, num), dtype=torch.int64, device=self.device)
        took = []
        for _ in range(2):  # the first one warms up
            began = time.monotonic()
            with self._autocast():
                self.model.logits(run_batch(self.model, tokens, layout))
            took.append(time.monotonic() - began)
        return min(took) / num

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
            self._leave_out(FILES)
        else:
            self.reporter.phase("scoring held-out files")
            with self.budget.timing(FILES), self.averaged_weights():
                line = score(self.model)
            self.reporter.say(line)

    def _forecast(self) -> None:
        """Say what the budget buys, from the time of a micro-batch's gradients, which are thrown away."""
        if isinstance(self.loss, ConceptLoss):
            return
        stage, seconds, tokens = self.recipe.stage(0.0), 0.0, 0
        self.reporter.phase("measuring the speed")
        with torch.random.fork_rng(devices=[]):
            for index in range(2):  # the first one also warms up, and counts alone where it is slow
                batch = self.batches.draw(index, stage)
                with self.budget.timing(GRADIENTS):
                    self._gradients(batch, 0.0, index, stage)
                seconds, tokens = self.budget.seconds[GRADIENTS], batch.num_tokens
                if seconds > SLOW:
                    break
        self.model.zero_grad(set_to_none=True)
        self.budget.tick()
        left = 60 * (self.recipe.minutes - self.progress.minutes) - self.budget.closing_seconds
        steps = max(1, int(left / max(seconds * stage.micro_batches, 1e-9)))
        bought = steps * stage.micro_batches * tokens
        self.reporter.say(
            f"{tokens / max(seconds, 1e-9):,.0f} tokens a second: {max(left, 0) / 60:.1f} minutes buy about {steps:,} "
            f"steps, {bought:,} tokens, {bought / self.shard.num_tokens:.1f} passes"
        )

    def _measure(self) -> None:
        """Report held-out figures, once a step."""
        if self._measured_step == self.progress.step or self.budget.leaves_out(EVALUATION):
            return
        if self.budget.is_too_long(EVALUATION):
            self._leave_out(EVALUATION)
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
                drawn = with_common_norm(feed.take(self.progress.micro, stage))
                for index, batch in enumerate(drawn, self.progress.micro):
                    totals.add(self._gradients(batch, share, index, stage), batch, stage)
            norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optim.clip))
            self._check_finite(totals.loss, norm)
            factor = self.optimizer.step(share, self.progress.tokens / self.shard.num_tokens)
            self.average.update(self.model)
        self.progress.step += 1
        self.progress.micro += stage.micro_batches
        self.progress.tokens += totals.num_tokens
        self.budget.tick()
        self._expect_evaluation(totals.num_rows)
        return totals.report(self.progress, norm, factor, share, self.budget.seconds[STEP], stage)

    def _gradients(self, batch: Batch, share: float, index: int, stage: Stage) -> LossReport:
        """Add the gradients of micro-batch number `index`; its loss."""
        loss = self.loss.at(share) if isinstance(self.loss, ConceptLoss) else self.loss
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
        (report.loss / stage.micro_batches).backward()
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

    def _expect_evaluation(self, num_rows: int) -> None:
        """Estimate the time of an evaluation from that of the last step's gradients, which had so many rows."""
        forward = 1.0 if self.recipe.draft_head else FORWARD_SHARE
        rows = self.evaluation.num_rows / num_rows
        self.budget.expect(EVALUATION, forward * rows * self.budget.seconds[GRADIENTS])

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

    # ---- held-out figures -----------------------------------------------------------------------------------------

    @cached_property
    def evaluation(self) -> Evaluation | AnswerEvaluation:
        """The batches and prompts that the run is measured on."""
        maker = self._maker(self.val_shard, VAL_SEED)
        if isinstance(maker, AnswerBatches):
            return AnswerEvaluation(maker, self.tokenizer, self.recipe.stages[-1], self.device)
        return Evaluation(maker, self.model.config, self.recipe.stages[0].length, self.device)

    def evaluate(self) -> Held:
        """Figures of the averaged weights on fixed batches and prompts of the validation split."""
        with self.averaged_weights(), self._autocast():
            return self.evaluation.measure(self.model, self.recipe.attn_impl, self.loss)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """The model with its averaged weights inside the block, and with the trained ones again afterwards."""
        trained = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        try:
            self._load_weights(self.average.values)
            yield
        finally:
            self._load_weights(trained)

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
            "model": self.model.config.to_dict(),
            "tokenizer_sha256": self.tokenizer.sha256,
            "data": self.data,
            "adapts": self._adapts,
        }
        with self.budget.timing(CHECKPOINT):
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
        self._adapts = state.get("adapts", self._adapts)
        self._load_weights(tensors["model"])
        self.average.values = {n: tensors["average"][n].to(self.device) for n in self.average.values}
        self.average.count = state["average_count"]
        self.optimizer.load_state_dict(tensors["optimizer"])
        self.budget.go_on_from(RunProgress(**state["progress"]))

    def export(self) -> Path:
        """Write the averaged weights as a model folder, with the acceptance of drafts if it was measured."""
        config = self.model.config
        if self._acceptance:
            measured = dict(zip(MEASURES, self._acceptance, strict=True))
            config = replace(config, draft_acceptance=(measured["greedy"], measured["race"]))
        averaged = Backbone(config)
        averaged.load_state_dict(self.average.values)
        extra = {
            "trained": asdict(self.progress),
            "recipe": self.recipe.name,
            "run": self.out.resolve().name,
            "data_sha256": manifest_hash(self.shard.folder),
        }
        names = None if self.recipe.concepts is None or config.concepts is None else catalog_of(config.concepts)
        return write_model(self.out, averaged, self.tokenizer, extra, names)

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


SLOW = 5.0
"""Seconds of a micro-batch after which its speed is not measured again."""
TRIED_ROWS = 128
ROWS_A_TOKEN = 3
"""Rows of a batch for each token of its windows, about: noisy ones come to those of the text."""
FORWARD_SHARE = 1 / 3
"""A forward's share of the time of gradients, by which an evaluation is expected to take so long."""


def _shapes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
