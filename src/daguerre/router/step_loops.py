"""Where a request stands in a loop of tools: what was called since the user's message, and what is left to do."""

from __future__ import annotations

import re

from daguerre.router.reading import ParsedMessage, ParsedRequest, as_list, as_object
from daguerre.router.step_words import ACTS, PART, SCANNED

WRITES = frozenset(
    "accept add alert append apply approve archive assign block book buy call cancel change charge close commit create "
    "decline delete deploy disable drop edit email enable export grant heat insert install invite irrigate launch lock "
    "mail make mark merge message move notify open order page pay place play post print publish push put record refund "
    "register reject release remind remove rename renew rent reorder reply reschedule reserve resize restart revoke "
    "rollback save schedule sell send set share start stop submit subscribe swap switch text transfer turn unblock "
    "uncheck undo unlock update upgrade upload water write buche sende schick setz lade trag ändere lösche bestelle "
    "réserve envoie annule ajoute reserva envía cancela añade prenota invia".split()
)
"""Words that ask for an act which leaves something changed, and the names of tools that do so."""
WRITE_STEMS = frozenset(word[:5] for word in WRITES)
SEVERAL = re.compile(
    r"\b(each|both|all|every\w*|compare|difference|whichever|cheaper|more|or|and|if|unless|then|beide\w*|alle|tous|"
    r"todos|und|et|y)\b|[;、，]"
)
"""What speaks for more than one call."""
CLAUSE = re.compile(r"[.;:,!?\n。；，、]+\s*|\b(?:and|then|und|dann|et|puis|y|luego|e|poi)\b")
FILLER = re.compile(
    r"(?:\W|\d|\b(?:please|also|then|first|second|third|next|finally|afterwards|after that|when \w+ is done|"
    r"both|if so|can you|could you|would you|i want you to|hi|hey|bitte)\b)+"
)
OPENS = frozenset(
    "are can check compare count did do does explain give has have how is let list make match report see summarize "
    "tell translate verify what when where which who whose why use was were will zähle suche such finde prüfe sag "
    "cherche trouve vérifie dis busca dime comprueba cerca dimmi controlla".split()
)
"""First words of a clause that asks for something, beside ACTS and WRITES."""
FAILED = re.compile(r"\berror|fail|not found|exception|denied|timeout|timed out|^\W*$|no results|none found")
OBSERVED = re.compile(r"\s*(?:observation|tool result|tool output|result|<tool_response>|\[tool)\b", re.IGNORECASE)
"""The beginning of a user's message that is a tool's result."""
CALLED = re.compile(r"Action: *(\w+)|tool_name_\d+ ## \]\]\s*(\w+)|\"(?:name|action|tool)\": *\"(\w+)\"")
OFFERED = re.compile(r"Tool Name: (\w+)|\(\d+\) (\w+), whose|^(\w+)\(.*\) *(?:->?|:)", re.MULTILINE)
"""Names of tools in the texts of LangChain's, LlamaIndex's and DSPy's agents."""
LOOP = (
    *("called acts last", "called all", "called twice", "left acts", "left named", "left act named"),
    *("asks to act", "asks and acted", "asks not acted", "asks for several", "asks for several, one result"),
    *("result failed", "result short", "result long", "loop in text", "acts as many as asked"),
    *("parts two", "parts three", "parts left", "parts two left", "parts done"),
)
"""Facts about calls that were made and about tools that are left."""
SETTINGS_OF_LOOPS = [sorted(WRITES), sorted(OPENS)] + [
    one.pattern for one in (SEVERAL, CLAUSE, FILLER, FAILED, OBSERVED, CALLED, OFFERED)
]


def loop_of(reading: ParsedRequest, body: object, ask: str) -> list[str]:
    """Which facts of LOOP hold: about calls since the user's message, their last result, and tools that are left. ask:
    the end of the user's message.
    """
    turns = reading.turns
    begin = max((place for place, turn in enumerate(turns) if turn.role == "user" and not observed(turn)), default=0)
    results = [turn.text for turn in turns[begin:] if turn.role == "tool"]
    calls, offered = called(body), list(reading.tools)
    if not results:
        if not (observed(turns[-1]) if turns else False) and "bservation" not in ask:
            return []
        texts = [turn.text[-SCANNED:] for turn in turns[begin:]]
        calls = [one or two or three for one, two, three in CALLED.findall("\n".join(texts))]
        results = texts[-1:]
        told = "\n".join(turn.text[:SCANNED] for turn in turns[: begin + 1])
        offered = [one or two or three for one, two, three in OFFERED.findall(told)]
    if not calls:
        return []
    return [fact for fact, holds in _loop(calls, offered, results[-1], ask, not reading.tools).items() if holds]


def _loop(calls: list[str], offered: list[str], result: str, ask: str, text: bool) -> dict[str, bool]:
    left = [name for name in offered if name not in calls]
    words = {word.lower()[:5] for word in PART.findall(ask.partition("bservation")[0])}
    writes = [name for name in calls if _writes(name)]
    left_writes = [name for name in left if _writes(name)]
    wanted, parts = len(words & WRITE_STEMS), parts_of(ask)
    several, low = bool(SEVERAL.search(ask.lower())), result[-200:].lower()
    return {
        "called acts last": _writes(calls[-1]),
        "called all": not left,
        "called twice": len(set(calls)) < len(calls),
        "left acts": bool(left_writes),
        "left named": any(words & _stems(name) for name in left),
        "left act named": any(words & _stems(name) for name in left_writes),
        "asks to act": wanted > 0,
        "asks and acted": wanted > 0 and bool(writes),
        "asks not acted": wanted > 0 and not writes,
        "acts as many as asked": 0 < wanted <= len(writes),
        "asks for several": several,
        "asks for several, one result": several and len(calls) == 1,
        "result failed": bool(FAILED.search(low)),
        "result short": len(result) < 40,
        "result long": len(result) > 120,
        "loop in text": text,
        "parts two": parts > 1,
        "parts three": parts > 2,
        "parts left": parts > len(calls),
        "parts two left": parts > len(calls) + 1,
        "parts done": 1 < parts <= len(calls),
    }


def parts_of(ask: str) -> int:
    """How many clauses begin with a word that asks for something."""
    num = 0
    for clause in CLAUSE.split(ask.lower()):
        found = FILLER.match(clause)
        word = PART.match(clause, found.end() if found else 0)
        num += word is not None and (word[0] in ACTS or word[0] in WRITES or word[0] in OPENS)
    return num


def _stems(name: str) -> set[str]:
    return {part.lower()[:5] for part in PART.findall(name) if len(part) > 2}


def _writes(name: str) -> bool:
    """Whether any word of a tool's name is one of WRITES; `get_order` counts, too."""
    return bool({part.lower() for part in PART.findall(name)} & WRITES)


def observed(turn: ParsedMessage) -> bool:
    """Whether a message of the user is the result of a tool."""
    return turn.role == "user" and OBSERVED.match(turn.text) is not None


def called(body: object) -> list[str]:
    """Names of tools that were called since the last message of the user."""
    given, out = as_object(body), list[str]()
    for item in map(as_object, as_list(given.get("messages")) or as_list(given.get("input"))):
        if item.get("role") == "user":
            out.clear()
        elif item.get("type") == "function_call":
            out.append(str(item.get("name")))
        for call in as_list(item.get("tool_calls")):
            out.append(str(as_object(as_object(call).get("function")).get("name")))
    return out
