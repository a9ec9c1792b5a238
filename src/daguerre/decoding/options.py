"""`Decode`: the options of one request, frozen and checked."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from daguerre.arguments import check_unicode
from daguerre.decoding.checks import CALLS as ARGUMENTS
from daguerre.decoding.checks import check_options
from daguerre.decoding.modes import MODES, choose_mode, mode_options
from daguerre.decoding.modes.base import Mode
from daguerre.decoding.settings import CONSTRAINTS, IMPLIED, Settings
from daguerre.decoding.steering import Steering
from daguerre.errors import InputError, UnsupportedError, no_concept_heads, shown, unknown
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import check_cache
from daguerre.models.stale import RULES
from daguerre.sampling.constraints import TokenAutomaton
from daguerre.sampling.policies import POLICIES

COMMIT_LAST = frozenset({"beam", "renoise"})
"""Modes that commit nothing before the end, so that no schedule of steering has a place in them."""
NO_SPANS = {
    "expand": "moves text while it is written",
    "beam": "scores texts of many lengths, each with the text after the gap",
}
"""Modes that do not know a token's place in its gap, so that no span of steering has a meaning in them; and why."""

CALLS = tuple(ARGUMENTS)
"""Arguments that calls have beside the options."""
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
class Decode(Settings):
    """How to decode. InputError for a value out of range, and for options that exclude each other.

    mode         ar: one token after the other; block: spans of `block_size`; full: the whole budget is one span;
                 speculative: the tokens of "ar", up to `block_size` a forward, by verifying the model's drafts;
                 beam: infilling only, the text that makes the whole most likely, as far as a search finds it;
                 ancestral: all at once, from noise to text in `steps` forwards, for models with full context; renoise:
                 canvases of `block_size` random tokens, drawn again in every step, for DiffusionGemma; expand: gaps
                 that grow and shrink, up to their budget, for DreamOn; fim: a gap written behind the texts around
                 it, by a model with tokens of fill-in-the-middle. None:
                 `daguerre.decoding.modes.choose_mode` chooses; a completion gets a lossless mode and a gap a search, if
                 the model has an autoregressive distribution
    block_size   modes "block" (None: the model's own, else 16; infilling: None takes all gaps as one span), "renoise"
                 (None: the model's own) and "speculative" (None: 5, or the model's own where its masks are in place),
                 of which the model drafts as many as are worth their time on this machine
    sliding      mode "block" only: a window of `block_size` positions that begins at the first open one in every step
                 (WeDLM), in place of spans one after the other. Not in block context, and not with what belongs to a
                 span as a whole: policies with `steps`, edits, `revise`, a draft, and approximate caches of spans
    drafter      mode "speculative" only: head, the model drafts; lookup, drafts are what followed earlier in the text
                 after the same tokens; auto, whichever is likelier to be right
    start_tokens mode "expand" only: how many open positions a gap begins with. None: 4, or as many as it may have
    num_beams    mode "beam" only: how many hypotheses are kept, and how many finished ones are compared
    no_repeat_context_lines   mode "beam" only: leave out texts that repeat lines around the gap and add no new line
    fill_end     mode "fim" only. fit: a gap that the model does not end itself ends where the text after it fits best
                 (`daguerre.decoding.joins`); model: it goes on to its budget
    policy       a name of `daguerre.sampling.policies.POLICIES`, or a `Policy` with values of its own. None: the first
                 that has the options given here which only some policies have ("confidence" for steps), else
                 "threshold". Modes "block" and "full" only, as are its options
    threshold    policies "threshold", "joint_threshold" and "chain" only: commit tokens of at least this probability
    edit_threshold   policy "joint_threshold" only: replace tokens by those of more than this probability; 1: never
    factor       policy "factor" only: n positions together must each be wrong with a chance below factor / (n + 1)
    gamma        policy "entropy_bounded" and mode "renoise" only: nats of entropy that positions committed together may
                 have
    entropy_threshold, position_penalty   policy "entropy_threshold" only: commit tokens whose entropy in nats, plus the
                 penalty for each position from the first open one on, is below the threshold
    steps        the most forwards: of a span with policies "confidence", "entropy", "margin", "random", "origin" and
                 "first_hitting"; of the text in mode "ancestral". None: one for each position. In mode "renoise" those
                 of a canvas; None: 48
    greedy_tail  mode "ancestral" only: the last forward takes the most likely tokens in place of draws
    remask       mode "ancestral" of masked models only: the highest probability with which a written token becomes a
                 mask again in a step (`daguerre.noise.remasking`)
    schedule     policies "confidence", "entropy", "margin" and "random" only. even: each step of a span commits as many
                 tokens (LLaDA); time: step s of S commits a share 1 - t_{s+1} / t_s of what is open, where t falls from
                 1 to 0.001 in equal steps (Dream); those of its steps that commit nothing take no forward
    rank_temperature   policies "confidence", "entropy" and "margin" only. 0: the tokens that rank highest are
                 committed; above 0: tokens drawn with chances proportional to exp(rank / rank_temperature) (Dream)
    rank_by      what policies rank by. model: probabilities at temperature 1 over all tokens; drawn: those after
                 temperature, top-k and top-p (Dream, SDAR). Modes "block" and "full", not with policies "random",
                 "first_hitting" and "origin"
    revise       how often a finished span is read again. A token is replaced where another one is the most likely, with
                 a probability of at least `revise_threshold`. Modes "block" and "full"
    revise_threshold   the probability that `revise` needs to replace a token
    revise_reading     unmasked: one forward sees all tokens, for a model trained to correct; leave_one_out: a forward
                 for each token, with that token masked, for any model (`daguerre.decoding.revision`)
    temperature, top_p, top_k, min_p   a temperature of 0 takes the most likely token, and so does a top_p of 0; a top_k
                 of 0 or -1 is none. Top-k is applied before top-p, and then min_p: tokens less than min_p times as
                 likely as the likeliest are not drawn
    repetition_penalty, no_repeat_ngram_size   as in transformers: logits of tokens that the text or the prompt has are
                 divided (above 0) or multiplied by the penalty, 1 is none; no n tokens in a row stand twice in both
                 together, 0 is none. Tokens that a step commits together do not count for each other. Not in modes
                 "beam", "ancestral" and "renoise"
    t_max, t_min   mode "renoise" only: the temperature of a canvas falls from the first to the second
    max_entropy  mode "renoise" only: a canvas is done once its most likely tokens stay the same for a step and have a
                 mean entropy below this, in nats
    min_tokens   <eos> (completion) and <null> (infilling) are not drawn among the first this many tokens
    end_of_text  completions in modes "block", "full" and "expand", and gaps in mode "expand": what happens to <eos>,
                 or to what deletes a position. fill: once it is committed, the rest of its span becomes <eos>; plain:
                 it is a token like any other, and the text ends before the first; last: likewise, and it is committed
                 after all other tokens; never: it is not drawn
    stop         a string or several; text ends before the first that appears
    stop_loops   whether the text ends where it loops: 3 copies in a row, of 48 tokens in all or more. None: of models
                 that are known to loop, which the package's are, in completions of modes "ar" and "speculative" at
                 temperature 0 without min_tokens, a draft or a constraint. The result's `looped` says that it was so
    logit_bias   token id -> number added to its logit; minus infinity bans it
    n            samples; sample i is keyed by (seed, i)
    seed         of all random numbers, 0 to 2^64 - 1
    guidance     scale of classifier-free guidance, toward the text before the first gap and away from `negative`: 1 is
                 none, 0 ignores that text; two forwards in place of one (`daguerre.models.wrappers.guidance`)
    guidance_schedule   constant; linear or cosine: the scale grows from 1 with the committed share of the gaps
    negative     the text to guide away from; None: the text before the first gap is hidden
    scorer       callable from (canvas, positions, logits) to numbers that are added to the logits, before logit_bias
    cache        auto: exact where the context allows, else none; none: compute everything in every forward;
                 approximate_int8: keys and values as 8-bit numbers, in half the memory. Its logits, and so its tokens,
                 differ from exact ones; "speculative" has the tokens of "ar" with the same cache. Searched lengths stay
                 exact. For full context, where nothing can be kept exactly: approximate_prefix, approximate_dual,
                 approximate_vicinity and approximate_delayed read keys and values that are out of date
                 (`daguerre.models.stale`). Fewer rows are computed, and the tokens are others
    schema, regex, choices, tools   at most one: every gap's text is, as a whole, JSON of this schema, a match of this
                 pattern, one of these texts, or text and calls of these functions (`daguerre.sampling.constraints`).
                 Policies then rank by probabilities given the constraint, and the last word is not healed
                 With tools, schema is what the text is JSON of. Without, it may be a `TokenAutomaton` that one of the
                 functions there compiled, with limits and a budget of your own
    tool_choice  with tools only. auto: text, or one or more calls; none: text without calls; required: calls; a name:
                 one call of that function
    parallel_calls   with tools only: False allows one call and no more
    chat_format  the text is an answer as the model's chat template writes one (`daguerre.ChatFormat`): special tokens
                 of its marks are written out in the text, each behind U+E001 (where an ordinary token has that one,
                 U+FDD0 follows it), and calls of tools are written in it.
                 may: it may begin with a thought; does: the prompt has begun one. None: special tokens are no text
    keywords, forbidden, ending   strings that occur in every gap's text; strings that do not occur in it, nor across
                 its edges; the end of it. Together with one of the above, or alone
    pins         tokens or texts at places of a gap: see `daguerre.Pin`. The last word is not healed
    lenient      with a schema or tools: ignore parts of a schema that are known and not supported; the result's
                 `ignored` lists them, and keywords and formats that no draft of JSON Schema knows
    strict       with a schema or tools: refuse such unknown keywords and formats, too
    explain      for a model with concept heads: the result's `concepts` say what each token's logit consists of
                 (`daguerre.decoding.explanation`); its text stays the same
    steer        for such a model: a program of operations on concepts, or the list of them
                 (`daguerre.decoding.steering`). No spans in mode "expand", where text moves; and no schedules in modes
                 "beam" and "renoise" and of models without masks, where nothing is committed before the end. The search
                 of a gap's length is not steered
    forbid       names of concepts to forbid by steering, after `steer`: short for operations of kind "forbid"
    forbid_exactly   also forbid, as by `forbidden`, all strings without which there is no instance of these concepts
    """

    def __new__(cls, *values: Any, **options: Any) -> Decode:
        """InputError for an unknown option, with the nearest name."""
        if values:
            raise InputError("Decode takes its options by name, for example Decode(temperature=0.5)")
        names = {f.name for f in fields(cls)}
        for name in options:
            if name in CALLS:
                raise InputError(f"{name} is an argument of other calls, and no option of this one: leave it out")
            if name not in names:
                raise unknown("option", name, {*names, *CALLS}, ELSEWHERE)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_options(self)
        if self.top_k is not None and self.top_k < 1:
            object.__setattr__(self, "top_k", None)
        object.__setattr__(self, "pins", tuple(self.pins))
        self._freeze_steering()
        self._check_constraint()
        self._check_conflicts()
        self._freeze()
        _ = self.sampling, self.commit_policy, self.logit_guidance  # each checks its values

    def _freeze(self) -> None:
        """Copies of values that the caller might change later."""
        for option in CONSTRAINTS:
            try:
                value = getattr(self, option)
                if not isinstance(value, TokenAutomaton):  # which never changes
                    object.__setattr__(self, option, copy.deepcopy(value))
            except (TypeError, RecursionError) as error:
                raise InputError(f"{option} is not JSON, or nested too deep: {error}; correct it") from None

    def _freeze_steering(self) -> None:
        """Make `steer` a program, None where it has no operation, and check the whole one."""
        if self.steer is not None:
            object.__setattr__(self, "steer", Steering.of(self.steer) or None)
        _ = self.steering  # checks the whole program

    def _check_constraint(self) -> None:
        """At most one, of the right type, and no option that cannot honor it."""
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1 and given != ["schema", "tools"]:
            raise InputError(f"{given[0]} and {given[1]} are two constraints: leave out one of the two")
        for name in given:
            self._check_type(name)
        if self.tools is not None and isinstance(self.schema, TokenAutomaton):
            raise InputError("schema is compiled already, which the text beside tools cannot be: give the JSON Schema")
        if self.revise and self.constrained:
            raise UnsupportedError(f"revise cannot honor the option {self.shaping[0]} yet: leave out one of the two")
        if (self.policy_kind.sequential or self.policy_kind.edits) and self.constrained:
            raise UnsupportedError(
                f'policy "{self.policy_name}" cannot honor the option {self.shaping[0]}: leave out one of the two'
            )
        held = self.mode is not None and MODES[self.mode].holds_pins and not self.constrained
        if self.shaping and self.mode is not None and not MODES[self.mode].shapes and not held:
            instead = 'use mode "ar", which has the same tokens' if self.autoregressive else "leave out one of the two"
            raise UnsupportedError(f'mode "{self.mode}" cannot honor the option {self.shaping[0]}: {instead}')

    def _check_type(self, name: str) -> None:
        value = getattr(self, name)
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        right = {
            "schema": isinstance(value, Mapping | bool | TokenAutomaton),
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
        elif isinstance(self.schema, TokenAutomaton):
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
        """The same options, with a mode where they name none; see `daguerre.decoding.modes.choose_mode`."""
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
        if self.uses_concepts and config.concepts is None:
            raise no_concept_heads(self.uses_concepts[0])
        if self.explain and config.gemma is not None:
            raise UnsupportedError("DiffusionGemma caps its logits, so they are no sums of parts: leave out explain")
        if not self.steering.steady and (config.process != "absorbing" or self.mode in COMMIT_LAST):
            raise UnsupportedError(
                f'mode "{self.mode}" commits nothing before the end here: leave out the schedules of steer'
            )
        if self.mode in NO_SPANS and not self.steering.everywhere:
            raise UnsupportedError(
                f'mode "{self.mode}" {NO_SPANS[self.mode]}: leave out the spans of steer, or choose another mode'
            )
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

    def span_size(self, config: ModelConfig, max_tokens: int, infilling: bool) -> int:
        """The most positions of a span; InputError when there are more `steps` than that."""
        size = self.mode_entry.span_size(self, config, max_tokens, infilling)
        commits = self.mode_entry.commits_each_step and not self.commit_policy.skips
        if self.steps is not None and self.steps > size and commits:
            raise InputError(
                f"steps={self.steps} is more than a span's {size} positions: each step commits one or more"
            )
        return size
