"""Quality against steps: held-out prompts continued in few forwards and in many.

A canvas of 128 tokens, all denoised together, and one block of 64, by the static schedule of highest confidence, at
temperature 0 and 1; <eos> is not drawn, so all texts of a length are comparable. Free text has no right answer; its
quality is read off two figures together, since each alone is easily fooled (repetition is likely, noise is varied):

    nats      mean nats a token, of the text given its prompt, under the model's own autoregressive law (exact)
    entropy   nats, of the shares of the tokens in the text: its unigram entropy

and off the share of texts that parse by half: a prompt begins at a statement of a module, and the longest run of the
text's lines with which it is Python has half of them or more. `truth` is the text that stood there, `ar` what the
autoregressive mode writes. What has a right answer, a held-out span of tokens in its place, is in `spans.py`.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from daguerre.errors import DataError, UnsupportedError
from daguerre.evals.frozen import Document
from daguerre.evals.lines import fitting, hashed_order, parse, split_lines, take_in_turn
from daguerre.evals.statistics import wilson
from daguerre.evals.workers import Tell, map_examples
from daguerre.likelihood import score_tokens
from daguerre.model import Model
from daguerre.models.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.planning import make_plan
from daguerre.sample import Sample
from daguerre.sampling.decode import Decode

PROMPT_TOKENS, LEAST_PROMPT = 128, 32
CANVAS_TOKENS, BLOCK_TOKENS = 128, 64
STEPS = (2, 4, 8, 16, 32, 128)
TEMPERATURES = (0.0, 1.0)
SPAN_TOKENS, SPAN_STEPS = 16, (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Prompt:
    """Whole lines of a document from a statement of its module on, and the text behind them."""

    document: Document
    text: str
    following: str


@dataclass(frozen=True)
class Way:
    """How texts of `length` tokens are written; `decode` is None for the truth."""

    layout: str
    length: int
    decode: Decode | None

    @property
    def steps(self) -> int | None:
        """Forwards of the schedule; None where there is none."""
        return None if self.decode is None else self.decode.steps

    @property
    def temperature(self) -> float | None:
        """None for the truth."""
        return None if self.decode is None else self.decode.temperature

    @property
    def name(self) -> str:
        """For a report's examples."""
        facts = {"tokens": self.length, "steps": self.steps, "temperature": self.temperature}
        return ", ".join([self.layout, *(f"{name} {value:g}" for name, value in facts.items() if value is not None)])


@dataclass(frozen=True)
class Written:
    """One text: its figures (see the head of this file; `nats` is None without an autoregressive law), and its cost."""

    text: str
    nats: float | None
    entropy: float
    parses: bool
    forwards: int
    seconds: float


@dataclass(frozen=True)
class Quality:
    """`num` texts written one way: means with their standard errors, the share that parses by half with its 95%
    interval (Wilson), and mean forwards and seconds, those of the prompt and its healing included.
    """

    layout: str
    steps: int | None
    temperature: float | None
    length: int
    num: int
    nats: float | None
    nats_stderr: float | None
    entropy: float
    entropy_stderr: float
    parses: float
    parses_interval: tuple[float, float]
    forwards: float
    seconds: float


def ways(config: ModelConfig) -> list[Way]:
    """What a model's context can do: canvases, blocks, the autoregressive mode, and the truth at each length."""
    size = config.block_size if config.context == "block" else BLOCK_TOKENS
    assert size is not None
    out = []
    for heat in TEMPERATURES:
        schedule = partial(Decode, policy="confidence", temperature=heat)
        if config.context != "block":
            out += [Way("canvas", CANVAS_TOKENS, schedule(mode="full", steps=steps)) for steps in STEPS]
        few = sorted({min(steps, size) for steps in STEPS})
        out += [Way("block", size, schedule(mode="block", block_size=size, steps=steps)) for steps in few]
    lengths = sorted({way.length for way in out}, reverse=True)
    if has_law(config):
        modes = [Decode(mode="ar", temperature=heat) for heat in TEMPERATURES]
        out += [Way("ar", length, decode) for decode in modes for length in lengths]
    return out + [Way("truth", length, None) for length in lengths]


def has_law(config: ModelConfig) -> bool:
    """Whether the model writes, and scores, one token after the other."""
    return config.context == "causal" and config.shift


def make_prompts(
    documents: Sequence[Document], tokenizer: Tokenizer, config: ModelConfig, limit: int, *, seed: int = 0
) -> list[Prompt]:
    """At most `limit` prompts, as evenly over the documents as they allow, in an order hashed from `seed`.

    UnsupportedError for a model whose context has no room for one; DataError when no document has one.
    """
    room = min(PROMPT_TOKENS, config.max_positions - CANVAS_TOKENS - 2)
    if room < LEAST_PROMPT:
        needed = CANVAS_TOKENS + LEAST_PROMPT + 2
        raise UnsupportedError(
            f"'steps' needs {needed} positions and the model has {config.max_positions}: leave it out"
        )
    out = take_in_turn(documents, seed, limit, lambda document: _prompts(document, tokenizer, room, seed))
    if not out:
        raise DataError(f"no document has {LEAST_PROMPT + CANVAS_TOKENS} tokens of Python: give longer ones")
    return out


def _prompts(document: Document, tokenizer: Tokenizer, room: int, seed: int) -> Iterator[Prompt]:
    tree = None if "\r" in document.text else parse(document.text)
    lines = split_lines(document.text)
    starts = [] if tree is None else sorted({_first_line(node) for node in tree.body})
    for start in sorted(starts, key=lambda number: hashed_order(seed, document.sha256, number)):
        text = "".join(fitting(lines[start:], tokenizer, room))
        following = "".join(lines[start:])[len(text) :]
        if len(tokenizer.encode(text)) >= LEAST_PROMPT and len(tokenizer.encode(following)) > CANVAS_TOKENS:
            yield Prompt(document, text, following)


def _first_line(node: ast.stmt) -> int:
    """Its first line, from 0, decorators included."""
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]) - 1


def text_quality(
    model: Model, prompts: Sequence[Prompt], *, seed: int = 0, workers: int = 1, tell: Tell | None = None
) -> tuple[list[Quality], list[dict[str, str]]]:
    """Figures for every one of `ways`, and for each prompt what was written, by the name of the way."""
    chosen = ways(model.config)
    found = map_examples(partial(write, model, chosen, seed), prompts, workers, tell)
    figures = [_quality(way, [each[index] for each in found]) for index, way in enumerate(chosen)]
    return figures, [{way.name: each.text for way, each in zip(chosen, texts, strict=True)} for texts in found]


def write(model: Model, chosen: Sequence[Way], seed: int, prompt: Prompt) -> list[Written]:
    """The prompt continued in every way; what is drawn depends on the seed and the prompt alone."""
    own = int(hashed_order(seed, prompt.document.sha256, prompt.text)[:16], 16)
    return [_write(model, way, prompt, own) for way in chosen]


def _write(model: Model, way: Way, prompt: Prompt, seed: int) -> Written:
    started, forwards = time.perf_counter(), 0
    if way.decode is None:
        given = [model.tokenizer.bos_id, *model.tokenizer.encode(prompt.text)]
        ids = np.array([model.tokenizer.bos_id, *model.tokenizer.encode(prompt.text + prompt.following)])
        start = next((i for i, (a, b) in enumerate(zip(given, ids, strict=False)) if a != b), len(given))
    else:
        decode = Decode.of(way.decode, min_tokens=way.length, seed=seed)
        plan = make_plan(model.config, model.tokenizer, decode, prompt.text, None, way.length, None)
        *_, last = Sample(model.denoiser, plan, 0, None).steps()
        forwards, (start, _) = last.step + 1, plan.canvas.gaps[0]
        ids = np.concatenate([last.canvas.tokens[:start], last.canvas.filled(plan.canvas.gaps[0])])
    seconds = time.perf_counter() - started
    ids = ids[: start + way.length]
    text = model.tokenizer.decode(ids.tolist())[len(prompt.text) :]
    nats = None
    if has_law(model.config):
        nats = float(score_tokens(model.backbone, ids.tolist()).by_token[start - 1 :].mean())
    return Written(text, nats, unigram_entropy(ids[start:]), parses_by_half(prompt.text, text), forwards, seconds)


def unigram_entropy(tokens: np.ndarray) -> float:
    """Nats: the entropy of the shares that different tokens have of a text (T,)."""
    shares = np.unique(tokens, return_counts=True)[1] / len(tokens)
    return float(-(shares * np.log(shares)).sum())


def parses_by_half(prompt: str, text: str) -> bool:
    """Whether half of the text's lines or more, from its first on, are Python behind the prompt."""
    lines = split_lines(text.removesuffix("\n"))
    least = -(-len(lines) // 2)
    return any(parse(prompt + "".join(lines[:num])) is not None for num in range(len(lines), least - 1, -1))


def _quality(way: Way, texts: Sequence[Written]) -> Quality:
    num, parsed = len(texts), sum(text.parses for text in texts)
    nats = [text.nats for text in texts if text.nats is not None]
    entropy, entropy_stderr = _mean([text.entropy for text in texts])
    mean_nats, nats_stderr = _mean(nats) if nats else (None, None)
    return Quality(
        layout=way.layout,
        steps=way.steps,
        temperature=way.temperature,
        length=way.length,
        num=num,
        nats=mean_nats,
        nats_stderr=nats_stderr,
        entropy=entropy,
        entropy_stderr=entropy_stderr,
        parses=parsed / num,
        parses_interval=wilson(parsed, num),
        forwards=sum(text.forwards for text in texts) / num,
        seconds=sum(text.seconds for text in texts) / num,
    )


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error; 0 for one value."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return float(np.mean(values)), spread / len(values) ** 0.5
