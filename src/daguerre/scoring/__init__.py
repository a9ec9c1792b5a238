"""What a model says of texts that exist: likelihoods, decisions, embeddings, concepts, attributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daguerre.lazily import names_from

if TYPE_CHECKING:
    from daguerre.scoring.attribution import attribute
    from daguerre.scoring.decisions import Questions
    from daguerre.scoring.embedding import embed
    from daguerre.scoring.text_concepts import text_concepts
    from daguerre.scoring.windows import nll

__getattr__ = names_from(
    __name__,
    {
        "Questions": "daguerre.scoring.decisions",
        "attribute": "daguerre.scoring.attribution",
        "embed": "daguerre.scoring.embedding",
        "nll": "daguerre.scoring.windows",
        "text_concepts": "daguerre.scoring.text_concepts",
    },
)

__all__ = ["Questions", "attribute", "embed", "nll", "text_concepts"]
