"""Models whose masked rows predict their own position, although clean rows predict the next token: all that decoding,
scoring and training do with them, beside `test_nemotron`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from backends import BACKENDS
from daguerre.canvas import Canvas
from daguerre.decoding import drafters
from daguerre.decoding.lengths import look_alone, look_together
from daguerre.decoding.modes import ar
from daguerre.decoding.request import Decode
from daguerre.errors import UnsupportedError
from daguerre.model import Model
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.session import Counts, compute
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.likelihood import score_tokens
from daguerre.train.methods import method_of
from daguerre.train.recipe import Share, load_recipe
from driving import logits_of
from forwards import difference as relative
from plans import make_plan

T = Tokenizer.default("2k")
PROMPT = [T.bos_id, *T.encode("import os\n\n"), T.mask_id, T.eos_id, *T.encode("def area(w, h):\n    return w")]
"""With a mask and an end of text that are the user's text."""
NEVER = {T.eos_id: float("-inf")}


@pytest.fixture(scope="module")
def backbone_of() -> Any:
    """Makes models of Nemotron's kind."""
    pytest.importorskip("transformers.models.ministral3")
    from oracles import nemotron

    return nemotron.backbone_of


@pytest.fixture(scope="module")
def backbone(backbone_of: Any) -> Backbone:
    """With many different tokens in what it writes."""
    return backbone_of(0)


@pytest.fixture(scope="module")
def drafting(backbone_of: Any) -> Backbone:
    """About half of the tokens of its drafts are right."""
    return backbone_of(0, shared=4.0, layers=2.0, sharp=4.0)


def test_tokens_in_turn_are_those_of_the_masked_rows(backbone: Backbone) -> None:
    """Policy "chain" asks for them; the adapter has no part in it."""
    canvas = Canvas.lay_out([PROMPT], [6], T.mask_id)
    canvas, denoiser = canvas.at((len(PROMPT), len(canvas))), BackboneDenoiser(backbone, "torch")
    want = logits_of(denoiser, canvas, canvas.active_positions())
    session = denoiser.session(canvas)
    found = compute(session.sequential_logits(canvas), denoiser.backend)
    for row in want:
        got = compute(found.after(20), denoiser.backend)
        assert got is not None and relative(got, row) < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_speculation_writes_the_tokens_of_ar_in_fewer_forwards(
    drafting: Backbone, backend: Any, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ar, "row_time", lambda crowd=1: 0.0)  # how much is drafted depends on the processor
    model, forwards = Model(drafting, T, backend), [0, 0]
    prompts, exact = ["import os\n", "x = impo", "", "def area(w, h):\n    return w"], backend == "native"
    for seed, prompt in enumerate(prompts if exact else prompts[:2]):
        options: dict[str, Any] = {"temperature": temperature, "seed": seed, "min_tokens": 30}
        want = model.generate(prompt, 40, mode="ar", **options)
        got = model.generate(prompt, 40, mode="speculative", drafter="head", **options)
        assert [(t.id, t.text) for t in got.tokens] == [(t.id, t.text) for t in want.tokens]
        chances = [[t.logprob for t in result.tokens] for result in (got, want)]
        assert np.abs(np.subtract(*chances)).max() <= (0 if exact else 1e-4)
        forwards = [forwards[0] + got.usage.forwards, forwards[1] + want.usage.forwards]
        for other in ("auto", "lookup") if exact else ():
            again = model.generate(prompt, 40, mode="speculative", drafter=other, **options)
            assert [t.id for t in again.tokens] == [t.id for t in want.tokens]
            assert other == "auto" or again.usage.head_drafted == 0
    assert forwards[0] < 0.9 * forwards[1]


def test_a_mask_in_the_prompt_stays_as_it_is(backbone: Backbone) -> None:
    model = Model(backbone, T, "torch")
    for mode in ("ar", "block", "full", "speculative"):
        result = model.generate(PROMPT[1:], 12, mode=mode, heal=False, logit_bias=NEVER)
        assert result.trace.canvas.tokens[: len(PROMPT)].tolist() == PROMPT
        assert result.usage.completion_tokens == 12


def test_forwards_stay_within_the_bound_where_no_draft_is_right(backbone: Backbone) -> None:
    decode = Decode(mode="speculative", drafter="head", logit_bias=NEVER)
    plan = make_plan(backbone.config, T, decode, PROMPT[1:], None, 20, False)
    usage = Model(backbone, T, "torch").generate(PROMPT[1:], 20, decode=decode, heal=False).usage
    assert 20 < usage.forwards <= plan.max_forwards == 40


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_guided_speculation_writes_the_tokens_of_guided_ar(drafting: Backbone, temperature: float) -> None:
    """By logits, of which the draft has unconditional ones, too."""
    model, options = Model(drafting, T, "torch"), {"guidance": 1.5, "temperature": temperature, "min_tokens": 24}
    want = model.generate("def area(w, h):\n    return w", 24, mode="ar", **options)
    got = model.generate("def area(w, h):\n    return w", 24, mode="speculative", drafter="head", **options)
    assert [t.id for t in got.tokens] == [t.id for t in want.tokens]
    assert got.usage.head_accepted > 0


def test_a_draft_that_is_not_worth_a_forward_is_not_made(backbone: Backbone) -> None:
    """The config promises much; after the first drafts, none of whose tokens are right, the model stops drafting."""
    promising = replace(backbone.config, draft_acceptance=((0.95,) * 7, (0.95,) * 7))
    apart = drafters.Apart(promising, 0.0, 7, False)
    assert apart.worth(drafters.NO_DRAFT, 0.01)
    tries = 0
    while apart.worth(drafters.NO_DRAFT, 0.01):
        apart.count(0)
        tries += 1
    assert 5 < tries < 20
    for _ in range(9):
        apart.count(7)
    assert apart.worth(drafters.NO_DRAFT, 0.01)
    assert not apart.worth(drafters.Drafted.of(np.arange(8), [0.99] * 8, "lookup"), 0.01)
    assert not drafters.Apart(promising, 0.0, 0, False).worth(drafters.NO_DRAFT, 0.01)
    assert drafters.Apart(backbone.config, 0.0, 7, True).worth(drafters.NO_DRAFT, 0.5)


def test_a_chain_of_likelihoods_is_what_decoding_has_in_sight(backbone: Backbone) -> None:
    """Blocks of 8 from position 3 on, the first of each by the clean row before it: each token given those before."""
    ids = [T.bos_id, *np.random.default_rng(5).choice(backbone.config.ordinary_ids, 20).tolist()]
    scores = score_tokens(TorchBackend(backbone), ids, given=3, kind="chain", layout=8)
    assert scores.num_tokens == 18
    denoiser = BackboneDenoiser(backbone, "torch")
    for start_of, end in ((3, 4), (4, 11), (11, 12), (12, 19), (19, 20), (20, 21)):
        for place in range(start_of, end):
            canvas = Canvas.lay_out([ids[:place]], [end - place], T.mask_id).at((start_of, end))
            logits = torch.from_numpy(logits_of(denoiser, canvas, np.array([place])))[0]
            assert abs(float(logits.log_softmax(-1)[ids[place]]) + scores.by_token[place - 3]) < 1e-4


def test_masks_that_predict_the_next_token_are_not_trained(backbone: Backbone) -> None:
    recipe, config = load_recipe("adapt"), replace(backbone.config, max_positions=1024)
    with pytest.raises(UnsupportedError, match="this model's predict their own"):
        method_of(recipe).check(config)
    method_of(replace(recipe, mixture={"text": Share(share=1.0, layout="next_token")})).check(config)


def test_a_gaps_length_is_searched_without_moving_keys(backbone: Backbone) -> None:
    """The rows behind a gap are others where the gap is longer: the scale of their queries is that of their positions.
    One of the two ways to look would move the keys that it computed once.
    """
    denoiser, before, behind = BackboneDenoiser(backbone, "torch"), PROMPT[:9], PROMPT[9:] * 2
    canvases = [Canvas.lay_out([before, behind], [length], T.mask_id) for length in (2, 9)]
    canvases = [canvas.at(canvas.gaps[0]) for canvas in canvases]
    found = [compute(look(denoiser, canvases, Counts()), denoiser.backend) for look in (look_alone, look_together)]
    for one, other in zip(*found, strict=True):
        assert relative(one, other) < 1e-5
