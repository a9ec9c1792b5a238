"""An answer's log-probabilities against the scores of its text."""

import copy

import pytest
import torch

from daguerre.models.denoiser import BackboneDenoiser
from daguerre.scoring.likelihood import score_tokens
from daguerre.train.reinforce.estimates import bounded, left_to_right
from oracles.answer_views import exact, in_views, mean

GIVEN, LENGTH = 3, 9


def tokens_of(model):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(10, 40, (LENGTH,), generator=generator)
    tokens[0] = model.config.bos_id
    return tokens


def score(model, tokens, **options):
    backend = BackboneDenoiser(model.backbone, backend="torch").backend
    return score_tokens(backend, tokens.tolist(), given=GIVEN, **options)


def test_exact(models):
    model = models["causal"]
    tokens = tokens_of(model)
    found = exact(copy.deepcopy(model.backbone).requires_grad_(), tokens, GIVEN)
    assert found.shape == (LENGTH - GIVEN,) and found.requires_grad
    assert -found.sum().item() == pytest.approx(score(model, tokens, kind="ar").value, rel=1e-4)


@pytest.mark.parametrize("name", ["full", "full_unshifted"])
def test_in_views(models, name):
    model = models[name]
    tokens = tokens_of(model)
    views = left_to_right(LENGTH - GIVEN)
    found = mean(views, in_views(model.backbone, tokens, GIVEN, views))
    wanted = score(model, tokens, kind="chain", order="left", layout="full")
    assert (-found).tolist() == pytest.approx(list(wanted.by_token), rel=1e-3, abs=1e-4)


def test_the_lower_bound_is_that_of_scoring(models):
    model = models["full_unshifted"]
    tokens = tokens_of(model)
    views = bounded(LENGTH - GIVEN, 100, torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = -mean(views, in_views(model.backbone, tokens, GIVEN, views)).sum().item()
    wanted = score(model, tokens, kind="elbo", layout="full", samples=400)
    assert abs(found - wanted.value) < 4 * 2 * wanted.stderr + 1e-3
