"""Real models behind a router, on tasks with checkable answers: quality against processor seconds.

    pip install 'daguerre[serve,route,fit]'
    python examples/routing/measure.py --model small=SmolLM2.gguf --model large=Qwen-0.5B.gguf \
        --humaneval HumanEval-SingleLineInfilling.jsonl.gz --num 60 --folder measured

Models are named from the smallest to the largest; each is served by a process of its own on one thread. The steps:

    1. every model answers all tasks; answers are graded by running and by comparing (`tasks.py`)
    2. `daguerre route fit` learns from one half of them, and `route fit --cascade` fits its thresholds
    3. the other half, which is of other tasks, is asked again through `daguerre route`, once as a router by predicted
       quality, once as a cascade of the two largest models (`--small` names another one)
    4. with `--load`, gaps of the other half arrive at random times, half as many as the router can answer, and have a
       deadline: 1.5 times the 95th percentile of the smallest model that fills gaps, alone
    5. tables: quality and processor seconds of a task for each kind, beside always the smallest and always the largest
       of the pair, a random mixture of the two and the rule "long prompts to the large one", at the router's seconds

Answers are kept in the folder as they come, so that a run goes on where it was interrupted. Seconds are those of the
servers, from /proc; a server starts anew for each step, so that none finds its earlier prompts in its cache.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from load import arriving, timed
from report import deadlines, report
from tasks import PATHS, Task, drawn

from daguerre.errors import DaguerreError
from daguerre.router.answers import answer_of
from daguerre.router.cascade import WHOLE, likelihood_of
from daguerre.router.cascade_fit import THRESHOLDS, CascadeRows, fit_cascade
from daguerre.router.quality import QualityModel
from daguerre.router.quality_fit import fit_quality
from daguerre.router.quality_rows import read_outcomes
from daguerre.router.reading import read

Row = dict[str, Any]
ROUTER, CASCADE = "router", "cascade"
GAPS = ("line", "lines")
TICKS = os.sysconf("SC_CLK_TCK")
FLOORS = [number / 50 for number in range(51)]
PRICES = [0.0, *np.geomspace(1e-4, 1e2, 61).tolist()]
"""Right answers that a second is worth."""


@dataclass(frozen=True)
class Server:
    """A process that answers at an address."""

    url: str
    pid: int

    def seconds(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def started(*command: str) -> Iterator[Server]:
    """`daguerre` with this command, on one thread, until it says where it listens."""
    whole = [sys.executable, "-m", "daguerre", *command, "--port", "0"]
    process = subprocess.Popen(whole, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = list[str]()
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"daguerre: (?:serving|routing) .* at (http://[^\s)]+)", line):
            break
    else:
        sys.exit(f"daguerre {command[0]} did not start: {''.join(lines)}")
    reader = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)  # the log is not looked at
    try:
        yield Server(found[1], process.pid)
    finally:
        process.terminate()
        process.wait(60)
        reader.wait()
        process.stderr.close()


class Answers:
    """The rows of a run, by step ("fit" or "held"), way and task: what was asked already is not asked again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows = {self._key(row): row for row in map(json.loads, lines)}

    @staticmethod
    def _key(row: Row) -> tuple[str, str, str]:
        return row["side"], row["way"], row["task"]

    def missing(self, tasks: Mapping[str, Sequence[Task]], way: str) -> list[tuple[str, Task]]:
        """The tasks that have no row, with their side."""
        return [(side, one) for side, some in tasks.items() for one in some if (side, way, one.id) not in self.rows]

    def of(self, side: str, way: str, tasks: Sequence[Task]) -> list[Row]:
        """The rows of tasks."""
        return [self.rows[side, way, one.id] for one in tasks]

    def add(self, row: Row) -> None:
        """Keep a row."""
        self.rows[self._key(row)] = row
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _likelihood(operation: str, body: bytes) -> float | None:
    """How likely an answer is; None for one that a cascade never accepts, since it was cut off."""
    said = answer_of(operation, body, streamed=False)
    whole = said is not None and said.finish in WHOLE
    return likelihood_of(operation, body, streamed=False) if whole else None


def ask(url: str, task: Task, servers: Sequence[Server], router: Server | None) -> Row:
    """A task's answer, its grade, and the processor seconds of the servers and of the router. A model that is asked
    directly tells log-probabilities.
    """
    more: Row = {"completions": {"logprobs": 0}, "chat": {"logprobs": True}}.get(task.operation, {})
    body, all_ = task.body | (more if router is None else {}), [*servers, *([] if router is None else [router])]
    before, headers, begun = [one.seconds() for one in all_], {"x-route-step": task.step}, time.perf_counter()
    answer = httpx2.post(f"{url}/v1{PATHS[task.operation]}", json=body, headers=headers, timeout=600)
    ms = 1000 * (time.perf_counter() - begun)
    took = [one.seconds() - first for one, first in zip(all_, before, strict=True)]
    good = answer.status_code < 400
    said = json.loads(answer.content) if good else {}
    return {
        "kind": task.kind,
        "right": task.grade(answer.content) if good else 0.0,
        "valid": good and task.is_valid(answer.content),
        "able": good,
        "likelihood": _likelihood(task.operation, answer.content) if good else None,
        "seconds": sum(took[: len(servers)]),
        "routing": sum(took[len(servers) :]),
        "ms": ms,
        "backend": answer.headers.get("x-route-backend"),
        "cascade": answer.headers.get("x-route-cascade"),
        "usage": said.get("usage"),
        "said": text_of(said),
    }


def text_of(said: Row) -> str:
    """What an answer says, for a comparison."""
    if "answers" in said:
        return json.dumps(said["answers"]["label"]["choice"])
    choice = (said.get("choices") or [{}])[0]
    return str(choice.get("text") or (choice.get("message") or {}).get("content") or "")


def answered(
    answers: Answers,
    way: str,
    todo: Sequence[tuple[str, Task]],
    servers: Sequence[Server],
    router: Server | None = None,
) -> None:
    """Ask tasks one after the other, and keep what comes. A first request of each kind, whose schema has to be
    compiled, is not counted.
    """
    url, first = (router or servers[0]).url, {one.kind: one for one in drawn(30, 99, None, held_out=False)}
    for task in {task.kind: first.get(task.kind, task) for _, task in todo}.values():
        gap = {"prompt": "def f(x):\n", "suffix": "    return x\n"} if task.operation == "completions" else {}
        ask(url, replace(task, body=task.body | gap), servers, router)
    for number, (side, task) in enumerate(todo, 1):
        answers.add({"side": side, "way": way, "task": task.id} | ask(url, task, servers, router))
        if sys.stderr.isatty():
            print(f"{way}: {number} of {len(todo)}", end="\r", file=sys.stderr)


# ---- learning -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What is asked of a run: models by name from the smallest to the largest, and the pair of the cascade."""

    models: Mapping[str, str]
    small: str
    large: str
    folder: Path
    target: float
    confidence: float


def outcomes(run: Run, answers: Answers, tasks: Sequence[Task], names: Sequence[str], path: Path) -> Path:
    """The graded answers to tasks as a file of `daguerre route fit`; likelihoods are those of the small model."""
    with path.open("w", encoding="utf-8") as file:
        for task in tasks:
            rows = {name: answers.rows["fit", name, task.id] for name in names}
            line: Row = {"body": task.body, "operation": task.operation, "group": task.group, "step": task.step}
            line |= {"outcomes": {name: row["right"] for name, row in rows.items() if row["able"]}}
            line |= {"likelihood": rows[run.small]["likelihood"]}
            file.write(json.dumps(line) + "\n") if line["outcomes"] else None
    return path


def learned(run: Run, answers: Answers, tasks: Sequence[Task]) -> tuple[list[dict[str, float]], str | None, list[Task]]:
    """Fit P(right) to two thirds of the tasks: the model's predictions for the others, its file, and these. Of too few
    tasks no model is fitted, and the share of each step type is taken.
    """
    groups = sorted({one.group for one in tasks})
    late = set(groups[::3])
    first, others = [one for one in tasks if one.group not in late], [one for one in tasks if one.group in late]
    path, lines = run.folder / "quality.npz", run.folder / "outcomes.jsonl"
    try:
        fit_quality(read_outcomes(outcomes(run, answers, first, list(run.models), lines))).save(path)
    except DaguerreError as error:
        print(f"no model of quality: {error}", file=sys.stderr)
        shares = qualities(run, answers, first)
        return [{name: shares[name].get(one.step, 0.0) for name in run.models} for one in others], None, others
    model = QualityModel.load(path)
    return [predicted(model, one) for one in others], str(path), others


def predicted(model: QualityModel, task: Task) -> dict[str, float]:
    """How likely each model is right."""
    return model.predict(read(task.operation, task.body))


def qualities(run: Run, answers: Answers, tasks: Sequence[Task]) -> dict[str, dict[str, float]]:
    """The share of right answers of each model by step type."""
    out = dict[str, dict[str, float]]()
    for name in run.models:
        rows = answers.of("fit", name, tasks)
        steps = defaultdict[str, list[float]](list)
        for task, row in zip(tasks, rows, strict=True):
            steps[task.step].append(row["right"])
        out[name] = {step: sum(some) / len(some) for step, some in steps.items()}
    return out


def floors_of(
    run: Run, answers: Answers, tasks: Sequence[Task], chances: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """The floors of predicted quality by step type that take the fewest seconds and keep the target on these tasks. A
    floor lets the first model that reaches it answer, or else the one with the best prediction.
    """
    large = sum(row["right"] for row in answers.of("fit", run.large, tasks))
    steps = defaultdict[str, list[tuple[Task, Mapping[str, float]]]](list)
    for task, chance in zip(tasks, chances, strict=True):
        steps[task.step].append((task, chance))
    found = {step: [_with_floor(run, answers, some, floor) for floor in FLOORS] for step, some in steps.items()}
    best = dict.fromkeys(steps, 1.0)
    for price in PRICES:
        worth = {step: [right - price * took for right, took in some] for step, some in found.items()}
        places = {step: some.index(max(some)) for step, some in worth.items()}
        if sum(found[step][place][0] for step, place in places.items()) < run.target * large:
            break
        best = {step: FLOORS[place] for step, place in places.items()}
    return best


def _with_floor(
    run: Run, answers: Answers, some: Sequence[tuple[Task, Mapping[str, float]]], floor: float
) -> tuple[float, float]:
    """Right answers and seconds with a floor."""
    rows = list[Row]()
    for task, chances in some:
        able = [name for name in run.models if name in chances and answers.rows["fit", name, task.id]["able"]]
        if not able:
            continue
        best = max(able, key=chances.__getitem__)
        name = next((name for name in able if chances[name] >= floor), best)
        rows.append(answers.rows["fit", name, task.id])
    return sum(row["right"] for row in rows), sum(row["seconds"] for row in rows)


def thresholds(run: Run, answers: Answers, tasks: Sequence[Task]) -> str:
    """The tables of the cascade. Where too few tasks make none sure, one threshold that kept the target on all of these
    together, which promises nothing.
    """
    able = [one for one in tasks if answers.rows["fit", run.small, one.id]["able"]]
    path = outcomes(run, answers, able, [run.small, run.large], run.folder / "cascade-outcomes.jsonl")
    found = fit_cascade(path, run.small, run.large, run.target, run.confidence)
    print(found.table())
    try:
        return found.toml()
    except DaguerreError as error:
        print(f"no sure threshold: {error}", file=sys.stderr)
    small, large = answers.of("fit", run.small, able), answers.of("fit", run.large, able)
    likelihoods, ones, others = (
        np.array([row[name] or 0.0 for row in rows])
        for rows, name in ((small, "likelihood"), (small, "right"), (large, "right"))
    )
    rows = CascadeRows(likelihood=likelihoods, small=ones, large=others)
    kept = [one for one in THRESHOLDS.tolist() if rows.outcomes(one).sum() >= run.target * rows.large.sum()]
    return f'[cascade]\nsmall = "{run.small}"\n\n[cascade.least]\ndefault = {min(kept, default=1.0):g}\n'


# ---- serving --------------------------------------------------------------------------------------------------------


def configured(
    run: Run, way: str, urls: Mapping[str, str], shares: Mapping[str, Mapping[str, float]], more: str
) -> Path:
    """The configuration of a router in front of servers, as a file. more: what is not about backends."""
    lines = ['overrides = ["step", "slo_ms", "backend"]', more if way == ROUTER else ""]
    lines += [f'[server]\nlog = "{run.folder / way}-decisions.jsonl"']
    for number, (name, url) in enumerate(urls.items(), 1):
        quality = dict(shares[name]) if way == ROUTER else {"default": float(name == run.large)}
        fills = shares[name].get("infill", 0.0) > 0
        needs = ["schema", "strict_schema", "logprobs", "daguerre", *(["suffix"] if fills else [])]
        lines += [
            f'[[backends]]\nname = "{name}"\nurl = "{url}/v1"\nmodel = "default"\ntimeout = 600',
            f"price = {{ request = {number} }}\nneeds = {json.dumps(needs)}",
            'operations = ["chat", "completions", "decisions"]\ndrafts = ["chat", "completions"]',
            f"quality = {{ {', '.join(f'{step} = {share:.4f}' for step, share in quality.items())} }}",
        ]
    if way == CASCADE:
        lines += ["[steps]", *(f"{step} = {{ quality = 0.5 }}" for step in shares[run.large]), more]
    path = run.folder / f"{way}.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@contextmanager
def routed(
    run: Run, way: str, shares: Mapping[str, Mapping[str, float]], more: str
) -> Iterator[tuple[Server, dict[str, Server]]]:
    """A router, and the servers behind it by name."""
    names = list(run.models) if way == ROUTER else [run.small, run.large]
    with ExitStack() as opened:
        servers = {name: opened.enter_context(started("serve", "--model", run.models[name])) for name in names}
        config = configured(run, way, {name: one.url for name, one in servers.items()}, shares, more)
        yield opened.enter_context(started("route", "--config", str(config))), servers


def loaded(
    run: Run,
    answers: Answers,
    tasks: Sequence[Task],
    first: Sequence[Task],
    shares: Mapping[str, Mapping[str, float]],
    more: str,
) -> str:
    """What came of deadlines under load, as a table. Each model has some other tasks first, so that the router knows
    its times.
    """
    fills = [name for name in run.models if all(row["able"] for row in answers.of("held", name, tasks))]
    deadline = 1.5 * float(np.quantile([row["ms"] for row in answers.of("held", fills[0], tasks)], 0.95))
    rate = 500 / float(np.mean([row["ms"] for row in answers.of("held", ROUTER, tasks)]))
    found = dict[str, list[Row]]()
    for way, headers in ((ROUTER, {"x-slo-ms": f"{deadline:.0f}"}), (run.large, {"x-route-backend": run.large})):
        with routed(run, ROUTER, shares, more) as (router, _):
            for name, task in product(fills, first):
                timed(router.url, task, {"x-route-backend": name})
            found[way] = arriving(router.url, tasks, rate, 1, headers)
    return deadlines(found, deadline, rate)


def main() -> None:
    """Measure, and print the tables."""
    run, given = _asked()
    humaneval = given.humaneval
    tasks = {side: drawn(given.num, given.seed, humaneval, side == "held") for side in ("fit", "held")}
    answers = Answers(run.folder / "answers.jsonl")
    for name, model in run.models.items():
        if todo := answers.missing(tasks, name):
            with started("serve", "--model", model) as server:
                answered(answers, name, todo, [server])
    chances, path, tuned = learned(run, answers, tasks["fit"])
    shares = qualities(run, answers, tasks["fit"])
    found = floors_of(run, answers, tuned, chances)
    floors = "\n".join(f"[steps.{step}]\nquality = {found.get(step, 1.0)}" for step in shares[run.large])
    tables = {ROUTER: (f"quality_model = {json.dumps(path)}\n" if path else "") + floors}
    tables[CASCADE] = thresholds(run, answers, tasks["fit"])
    for way in (ROUTER, CASCADE):
        if todo := answers.missing({"held": tasks["held"]}, way):
            with routed(run, way, shares, tables[way]) as (router, servers):
                answered(answers, way, todo, list(servers.values()), router)
    held = tasks["held"]
    ways = {way: answers.of("held", way, held) for way in (*run.models, ROUTER, CASCADE)}
    model = QualityModel.load(Path(path)) if path else None
    by_step = [{name: shares[name].get(one.step, 0.0) for name in run.models} for one in held]
    scores = [predicted(model, one) for one in held] if model else by_step
    text = report(held, ways, scores, run.small, run.large)
    if given.load and humaneval is not None:
        some, first = ([one for one in tasks[side] if one.kind in GAPS] for side in ("held", "fit"))
        text += loaded(run, answers, some[: given.load], first[:10], shares, tables[ROUTER])
    (run.folder / "report.md").write_text(text, encoding="utf-8")
    print(text)


def _asked() -> tuple[Run, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=FILE", help="the smallest first")
    parser.add_argument("--humaneval", type=Path, help="the file of gaps; without it there are none")
    parser.add_argument("--num", type=int, default=60, help="tasks to learn from, and as many others to be served")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", help="the small model of the cascade; the one before the last")
    parser.add_argument("--target", type=float, default=0.95, help="the share of the largest model's quality to keep")
    parser.add_argument("--confidence", type=float, default=0.9, help="how surely the cascade keeps it")
    parser.add_argument("--load", type=int, default=0, help="gaps that arrive at random times; 0: none")
    parser.add_argument("--folder", type=Path, default=Path("measured"))
    given = parser.parse_args()
    models = dict(one.split("=", 1) for one in given.model)
    if len(models) < 2:
        parser.error("name two models or more")
    names = list(models)
    given.folder.mkdir(parents=True, exist_ok=True)
    small = given.small or names[-2]
    return Run(models, small, names[-1], given.folder.resolve(), given.target, given.confidence), given


if __name__ == "__main__":
    main()
