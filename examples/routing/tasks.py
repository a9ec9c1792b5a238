"""Tasks whose answers can be checked: gaps in code, data from a text, labels, short questions.

Gaps are those of HumanEval (openai/human-eval-infilling, the file of single lines), which are filled right if the
function passes its tests in a sandbox; gaps of several lines are made of the same file. All others are made from
templates by a seed, so that a check knows the answer.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any

from daguerre.router.answers import answer_of
from daguerre.train.reinforce.sandbox import Sandbox

LINE, LINES, DATA, LABEL, SHORT = "line", "lines", "data", "label", "question"
SHARES = {LINE: 1 / 6, LINES: 1 / 6, DATA: 2 / 9, LABEL: 2 / 9, SHORT: 2 / 9}
"""Of all tasks: a third are gaps, the others are in equal parts."""
STEPS = {LINE: "infill", LINES: "infill", DATA: "extract", LABEL: "classify", SHORT: "short_answer"}
PATHS = {"completions": "/completions", "chat": "/chat/completions", "decisions": "/decisions"}
RUN = """
import json, os, sys
program = json.load(sys.stdin)["answer"]
sys.stdout = open(os.devnull, "w")
exec(program, {})
"""


@dataclass(frozen=True)
class Task:
    """A request and what its answer must be. group: tasks that are alike; right: what the check of its kind needs."""

    id: str
    kind: str
    group: str
    operation: str
    body: dict[str, Any]
    right: dict[str, Any] = field(repr=False)

    @property
    def step(self) -> str:
        """Its step type."""
        return STEPS[self.kind]

    def grade(self, answer: bytes) -> float:
        """1 for the bytes of an answer that is right, else 0."""
        said = answer_of(self.operation, answer, streamed=False)
        return float(said is not None and CHECKS[self.kind](self.right, said.text))

    def is_valid(self, answer: bytes) -> bool:
        """Whether an answer has the shape that the request asks for."""
        said = answer_of(self.operation, answer, streamed=False)
        if self.kind != DATA:
            return said is not None
        return said is not None and set(_object(said.text)) == set(self.right)


# ---- checks ---------------------------------------------------------------------------------------------------------


@cache
def _sandbox() -> Sandbox:
    return Sandbox()


def _runs(right: Mapping[str, Any], text: str) -> bool:
    """Whether the function with this gap passes its tests."""
    program = right["before"] + text + right["end"] + right["after"] + right["test"] + f"\ncheck({right['name']})\n"
    return _sandbox().reward([sys.executable, "-I", "-c", RUN], "", program) > 0


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _same_values(right: Mapping[str, Any], text: str) -> bool:
    """Whether an object has these values, texts but for case and white space."""

    def plain(value: Any) -> Any:
        return " ".join(value.lower().split()) if isinstance(value, str) else value

    return {name: plain(value) for name, value in _object(text).items()} == {
        name: plain(value) for name, value in right.items()
    }


def _same_label(right: Mapping[str, Any], text: str) -> bool:
    return bool(_object(text).get("label") == right["label"])


def _same_answer(right: Mapping[str, Any], text: str) -> bool:
    """Whether the last number of an answer is the right one, or its first word is."""
    if isinstance(right["answer"], int):
        return [number.replace(",", "") for number in re.findall(r"-?\d[\d,]*", text)][-1:] == [str(right["answer"])]
    words = re.findall(r"[a-z]+", text.lower())
    return words[:1] == [str(right["answer"]).lower()]


CHECKS: dict[str, Callable[[Mapping[str, Any], str], bool]] = {
    LINE: _runs,
    LINES: _runs,
    DATA: _same_values,
    LABEL: _same_label,
    SHORT: _same_answer,
}


# ---- gaps -----------------------------------------------------------------------------------------------------------


def gaps(path: Path, kind: str, rng: random.Random) -> Iterator[Task]:
    """Gaps of one line, or of two to four, in an order by chance. The problem is the group."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    following = {(_problem(line), line["prompt"]): line for line in lines}
    rng.shuffle(lines)
    for line in lines:
        some = [line]
        for _ in range(0 if kind == LINE else rng.randint(1, 3)):
            behind = following.get((_problem(line), some[-1]["prompt"] + some[-1]["canonical_solution"]))
            some += [] if behind is None else [behind]
        if some[-1]["suffix"].strip() and (kind == LINE or len(some) > 1):
            yield _gap(kind, some)


def _problem(line: Mapping[str, Any]) -> str:
    return str(line["task_id"].split("/")[2])


def _gap(kind: str, some: list[dict[str, Any]]) -> Task:
    first, last = some[0], some[-1]
    body: dict[str, Any] = {"prompt": first["prompt"], "suffix": last["suffix"], "max_tokens": 48, "temperature": 0}
    body |= {"stop": ["\n"]} if kind == LINE else {"max_tokens": 160}
    body |= {"daguerre": {"mode": "fim"}}  # a model that was not trained to fill gaps would search for long
    right = {"before": first["prompt"], "after": last["suffix"], "end": "\n" if kind == LINE else ""}
    right |= {"test": first["test"], "name": first["entry_point"]}
    name = "/".join(first["task_id"].split("/")[2:])
    return Task(f"{kind}/{name}+{len(some)}", kind, f"HumanEval/{_problem(first)}", "completions", body, right)


# ---- templates ------------------------------------------------------------------------------------------------------

NAMES = ("Ada", "Bruno", "Chiara", "Dario", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Luis")
FAMILIES = ("Moreau", "Novak", "Okafor", "Petrov", "Quinn", "Rossi", "Sato", "Tanaka", "Urban", "Vogel", "Weber")
CITIES = ("Lisbon", "Oslo", "Graz", "Porto", "Turin", "Ghent", "Leeds", "Bergen", "Lyon", "Malaga", "Krakow", "Bonn")
GOODS = ("lamps", "chairs", "kettles", "clocks", "baskets", "mirrors", "blankets", "hammers", "ladders", "radios")
ORDERS = (
    "{name} of {city} ordered {quantity} {item} at {price} euros each, to arrive by {day} May.",
    "On the phone: {name}. Wants {quantity} {item}, agreed on {price} euros apiece. Address in {city}; due {day} May.",
    "Dear team, please send {quantity} {item} to {city} before {day} May. We settled on {price} euros each. "
    "Yours, {name}",
    "Last year {name} bought {other} {item2} from us. This time it is {quantity} {item} for {price} euros each, and "
    "the parcel goes to {city}, not to {city2}. It has to be there on {day} May.",
    "{city2} was cancelled. New order: {item}, {quantity} of them, {price} euros each instead of {other}, for {name} "
    "in {city}, by {day} May.",
)


def data(rng: random.Random, number: int) -> Task:
    """An order as JSON; the later templates have numbers and places that are not meant."""
    place = rng.randrange(len(ORDERS))
    (item, item2), (city, city2) = rng.sample(GOODS, 2), rng.sample(CITIES, 2)
    right = {"name": f"{rng.choice(NAMES)} {rng.choice(FAMILIES)}", "city": city, "item": item}
    right |= {"quantity": rng.randint(2, 99), "price": rng.randint(3, 250), "day": rng.randint(1, 31)}
    text = ORDERS[place].format(**right, item2=item2, city2=city2, other=rng.randint(2, 99))
    kinds = {name: {"type": "integer" if isinstance(value, int) else "string"} for name, value in right.items()}
    schema = {"type": "object", "properties": kinds, "required": list(kinds), "additionalProperties": False}
    asked = f"Extract the order as JSON: name, city, item, quantity, price of one in euros, day of delivery.\n\n{text}"
    named = {"name": "order", "strict": True, "schema": schema}
    body = _chat(asked, 96) | {"response_format": {"type": "json_schema", "json_schema": named}}
    return Task(f"{DATA}/{number}", DATA, f"order {place}", "chat", body, right)


TICKETS = {
    "billing": (
        "I was charged twice for {month}.",
        "The invoice for {month} has the wrong sum.",
        "Why did my bill double in {month}?",
    ),
    "shipping": (
        "My {item} have been on the way for {days} days.",
        "The parcel with the {item} went to {city} by mistake.",
        "When will the {item} arrive in {city}?",
    ),
    "login": (
        "It says my password is wrong since {month}.",
        "I cannot get into my account from {city}.",
        "The code for signing in never comes.",
    ),
    "damage": (
        "The {item} came broken.",
        "Two of the {item} have scratches all over.",
        "The box was open and the {item} were wet.",
    ),
    "praise": (
        "The {item} are lovely, thank you!",
        "Best service that I had in {days} years.",
        "Just wanted to say that the {item} look great in {city}.",
    ),
    "question": ("Do you also sell {item} in blue?", "Are you open in {month}?", "How heavy are the {item}?"),
}
BEFORE = ("", "Hello, ", "Good morning. ", "Sorry to bother you again. ", "As a customer of ten years: ")
AFTER = ("", " Thanks.", " Please answer soon.", " I have pictures.", " My order was on time before.")
MONTHS = ("January", "March", "April", "June", "August", "October")


def label(rng: random.Random, number: int) -> Task:
    """A ticket and six labels, decided by the probabilities of the labels."""
    right, place = rng.choice(sorted(TICKETS)), rng.randrange(3)
    words = {"month": rng.choice(MONTHS), "item": rng.choice(GOODS), "city": rng.choice(CITIES)}
    said = TICKETS[right][place].format(**words, days=rng.randint(3, 30))
    sender, text = f"{rng.choice(NAMES)} {rng.choice(FAMILIES)}", f"{rng.choice(BEFORE)}{said}{rng.choice(AFTER)}"
    criteria = dict.fromkeys(sorted(TICKETS))
    question = {"type": "choice", "instructions": "What is the message about?", "criteria": criteria}
    body = {"state": f"{sender} writes: {text}", "questions": {"label": question}}
    return Task(f"{LABEL}/{number}", LABEL, f"{right} {place}", "decisions", body, {"label": right})


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def short(rng: random.Random, number: int) -> Task:
    """A question with one answer, easy or hard."""
    one, two, three = rng.randint(2, 20), rng.randint(11, 99), rng.randint(101, 999)
    day, words = rng.randrange(7), sorted(rng.sample(GOODS, 3))
    asked: dict[str, tuple[str, Any]] = {
        "sum": (f"What is {one} + {two}?", one + two),
        "large sum": (f"What is {three} + {10 * two + one}?", three + 10 * two + one),
        "product": (f"What is {one} times {two}?", one * two),
        "difference": (f"A shop had {three} {words[0]} and sold {two}. How many are left?", three - two),
        "two steps": (f"A box holds {one} {words[0]}. {two} boxes are full, 3 more are missing one each. "
                      f"How many {words[0]} are there?", one * two + 3 * (one - 1)),
        "day": (f"What day of the week is {one} days after {DAYS[day]}?", DAYS[(day + one) % 7]),
        "first": (f"Which comes first in the alphabet: {', '.join(rng.sample(words, 3))}?", words[0]),
        "larger": (f"Which number is the largest: {one}, {two}, {three}?", three),
    }  # fmt: skip
    kind = rng.choice(sorted(asked))
    text, answer = asked[kind]
    only = "number" if isinstance(answer, int) else "word"
    body = _chat(f"{text} Answer with the {only} alone.", 24)
    return Task(f"{SHORT}/{number}", SHORT, kind, "chat", body, {"answer": answer})


def _chat(text: str, most: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": most, "temperature": 0}


MADE: dict[str, Callable[[random.Random, int], Task]] = {DATA: data, LABEL: label, SHORT: short}


def drawn(num: int, seed: int, humaneval: Path | None, held_out: bool) -> list[Task]:
    """About `num` tasks in the mix of SHARES, shuffled; without the file of gaps the others alone. Those that are held
    out are other ones: gaps of other problems, and of what is made those whose hash is odd.
    """
    side, seen = random.Random(f"{seed} {held_out}"), set[str]()
    out = list[Task]()
    for kind, share in SHARES.items():
        rng, many = random.Random(f"{seed} {kind}"), max(1, round(num * share))
        if kind in MADE:
            found = (MADE[kind](side, number) for number in count())
        elif humaneval is not None:
            found = gaps(humaneval, kind, rng)
        else:
            continue
        out += islice((one for one in found if _is_of(one, held_out) and _is_new(one, seen)), many)
    side.shuffle(out)
    return out


def _is_of(task: Task, held_out: bool) -> bool:
    """Whether a task is held out, or is not."""
    text = task.group if task.kind in (LINE, LINES) else json.dumps(task.body)
    return zlib.crc32(text.encode()) % 2 == held_out


def _is_new(task: Task, seen: set[str]) -> bool:
    """Whether a request was not among those that were seen, to which it is added."""
    num = len(seen)
    seen.add(json.dumps(task.body))
    return len(seen) > num
