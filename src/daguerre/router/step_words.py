"""What the classifier of step types looks for: patterns of words, and facts about the object an answer has to be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from daguerre.router.reading import as_list, as_object, strings

PATTERNS = {
    "fence": r"```",
    "code": r"[{};]\s*\n|\bdef \w+\(|=> |\bimport \w|</\w+>|\bfunction\b.*\(|\b(SELECT|select) .* (FROM|from) ",
    "question": r"[?？]\s*$",
    "any question": r"[?？]",
    "who": (
        r"\b(who|when|where|which|what year|capital|author|invented|born|wer|wann|wo|qui|quand|quién|"
        r"cuándo|quando|welche\w*|quale|quelle|cuál|chi|hoe|wat|qual)\b|谁|哪"
    ),
    "what": r"\b(what|what's|was ist|was|quel\w*|qué|cuál)\b|什么|哪",
    "how many": r"\b(how (many|much|long|far)|wie viele?|combien|cuánt[oa]s?)\b|多少",
    "why": r"\b(why|warum|pourquoi|por qué|explain|justify|argue|because)\b|为什么",
    "how": r"\bhow (do|to|does|can|should|would|is)\b",
    "think": r"\b(step by step|step-by-step|think\w*|reason\w*|rigor\w*|schritt für schritt)\b|推理",
    "prove": (
        r"\b(prove|proof|derive|solve|puzzle|riddle|problem|diagnose|cause|weigh|compare|valid|sound|flaw|"
        r"possible|probability|boxed|work through|calculat\w+|löse|résous|resuelve|justifica|begründe|"
        r"beweis\w*|démontre\w*|demuestra|dimostra|überleg\w*|razona|rechne\w*|spiega|argue|infer|"
        r"explanation|trade-?offs?|better (deal|off))\b|证明"
    ),
    "plan": (
        r"\b(plan\w*|steps|roadmap|milestones?|phases?|break \w+( \w+)? down|schedule|subtasks?|itinerary|"
        r"checklist|to-?do|agenda|strategy|approach|order|next steps|objective|goal|decompose|étapes|"
        r"timeline|stages|sequence|curriculum|syllabus|table of contents|chapters|rollout|runbook|"
        r"organi[sz]e|plane|planifie\w*|étapes|schritte\w*|pasos|passi|reiseplan|zeitplan|stappenplan|"
        r"organiza|organizza)\b|计划|步骤"
    ),
    "outline": r"\b(outline|headings only|structure|sketch)\b",
    "summary": (
        r"\b(summar\w+|tl;?dr|gist|key points|main (points|ideas)|recap|condense|digest|shorten|nutshell|"
        r"abstract|takeaways|short version|sum(s|med)? (it |them |this )?up|overview|minutes of|in short|"
        r"zusammen\w+|fasse|résum\w+|resum\w+|riassum\w+|upshot|brief(ly)?|highlights|blurb|catch me up|"
        r"claims?|essential\w*|kurz\w*|worum geht|wichtigste\w*|en bref|synthèse|(en|in) breve|"
        r"lo más importante|hoofdpunten|vat .* samen)\b|总结|概括"
    ),
    "labels": (
        r"\b(classif\w+|categor\w+|class|label\w*|sentiment|spam|intent|yes or no|true or false|one of|"
        r"either|verdict|triage|rate|score|grade|urgent|priority|relevant|positive|negative|safe|unsafe|"
        r"detect|whether|choose|pick|correct\?|oder|catégor\w+|clasific\w+|ordne)\b|正面|负面"
    ),
    "fields": (
        r"\b(extract\w*|fields?|json|csv|parse\w*|schema|entit\w+|keys?|values?|records?|rows?|items|"
        r"list (all|every|each)|find (all|every)|all (names|dates)|triples|pull out|extra(is|e)|ziehe)\b|"
        r"提取"
    ),
    "rewrite": (
        r"\b(rewrite|rename|fix\w*|change\w*|replace|refactor|correct\w*|convert|update\w*|modif\w+|"
        r"edit\w*|revise|polish|rephrase|proofread\w*|merge|apply|port|remove|turn .* into|make (it|this)|"
        r"add|use|shorter|friendl\w+|verbessere|formulier\w+|corrige\w*|renomme|reescribe|mach\w*|kürz\w*|"
        r"höflich\w*|reformule\w*|hazlo|riscrivi|rends|mets|benenne|ändere|swap|bump|insert|delete|"
        r"shorten|simplif\w*|reword|paraphrase|soften|tone down|reformat|anonymi[sz]e|modernize|uppercase|"
        r"reorder|set \w+ to)\b|修改"
    ),
    "translate": r"\b(translat\w+|übersetz\w+|tradu\w+)\b|翻译",
    "write": (
        r"\b(write|draft|compose|create|implement|generate|build|make|schreib\w*|écris|rédige|escrib\w+|"
        r"scrivi|verfasse|entwirf|redacta|crea|haz|fais|escreva|give me|i need|programa?|code me|"
        r"tell me a)\b|写"
    ),
    "long": (
        r"\b(essay|article|story|stories|report|blog|post|chapter|letters?|email|\d+ words|pages?|"
        r"detail\w*|speech|proposal|in depth|at length|comprehensive|novel\w*|poem|script|guide|tutorial|"
        r"documentation|manual|full|sections?|prose|aufsatz|geschichte|cuento|racconto|\w*bericht\w*|rede|"
        r"märchen|kurzgeschichte|conte|récit|discours|ensayo|relato|discurso|favola|verhaal|wörter|"
        r"feature|monologue|scenes?|toast|readme|biograph\w+|diary|tale|column|newsletter|narrative|"
        r"brochure)\b|文章|散文|故事"
    ),
    "program": (
        r"\b(functions?|class|script|program\w*|code|python|javascript|typescript|sql|rust|go|java|c\+\+|"
        r"bash|ruby|html|css|api|regex|query|tests?|component|command line|docker\w*|programm\w*|skript|"
        r"funktion|fonction|función|funzione|requête|consulta|codice|código|implement\w*|algorithm\w*|"
        r"stdin|module|hook|decorator|endpoint|pytest|cron\w*|manifest|makefile)\b|函数|程序"
    ),
    "short": (
        r"\b(brief\w*|one word|one sentence|short|only|just|quick\w*|title|name|synonym|word|suggest|"
        r"reply|terse)\b"
    ),
    "source": (
        r"\b(context|documents?|passages?|sources?|according to|based on|excerpts?|retrieved|"
        r"search results?|manual|policy|handbook|notes|thread|below|from the|in the (text|code|log|table|"
        r"file)|read (the|this)|dem text|texto|laut|selon|d'après|según|secondo|hits?|mention\w*|says?|"
        r"quote|cite\w*|listing|attached|contract|minutes|transcript|in (here|it|there)|knowledge)\b|根据"
    ),
    "only": (
        r"\b(only|just|nothing (else|more)|no explanations?|exactly one|alone|one word|nur|seulement|"
        r"solo)\b"
    ),
    "yes or no": r"\byes\b.{0,6}\bno\b|\btrue\b.{0,6}\bfalse\b|y/n|ja oder nein|oui ou non|s[íì] o no|是或否|ja of nee",
    "options": r"[\w_]+(, [\w_ ]+){2,}|\b\w+ (or|oder|ou|vs\.?) \w+ ?[?:]|\b\w+ ?/ ?\w+\b",
    "scale": r"\b(from )?[01] ?(to|-|and) ?\d+\b|\b(stars?|out of \d+|scale|[A-E] to [A-F])\b",
    "talk": r"(?m)^\[?[\w ]{1,14}\]?: .*\n\[?[\w ]{1,14}\]?: ",
    "given": r"\b(this|these|following|below|here is|here's|my)\b.{0,60}:|:\s*\n",
    "hole": (
        r"<\|?/?(fim|mid|suf|pre|cursor|gap|insert|fill|missing|query)|\[?(HOLE|FILL|BLANK|MISSING|"
        r"CURSOR)|___|\[\.\.\.\]|\[(HERE|gap)\]|TODO: fill|\{\{.*\}\}|pass  # TODO"
    ),
    "fill": (
        r"\b(fill\w*|gap|blank|hole|missing|cursor|middle|between|insert\w*|autocomplet\w*|complete|"
        r"prefix|suffix|lücke|ergänze|trou|hueco)\b"
    ),
    "then": r"\b(then|after that|afterwards|finally|and also|next)\b|;",
    "number": r"\d",
    "arithmetic": r"\d\s*[-+*/×%^=]\s*\d|\bpercent\b|%",
    "list": r"(?m)^\s*(?:[-*•]|\d+[.)])\s",
    "rows": r"(?m)^\s*[\w .'-]{2,30}:\s*\S",
    "quotes": r"""[\"'“”«»].{3,}[\"'“”«»]""",
    "greeting": r"^\s*(hi|hello|hey|thanks|thank you|ok|good|hallo|bonjour|hola)\b",
    "act": (
        r"^\W*(please |can you |could you )?(book|set|send|create|find|add|turn|transfer|look|schedule|"
        r"run|list|open|cancel|play|get|check|search|change|move|order|show|read)\b"
    ),
    "agent": r"\b(tools?|functions? call\w*|call\w*|thought|action|agent|observation)\b",
    "small": (
        r"\b(one[- ]line\w*|one sentence|commit message|branch name|subject line|caption|slogan|nickname|"
        r"synonym\w*|antonym|opposite|plural|rhym\w+|reimt|spell|emoji|name (for|my)|few words|mehrzahl|"
        r"contraire|sinónimo|call (it|my|this)|how (do|would) (you|i) say|titles?|headline|half of|"
        r"squared)\b|['‘][\w ]{1,20}['’] (in|or|auf|en)\b"
    ),
    "not yet": (
        r"\b(do not|don't|no|without|before|not) (\w+ )?(call\w*|tools?|act|implement\w*|cod(e|ing)|"
        r"solv\w*|writ\w*|execut\w*|touching)\b|plan mode|approval|headings only|only the headings|"
        r"comes later"
    ),
    "loop": (
        r"\b(thought|observation|action input|next action|final_answer|tool_call|execute_command|"
        r"environment_details|one tool|function_calls|now begin)\b"
    ),
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
"""Most requests that are not plain questions have one of these patterns."""
FOUND = {name: re.compile(pattern, 0 if pattern.islower() else re.IGNORECASE) for name, pattern in PATTERNS.items()}
"""They search lower-case text; those with no capital of their own are the faster for it."""


PIECE = re.compile(r"(?s)(?P<sign>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)(?P<repeated>[*+?]|\{\d*,?\d*\}|)")
"""A sign of a pattern, which may be an escape or a list of characters, and how often it may stand."""


def _pieces(pattern: str) -> Iterator[tuple[int, str, str, int]]:
    """The place of each piece, its sign and how often, and how many parentheses are open around it."""
    depth = 0
    for found in PIECE.finditer(pattern):
        depth -= found["sign"] == ")"
        yield found.start(), found["sign"], found["repeated"], depth
        depth += found["sign"] == "("


def alternatives(pattern: str) -> list[str]:
    """What stands between the bars of a pattern that are in no parentheses and no brackets."""
    bars = [place for place, sign, _, depth in _pieces(pattern) if sign == "|" and not depth]
    return [pattern[first + 1 : last] for first, last in pairwise([-1, *bars, len(pattern)])]


def literal(pattern: str) -> str:
    """Characters that stand in every text that an alternative matches, the longest run of them; "": none are known."""
    runs = [""]
    for _, sign, repeated, depth in _pieces(pattern):
        plain = not depth and len(sign) == 1 and sign not in "().^$"
        if plain and repeated in ("", "+"):
            runs[-1] += sign
        if not plain or repeated:
            runs.append("")
    return max(runs, key=len)


class Parted(NamedTuple):
    """A pattern without capitals: whole words, any of which is enough; and the rest, which is searched where one
    of `literals` stands.
    """

    words: frozenset[str]
    literals: tuple[str, ...]
    left: re.Pattern[str] | None

    @classmethod
    def of(cls, pattern: str) -> Parted:
        """The parts of a pattern."""
        words, left, literals = set[str](), list[str](), list[str]()
        for part in alternatives(pattern):
            closed = next((place for place, sign, _, depth in _pieces(part) if sign == ")" and not depth), 0)
            if not part.startswith(r"\b(") or part[closed:] != r")\b":
                left.append(part)
                literals.append(literal(part))
                continue
            inner = alternatives(part[3:closed])
            others = [one for one in inner if not one.isalpha()]
            words |= {one for one in inner if one.isalpha()}
            left += [rf"\b({'|'.join(others)})\b"] if others else []
            literals += map(literal, others)
        return cls(frozenset(words), tuple(literals), re.compile("|".join(left)) if left else None)

    def stands_in(self, text: str, words: frozenset[str]) -> bool:
        """Whether a text in lower case, of these words, holds the pattern."""
        if not self.words.isdisjoint(words):
            return True
        return self.left is not None and any(map(text.__contains__, self.literals)) and bool(self.left.search(text))


PARTED = {name: Parted.of(pattern) for name, pattern in PATTERNS.items() if pattern.islower()}
"""To look for words among a text's words, or for characters, takes far less time than to search for a pattern."""
CAPITAL = {name: pattern for name, pattern in FOUND.items() if name not in PARTED}
WORDS = re.compile(r"\w+")
FORM: dict[str, Callable[[int, list[str]], bool]] = {
    "form one": lambda n, kinds: n == 1,
    "form two": lambda n, kinds: n == 2,
    "form three": lambda n, kinds: n >= 3,
    "form five": lambda n, kinds: n >= 5,
    "form choice": lambda n, kinds: "choice" in kinds,
    "form yes or no": lambda n, kinds: "boolean" in kinds,
    "form list": lambda n, kinds: "array" in kinds,
    "form number": lambda n, kinds: bool({"number", "integer"} & set(kinds)),
    "form labels": lambda n, kinds: n <= 3 and bool({"choice", "boolean"} & set(kinds)) and kinds.count("string") <= 1,
    "form list alone": lambda n, kinds: kinds == ["array"],
    "form record": lambda n, kinds: sum(kind not in ("choice", "boolean") for kind in kinds) >= 2,
    "form text alone": lambda n, kinds: n == 1 and kinds == ["string"],
}
"""Facts about an object that the answer has to be: the number of its fields, and their kinds."""
ACTS = frozenset(
    "add answer append apply assign bash block book buy call cancel change check close compute convert create delete "
    "deploy directions do edit execute fetch file find flight get grep insert issue list lock lookup look make merge "
    "move open order pay play post print put query read remove reserve restart retrieve run save schedule search send "
    "set show start stop submit switch take track transfer turn update upload web write".split()
)
"""First words of the names of tools that act or find, not hold."""
ENDS = frozenset({"final_result", "final_output", "extract", "respond"})
"""Names of tools that stand for the answer."""
NAMES = {
    "code": "code sql script regex command source snippet program implementation tests shell imports config function",
    "prose": "body story article letter email essay content chapter speech post paragraphs headline subject intro "
    "closing scenes description title paragraph text message sections",
    "plan": "steps plan tasks phases milestones subtasks stages todo schedule days queries itinerary checklist "
    "searches stops roadmap actions outline goals",
    "summary": "summary tldr gist abstract recap overview points takeaways bullets highlights decisions "
    "condensed brief",
    "edited": "corrected rewritten edited translation translated revised fixed updated polished refactored diff patch "
    "changes corrections replacement rewrite target new",
    "gap": "middle missing insertion inserted fill filling filled completion hole restored mask blank gap",
    "thought": "reasoning thought explanation rationale analysis argument proof cause why conclusion deduction "
    "derivation",
    "answer": "answer response reply result output final value returned completion",
    "label": "label category class sentiment intent topic verdict route score rating grade flag passed allowed "
    "decision winner spam queue priority relevant urgent severity",
    "source": "sources citations quote source page document evidence passage cited references",
    "call": "tool action args arguments parameters input command kwargs",
}
"""Parts of the names of fields, by what they speak for."""
MEANT = {kind: frozenset(words.split()) for kind, words in NAMES.items()}
MEANINGS = (*(f"names {kind}" for kind in NAMES), "names data", "signature")
SIGNATURE = re.compile(r"Your output fields are:\n(.*?)\nAll interactions", re.DOTALL)
OUTPUT = re.compile(r"\d+\. `(\w+)` \((\w+)")
"""Fields of DSPy's instructions, and their types."""
TYPES = {"list": "array", "Literal": "choice", "bool": "boolean", "int": "integer", "float": "number"}
SCANNED = 3000
"""Characters of a text in which tools are looked for."""
PART = re.compile(r"[A-Z]?[a-z]+")
FIELDS = 50
"""Fields of a schema that are looked at."""
FRAMES = re.compile(
    r"Respond with the corresponding output fields, starting.*|\[\[ ## \w+ ## \]\]|"
    r"All interactions will be structured.*?your objective is:|"
    r"\A\s*(?:(?:New task|Task|User|Human):|### ?Instructions?:?\s)|"
    r"\n(?:User|Human): (?=[^\n]*\n(?:Assistant|AI):\s*\Z)|\n(?:Assistant|AI|### ?Response):?\s*\Z",
    re.DOTALL,
)
"""What clients (DSPy, smolagents, prompts of completions) put around every request alike."""
PERSONA = re.compile(r"\s*(?:you are|you're|you work|act as|du bist|tu es|vous êtes|eres|sei un)\b", re.IGNORECASE)
"""The beginning of a line that says who the model is."""


def holding(text: str) -> frozenset[str]:
    """Names of the patterns that a text holds; an empty one holds none."""
    if not text:
        return frozenset()
    low = text.lower()
    words = frozenset(WORDS.findall(low))
    out = {name for name, pattern in CAPITAL.items() if pattern.search(low)}
    return frozenset(out.union(name for name, parted in PARTED.items() if parted.stands_in(low, words)))


held_by_instructions = lru_cache(maxsize=256)(holding)
"""`holding` of instructions, of which the last 256 are kept: many requests have the same ones."""


def together(asks: frozenset[str], every: frozenset[str], length: int, whole: int, tools: bool) -> dict[str, bool]:
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


def form_of(body: object) -> tuple[list[str], str]:
    """Which facts hold about the object that the answer has to be, by a schema or by the only tool, and all names in
    the schema.
    """
    given = as_object(body)
    tools = [as_object(one) for name in ("tools", "functions") for one in as_list(given.get(name))]
    functions = [as_object(one.get("function")) or one for one in tools]
    choice = given.get("tool_choice", given.get("function_call"))
    acts = [_acts(one.get("name")) for one in functions]
    out = {"some tool acts": any(acts)}
    wanted = as_object(given.get("response_format")) or as_object(as_object(given.get("text")).get("format"))
    held = as_object(wanted.get("json_schema")) or wanted
    schema, name = as_object(held.get("schema")), str(held.get("name"))
    if len(functions) == 1:
        name = str(functions[0].get("name"))
        schema = schema or as_object(functions[0].get("parameters"))
        out |= {"tool noun": name[:1].isupper(), "tool acts": acts[0], "tool ends": name in ENDS}
        out["tool forced"] = choice not in (None, "auto", "none")
    fields = list(as_object(schema.get("properties")))[:FIELDS]
    kinds, said = list(_kinds(schema)), " ".join([name, *strings(schema)]) if schema else ""
    if not schema and not tools:
        fields, kinds = signature(given)
        out["signature"], said = bool(fields), " ".join(fields)
    if schema or fields:
        out |= {fact: holds(len(kinds), kinds) for fact, holds in FORM.items()} | meanings(fields)
    return [fact for fact, holds in out.items() if holds], said


def meanings(fields: list[str]) -> dict[str, bool]:
    """What the names of fields speak for."""
    parts = [{part.lower() for part in PART.findall(field)} for field in fields]
    found = [{kind for kind, words in MEANT.items() if words & some} for some in parts]
    out = {f"names {kind}": any(kind in some for some in found) for kind in MEANT}
    return out | {"names data": sum(not some for some in found) > 1}


def signature(body: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Names and kinds of the output fields in DSPy's instructions, without its reasoning; none without them."""
    first = as_object(next(iter(as_list(body.get("messages"))), None)).get("content")
    found = SIGNATURE.search(first[:SCANNED]) if isinstance(first, str) and first[:4] == "Your" else None
    pairs = [pair for pair in OUTPUT.findall(found[1])[:FIELDS] if pair[0] != "reasoning"] if found else []
    return [name for name, _ in pairs], [TYPES.get(kind, "string") for _, kind in pairs]


def _kinds(schema: dict[str, Any]) -> Iterator[str]:
    """The kind of each field: choice, or a type of JSON Schema."""
    definitions = as_object(schema.get("$defs"))
    for value in list(as_object(schema.get("properties")).values())[:FIELDS]:
        field = as_object(value)
        field = as_object(definitions.get(str(field.get("$ref")).rpartition("/")[2])) or field
        kind = field.get("type")
        yield "choice" if "enum" in field or "const" in field else kind if isinstance(kind, str) else "string"


def _acts(name: object) -> bool:
    first = PART.search(str(name))
    return first is not None and first[0].lower() in ACTS
