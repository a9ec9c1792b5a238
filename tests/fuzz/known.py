"""Faults that were found and are not fixed yet, by target: the suite passes over them, `make fuzz` reports them.

Remove a line when its fault is fixed, and move its case to the corpus.
"""

from __future__ import annotations

KNOWN: dict[str, tuple[str, ...]] = {
    "schema": (
        "TypeError in keywords.py:_type",
        "TypeError in keywords.py:_format",
        "TypeError in values.py:every",
        "AttributeError in text.py:literals",
    ),
    "tools": ("TypeError in keywords.py:_type",),
    "config": (
        "AttributeError in config.py:__post_init__",
        "AttributeError in concept_heads.py:__init__",
        "RuntimeError in backbone.py:__init__",
        "RuntimeError in own_layout.py:load_own",
        "TypeError in backbone.py:__init__",
        "TypeError in config.py:ends",
        "TypeError in draft_head.py:__init__",
        "TypeError in own_layout.py:_read_config",
        "ValueError in backbone.py:__init__",
        "ValueError in own_layout.py:load_own",
    ),
    "published_config": ("MemoryError in reading.py:vocabulary",),
}
"""Values of the wrong type: in schemas, also of requests, which the server answers with 500, and in config.json."""
