"""Write the tables of MODEL_CARD.md, canvas.md, speed.md and when-slower.md again: `python docs/write_figures.py`.

A table stands between `<!-- figures: NAME -->` and `<!-- end -->`, NAME one of TABLES. It has the rows that
`benchmarks/results/default-*.json` (reports of `daguerre eval`, each task in one of them) have the figures for. All of
them must be of the shipped model; reports of tasks that need no draft head may be of the same weights without it, or
with an earlier one.
DataError for a report of other weights, and for a task that was measured twice. Tables of speed are of the reports of
`daguerre bench` that SPEEDS names, most of them of `benchmarks/results/speed.json`.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save

from daguerre.errors import DataError
from daguerre.evals.bench.bars import bars as bench_bars
from daguerre.evals.bench.bars import ratios
from daguerre.evals.bench.family_depth import deep_models
from daguerre.evals.bench.family_report import lines
from daguerre.evals.bench.job import RANDOM
from daguerre.evals.bench.real_report import summary
from daguerre.evals.bench.report import machine_text, rows_table, threads_text
from daguerre.evals.bench.rows import crossing
from daguerre.evals.infilling import BEAM, NOVEL
from daguerre.evals.modes_section import closest_setting, completion_modes, gap_modes
from daguerre.evals.tables import table
from daguerre.files import atomic_write
from daguerre.models.loading import CONFIG, WEIGHTS, model_folder
from daguerre.train.optim import LOW_RANK

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 120
"""Columns of a page."""
DOCUMENTS = ("MODEL_CARD.md", "docs/canvas.md", "docs/speed.md", "docs/when-slower.md")
RESULTS = ROOT / "benchmarks" / "results"
SPEEDS = {
    name: RESULTS / f"{name.replace('_', '-')}.json"
    for name in ("speed", "speed_avx2", "families", "families_avx512", "families_avx2")
}
REAL = "real-*.json"
"""Reports of published files."""
PROCESSORS = {
    "AMX": ("speed", "families"),
    "AVX-512": ("families_avx512",),
    "AVX2": ("families_avx2",),
    "AMX, held to AVX2": ("speed_avx2",),
}
"""The reports of each kind of processor."""
NOT_MEASURED = "Not measured yet: run `daguerre bench --out benchmarks/results/speed.json` on an idle machine."
REAL_COMMAND = "`daguerre bench --what real --model FILE.gguf --out benchmarks/results/real-NAME.json`"
PER_FORWARD = (1.5, 2.0, 3.0, 4.0)
FACTS = ("model", "data", "machine", "settings", "seconds", "skipped")
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
WITH_HEAD = {"draft", "completion", "speculation"}
"""Tasks whose figures a draft head has a part in."""
OTHER_DRAFTS = "2eef5e8c7c95c3c244cb1e69d7036eb3ecda0ec99317a9ba91007f3131c0da82"
"""The default model of b29e819, which differs from the shipped one in its draft head and low-rank weights alone."""
Row = tuple[str, str, str, str]
"""What was measured, the figure, the bar, and whether it is met; the last two are empty where there is no bar."""


def main() -> None:
    tasks = read_tasks(sorted(RESULTS.glob("default-*.json")))
    for name in DOCUMENTS:
        text = rewritten((ROOT / name).read_text(encoding="utf-8"), tasks)
        with atomic_write(ROOT / name) as file:
            file.write(text.encode())


def read_tasks(paths: Sequence[Path]) -> dict[str, Any]:
    """{task: what its report says of it}; under "reports", the reports by file name, under SPEEDS those of speed."""
    folder = model_folder("default")
    shipped = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["weights_sha256"]
    headless = without_draft_head(folder / WEIGHTS)
    out: dict[str, Any] = {"reports": {}}
    for path in paths:
        report = json.loads(path.read_text(encoding="utf-8"))
        same = {shipped} if WITH_HEAD & report.keys() else {shipped, headless, OTHER_DRAFTS}
        if report["model"]["weights_sha256"] not in same:
            raise DataError(f"{path.name} is of other weights than the default model's: measure it again, or remove it")
        for task in report.keys() - set(FACTS):
            if task in out:
                raise DataError(f"{path.name} has {task!r}, which another report has too: keep one of them")
            out[task] = report[task]
        out["reports"][path.name] = report
    out["real"] = [json.loads(path.read_text(encoding="utf-8"))["real"] for path in sorted(RESULTS.glob(REAL))]
    found = {name: path for name, path in SPEEDS.items() if path.exists()}
    return out | {name: json.loads(path.read_text(encoding="utf-8")) for name, path in found.items()}


def without_draft_head(weights: Path) -> str:
    """The hash that a model's file would have without its draft head and the low-rank weights of drafts, which were
    added to finished weights.
    """
    tensors = load_file(weights)
    tensors = {name: x for name, x in tensors.items() if not name.startswith("draft_head.") and LOW_RANK not in name}
    return hashlib.sha256(save(tensors, metadata={"format": "pt"})).hexdigest()


def rewritten(text: str, tasks: dict[str, Any]) -> str:
    """A document with its tables written again. DataError for a table that is not in TABLES."""

    def write(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise DataError(f"no table is called {match[2]!r}: choose one of {', '.join(TABLES)}")
        return f"{match[1]}{wrapped(TABLES[match[2]](tasks))}\n{match[3]}"

    return BLOCK.sub(write, text)


def wrapped(text: str) -> str:
    """Lines of at most WIDTH columns, but for those of tables."""
    fill = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False)
    out = list[str]()
    for line in text.split("\n"):
        fill.subsequent_indent = "  " if line.startswith("* ") else ""
        out += [line] if line.startswith("|") or len(line) <= WIDTH else fill.wrap(line)
    return "\n".join(out)


def bars(tasks: dict[str, Any]) -> str:
    """What was aimed at: bits per byte, drafts, completion, infilling, correction, speculation."""
    rows = [row for name, make in BARS.items() if name in tasks for row in make(tasks[name])]
    return table(["", "measured", "aimed at", ""], rows)


def bits_bars(figures: Sequence[dict[str, Any]]) -> Iterator[Row]:
    names = {"ar": "autoregressive, exact", "16": "NELBO, blocks of 16", "full": "NELBO, full canvas"}
    for figure in figures:
        if figure["layout"] in names:
            bar = 1.15 if figure["layout"] == "ar" else 1.75
            name = f"{names[figure['layout']]}, bits per byte"
            yield name, _bits_value(figure), f"{bar} or less", verdict(figure["value"] <= bar)


def draft_bars(task: dict[str, Any]) -> Iterator[Row]:
    for position, bar in ((2, 0.55), (4, 0.30), (8, 0.18)):
        share, error = task["match_by_position"][position - 1], task["match_stderr"][position - 1]
        name = f"one-shot draft equal to its own greedy text, position {position}"
        yield name, f"{share:.2f} ± {error:.2f}", f"{bar:.2f}", verdict(share >= bar)
    accepted = task["accepted_a_cycle"]
    figure = f"{accepted:.2f} ± {task['accepted_stderr']:.2f}"
    yield "tokens accepted a cycle of self-speculation, simulated", figure, "2.8", verdict(accepted >= 2.8)


def completion_bars(task: dict[str, Any]) -> Iterator[Row]:
    name = "next-line completion: tokens a forward, no worse than `ar` in exact lines and similarity (95%)"
    best = [row for row in task["rows"] if row["label"] == task["best_no_worse"]]
    speed = best[0]["tokens_per_forward"] if best else 0.0
    yield name, f"{speed:.2f} ({best[0]['label']})" if best else "no setting", "1.5", verdict(speed >= 1.5)


def infill_bars(task: dict[str, Any]) -> Iterator[Row]:
    of = {(outcome["method"], outcome["length"]): outcome for outcome in task["outcomes"]}
    best = BEAM if (BEAM, "unknown") in of else "infill"
    unknown, known = of[best, "unknown"], of[best, "known"]
    name = "a missing line, unknown length, exact"
    yield (
        name + (", in mode `beam`" * (best == BEAM)),
        _share(unknown, "exact"),
        "5%",
        verdict(unknown["exact"] >= 0.05),
    )
    yield "the same, known length", _share(known, "exact"), "", ""
    if (NOVEL, "unknown") in of:
        new = of[NOVEL, "unknown"]
        name = "unknown length, `beam` with `no_repeat_context_lines` (it uses the benchmark's own selection rule)"
        yield name, _share(new, "exact"), "5%", verdict(new["exact"] >= 0.05)
    if best == BEAM:
        yield "unknown length, mode `block`", _share(of["infill", "unknown"], "exact"), "", ""
    share = unknown["exact"] / known["exact"] if known["exact"] else 0.0
    yield "unknown length, as a share of known length", f"{share:.0%}", "80%", verdict(share >= 0.8)
    others = [of[method, "unknown"] for method in ("copy", "ar") if (method, "unknown") in of]
    above = all(unknown["exact"] > other["exact"] for other in others)
    rivals = ", ".join(f"`{other['method']}` {100 * other['exact']:.1f}%" for other in others)
    yield "baselines without the suffix, unknown length", rivals, "below", verdict(above)


def correction_bars(task: dict[str, Any]) -> Iterator[Row]:
    name = "5% of a line's tokens wrong: fixed, with at most 2% of the others broken"
    place = task["best"]["random 0.05"]
    if place is None:
        yield name, "no threshold breaks so few", "50%", verdict(False)
        return
    best = task["rows"][place]
    masked = "each token masked, " if best["reading"] == "leave_one_out" else ""
    figure = f"{best['fixed']:.0%} fixed, {best['broken']:.1%} broken ({masked}threshold {best['threshold']:g})"
    yield name, figure, "50%", verdict(best["fixed"] >= 0.5 and best["broken"] <= 0.02)


SPEEDS_AIMED_AT = {0.0: (3.8, 2.4), 0.7: (2.3, None), 1.0: (2.2, 1.4)}
"""Tokens a forward, and times the speed of `ar`, by temperature."""
ACCEPTED_AIMED_AT = {"greedy": ("greedy", (0.86, 0.69, 0.64)), "race": ("held-out", (0.68, 0.60, 0.57))}
"""The text in which acceptance is measured, and its bars at depths 1, 2, 3."""


def speculation_bars(task: dict[str, Any]) -> Iterator[Row]:
    """Nothing of a report that is older than these bars."""
    if "acceptance" not in task:
        return
    for outcome in task["outcomes"]:
        name = f"self-speculation at temperature {outcome['temperature']:g}: tokens a forward; times `ar`"
        same = f"{outcome['identical']} of {outcome['prompts']} texts identical, {_loops(outcome)}"
        all_same = outcome["identical"] == outcome["prompts"]
        yield _speed_bar(name, outcome, *SPEEDS_AIMED_AT[outcome["temperature"]], same, all_same)
    for outcome in task["first"]:
        if outcome["temperature"] == 0:
            name = f"the first {outcome['new_tokens']} tokens alone, temperature 0: tokens a forward; times `ar`"
            yield _speed_bar(name, outcome, 2.9, None, _loops(outcome), True)
    if lines := task["lines"]:
        same = f"{lines['identical']} of {lines['lines']} lines identical, {lines['loops']:.0%} loop"
        all_same = lines["identical"] == lines["lines"]
        yield _speed_bar("next lines: tokens a forward; times `ar`", lines, 2.4, 1.7, same, all_same)
    for way, (text, aims) in ACCEPTED_AIMED_AT.items():
        rows = [row for row in task["acceptance"] if row["text"] == text][: len(aims)]
        figure = " ".join(f"{row[way]:.2f}" for row in rows)
        met = all(row[way] >= aim for row, aim in zip(rows, aims, strict=True))
        bar = " ".join(f"{aim:.2f}" for aim in aims)
        yield f"{way} acceptance at depths 1, 2, 3 ({text} text)", figure, bar, verdict(met)
    for row in task["edits"]:
        if row["draft"] and row["mode"] == "speculative":
            name = f"edits, the old text as draft, prompt: {row['shown']}: tokens a forward; times `ar`"
            yield _speed_bar(name, row, 6.0, None, f"{row['loops']:.0%} loop", row["identical"] == row["edits"])


def _speed_bar(name: str, row: dict[str, Any], aim: float, speed_aim: float | None, note: str, all_same: bool) -> Row:
    """Tokens a forward and times `ar`, and whether both are as high as aimed at and all texts are the same."""
    met = row["tokens_per_forward"] >= aim and row["speedup"] >= (speed_aim or 0) and all_same
    bar = f"{aim:g}" if speed_aim is None else f"{aim:g}; {speed_aim:g}"
    return name, f"{row['tokens_per_forward']:.2f}; {row['speedup']:.2f} ({note})", bar, verdict(met)


def _loops(row: dict[str, Any]) -> str:
    return f"{row['loops_early']:.0%} loop early, {row['loops']:.0%} in all"


BARS: dict[str, Callable[[Any], Iterator[Row]]] = {
    "bits": bits_bars,
    "draft": draft_bars,
    "completion": completion_bars,
    "infill": infill_bars,
    "correction": correction_bars,
    "speculation": speculation_bars,
}


def real(tasks: dict[str, Any]) -> str:
    """Published files beside llama.cpp, and the machines."""
    if not tasks.get("real"):
        return f"Not measured yet: run {REAL_COMMAND} on an idle machine."
    machines = dict.fromkeys(f"* {machine_text(part['machine'])}." for part in tasks["real"])
    return "\n\n".join([summary(tasks["real"]), "\n".join(machines)])


def speed_missed(tasks: dict[str, Any]) -> str:
    """How many targets of speed each kind of processor meets, and those that it misses."""
    counts, cells = list[str](), list[list[str]]()
    for processor, names in PROCESSORS.items():
        found = [bar for name in names for bar in bench_bars(tasks.get(name, {}))]
        counts += [f"{processor}: {sum(bar[-1] for bar in found)} of {len(found)} met"] if found else []
        figures = dict[tuple[str, str], dict[str, str]]()
        for what, threads, figure, aimed_at, met in found:
            short = figure.partition(",")[0]
            figures.setdefault((what, aimed_at), {})[threads] = short if met else f"**{short}**"
        for (what, aimed_at), by_threads in figures.items():
            if any(figure.startswith("**") for figure in by_threads.values()):
                cells.append([processor, what, aimed_at, by_threads.get("1", ""), by_threads.get("2", "")])
    header = ["", "missed", "aimed at", "one thread", "2 threads"]
    return f"{'; '.join(counts)}.\n\n{table(header, cells, left=2)}" if counts else NOT_MEASURED


def speed_rows(tasks: dict[str, Any]) -> str:
    """r(n): a forward by its number of rows, in each type, and PyTorch's beside it; of more threads bfloat16."""
    if "rows" not in tasks.get("speed", {}):
        return NOT_MEASURED
    part = tasks["speed"]["rows"]
    rows, numbers = [], list[int]()
    for threads, found in part["threads"].items():
        for name, side in found["models"][RANDOM]["sides"].items():
            if name.startswith(("native", "torch")) and (threads == "1" or name.startswith("native b")):
                numbers = side["rows"]
                rows.append([f"{threads_text(threads)}, {name}", *(f"{times:.2f}" for times in side["times_one_row"])])
    header = ["rows of a forward: times one row", *map(str, numbers)]
    return f"{table(header, rows)}\n\n{machine_text(part['machine'])}.\n\n![rows](../benchmarks/results/speed-rows.png)"


def speed_table(tasks: dict[str, Any]) -> str:
    """Every row count and type beside PyTorch's float32 modules, random weights."""
    if "rows" not in tasks.get("speed", {}):
        return NOT_MEASURED
    part, tables = tasks["speed"]["rows"], []
    for threads, found in part["threads"].items():
        title = f"{RANDOM}, {threads_text(threads)}: times as fast as PyTorch"
        sides = {n: side for n, side in found["models"][RANDOM]["sides"].items() if n.startswith("native")}
        tables.append(rows_table(title, sides, "times_torch"))
    return "\n\n".join([*tables, f"{machine_text(part['machine'])}."])


def speed_without(tasks: dict[str, Any]) -> str:
    """Mode "ar" by the native backend, times as fast as by the torch backend."""
    if "peers" not in tasks.get("speed", {}):
        return NOT_MEASURED
    part = tasks["speed"]["peers"]
    rows = []
    for threads, found in part["threads"].items():
        whole, _ = ratios(found["sides"]["ar"], found["sides"]["ar torch"])
        rows.append([threads_text(threads), f"{whole:.1f}"])
    return (
        table(["34M shape, `ar`", "native, times as fast as the torch backend"], rows)
        + f"\n\n{machine_text(part['machine'])}."
    )


def families(tasks: dict[str, Any]) -> str:
    """Answer tokens a second of published shapes, times llama.cpp's, a column for each processor and its threads."""
    rows, columns, machines = dict[str, dict[str, str]](), dict[str, None](), list[str]()
    for processor, names in PROCESSORS.items():
        for part in (tasks[name]["families"] for name in names if "families" in tasks.get(name, {})):
            machines.append(f"* {processor}: {machine_text(part['machine'])}.")
            for what, threads, times in times_llama(part):
                column = f"{processor}, {threads_text(threads)}"
                columns[column] = None
                rows.setdefault(what, {})[column] = f"{times:.2f}"
    if not rows:
        return NOT_MEASURED.replace("--out benchmarks/results/speed.json", "--what families")
    cells = [[what, *(of_what.get(column, "") for column in columns)] for what, of_what in rows.items()]
    return "\n\n".join([table(["times llama.cpp", *columns], cells), "\n".join(machines)])


def times_llama(part: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Each shape in blocks or with full context, which no published file shows beside llama.cpp, with its mode and
    weights, the threads, and how many times as fast as llama.cpp.
    """
    for line in lines(part):
        if line.times is not None and line.block is not None:
            yield f"{line.shape}, `{line.mode}`, {line.weights} beside {line.peer}", line.threads, line.times
    for model in deep_models(part):
        for cache in model.seconds if "llama.cpp" in model.seconds else ():
            if cache != "llama.cpp":
                times = model.whole("llama.cpp") / model.whole(cache)
                yield f"llada-8b, whole canvas, cache {cache}, {model.weights}", model.threads, times


def speed_crossing(tasks: dict[str, Any]) -> str:
    """Where the lines cross, by tokens a forward."""
    if "rows" not in tasks.get("speed", {}):
        return NOT_MEASURED
    parts = tasks["speed"]["rows"]["threads"]
    rows = []
    for per_forward in PER_FORWARD:
        rows.append([f"{per_forward:g} tokens a forward"])
        for found in parts.values():
            crowd = found["concurrency"]
            gain = per_forward * crowd[0]["ar_ms"] / crowd[0]["block_ms"]
            place = crossing(crowd, per_forward)
            rows[-1] += [f"{gain:.2f}", f"beyond {crowd[-1]['requests']}" if place is None else f"{place:.1f}"]
    header = [f"blocks of {next(iter(parts.values()))['block']}"]
    for threads in parts:
        header += [f"one request, {threads_text(threads)}: times `ar`", "slower from so many requests"]
    note = (
        f"0.0: slower even with one request. Blocks were timed at {found['block_rows']} rows a request, which is what "
        "4 tokens a forward need; fewer tokens need slightly fewer rows."
    )
    return f"{table(header, rows)}\n\n{note}"


def measured(tasks: dict[str, Any]) -> str:
    """What was measured with what."""
    files_of: dict[str, list[str]] = {}
    for name, report in tasks["reports"].items():
        machine, data = report["machine"], report["data"]
        threads = "one thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
        conditions = (
            f"{data['name']} ({data['documents']} files of {data['packages']} packages that no training file comes "
            f"from, {data['bytes'] / 1e6:.1f} MB), {threads} of {machine['cores']} {machine['processor']} cores, "
            f"{report['model']['dtype']}"
        )
        ran = ", ".join(sorted(report.keys() - set(FACTS)))
        files_of.setdefault(conditions, []).append(f"{ran} ([{name}](benchmarks/results/{name}))")
    return "\n".join(f"* {', '.join(files)}: {conditions}" for conditions, files in files_of.items())


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "bars": bars,
    "measured": measured,
    "modes_completion": completion_modes,
    "modes_gaps": gap_modes,
    "completion_closest": closest_setting,
    "real": real,
    "speed_missed": speed_missed,
    "speed_rows": speed_rows,
    "speed_table": speed_table,
    "speed_without": speed_without,
    "families": families,
    "speed_crossing": speed_crossing,
}


def verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def _bits_value(figure: dict[str, Any]) -> str:
    return f"{figure['value']:.3f}" + (f" ± {figure['stderr']:.3f}" if figure["stderr"] else "")


def _share(outcome: dict[str, Any], name: str) -> str:
    low, high = outcome[f"{name}_interval"]
    return f"{100 * outcome[name]:.1f}% of {outcome['num']} ({100 * low:.1f} to {100 * high:.1f})"


if __name__ == "__main__":
    main()
