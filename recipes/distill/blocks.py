"""Fewer forwards in mode "block" of the default model: each method from the same model, for the same processor time.

    python recipes/distill/blocks.py --out runs/distill-blocks --minutes 8       writes answers, trains, measures
    python recipes/distill/blocks.py --out runs/distill-blocks --report          into benchmarks/results

Answers are what the model itself writes behind beginnings of the standard library, greedily in mode "ar". Measured are
the next lines of held-out files by mode "block" (`evals.completion`): how many are the file's, how many are those that
the model wrote in mode "ar" before all this, and the tokens of a forward. `start` is the model as it is, `more` the
same minutes of the loss of masked blocks on the same answers. What is measured is kept. Set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "prefer"), str(HERE.parent)]

from proofs import RESULTS, answered, arguments, trained  # noqa: E402
from written import library_prompts  # noqa: E402

from daguerre.decoding.generate import Request  # noqa: E402
from daguerre.decoding.request import Decode  # noqa: E402
from daguerre.errors import DataError  # noqa: E402
from daguerre.evals.completion import AR, attempts  # noqa: E402
from daguerre.evals.lines import make_examples  # noqa: E402
from daguerre.evals.machine import machine_facts  # noqa: E402
from daguerre.evals.results import write_json, write_lines, write_report  # noqa: E402
from daguerre.evals.statistics import wilson  # noqa: E402
from daguerre.evals.tables import between, table  # noqa: E402
from daguerre.heldout import load_frozen  # noqa: E402
from daguerre.model import Model, load  # noqa: E402
from daguerre.view.charts import in_percent, new_figure, titled  # noqa: E402

ANSWERS, POINTS = "answers.jsonl", "points.jsonl"
TOKENS, AT_ONCE = 48, 64
START, MORE = "start", "more"
TRAJECTORIES = ["method=trajectories", "states=2", "window=[1.0, 3.0]", "rounds=1"]
ON_POLICY = ["method=on_policy", "sharpness=4.0", "steps=8", "rollouts=4", "kl=0.05", "rounds=1"]
RUNS: dict[str, tuple[str, list[str]]] = {
    MORE: ("blocks-more.toml", []),
    "sdtt": ("blocks.toml", []),
    "trajectories": ("blocks.toml", [f"distill.{option}" for option in TRAJECTORIES]),
    "on_policy": (
        "blocks.toml",
        [f"distill.{option}" for option in ON_POLICY] + ["optim.muon_lr=0.001", "optim.adamw_lr=0.0002"],
    ),
}
"""The recipe of each run, and what it sets."""
SIZE = 8
LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SETTINGS = [AR, *(Decode(mode="block", block_size=SIZE, threshold=level) for level in LEVELS)]


@dataclass(frozen=True)
class Point:
    """Lines of one setting: `threshold` of mode "block", None for mode "ar". Shares have 95% intervals by Wilson.

    exact   lines that are the file's
    same    lines that are those of the model before, in mode "ar"
    tokens  of a forward
    """

    threshold: float | None
    num: int
    exact: tuple[float, float, float]
    same: tuple[float, float, float]
    tokens: float


def write_answers(model: Model, num: int, path: Path) -> None:
    """What the model writes behind `num` beginnings of code."""
    prompts, lines = library_prompts(model.tokenizer, num, 0), list[dict[str, str]]()
    for first in range(0, len(prompts), AT_ONCE):
        some = [prompt.text for prompt in prompts[first : first + AT_ONCE]]
        how: dict[str, Any] = {"mode": "ar", "temperature": 0.0, "heal": False}
        requests = [Request.of("generate", text, TOKENS, **how) for text in some]
        for text, result in zip(some, answered(model, requests), strict=True):
            if result.finish_reason != "stop":
                lines.append({"prompt": text, "completion": result.text})
    write_lines(path, lines)


def train(name: str, start: str, data: Path, minutes: float, out: Path) -> Path:
    """The model of a run, trained or resumed."""
    recipe, overrides = RUNS[name]
    if (model := out / name / "model").is_dir():
        return model
    return trained(HERE / recipe, out / name, overrides=overrides, start=start, data=data, minutes=minutes)


def measure(model: Model, num: int, known: Sequence[str]) -> tuple[list[Point], list[str]]:
    """The curve of a model, and its lines in mode "ar"; `known` are those of the model before, its own if empty."""
    examples = make_examples(load_frozen(), num, seed=1)
    each = [attempts(model, SETTINGS, example)[1] for example in examples]
    lines = [found[0].line for found in each]
    points = []
    for place, decode in enumerate(SETTINGS):
        done = [found[place] for found in each]
        exact = sum(one.exact for one in done)
        same = sum(one.line == line for one, line in zip(done, known or lines, strict=True))
        shares = [(right / len(done), *wilson(right, len(done))) for right in (exact, same)]
        tokens = sum(one.tokens for one in done) / sum(one.forwards for one in done)
        points.append(Point(decode.threshold if place else None, len(done), *shares, tokens))
    return points, lines


def measured(name: str, model: Path | str, out: Path, num: int) -> None:
    """The curve of a run, as a file; left as it is where it is there."""
    path = out / name / POINTS
    if path.is_file():
        return
    known = [] if name == START else json.loads((out / START / POINTS).read_text())["lines"]
    points, lines = measure(load(model), num, known)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"points": [asdict(one) for one in points], "lines": lines})
    for one in points:
        print(f"{name} {one.threshold}: {one.tokens:.2f} tokens a forward, {100 * one.same[0]:.1f}% as ar, "
              f"{100 * one.exact[0]:.1f}% exact", flush=True)  # fmt: skip


# ---- the report -----------------------------------------------------------------------------------------------------


def gather(out: Path) -> dict[str, Any]:
    """All that was measured in a folder of runs."""
    paths = [out / name / POINTS for name in (START, *RUNS)]
    runs = {path.parent.name: json.loads(path.read_text())["points"] for path in paths if path.is_file()}
    if START not in runs:
        raise DataError(f"{out} has no {START}/{POINTS}: measure first, with --minutes")
    return {"runs": runs, "machine": machine_facts()}


def page(values: dict[str, Any]) -> str:
    """The table, in Markdown."""
    machine, runs, rows = values["machine"], values["runs"], []
    for place, first in enumerate(runs[START]):
        cells = [run[place] for run in runs.values()]
        said = [f"{one['tokens']:.2f}; {between(*one['same'])}; {between(*one['exact'])}" for one in cells]
        rows.append(["mode ar" if first["threshold"] is None else first["threshold"], *said])
    return "\n\n".join(
        [
            f'# Next lines by mode "block" in blocks of {SIZE}, before and after distillation',
            "Written by `recipes/distill/blocks.py --report`; what it means: [docs/distill.md](../../docs/distill.md).",
            f"{machine['processor']}, {machine['instruction_set']}, one thread; {runs[START][0]['num']:,} held-out "
            'lines. Tokens of a forward; lines that are those of the default model in mode "ar"; lines that are the '
            "file's (95% intervals by Wilson).",
            table(["threshold", *runs], rows, left=len(runs) + 1),
            "![Lines against tokens of a forward](distill-blocks.png)\n",
        ]
    )


def draw(values: dict[str, Any]) -> Any:
    """Shares against tokens of a forward."""
    figure = new_figure(11.0, 4.4)
    titles = {"same": 'lines as of the default model in mode "ar"', "exact": "lines that are the file's"}
    for panel, (name, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for color, (run, points) in enumerate(values["runs"].items()):
            some = [(one["tokens"], one[name][0]) for one in points if one["threshold"] is not None]
            panel.plot(*zip(*some, strict=True), marker="o", markersize=4, color=f"C{color}", label=run)
        titled(panel, title, "tokens of a forward")
        in_percent(panel)
    figure.axes[0].legend(frameon=False)
    return figure


def report(out: Path, results: Path = RESULTS / "distill-blocks.json") -> None:
    """JSON, Markdown and picture of a folder of runs."""
    values = gather(out)
    write_report(results, values, page(values), draw(values))


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, "runs/distill-blocks")
    parser.add_argument("--from", dest="start", default="default", help="the model to start from (%(default)s)")
    parser.add_argument("--minutes", type=float, help="of training, for each run")
    parser.add_argument("--answers", type=int, default=6000, help="beginnings of code (%(default)s)")
    parser.add_argument("--num", type=int, default=400, help="held-out lines to measure on (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=[START, *RUNS], default=[START, *RUNS], help="all by default")
    options = parser.parse_args(words)
    if options.minutes:
        options.out.mkdir(parents=True, exist_ok=True)
        if not (options.out / ANSWERS).is_file():
            write_answers(load(options.start), options.answers, options.out / ANSWERS)
        for name in dict.fromkeys([START, *options.only]):
            data = options.out / ANSWERS
            model = options.start if name == START else train(name, options.start, data, options.minutes, options.out)
            measured(name, model, options.out, options.num)
    if options.report:
        report(options.out)


if __name__ == "__main__":
    main()
