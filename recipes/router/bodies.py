"""Write the schemas of the bodies that a router describes, from the models that `daguerre serve` reads them with.

python recipes/router/bodies.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from daguerre.server.protocol.chat import ChatBody
from daguerre.server.protocol.completions import CompletionBody, EditBody, FimBody
from daguerre.server.protocol.decisions import InputBody, StateBody
from daguerre.server.protocol.embeddings import EmbeddingBody
from daguerre.server.protocol.responses import ResponseBody

Schema = dict[str, Any]
BODIES: Mapping[str, tuple[type[BaseModel], ...]] = {
    "/v1/chat/completions": (ChatBody,),
    "/v1/completions": (CompletionBody,),
    "/v1/responses": (ResponseBody,),
    "/v1/embeddings": (EmbeddingBody,),
    "/v1/fim/completions": (FimBody,),
    "/v1/edit/completions": (EditBody,),
    "/v1/decisions": (StateBody, InputBody),
}
"""By path: the bodies that a request may have."""
REF = "#/components/schemas/{model}"
OUT = Path(__file__).parents[2] / "src" / "daguerre" / "router" / "bodies.json"


def schemas() -> dict[str, Schema]:
    """By path: the schema of its body; by "": the named schemas that they refer to."""
    models = [(one, "validation") for several in BODIES.values() for one in several]
    by_model, shared = models_json_schema(models, ref_template=REF)  # type: ignore[arg-type]
    out = {"": opened(shared["$defs"])}
    for path, several in BODIES.items():
        refs = [by_model[one, "validation"] for one in several]
        out[path] = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return out


def opened(value: Any) -> Any:
    """A schema whose objects may all have other fields."""
    if isinstance(value, list):
        return [opened(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: True if key == "additionalProperties" and one is False else opened(one) for key, one in value.items()}


if __name__ == "__main__":
    OUT.write_text(json.dumps(schemas(), indent=1) + "\n")
    print(f"{OUT}: {OUT.stat().st_size:,} bytes")
