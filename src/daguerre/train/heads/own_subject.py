"""From a taxonomy file, and a model to ask, to what heads learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from daguerre.concepts.asked import ConceptAsker, judged, spans_an_hour
from daguerre.concepts.own import OwnTaxonomy, read_taxonomy
from daguerre.errors import InputError
from daguerre.train.heads.options import HeadOptions
from daguerre.train.heads.run import is_labeled
from daguerre.train.heads.subject import PYTHON, HeadSubject, OwnSubject

SPAN_TOKENS = 60
"""Of a span that a model is asked about, about."""


def head_subject(
    taxonomy: Path | None, ask: str | None, run: Path, options: HeadOptions, say: Callable[[str], None]
) -> HeadSubject:
    """What heads learn: the concepts in a file, or without one those of the package.

    ask: the chat model that is asked for concepts without a rule; how many spans it takes in an hour, and how well each
    concept agrees with its marks, is said. InputError for a model that has nothing to be asked.
    """
    if taxonomy is None:
        if ask is not None:
            raise InputError("--ask is for concepts of your own: name their file with --taxonomy")
        return PYTHON
    own = read_taxonomy(taxonomy)
    if is_labeled(run):  # what was asked is known
        return OwnSubject(own)
    if ask is not None and not own.asked:
        raise InputError(f"all concepts of {taxonomy} have rules: leave out --ask")
    given, asker = own.sha256, None if ask is None else _asker(ask, own)
    if asker is not None:
        say_spans(own, asker, options, say)
    own, asker = judged(own, asker, options.agreement, say)
    return OwnSubject(own, asker, given, ask or "")


def _asker(name: str, own: OwnTaxonomy) -> ConceptAsker:
    from daguerre.model import load

    return ConceptAsker(load(name, drafts="none", concepts="none"), own.asked)


def say_spans(own: OwnTaxonomy, asker: ConceptAsker, options: HeadOptions, say: Callable[[str], None]) -> None:
    """Say how many spans are asked about in an hour, and how long a run's will take."""
    if not own.marks:
        return  # which `judged` refuses
    speed, tokens = spans_an_hour(own, asker), options.labeled + options.held
    if not speed:
        return
    num = -(-tokens // SPAN_TOKENS)
    say(
        f"{speed:,.0f} spans an hour are asked about, for {len(asker.concepts)} concepts each: {tokens:,} tokens are "
        f"about {num:,} spans and {num / speed:.1f} hours (--set labeled={max(1, options.labeled // 10)} takes a tenth)"
    )
