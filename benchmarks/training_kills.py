"""Training that is killed again and again, at random moments, and goes on each time.

    python benchmarks/training_kills.py --kills 20 --out benchmarks/results/training-kills

`daguerre train RECIPE --data FOLDER --out RUN --resume` is started and killed by SIGKILL after a random time: while
PyTorch loads, the folder is read, a step, an evaluation or a checkpoint is under way. Checkpoints come by time alone,
as in every recipe, but after `--minutes`, not after one, so that a run has many. Checked after each kill: no checkpoint
that is listed is damaged, and all steps after the newest one but the last ended within those minutes; log.csv has
neither gap nor step twice. At the end: the run ends by itself with status 0, its model is that of a run never killed,
bit for bit, and held.csv has each step that was due once. Exits with status 1 where one of these fails.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from daguerre.evals.machine import machine_facts
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.train.checkpoint import PREFIX, UNFINISHED, list_checkpoints, load_checkpoint

STEPS, EVERY = 1_000, 250
ROUNDED = 0.05
"""Seconds by which two times of log.csv may be apart more than they were."""
RECIPE = f"""
name = "killed"
tokenizer = "2k"
steps = {STEPS}
precision = "float32"
eval_steps = {EVERY}
checkpoint_steps = 0
checkpoint_minutes = MINUTES
log_steps = 1

[model]
width = 128
num_layers = 2
num_heads = 4
num_kv_heads = 2
mlp_width = 128
max_positions = 128

[[stages]]
until = 1.0
length = 64
sequences = 2
micro_batches = 2

[mixture.blocks]
share = 1.0
layout = "blocks"
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def write_source(folder: Path, num: int = 200) -> None:
    """A folder of Python to learn from; what is in it does not matter."""
    folder.mkdir(parents=True)
    for i in range(num):
        lines = (f"def add_{i}_{j}(x):\n    return x + {i * j}\n\n\n" for j in range(30))
        (folder / f"module_{i}.py").write_text("".join(lines), encoding="utf-8")


def start(folder: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "daguerre", "train", str(folder / "recipe.toml"), "--data", str(folder / "source")]
    command += ["--out", str(out), "--device", "cpu", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)


def go_on(folder: Path, out: Path) -> subprocess.Popen[str]:
    """The run again; before it has written anything there is nothing to resume."""
    return start(folder, out, *(["--resume"] if out.exists() else []))


def rows_of(path: Path) -> list[dict[str, str]]:
    """Whole rows of a CSV; a last row without its end is not read by a resumed run either."""
    if not path.exists():
        return []
    return list(csv.DictReader(path.read_text(encoding="utf-8").split("\n")[:-1]))


def steps_of(path: Path) -> list[int]:
    return [int(row["step"]) for row in rows_of(path)]


def moment(out: Path) -> str:
    """What a killed run was doing, as far as its files show."""
    checkpoints = out / "checkpoints"
    if list(checkpoints.glob(f"{UNFINISHED}*")):
        return "writing a checkpoint"
    if list_checkpoints(checkpoints):
        steps = steps_of(out / "log.csv")
        return "the first step" if not steps else "closing" if steps[-1] == STEPS else "a step or an evaluation"
    if (out / "data").exists():
        return "caching the data" if not (out / "data" / "meta.json").exists() else "before the first checkpoint"
    return "loading, or reading the folder"


def reached(aim: str, out: Path) -> bool:
    """Whether a run does what it is to be killed at."""
    if aim == "caching":
        return (out / "data").exists() and not (out / "data" / "meta.json").exists()
    return aim == "writing" and bool(list((out / "checkpoints").glob(f"{UNFINISHED}*")))


def check(out: Path, minutes: float) -> tuple[list[str], float, int]:
    """(what is wrong with a killed run's folder, seconds and steps from the newest checkpoint to the last step)

    The seconds are the run's own, of `minutes` in log.csv, from the end of the first step after that checkpoint to the
    end of the last one. A step that ends after the minutes is followed by a checkpoint, not by a step.
    """
    wrong, rows = [], rows_of(out / "log.csv")
    steps = [int(row["step"]) for row in rows]
    if steps != list(range(1, len(steps) + 1)):
        wrong.append(f"log.csv has the steps {steps}")
    checkpoints = list_checkpoints(out / "checkpoints")
    for path in checkpoints:
        load_checkpoint(path)
    if not checkpoints:
        return wrong + ([f"{steps[-1]} steps, and no checkpoint"] if steps else []), 0.0, 0
    ended = [60 * float(row["minutes"]) for row in rows[int(checkpoints[-1].name.removeprefix(PREFIX)) :]]
    if len(ended) > 1 and ended[-2] - ended[0] > 60 * minutes + ROUNDED:
        wrong.append(f"{ended[-2] - ended[0]:.1f} seconds after {checkpoints[-1].name} a step, and no checkpoint")
    return wrong, ended[-1] - ended[0] if ended else 0.0, len(ended)


def run(folder: Path, kills: int, seed: int, minutes: float, longest: float, pause: float) -> dict[str, Any]:
    """Kill a run so often, let it end, and compare it with one never killed."""
    write_source(folder / "source")
    (folder / "recipe.toml").write_text(RECIPE.replace("MINUTES", str(minutes)), encoding="utf-8")
    wrong, most_seconds, most_steps = list[str](), 0.0, 0
    whole = start(folder, folder / "whole")
    if whole.wait() != 0:
        raise SystemExit(whole.communicate()[0])
    draw, out, moments = random.Random(seed), folder / "run", Counter[str]()
    aims = ["caching"] * (kills // 7) + ["writing"] * (kills // 4) + ["loading"] * (kills // 7)
    aims += ["any"] * (kills - len(aims))
    for number, aim in enumerate(aims):
        process = go_on(folder, out)
        if aim in ("any", "writing"):
            assert process.stdout is not None
            process.stdout.readline()  # said when all is loaded and read
        until = time.monotonic() + draw.uniform(0, longest)
        while process.poll() is None and (time.monotonic() < until or aim in ("caching", "writing")):
            if reached(aim, out):
                time.sleep(draw.uniform(0, pause))
                break
            time.sleep(0.0005)
        ended = process.poll() is not None
        process.kill()
        text = process.communicate()[0]
        if ended and process.returncode != 0:
            wrong.append(f"start {number} ended with status {process.returncode}: {text[-300:]}")
        moments["not killed: at its end" if ended else moment(out)] += 1
        found, lost, steps = check(out, minutes)
        wrong += [f"kill {number}: {what}" for what in found]
        most_seconds, most_steps = max(most_seconds, lost), max(most_steps, steps)
    last = go_on(folder, out)
    text = last.communicate()[0]
    if last.returncode != 0:
        wrong.append(f"the last start ended with status {last.returncode}: {text[-300:]}")
    for name in ("log.csv", "held.csv"):
        if steps_of(out / name) != steps_of(folder / "whole" / name):
            wrong.append(f"{name} has the steps {steps_of(out / name)}")
    weights = "model/model.safetensors"
    same = (out / weights).read_bytes() == (folder / "whole" / weights).read_bytes()
    if not same:
        wrong.append("the model is not that of a run never killed")
    most = {"minutes": minutes, "most_seconds_lost": round(most_seconds, 2), "most_steps_lost": most_steps}
    return {"kills": kills, **most, "moments": dict(moments.most_common()), "same_weights": same, "wrong": wrong}


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    return (
        f"# Training that is killed\n\n`python benchmarks/training_kills.py`: a run of {STEPS:,} steps, killed "
        f"{report['kills']} times by SIGKILL, and resumed. Checkpoints come by time alone, after "
        f"{60 * report['minutes']:g} seconds in place of a recipe's minute: a kill may lose as much, and the step that "
        f"is under way.\n\n{table(['what it was doing', 'kills'], report['moments'].items())}\n\n"
        f"* Lost by one kill at most: {report['most_seconds_lost']:.1f} seconds and {report['most_steps_lost']} "
        "steps that had ended.\n"
        f"* The model is that of a run never killed, bit for bit: {'yes' if report['same_weights'] else 'NO'}.\n"
        f"* What went wrong: {len(report['wrong'])}." + "".join(f"\n  * {one}" for one in report["wrong"]) + "\n"
    )


def main() -> None:
    """Run, write, and exit with 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.05, help="between two checkpoints; a recipe has one")
    parser.add_argument("--longest", type=float, default=6.0, help="seconds of work before a kill at most")
    parser.add_argument("--pause", type=float, default=0.002, help="seconds into the writing of a file at most")
    parser.add_argument("--out", type=Path, help="where results go, without an ending")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *rest: sys.exit(1))  # so that the folder is removed
    with TemporaryDirectory() as folder:
        report = run(Path(folder), given.kills, given.seed, given.minutes, given.longest, given.pause)
    report = {"machine": machine_facts(), **report}
    publish(given.out, report, markdown(report))
    sys.exit(bool(report["wrong"]))


if __name__ == "__main__":
    main()
