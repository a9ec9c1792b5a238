"""The options of a request as data, and what follows from them alone. `options.Decode` checks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any, Literal

from daguerre.decoding.pins import Pin
from daguerre.decoding.revision import RevisionReading
from daguerre.decoding.steering import Steering, forbid
from daguerre.models.chat_format.description import Thinks
from daguerre.models.denoiser import CacheMode
from daguerre.models.wrappers.guidance import Guidance, Scorer, chained
from daguerre.sampling.logits import SamplingParams
from daguerre.sampling.policies import POLICIES, Policy, policy_kind
from daguerre.sampling.policies.base import Schedule
from daguerre.sampling.repetition import Repetition
from daguerre.sampling.rules import EndRule

ModeName = Literal["ar", "block", "full", "speculative", "beam", "ancestral", "renoise", "expand", "fim"]

DrafterName = Literal["auto", "head", "lookup"]

RankedBy = Literal["model", "drawn"]

FillEnd = Literal["fit", "model"]

IMPLIED = ("threshold", "confidence", "joint_threshold", "factor", "entropy_bounded", "entropy_threshold")
"""The policies that options stand for which only some policies have."""

CONSTRAINTS = {
    "schema": "a JSON Schema, an object or a boolean, or a compiled TokenAutomaton",
    "regex": "a string",
    "choices": "a sequence of strings",
    "tools": 'a sequence of objects with "name" and "parameters", or with "function"',
}
"""The type of each of these options, in words."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of `daguerre.decoding.options.Decode`, where each is described."""

    mode: ModeName | None = None
    block_size: int | None = None
    sliding: bool = False
    drafter: DrafterName = "auto"
    start_tokens: int | None = None
    num_beams: int = 32
    no_repeat_context_lines: bool = False
    fill_end: FillEnd = "fit"
    policy: str | Policy | None = None
    threshold: float = 0.9
    edit_threshold: float = 0.5
    factor: float = 1.0
    gamma: float = 0.1
    entropy_threshold: float = 0.4
    position_penalty: float = 0.0
    steps: int | None = None
    schedule: Schedule = "even"
    rank_temperature: float = 0.0
    rank_by: RankedBy = "model"
    greedy_tail: bool = False
    remask: float = 0.0
    revise: int = 0
    revise_threshold: float = 0.9
    revise_reading: RevisionReading = "unmasked"
    temperature: float = 0.0
    t_max: float = 0.8
    t_min: float = 0.4
    max_entropy: float = 0.005
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    min_tokens: int = 0
    end_of_text: EndRule = "fill"
    stop: str | Sequence[str] = ()
    stop_loops: bool | None = None
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
    tool_choice: str = "auto"
    parallel_calls: bool = True
    chat_format: Thinks | None = None
    keywords: str | Sequence[str] = ()
    forbidden: str | Sequence[str] = ()
    ending: str | None = None
    pins: Sequence[Pin] = ()
    lenient: bool = False
    strict: bool = False
    explain: bool = False
    steer: Any = None
    forbid: str | Sequence[str] = ()
    forbid_exactly: bool = False

    @cached_property
    def steering(self) -> Steering:
        """The whole program: `steer`, and then `forbid`."""
        program = Steering() if self.steer is None else Steering.of(self.steer)
        return program + forbid(*self.forbid) if self.forbid else program

    @property
    def uses_concepts(self) -> list[str]:
        """Names of the given options that need concept heads."""
        return [name for name in ("explain", "steer", "forbid") if getattr(self, name)]

    @property
    def shaping(self) -> tuple[str, ...]:
        """Names of the given options that constrain the text as a whole, and so decide where it ends."""
        given = () if self.constraint is None else (self.constraint[0],)
        return given + tuple(name for name in ("keywords", "forbidden", "ending", "pins") if getattr(self, name))

    @property
    def constrained(self) -> bool:
        """True where a formal language constrains the text: all of `shaping` but pins at fixed positions."""
        return bool(set(self.shaping) - {"pins"}) or any(pin.floats for pin in self.pins)

    @property
    def constraint(self) -> tuple[str, Any] | None:
        """The option that constrains the text, and its value."""
        given = [(name, getattr(self, name)) for name in CONSTRAINTS if getattr(self, name) is not None]
        return given[0] if given else None

    @property
    def language(self) -> tuple[str | None, Any]:
        """The option that constrains the text, and all that its automaton is made of; None, None: there is none."""
        if self.tools is not None:
            more = {"choice": self.tool_choice, "parallel": self.parallel_calls, "text": self.schema}
            if self.chat_format is not None:
                more["chat_format"] = self.chat_format
            return "tools", {"tools": self.tools, **more}
        return self.constraint or (None, None)

    @property
    def given(self) -> list[str]:
        """Names of the options that differ from their defaults."""
        return [
            option.name
            for option in fields(self)
            if option.default is not MISSING and getattr(self, option.name) != option.default
        ]

    @cached_property
    def sampling(self) -> SamplingParams:
        """The parameters that a token is drawn by. A top_p of 0 keeps the likeliest token, as in OpenAI's API."""
        cuts = (self.top_p, self.top_k) if self.top_p else (1.0, 1)
        return SamplingParams(self.temperature, *cuts, self.logit_bias, self.min_p)

    @property
    def _scorer(self) -> Scorer | None:
        """What is added to logits: by repetition, and then by the caller's scorer."""
        if self.repetition_penalty == 1 and not self.no_repeat_ngram_size:
            return self.scorer
        own = Repetition(self.repetition_penalty, self.no_repeat_ngram_size)
        return own if self.scorer is None else chained(own, self.scorer)

    @property
    def ranks_as_drawn(self) -> bool:
        """Whether policies rank by distributions other than those at temperature 1 over all tokens."""
        cut = self.top_p < 1 or self.top_k is not None or self.min_p > 0
        return self.rank_by == "drawn" and (cut or self.temperature not in (0, 1))

    @cached_property
    def logit_guidance(self) -> Guidance | None:
        """Guidance and scorer; None where there is neither."""
        guidance = Guidance(self.guidance, self.guidance_schedule, self._scorer)
        return None if guidance == Guidance() else guidance

    @cached_property
    def commit_policy(self) -> Policy:
        """The policy of that name, with its options, or the one that is given."""
        if self.policy is not None and not isinstance(self.policy, str):
            return self.policy
        return self.policy_kind(**{name: getattr(self, name) for name in self.policy_options})

    @property
    def policy_kind(self) -> type[Policy]:
        """The class of the policy. Without a name, the first of IMPLIED that has all options of policies that are
        given.
        """
        if self.policy is not None:
            return policy_kind(self.policy)
        return POLICIES[next((name for name in IMPLIED if self.of_policies <= {*POLICIES[name].options}), IMPLIED[0])]

    @property
    def of_policies(self) -> frozenset[str]:
        """Names of the given options that some policies have and others do not."""
        return frozenset(self.given) & {name for kind in POLICIES.values() for name in kind.options}

    @property
    def policy_name(self) -> str:
        """The policy's name in the table, or that of its class."""
        kind = self.policy_kind
        return next((name for name, each in POLICIES.items() if each is kind), kind.__name__)

    @property
    def policy_options(self) -> tuple[str, ...]:
        """The options that the policy is made with; none where it is made already."""
        return self.policy_kind.options if self.policy is None or isinstance(self.policy, str) else ()
