"""Decode: the options of one request, frozen and checked."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

from daguerre.errors import InputError, UnsupportedError, unknown
from daguerre.models.config import ModelConfig
from daguerre.models.denoiser import CACHE_MODES, CacheMode, check_cache
from daguerre.models.tokenizer import check_unicode
from daguerre.sampling.guidance import SCHEDULES, Guidance, Scorer
from daguerre.sampling.logits import Law
from daguerre.sampling.pins import Pin
from daguerre.sampling.policies import POLICIES, Policy
from daguerre.sampling.revision import ODDS, Reading

Mode = Literal["ar", "block", "full", "speculative", "beam", "ancestral"]
MODES: tuple[Mode, ...] = ("ar", "block", "full", "speculative", "beam", "ancestral")
DEFAULT_BLOCK = 16
DEFAULT_DRAFT = 3
"""Tokens a forward, at most, of mode "speculative": the fastest size for the default model (docs/log.md)."""

CONSTRAINTS = {
    "schema": "a JSON Schema, an object or a boolean",
    "regex": "a string",
    "choices": "a sequence of strings",
    "tools": 'a sequence of objects with "name" and "parameters"',
}
"""What each of these options must be."""


@dataclass(frozen=True, kw_only=True)
class Decode:
    """How to decode. InputError for a value out of range, or two that exclude each other.

    mode         ar: one token after the other; block: spans of `block_size`; full: the whole budget is one span;
                 speculative: the tokens of "ar", up to `block_size` in a forward that verifies a draft of its own;
                 beam: infilling only, what makes the whole text most likely of what a search finds (`daguerre.beam`);
                 ancestral: all at once from noise to text in `steps` forwards, for a model of uniform or hybrid noise
    block_size   modes "block" (None: the model's own, else 16; infilling: None takes all gaps as one span) and
                 "speculative" (None: 3)
    num_beams    mode "beam" only: how many ways are followed at a time, and as many fillings compared
    novel        mode "beam" only: no filling is taken whose every line stands around the gap already
    policy       a name of `daguerre.sampling.policies.POLICIES`; modes "block" and "full" only, as are its options
    threshold    policies "threshold" and "chain" only: commit what is at least this probable
    factor       policy "factor" only: n positions together must each be wrong with a chance below factor / (n + 1)
    gamma        policy "entropy_bounded" only: nats of entropy that positions committed together may have
    steps        policies "confidence", "entropy", "margin", "random" and "first_hitting" only: most forwards for each
                 span; mode "ancestral": of the text. None: one for each position
    revise       how often a finished span is read again: tokens are replaced where another is the most likely one
                 and at least `revise_threshold` probable. Modes "block" and "full"
    revise_threshold   what `revise` needs to replace a token
    revise_reading     shown: all tokens in one forward, each in sight, for a model trained to correct; masked: a
                 forward for each token with that one masked, for any model (`daguerre.sampling.revision`)
    temperature, top_p, top_k   0 takes the most likely token; applied in that order, top-k before top-p
    min_tokens   <eos> (completion) and <null> (infilling) are not drawn among the first this many tokens
    stop         a string or several; text ends before the first that appears
    logit_bias   token id -> number added to its logit; minus infinity bans it
    n            samples; sample i is keyed by (seed, i)
    seed         of all randomness, 0 to 2^64 - 1
    guidance     scale of classifier-free guidance, toward the text before the first gap and away from `negative`: 1 is
                 none, 0 what would be written without that text; two forwards for one (`daguerre.sampling.guidance`)
    guidance_schedule   constant, or linear or cosine: the scale grows from 1 with the share of the gaps committed
    negative     the text to guide away from; None: that text is hidden
    scorer       callable from (canvas, asked positions, logits) to what is added to the logits; bias comes after it
    cache        auto: exact where the context allows, else none; none: compute everything in every forward;
                 approximate_int8: keys and values as 8-bit numbers, in half of the memory. Other logits, and so other
                 tokens, than exact ones; "speculative" has those of "ar" with the same cache. Searched lengths are
                 exact still
    schema, regex, choices, tools   at most one: every gap's text is, as a whole, JSON of this schema, a match of this
                 pattern, one of these texts, or text or calls of these functions (`daguerre.sampling.constraints`).
                 Policies then rank by probabilities given the constraint, and the last word is not healed
    keywords, forbidden, ending   strings that occur in every gap's text; that do not occur in it, nor across its edges
                 in what stands before and behind it; what it ends with. Beside one of the above or alone
    pins         tokens or texts at a place of a gap: see `daguerre.Pin`. The last word is not healed
    lenient      with a schema or tools: ignore what of a schema is not supported; the result lists it
    """

    mode: Mode = "block"
    block_size: int | None = None
    num_beams: int = 32
    novel: bool = False
    policy: str = "threshold"
    threshold: float = 0.9
    factor: float = 1.0
    gamma: float = 0.1
    steps: int | None = None
    revise: int = 0
    revise_threshold: float = 0.9
    revise_reading: Reading = "shown"
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    logit_bias: Mapping[int, float] | None = None
    n: int = 1
    seed: int = 0
    guidance: float = 1.0
    guidance_schedule: str = "constant"
    negative: str | None = None
    scorer: Scorer | None = None
    cache: CacheMode = "auto"
    schema: Any = None
    regex: str | None = None
    choices: Sequence[str] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    keywords: str | Sequence[str] = ()
    forbidden: str | Sequence[str] = ()
    ending: str | None = None
    pins: Sequence[Pin] = ()
    lenient: bool = False

    def __new__(cls, *values: Any, **options: Any) -> Decode:
        """InputError for an unknown option, with the nearest name."""
        if values:
            raise InputError("Decode takes its options by name, for example Decode(temperature=0.5)")
        names = {f.name for f in fields(cls)}
        for name in options:
            if name not in names:
                raise unknown("option", name, names)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for kind, value, known in (
            ("mode", self.mode, MODES),
            ("policy", self.policy, POLICIES),
            ("cache", self.cache, CACHE_MODES),
            ("revise_reading", self.revise_reading, ODDS),
            ("guidance_schedule", self.guidance_schedule, SCHEDULES),
        ):
            if value not in tuple(known):
                raise unknown(kind, value, known)
        self._check_numbers()
        self._freeze_strings()
        self._check_constraint()
        self._check_conflicts()
        self._freeze()
        _ = self.law, self.rule_of_commit, self.leaning  # each checks what it is given

    def _freeze(self) -> None:
        """Copies of what the caller might change later, of one type each."""
        if self.logit_bias is not None:
            numbers = (int, float)
            if not isinstance(self.logit_bias, Mapping) or not all(
                isinstance(token, int) and isinstance(bias, numbers) for token, bias in self.logit_bias.items()
            ):
                raise InputError("logit_bias must map token ids, whole numbers, to numbers")
            object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        if self.constraint is not None:
            option, value = self.constraint
            try:
                object.__setattr__(self, option, copy.deepcopy(value))
            except (TypeError, RecursionError) as error:
                raise InputError(f"{option} is not JSON, or nested too deep: {error}; correct it") from None

    def _freeze_strings(self) -> None:
        """Tuples of what may be one or several, each of its type."""
        for name in ("stop", "keywords", "forbidden"):
            value = getattr(self, name)
            several = (value,) if isinstance(value, str) else value
            if not (isinstance(several, Sequence) and all(isinstance(text, str) and text for text in several)):
                raise InputError(f"{name} must be a string or several, none of them empty")
            for text in several:
                check_unicode(text, name)
            object.__setattr__(self, name, tuple(several))
        if self.ending is not None and not (isinstance(self.ending, str) and self.ending):
            raise InputError(f"ending must be a string that is not empty, not {self.ending!r}")
        check_unicode(self.ending or "", "ending")
        if not (isinstance(self.pins, Sequence) and all(isinstance(pin, Pin) for pin in self.pins)):
            raise InputError('pins must be several of daguerre.Pin, such as [Pin("x", at=3)]')
        object.__setattr__(self, "pins", tuple(self.pins))

    @property
    def shaping(self) -> tuple[str, ...]:
        """Names of the options that say what the text is as a whole, and so where it ends."""
        given = () if self.constraint is None else (self.constraint[0],)
        return given + tuple(name for name in ("keywords", "forbidden", "ending", "pins") if getattr(self, name))

    @property
    def constrained(self) -> bool:
        """True where a language says what a text is: all of `shaping` but pins at fixed positions."""
        return bool(set(self.shaping) - {"pins"}) or any(pin.floats for pin in self.pins)

    @property
    def constraint(self) -> tuple[str, Any] | None:
        """The option that constrains the text, and its value."""
        given = [(name, getattr(self, name)) for name in CONSTRAINTS if getattr(self, name) is not None]
        return given[0] if given else None

    def _check_constraint(self) -> None:
        """At most one, of its type, and nothing beside it that it cannot be kept with."""
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"{given[0]} and {given[1]} are two constraints: leave out one of the two")
        if given:
            self._check_type(given[0])
        if self.revise and self.constrained:
            raise UnsupportedError(f"revise cannot keep the option {self.shaping[0]} yet: leave out one of the two")
        if self.policy == "chain" and self.constrained:
            raise UnsupportedError(
                f'policy "chain" cannot keep the option {self.shaping[0]}: use policy "threshold", or leave it out'
            )
        if self.mode in ("ancestral", "beam") and self.shaping:
            raise UnsupportedError(
                f'mode "{self.mode}" cannot keep the option {self.shaping[0]}: leave out one of the two'
            )
        if self.mode == "speculative" and self.shaping:
            raise UnsupportedError(
                f'mode "speculative" cannot keep the option {self.shaping[0]}: use mode "ar", which has the same law'
            )

    def _check_type(self, name: str) -> None:
        value = getattr(self, name)
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        right = {
            "schema": isinstance(value, Mapping | bool),
            "regex": isinstance(value, str),
            "choices": several and all(isinstance(text, str) for text in value),
            "tools": several and all(isinstance(tool, Mapping) for tool in value),
        }
        if not right[name]:
            raise InputError(f"{name} must be {CONSTRAINTS[name]}, not {value!r:.40}")

    def _check_numbers(self) -> None:
        lows = dict.fromkeys(("block_size", "num_beams", "steps", "top_k", "n"), 1)
        lows |= dict.fromkeys(("min_tokens", "seed", "revise"), 0)
        for name, low in lows.items():
            value = getattr(self, name)
            if value is None and name in ("block_size", "steps", "top_k"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise InputError(f"{name} must be a whole number from {low} up, not {value!r}")
        if self.seed >= 2**64:
            raise InputError(f"seed must be below 2^64, not {self.seed}")
        for name in ("threshold", "factor", "gamma", "revise_threshold", "temperature", "top_p", "guidance"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise InputError(f"{name} must be a number, not {value!r}")
        if not 0 <= self.revise_threshold <= 1:
            raise InputError(f"revise_threshold must be a probability, from 0 to 1, not {self.revise_threshold}")
        for name in ("novel", "lenient"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} must be True or False, not {getattr(self, name)!r:.40}")
        if not isinstance(self.negative, str | None):
            raise InputError(f"negative must be a text, not {self.negative!r:.40}")

    def _check_conflicts(self) -> None:
        """Whatever differs from its default must have a part in the mode and the policy."""
        of_policies = {name for kind in POLICIES.values() for name in kind.options}
        idle = dict.fromkeys(of_policies - set(POLICIES[self.policy].options), f"policy {self.policy!r}")
        if self.mode not in ("block", "speculative"):
            idle["block_size"] = f"mode {self.mode!r}"
        if self.autoregressive or self.mode == "ancestral":  # the law leaves no policy a choice
            idle |= dict.fromkeys(("policy", "revise", *of_policies), f"mode {self.mode!r}")
        if self.mode != "beam":
            idle |= dict.fromkeys(("num_beams", "novel"), f"mode {self.mode!r}")
        else:  # the likeliest text, and nothing drawn
            searching = ("guidance", "scorer", "temperature", "top_p", "top_k", "n")
            idle |= dict.fromkeys(("policy", "revise", *of_policies, *searching), "mode 'beam'")
        if self.mode == "ancestral":
            idle |= dict.fromkeys(("cache", "guidance", "scorer"), f"mode {self.mode!r}")
            del idle["steps"]
        if not self.revise:
            idle |= dict.fromkeys(("revise_threshold", "revise_reading"), "a request without revise")
        if self.guidance == 1:
            idle |= dict.fromkeys(("guidance_schedule", "negative"), "a request without guidance")
        if self.schema is None and self.tools is None:
            idle["lenient"] = "a request without a schema"
        if self.shaping and self.stop:
            idle["stop"] = f"a request with the option {self.shaping[0]}, whose text ends where that says"
        for option in fields(self):
            if option.name in idle and getattr(self, option.name) != option.default:
                raise InputError(f"{option.name} has no part in {idle[option.name]}: leave out one of the two")

    @classmethod
    def of(cls, decode: Decode | None = None, **options: Any) -> Decode:
        """`decode`, or the defaults, with `options` in place of its fields."""
        if decode is not None and not isinstance(decode, Decode):
            raise InputError(f"decode must be a Decode, not {type(decode).__name__}: use Decode(...) or plain options")
        return cls(**options) if decode is None else replace(decode, **options)

    @property
    def autoregressive(self) -> bool:
        """True for the modes whose tokens are those of the autoregressive law."""
        return self.mode in ("ar", "speculative")

    @property
    def draft_size(self) -> int:
        """The most tokens that a forward commits without a draft of the caller's: more than 1 in mode "speculative"."""
        return (self.block_size or DEFAULT_DRAFT) if self.mode == "speculative" else 1

    @cached_property
    def law(self) -> Law:
        """How a token is drawn."""
        return Law(self.temperature, self.top_p, self.top_k, self.logit_bias)

    @cached_property
    def leaning(self) -> Guidance | None:
        """What is done to the model's logits; None: nothing."""
        guidance = Guidance(self.guidance, self.guidance_schedule, self.scorer)
        return None if guidance == Guidance() else guidance

    @cached_property
    def rule_of_commit(self) -> Policy:
        """The policy that the name stands for, with the options it reads."""
        kind = POLICIES[self.policy]
        return kind(**{name: getattr(self, name) for name in kind.options})

    def check_model(self, config: ModelConfig) -> None:
        """UnsupportedError, naming it, for what this model's context or training cannot honor."""
        if config.process != "absorbing" and self.mode != "ancestral":
            raise UnsupportedError(
                f'a model of the {config.process} process commits no token before the last step: use mode "ancestral"'
            )
        if self.mode == "ancestral" and (config.context != "full" or config.shift or not config.time_input):
            raise UnsupportedError(
                'mode "ancestral" needs full context, a time input and no shift, which this model has not: mode '
                '"block" or "full" with policy "first_hitting" has the same law'
            )
        if (self.autoregressive or self.mode == "beam") and not (config.context == "causal" and config.shift):
            has = f"{config.context} context {'with' if config.shift else 'without'} one"
            raise UnsupportedError(
                f'mode "{self.mode}" needs causal context and a shift, and this model has {has}: '
                'use mode "block" or "full"'
            )
        check_cache(config, self.cache)
        if config.context == "block":
            if self.mode == "full":
                raise UnsupportedError('mode "full" is beyond a model with block context: use mode "block"')
            if self.block_size not in (None, config.block_size):
                raise UnsupportedError(
                    f"block_size={self.block_size} is not the one this model was trained with: use {config.block_size}"
                )
        for token, bias in (self.logit_bias or {}).items():
            if not 0 <= token < config.vocab_size:
                raise InputError(f"logit_bias: token {token} is not in the vocabulary of {config.vocab_size}")
            if token in config.unpredictable_ids and bias > 0:
                raise InputError(f"logit_bias: token {token} is reserved and never drawn; leave it out")

    def span_size(self, config: ModelConfig, max_tokens: int, infilling: bool) -> int:
        """Positions of a span, at most; InputError when there are more `steps` than that."""
        if self.mode == "ar":
            size = 1
        elif self.mode in ("full", "speculative", "beam", "ancestral") or (infilling and self.block_size is None):
            size = max_tokens
        else:
            size = self.block_size or config.block_size or DEFAULT_BLOCK
        if self.steps is not None and self.steps > size:
            raise InputError(
                f"steps={self.steps} is more than a span's {size} positions: each step commits one or more"
            )
        return size
