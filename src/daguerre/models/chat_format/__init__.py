"""How a model writes calls and thoughts, found from its chat template, and what reads and writes them.

`chat_format.ChatFormat` is the public class. Descriptions and readers need no Jinja.
"""

from __future__ import annotations

from typing import Literal

Thinks = Literal["may", "does"]
"""Of an answer: it may begin with a thought; the prompt has begun one, and it begins within."""
