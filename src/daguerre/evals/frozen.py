"""The frozen held-out sample, by the name that evaluations use."""

from daguerre.heldout import SAMPLE_SHA256, Document, load_frozen, parse_sample

__all__ = ["SAMPLE_SHA256", "Document", "load_frozen", "parse_sample"]
