"""Verification of a ledger: each line, the chain of all, and of each generation what the model says of its tokens.

Who wrote a ledger has its key and can write another one. Against others the chain, the signatures and the head prove
that nothing was changed, moved or left out; against the owner they prove it up to any head that was kept elsewhere
(`head=`). The replay needs no trust in who wrote the record: it computes from the model's files what the record says.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.audit.canonical import salted
from daguerre.audit.chain import REPLAYED, UNREAD, Checked, LedgerReport, check_chain, open_all
from daguerre.audit.decided import decided_again
from daguerre.audit.evidence import (
    EXACT,
    HALF,
    SINGLE,
    TOP,
    ConceptAttribution,
    Tolerance,
    Unexplained,
    asked,
    attributions,
    differences,
)
from daguerre.audit.facts import model_facts, software_facts
from daguerre.audit.ledger import FIRST, UNHASHED, LedgerEntry
from daguerre.audit.record import decode_of, passed_between_forwards, validators
from daguerre.audit.replay import ReplayedTokens, controls_of, plan_of, replay, why_not
from daguerre.audit.summary import concept_summary
from daguerre.canvas import Decision
from daguerre.decoding.generate import Request
from daguerre.decoding.plan import Plan
from daguerre.decoding.result import joined, read
from daguerre.errors import DaguerreError
from daguerre.model import Model
from daguerre.models.session import Asking, compute, together
from daguerre.trace import Trace

ROUNDING = 1e-5
"""Nats by which probabilities may differ, beside twice the tolerance of logits."""
TOGETHER = 16
"""Records whose forwards share batches."""
WRONG = DaguerreError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, OverflowError
"""What values raise that no run has written."""
Load = Callable[[Mapping[str, Any]], Model]
"""Gives the model that a record names."""


def verify(
    path: str | os.PathLike[str],
    model: Model | Load | None = None,
    *,
    public: bytes | None = None,
    head: str | None = None,
) -> LedgerReport:
    """Check a ledger. InputError for a file that cannot be read.

    model   what generations are computed again with, or a function that loads the model of a record; None: they are not
    public  the public key that all records must be signed with; None: the one that the first record names
    head    the hash of a record that was kept elsewhere, which must be in the ledger
    """
    source, report = Path(path), LedgerReport()
    entries = check_chain(source, report, public)
    if head is not None and head not in {entry.hash for entry in entries.values()} | {FIRST}:
        report.problems.append(f"it has no record of the hash {head}, which was given: records are missing or others")
    opened = open_all(source, entries, report)
    for number, content in opened.items():
        if entries[number].record["kind"] in ("generation", "decision"):
            report.records[number].problems += _of_contents(entries[number].record, content)
    if model is not None:
        _replay_all({number: entries[number] for number in opened}, opened, model, report)
    return report


def _of_contents(record: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[str]:
    """Where a record's sealed part and what is said of it in the clear do not fit, which no model is needed for."""
    if record["input"]["sha256"] != salted(content["salt"], content["request"]):
        yield "the hash of its input differs"
    if record["output"]["sha256"] != salted(content["salt"], content["output"]):
        yield "the hash of its output differs"
    if record["kind"] == "decision":
        return
    if record["output"]["characters"] != len(content["output"]["text"]):
        yield "the length of its output differs"
    said = record["concepts"]
    if said is None:
        return
    try:
        found = concept_summary(said, content["evidence"])
    except WRONG as error:
        yield f"its evidence has no shares and no alerts: {error}"
        return
    for name, value in found.items():
        if said[name] != value:
            yield f"what it says of its concepts differs: {name}"


@dataclass(frozen=True, eq=False)
class _Job:
    """A record to replay."""

    checked: Checked
    record: Mapping[str, Any]
    content: Mapping[str, Any]
    model: Model
    plan: Plan
    trace: Trace
    tolerance: Tolerance

    def asking(self) -> Asking[list[ReplayedTokens]]:
        steps = self.content["evidence"]
        wanted = [None if step is None else asked(step) for step in steps]
        return replay(self.model, self.plan, self.trace, wanted, controls_of(self.model, self.plan))


def _replay_all(
    entries: Mapping[int, LedgerEntry],
    opened: Mapping[int, Mapping[str, Any]],
    model: Model | Load,
    report: LedgerReport,
) -> None:
    """Compute all generations again, many together."""
    loaded = _Models(model)
    jobs = list[_Job]()
    for number, entry in entries.items():
        if entry.record["kind"] == "decision":
            _decide_again(entry.record, opened[number], loaded, report.records[number])
        elif entry.record["kind"] == "generation":
            job = _prepared(entry.record, opened[number], loaded, report.records[number])
            jobs += [] if job is None else [job]
    while jobs:
        first = jobs[0].model
        batch = [job for job in jobs if job.model is first][:TOGETHER]
        jobs = [job for job in jobs if job not in batch]
        _replay_batch(batch)


def _decide_again(record: Mapping[str, Any], content: Mapping[str, Any], models: _Models, checked: Checked) -> None:
    """Ask the questions of a decision again."""
    try:
        model, facts, software = models.of(record)
        problems = list(_of_weights(record, facts, software))
        if not problems:
            relative = tolerance_of(record["software"], software).relative
            checked.status, problems = REPLAYED, list(decided_again(model, content, relative, ROUNDING))
    except WRONG as error:
        problems = [f"its questions cannot be asked: {error}"]
    checked.problems += problems


class _Models:
    """The models that records name, each loaded once, with their facts."""

    def __init__(self, model: Model | Load) -> None:
        self._model, self._made = model, dict[str, tuple[Model, dict[str, Any], dict[str, Any]]]()

    def of(self, record: Mapping[str, Any]) -> tuple[Model, dict[str, Any], dict[str, Any]]:
        """The model of a record, and the facts of the model and of what computes it here."""
        names = "backend", "dtype", "quantize", "device"
        said = record["model"]
        key = json.dumps([said["name"], said["weights_sha256"], *(record["software"][name] for name in names)])
        if isinstance(self._model, Model):
            key = ""
        if key not in self._made:
            model = self._model if isinstance(self._model, Model) else self._model(record)
            self._made[key] = model, model_facts(model, None), software_facts(model)
        return self._made[key]


def _prepared(record: Mapping[str, Any], content: Mapping[str, Any], models: _Models, checked: Checked) -> _Job | None:
    """The record with its model, plan and trace; None where something is wrong, or no replay is possible."""
    try:
        model, facts, software = models.of(record)
        problems = list(_of_weights(record, facts, software)) or list(_of_concepts(record, model))
        if not problems:
            plan = plan_of(model, content["request"], decode_of(record, content))
            trace = Trace.from_json(json.dumps(content["trace"]))
            problems += _of_texts(record, content, model, plan, trace)
    except WRONG as error:
        checked.problems.append(f"no plan can be made of its request and options: {error}")
        return None
    if problems:
        checked.problems += problems
        return None
    reason = why_not(plan)
    if reason is not None:
        checked.status = f"{UNREAD}: {reason}"
        return None
    problems += _of_evidence(record, content, plan, trace)
    checked.problems += problems
    if problems:
        return None
    return _Job(checked, record, content, model, plan, trace, tolerance_of(record["software"], software))


def tolerance_of(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> Tolerance:
    """How near a replay here must come to what was recorded there."""
    names = "backend", "dtype", "quantize", "machine", "instruction_set"
    if recorded["backend"] == "native" and all(recorded[name] == here[name] for name in names):
        return EXACT
    single = all(one["dtype"] == "float32" and one["quantize"] is None for one in (recorded, here))
    return SINGLE if single else HALF


def _of_weights(record: Mapping[str, Any], facts: Mapping[str, Any], software: Mapping[str, Any]) -> Iterator[str]:
    """Where a record names other weights than those at hand."""
    if record["software"]["dtype"] != software["dtype"]:
        kinds = record["software"]["dtype"], software["dtype"]
        yield f"it was computed in {kinds[0]}, and the model at hand is loaded in {kinds[1]}: load it in {kinds[0]}"
        return
    for name, value in facts.items():
        if name not in UNHASHED and record["model"][name] != value:
            yield f"it is of another model: {name} differs"


def _of_concepts(record: Mapping[str, Any], model: Model) -> Iterator[str]:
    """Where a record is of other concepts than those of the model at hand."""
    watched = {} if record["concepts"] is None else record["concepts"]["watched"]
    if (model.concepts is None) != (record["concepts"] is None):
        yield "only one of the two models has concept heads: the one of the record, or the one at hand"
    elif model.concepts is not None and {model.concepts.name(one): one for one in watched.values()} != watched:
        yield "its watched concepts have other names"


def _of_texts(
    record: Mapping[str, Any], content: Mapping[str, Any], model: Model, plan: Plan, trace: Trace
) -> Iterator[str]:
    """Where request, trace, output and what is said of them in the clear do not fit one another."""
    canvas, start = plan.canvas, trace.canvas
    same = all(np.array_equal(getattr(canvas, name), getattr(start, name)) for name in ("tokens", "open", "pins"))
    if not (same and canvas.gaps == start.gaps):
        yield "its trace does not begin with the canvas of its request"
        return
    *_, end = start, *trace.replay()
    readings = read(plan, end, done=True).gaps
    texts = [reading.text for reading in readings]
    if content["output"] != {"text": joined(plan, texts), "texts": texts}:
        yield "its output is not the text that its trace ends with"
    request = Request(**content["request"])
    if record["output"]["tokens"] != sum(len(reading.positions) for reading in readings):
        yield "the number of its tokens differs"
    if record["between_forwards"] != passed_between_forwards(model):
        yield "what passed between forwards differs"
    found, version = validators(plan, request, content["output"]["text"]), platform.python_version()
    if _minor(record["software"]["python"]) == _minor(version) and record["validators"] != found:
        yield "what its validators say differs"


def _minor(version: str) -> str:
    return version.rpartition(".")[0]


def _of_evidence(record: Mapping[str, Any], content: Mapping[str, Any], plan: Plan, trace: Trace) -> Iterator[str]:
    """Where a record has too little evidence, or too much."""
    steps, num = content["evidence"], 0
    if len(steps) != len(trace.steps):
        yield "its evidence has more or fewer steps than its trace"
        return
    for number, (step, columns) in enumerate(zip(trace.steps, steps, strict=True)):
        size = len(step.decision)
        there = np.zeros(size, dtype=bool) if columns is None else asked(columns)
        if len(there) != size or (columns is not None and any(len(column) != size for column in columns.values())):
            yield f"its evidence of step {number} is of more or fewer tokens than were committed"
            return
        num += int(there.sum())
        if not (there | _without_forward(plan, step.decision.positions, step.span)).all():
            yield f"step {number} has tokens without evidence"
    listed = TOP if plan.config.concepts is not None else 0
    counts = {"tokens": sum(len(step.decision) for step in trace.steps), "explained": num, "listed": listed}
    if record["evidence"] != counts:
        yield "the number of its explained tokens, or of their concepts, differs"


def _without_forward(plan: Plan, positions: np.ndarray, span: tuple[int, int]) -> np.ndarray:
    """Bool (k,): tokens that may have been committed without asking the model: forced by a constraint, fillers
    of a gap that has ended, or outside of the span and implied by another token.
    """
    if plan.constraint is not None or plan.mode.distribution == "search" or plan.decode.commit_policy.sequential:
        return np.ones(len(positions), dtype=bool)
    return (positions < span[0]) | (positions >= span[1])


def _replay_batch(batch: Sequence[_Job]) -> None:
    """Replay records of one model together; where that fails, each by itself."""
    backend = batch[0].model.denoiser.backend
    try:
        found = compute(together(*(job.asking() for job in batch)), backend)
    except WRONG as error:
        if len(batch) > 1:
            for job in batch:
                _replay_batch([job])
        else:
            batch[0].checked.problems.append(f"the model cannot have taken the steps of its trace: {error}")
        return
    for job, parts in zip(batch, found, strict=True):
        _compare(job, parts)


def _compare(job: _Job, found: Sequence[ReplayedTokens]) -> None:
    """Compare a replay with its record."""
    job.checked.status = REPLAYED
    said = job.record["concepts"]
    if not found:
        if said is not None and said["fvu"] is not None:
            job.checked.problems.append("it has an unexplained share of no hidden states")
        return
    decisions = [job.trace.steps[part.step].decision for part in found]
    tokens = [token for part, one in zip(found, decisions, strict=True) for token in one.tokens[part.places].tolist()]
    evidence, steered = np.concatenate([part.evidence for part in found]), controls_of(job.model, job.plan)
    again = attributions(job.model.denoiser.heads, steered, evidence, tokens, job.tolerance)
    unexplained, loose = Unexplained.of(job.model.denoiser.heads, evidence), [one.loose_size for one in again]
    if said is not None and unexplained.differs(said["fvu"], loose, job.tolerance):
        job.checked.problems.append(f"its unexplained share is {said['fvu']}, in the replay {unexplained.share}")
    each = iter(again)
    for part, decision in zip(found, decisions, strict=True):
        for index, place in enumerate(part.places.tolist()):
            _compare_token(job, part, index, decision, place, next(each))


def _compare_token(
    job: _Job, part: ReplayedTokens, index: int, decision: Decision, place: int, again: ConceptAttribution
) -> None:
    """Compare the evidence of one token: its `index` in the replay, its `place` in the step."""
    checked, columns = job.checked, job.content["evidence"][part.step]
    where = f"token {int(decision.tokens[place])} at position {int(decision.positions[place])}"
    checked.problems += [f"{where}: {what}" for what in differences(columns, place, again, job.tolerance)]
    checked.worst = max(checked.worst, abs(columns["logit"][place] - again.sums["logit"]))
    checked.tokens += 1
    nats = 2 * (job.tolerance.relative * again.scale + again.loose_logit) + ROUNDING
    recorded, computed = float(decision.probabilities[place]), float(part.probabilities[index])
    if not (math.isnan(computed) or _near(recorded, computed, nats)):
        checked.problems.append(f"{where}: probability {recorded:.6g}, in the replay {computed:.6g}")
    if part.behind[index] > nats:
        checked.problems.append(f"{where}: another token is likelier, and the temperature is 0")


def _near(one: float, other: float, nats: float) -> bool:
    """Whether two probabilities differ by at most so many nats."""
    if min(one, other) <= 0:
        return one == other
    return abs(math.log(one) - math.log(other)) <= nats
