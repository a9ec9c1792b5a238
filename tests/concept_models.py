"""Tiny random models with concept heads, for tests."""

from __future__ import annotations

from collections.abc import Callable

from daguerre.model import Model
from daguerre.models.catalog import Catalog, NamedConcept
from daguerre.models.core.config import ConceptShape
from daguerre.models.load_options import BackendName

SHAPE = ConceptShape(known=8, discovered=12, rank=5, kept_known=4, kept_discovered=5)
NAMES = ("loop", "for_loop", "call", "eval_exec", "import", "literal")
CATALOG = Catalog(
    tuple(
        NamedConcept(number=number, name=name, texts=("eval(", "exec(") if name == "eval_exec" else ())
        for number, name in enumerate(NAMES)
    ),
    SHAPE.known,
    SHAPE.discovered,
)


def with_heads(make_model: Callable[..., Model], backend: BackendName = "torch", **facts: object) -> Model:
    """A random model whose concepts are strong enough to steer by."""
    model = make_model(concepts=SHAPE, **facts)
    backbone = model.backbone
    import torch

    with torch.no_grad():
        backbone.concepts.known_embedding.weight.mul_(3.0)  # type: ignore[union-attr]
    return Model(backbone, model.tokenizer, backend, concepts=CATALOG)
