"""The contents of a record: what is in the clear, and what is sealed with the record's key.

In the clear is what names no person: the model, the software, options that are numbers and names, the steering program,
hashes, counts, shares and alerts. Sealed is the text in all its forms: the request, options that are texts, the trace,
whose token ids are the text, and the evidence, since logits and concepts tell whoever has the model what the tokens
were. Hashes of texts are salted with a number that is sealed, or a short text could be found by trying.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from daguerre.audit.canonical import plain, salted
from daguerre.audit.evidence import TOP, Unexplained, attributions, columns, short
from daguerre.audit.summary import Alerts, concept_summary
from daguerre.concepts.source import syntax_tree
from daguerre.decoding.generate import Request
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.pins import Pin
from daguerre.decoding.plan import Plan
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.decoding.steering import ProgramControls
from daguerre.errors import UnsupportedError
from daguerre.model import Model
from daguerre.models.heads import Heads
from daguerre.sampling.constraints import TokenAutomaton
from daguerre.trace import Event

TEXTS = frozenset(
    {
        "stop",
        "negative",
        "schema",
        "regex",
        "choices",
        "tools",
        "tool_choice",
        "keywords",
        "forbidden",
        "ending",
        "pins",
        "logit_bias",
    }
)
"""Options that may hold text of a person: they are sealed."""
CONTROLS = frozenset({"steer", "forbid", "forbid_exactly"})
"""Options that are in the record's `controls`."""
UNRECORDED = CONTROLS | {"scorer", "explain"}


@dataclass(frozen=True)
class RecordContext:
    """What a recorder adds to records.

    overlap   called with each output's text: what of it is in the training data, as JSON
    inputs    called with each result: which inputs mattered to it, as JSON
    """

    overlap: Callable[[str], Mapping[str, Any]] | None = None
    inputs: Callable[[Result], Mapping[str, Any]] | None = None
    alerts: Alerts = field(default_factory=Alerts)


def request_facts(request: Request) -> dict[str, Any]:
    """What was asked for, but the options of `Decode`, as JSON values."""
    return {"operation": request.operation, "arguments": plain(request.arguments)}


def decoding_facts(decode: DecodeOptions) -> tuple[dict[str, Any], str]:
    """The options of a request: those in the clear, and the text ones as JSON."""
    clear, texts = dict[str, Any](), dict[str, Any]()
    for option in fields(decode):
        value = getattr(decode, option.name)
        if isinstance(value, TokenAutomaton):
            raise UnsupportedError(f"a record holds no compiled automaton: give {option.name} as JSON Schema")
        if option.name in TEXTS:
            if option.name == "logit_bias" and value is not None:
                value = [[token, bias] for token, bias in value.items()]
            if option.name in decode.given:
                texts[option.name] = plain(value)
        elif option.name not in UNRECORDED:
            clear[option.name] = str(value) if option.name == "seed" else plain(value)
    return clear | {"sealed": sorted(texts)}, json.dumps(texts)


def control_facts(decode: DecodeOptions) -> dict[str, Any]:
    """How a run was steered: the program, and the names of forbidden concepts."""
    operations = [] if decode.steer is None else [one.to_dict() for one in decode.steer.operations]
    return {"steer": plain(operations), "forbid": list(decode.forbid), "forbid_exactly": decode.forbid_exactly}


def decode_of(record: Mapping[str, Any], secret: Mapping[str, Any]) -> Decode:
    """The options that a record has, its controls included."""
    options, controls = {**record["decoding"], **json.loads(secret["options"])}, record["controls"]
    del options["sealed"]
    options["seed"] = int(options["seed"])
    if "logit_bias" in options:
        options["logit_bias"] = {int(token): float(bias) for token, bias in options["logit_bias"]}
    if "pins" in options:
        options["pins"] = [Pin(**pin) for pin in options["pins"]]
    if controls["steer"]:
        options["steer"] = controls["steer"]
    return Decode(**options, forbid=tuple(controls["forbid"]), forbid_exactly=controls["forbid_exactly"])


def passed_between_forwards(model: Model) -> dict[str, Any]:
    """What one forward hands on to the next. Of a model with self-conditioning the trace alone does not say it."""
    if model.config.gemma is not None:
        return {
            "channel": "tokens and self-conditioning",
            "hidden": True,
            "note": "vectors that no record holds pass from one forward to the next",
        }
    return {"channel": "tokens", "hidden": False, "note": "each forward reads the canvas alone"}


def evidence_of(
    heads: Heads, controls: ProgramControls | None, events: Iterable[Event]
) -> tuple[list[dict[str, Any] | None], float | None]:
    """The columns of each step of a run, None for one without evidence; and the unexplained share of its variance."""
    asked, rows, tokens = list[np.ndarray | None](), list[np.ndarray](), list[int]()
    for event in events:
        known = None
        if event.evidence is not None:
            known = np.isfinite(event.evidence).reshape(len(event.evidence), -1).all(axis=1)
            rows.append(event.evidence[known])
            tokens += event.decision.tokens[known].tolist()
        asked.append(known)
    if not tokens:
        return [None if known is None else columns([None] * len(known)) for known in asked], None
    evidence = np.concatenate(rows)
    found = iter(attributions(heads, controls, evidence, tokens))
    steps = [None if known is None else columns([next(found) if one else None for one in known]) for known in asked]
    return steps, Unexplained.of(heads, evidence).share


def generation(
    model: Model,
    plan: Plan,
    request: Request,
    result: Result,
    events: Iterable[Event],
    controls: ProgramControls | None,
    sample: int,
    beside: RecordContext,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a record of a generation has beside its head: in the clear, and sealed."""
    clear_options, sealed_options = decoding_facts(plan.decode)
    evidence, unexplained = evidence_of(model.denoiser.heads, controls, events)
    salt, asked = secrets.token_hex(32), request_facts(request)
    secret = {
        "salt": salt,
        "request": asked,
        "options": sealed_options,
        "trace": json.loads(result.trace.to_json()),
        "evidence": evidence,
        "output": {"text": result.text, "texts": list(result.texts)},
        "overlap": None if beside.overlap is None else plain(beside.overlap(result.text)),
        "inputs": None if beside.inputs is None else plain(beside.inputs(result)),
    }
    clear = {
        "sample": sample,
        "input": {"sha256": salted(salt, asked)},
        "decoding": clear_options,
        "controls": control_facts(plan.decode),
        "between_forwards": passed_between_forwards(model),
        "evidence": {
            "tokens": sum(len(step.decision) for step in result.trace.steps),
            "explained": sum(sum(v is not None for v in step["logit"]) for step in evidence if step is not None),
            "listed": TOP if model.config.concepts is not None else 0,
        },
        "concepts": concept_facts(model, beside.alerts, evidence, unexplained),
        "output": {
            "sha256": salted(salt, secret["output"]),
            "tokens": len(result.tokens),
            "characters": len(result.text),
            "forwards": result.usage.forwards,
            "finish_reason": result.finish_reason,
        },
        "validators": validators(plan, request, result.text),
    }
    return clear, secret


def concept_facts(
    model: Model, alerts: Alerts, steps: Sequence[Mapping[str, Any] | None], unexplained: float | None
) -> dict[str, Any] | None:
    """What a record says of its concepts as a whole; None for a model without concept heads."""
    if model.concepts is None:
        return None
    rules = alerts.rules(model.concepts)
    fvu = None if unexplained is None else short(unexplained)
    return rules | concept_summary(rules, steps) | {"fvu": fvu}


def validators(plan: Plan, request: Request, text: str) -> dict[str, Any]:
    """What can be told of an output without a model: whether the whole text is Python, and what constrained it."""
    arguments = request.arguments
    around = {
        "generate": (arguments.get("prompt"), ""),
        "infill": (arguments.get("prefix"), arguments.get("suffix")),
    }.get(request.operation, ("", ""))
    whole = f"{around[0]}{text}{around[1]}" if all(isinstance(part, str) for part in around) else None
    return {
        "parses_as_python": None if whole is None else syntax_tree(whole) is not None,
        "constraint": list(plan.decode.shaping),
    }
