"""Remasking keeps the marginals of the absorbing process, whatever it takes back."""

from __future__ import annotations

import pytest
import torch

from daguerre.errors import InputError
from daguerre.noise.process import Absorbing
from daguerre.noise.remasking import RULES, Remasking
from daguerre.noise.schedule import Cosine, Linear
from enumerated import MASK, V

KNOWN = torch.eye(V, dtype=torch.float64)[2].expand(1, V, V)
EVERY = torch.arange(V)[None]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("eta", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=repr)
@pytest.mark.parametrize(("t", "s"), [(1.0, 0.7), (0.9, 0.6), (0.5, 0.4), (0.2, 0.0)])
def test_a_step_turns_one_marginal_into_the_other(rule: str, eta: float, schedule: Linear, t: float, s: float) -> None:
    """sum over x_t of q(x_t given x_0) q(x_s given x_t, x_0) = q(x_s given x_0)."""
    process = Absorbing(MASK, schedule)
    step = Remasking(process, eta, rule).posterior(EVERY, KNOWN, t, s)[0]  # type: ignore[arg-type]
    assert step.min() >= 0
    assert step.sum(-1).tolist() == pytest.approx([1.0] * V)
    later, earlier = (process.marginal(KNOWN[:, :1], torch.tensor([x], dtype=torch.float64))[0, 0] for x in (t, s))
    assert (later @ step).tolist() == pytest.approx(earlier.tolist(), abs=1e-12)


def test_with_eta_zero_it_is_the_absorbing_posterior() -> None:
    ours, theirs = (p.posterior(EVERY, KNOWN, 0.8, 0.3) for p in (Remasking(Absorbing(MASK), 0.0), Absorbing(MASK)))
    assert torch.equal(ours, theirs)


def test_the_rules_bound_what_is_taken_back() -> None:
    """From t = 0.5 to s = 0.4 at most (1 - alpha_s)/alpha_t = 0.8 of the tokens can be masked again."""
    for rule, eta, expected in (("cap", 0.3, 0.3), ("cap", 1.0, 0.8), ("rescale", 0.3, 0.24), ("rescale", 1.0, 0.8)):
        step = Remasking(Absorbing(MASK), eta, rule).posterior(EVERY, KNOWN, 0.5, 0.4)  # type: ignore[arg-type]
        assert step[0, 1, MASK].item() == pytest.approx(expected)


def test_a_wrong_rule_share_or_time_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'rescale'"):
        Remasking(Absorbing(MASK), 0.1, "rescal")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="eta must be"):
        Remasking(Absorbing(MASK), 1.5)
    with pytest.raises(InputError, match="earlier s"):
        Remasking(Absorbing(MASK), 0.1).posterior(EVERY, KNOWN, 0.2, 0.5)
