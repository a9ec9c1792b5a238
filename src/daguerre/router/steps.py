"""Which type of step of an agent a request is: a linear model on hashed n-grams and on the request's structure.

Where the operation leaves no doubt (`CERTAIN`, or a suffix) nothing is predicted. Else a multinomial logistic
regression, which `recipes/steps/train.py` fits with scikit-learn, adds up a row of weights for each n-gram and each
fact that the request has. Of long texts only the ends are read, so the time is bounded.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from daguerre.errors import CheckpointError
from daguerre.router.config import STEPS
from daguerre.router.reading import Reading, read

ROWS = 1 << 14
"""Rows of weights for n-grams, of which a hash chooses one each."""
GROUPS = {"a": 1.0, "w": 1.0, "b": 1.0, "y": 0.7, "t": 0.7, "k": 0.7, "c": 0.5}
"""Groups of n-grams and the length of each one's vector: words anywhere in instructions or the last message, of that
message alone, pairs of its words, words of instructions, of tools, of a schema; characters."""
FACT = 0.45
"""What a fact counts beside an n-gram."""
HEAD, TAIL = 360, 240
"""Characters that are read at the beginning and at the end of a text."""
CHARACTERS = 120
CERTAIN = {"decisions": "classify", "fim": "infill", "edit": "edit", "embeddings": "look_up"}
"""Operations that are a type of step; an embedding is what is looked up by."""
LENGTHS = (20, 60, 150, 400, 1000, 3000)
LIMITS = (8, 32, 100, 300, 800, 2000)
COUNTS = (1, 2, 4, 8)
PATTERNS = {
    "fence": r"```",
    "code": r"[{};]\s*\n|\bdef \w+\(|=> |\bimport \w|</\w+>|\bfunction\b.*\(|\b(SELECT|select) .* (FROM|from) ",
    "question": r"[?？]\s*$",
    "any question": r"[?？]",
    "who": r"\b(who|when|where|which|what year|capital|author|invented|born|wer|wann|wo|qui|quand|quién|cuándo|"
    r"quando)\b",
    "what": r"\b(what|what's|was ist|was|quel\w*|qué|cuál)\b|什么|哪",
    "how many": r"\b(how (many|much|long|far)|wie viele?|combien|cuánt[oa]s?)\b|多少",
    "why": r"\b(why|warum|pourquoi|por qué|explain|justify|argue|because)\b|为什么",
    "how": r"\bhow (do|to|does|can|should|would|is)\b",
    "think": r"\b(step by step|step-by-step|think\w*|reason\w*|rigor\w*|schritt für schritt)\b|推理",
    "prove": r"\b(prove|proof|derive|solve|puzzle|riddle|problem|diagnose|cause|weigh|compare|valid|sound|flaw|"
    r"possible|"
    r"probability|boxed|work through|calculat\w+|löse|résous|resuelve|justifica|begründe)\b",
    "plan": r"\b(plan\w*|steps|roadmap|milestones?|phases?|break \w+( \w+)? down|schedule|subtasks?|itinerary|"
    r"checklist|to-?do|agenda|strategy|approach|order|next steps|objective|goal|decompose|étapes)\b|计划",
    "outline": r"\b(outline|headings only|structure|sketch)\b",
    "summary": r"\b(summar\w+|tl;?dr|gist|key points|main (points|ideas)|recap|condense|digest|shorten|nutshell|"
    r"abstract|"
    r"takeaways|short version|sum(s|med)? (it |them |this )?up|overview|minutes of|in short|zusammen\w+|fasse|"
    r"résum\w+|resum\w+|riassum\w+)\b|总结",
    "labels": r"\b(classif\w+|categor\w+|class|label\w*|sentiment|spam|intent|yes or no|true or false|one of|either|"
    r"verdict|triage|rate|score|grade|urgent|priority|relevant|positive|negative|safe|unsafe|detect|whether|"
    r"choose|pick|"
    r"correct\?|oder|catégor\w+|clasific\w+|ordne)\b|正面|负面",
    "fields": r"\b(extract\w*|fields?|json|csv|parse\w*|schema|entit\w+|keys?|values?|records?|rows?|items|"
    r"list (all|every|each)|"
    r"find (all|every)|all (names|dates)|triples|pull out|extra(is|e)|ziehe)\b|提取",
    "rewrite": r"\b(rewrite|rename|fix\w*|change\w*|replace|refactor|correct\w*|convert|update\w*|modif\w+|"
    r"edit\w*|revise|"
    r"polish|rephrase|proofread\w*|merge|apply|port|remove|turn .* into|make (it|this)|add|use|shorter|friendl\w+|"
    r"verbessere|formulier\w+|corrige\w*|renomme|reescribe)\b|修改",
    "translate": r"\b(translat\w+|übersetz\w+|tradu\w+)\b|翻译",
    "write": r"\b(write|draft|compose|create|implement|generate|build|make|schreib\w*|écris|rédige|escrib\w+|"
    r"scrivi)\b|写",
    "long": r"\b(essay|article|story|stories|report|blog|post|chapter|letters?|email|\d+ words|pages?|detail\w*|speech|"
    r"proposal|in depth|at length|comprehensive|novel\w*|poem|script|guide|tutorial|documentation|manual|full|"
    r"sections?|"
    r"prose|aufsatz|geschichte|cuento|racconto)\b|文章",
    "program": r"\b(functions?|class|script|program\w*|code|python|javascript|typescript|sql|rust|go|java|c\+\+|"
    r"bash|ruby|"
    r"html|css|api|regex|query|tests?|component|command line|docker\w*)\b|函数|程序",
    "short": r"\b(brief\w*|one word|one sentence|short|only|just|quick\w*|title|name|synonym|word|suggest|reply|"
    r"terse)\b",
    "source": r"\b(context|documents?|passages?|sources?|according to|based on|excerpts?|retrieved|"
    r"search results?|manual|"
    r"policy|handbook|notes|thread|below|from the|in the (text|code|log|table|file)|read (the|this)|dem text|"
    r"texto)\b|根据",
    "given": r"\b(this|these|following|below|here is|here's|my)\b.{0,60}:|:\s*\n",
    "hole": r"<\|?/?(fim|mid|suf|pre|cursor|gap|insert|fill|missing|query)|\[?(HOLE|FILL|BLANK|MISSING|CURSOR)|"
    r"___|\[\.\.\.\]"
    r"|\[(HERE|gap)\]|TODO: fill|\{\{.*\}\}|pass  # TODO",
    "fill": r"\b(fill\w*|gap|blank|hole|missing|cursor|middle|between|insert\w*|autocomplet\w*|complete|prefix|suffix|"
    r"lücke|ergänze|trou|hueco)\b",
    "then": r"\b(then|after that|afterwards|finally|and also|next)\b|;",
    "number": r"\d",
    "arithmetic": r"\d\s*[-+*/×%^=]\s*\d|\bpercent\b|%",
    "list": r"(?m)^\s*(?:[-*•]|\d+[.)])\s",
    "rows": r"(?m)^\s*[\w .'-]{2,30}:\s*\S",
    "quotes": r"[\"'“”«»].{3,}[\"'“”«»]",
    "greeting": r"^\s*(hi|hello|hey|thanks|thank you|ok|good|hallo|bonjour|hola)\b",
    "act": r"^\W*(please |can you |could you )?(book|set|send|create|find|add|turn|transfer|look|schedule|run|"
    r"list|open|cancel|"
    r"play|get|check|search|change|move|order|show|read)\b",
    "agent": r"\b(tools?|functions? call\w*|call\w*|thought|action|agent|observation)\b",
}
ASKING = (
    "summary",
    "labels",
    "fields",
    "rewrite",
    "translate",
    "write",
    "fill",
    "hole",
    "plan",
    "outline",
    "prove",
    "think",
)
"""Patterns of which one at least stands in most requests that are not plain questions."""
FOUND = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PATTERNS.items()}
WORD = re.compile(r"\w+|[^\w\s]")
FACTS = (
    *(f"last {role}" for role in ("user", "assistant", "tool", "system")),
    *(f"operation {name}" for name in ("chat", "completions", "responses")),
    *(f"choice {name}" for name in ("none", "auto", "required", "named")),
    *(f"format {name}" for name in ("text", "json_object", "json_schema")),
    *("labels", "strict", "images", "suffix", "pins", "spans", "stream", "logprobs", "choices"),
    *(f"ask {name}" for name in PATTERNS),
    *(f"head {name}" for name in PATTERNS),
    *(f"system {name}" for name in PATTERNS),
    *(f"any {name}" for name in PATTERNS),
    *("short question", "question of material", "write program", "write text", "code to change", "code to explain"),
    *(
        "only text",
        "only question",
        "given code",
        "short and plain",
        "outline of text",
        "acts with tools",
        "only system asks",
    ),
    *(f"last over {size}" for size in LENGTHS),
    *(f"all over {size}" for size in LENGTHS),
    *(f"instructions over {size}" for size in LENGTHS),
    "limit",
    *(f"limit over {size}" for size in LIMITS),
    *(f"tools {num}" for num in COUNTS),
    *(f"results {num}" for num in COUNTS),
    *(f"turns {num}" for num in COUNTS),
    *("tools and last user", "tools and last tool", "not ascii", "lower case", "more to do"),
)
PLACES = {name: ROWS + place for place, name in enumerate(FACTS)}
SETTINGS = {
    "rows": ROWS,
    "groups": GROUPS,
    "fact": FACT,
    "ends": [HEAD, TAIL, CHARACTERS],
    "facts": FACTS,
    "patterns": PATTERNS,
    "steps": STEPS,
}
SETTINGS_HASH = hashlib.sha256(json.dumps(SETTINGS).encode()).hexdigest()


class StepModel:
    """weights: float16 of [ROWS + len(FACTS), len(STEPS)]; bias: float32 of [len(STEPS)]."""

    def __init__(self, weights: np.ndarray, bias: np.ndarray) -> None:
        shapes = ((ROWS + len(FACTS), len(STEPS)), (len(STEPS),))
        if (weights.shape, bias.shape) != shapes:
            raise CheckpointError(f"weights of steps have the shapes {weights.shape} and {bias.shape}, not {shapes}")
        if weights.dtype != np.float16 or bias.dtype != np.float32:
            raise CheckpointError(f"weights of steps are {weights.dtype} and {bias.dtype}, not float16 and float32")
        if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
            raise CheckpointError("weights of steps are not all finite: train them again with recipes/steps/train.py")
        self.weights, self.bias = weights, bias

    def of(self, reading: Reading) -> dict[str, float]:
        """The probability of each step type, in the order of STEPS."""
        certain = certain_step(reading)
        if certain is not None:
            return {name: float(name == certain) for name in STEPS}
        rows, values = features(reading)
        scores = self.bias + values @ self.weights[rows].astype(np.float32)
        raised = np.exp(scores - scores.max())
        return dict(zip(STEPS, (raised / raised.sum()).tolist(), strict=True))

    def save(self, path: Path) -> None:
        """Plain arrays; the same bytes for the same weights."""
        with path.open("wb") as file:
            np.savez_compressed(file, weights=self.weights, bias=self.bias, settings=np.array(SETTINGS_HASH))


def certain_step(reading: Reading) -> str | None:
    """The step type of a request whose operation or suffix says it; None: it has to be predicted."""
    return CERTAIN.get(reading.operation) or ("infill" if reading.suffix else None)


def load_steps(path: Path | None = None) -> StepModel:
    """The model of a file, or the one that comes with the package. CheckpointError for a file that is none, or that was
    made with other features or step types.
    """
    if path is None:
        return _own()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from None
    return parse_steps(data, str(path))


@cache
def _own() -> StepModel:
    data = resources.files("daguerre").joinpath("assets/router/steps.npz").read_bytes()
    return parse_steps(data, "daguerre's steps.npz")


def parse_steps(data: bytes, name: str) -> StepModel:
    """The model of a file's bytes; `name` is for errors."""
    try:
        with np.load(BytesIO(data), allow_pickle=False) as arrays:
            held = {key: arrays[key] for key in ("weights", "bias", "settings")}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{name} has no weights of steps ({error}): install the package again") from None
    if str(held["settings"]) != SETTINGS_HASH:
        raise CheckpointError(f"{name} was made with other features or step types: run recipes/steps/train.py again")
    return StepModel(held["weights"], held["bias"])


def classify(operation: str, body: object) -> dict[str, float]:
    """The probability of each step type of a request, by the model that comes with the package."""
    return load_steps().of(read(operation, body))


def features(reading: Reading) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the weights and what each counts."""
    users, systems = reading.of("user"), reading.of("system")
    last = _ends(users[-1] if users else reading.turns[-1].text if reading.turns else "")
    system = _ends("\n".join(systems))
    words, told = _words(last), _words(system)
    tools = _words(" ".join(_ends(text) for text in (" ".join(reading.tools).replace("_", " "), reading.described)))
    pairs = [f"{one} {two}" for one, two in zip(words, words[1:], strict=False)]
    start = last[:CHARACTERS].lower()
    letters = [start[place : place + 4] for place in range(len(start) - 3)]
    grams = {
        "a": [*words, *told],
        "w": words,
        "b": pairs,
        "y": told,
        "t": tools,
        "k": _words(_ends(reading.schema)),
        "c": letters,
    }
    rows, values = list[int](), list[float]()
    for group, items in grams.items():
        some = set(items)
        if some:
            rows += [zlib.crc32(f"{group}{one}".encode("utf-8", "surrogatepass")) % ROWS for one in some]
            values += [GROUPS[group] / len(some) ** 0.5] * len(some)
    held = [PLACES[name] for name in facts(reading, last, system)]
    rows += held
    values += [FACT] * len(held)
    return np.array(rows, dtype=np.int64), np.array(values, dtype=np.float32)


def facts(reading: Reading, last: str, system: str) -> list[str]:
    """Which of FACTS hold. last: the ends of the user's last message; system: of the instructions."""
    turns, tools = reading.turns, [] if reading.choice == "none" else reading.tools
    role = turns[-1].role if turns else "user"
    results, asked = _results(reading), sum(turn.role == "user" for turn in turns)
    head, whole = last[:160], sum(len(turn.text) for turn in turns)
    told = sum(len(text) for text in reading.of("system"))
    steps = 1 + len(FOUND["then"].findall(last))
    out = {
        f"last {role}": True,
        f"operation {reading.operation}": True,
        f"choice {reading.choice}": bool(tools),
        f"format {reading.format}": True,
        "labels": reading.labels,
        "strict": reading.strict,
        "images": reading.images > 0,
        "suffix": bool(reading.suffix),
        "pins": "pins" in reading.own,
        "spans": bool(reading.own & {"spans", "lines", "gaps", "pattern"}),
        "stream": reading.stream,
        "logprobs": reading.logprobs,
        "choices": "choices" in reading.own,
        "limit": reading.limit is not None,
        "tools and last user": bool(tools) and role == "user",
        "tools and last tool": bool(tools) and role == "tool",
        "not ascii": not last.isascii(),
        "lower case": last == last.lower(),
        "more to do": bool(results) and results < steps,
    }
    for prefix, text in (("ask", last[-160:]), ("head", head), ("system", system)):
        out |= {f"{prefix} {name}": bool(text) and pattern.search(text) is not None for name, pattern in FOUND.items()}
    asks = {name for name in PATTERNS if f"ask {name}" in out and (out[f"ask {name}"] or out[f"head {name}"])}
    every = asks | {name for name in PATTERNS if out[f"system {name}"]}
    out |= {f"any {name}": name in every for name in PATTERNS}
    out |= _together(asks, every, len(last), whole, bool(tools))
    counts = {"tools": len(tools), "results": results, "turns": asked}
    for prefix, num in counts.items():
        out |= {f"{prefix} {least}": num >= least + (prefix == "turns") for least in COUNTS}
    length = max((len(text) for text in reading.of("user")[-1:]), default=0)
    for prefix, num in (("last", length), ("all", whole), ("instructions", told)):
        out |= {f"{prefix} over {size}": num > size for size in LENGTHS}
    if reading.limit is not None:
        out |= {f"limit over {size}": reading.limit > size for size in LIMITS}
    return [name for name, holds in out.items() if holds and name in PLACES]


def _together(asks: set[str], every: set[str], length: int, whole: int, tools: bool) -> dict[str, bool]:
    """Facts that are more than their parts. asks: patterns in the user's message; every: in the instructions, too."""
    none, code = not asks.intersection(ASKING), bool({"code", "fence"} & asks)
    question = "any question" in asks
    return {
        "short question": question and none and length < 150 and whole < 500 and not tools,
        "question of material": question and none and whole > 400,
        "write program": {"write", "program"} <= asks,
        "write text": "write" in asks and "program" not in asks and not code,
        "code to change": code and "rewrite" in asks and not question,
        "code to explain": code and bool({"why", "what", "any question"} & asks),
        "only text": none and not question and whole > 150,
        "only question": question and none,
        "given code": code and length > 60,
        "short and plain": none and length < 60 and whole < 300,
        "outline of text": bool({"outline", "plan"} & asks) and "long" in asks,
        "acts with tools": tools and "act" in asks,
        "only system asks": none and bool(every.intersection(ASKING)),
    }


def _results(reading: Reading) -> int:
    """Results of tools since the user's last message."""
    num = 0
    for turn in reversed(reading.turns):
        if turn.role == "user":
            break
        num += turn.role == "tool"
    return num


def _ends(text: str) -> str:
    """The beginning and the end of a text."""
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"


def _words(text: str) -> list[str]:
    return [_plain(word) for word in WORD.findall(text.lower())]


def _plain(word: str) -> str:
    """Numbers by their number of digits alone."""
    return f"#{len(word)}" if word.isdigit() else word[:24]


def likeliest(steps: dict[str, float]) -> str:
    """The step type of the highest probability; of equal ones the first of STEPS."""
    return max(steps, key=lambda name: steps[name])


def matrix(readings: Sequence[Reading]) -> Any:
    """Features of many requests as a sparse matrix of SciPy's, a row each, for training."""
    from scipy.sparse import csr_array

    found = [features(reading) for reading in readings]
    ends = np.cumsum([0, *(len(rows) for rows, _ in found)])
    indices, values = (np.concatenate([one[which] for one in found]) for which in (0, 1))
    out = csr_array((values, indices, ends), shape=(len(found), ROWS + len(FACTS)))
    out.sum_duplicates()
    return out
