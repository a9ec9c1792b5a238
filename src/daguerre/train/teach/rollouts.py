"""Answers that the student writes block by block, many at once, and one state of each block to learn from.

OPDLM (arXiv 2606.06712): of the steps that filled a block one is drawn, and what was still masked before it is learned
there; the blocks before it are clean. The end of an answer is not learned, nor what was filled behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample, Together
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.noising import Ints
from daguerre.train.precision import Mixed
from daguerre.train.reinforce.estimates import DrawnAnswer
from daguerre.train.reinforce.rollouts import AT_ONCE, answer_of
from daguerre.train.repetition import repeated
from daguerre.train.sft.texts import AnswerSpan, Text
from daguerre.train.teach.options import Rollouts


@dataclass(frozen=True)
class Rolled:
    """A text that the student wrote behind a prompt.

    tokens    int64 (T,): the prompt and the answer, and behind the answer, up to the end of its last block, its end of
              text and placeholders
    first     where the answer begins; last: where it ends, without an end of text
    steps     int64 (T,): the forward that committed each token; of what is behind the end of text, none: -1
    """

    tokens: Ints
    first: int
    last: int
    steps: Ints

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {
            name: torch.from_numpy(held) if isinstance(held, np.ndarray) else held for name, held in vars(self).items()
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Rolled:
        """The inverse of `state`."""
        return cls(state["tokens"].numpy(), state["first"], state["last"], state["steps"].numpy())

    @property
    def forwards(self) -> int:
        """How many forwards the answer took."""
        return len(np.unique(self.steps[self.first :][self.steps[self.first :] >= 0]))


@dataclass(frozen=True)
class Student:
    """Writes answers with the weights that the model has at the time: a function of these, the prompts and the seed."""

    model: Backbone
    tokenizer: Tokenizer
    options: Rollouts
    mixed: Mixed

    @cached_property
    def _denoiser(self) -> BackboneDenoiser:
        return BackboneDenoiser(self.model, backend="torch")

    @torch.no_grad()
    def write(self, prompts: Sequence[Ints], most: int, block_size: int, seed: int, **other: Any) -> list[Rolled]:
        """An answer of at most `most` tokens to each prompt, token ids; `other` options of decoding."""
        was_training = self.model.training
        self.model.eval()
        out = list[Rolled]()
        for start in range(0, len(prompts), AT_ONCE):
            part = prompts[start : start + AT_ONCE]
            plans = [self._plan(prompt, most, block_size, [seed, start + i], other) for i, prompt in enumerate(part)]
            samples = [Sample(self._denoiser, plan, 0, None) for plan in plans]
            with self.mixed():
                Together(self._denoiser.backend, samples).run()
            out += [
                rolled(answer_of(sample, self.model.config.ends), self.model.config, block_size) for sample in samples
            ]
        self.model.train(was_training)
        return out

    def _plan(self, prompt: Ints, most: int, block_size: int, seed: Sequence[int], other: Mapping[str, Any]) -> Any:
        config, options = self.model.config, self.options
        number = int(np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)[0])
        values: dict[str, Any] = {
            "policy": "threshold",
            "threshold": options.threshold,
            "temperature": options.temperature,
            **other,
        }
        decode = Decode(mode="block", block_size=block_size, seed=number, stop_loops=False, **values)
        ids = (
            prompt[len(config.first) :].tolist()
            if prompt[: len(config.first)].tolist() == config.first
            else prompt.tolist()
        )
        return plan_of(self._denoiser, self.tokenizer, Request.of("generate", ids, most, decode, heal=False))


def rolled(answer: DrawnAnswer, config: ModelConfig, block_size: int) -> Rolled:
    """A text of what was drawn, up to the end of the answer's last block."""
    asked = answer.asked.numpy()
    first, stop = int(asked[0]), int(asked[-1]) + 1
    ended = int(answer.tokens[stop - 1]) in config.ends
    grid = 0 if config.context == "block" else first
    end = min(len(answer.tokens), stop + (grid - stop) % block_size)
    tokens, steps = answer.tokens[:end].numpy().copy(), np.full(end, -1)
    steps[asked] = answer.steps.numpy()
    tokens[stop:] = config.placeholder
    return Rolled(tokens, first, stop - ended, steps)


@dataclass(frozen=True)
class BlockStates:
    """One state of each block of a text: the text as it was there, its spans, noise levels, and what is masked."""

    text: Text
    spans: list[AnswerSpan]
    levels: list[float]
    masks: list[np.ndarray]


def states_of(one: Rolled, config: ModelConfig, block_size: int, rng: np.random.Generator) -> BlockStates:
    """A state of each block, of those before one of its steps: what is masked there is learned, but for the end."""
    tokens, num = one.tokens.copy(), len(one.tokens)
    learned = (np.arange(num) >= one.first) & (np.arange(num) < one.last)
    made = BlockStates(Text(tokens, learned), [], [], [])
    grid = one.first // block_size * block_size if config.context == "block" else one.first
    for start in range(grid, num, block_size):
        block = slice(start, min(start + block_size, num))
        free, steps = learned[block], one.steps[block]
        if not free.any():
            continue
        taken = np.unique(steps[free])
        drawn = int(taken[int(rng.integers(len(taken)))])
        hidden = steps >= drawn
        tokens[block][hidden & ~free] = config.placeholder  # an end of text that is not there yet
        made.spans.append(AnswerSpan(start, block.stop, free))
        made.masks.append(free & hidden)
        made.levels.append(float((free & hidden).sum() / free.sum()))
    return made


def figures_of(texts: Sequence[Rolled]) -> dict[str, float]:
    """Means over texts: tokens of an answer, tokens a forward, ends of text among them (of all together), and how
    much answers repeat.
    """
    answers = [one.tokens[one.first : one.last].tolist() for one in texts]
    forwards, committed = sum(one.forwards for one in texts), sum(int((one.steps >= 0).sum()) for one in texts)
    return {
        "answer_length": float(np.mean([len(answer) for answer in answers])),
        "tokens_per_forward": committed / max(1, forwards),
        "repetition": float(np.mean([repeated(answer) for answer in answers])),
    }
