"""`daguerre concepts try`: what adding or forbidding a concept does to a model's own text, and by how many logits.

The strength, in logits of the concept's top token, is chosen on prompts of their own: the one with the largest score,
which is the share of texts that have the concept (when it is forbidden, that have not), times how sound the texts are.
Texts of the package's concepts are sound where they parse. Other text is as sound as its likelihood in the unsteered
model is to that of the plain text: exp(-d), where a token costs d nats more. What has the concept is said by its rule
where there is one, else by what the model itself reads.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from daguerre.concepts.endings import closed, cuts, parses, uses
from daguerre.concepts.labels import Labels, label
from daguerre.concepts.own import OwnTaxonomy
from daguerre.concepts.prompts import before_statements, before_uses
from daguerre.concepts.taxonomy import Concept, taxonomy
from daguerre.decoding.steering import Operation, Steering
from daguerre.errors import InputError, no_concept_heads
from daguerre.heldout import load_frozen
from daguerre.model import Model
from daguerre.scoring.concept_search import ConceptReader

STRENGTHS = {"add": (4.0, 6.0, 8.0, 12.0), "forbid": (6.0, 10.0, 16.0)}
CHOSEN_ON = 8
"""Prompts on which a strength is chosen."""
LONGEST = 1200
"""Characters of a held-out prompt, at most."""
PROSE = (
    "The meeting began at nine, and", "Our shop in the old town", "When the letter arrived,", "She opened the door and",
    "The report says that", "Dear Anna,\n", "In the first week of the journey", "The new library", "Nobody knew why",
    "To make the soup,", "The train to the coast", "He looked at the map and said:", "After the storm,",
    "The company announced", "My neighbor's garden", "Before you start,", "The doctor told us",
)  # fmt: skip
"""Beginnings for concepts of prose, where no prompts are given."""


class ConceptFinder(ABC):
    """Says whether what was written after a prompt has a concept, and how sound it is."""

    said_by: str

    @abstractmethod
    def has(self, prompt: str, text: str) -> bool:
        """Whether the text has it."""

    @abstractmethod
    def sound(self, prompt: str, text: str, plain: str) -> float:
        """How sound a text is, 0 to 1; plain: what is written without steering."""


class PythonFinder(ConceptFinder):
    """A concept of the package's taxonomy, in Python."""

    said_by = "its definition"

    def __init__(self, concept: Concept) -> None:
        self._concept = concept

    def has(self, prompt: str, text: str) -> bool:
        """By `endings.uses`."""
        return uses(self._concept, prompt, text)

    def sound(self, prompt: str, text: str, plain: str) -> float:
        """1 where the prompt and the text parse."""
        return float(parses(prompt + text))


class TextFinder(ConceptFinder):
    """A concept in any text: by what a model reads."""

    said_by = "what the model reads"

    def __init__(self, model: Model, number: int) -> None:
        self._model = model
        self._reader = ConceptReader(model.denoiser, model.denoiser.heads, [number], "peak")

    def has(self, prompt: str, text: str) -> bool:
        """Whether a token of the text has it with a probability above one half."""
        ids = self._model.tokenizer.encode(prompt + text)
        ends = np.cumsum([len(self._model.tokenizer.token_bytes(token)) for token in ids])
        (values,) = self._reader.read([ids])
        return bool((values[ends > len(prompt.encode())] > 0).any())

    def sound(self, prompt: str, text: str, plain: str) -> float:
        """By the likelihood of both texts; see the module."""
        return math.exp(-max(0.0, self._nats(prompt, text) - self._nats(prompt, plain)))

    def _nats(self, prompt: str, text: str) -> float:
        """Nats of a token of the text behind the prompt."""
        whole, begun = (self._model.nll(each) for each in (prompt + text, prompt))
        return (whole.value - begun.value) / max(1, whole.num_tokens - begun.num_tokens)


class RuledFinder(TextFinder):
    """A concept in any text: by the rule of a user's taxonomy."""

    said_by = "its rule"

    def __init__(self, model: Model, number: int, own: OwnTaxonomy) -> None:
        super().__init__(model, number)
        self._own = own

    def has(self, prompt: str, text: str) -> bool:
        """Whether an instance ends in the text; of Python, in the longest part of it that can be closed."""
        whole = self._longest(prompt, text) if self._own.is_python else prompt + text
        spans = self._own.label(whole).spans
        return bool(((spans[:, 2] > len(prompt)) & (spans[:, 1] < len(prompt + text))).any())

    def _longest(self, prompt: str, text: str) -> str:
        found = (closed(prompt + text[:end]) for end in cuts(text))
        return next((whole for whole in found if whole is not None), "")


def finder_of(model: Model, name: str, own: OwnTaxonomy | None) -> tuple[ConceptFinder, Concept | None]:
    """What finds a concept, and the concept where it is one of the package's.

    InputError for a name that there is not; UnsupportedError for a model without concept heads.
    """
    if model.concepts is None:
        raise no_concept_heads("trying concepts")
    number = model.concepts.number(name)
    if own is not None:
        only = own.only([name])
        ruled = only.concepts[0].pattern or only.concepts[0].syntax
        return (RuledFinder(model, number, only) if ruled else TextFinder(model, number)), None
    if model.concepts.taxonomy == taxonomy().sha256 and name in taxonomy().by_name:
        return PythonFinder(taxonomy().named(name)), taxonomy().named(name)
    return TextFinder(model, number), None


def held_out_prompts(concept: Concept | None, forbid: bool, num: int) -> list[str]:
    """Prompts for a concept: beginnings of held-out files of Python, just before the concept where it is to be
    forbidden; of prose for a concept that is none of the package's. They end without spaces, which published models
    read as the beginning of another token.
    """
    if concept is None:
        return list(PROSE[:num])
    texts: list[tuple[int, str, Labels]] = []
    for number, document in enumerate(load_frozen()):
        found = label(document.text, [concept] if forbid else [])
        if found.certain and "\r" not in document.text and "\f" not in document.text:
            texts.append((number, document.text, found))
    chosen = before_uses(texts, concept, num, LONGEST) if forbid else before_statements(texts, num, 0, LONGEST)
    return [one.text.rstrip(" ") for one in chosen]


@dataclass(frozen=True)
class StrengthScore:
    """Of the prompts on which a strength is chosen: the share of texts with the concept, and how sound they are."""

    strength: float
    share: float
    sound: float


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt, and what is written with and without the concept steered; had, has: whether that has the concept."""

    prompt: str
    plain: str
    steered: str
    had: bool
    has: bool


@dataclass(frozen=True)
class TriedConcept:
    """What trying a concept came to. said_by: what says whether a text has it; steer: operations, for `--steer`."""

    name: str
    kind: str
    said_by: str
    scores: tuple[StrengthScore, ...]
    strength: float
    steer: tuple[dict[str, Any], ...]
    shown: tuple[ShownPrompt, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ConceptTrial:
    """How a concept is tried. kind: add or forbid; lasting: the concept is added until so many tokens are written."""

    model: Model
    name: str
    finder: ConceptFinder
    kind: str = "add"
    lasting: int = 3
    max_tokens: int = 32

    def program(self, strength: float) -> Steering:
        """The steering of a strength."""
        until: dict[str, Any] = {"schedule": "until", "tokens": self.lasting} if self.kind == "add" else {}
        return Steering((Operation(kind=self.kind, concepts=self.name, strength=strength, **until),))  # type: ignore[arg-type]

    def write(self, prompt: str, strength: float) -> str:
        """What follows a prompt; a strength of 0 is plain."""
        steer = self.program(strength) if strength else None
        return self.model.generate(prompt, self.max_tokens, temperature=0.0, steer=steer).text

    def score(self, prompts: Sequence[str], plain: Sequence[str], strength: float) -> StrengthScore:
        """The score of a strength. plain: what follows the prompts without steering."""
        texts = [self.write(prompt, strength) for prompt in prompts] if strength else plain
        share = sum(map(self.finder.has, prompts, texts)) / len(prompts)
        return StrengthScore(strength, share, sum(map(self.finder.sound, prompts, texts, plain)) / len(prompts))

    def run(
        self, prompts: Sequence[str], num: int, strength: float | None, say: Callable[[str], None] = lambda _: None
    ) -> TriedConcept:
        """Choose a strength, unless one is given, on the prompts but for the first `num`, and show these with and
        without. InputError where too few prompts are left.
        """
        chosen_on, scores = prompts[num:], list[StrengthScore]()
        if strength is None:
            if not chosen_on:
                raise InputError(f"a strength is chosen on other prompts than the {num} that are shown: give more")
            plain = [self.write(prompt, 0.0) for prompt in chosen_on]
            for each in (0.0, *STRENGTHS[self.kind]):
                scores.append(self.score(chosen_on, plain, each))
                say(f"{each:g} logits: {scores[-1].share:.0%} have it, {scores[-1].sound:.0%} sound")
            strength = max(scores[1:], key=self._value).strength
            if not any(map(self._value, scores[1:])):
                say(f"no strength does it on these prompts: {strength:g} logits, the least, are shown")
        shown = [self._shown(prompt, strength) for prompt in prompts[:num]]
        steer = [one.to_dict() for one in self.program(strength).operations]
        return TriedConcept(
            self.name, self.kind, self.finder.said_by, tuple(scores), strength, tuple(steer), tuple(shown)
        )

    def _value(self, one: StrengthScore) -> float:
        return (one.share if self.kind == "add" else 1 - one.share) * one.sound

    def _shown(self, prompt: str, strength: float) -> ShownPrompt:
        plain, steered = self.write(prompt, 0.0), self.write(prompt, strength)
        return ShownPrompt(prompt, plain, steered, self.finder.has(prompt, plain), self.finder.has(prompt, steered))
