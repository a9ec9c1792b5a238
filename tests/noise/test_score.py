"""SEDD through its x_0 form: with the scores of a model of x_0, score entropy is the NELBO of the process.

Symbols 0 to 4 and the mask 5; noise draws 1 to 4, or 0 to 4 where the formulas are SEDD's own.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from daguerre.noise.process import Absorbing, Process, Uniform
from daguerre.noise.schedule import Cosine
from enumerated import MASK, PROCESSES, V
from oracles.score_entropy import log_scores, score_entropy

B, L = 40, 6
MORE: dict[str, Process] = PROCESSES | {
    "uniform, cosine": Uniform((1, 5), Cosine()),
    "absorbing, cosine": Absorbing(MASK, Cosine()),
    "uniform over all": Uniform((0, 5)),
}
each_process = pytest.mark.parametrize("process", MORE.values(), ids=MORE)


def example(process: Process) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, x_0, x_t and t at random."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(B, L, V, generator=generator, dtype=torch.float64)
    logits[..., MASK] = -torch.inf
    x0 = torch.randint(0, V - 1, (B, L), generator=generator)
    t = torch.linspace(0.002, 0.998, B, dtype=torch.float64)
    return logits, x0, process.corrupt(x0, t, generator), t


@each_process
def test_score_entropy_of_a_model_of_x0_is_its_nelbo(process: Process) -> None:
    logits, x0, xt, t = example(process)
    ours = score_entropy(process, log_scores(process, logits, xt, t), x0, xt, t)
    assert torch.allclose(ours, process.nelbo(logits, x0, xt, t), rtol=1e-9, atol=1e-9)
    assert ours.max() > 1


def sedd_absorbing(log_s: Tensor, x0: int, z: int, sigma: float, slope: float) -> float:
    """The loss of SEDD's absorbing matrix as its authors write it."""
    if z != MASK:
        return 0.0
    ratio = 1 / math.expm1(sigma)
    return slope * float(log_s[:MASK].exp().sum() - ratio * log_s[x0] + ratio * (math.log(ratio) - 1))


def sedd_uniform(log_s: Tensor, x0: int, z: int, sigma: float, slope: float) -> float:
    """The loss of SEDD's uniform matrix as its authors write it; n symbols, all of them noise."""
    n = V - 1
    log_s = log_s[:n]
    e = math.expm1(sigma)
    ratio = 1 - n / (e + n)
    pos = log_s.exp().mean() - log_s[z].exp() / n
    neg = log_s.mean() - log_s[z] / n
    if z == x0:
        neg, const = ratio * neg, (n - 1) / n * ratio * (math.log(ratio) - 1)
    else:
        neg, const = log_s[x0] / e + neg, ((-math.log(ratio) - 1) / ratio - (n - 2)) / n
    return slope * float(pos - neg + const)


@pytest.mark.parametrize(
    ("process", "theirs"),
    [(Absorbing(MASK), sedd_absorbing), (Uniform((0, 5)), sedd_uniform)],
    ids=["absorbing", "uniform"],
)
def test_score_entropy_is_sedd_s_for_any_scores(process: Process, theirs: object) -> None:
    """sigma = -log(1 - t), so that it grows at the rate 1/(1 - t)."""
    _, x0, xt, t = example(process)
    scores = torch.randn(B, L, V, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scores[..., MASK] = -torch.inf
    ours = score_entropy(process, scores.scatter(-1, xt[..., None], 0.0), x0, xt, t)
    for b in range(B):
        sigma, slope = -math.log1p(-t[b].item()), 1 / (1 - t[b].item())
        for i in range(L):
            expected = theirs(scores[b, i].clone(), int(x0[b, i]), int(xt[b, i]), sigma, slope)  # type: ignore[operator]
            assert ours[b, i].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
