"""A request: its options, checked against each other and the table of modes; and the checks that need no plan."""

from __future__ import annotations

import copy
from collections.abc import ItemsView, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from daguerre.decoding.context import SHOWING, Context, Files
from daguerre.decoding.drafters import Draft
from daguerre.decoding.modes import MODES, choose_mode, mode_options
from daguerre.decoding.options import CONSTRAINTS, DEFAULTS, IMPLIED, DecodeOptions, is_compiled
from daguerre.decoding.plan import Mode
from daguerre.decoding.sample import TIMED
from daguerre.errors import InputError, UnsupportedError, no_concept_heads, shown, unknown
from daguerre.kinds import (
    MAYBE,
    SHARE,
    SWITCH,
    TEXT,
    TOKENS,
    WRONG,
    ForEach,
    Kind,
    OneOf,
    Pairs,
    Tokens,
    Whole,
    Words,
    check_fields,
    check_unicode,
    options_of,
)
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import check_cache
from daguerre.models.stale import RULES
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.policies import POLICIES


@dataclass(frozen=True, kw_only=True)
class TextsByName(Kind):
    """Names and texts of files; what is read is a tuple of both."""

    words: ClassVar[str] = "a dict of texts by file name, or pairs of a name and a text"

    def read(self, name: str, value: Any) -> Any:
        pairs = value.items() if isinstance(value, Mapping) else value
        if not isinstance(pairs, ItemsView | list | tuple):
            return WRONG
        each = [tuple(pair) if isinstance(pair, tuple | list) else () for pair in pairs]
        if not all(len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in each):
            return WRONG
        for pair in each:
            check_unicode("".join(pair), name)
        return tuple(each)


CALLS: dict[str, Kind] = {
    "prompt": TOKENS,
    "prefix": TOKENS,
    "suffix": Tokens(none=True),
    "template": TEXT,
    "text": TEXT,
    "max_tokens": Whole(low=1, none=True),
    "heal": MAYBE,
    **TIMED,
    "draft": Words(none=True),
    "context": OneOf(known=SHOWING),
    "files": TextsByName(none=True),
    "special_tokens": MAYBE,
    "search_length": MAYBE,
    "mark": Words(empty=False),
    "spans": Pairs(none=True),
    "lines": Pairs(none=True),
    "pattern": Words(none=True),
    "strength": SHARE,
    "changeable": SWITCH,
}
"""The kinds of the arguments of requests with one gap."""
REQUIRED = CALLS | {"max_tokens": Whole(low=1)}
"""Where max_tokens has a default that is no None."""
EDITS = CALLS | {
    "max_tokens": ForEach(one=Whole(low=1), none=True),
    "min_tokens": ForEach(one=Whole(), none=True),
}
"""The kinds of the arguments of edits, which have several gaps."""


ELSEWHERE = {
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "gen_length": "max_tokens",
    "min_new_tokens": "min_tokens",
    "min_length": "min_tokens",
    "num_return_sequences": "n",
    "num_samples": "n",
    "best_of": "n",
    "stop_strings": "stop",
    "stop_sequences": "stop",
    "do_sample": "temperature",
    "manual_seed": "seed",
    "guidance_scale": "guidance",
    "cfg_scale": "guidance",
    "negative_prompt": "negative",
    "block_length": "block_size",
    "num_inference_steps": "steps",
    "diffusion_steps": "steps",
    "alg": "policy",
    "remasking": "policy",
    "json_schema": "schema",
    "guided_json": "schema",
    "guided_regex": "regex",
    "guided_choice": "choices",
    "bad_words": "forbidden",
    "bad_words_ids": "logit_bias",
}
"""Names that transformers, vLLM, diffusers and the scripts of published models have for options of ours."""


@dataclass(frozen=True, kw_only=True)
class Decode(DecodeOptions):
    """How to decode: `options.DecodeOptions` has the options. InputError for a value out of range, and for options that
    exclude each other.
    """

    def __new__(cls, *values: Any, **options: Any) -> Decode:
        """InputError for an unknown option, with the nearest name."""
        if values:
            raise InputError("Decode takes its options by name, for example Decode(temperature=0.5)")
        for name in options:
            if name in CALLS:
                raise InputError(f"{name} is an argument of other calls, and no option of this one: leave it out")
            if name not in DEFAULTS:
                raise unknown("option", name, {*DEFAULTS, *CALLS}, ELSEWHERE)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.mode is not None and not (isinstance(self.mode, str) and self.mode in MODES):
            raise unknown("mode", self.mode, MODES)
        if self.top_k is not None and self.top_k < 1:
            object.__setattr__(self, "top_k", None)
        object.__setattr__(self, "pins", tuple(self.pins))
        if self.steer is not None:  # a program, None where it has no operation
            from daguerre.decoding.steering import Steering

            object.__setattr__(self, "steer", Steering.of(self.steer) or None)
        for name in CONSTRAINTS:
            if getattr(self, name) is not None:
                self._check_type(name)
        if self.given not in ([], ["mode"]):
            self._check_together()

    def _check_together(self) -> None:
        """What several options, or an option and the mode, exclude."""
        if self.t_min > self.t_max:
            raise InputError(f"t_max={self.t_max} and t_min={self.t_min}: t_max must be the higher")
        if self.steers:
            _ = self.steering  # checks the whole program
        self._check_constraint()
        self._check_conflicts()
        self._freeze()

    def _freeze(self) -> None:
        """Copies of values that the caller might change later."""
        for option in CONSTRAINTS:
            try:
                value = getattr(self, option)
                if not is_compiled(value):  # which never changes
                    object.__setattr__(self, option, copy.deepcopy(value))
            except (TypeError, RecursionError) as error:
                raise InputError(f"{option} is not JSON, or nested too deep: {error}; correct it") from None

    def _check_constraint(self) -> None:
        """At most one, and no option that cannot honor it."""
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1 and given != ["schema", "tools"]:
            raise InputError(f"{given[0]} and {given[1]} are two constraints: leave out one of the two")
        if self.tools is not None and is_compiled(self.schema):
            raise InputError("schema is compiled already, which the text beside tools cannot be: give the JSON Schema")
        if self.revise and self.constrained:
            raise UnsupportedError(f"revise cannot honor the option {self.shaping[0]} yet: leave out one of the two")
        if (self.policy_kind.sequential or self.policy_kind.edits) and self.constrained:
            raise UnsupportedError(
                f'policy "{self.policy_name}" cannot honor the option {self.shaping[0]}: leave out one of the two'
            )
        if not self.shaping or self.mode is None:
            return
        held = MODES[self.mode].holds_pins and not self.constrained
        if not (MODES[self.mode].shapes or held):
            instead = 'use mode "ar", which has the same tokens' if self.autoregressive else "leave out one of the two"
            raise UnsupportedError(f'mode "{self.mode}" cannot honor the option {self.shaping[0]}: {instead}')

    def _check_type(self, name: str) -> None:
        value = getattr(self, name)
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        right = {
            "schema": isinstance(value, Mapping | bool) or is_compiled(value),
            "regex": isinstance(value, str),
            "choices": several and all(isinstance(text, str) for text in value),
            "tools": several and all(isinstance(tool, Mapping) for tool in value),
        }
        if not right[name]:
            raise InputError(f"{name} must be {CONSTRAINTS[name]}, not {shown(value)}")
        for text in value if name == "choices" else ():
            check_unicode(text, name)

    def _check_conflicts(self) -> None:
        """Every option that differs from its default must be used by the mode and the policy."""
        one, of_policies = "leave out one of the two", {name for kind in POLICIES.values() for name in kind.options}
        by = self._by_policy
        unused = dict.fromkeys(of_policies - set(self.policy_options), f"{by}: {one}")
        if self.mode is not None:
            used = MODES[self.mode].options
            unused |= dict.fromkeys(mode_options() - used, f"in mode {self.mode!r}: {one}")
            if "policy" not in used:  # steps may be those of the mode itself
                unused = {name: where for name, where in unused.items() if name not in used}
            usable = MODES[self.mode].policies
            if usable is not None and self.policy_name not in usable:
                raise InputError(f"policy {self.policy_name!r} is not used in mode {self.mode!r}: {one}")
        if self.revise:
            unused["sliding"] = f"with revise, which reads finished spans again: {one}"
        if "steps" in self.policy_kind.options or self.policy_kind.edits:
            unused["sliding"] = f"{by}, which fills a span as a whole: {one}"
        if not self.policy_kind.ranks:
            unused["rank_by"] = f"{by}: {one}"
        if self.constrained:
            unused["rank_by"] = f"with the option {self.shaping[0]}, which has probabilities of its own: {one}"
        if not self.revise:
            unused |= dict.fromkeys(
                ("revise_threshold", "revise_reading"), "without revise: set revise, or leave it out"
            )
        if self.guidance == 1:
            unused |= dict.fromkeys(
                ("guidance_schedule", "negative"), "without guidance: set guidance, or leave it out"
            )
        if not self.forbid:
            unused["forbid_exactly"] = "without forbid: name concepts there, or leave it out"
        if self.schema is None and self.tools is None:
            unused |= dict.fromkeys(("lenient", "strict"), "without a schema: give one, or leave it out")
        elif is_compiled(self.schema):
            unused |= dict.fromkeys(("lenient", "strict"), f"with a schema that is compiled already: {one}")
        elif self.lenient:
            unused["strict"] = f"with lenient, which leaves out what strict refuses: {one}"
        if self.tools is None:
            unused |= dict.fromkeys(("tool_choice", "parallel_calls"), "without tools: give some, or leave it out")
        elif self.tool_choice not in ("auto", "none"):
            unused["schema"] = f"with tool_choice={self.tool_choice!r}, which leaves out the text: {one}"
        if self.shaping and self.stop_loops:
            unused["stop_loops"] = f"with the option {self.shaping[0]}, which decides where the text ends: {one}"
        if self.shaping and self.stop:
            unused["stop"] = f"with the option {self.shaping[0]}, which decides where the text ends: {one}"
        for name in self.given:
            if name in unused and not (name == "policy" and self.policy == IMPLIED[0]):
                raise InputError(f"{name} is not used {unused[name]}")

    @property
    def _by_policy(self) -> str:
        """The policy, in words, by what was given of it."""
        if self.policy is not None:
            return f"by policy {self.policy_name!r}"
        apart = self.of_policies - set(self.policy_options)
        first = next((name for name in self.given if name in apart), None)
        other = next((name for name in self.given if name in self.of_policies and name != first), "threshold")
        return f"with {other}" if first is None else f"beside {other}, which belongs to another policy"

    def resolved(self, config: ModelConfig, infilling: bool, denoise: bool = False, searches: bool = False) -> Decode:
        """The options with a mode: one is chosen where they name none; see `daguerre.decoding.modes.choose_mode`."""
        if self.mode is not None:
            return self
        plain = self
        if self.uses_concepts:  # which do not choose a mode, unless what is steered depends on progress or place
            steer = None if self.steering.steady and self.steering.everywhere else self.steer
            plain = replace(self, explain=False, steer=steer, forbid=(), forbid_exactly=False)
        return replace(self, mode=choose_mode(plain, config, infilling, denoise, searches))

    @classmethod
    def of(cls, decode: Decode | None = None, **options: Any) -> Decode:
        """`decode`, or the defaults, with `options` in place of its fields."""
        if decode is not None and not isinstance(decode, Decode):
            raise InputError(f"decode must be a Decode, not {type(decode).__name__}: use Decode(...) or plain options")
        return cls(**options) if decode is None else replace(decode, **options)

    @property
    def mode_entry(self) -> Mode:
        """The entry of the mode in the table; there must be a name."""
        assert self.mode is not None
        return MODES[self.mode]

    @property
    def autoregressive(self) -> bool:
        """True for modes whose tokens are those of the autoregressive distribution."""
        return self.mode is not None and self.mode_entry.autoregressive

    def check_model(self, config: ModelConfig) -> None:
        """UnsupportedError, naming the option, for what this model's context or training cannot honor."""
        self.mode_entry.check_model(config)
        if self.remask and config.process != "absorbing":
            raise UnsupportedError(f"remask needs masks, and this model undoes {config.process} noise: leave it out")
        if self.uses_concepts:
            self._check_concepts(config)
        if self.cache not in ("auto", "none"):
            check_cache(config, self.cache)
        if self.sliding and (config.context == "block" or config.masks_in_place):
            raise UnsupportedError("this model's blocks stay where they begin, and cannot slide: leave out sliding")
        if self.sliding and self.cache in RULES and RULES[self.cache].by_span:
            raise UnsupportedError(
                f'cache="{self.cache}" computes everything where a span begins, which with sliding is every step: '
                "leave out one of the two"
            )
        if config.context == "block" and (self.block_size or 1) > (config.block_size or 1):
            raise UnsupportedError(
                f"block_size={self.block_size} is more than the blocks of {config.block_size} that this model was "
                "trained with: use that, or less to fill each block in parts"
            )
        for token, bias in (self.logit_bias or {}).items():
            if not 0 <= token < config.vocab_size:
                raise InputError(f"logit_bias: token {token} is not in the vocabulary of {config.vocab_size}")
            if token in config.unpredictable_ids and bias > 0:
                raise InputError(f"logit_bias: token {token} is reserved and never drawn; leave it out")

    def _check_concepts(self, config: ModelConfig) -> None:
        """`check_model` for the options that need concept heads."""
        if config.concepts is None:
            raise no_concept_heads(self.uses_concepts[0])
        if self.explain and config.gemma is not None:
            raise UnsupportedError("DiffusionGemma caps its logits, so they are no sums of parts: leave out explain")
        if not self.steers:
            return
        if not self.steering.steady and (config.process != "absorbing" or self.mode_entry.commits_last):
            raise UnsupportedError(
                f'mode "{self.mode}" commits nothing before the end here: leave out the schedules of steer'
            )
        if self.mode_entry.no_spans is not None and not self.steering.everywhere:
            raise UnsupportedError(
                f'mode "{self.mode}" {self.mode_entry.no_spans}: leave out the spans of steer, or choose another mode'
            )

    def check_steps(self, size: int) -> None:
        """InputError for more `steps` than a span has positions, in a mode in which each of them commits some."""
        commits = self.mode_entry.commits_each_step and not self.commit_policy.skips
        if self.steps is not None and self.steps > size and commits:
            raise InputError(
                f"steps={self.steps} is more than a span's {size} positions: each step commits one or more"
            )


SAID = [f"    {name}: {one.says}" for name, one in options_of(Decode).items()]
Decode.__doc__ = "\n\n".join([str(Decode.__doc__), *SAID])

Text = str | Sequence[int]


@dataclass(frozen=True)
class TokenRequest:
    """A request whose texts are tokens.

    segments  token ids, with a gap between each and the next; a single gap with nothing after it is a completion
    budgets   of each gap: the fewest and the most tokens that it gets
    heal      draw cut words before the gaps again; None: where that is possible
    draft     the likely text of the only gap
    around    the texts around the gaps, where the result is the whole text; None: the result is the gap alone
    context   what the segments are of the texts that the caller gave; None: those were token ids
    files     the other files of the text's repository; None: nothing is said of a repository

    `infilling`: there is text after a gap.
    """

    infilling: bool = field(init=False)
    decode: Decode
    segments: Sequence[Sequence[int]]
    budgets: Sequence[tuple[int, int]]
    heal: bool | None = None
    draft: str | None = None
    around: tuple[str, ...] | None = None
    context: Context | None = None
    files: Files | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "infilling", len(self.budgets) > 1 or bool(self.segments[-1]))


def encoded(
    texts: Sequence[Text], tokenizer: Tokenizer, config: ModelConfig, special_tokens: bool | None = None
) -> list[list[int]]:
    """The segments of a request, from texts or token ids. special_tokens: whether names of special tokens stand for
    them; None: in the prompt of a completion, and not around gaps. InputError, in one line, for anything else.
    """
    completes = len(texts) == 2 and not len(texts[1])
    encode = tokenizer.encode if (completes if special_tokens is None else special_tokens) else tokenizer.encode_plain
    return [
        encode(text, begins=not number) if isinstance(text, str) else _known(text, config)
        for number, text in enumerate(texts)
    ]


def _known(tokens: Sequence[int], config: ModelConfig) -> list[int]:
    """Token ids. InputError, in one line, for what is none of this model."""
    read: list[int] = TOKENS("the text", tokens)
    for token in read:
        if not 0 <= token < config.vocab_size:
            raise InputError(f"token id {shown(token)} is outside the vocabulary: ids are 0 to {config.vocab_size - 1}")
    return read


def check_request(config: ModelConfig, request: TokenRequest) -> bool:
    """Check a request before it is laid out; returns whether the last words before its gaps are healed. InputError or
    UnsupportedError, in one line.
    """
    decode = request.decode
    mode = decode.mode_entry
    if request.infilling:
        _check_sees_suffix(config, mode.writes_gaps)
        check_end_of_text(decode)
    mode.check_request(len(request.budgets), request.infilling, request.heal)
    decode.check_model(config)
    if config.context == "reordered":
        _check_unseen(request)
    heal = _check_infilling(config, request) if request.infilling and not mode.writes_gaps else request.heal
    if heal and decode.shaping:
        raise InputError(f"with the option {decode.shaping[0]} the last word is not healed: leave out heal")
    if heal and not mode.can_heal(config):
        raise UnsupportedError(f'this model heals no word in mode "{decode.mode}": leave out heal')
    return heal is not False and mode.can_heal(config) and not decode.shaping


def check_end_of_text(decode: Decode) -> None:
    """UnsupportedError for `end_of_text` in gaps, in a mode that does not read it there."""
    if "end_of_text" in decode.given and not decode.mode_entry.ends_gaps:
        raise UnsupportedError(
            "end_of_text is about completions, and a gap has text after it: leave out end_of_text, or the suffix"
        )


def check_changeable(decode: Decode, config: ModelConfig) -> None:
    """UnsupportedError for a mode whose canvas the caller cannot change between its steps."""
    if not decode.mode_entry.changeable:
        instead = "call stream" if config.mask_id is None else 'use mode "block", or call stream'
        raise UnsupportedError(f'mode "{decode.mode}" cannot be changed while it runs: {instead}')


def _check_sees_suffix(config: ModelConfig, writes_gaps: bool) -> None:
    """UnsupportedError for a model that sees no text after a gap. writes_gaps: by a mode that needs no masks."""
    if config.context == "block":
        raise UnsupportedError("a model with block context cannot infill: no block sees what comes after it")
    if config.mask_id is None and config.process == "absorbing" and not writes_gaps:
        raise UnsupportedError(
            "an autoregressive model cannot infill, since it never sees the text after a gap: leave out the suffix"
        )


def _check_unseen(request: TokenRequest) -> None:
    """UnsupportedError for what asks about tokens that the model sees. In reordered context it answers about masks
    alone: the row of a known token was never trained to predict that token.
    """
    decode, why = request.decode, "a model with reordered context predicts no token that it sees"
    if request.draft is not None:
        raise UnsupportedError(f"{why}, so it reads no draft: leave the draft out")
    if decode.revise and decode.revise_reading == "unmasked":
        raise UnsupportedError(f'{why}: use revise_reading="leave_one_out"')
    if decode.commit_policy.edits:
        raise UnsupportedError(f'{why}, so policy "{decode.policy_name}" cannot edit any: use policy "threshold"')


def _check_infilling(config: ModelConfig, request: TokenRequest) -> bool | None:
    """Check that this model can end the gaps; returns `heal`, or False for a model that cannot heal."""
    if config.null_id is not None:
        return request.heal
    if any(fewest != most for fewest, most in request.budgets):
        raise UnsupportedError(f"this model has no <null> to end a gap with: {_known_length(config, request)}")
    if request.heal:
        raise UnsupportedError("this model has no <null>, so healing could not keep the gap's length: use heal=False")
    return False


def _known_length(config: ModelConfig, request: TokenRequest) -> str:
    """What to do where a gap's length must be known."""
    most = request.budgets[0][1]
    given = f"give its length, min_tokens={most} with max_tokens={most}"
    if len(request.budgets) > 1:
        return "give the length of each, the same number as min_tokens and max_tokens"
    if request.decode.mode_entry.searches_length:
        return f"{given}, or have it found by search_length=True"
    return f'{given}, or have it found in mode="block"' if config.process == "absorbing" else given


def read_draft(request: TokenRequest, tokenizer: Tokenizer) -> Draft:
    """The request's draft. InputError or UnsupportedError for a draft that cannot be used, or is missing."""
    if request.draft is None:
        raise InputError("accept_draft is about a draft, and there is none: give a draft, or leave accept_draft out")
    request.decode.mode_entry.check_draft(request.decode)
    return Draft(request.draft, tokenizer)
