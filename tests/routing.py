"""Configurations and requests for tests of the router."""

from __future__ import annotations

from typing import Any

from daguerre.router.choose import Features
from daguerre.router.config import Config


def backend(name: str, **more: Any) -> dict[str, Any]:
    """A backend that can do everything."""
    all_of_it = {
        "operations": ["chat", "completions", "responses", "embeddings", "fim", "edit", "decisions"],
        "needs": [
            "suffix",
            "pins",
            "spans",
            "edit",
            "decisions",
            "schema",
            "strict_schema",
            "tools",
            "images",
            "daguerre",
        ],
    }
    return {"name": name, "url": "http://127.0.0.1:1/v1", "model": name, "context": 100_000} | all_of_it | more


def config(*backends: dict[str, Any], **more: Any) -> Config:
    return Config.model_validate({"backends": backends, **more})


def request(step: str = "plan", **more: Any) -> Features:
    return Features(operation=more.pop("operation", "chat"), step=step, **more)
