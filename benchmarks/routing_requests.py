"""Requests of an agent for the benchmarks of the router: ten kinds of steps, each with texts of several lengths."""

from __future__ import annotations

import random
from typing import Any

STEPS = (
    "classify",
    "look_up",
    "extract",
    "tool_arguments",
    "facts",
    "edit",
    "summarize",
    "plan",
    "reason",
    "write_code",
)
NAMES = ("Ines Okafor", "Tom Lindqvist", "Mara Castellanos", "Yusuf Demir", "Hana Sato", "Piet van Loon")
CITIES = ("Lisbon", "Tromso", "Nairobi", "Osaka", "Montevideo", "Graz")
THINGS = ("the billing service", "the order queue", "the mobile app", "the search index", "the export job", "the login")
TROUBLES = (
    "answers slowly since the last release",
    "refuses every second request with a timeout",
    "shows amounts in the wrong currency",
    "loses the last line of each file",
    "sends the same letter twice",
)
SENTENCES = (
    "{name} wrote from {city} that {thing} {trouble}.",
    "The contract with number {num} runs until May and may be ended with a notice of {small} weeks.",
    "In {city} the team measured {num} requests an hour, {small} of which failed.",
    "Refunds are paid within {small} days to the account from which the order was paid.",
    "{name} is responsible for {thing} and answers within {small} hours.",
    "Backups of {thing} are made every night and kept for {num} days.",
)
CODE = """def total(orders):
    result = 0
    for order in orders:
        if order["state"] != "open":
            result += order["price"] * order["count"]
    return result
"""
SIZES = (8, 20, 30)
"""Sentences of a long material."""
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "find_orders",
        "description": "Find orders of a customer.",
        "parameters": {
            "type": "object",
            "properties": {"customer": {"type": "string"}, "city": {"type": "string"}, "since": {"type": "string"}},
            "required": ["customer"],
        },
    },
}
FIELDS = {
    "type": "json_schema",
    "json_schema": {
        "name": "ticket",
        "schema": {
            "type": "object",
            "properties": {one: {"type": "string"} for one in ("customer", "city", "product", "problem")},
            "required": ["customer", "problem"],
        },
    },
}
ASKED = {
    "classify": "Classify the message as one of: billing, outage, question, praise. Answer with the label only.\n\n"
    "{text}",
    "look_up": "Context:\n{long}\n\nAccording to the context, who is responsible for {thing}?",
    "extract": "Extract customer, city, product and problem from this message as JSON.\n\n{text}",
    "tool_arguments": "Find the orders of {name} in {city} since March.",
    "facts": "Who founded the city of {city}, and in which year?",
    "edit": "Rename the variable result to amount_{small} in this code and change nothing else.\n\n"
    "```python\n{code}```",
    "summarize": "Summarize the following notes in three sentences.\n\n{long}",
    "plan": "Make a plan, step by step, for how we find out why {thing} {trouble}. Only list the steps in order.",
    "reason": "{thing} {trouble}. It has {num} requests an hour, of which {small} fail, and each costs 3 cents to "
    "repeat. Think step by step: what does a day cost, and at which share of failures would a second server for 40 "
    "dollars a day pay? Explain why.",
    "write_code": "Write a Python function that reads a CSV file of orders with the columns customer, city and price, "
    "and returns the {small} cities with the highest sum. Add type hints and tests.",
}


def request(
    number: int, step: str, stream: bool = False, limit: int | None = None, most: int = max(SIZES)
) -> dict[str, Any]:
    """The body of a request, the same for the same number, which is its seed: proxies pass that on. most: sentences of
    its material.
    """
    draw = random.Random(number)
    text, long = (" ".join(_sentence(draw) for _ in range(min(draw.choice(num), most))) for num in ((2, 3), SIZES))
    said = _filled(ASKED[step], draw, text=text, long=long, code=CODE)
    system = "You are the assistant of a support team. Be exact and say what you do not know."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": said}]
    body: dict[str, Any] = {"model": "auto", "messages": messages, "seed": number}
    if step == "tool_arguments":
        body |= {"tools": [LOOK_UP], "tool_choice": "required"}
    if step == "extract":
        body["response_format"] = FIELDS
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body if limit is None else body | {"max_tokens": limit}


def _sentence(draw: random.Random) -> str:
    return _filled(draw.choice(SENTENCES), draw)


def _filled(template: str, draw: random.Random, **more: str) -> str:
    """A template with a word drawn for each gap."""
    words = {"name": NAMES, "city": CITIES, "thing": THINGS, "trouble": TROUBLES}
    chosen = {name: draw.choice(some) for name, some in words.items()}
    return template.format(**chosen, num=draw.randint(100, 999), small=draw.randint(2, 9), **more)
