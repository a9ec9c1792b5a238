"""`Recorder`: generates as `daguerre.Model` does, and writes a record of each result before anybody has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import Any

from daguerre.audit.canonical import plain
from daguerre.audit.decided import decision
from daguerre.audit.facts import model_facts, software_facts
from daguerre.audit.keys import SigningKey
from daguerre.audit.ledger import Ledger, texts_by_name
from daguerre.audit.record import RecordContext, generation, request_facts
from daguerre.audit.replay import controls_of
from daguerre.audit.summary import Alerts
from daguerre.decoding.context import Showing
from daguerre.decoding.generate import OPERATIONS, Request, plan_of
from daguerre.decoding.plan import Plan
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.decoding.sample import Sample, driven
from daguerre.errors import InputError, UnsupportedError, no_concept_heads
from daguerre.model import Model, Operations
from daguerre.models.denoiser import Denoiser
from daguerre.models.wrappers.explaining import Explained
from daguerre.sampling.policies import Policy
from daguerre.scoring.decisions import Question, QuestionAnswer

OPTIONS = frozenset(option.name for option in fields(Decode))


class Recorder(Operations[Result]):
    """Use it as a context: `with Recorder("audit.jsonl", model, key="audit.key") as recorder`.

    ledger    a `Ledger`, or its path
    model     the model, whose weights must not change from now on
    key       for a ledger given by its path: the signing key, or its file
    name      what `daguerre audit verify` loads the model by: "default", a folder, a name on a hub
    subject   facts of the deployment, texts by name, which go into every record in the clear: put no personal data
              here. The schema lists the usual names: system, purpose, retention, steered_by and so on
    overlap   called with each output's text: what of it is in the training data, as JSON, which is sealed
    inputs    called with each result: which inputs mattered to it, as JSON, which is sealed; see
              `audit.summary.input_attribution`
    alerts    which concepts are watched; without it those of the group "risk"

    The operations, and `decide`, are those of `daguerre.Model`, with one option more: `subject`, facts of this request,
    beside those of the recorder. `records` are the ids of the records of the last call, which `Ledger.follow_up` takes.
    """

    def __init__(
        self,
        ledger: Ledger | str | os.PathLike[str],
        model: Model,
        key: SigningKey | str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        subject: Mapping[str, str] | None = None,
        overlap: Callable[[str], Mapping[str, Any]] | None = None,
        inputs: Callable[[Result], Mapping[str, Any]] | None = None,
        alerts: Alerts | None = None,
    ) -> None:
        self._beside = RecordContext(overlap, inputs, alerts or Alerts())
        if alerts is not None:
            if model.concepts is None:
                raise no_concept_heads("an alert")
            alerts.rules(model.concepts)
        self._subject = texts_by_name("subject", subject)
        if not isinstance(ledger, Ledger):
            if key is None:
                raise InputError("a ledger needs a key: make one with `daguerre audit key FILE`, and give key=FILE")
            ledger = Ledger(ledger, key)
        elif key is not None:
            raise InputError("this ledger has its key already: leave out key")
        self.ledger, self.model, self.records = ledger, model, tuple[str, ...]()
        self._facts = {"model": model_facts(model, name), "software": software_facts(model)}

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ledger.close()

    def _ask(self, operation: str, *values: Any, subject: Mapping[str, str] | None = None, **options: Any) -> Result:
        """Plan, run, record, return. What fails is recorded, too."""
        *_, decode = values
        arguments = dict(zip(OPERATIONS[operation].order[:-1], values[:-1], strict=True))
        about = {"subject": self._subject | texts_by_name("subject", subject)}
        asked = self.model.with_defaults(decode, options) | arguments
        named = [name for name in asked if name in OPERATIONS[operation].names and asked[name] is not None]
        request = Request(operation, {name: asked[name] for name in named})
        kind = "refusal"
        try:
            plan = plan_of(self.model.denoiser, self.model.tokenizer, Request.of(operation, decode=decode, **asked))
            check_recordable(plan)
            kind = "failure"
            samples, results = self._samples(plan, request.arguments.get("timeout"))
            steered = controls_of(self.model, plan)
            records = [
                generation(self.model, plan, request, result, sample.events, steered, number, self._beside)
                for number, (sample, result) in enumerate(zip(samples, results, strict=True))
            ]
        except Exception as error:
            how = {name: getattr(decode, name) for name in decode.given} if isinstance(decode, Decode) else {}
            how |= {name: value for name, value in options.items() if name in OPTIONS}
            self._fail(kind, about, request, error, how)
            raise
        write = self.ledger.append
        self.records = tuple(write("generation", about | self._facts | clear, secret) for clear, secret in records)
        first, *others = results
        return replace(first, others=tuple(others)) if others else first

    def decide(
        self,
        state: str,
        questions: Sequence[Question],
        context: Showing = "auto",
        *,
        subject: Mapping[str, str] | None = None,
    ) -> list[QuestionAnswer]:
        """The answers of `Model.decide`, in a record of kind "decision". What fails is recorded, too."""
        about = {"subject": self._subject | texts_by_name("subject", subject)}
        try:
            answers = self.model.decide(state, questions, context)
        except Exception as error:
            asked = Request("decide", {"state": state, "questions": questions, "context": context})
            self._fail(
                "refusal" if isinstance(error, InputError | UnsupportedError) else "failure", about, asked, error
            )
            raise
        clear, secret = decision(state, questions, context, answers)
        self.records = (self.ledger.append("decision", about | self._facts | clear, secret),)
        return answers

    def _fail(
        self,
        kind: str,
        about: Mapping[str, Any],
        request: Request,
        error: Exception,
        how: Mapping[str, Any] | None = None,
    ) -> None:
        """Record what has failed."""
        secret = {"request": request_facts(request), "options": plain(how or {}), "message": str(error)}
        content = {**about, **self._facts, "error": type(error).__name__}
        self.records = (self.ledger.append(kind, content, secret),)

    def _samples(self, plan: Plan, timeout: float | None) -> tuple[list[Sample], list[Result]]:
        """The samples of a plan, driven to their ends, with evidence where a replay can check it."""
        denoiser: Denoiser = self.model.denoiser
        if plan.decode.uses_concepts:
            plan = replace(plan, decode=replace(plan.decode, explain=True))
        elif plan.mode.distribution is not None:
            denoiser = Explained(denoiser)
        samples = driven(denoiser, plan, timeout)
        return samples, [sample.result() for sample in samples]


def check_recordable(plan: Plan) -> None:
    """UnsupportedError for a request that no record can hold."""
    if plan.decode.scorer is not None:
        raise UnsupportedError("a scorer is code, which no record can hold: leave it out, or do not record")
    if isinstance(plan.decode.policy, Policy):
        raise UnsupportedError("a policy of your own is code, which no record can hold: name one, or do not record")
