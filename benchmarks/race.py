"""A race of training objectives: one backbone, one corpus, the same minutes of processor time each; then one table and
one picture.

    python benchmarks/race.py --data CORPUS --out runs/race --minutes 20   train and measure; can be stopped and resumed
    python benchmarks/race.py --report                                     benchmarks/results/race.json into docs/

Minutes are of processor time: the same on a machine that does other work. Set OMP_NUM_THREADS=1. Every entry runs in a
separate process and leaves `result.json` in its folder; a finished entry is not run again.
Measured on the frozen held-out sample: bits per byte, and how many tokens of a removed span of 32 are found in a given
number of forwards, without (completion) and with (infill) the text behind it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import DaguerreError, DataError, InputError, unknown
from daguerre.evals.bits import bits_per_byte, spread
from daguerre.evals.documents import read_documents
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import write_json, write_page
from daguerre.evals.tables import table
from daguerre.heldout import Document, load_frozen
from daguerre.model import Model, load
from daguerre.models.loading import CONFIG, read_extra
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.checkpoint import CHECKPOINTS, list_checkpoints
from daguerre.train.run import run_training
from daguerre.view.charts import new_figure, write_figure

ROOT = Path(__file__).resolve().parents[1]
RECIPES, RESULTS = ROOT / "recipes" / "race", ROOT / "benchmarks" / "results" / "race.json"
TABLE, PICTURE = ROOT / "docs" / "objectives.md", ROOT / "docs" / "objectives.png"
PREFIX, SPAN, SUFFIX = 127, 32, 64  # tokens; the span begins at position 128, where a block of 16 does
STEPS = (1, 2, 4, 8, 16, 32)
SHOWN = (1, 4, 32)
"""Numbers of forwards in which spans are filled, and those that the page shows; the picture has all."""
COMPLETION, INFILL = "completion", "infill"


@dataclass(frozen=True)
class RaceEntry:
    """A recipe of recipes/race and what its model can do.

    what       for the table
    layouts    of `bits_per_byte`
    tasks      COMPLETION, INFILL
    after      the entry whose model it starts from
    """

    what: str
    layouts: tuple[int | str, ...]
    tasks: tuple[str, ...]
    after: str | None = None


BOTH = (COMPLETION, INFILL)
ENTRIES = {
    "ar": RaceEntry("next token only", ("ar",), (COMPLETION,)),
    "mixture": RaceEntry("the default model's mixture: causal context", ("ar", 16, "full"), BOTH),
    "mdlm": RaceEntry("MDLM, LLaDA: masks, full context", ("full",), BOTH),
    "bd3": RaceEntry("BD3-LM: masks, blocks of 16", (16,), (COMPLETION,)),
    "uniform": RaceEntry("UDLM, Duo: random tokens", ("full",), BOTH),
    "hybrid": RaceEntry("GIDD: masks and random tokens", ("full",), BOTH),
    "sedd": RaceEntry("SEDD absorbing, in its equivalent x_0 form", ("full",), BOTH),
    "conversion": RaceEntry("DiffuGPT: from `ar` to full context", ("full",), BOTH, after="ar"),
}


@dataclass(frozen=True)
class RaceLimits:
    """How much is measured: windows and draws of each for bits per byte, removed spans for accuracy."""

    windows: int = 64
    samples: int = 8
    spans: int = 128


# ---- one entry ----------------------------------------------------------------------------------------------------


def run_entry(
    name: str,
    out: Path,
    data: Path,
    minutes: float,
    limits: RaceLimits,
    documents: Sequence[Document],
    overrides: Sequence[str] = (),
) -> Path:
    """Train an entry, or go on with it, and measure it; its result.json. An entry that has one is left as it is."""
    folder, result = out / name, out / name / "result.json"
    if result.is_file():
        return result
    start = str(out / after / "model") if (after := ENTRIES[name].after) else None
    model = run_training(
        str(RECIPES / f"{name}.toml"),
        overrides=overrides,
        resume=bool(list_checkpoints(folder / CHECKPOINTS)),
        start_from=start,
        data=data,
        max_minutes=minutes,
        out=folder,
        device="cpu",
        clock=time.process_time,
    )
    if (trained := read_extra(model)["trained"])["minutes"] < minutes:
        raise InputError(f"{name} was stopped before its {minutes:g} minutes: run the race again to go on")
    values = {"name": name, "minutes": minutes, "trained": trained, **measure(name, load(model), limits, documents)}
    write_json(result, values)
    return result


def measure(name: str, model: Model, limits: RaceLimits, documents: Sequence[Document]) -> dict[str, Any]:
    """Bits per byte and accuracy of an entry's model."""
    entry = ENTRIES[name]
    figures = bits_per_byte(
        model.denoiser.backend,
        model.tokenizer,
        documents,
        layouts=entry.layouts,
        exact_windows=limits.windows,
        bound_windows=limits.windows,
        samples=limits.samples,
    )
    spans = removed_spans(documents, model.tokenizer, limits.spans)
    return {
        "frames": frames(model, spans[0]) if model.config.process != "absorbing" else None,
        "parameters": model.backbone.num_parameters,
        "bits": [asdict(figure) for figure in figures],
        "accuracy": {task: [accuracy(model, spans, task, steps) for steps in STEPS] for task in entry.tasks},
        "limits": asdict(limits),
        "machine": machine_facts(model.backbone.embedding.weight.device),
    }


def removed_spans(documents: Sequence[Document], tokenizer: Tokenizer, num: int) -> list[np.ndarray]:
    """Runs of PREFIX + SPAN + SUFFIX tokens, one from the middle of each of at most `num` documents, evenly spread."""
    length, found = PREFIX + SPAN + SUFFIX, []
    for document in documents:
        ids = np.array(tokenizer.encode(document.text), dtype=np.int64)
        if len(ids) >= length:
            start = (len(ids) - length) // 2
            found.append(ids[start : start + length])
    if not found:
        raise DataError(f"no document has {length} tokens: give longer ones")
    return [found[i] for i in spread(len(found), num)]


def accuracy(model: Model, spans: Sequence[np.ndarray], task: str, steps: int) -> dict[str, float] | None:
    """Share of the tokens of removed spans that are found, its standard error over spans, and forwards a span.

    None where the model cannot fill a span in so few forwards, or takes no more of them.
    """
    if model.config.context == "block" and steps < SPAN // (model.config.block_size or 1):
        return None
    if task == COMPLETION and is_autoregressive(model) and steps < SPAN:
        return None
    shares, forwards = [], 0
    for ids in spans:
        drawn, num = fill(model, ids, task, steps)
        shares.append(float((drawn == ids[PREFIX : PREFIX + SPAN]).mean()))
        forwards += num
    stderr = float(np.std(shares, ddof=1) / len(shares) ** 0.5) if len(shares) > 1 else 0.0
    return {"steps": steps, "forwards": forwards / len(spans), "accuracy": float(np.mean(shares)), "stderr": stderr}


def is_autoregressive(model: Model) -> bool:
    """True for a model that was trained on next tokens alone: no gap filler, and never a mask."""
    return model.config.context == "causal" and model.config.null_id is None


def fill(model: Model, ids: np.ndarray, task: str, steps: int) -> tuple[np.ndarray, int]:
    """The most likely tokens (SPAN,) in place of those of `ids` in `steps` forwards, the most confident first, and how
    many forwards it took; for INFILL the text behind them is seen.
    """
    options: dict[str, Any] = {"mode": "full", "policy": "confidence", "steps": steps}
    if model.config.process != "absorbing":
        options = {"mode": "ancestral", "steps": steps}
    elif is_autoregressive(model):
        options = {"mode": "ar"}
    elif model.config.context == "block":
        size = model.config.block_size or SPAN
        options |= {"mode": "block", "block_size": size, "steps": steps * size // SPAN}
    options |= {"min_tokens": SPAN, "temperature": 0.0, "heal": False}
    before, after = ids[:PREFIX].tolist(), ids[PREFIX + SPAN :].tolist()
    write = partial(model.infill, before, after) if task == INFILL else partial(model.generate, before)
    result = write(SPAN, **options)
    return np.array([token.id for token in result.tokens]), result.usage.forwards


def frames(model: Model, ids: np.ndarray, steps: int = SPAN) -> dict[str, Any]:
    """How noise turns into text: what stands in the removed span of `ids` after each of some steps; a mask is OPEN."""
    before, after = (model.tokenizer.decode(part.tolist()) for part in (ids[:PREFIX], ids[PREFIX + SPAN :]))
    true = model.tokenizer.decode(ids[PREFIX : PREFIX + SPAN].tolist())
    options: dict[str, Any] = {"min_tokens": SPAN, "mode": "ancestral", "steps": steps}
    *events, _ = model.stream(before, SPAN, suffix=after, **options)
    noise = len(events) - steps  # a process without a mask first emits the noise that it begins with
    shown = [(0, events[0].text)] if noise else []
    shown += [(step, events[noise + step - 1].text) for step in (1, 4, 8, 16, 24, steps)]
    return {"before": before, "true": true, "shown": shown}


# ---- the race -----------------------------------------------------------------------------------------------------


def start(name: str, arguments: Sequence[str]) -> int:
    """Run an entry in a separate process; its exit status."""
    return subprocess.run([sys.executable, __file__, "--entry", name, *arguments], check=False).returncode


def run_race(names: Sequence[str], arguments: Sequence[str], out: Path, results: Path) -> None:
    """Every entry in a separate process, in the order of ENTRIES; then one JSON of all that are finished."""
    for name in ENTRIES:
        if name not in names or (out / name / "result.json").is_file():
            continue
        print(f"--- {name}", flush=True)
        if start(name, arguments):
            raise InputError(f"{name} did not finish: fix what it reports, and run the race again to go on")
    finished = [out / name / "result.json" for name in ENTRIES if (out / name / "result.json").is_file()]
    values = [json.loads(path.read_text(encoding="utf-8")) for path in finished]
    results.parent.mkdir(parents=True, exist_ok=True)
    write_json(results, values)


def write_objectives(results: Path, to: Path, picture: Path) -> None:
    """The table and the picture from a race's JSON."""
    if not results.is_file():
        raise DataError(f"no race at {results}: run it first")
    values = json.loads(results.read_text(encoding="utf-8"))
    draw_picture(values, picture)
    write_page(to, markdown(values, picture.name))


def markdown(values: Sequence[dict[str, Any]], picture: str) -> str:
    minutes = sorted({f"{value['minutes']:g}" for value in values})
    head = ["entry", "tokens seen", "ar", "blocks of 16", "full canvas"]
    head += [f"{task}, {steps}" for task in (INFILL, COMPLETION) for steps in SHOWN]
    rows = [_row(value) for value in values]
    limits = values[0]["limits"] if values else asdict(RaceLimits())
    missing = [name for name in ENTRIES if name not in {value["name"] for value in values}]
    return "\n".join(
        [
            "# Objectives, raced",
            "",
            _wrapped(
                "Written by `python benchmarks/race.py --report`. Each objective was trained for "
                f"{' and '.join(minutes)} minutes of processor time on one thread, with the same backbone, corpus and "
                "machine, from `recipes/race/` (models that are given the noise level have a few more weights)."
            ),
            "",
            _wrapped(
                f"Bits per byte are of the frozen held-out sample, on {limits['windows']} windows of 256 tokens: `ar` "
                f"is exact, the others are upper bounds from {limits['samples']} stratified draws of noise, with their "
                "standard error, and one family's bound may be looser than another's. Infill and completion are the "
                f"share of the tokens of {limits['spans']} removed spans of {SPAN} that greedy decoding finds in so "
                "many forwards, with the text on both sides or only before the span."
            ),
            "",
            table(head, rows, left=len(head)),
            "",
            *([f"Not raced yet: {', '.join(f'`{name}`' for name in missing)}.", ""] if missing else []),
            _wrapped(
                "`sedd` has the bound of the absorbing process as its loss, with SEDD's time input; score entropy is "
                "equal to it once scores are written as predictions of the text. `conversion` has the minutes of `ar` "
                "behind it as well. Models of the uniform and hybrid processes are sampled by their posterior with all "
                "probability on the most likely token; what they wrote may change until the last step."
            ),
            "",
            f"![Accuracy against forwards, and bits per byte]({picture})",
            "",
            *(line for value in values if value.get("frames") for line in _shown(value["name"], value["frames"])),
        ]
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def _row(value: dict[str, Any]) -> list[str]:
    bits = {figure["layout"]: figure for figure in value["bits"]}
    cells = [f"`{value['name']}`: {ENTRIES[value['name']].what}", f"{value['trained']['tokens'] / 1e6:.2f}M"]
    for layout in ("ar", "16", "full"):
        figure = bits.get(layout)
        error = "" if figure is None or figure["exact"] else f" ± {figure['stderr']:.3f}"
        cells.append("" if figure is None else f"{figure['value']:.3f}{error}")
    for task in (INFILL, COMPLETION):
        points = value["accuracy"].get(task) or [None] * len(STEPS)
        shown = [point for steps, point in zip(STEPS, points, strict=True) if steps in SHOWN]
        cells += ["" if point is None else f"{point['accuracy']:.3f}" for point in shown]
    return cells


def _shown(name: str, frames: dict[str, Any]) -> list[str]:
    """The frames of an entry, one line each."""
    rows = [f"{step:>4}  {text!r}" for step, text in frames["shown"] if step not in (1, 8, 24)]
    return [
        f"## `{name}`: noise turns into text",
        "",
        _wrapped(
            f"The first of the removed spans, {SPAN} tokens written in {frames['shown'][-1][0]} steps at temperature "
            "0, with the text on both sides; after step 0 it is noise."
        ),
        "",
        "```",
        f"true  {frames['true']!r}",
        *rows,
        "```",
        "",
    ]


def draw_picture(values: Sequence[dict[str, Any]], path: Path) -> None:
    """Accuracy against forwards for both tasks, and bits per byte. MissingExtra without matplotlib."""
    figure = new_figure(15.0, 4.8)
    infill, completion, bits = figure.subplots(1, 3)
    colors = {name: f"C{index}" for index, name in enumerate(ENTRIES)}
    for panel, task in ((infill, INFILL), (completion, COMPLETION)):
        for value in values:
            points = [point for point in value["accuracy"].get(task) or () if point is not None]
            if points:
                xs, ys = ([point[key] for point in points] for key in ("forwards", "accuracy"))
                panel.plot(xs, ys, "o-", markersize=4, color=colors[value["name"]], label=value["name"])
        panel.set_title(f"{task.capitalize()}: share of {SPAN} tokens found")
        panel.set_xlabel("forwards")
        panel.set_xscale("log", base=2)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.25)
    line_of: dict[str, Any] = {}
    for panel in (infill, completion):
        line_of |= {name: line for line, name in zip(*panel.get_legend_handles_labels(), strict=True)}
    names = [name for name in ENTRIES if name in line_of]
    figure.legend(
        [line_of[name] for name in names],
        names,
        loc="outside lower center",
        ncols=len(ENTRIES),
        fontsize=9,
        frameon=False,
    )
    best = [(value["name"], min(value["bits"], key=lambda figure: figure["value"])) for value in values]
    places = np.arange(len(best))
    bits.barh(places, [figure["value"] for _, figure in best], color=[colors[name] for name, _ in best])
    bits.set_yticks(places, [f"{name} ({figure['layout']})" for name, figure in best])
    bits.invert_yaxis()
    bits.set_title("Bits per byte, the best of an entry's layouts")
    bits.grid(alpha=0.25, axis="x")
    write_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a corpus, as `daguerre data python` makes it")
    parser.add_argument("--out", type=Path, default=Path("runs/race"), help="folder of the runs")
    parser.add_argument("--minutes", type=float, default=20.0, help="of training, for each entry")
    parser.add_argument("--only", nargs="+", default=list(ENTRIES), help="entries; all by default")
    parser.add_argument("--set", nargs="+", default=[], dest="overrides", help="key=value for every recipe")
    parser.add_argument("--heldout", type=Path, help="files to measure on; the frozen sample by default")
    for name, value in asdict(RaceLimits()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the JSON of all entries")
    parser.add_argument("--report", action="store_true", help="write the table and the picture from the JSON, no more")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--entry", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        _run(options, sys.argv[1:] if arguments is None else list(arguments))
    except DaguerreError as error:
        print(f"race: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace, given: list[str]) -> None:
    if options.report:
        write_objectives(options.results, options.table, options.table.with_suffix(".png"))
        return
    if options.data is None:
        raise InputError("say what to train on: --data CORPUS")
    for name in options.only:
        if name not in ENTRIES:
            raise unknown("entry", name, ENTRIES)
        if (
            (after := ENTRIES[name].after)
            and after not in options.only
            and not (options.out / after / "model" / CONFIG).is_file()
        ):
            raise InputError(f"{name} starts from {after}: run that too")
    if options.entry is None:
        run_race(options.only, given, options.out, options.results)
        return
    limits = RaceLimits(options.windows, options.samples, options.spans)
    documents = load_frozen() if options.heldout is None else read_documents(options.heldout)[0]
    run_entry(options.entry, options.out, options.data, options.minutes, limits, documents, options.overrides)


if __name__ == "__main__":
    sys.exit(main())
