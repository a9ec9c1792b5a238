"""The modes of decoding: one entry each."""

from __future__ import annotations

from daguerre.decoding.modes.ancestral import Ancestral
from daguerre.decoding.modes.ar import Ar, Speculative
from daguerre.decoding.modes.beam import Beam
from daguerre.decoding.modes.block import Block, Full
from daguerre.decoding.modes.expand import Expand
from daguerre.decoding.modes.fim import Fim
from daguerre.decoding.modes.renoise import Renoise
from daguerre.decoding.options import DecodeOptions, ModeName
from daguerre.decoding.plan import Mode
from daguerre.errors import DaguerreError
from daguerre.models.core.config import ModelConfig

MODES: dict[str, Mode] = {
    mode.name: mode for mode in (Ar(), Block(), Full(), Speculative(), Fim(), Beam(), Ancestral(), Renoise(), Expand())
}


def mode_options() -> frozenset[str]:
    """Options that some modes read and others do not."""
    return frozenset().union(*(mode.options for mode in MODES.values()))


def allows(mode: Mode, config: ModelConfig, num_gaps: int = 0) -> bool:
    """Whether a mode can decode a model, and requests with so many gaps that have text after them."""
    try:
        mode.check_model(config)
        if num_gaps:
            mode.check_request(num_gaps, True, None)
    except DaguerreError:
        return False
    return True


SEARCHED_TOKENS = 48
"""The longest gap that is searched by default: what takes the default model about a fifth of a second."""


def choose_mode(
    settings: DecodeOptions, config: ModelConfig, infilling: bool, denoise: bool = False, searches: bool = False
) -> ModeName:
    """The mode of a request that names none: the first line that applies.

    a process that replaces tokens                            ancestral, or renoise where context is not full
    num_beams or no_repeat_context_lines is given             beam
    a gap, in a model without masks                           fim, or beam where it has no tokens for that
    start_tokens is given                                     expand
    a token that expands gaps: a gap, if `expand` can do it   expand
    such a model, and no block_size                           full
    an option of denoising is given, or `denoise`             block
    `searches`, and no option that mode beam does not have    beam: more gaps are right than by denoising
    a gap, or a model without an autoregressive distribution  block
    a completion without a constraint                         speculative: the tokens of ar, in fewer forwards
    any other completion                                      ar

    denoise   tokens of a gap may be fixed while positions to their left are open, and those are to see them
    searches  there is one gap of at most SEARCHED_TOKENS, with text after it; no draft and no deadline
    """
    given = set(settings.given)
    if config.process != "absorbing":
        return "ancestral" if config.context == "full" else "renoise"
    if given & (MODES["beam"].options - MODES["block"].options):
        return "beam"
    if infilling and config.mask_id is None and config.can_draft:
        return "beam" if config.fim is None else "fim"
    if "start_tokens" in given:
        return "expand"
    if config.expand_id is not None:
        if infilling and not denoise and _can_expand(settings):
            return "expand"
        return "block" if "block_size" in given else "full"
    denoise |= bool(given & (MODES["block"].options - MODES["ar"].options))
    plain = given <= MODES["beam"].options | {"mode", "seed"}
    if searches and infilling and plain and config.can_draft and not denoise:
        return "beam"
    if denoise or infilling or not config.can_draft:
        return "block"  # which says what a model without masks cannot do
    return "ar" if settings.shaping else "speculative"


def _can_expand(settings: DecodeOptions) -> bool:
    """Whether mode "expand" has all options that are given."""
    mode = MODES["expand"]
    usable = mode.policies is None or settings.policy_name in mode.policies
    return usable and not settings.shaping and not set(settings.given) & (mode_options() - mode.options)
