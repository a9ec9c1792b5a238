"""Quality against steps: held-out prompts continued in few forwards and in many.

A canvas of 128 tokens, all denoised together, and one block of 64, by the static schedule of highest confidence, at
temperature 0 and 1. <eos> is not drawn, so all texts of a length are comparable. Free text has no right answer; its
quality is read from two figures together, since each alone is misleading (repetitive text is likely, noise is varied):

    nats      mean nats per token of the text given its prompt, under the model's autoregressive distribution (exact)
    entropy   nats: the unigram entropy of the text, from the shares of its tokens

and from the share of texts that parse by half: a prompt begins at a statement of a module, and the longest run of the
text's lines that is Python together with it has half of them or more. `truth` is the document's text, `ar` what the
autoregressive mode writes. Text with a right answer, a held-out span of tokens in its place, is measured by `spans.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample, drive
from daguerre.errors import DataError, UnsupportedError
from daguerre.evals.lines import first_line_number, fitting, hashed_order, parse, round_robin, split_lines
from daguerre.evals.statistics import means, shares
from daguerre.evals.workers import ItemProgress, map_examples
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.likelihood import score_tokens

PROMPT_TOKENS, MIN_PROMPT = 128, 32
CANVAS_TOKENS, BLOCK_TOKENS = 128, 64
STEPS = (2, 4, 8, 16, 32, 128)
TEMPERATURES = (0.0, 1.0)
SPAN_TOKENS, SPAN_STEPS = 16, (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class StepsPrompt:
    """Whole lines of a document from a statement of its module on, and the text after them."""

    document: Document
    text: str
    following: str


@dataclass(frozen=True)
class Setting:
    """How texts of `length` tokens are written; `decode` is None for the document's text."""

    layout: str
    length: int
    decode: Decode | None

    @property
    def steps(self) -> int | None:
        """Forwards of the schedule; None where there is none."""
        return None if self.decode is None else self.decode.steps

    @property
    def temperature(self) -> float | None:
        """None for the document's text."""
        return None if self.decode is None else self.decode.temperature

    @property
    def name(self) -> str:
        """For a report's examples."""
        facts = {"tokens": self.length, "steps": self.steps, "temperature": self.temperature}
        return ", ".join([self.layout, *(f"{name} {value:g}" for name, value in facts.items() if value is not None)])


@dataclass(frozen=True)
class StepsText:
    """One text: its figures (see the head of this file) and its cost.

    nats  None for a model without an autoregressive distribution
    """

    text: str
    nats: float | None
    entropy: float
    parses: bool
    forwards: int
    seconds: float


@dataclass(frozen=True)
class Quality:
    """`num` texts of one setting: means with their standard errors, the share that parses by half with its 95% interval
    (Wilson), and mean forwards and seconds, which include those of the prompt and its healing.
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


def settings(config: ModelConfig) -> list[Setting]:
    """What a model's context can do: canvases, blocks, the autoregressive mode; and at each length the true text."""
    size = config.block_size if config.context == "block" else BLOCK_TOKENS
    assert size is not None
    out = []
    for temperature in TEMPERATURES:
        schedule = partial(Decode, policy="confidence", temperature=temperature)
        if config.context != "block":
            out += [Setting("canvas", CANVAS_TOKENS, schedule(mode="full", steps=steps)) for steps in STEPS]
        few = sorted({min(steps, size) for steps in STEPS})
        out += [Setting("block", size, schedule(mode="block", block_size=size, steps=steps)) for steps in few]
    lengths = sorted({setting.length for setting in out}, reverse=True)
    if config.can_draft:
        modes = [Decode(mode="ar", temperature=temperature) for temperature in TEMPERATURES]
        out += [Setting("ar", length, decode) for decode in modes for length in lengths]
    return out + [Setting("truth", length, None) for length in lengths]


def make_prompts(
    documents: Sequence[Document], tokenizer: Tokenizer, config: ModelConfig, limit: int, *, seed: int = 0
) -> list[StepsPrompt]:
    """At most `limit` prompts, spread evenly over the documents, in an order hashed from `seed`.

    UnsupportedError for a model whose context has no room for one; DataError when no document has one.
    """
    room = min(PROMPT_TOKENS, config.max_positions - CANVAS_TOKENS - 2)
    if room < MIN_PROMPT:
        needed = CANVAS_TOKENS + MIN_PROMPT + 2
        raise UnsupportedError(
            f"'steps' needs {needed} positions and the model has {config.max_positions}: leave it out"
        )
    out = round_robin(documents, seed, limit, lambda document: _prompts(document, tokenizer, room, seed))
    if not out:
        raise DataError(f"no document has {MIN_PROMPT + CANVAS_TOKENS} tokens of Python: give longer ones")
    return out


def _prompts(document: Document, tokenizer: Tokenizer, room: int, seed: int) -> Iterator[StepsPrompt]:
    tree = None if "\r" in document.text else parse(document.text)
    lines = split_lines(document.text)
    starts = [] if tree is None else sorted({first_line_number(node) for node in tree.body})
    for start in sorted(starts, key=lambda number: hashed_order(seed, document.sha256, number)):
        text = "".join(fitting(lines[start:], tokenizer, room))
        following = "".join(lines[start:])[len(text) :]
        if len(tokenizer.encode(text)) >= MIN_PROMPT and len(tokenizer.encode(following)) > CANVAS_TOKENS:
            yield StepsPrompt(document, text, following)


def text_quality(
    model: Model,
    prompts: Sequence[StepsPrompt],
    *,
    seed: int = 0,
    workers: int = 1,
    progress: ItemProgress | None = None,
) -> tuple[list[Quality], list[dict[str, str]]]:
    """Figures for every one of `settings`, and for each prompt what was written, by the name of the setting."""
    chosen = settings(model.config)
    found = map_examples(partial(write, model, chosen, seed), prompts, workers, progress)
    figures = [_quality(setting, [each[index] for each in found]) for index, setting in enumerate(chosen)]
    examples = [{setting.name: each.text for setting, each in zip(chosen, texts, strict=True)} for texts in found]
    return figures, examples


def write(model: Model, chosen: Sequence[Setting], seed: int, prompt: StepsPrompt) -> list[StepsText]:
    """The prompt continued in every setting; what is drawn depends on the seed and the prompt alone."""
    prompt_seed = int(hashed_order(seed, prompt.document.sha256, prompt.text)[:16], 16)
    return [_write(model, setting, prompt, prompt_seed) for setting in chosen]


def _write(model: Model, setting: Setting, prompt: StepsPrompt, seed: int) -> StepsText:
    began = time.perf_counter()
    if setting.decode is None:
        (ids, start), forwards = _true_text(model.tokenizer, prompt), 0
    else:
        decode = Decode.of(setting.decode, min_tokens=setting.length, seed=seed)
        request = Request.of("generate", prompt.text, setting.length, decode, heal=model.heal)
        plan = plan_of(model.denoiser, model.tokenizer, request)
        *_, last = drive(Sample(model.denoiser, plan, 0, None))
        forwards, (start, _) = last.step + 1, plan.canvas.gaps[0]
        ids = np.concatenate([last.canvas.tokens[:start], last.canvas.filled(plan.canvas.gaps[0])])
    seconds = time.perf_counter() - began
    ids = ids[: start + setting.length]
    text = model.tokenizer.decode(ids.tolist())[len(prompt.text) :]
    nats = None
    if model.config.can_draft:
        nats = float(score_tokens(model.denoiser.backend, ids.tolist()).by_token[start - 1 :].mean())
    return StepsText(text, nats, unigram_entropy(ids[start:]), parses_by_half(prompt.text, text), forwards, seconds)


def _true_text(tokenizer: Tokenizer, prompt: StepsPrompt) -> tuple[np.ndarray, int]:
    """The tokens of the document from the prompt on, and the place of the first that is not the prompt's."""
    before = [tokenizer.start_id, *tokenizer.encode(prompt.text)]
    ids = np.array([tokenizer.start_id, *tokenizer.encode(prompt.text + prompt.following)])
    return ids, next((i for i, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), len(before))


def unigram_entropy(tokens: np.ndarray) -> float:
    """Nats: the entropy of the distribution of tokens in a text (T,)."""
    shares = np.unique(tokens, return_counts=True)[1] / len(tokens)
    return float(-(shares * np.log(shares)).sum())


def parses_by_half(prompt: str, text: str) -> bool:
    """Whether half of the text's lines or more, from its first on, are Python after the prompt."""
    lines = split_lines(text.removesuffix("\n"))
    half = -(-len(lines) // 2)
    return any(parse(prompt + "".join(lines[:num])) is not None for num in range(len(lines), half - 1, -1))


def _quality(setting: Setting, texts: Sequence[StepsText]) -> Quality:
    nats = [text.nats for text in texts if text.nats is not None]
    entropy, entropy_stderr = _mean([text.entropy for text in texts])
    mean_nats, nats_stderr = _mean(nats) if nats else (None, None)
    return Quality(
        layout=setting.layout,
        steps=setting.steps,
        temperature=setting.temperature,
        length=setting.length,
        num=len(texts),
        nats=mean_nats,
        nats_stderr=nats_stderr,
        entropy=entropy,
        entropy_stderr=entropy_stderr,
        **shares(texts, "parses"),
        **means(texts, "forwards", "seconds"),
    )


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error; 0 for one value."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return float(np.mean(values)), deviation / len(values) ** 0.5
