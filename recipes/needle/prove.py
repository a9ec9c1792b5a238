"""Needles in 512 to 4,096 tokens: the default model as it is, with scaled positions, and after continued training.

    python recipes/needle/prove.py --measure default@none:4 default@ntk:4 default@yarn:4    positions as named
    python recipes/needle/prove.py --measure runs/needle/model                              after training
    python recipes/needle/prove.py --report                             runs/needle into benchmarks/results/needle.*

Training is `daguerre train recipes/needle/needle.toml --from default --data DIR`, of what texts.py wrote. Each
measurement leaves a file in `--out` and is then left as it is. Set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from texts import DEPTHS, LENGTHS, NeedleProbe, probes

import daguerre
from daguerre.errors import DataError
from daguerre.evals.bits import bits_per_byte
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import write_json, write_report
from daguerre.evals.statistics import wilson
from daguerre.evals.tables import between, optional, table
from daguerre.heldout import load_frozen
from daguerre.model import Model
from daguerre.models.forward import Forward, Hidden, KeyCache, Layout, Logits
from daguerre.models.loading import read_extra
from daguerre.view.charts import new_figure

sys.path.append(str(Path(__file__).resolve().parents[1]))

from proofs import RESULTS, arguments

# ---- measuring ------------------------------------------------------------------------------------------------------


def clean(cache: KeyCache, tokens: Sequence[int], wanted: np.ndarray, ask: Any) -> Forward:
    """Rows of a text behind a cache."""
    past, num = cache.length, len(tokens)
    layout = Layout(past + np.arange(num), np.arange(past + 1, past + num + 1, dtype=np.int32), num)
    return Forward(np.array(tokens, dtype=np.int64), layout, cache, wanted.astype(np.int32), ask)


def answered(model: Model, probe: NeedleProbe) -> np.ndarray:
    """Whether each token of each answer is the most likely one after the right ones before it, bool (questions, A): of
    the last one, the end of the line, whether the most likely one is no further digit, since it may be the end of a
    line and the beginning of the next in one token. All are, exactly if the model writes the value at temperature 0.
    """
    backend = model.denoiser.backend
    cache = backend.cache(probe.length)
    first = [*model.config.first, *probe.tokens]
    backend.forward([clean(cache, first, np.array([len(first) - 1]), Hidden())])
    out, length = [], cache.length
    for question in probe.questions:
        num = len(question.answer)
        tokens = [*question.tokens, *question.answer[:-1]]
        wanted = np.arange(len(question.tokens) - 1, len(tokens))
        (answer,) = backend.forward([clean(cache, tokens, wanted, Logits())])
        assert answer.logits is not None
        assert len(wanted) == num
        likely = answer.logits.argmax(-1)
        right = likely == np.array(question.answer)
        right[-1] = not model.tokenizer.token_bytes(int(likely[-1]))[:1].isdigit()
        out.append(right)
        cache.truncate(length)
    return np.array(out)


def measure(name: str, num: int, windows: int) -> dict[str, Any]:
    """Needles by length and depth, and bits per byte by position. `name`: a model, and after "@" how it is scaled."""
    source, _, scaling = name.partition("@")
    model = daguerre.load(source, rope_scaling=scaling or None)
    started, grid = time.process_time(), []
    for length in (length for length in LENGTHS if length <= model.config.max_positions):
        right = np.array([answered(model, probe) for probe in probes(model.tokenizer, length, num)])
        for place, depth in enumerate(DEPTHS):
            exact = int(right[:, place].all(-1).sum())
            digits = float(right[:, place, 1:-1].mean())  # without the space and the end of the line
            grid.append({"length": length, "depth": depth, "exact": exact, "num": num, "digits": digits})
    (bits,) = bits_per_byte(
        model.denoiser.backend, model.tokenizer, load_frozen(), layouts=["ar"], exact_windows=windows
    )
    trained = {} if source == "default" else read_extra(source).get("trained", {})
    return {
        "model": name if source == "default" else "trained",
        "positions": model.config.max_positions,
        "grid": grid,
        "bits": {"all": bits.value, "by_position": bits.by_position, "windows": bits.num_windows},
        "trained": trained,
        "minutes": (time.process_time() - started) / 60,
        "machine": machine_facts(),
    }


def measure_to(out: Path, name: str, num: int, windows: int) -> Path:
    """Measure a model, unless its file is there."""
    path = out / f"needle-{name.replace('/', '_').replace('@', '_').replace(':', '_')}.json"
    if not path.is_file():
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, measure(name, num, windows))
    return path


# ---- the report -----------------------------------------------------------------------------------------------------


def gather(out: Path) -> list[dict[str, Any]]:
    """What was measured, the trained model last."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("needle-*.json"))]
    if not found:
        raise DataError(f"{out} has no measurement: run with --measure first")
    return sorted(found, key=lambda one: (one["model"] == "trained", one["model"]))


def share(cells: Sequence[dict[str, Any]]) -> str:
    """The exact share of cells with its 95% interval."""
    exact, num = sum(cell["exact"] for cell in cells), sum(cell["num"] for cell in cells)
    return between(exact / num, *wilson(exact, num), digits=0)


def page(values: list[dict[str, Any]]) -> str:
    """The tables, in Markdown."""
    machine, rows = values[-1]["machine"], []
    for one in values:
        for length in LENGTHS:
            if cells := [cell for cell in one["grid"] if cell["length"] == length]:
                digits = f"{100 * np.mean([cell['digits'] for cell in cells]):.0f}%"
                rows.append([one["model"], f"{length:,}", sum(cell["num"] for cell in cells), share(cells), digits])
    bits = [
        [one["model"], f"{one['positions']:,}", f"{one['bits']['all']:.3f}"]
        + [optional(part, 3) for part in one["bits"]["by_position"]]
        for one in values
    ]
    return "\n\n".join(
        [
            "# Needles, and bits per byte by position",
            "Written by `python recipes/needle/prove.py --report`; what it means: "
            "[docs/long-context.md](../../docs/long-context.md). "
            f"{machine['processor']}, {machine['instruction_set']}, one thread; commit "
            f"{machine.get('commit') or 'not recorded'}.",
            "Held-out names, values and files. `exact`: the value, written at temperature 0, over all depths, with "
            "95% intervals (Wilson); `digits`: of the value, each after the right ones.",
            table(["model", "tokens", "questions", "exact", "digits"], rows),
            "Bits per byte of held-out files, exact, windows of the model's positions, by eighth of the window:",
            table(["model", "positions", "all", *map(str, range(1, 9))], bits),
            "![Exact and digits by length and depth](needle.png)\n",
        ]
    )


def draw(values: list[dict[str, Any]]) -> Any:
    """Heat maps: exact and digits by length and depth, a column for each model."""
    figure = new_figure(4.3 * len(values), 5.6)
    panels = figure.subplots(2, len(values), squeeze=False)
    for column, one in enumerate(values):
        lengths = sorted({cell["length"] for cell in one["grid"]})
        for row, what in enumerate(("exact", "digits")):
            shares = [cell["exact"] / cell["num"] if what == "exact" else cell["digits"] for cell in one["grid"]]
            map_ = 100 * np.array(shares).reshape(len(lengths), -1)
            panel = panels[row, column]
            panel.imshow(map_, vmin=0, vmax=100, cmap="RdYlGn", aspect="auto")
            for (y, x), value in np.ndenumerate(map_):
                panel.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=8)
            panel.set_xticks(range(len(DEPTHS)), [f"{100 * depth:g}" for depth in DEPTHS], fontsize=8)
            panel.set_yticks(range(len(lengths)), [f"{length:,}" for length in lengths])
            panel.set_title(f"{one['model']}: {'exact, %' if what == 'exact' else 'digits, %'}", fontsize=10)
            panel.set_xlabel("depth of the needle, % of the text", fontsize=8)
    return figure


def report(out: Path, results: Path = RESULTS / "needle.json") -> None:
    """JSON, Markdown and picture of what was measured."""
    values = gather(out)
    write_report(results, values, page(values), draw(values))


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, "runs/needle")
    parser.add_argument("--measure", nargs="+", default=[], help="models: default, default@KIND:FACTOR, or a folder")
    parser.add_argument("--num", type=int, default=24, help="texts of each length, nine questions each (%(default)s)")
    parser.add_argument("--windows", type=int, default=40, help="for bits per byte (%(default)s)")
    options = parser.parse_args(words)
    for name in options.measure:
        measure_to(options.out, name, options.num, options.windows)
    if options.report:
        report(options.out)


if __name__ == "__main__":
    main()
