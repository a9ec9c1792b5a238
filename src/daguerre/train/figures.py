"""The held-out figures of a run: when they are taken, by what is left of its budget, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from daguerre.models.core.backbone import Backbone
from daguerre.train.budget import CURVES, EVALUATION, FILES, RunBudget
from daguerre.train.held_files import HeldFiles
from daguerre.train.monitor import HeldOut
from daguerre.train.report import Reporter
from daguerre.train.spending import Spending, seconds_a_row
from daguerre.train.trained_model import TrainedModel


class HeldFigures:
    """Measures a model by its method, and scores the user's held-out files."""

    def __init__(
        self, trained: TrainedModel, files: HeldFiles, budget: RunBudget, spending: Spending, reporter: Reporter
    ) -> None:
        self.trained, self.method, self.files = trained, trained.method, files
        self.budget, self.spending, self.reporter = budget, spending, reporter
        self._measured_step = -1

    def leave_out(self) -> None:
        """Do without the figures that a budget in minutes has no time for."""
        self.spending.leave_out_figures(
            2 if self.trained.starts else 1,
            lambda: {EVALUATION: self.method.figures.num_rows, FILES: self.files.num_rows},
            lambda: seconds_a_row(self.trained.model, self.trained.autocast),
        )

    def before(self) -> None:
        """Report the figures of the model that a run starts from, unless a run that was killed has reported them."""
        self.reporter.phase("measuring the model as it is")
        if self.reporter.held_log.last_step < 0:
            self.measure()
        if not self.files.has_before():
            self.score_files(self.files.before)

    def after(self) -> None:
        """Report the figures of the trained model, and what the run has changed."""
        self.measure()
        self.reporter.compare()
        self.score_files(self.files.after)

    def measure(self) -> None:
        """Report the figures, once a step."""
        step = self.budget.progress.step
        if self._measured_step == step or self.budget.leaves_out(EVALUATION):
            return
        if self.budget.is_too_long(EVALUATION):
            self.spending.leave_out(EVALUATION)
            return
        self._measured_step = step
        with self.budget.timing(EVALUATION):
            held = self.evaluate()
        self.trained.acceptance = held.acceptance
        with self.budget.timing(CURVES):
            self.reporter.held(step, held)

    def evaluate(self) -> HeldOut:
        """The figures of the averaged weights."""
        with self.trained.averaged_weights():
            return self.method.measure()

    def score_files(self, score: Callable[[Backbone], str]) -> None:
        """Score the user's held-out files, and say the figures."""
        if not self.files.files or self.budget.leaves_out(FILES):
            return
        if self.budget.is_too_long(FILES):
            self.spending.leave_out(FILES)
            return
        self.reporter.phase("scoring held-out files")
        trained = self.trained
        rounded = trained.adapter is not None or trained.devices.many  # weights that no float32 is multiplied with
        mixed = trained.autocast() if rounded else nullcontext()
        with self.budget.timing(FILES), trained.averaged_weights(), mixed:
            line = score(trained.model)
        self.reporter.say(line)
