"""Formats by name: of models whose templates do not write calls though they know them, or write them in one of several
ways in which the model does.
"""

from __future__ import annotations

from dataclasses import replace

from daguerre.models.chat_format.description import TOOL_CALL, Calls, Format, Slot, Tag, Tags
from daguerre.models.chat_format.description import TYPES as ALL

PYTHON_CALLS = Calls(
    begin="<|tool_call_start|>[",
    parts=(Slot.NAME, "(", Slot.ARGUMENTS, ")"),
    separator=", ",
    end="]<|tool_call_end|>",
    arguments=Tags(
        "",
        {kind: Tag("=", "") for kind in ALL},
        ", ",
        frozenset({"json", "python"}),
    ),
)
"""LFM2's: a list of calls in Python's syntax. Its newer templates write them, the older ones only read about them."""

PYTHON_TAG = Calls(
    begin="<|python_tag|>",
    parts=(Slot.NAME, ".call(", Slot.ARGUMENTS, ")"),
    separator="; ",
    end="",
    arguments=PYTHON_CALLS.arguments,
)
"""How Llama 3 calls the tools that its template calls built in: as methods, in Python's syntax."""

ASSUMED = "assumed"
"""Where nothing shows how a model writes calls: `TOOL_CALL`, or a bare JSON object."""


def named(form: Format, source: str) -> Format:
    """A format, or the one of the table that a template's text shows."""
    if "<|channel|>" in source and "<|message|>" in source and "analysis" in source:
        return replace(form, source="named (harmony, spaced)" if "<|constrain|> json" in source else "named (harmony)")
    if form.calls is None and ("<|tool_list_start|>" in source or '"List of tools: ["' in source):
        return replace(form, source="named (lfm2)", calls=PYTHON_CALLS)
    if "<|python_tag|>" in source and '".call("' in source:
        form = replace(form, tagged=PYTHON_TAG)
    return form if form.calls is not None else assumed(form)


def assumed(form: Format) -> Format:
    """The format with calls written in the usual way, for a template that does not show how."""
    return replace(form, source=ASSUMED, calls=TOOL_CALL, glue="\n")
