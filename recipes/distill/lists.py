"""Tasks on which tokens that are committed together collapse, as in ParallelBench: copy, replace and shuffle a list.

    python recipes/distill/lists.py --out runs/lists            trains, distills by each method, measures
    python recipes/distill/lists.py --out runs/lists --report   into benchmarks/results/distill-lists.*

A list is ITEMS distinct letters. The right copy and the right replacement are one text each, which a forward may write
at once. A shuffle is right if it is any other order of the same letters: each letter is free until the others are
chosen, so letters that are committed at once may be the same. The checker is exact. What is measured is kept.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.decoding.generate import Request
from daguerre.errors import DataError
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import read_lines, write_lines, write_report
from daguerre.evals.tables import between, table
from daguerre.model import Model, load
from daguerre.view.charts import in_percent, new_figure, titled

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from proofs import RESULTS, ExactShare, answered, arguments, trained  # noqa: E402

LETTERS, ITEMS, MARK = "abcdefghij", 6, "_"
TASKS = ("copy", "replace", "shuffle")
START = "start"
METHODS = {
    "sdtt": ["method=sdtt", "rounds=3"],
    "trajectories": ["method=trajectories", "rounds=6", "window=[1.0, 6.0]", "curriculum=0.6"],
    "on_policy": ["method=on_policy", "sharpness=2.0", "rollouts=4", "kl=0.0", "goal=teacher"],
}
MORE = "more"
POINTS: list[tuple[str, dict[str, Any]]] = [
    *(("margin", {"steps": steps}) for steps in (1, 2, 3, 4, 6)),
    *(("threshold", {"threshold": value}) for value in (0.5, 0.7, 0.9, 0.99)),
]


@dataclass(frozen=True)
class ListQuestion:
    """A task, its list, and for `replace` the letter that is replaced and the one that takes its place."""

    task: str
    items: str
    old: str = ""
    new: str = ""

    @property
    def prompt(self) -> str:
        """What the model reads; all are of the same length."""
        what = {"copy": "c--", "replace": f"r{self.old}{self.new}", "shuffle": "s--"}[self.task]
        return f"{what}:{self.items}="

    def is_right(self, answer: str) -> bool:
        """Whether an answer is right."""
        if self.task == "shuffle":
            return sorted(answer) == sorted(self.items) and answer != self.items
        return answer == (self.items if self.task == "copy" else self.items.replace(self.old, self.new))

    def answer(self, rng: random.Random) -> str:
        """A right answer, a random one where there are several."""
        if self.task != "shuffle":
            return self.items if self.task == "copy" else self.items.replace(self.old, self.new)
        while (shuffled := "".join(rng.sample(self.items, len(self.items)))) == self.items:
            pass
        return shuffled


def questions(num: int, seed: int, task: str | None = None) -> Iterator[ListQuestion]:
    """So many random questions, of a task or of all in turn."""
    rng = random.Random(f"{seed}-{task}")
    for index in range(num):
        letters = rng.sample(LETTERS, ITEMS + 1)
        items, kind = "".join(letters[:ITEMS]), task or TASKS[index % len(TASKS)]
        old, new = (rng.choice(items), letters[ITEMS]) if kind == "replace" else ("", "")
        yield ListQuestion(kind, items, old, new)


def held_out(question: ListQuestion) -> bool:
    """Whether a list is never trained on: one in ten, by its letters in order of writing."""
    return random.Random(question.items).random() < 0.1


def write_rows(path: Path, num: int, seed: int = 0) -> Path:
    """Rows to train on, whose lists are not held out."""
    rng, rows = random.Random(seed), []
    for question in questions(num, seed):
        if not held_out(question):
            fills = list(question.answer(rng))
            rows.append({"template": question.prompt + "<gap>" * len(fills), "fills": fills})
    write_lines(path, rows)
    return path


@dataclass(frozen=True)
class MeasuredTask(ExactShare):
    """Of one task: how many answers are right, and the mean number of forwards, by this policy with these options."""

    task: str
    policy: str
    options: dict[str, Any]
    forwards: float


def answers(model: Model, asked: Sequence[ListQuestion], **options: Any) -> list[tuple[str, int]]:
    """The model's answers and the forwards that each took, at temperature 0."""
    decode: dict[str, Any] = {"mark": MARK, "max_tokens": 1, "min_tokens": 1, "mode": "full", "temperature": 0.0}
    texts = (question.prompt + MARK * ITEMS for question in asked)
    requests = (Request.of("fill", text, heal=False, **decode, **options) for text in texts)
    return [(result.text[-ITEMS:], result.usage.forwards) for result in answered(model, requests)]


def measure(model: Model, task: str, num: int, policy: str, options: dict[str, Any]) -> MeasuredTask:
    """The figures of held-out lists."""
    asked = [question for question in questions(20 * num, 1, task) if held_out(question)][:num]
    found = answers(model, asked, policy=policy, **options)
    right = ExactShare.of([question.is_right(text) for question, (text, _) in zip(asked, found, strict=True)])
    forwards = float(np.mean([each for _, each in found]))
    return MeasuredTask(**vars(right), task=task, policy=policy, options=options, forwards=forwards)


def measured(name: str, model: Path, path: Path, num: int) -> None:
    """The curves of a model, as a file of lines; left as it is where it is there."""
    if path.is_file():
        return
    loaded = load(model)
    found = [measure(loaded, task, num, policy, options) for task in TASKS for policy, options in POINTS]
    write_lines(path, map(asdict, found))
    for one in found:
        print(f"{name} {one.task} {one.policy} {one.options} {one.forwards:.2f} {100 * one.exact:.1f}%", flush=True)


def overrides_of(name: str, steps: int) -> list[str]:
    """What a run from the trained model sets."""
    if name in METHODS:
        slow = ["stages.0.sequences=16", "optim.muon_lr=0.003", "optim.adamw_lr=0.0006"] if name == "on_policy" else []
        return [f"steps={steps}", *(f"distill.{option}" for option in METHODS[name]), *slow]
    return [f"steps={steps}", "optim.muon_lr=0.01", "optim.adamw_lr=0.002", "optim.ema=0.95"]


# ---- the report -----------------------------------------------------------------------------------------------------


def gather(out: Path) -> dict[str, Any]:
    """All that was measured in a folder of runs."""
    paths = [out / name / "points.jsonl" for name in (START, MORE, *METHODS)]
    points = {path.parent.name: read_lines(path) for path in paths if path.is_file()}
    if not points:
        raise DataError(f"{out} has no points.jsonl: train first")
    return {"runs": points, "machine": machine_facts()}


def page(values: dict[str, Any]) -> str:
    """The tables, in Markdown."""
    machine, rows = values["machine"], []
    for name, points in values["runs"].items():
        for policy, options in POINTS:
            some = {p["task"]: p for p in points if (p["policy"], p["options"]) == (policy, options)}
            cells = [between(*(some[task][key] for key in ("exact", "low", "high"))) for task in TASKS]
            cells = [f"{cell} in {some[task]['forwards']:.1f}" for cell, task in zip(cells, TASKS, strict=True)]
            rows.append([name, policy, ", ".join(f"{key} {value:g}" for key, value in options.items()), *cells])
    return "\n\n".join(
        [
            "# Copy, replace and shuffle: right answers against forwards, before and after distillation",
            "Written by `recipes/distill/lists.py --report`; what it means: [docs/distill.md](../../docs/distill.md).",
            f"{machine['processor']}, {machine['instruction_set']}, one thread. Held-out lists; 95% intervals "
            "(Wilson).",
            table(["run", "policy", "options", *TASKS], rows, left=3),
            "![Right answers against forwards](distill-lists.png)\n",
        ]
    )


def draw(values: dict[str, Any]) -> Any:
    """Right answers against forwards of each task, by run."""
    figure = new_figure(12.0, 4.2)
    panels = figure.subplots(1, len(TASKS), sharey=True)
    for panel, task in zip(panels, TASKS, strict=True):
        for color, (name, points) in enumerate(values["runs"].items()):
            for policy, style in (("margin", "o-"), ("threshold", "s--")):
                mine = sorted((p["forwards"], p["exact"]) for p in points if (p["task"], p["policy"]) == (task, policy))
                label = name if policy == "margin" else None
                panel.plot(*zip(*mine, strict=True), style, color=f"C{color}", markersize=4, label=label)
        titled(panel, task, "forwards an answer (dashed: threshold)")
    in_percent(*panels)
    panels[0].legend(frameon=False)
    return figure


def report(out: Path, results: Path = RESULTS / "distill-lists.json") -> None:
    """JSON, Markdown and picture of a folder of runs."""
    values = gather(out)
    write_report(results, values, page(values), draw(values))


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, "runs/lists")
    parser.add_argument("--only", nargs="+", default=[START, MORE, *METHODS], help="runs; all by default")
    parser.add_argument("--steps", type=int, default=1200, help="of the model that is distilled (%(default)s)")
    parser.add_argument("--more", type=int, default=400, help="steps of each run from it (%(default)s)")
    parser.add_argument("--rows", type=int, default=60000, help="rows to train on (%(default)s)")
    parser.add_argument("--num", type=int, default=300, help="held-out lists of each task (%(default)s)")
    options = parser.parse_args(words)
    if options.report:
        report(options.out)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    data = options.out / "rows.jsonl"
    if not data.is_file():
        write_rows(data, options.rows)
    start = options.out / START / "model"
    for name in options.only:
        folder = options.out / name
        model = folder / "model"
        if not model.is_dir():
            own = [f"steps={options.steps}"] if name == START else overrides_of(name, options.more)
            recipe = "lists-distill.toml" if name in METHODS else "lists.toml"
            model = trained(HERE / recipe, folder, overrides=own, start=None if name == START else start, data=data)
        measured(name, model, folder / "points.jsonl", options.num)


if __name__ == "__main__":
    main()
