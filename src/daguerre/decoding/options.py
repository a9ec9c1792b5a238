"""The options of decoding: one declaration each, and what follows from them alone.

An option's type, default, kind and description stand in `DecodeOptions` and nowhere else; options of policies and of
draws are declared where they are read (`sampling.policies`, `sampling.logits`) and shared. `decoding.request.Decode`
checks a request's options against its mode, and the command line, the server and docs/options.md are made from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from daguerre.decoding.pins import Pin
from daguerre.decoding.revision import ODDS, RevisionReading
from daguerre.kinds import (
    MAYBE,
    NATS,
    POSITIVE,
    PROBABILITY,
    SEED,
    SWITCH,
    TEXT,
    Instance,
    Kind,
    Number,
    OneOf,
    Several,
    SeveralWords,
    Whole,
    Words,
    option,
    shared,
)
from daguerre.models import guidance as guiding
from daguerre.models.chat_format import Thinks
from daguerre.models.guidance import Guidance, Scorer, chained
from daguerre.models.stale import CACHE_MODES, CacheMode
from daguerre.sampling.logits import SamplingParams
from daguerre.sampling.policies import POLICIES, Policy, policy_kind
from daguerre.sampling.policies.base import Schedule
from daguerre.sampling.policies.confidence import Confidence
from daguerre.sampling.policies.entropy_bounded import EntropyBounded
from daguerre.sampling.policies.entropy_threshold import EntropyThreshold
from daguerre.sampling.policies.factor import Factor
from daguerre.sampling.policies.joint_threshold import JointThreshold
from daguerre.sampling.policies.kind import PolicyKind
from daguerre.sampling.repetition import Repetition
from daguerre.sampling.rules import EndRule

if TYPE_CHECKING:
    from daguerre.decoding.steering import Steering

ModeName = Literal["ar", "block", "full", "speculative", "beam", "ancestral", "renoise", "expand", "fim"]
DrafterName = Literal["auto", "head", "lookup", "second"]
RankedBy = Literal["model", "drawn"]
FillEnd = Literal["fit", "model"]
MOST_SAMPLES = 4096
MOST_BEAMS = 4096
MOST_READINGS = 1024
"""The most samples of a request, hypotheses of a search, and readings of a finished span."""
IMPLIED = ("threshold", "confidence", "joint_threshold", "factor", "entropy_bounded", "entropy_threshold")
"""The policies that options stand for which only some policies have."""
CONSTRAINTS = {
    "schema": "a JSON Schema, an object or a boolean, or a compiled TokenAutomaton",
    "regex": "a string",
    "choices": "a sequence of strings",
    "tools": 'a sequence of objects with "name" and "parameters", or with "function"',
}
"""The options that constrain a text, and the type of each in words."""
PINS = 'several of daguerre.Pin, such as [Pin("x", at=3)]'


@dataclass(frozen=True, kw_only=True)
class Structure(Kind):
    """A value that `Decode` reads, since it takes other options or tables to do so. kept: its type in JSON."""

    what: str
    kept: Any

    @property
    def json(self) -> Any:
        """The type in JSON."""
        return self.kept

    def __str__(self) -> str:
        return self.what + (" or None" if self.none else "")


Objects = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """The options of decoding. Without a mode's name, `daguerre.decoding.modes.choose_mode` chooses."""

    mode: ModeName | None = option(
        None,
        Structure(what="the name of a mode", kept=str, none=True),
        """How a text is written: ar, block, full, speculative, beam, ancestral, renoise, expand or fim; None chooses a
        lossless one, or beam for a gap. ar: one token after the other. block: spans of block_size. full: the whole
        budget is one span. speculative: the tokens of ar, several a forward, by verifying drafts. beam: for gaps,
        searches for the text that makes the whole most likely. ancestral: all at once, from noise to text in `steps`
        forwards, with full context. renoise: canvases of random tokens, drawn again in every step, for DiffusionGemma.
        expand: gaps that grow and shrink, for DreamOn. fim: writes a gap behind the texts around it, with tokens of
        fill-in-the-middle.""",
        common=True,
    )
    block_size: int | None = option(
        None,
        Whole(low=1, none=True),
        """Tokens that are denoised together (modes block and renoise), or the most tokens of a forward (speculative).
        None: in block the model's own, else 16, and all gaps as one span; in renoise the model's own; in speculative
        5, or the model's own where its masks are in place. The model drafts as many of these as save time.""",
    )
    sliding: bool = option(
        False,
        SWITCH,
        """Mode block: a window of block_size positions that begins at the first open one in every step, as in WeDLM.
        Not in block context, nor with `steps`, edits, revise, a draft, or approximate caches of spans.""",
    )
    drafter: DrafterName = option(
        "auto",
        OneOf(known=get_args(DrafterName)),
        """Mode speculative: head (the model drafts), lookup (repeats what followed the same tokens earlier), second
        (the second model that is loaded beside it drafts) or auto (whichever is likelier to save time). On the
        command line also the name of a second model.""",
    )
    start_tokens: int | None = option(
        None,
        Whole(low=1, none=True),
        "Mode expand: open positions of a gap at first. None: 4, or as many as it may have.",
    )
    num_beams: int = option(
        32,
        Whole(low=1, high=MOST_BEAMS),
        "Mode beam: how many hypotheses are kept, and how many finished ones are compared.",
    )
    no_repeat_context_lines: bool = option(
        False,
        SWITCH,
        "Mode beam: leave out texts that only repeat lines around the gap.",
    )
    fill_end: FillEnd = option(
        "fit",
        OneOf(known=get_args(FillEnd)),
        """Mode fim: a gap that the model does not end itself ends where the text after it fits best (fit), or at its
        budget (model).""",
    )
    accept_draft: float | None = option(
        None,
        Number(low=0, high=1, none=True),
        """Take the draft as it is, and end the text behind it, where the geometric mean of its tokens' probabilities is
        this or more; else write on, with the draft verified. None: only verify it, as under a constraint, and where
        anything else changes the probabilities (logit_bias, repetition, guidance, a scorer).
        """,
    )
    policy: str | Policy | None = option(
        None,
        PolicyKind(none=True),
        f"""Modes block and full: what a step commits: {", ".join(POLICIES)}. Or a `Policy` with values of its own.
        None: the first policy that has the given options (confidence for steps), else threshold.""",
    )
    threshold: float = shared(JointThreshold, "threshold")
    edit_threshold: float = shared(JointThreshold, "edit_threshold")
    factor: float = shared(Factor, "factor")
    gamma: float = shared(EntropyBounded, "gamma")
    entropy_threshold: float = shared(EntropyThreshold, "entropy_threshold")
    position_penalty: float = shared(EntropyThreshold, "position_penalty")
    steps: int | None = shared(Confidence, "steps")
    schedule: Schedule = shared(Confidence, "schedule")
    rank_temperature: float = shared(Confidence, "rank_temperature")
    rank_by: RankedBy = option(
        "model",
        OneOf(known=get_args(RankedBy)),
        """Policies rank by the model's probabilities at temperature 1 (model), or by those after temperature and cuts
        (drawn), as in Dream and SDAR. Not with policies random, first_hitting and origin.""",
    )
    greedy_tail: bool = option(False, SWITCH, "Mode ancestral: the last forward takes the most likely tokens.")
    remask: float = option(
        0.0,
        PROBABILITY,
        """Mode ancestral of masked models: the highest probability with which a written token becomes a mask again in
        a step. See `daguerre.noise.remasking`.""",
    )
    revise: int = option(
        0,
        Whole(high=MOST_READINGS),
        """How many times a finished span is read again and corrected (modes block and full). A token is replaced by
        the most likely one where that has at least revise_threshold.""",
    )
    revise_threshold: float = option(0.9, PROBABILITY, "Probability from which revise replaces a token.")
    revise_reading: RevisionReading = option(
        "unmasked",
        OneOf(known=tuple(ODDS)),
        """unmasked: one forward sees all tokens, for a model trained to correct; leave_one_out: a forward for each
        token, with that token masked, for any model.""",
    )
    temperature: float = shared(SamplingParams, "temperature")
    t_max: float = option(0.8, POSITIVE, "Mode renoise: the temperature of a canvas' first step.")
    t_min: float = option(0.4, POSITIVE, "Mode renoise: the temperature that a canvas falls to.")
    max_entropy: float = option(
        0.005,
        NATS,
        """Mode renoise: mean entropy in nats below which a canvas is done, if its most likely tokens stayed the same
        for a step.""",
    )
    top_p: float = option(
        1.0,
        PROBABILITY,
        "Draw from the smallest set of tokens with this probability, after top_k. 0 takes the most likely token.",
        common=True,
    )
    top_k: int | None = option(
        None, Whole(low=-1, none=True), "Draw from this many most likely tokens. None, 0 and -1: from all."
    )
    min_p: float = shared(SamplingParams, "min_p")
    repetition_penalty: float = option(
        1.0,
        POSITIVE,
        """Divide the logits of tokens that the text or the prompt has (multiply those below 0); 1 is none. As in
        transformers; tokens that a step commits together do not count for each other. Not in beam, ancestral and
        renoise.""",
    )
    no_repeat_ngram_size: int = option(
        0,
        Whole(),
        """So many tokens in a row never stand twice in prompt and text; 0 is none. Tokens that a step commits together
        do not count for each other. Not in beam, ancestral and renoise.""",
    )
    min_tokens: int = option(
        0,
        Whole(),
        """Fewest tokens to write; if equal to max_tokens, exactly that many. <eos> (completion) and <null> (infilling)
        are not drawn before.""",
    )
    end_of_text: EndRule = option(
        "fill",
        OneOf(known=get_args(EndRule)),
        """What <eos> does in completions of modes block, full and expand, and what deletes a position in gaps of
        expand: fill, plain, last or never. fill: the rest of its span becomes <eos>, too. plain: it is a token like
        any other, and the text ends before the first. last: likewise, and it is committed after all other tokens.
        never: it is not drawn.""",
    )
    stop: str | Sequence[str] = option(
        (), SeveralWords(), "Text that ends the output, or several; none of it is shown.", common=True
    )
    stop_loops: bool | None = option(
        None,
        MAYBE,
        """End the text where it repeats itself: 3 copies in a row, of 48 tokens in all or more; the result's `looped`
        says so. None: for models known to loop, as the package's, in completions of ar and speculative at temperature
        0 without min_tokens, a draft or a constraint.""",
    )
    logit_bias: Mapping[int, float] | None = shared(SamplingParams, "logit_bias")
    n: int = option(
        1, Whole(low=1, high=MOST_SAMPLES), "Samples. Sample i has the random numbers of (seed, i).", common=True
    )
    seed: int = option(0, SEED, "Seed of every random number.", common=True)
    guidance: float = option(
        1.0,
        guiding.KINDS["guidance"],
        """Scale of classifier-free guidance toward the text before the first gap, away from `negative`; 1 is none, 0
        ignores that text. Each step takes two forwards.""",
    )
    guidance_schedule: str = option(
        "constant",
        guiding.KINDS["guidance_schedule"],
        "constant, or linear or cosine: guidance grows from 1 with the committed share of the gaps.",
    )
    negative: str | None = option(
        None, Words(none=True), "The text to guide away from. None: the text before the first gap is hidden."
    )
    scorer: Scorer | None = option(
        None,
        guiding.KINDS["scorer"],
        "A function of (canvas, positions, logits) whose numbers are added to the logits, before logit_bias.",
    )
    cache: CacheMode = option(
        "auto",
        OneOf(known=CACHE_MODES),
        f"""Cache of keys and values: {", ".join(CACHE_MODES)}. auto: exact where the context allows, else none. none:
        every forward computes everything. approximate_int8: 8-bit numbers in half the memory; logits and tokens differ
        from exact ones, speculative has the tokens of ar with the same cache, and searched lengths stay exact. The
        others are for full context: they read keys that are out of date, so fewer rows are computed and tokens differ
        (`daguerre.models.stale`).""",
    )
    schema: Any = option(
        None,
        Structure(what=CONSTRAINTS["schema"], kept=dict[str, Any] | bool, none=True),
        """The output, as a whole, is JSON of this JSON Schema. It may be a `TokenAutomaton` that
        `daguerre.sampling.constraints` compiled, with your own limits and budget. With tools, it is for the text
        beside calls. Under any constraint, policies rank by probabilities given the constraint, and the last word is
        not healed.""",
        common=True,
    )
    regex: str | None = option(None, Words(none=True), "The output matches this pattern as a whole.", common=True)
    choices: Sequence[str] | None = option(
        None, Structure(what=CONSTRAINTS["choices"], kept=list[str], none=True), "The output is one of these texts."
    )
    tools: Sequence[Mapping[str, Any]] | None = option(
        None,
        Structure(what=CONSTRAINTS["tools"], kept=Objects, none=True),
        "The output is text, or calls of these functions.",
        common=True,
    )
    tool_choice: str = option(
        "auto", TEXT, "With tools: auto (text or calls), none (text), required (calls), or the name of the one to call."
    )
    parallel_calls: bool = option(True, SWITCH, "With tools: whether there may be several calls.")
    chat_format: Thinks | None = option(
        None,
        OneOf(known=get_args(Thinks), none=True),
        """The text is an answer as the model's chat template writes one (`daguerre.ChatFormat`): may (it may begin
        with a thought) or does (the prompt has begun one). Calls of tools are written as in the template. Special
        tokens of its marks appear in the text, each behind U+E001 (where an ordinary token has that one, U+FDD0
        follows it). None: special tokens are no text.""",
    )
    keywords: str | Sequence[str] = option(
        (), SeveralWords(), "Text that the output contains, or several. It may be given beside another constraint."
    )
    forbidden: str | Sequence[str] = option(
        (), SeveralWords(), "Text that is nowhere in the output, nor across its edges, or several."
    )
    ending: str | None = option(None, Words(empty=False, none=True), "Text that the output ends with.")
    pins: Sequence[Pin] = option(
        (),
        Several(one=Instance(of=(Pin,), what=PINS), what=PINS),
        "Tokens or texts at places of a gap (`daguerre.Pin`). The last word is not healed.",
    )
    lenient: bool = option(
        False,
        SWITCH,
        """Ignore parts of a schema that are known and not supported. The result's `ignored` lists them, and keywords
        and formats that no draft of JSON Schema knows.""",
    )
    strict: bool = option(False, SWITCH, "Refuse keywords and formats of a schema that no draft of JSON Schema knows.")
    explain: bool = option(
        False,
        SWITCH,
        """For a model with concept heads: the result's `concepts` say what each token's logit consists of. The text
        stays the same.""",
    )
    steer: Any = option(
        None,
        Structure(what="a Steering, or a list of operations", kept=Objects, none=True),
        """For a model with concept heads: a steering program, operations on concepts (`daguerre.decoding.steering`).
        No spans in expand and beam; no schedules in beam and renoise and for models without masks. The search of a
        gap's length is not steered.""",
    )
    forbid: str | Sequence[str] = option(
        (), SeveralWords(), "Concepts that steering makes unlikely, after `steer`. Short for operations of kind forbid."
    )
    forbid_exactly: bool = option(
        False,
        SWITCH,
        "With forbid: also forbid the strings without which there is no instance of its concepts.",
    )

    @property
    def steers(self) -> bool:
        """Whether there is a program."""
        return self.steer is not None or bool(self.forbid)

    @cached_property
    def steering(self) -> Steering:
        """The whole program: `steer`, and then `forbid`."""
        from daguerre.decoding.steering import (  # which brings torch, and the command line reads options
            Steering,
            forbid,
        )

        program = Steering() if self.steer is None else Steering.of(self.steer)
        return program + forbid(*self.forbid) if self.forbid else program

    @cached_property
    def uses_concepts(self) -> list[str]:
        """Names of the given options that need concept heads."""
        return [name for name in ("explain", "steer", "forbid") if getattr(self, name)]

    @cached_property
    def shaping(self) -> tuple[str, ...]:
        """Names of the given options that constrain the text as a whole, and so decide where it ends."""
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None][:1]
        return (*given, *(name for name in ("keywords", "forbidden", "ending", "pins") if getattr(self, name)))

    @cached_property
    def constrained(self) -> bool:
        """True where a formal language constrains the text: all of `shaping` but pins at fixed positions."""
        return bool(set(self.shaping) - {"pins"}) or any(pin.floats for pin in self.pins)

    @property
    def language(self) -> tuple[str | None, Any]:
        """The option that constrains the text, and all that its automaton is made of; None, None: there is none."""
        if self.tools is not None:
            more = {"choice": self.tool_choice, "parallel": self.parallel_calls, "text": self.schema}
            if self.chat_format is not None:
                more["chat_format"] = self.chat_format
            return "tools", {"tools": self.tools, **more}
        return next(((name, getattr(self, name)) for name in self.shaping if name in CONSTRAINTS), (None, None))

    @cached_property
    def given(self) -> list[str]:
        """Names of the options that differ from their defaults."""
        values = self.__dict__
        return [name for name, default in DEFAULTS.items() if values[name] is not default and values[name] != default]

    @cached_property
    def sampling(self) -> SamplingParams:
        """The parameters that a token is drawn by. A top_p of 0 keeps the likeliest token, as in OpenAI's API."""
        if DRAWING.isdisjoint(self.given):
            return LIKELIEST
        cuts = (self.top_p, self.top_k) if self.top_p else (1.0, 1)
        return SamplingParams(self.temperature, *cuts, self.logit_bias, self.min_p)

    @property
    def ranks_as_drawn(self) -> bool:
        """Whether policies rank by distributions other than those at temperature 1 over all tokens."""
        cut = self.top_p < 1 or self.top_k is not None or self.min_p > 0
        return self.rank_by == "drawn" and (cut or self.temperature not in (0, 1))

    @cached_property
    def logit_guidance(self) -> Guidance | None:
        """Guidance, and what is added to logits: by repetition, and then by the caller's scorer; None for nothing."""
        scorer = self.scorer
        if self.repetition_penalty != 1 or self.no_repeat_ngram_size:
            own = Repetition(self.repetition_penalty, self.no_repeat_ngram_size)
            scorer = own if scorer is None else chained(own, scorer)
        if self.guidance == 1 and scorer is None:
            return None
        return Guidance(self.guidance, self.guidance_schedule, scorer)

    @cached_property
    def commit_policy(self) -> Policy:
        """The policy of that name, with its options, or the one that is given."""
        if self.policy is not None and not isinstance(self.policy, str):
            return self.policy
        return self.policy_kind(**{name: getattr(self, name) for name in self.policy_options})

    @cached_property
    def policy_kind(self) -> type[Policy]:
        """The class of the policy. Without a name, the first of IMPLIED that has all options of policies that are
        given.
        """
        if self.policy is not None:
            return policy_kind(self.policy)
        return POLICIES[next((name for name in IMPLIED if self.of_policies <= {*POLICIES[name].options}), IMPLIED[0])]

    @cached_property
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


DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(DecodeOptions)}
DRAWING = frozenset(each.name for each in fields(SamplingParams))
"""The options that say how a token is drawn."""
LIKELIEST = SamplingParams()


def is_compiled(schema: Any) -> bool:
    """Whether a schema is a `TokenAutomaton`."""
    if schema is None or isinstance(schema, Mapping | bool | str):
        return False
    from daguerre.sampling.constraints import TokenAutomaton

    return isinstance(schema, TokenAutomaton)
