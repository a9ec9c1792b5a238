"""All targets, by name. A new one is a `Target` in one of the modules here, in its TARGETS."""

from __future__ import annotations

from fuzz.target import Target
from fuzz.targets import auditing, checkpoints, constraints, gguf_files, routing, serving, texts

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (constraints, checkpoints, gguf_files, texts, serving, routing, auditing)
    for target in module.TARGETS
}
