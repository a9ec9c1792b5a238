"""Gaps that stand for whole lines: their last line break, the tokens after it, and the prior of their text."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from daguerre.decoding.denoise import Deadline, Run
from daguerre.decoding.healing import Vocabulary
from daguerre.decoding.modes import beam, lines
from daguerre.decoding.modes.lines import BLANK_NATS, REPEATED_NATS, ContextLines, Edge, after_break, is_blank
from daguerre.decoding.plan import Plan
from daguerre.decoding.request import Decode
from daguerre.decoding.sampler import TokenSampler
from daguerre.model import Model
from daguerre.models.session import compute
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.random import Counter
from daguerre.scoring.likelihood import score_tokens
from plans import make_plan

PREFIX, SUFFIX = "def f(a):\n    b = a\n", "    return b\n"


def plan_of(model: Model, prefix: str, suffix: str, most: int = 3, heal: bool | None = False, **options: Any) -> Plan:
    given: dict[str, Any] = {"mode": "beam", "num_beams": 64} | options
    decode = Decode(**given)
    return make_plan(model.config, model.tokenizer, decode, prefix, suffix, most, heal)


def found_by(model: Model, plan: Plan, edge: Edge) -> list[beam.Finished]:
    session = model.denoiser.session(plan.canvas)
    run = Run(plan, session, TokenSampler(plan.decode.sampling, Counter(0)), Deadline(None), session.counts)
    found = compute(beam.beam_search(run, edge), model.denoiser.backend)
    before = plan.canvas.tokens[: plan.gaps[0].start]
    return compute(beam.rescore(run, before, found, edge.suffix[: beam.SUFFIX_TOKENS]), model.denoiser.backend)


def only(tokenizer: Tokenizer, *texts: str) -> dict[int, float]:
    """The bias that leaves the first tokens of these texts."""
    kept = {tokenizer.encode(text)[0] for text in texts}
    return {token: -math.inf for token in range(tokenizer.vocab_size) if token not in kept}


SUFFIXES = (
    "    return b\n",
    "        for x in y:\n            z\n",
    "def g():\n",
    "  x",
    "\tif",
    "        ",
    "é = 1\n",
)


def test_the_tokens_after_a_break_have_the_same_text_and_end_alike(
    subtests: pytest.Subtests, tokenizer: Tokenizer
) -> None:
    for suffix in SUFFIXES:
        with subtests.test(suffix):
            given = np.array(tokenizer.encode(suffix))
            tokens = after_break(Vocabulary.make(tokenizer), given)
            assert tokenizer.decode(tokens.tolist()) == "\n" + suffix
            assert tokens.tolist() == tokenizer.encode("\n" + suffix)
            rest = len(tokenizer.encode(suffix.lstrip())) - 1
            assert not rest or tokens[-rest:].tolist() == given[-rest:].tolist()


EDGES: tuple[tuple[str, str, dict[str, Any], bool, bool], ...] = (
    (PREFIX, SUFFIX, {}, True, True),
    ("", SUFFIX, {}, True, True),
    (PREFIX, "\n" + SUFFIX, {}, False, True),  # the break stays with the suffix
    (PREFIX + "    ", "\n" + SUFFIX, {}, False, True),
    (PREFIX, SUFFIX, {"stop": "\n"}, False, False),
    (PREFIX, SUFFIX, {"stop": "\n\n"}, True, True),
    (PREFIX, SUFFIX, {"most": 1}, False, False),
    (PREFIX + "    c =", "\n" + SUFFIX, {}, False, False),
    (PREFIX, " + 1\n" + SUFFIX, {}, True, True),
    (PREFIX + "    ", "return b\n", {}, False, False),
)


def test_which_gaps_stand_for_whole_lines(subtests: pytest.Subtests, causal: Model) -> None:
    for (prefix, suffix, options, ends, whole), heal in product(EDGES, (False, None)):
        with subtests.test(f"{prefix}<gap>{suffix}", options=options, heal=heal):
            edge = Edge.of(plan_of(causal, prefix, suffix, heal=heal, **options))
            assert (edge.ending is not None, edge.context.whole) == (ends, whole)
            assert causal.tokenizer.decode(edge.suffix.tolist()) == "\n" * ends + suffix


def test_a_banned_line_break_ends_no_line(causal: Model) -> None:
    (token,) = causal.tokenizer.encode("\n")
    assert Edge.of(plan_of(causal, PREFIX, SUFFIX, logit_bias={token: -math.inf})).ending is None


def test_blank_texts_and_texts_of_the_context_have_a_lower_prior() -> None:
    whole = ContextLines.of(b"a = 1\n", b"\nb = 2\n")
    inside = ContextLines.of(b"a = 1\nx", b"\nb = 2\n")
    for text, prior in ((b"", BLANK_NATS), (b"  #\n", BLANK_NATS), (b"    a = 1", REPEATED_NATS), (b"# a", 0.0)):
        assert whole.log_prior(text) == prior
        assert inside.log_prior(text) == 0
    assert BLANK_NATS < REPEATED_NATS < 0
    assert not is_blank(b"# a")


def test_a_score_is_the_likelihood_of_the_whole_text_and_the_prior(make_model: Any) -> None:
    """Against `scoring.likelihood`, which makes its own rows."""
    for seed, suffix in product(range(2), (SUFFIX, "\n" + SUFFIX)):
        model = make_model(seed)
        plan = plan_of(model, PREFIX, suffix, 3, min_tokens=2)
        edge = Edge.of(plan)
        before = [model.tokenizer.bos_id, *model.tokenizer.encode(PREFIX)]
        found = found_by(model, plan, edge)
        assert len(found) == 64 and edge.num_tokens == int(suffix == SUFFIX)
        for one in found[::4]:
            tokens = [*before, *one.hypothesis.tokens, *edge.suffix.tolist()]
            likelihood = -score_tokens(model.denoiser.backend, tokens, given=len(before)).value
            assert one.log_prior == edge.context.log_prior(one.hypothesis.written)
            assert one.score == pytest.approx(likelihood + one.log_prior, abs=2e-2)


def test_the_text_of_whole_lines_ends_with_a_break_and_is_not_blank(make_model: Any) -> None:
    for seed in range(6):
        model = make_model(seed)
        for heal in (None, False):
            result = model.infill(PREFIX, SUFFIX, 6, mode="beam", num_beams=6, heal=heal)
            assert result.text.endswith("\n")
            assert not is_blank(result.text.encode())
            assert len(result.tokens) <= 6
            *_, last = result.trace.replay()
            assert not last.open.any()
            assert all(token.logprob <= 0 for token in result.tokens)


def test_a_blank_text_is_taken_where_there_is_no_other(causal: Model) -> None:
    bias = only(causal.tokenizer, " ", "\n")
    result = causal.infill(PREFIX, SUFFIX, 3, mode="beam", num_beams=4, heal=False, logit_bias=bias)
    assert not result.text.strip()


def test_the_prior_decides_between_a_repeated_line_and_another(
    make_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a prior of zero the likeliest text is one of the context in some model, and with a low one it never is."""
    repeated = []
    for nats in (0.0, -1e3):
        monkeypatch.setattr(lines, "REPEATED_NATS", nats)
        number = 0
        for seed in range(6):
            model = make_model(seed)
            bias = only(model.tokenizer, "b", "c", "\n")
            text = model.infill("b\n", "d\n", 2, mode="beam", num_beams=8, heal=False, logit_bias=bias).text
            number += text.strip() == "b"
        repeated.append(number)
    assert repeated[0] > 0 and repeated[1] == 0
