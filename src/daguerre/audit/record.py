"""The contents of a record: what is in the clear, and what is sealed with the record's key.

In the clear is what names no person: the model, the software, options that are numbers and names, the steering program,
hashes, counts. Sealed is the text in all its forms: the request, options that are texts, the trace, whose token ids are
the text, and the evidence, since logits and concepts tell whoever has the model what the tokens were. Hashes of texts
are salted with a number that is sealed, or a short text could be found by trying.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import math
import platform
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

import daguerre
from daguerre.audit.canonical import canonical, digest
from daguerre.audit.evidence import TOP, attributions, columns
from daguerre.decoding.options import Decode
from daguerre.decoding.pins import Pin
from daguerre.decoding.plan import Plan
from daguerre.decoding.result import Result
from daguerre.decoding.settings import Settings
from daguerre.decoding.steering import ProgramControls
from daguerre.errors import DataError
from daguerre.model import Model
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.processor import instruction_set
from daguerre.trace import Event, Trace

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
Overlap = Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True)
class Request:
    """What was asked for: one of the operations of `daguerre.Model`, and its arguments but the options of `Decode`."""

    operation: str
    arguments: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"operation": self.operation, "arguments": plain(self.arguments)}


def plain(value: Any) -> Any:
    """A value as JSON has it; what JSON does not have as the text that Python shows of it."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Sequence | np.ndarray | set | frozenset) and not isinstance(value, bytes | bytearray):
        return [plain(one) for one in value]
    return repr(value)


def model_facts(model: Model, name: str | None) -> dict[str, Any]:
    """Which model: hashes of what it computes with, as it is in memory."""
    config, catalog = model.config, model.concepts
    weights, heads = weights_hashes(model.backbone)
    return {
        "name": name,
        "family": model.family,
        "parameters": model.backbone.num_parameters,
        "weights_sha256": weights,
        "concepts_sha256": heads,
        "config_sha256": digest(json.dumps(plain(config.to_dict()), sort_keys=True).encode()),
        "tokenizer_sha256": model.tokenizer.sha256,
        "taxonomy_sha256": None if config.concepts is None else config.concepts.taxonomy or None,
        "catalog_sha256": None if catalog is None else digest(json.dumps(plain(catalog), sort_keys=True).encode()),
    }


def weights_hashes(backbone: Backbone) -> tuple[str, str | None]:
    """SHA-256 of the names, types, shapes and bytes of all weights but the concept heads', and of those; None: there
    are no heads.
    """
    hashes = hashlib.sha256(), hashlib.sha256()
    for name, weight in sorted(backbone.state_dict().items()):
        one = weight.detach().cpu().contiguous()
        into = hashes[name.startswith("concepts.")]
        into.update(f"{name} {one.dtype} {list(one.shape)}\n".encode())
        into.update(memoryview(one.reshape(-1).view(torch.uint8).numpy()))
    return hashes[0].hexdigest(), None if backbone.concepts is None else hashes[1].hexdigest()


def software_facts(model: Model) -> dict[str, Any]:
    """What computed: versions, and the parts that decide the last bits."""
    native = isinstance(model.denoiser.backend, NativeBackend)
    return {
        "daguerre": daguerre.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "backend": "native" if native else "torch",
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantize": model.denoiser.quantize,
        "device": str(model.backbone.embedding.weight.device),
        "machine": platform.machine(),
        "instruction_set": instruction_set(),
    }


@lru_cache(maxsize=1)
def commit() -> str | None:
    """The commit that was installed, where pip knows it (PEP 610)."""
    try:
        text = importlib.metadata.distribution("daguerre").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    found = json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    return None if found is None else str(found)


def decoding_facts(decode: Settings) -> tuple[dict[str, Any], str]:
    """The options of a request: those in the clear, and the text ones as JSON."""
    clear, texts = dict[str, Any](), dict[str, Any]()
    for option in fields(decode):
        value = getattr(decode, option.name)
        if option.name in TEXTS:
            if option.name == "logit_bias" and value is not None:
                value = [[token, bias] for token, bias in value.items()]
            if option.name in decode.given:
                texts[option.name] = plain(value)
        elif option.name not in UNRECORDED:
            clear[option.name] = str(value) if option.name == "seed" else plain(value)
    return clear | {"sealed": sorted(texts)}, json.dumps(texts)


def control_facts(decode: Settings) -> dict[str, Any]:
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
    backbone: Backbone, controls: ProgramControls | None, events: Sequence[Event]
) -> list[dict[str, Any] | None]:
    """The columns of each step of a run; None for one without evidence."""
    asked, rows, tokens = list[np.ndarray | None](), list[np.ndarray](), list[int]()
    for event in events:
        known = None
        if event.evidence is not None:
            known = np.isfinite(event.evidence).reshape(len(event.evidence), -1).all(axis=1)
            rows.append(event.evidence[known])
            tokens += event.decision.tokens[known].tolist()
        asked.append(known)
    found = iter(attributions(backbone, controls, np.concatenate(rows), tokens) if tokens else ())
    return [None if known is None else columns([next(found) if one else None for one in known]) for known in asked]


def generation(
    model: Model,
    plan: Plan,
    request: Request,
    result: Result,
    events: Sequence[Event],
    controls: ProgramControls | None,
    sample: int,
    overlap: Overlap | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a record of a generation has beside its head: in the clear, and sealed."""
    clear_options, sealed_options = decoding_facts(plan.decode)
    evidence = evidence_of(model.backbone, controls, events)
    salt, asked = secrets.token_hex(32), request.to_dict()
    secret = {
        "salt": salt,
        "request": asked,
        "options": sealed_options,
        "trace": json.loads(result.trace.to_json()),
        "evidence": evidence,
        "output": {"text": result.text, "texts": list(result.texts)},
        "overlap": None if overlap is None else plain(overlap(result.text)),
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
            "listed": TOP if model.backbone.concepts is not None else 0,
        },
        "output": {
            "sha256": salted(salt, secret["output"]),
            "tokens": len(result.tokens),
            "forwards": result.usage.forwards,
            "finish_reason": result.finish_reason,
        },
        "validators": validators(plan, request, result.text),
    }
    return clear, secret


def salted(salt: str, value: Any) -> str:
    """A hash of a value that nobody can guess the value of without the salt."""
    return digest(salt.encode() + canonical(value))


def validators(plan: Plan, request: Request, text: str) -> dict[str, Any]:
    """What can be told of an output without a model: whether the whole text is Python, and what constrained it."""
    arguments = request.arguments
    around = {
        "generate": (arguments.get("prompt"), ""),
        "infill": (arguments.get("prefix"), arguments.get("suffix")),
    }.get(request.operation, ("", ""))
    whole = f"{around[0]}{text}{around[1]}" if all(isinstance(part, str) for part in around) else None
    return {
        "parses_as_python": None if whole is None else is_python(whole),
        "constraint": list(plan.decode.shaping),
    }


def is_python(text: str) -> bool:
    """Whether a text parses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def trace_of(secret: Mapping[str, Any]) -> Trace:
    """The trace of a record. DataError for one that does not replay."""
    try:
        return Trace.from_json(json.dumps(secret["trace"]))
    except KeyError:
        raise DataError("this record has no trace") from None
