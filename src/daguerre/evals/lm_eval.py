"""The tasks of EleutherAI's lm-evaluation-harness on a model of ours: extra `eval`.

    python -m daguerre.evals.lm_eval run --model daguerre --model_args model=default --tasks lambada_openai

This is the command of the harness with one more model in its table. Model arguments are `HarnessOptions` and the fields
of `Decode`: `model_args model=FOLDER,mode=block,block_size=8,threshold=0.9`.

A likelihood is exact for a model with causal context and a shift (kind "ar"). Other models have a bound, with the same
number of draws for every answer: `HarnessOptions.kind`. What was used is logged, and is in the `config` of the results.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from daguerre.decoding.defaults import chosen
from daguerre.errors import DaguerreError, InputError, MissingExtra, UnsupportedError
from daguerre.extras import has_pytorch, pytorch
from daguerre.model import Model, load
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Forward, Layout, Logits
from daguerre.models.session import Asking, compute
from daguerre.sampling.logits import log_softmax
from daguerre.scoring.likelihood import SpanLayout, check_layout, default_layout, score_tokens

NAME = "daguerre"
MAX_GEN_TOKENS = 256
HARNESS_DEVICE = "cuda:0"
"""The device that the harness asks for by default, whatever the model."""
log = logging.getLogger("lm_eval.daguerre")  # a child of the harness's logger, so that it is shown like that one


@dataclass(frozen=True, kw_only=True)
class HarnessOptions:
    """What is scored, and how; see `daguerre.scoring.likelihood.score_tokens`.

    model, device, dtype  as in `daguerre.load`; device and dtype are for a model that is named
    kind, layout          None: "ar" where that is exact, else "elbo"; and the model's default layout
    samples               draws of masks of a bound
    seed                  of masks, which are the same for texts of the same length, and of generated text
    """

    model: Model | str = "default"
    device: str = "cpu"
    dtype: str = "float32"
    kind: str | None = None
    layout: SpanLayout | None = None
    samples: int = 32
    seed: int = 0


class HarnessAnswers:
    """The three kinds of requests of the harness. Texts that are too long lose their beginning, and that is logged.

    decoding: fields of `Decode`, for text that is generated; the defaults of a published model hold beside them.
    """

    def __init__(self, options: HarnessOptions, decoding: Mapping[str, Any] | None = None) -> None:
        model = options.model
        self.model = model if isinstance(model, Model) else load(model, options.device, options.dtype)
        self.options, self.decoding = options, {"seed": options.seed, **(decoding or {})}
        config = self.model.config
        decode = chosen(config, self.decoding, self.model.defaults, infilling=False)
        decode.resolved(config, infilling=False).check_model(config)
        self.kind = options.kind or ("ar" if config.can_draft else "elbo")
        check_layout(config, self.kind, options.layout)
        log.info("likelihoods are %s", self.likelihood)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> HarnessAnswers:
        """From the model arguments of the harness."""
        names = {field.name for field in fields(HarnessOptions)}
        given = {name: value for name, value in arguments.items() if name in names}
        if given.get("device") == HARNESS_DEVICE and not (has_pytorch() and pytorch().cuda.is_available()):
            given["device"] = "cpu"
            log.info("no CUDA device: running on the CPU")
        rest = {name: value for name, value in arguments.items() if name not in names}
        options = HarnessOptions(**given)
        return cls(options, rest)

    @cached_property
    def likelihood(self) -> str:
        """What the likelihoods are, in words."""
        layout = self.options.layout or default_layout(self.model.config)
        spans = layout if layout == "full" else f"spans of {layout}"
        return {
            "ar": "exact",
            "chain": f"exact left to right within the layout ({spans})",
            "elbo": f"lower bounds (layout: {spans}; {self.options.samples} draws of masks)",
        }[self.kind]

    @property
    def room(self) -> int:
        """Tokens that a text may have besides `<bos>`."""
        return self.model.config.max_positions - 1

    def continuation(self, context: str, text: str) -> tuple[float, bool]:
        """(log-likelihood in nats of `text` after `context`, whether the model's default decoding writes it).

        The two are encoded together and split where their tokens first differ from those of the context alone: a token
        that spans the border is scored whole.
        """
        before, whole = (self.model.tokenizer.encode(each) for each in (context, context + text))
        common = next((i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
        return self._scored(whole, common)

    def whole(self, text: str) -> float:
        """Log-likelihood in nats of a text, in windows; only the last may overlap the one before, as context."""
        ids = self.model.tokenizer.encode(text)
        return sum(self._value(part, given) for part, given in windows(ids, self.room))

    def generate(self, context: str, arguments: dict[str, Any]) -> str:
        """A continuation. Arguments of a task: `until`, `max_gen_toks`, `do_sample`, and fields of `Decode`."""
        given = dict(arguments)
        stop = given.pop("until", None) or ()
        num = given.pop("max_gen_toks", min(MAX_GEN_TOKENS, self.room // 2))
        sample = given.pop("do_sample", None)
        if sample is not None:
            given["temperature"] = given.get("temperature", 1.0) if sample else 0.0
        options = self.decoding | {"stop": stop} | {name: value for name, value in given.items() if value is not None}
        ids = self._last(self.model.tokenizer.encode(context), self.room - num)
        return self.model.generate(ids, num, **options).text

    def _scored(self, ids: list[int], given: int) -> tuple[float, bool]:
        num = len(ids) - given
        if num == 0:
            return 0.0, True
        if num > self.room:
            raise InputError(f"an answer of {num} tokens does not fit the model's {self.room}: leave the task out")
        kept = self._last(ids, self.room)
        if self.kind == "ar" and self.model.config.can_draft:
            start, given = self._start(len(kept) - num), len(kept) - num
            return compute(_exact(self.model.config, [*start, *kept], len(start) + given), self.model.denoiser.backend)
        before = [] if self.model.config.first else self._start(len(kept) - num)
        written = self.model.generate([*before, *kept[:-num]], num, heal=False, min_tokens=num)
        return self._value(kept, len(kept) - num), [token.id for token in written.tokens] == kept[-num:]

    def _value(self, ids: Sequence[int], given: int) -> float:
        options, start = self.options, self._start(given)
        score = score_tokens(
            self.model.denoiser.backend,
            [*start, *ids],
            given=len(start) + given,
            kind=self.kind,
            layout=options.layout,
            samples=options.samples,
            seed=options.seed,
        )
        return -score.value

    def _start(self, given: int) -> list[int]:
        """What comes before a text: <bos>; for a model without one <eos>, where nothing else is given."""
        return self.model.config.first or ([] if given else [self.model.config.eos_id])

    def _last(self, ids: list[int], num: int) -> list[int]:
        if num < 1:
            raise InputError(f"max_gen_toks leaves no room for a prompt: the model has {self.room} positions")
        if len(ids) > num:
            log.warning("a text of %d tokens loses its first %d", len(ids), len(ids) - num)
        return ids[-num:]


def _exact(config: ModelConfig, ids: list[int], given: int) -> Asking[tuple[float, bool]]:
    """Log-likelihood in nats of `ids` after the first `given`, one or more, and whether greedy decoding writes them, by
    one autoregressive forward. Greedy decoding never writes <null> in a completion.
    """
    num, tokens = len(ids) - 1, np.array(ids)
    layout = Layout(np.arange(num), np.arange(1, num + 1, dtype=np.int32), num)
    (answer,) = yield [Forward(tokens[:-1], layout, None, np.arange(given - 1, num, dtype=np.int32), Logits())]
    assert answer.logits is not None
    target = tokens[given:]
    value = log_softmax(answer.logits.astype(np.float64))[np.arange(len(target)), target].sum()
    if config.null_id is not None:
        answer.logits[:, config.null_id] = -np.inf
    return float(value), bool((answer.logits.argmax(axis=-1) == target).all())


def windows(ids: list[int], room: int) -> Iterator[tuple[list[int], int]]:
    """Parts of at most `room` tokens, and how many tokens of each were scored before; every token is scored once."""
    for start in range(0, len(ids), room):
        end = min(start + room, len(ids))
        first = max(0, end - room)
        yield ids[first:end], start - first


def adapter() -> type:
    """A new subclass of the harness's `LM`. MissingExtra without lm-eval."""
    try:
        from lm_eval.api.model import LM
    except ImportError:
        raise MissingExtra("lm-eval", "eval") from None

    class DaguerreLM(LM):  # type: ignore[misc]
        """Answers one request after the other; answers do not depend on the order of the requests."""

        def __init__(self, batch_size: Any = None, max_batch_size: Any = None, **arguments: Any) -> None:
            super().__init__()
            if str(batch_size or 1) != "1" or max_batch_size:
                raise UnsupportedError("requests are answered one at a time: leave out the batch sizes")
            self.answers = HarnessAnswers.of(arguments)

        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            return [self._kept("loglikelihood", r, self.answers.continuation(*r.args)) for r in requests]

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            return [self._kept("loglikelihood_rolling", r, self.answers.whole(*r.args)) for r in requests]

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            return [self._kept("generate_until", r, self.answers.generate(*r.args)) for r in requests]

        def get_model_info(self) -> dict[str, Any]:
            model = self.answers.model
            return {"model_num_parameters": model.num_parameters, "likelihood": self.answers.likelihood}

        def _kept(self, kind: str, request: Any, answer: Any) -> Any:
            self.cache_hook.add_partial(kind, request.args, answer)
            return answer

    return DaguerreLM


def register() -> None:
    """Enter the adapter into the harness's table of models, as "daguerre"."""
    made = adapter()
    from lm_eval.api.registry import register_model

    register_model(NAME)(made)


def main() -> None:
    """The command of the harness; an error of daguerre is one line on standard error and exit status 2."""
    try:
        register()
        from lm_eval.__main__ import cli_evaluate

        cli_evaluate()
    except DaguerreError as error:
        sys.stderr.write(f"daguerre: {' '.join(str(error).split())}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
