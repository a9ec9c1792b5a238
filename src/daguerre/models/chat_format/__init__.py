"""How a model writes calls and thoughts, found from its chat template, and what reads and writes them."""

from daguerre.models.chat_format.chat_format import ChatFormat

__all__ = ["ChatFormat"]
