"""Uniform and hybrid noise against Bayes' rule on explicit matrices, and against the papers' own formulas.

Symbols 0 to 4 and the mask 5; noise draws 1 to 4. Matrices are (V, V): row the earlier token, column the later one.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from daguerre.errors import InputError
from daguerre.noise import process as table
from daguerre.noise.process import Absorbing, Hybrid, Process, Uniform
from daguerre.noise.replacing import Replacing
from daguerre.noise.schedule import Cosine, Linear, Polynomial
from enumerated import MASK, NOISE, NUM_SYMBOLS, PROCESSES, V, transitions

N = NOISE[1] - NOISE[0]
NOISY: list[Replacing] = [
    Uniform(NOISE),
    Uniform(NOISE, Cosine()),
    Uniform(NOISE, Polynomial(2.0)),
    Hybrid(NOISE, MASK),
    Hybrid(NOISE, MASK, p_uniform=0.3, gamma=1.7),
    Hybrid(NOISE, MASK, p_uniform=0.9, gamma=2.0),
]
each_noisy = pytest.mark.parametrize("process", NOISY, ids=repr)
each_process = pytest.mark.parametrize("name", PROCESSES)
TIMES = [0.01, 0.2, 0.5, 0.8, 0.99]
RNG = np.random.default_rng(0)


def published(process: Replacing, t: float) -> np.ndarray:
    """q(x_t given x_0) as the papers write it."""
    out = np.zeros((V, V))
    if isinstance(process, Uniform):
        alpha = process.schedule.alpha(torch.tensor(t, dtype=torch.float64)).item()
        out[:, NOISE[0] : NOISE[1]] = (1 - alpha) / N
    else:
        assert isinstance(process, Hybrid)
        odds = process.p_uniform / (1 - process.p_uniform)
        c = 2**process.gamma * odds * t ** (process.gamma / 2) * (1 - t) ** (process.gamma / 2)
        alpha = (1 - t) / (1 + c)
        out[:, NOISE[0] : NOISE[1]] = c / (1 + c) / N
        out[:, MASK] = t / (1 + c)
    return out + alpha * np.eye(V)


def step_matrix(process: Replacing, s: float, t: float) -> np.ndarray:
    """q(x_t given x_s), from q_s and q_t and that a token's own share falls by alpha_t/alpha_s."""
    q_s, q_t = published(process, s), published(process, t)
    survive = (q_t[0, 0] - q_t[1, 0]) / (q_s[0, 0] - q_s[1, 0])
    return survive * np.eye(V) + (q_t - survive * q_s)[0] * (np.arange(V) != 0)


def column(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values)[None, None]


def random_distribution() -> np.ndarray:
    out = np.zeros(V)
    out[:NUM_SYMBOLS] = RNG.dirichlet(np.ones(NUM_SYMBOLS))
    return out


@each_noisy
def test_the_marginal_and_every_step_are_distributions_as_published(process: Replacing) -> None:
    """Nothing negative: a token never has to turn back into what it was."""
    for t in (0.0, *TIMES, 1.0):
        assert transitions(process, t).numpy() == pytest.approx(published(process, t), abs=1e-14)
        assert transitions(process, t).sum(-1).tolist() == pytest.approx([1.0] * V)
    for s, t in zip(TIMES, TIMES[1:], strict=False):
        assert step_matrix(process, s, t).min() >= 0
        assert step_matrix(process, s, t).sum(1) == pytest.approx(np.ones(V))
        assert published(process, s) @ step_matrix(process, s, t) == pytest.approx(published(process, t), abs=1e-13)


@each_noisy
def test_the_jump_rate_is_the_slope_of_a_short_step(process: Replacing) -> None:
    short = 1e-6
    for t in TIMES:
        slope = step_matrix(process, t - short / 2, t + short / 2)[0, 1:] / short
        rate = process.jump_rate(torch.arange(1, V)[None], torch.tensor([t], dtype=torch.float64))[0].numpy()
        assert rate == pytest.approx(slope, rel=2e-4)


@each_noisy
def test_the_posterior_is_bayes_rule_for_known_and_for_guessed_tokens(process: Replacing) -> None:
    """Known: q(x_t given x_s) q(x_s given x_0) / q(x_t given x_0). Guessed: its mean over p(x_0 given x_t)."""
    steps = [(0.99, 0.5), (0.7, 0.4), (0.02, 0.01), (0.3, 0.0)]
    for (t, s), x_t in itertools.product(steps, range(1, V)):
        q_s, q_t, step = published(process, s), published(process, t), step_matrix(process, s, t)
        if not q_t[0, x_t]:
            continue
        bayes = np.stack([step[:, x_t] * q_s[x_0] / q_t[x_0, x_t] for x_0 in range(NUM_SYMBOLS)])
        for guess in [*np.eye(V)[:NUM_SYMBOLS], random_distribution(), random_distribution()]:
            known = guess[:NUM_SYMBOLS] * q_t[:NUM_SYMBOLS, x_t]
            ours = process.posterior(torch.tensor([[x_t]]), column(guess), t, s)[0, 0].numpy()
            assert ours == pytest.approx(known @ bayes / known.sum(), abs=1e-12)
            assert ours.sum() == pytest.approx(1.0, abs=1e-12)


@each_noisy
def test_from_pure_noise_the_posterior_is_the_marginal(process: Replacing) -> None:
    guess = random_distribution()
    start = int(process.prior_from(torch.tensor([0.4], dtype=torch.float64)))
    ours = process.posterior(torch.tensor([[start]]), column(guess), 1.0, 0.6)[0, 0].numpy()
    assert ours == pytest.approx(guess @ published(process, 0.6), abs=1e-12)
    assert process.posterior(torch.tensor([[start]]), column(guess), 1.0, 0.0)[0, 0].numpy() == pytest.approx(guess)


@each_noisy
def test_a_token_that_noise_never_draws_stays_and_costs_nothing(process: Replacing) -> None:
    """Also where the model gives it no probability at all, as it does to <bos>."""
    eos = torch.tensor([[0]])
    never = column(np.eye(V)[1])
    assert process.posterior(eos, never, 0.6, 0.3)[0, 0].tolist() == np.eye(V)[0].tolist()
    logits = never.log().requires_grad_()
    t = torch.tensor([0.6])
    loss = process.nelbo(logits, eos, eos, t) + process.cross_entropy(logits, eos, eos, t)
    loss.sum().backward()
    assert loss.item() == 0
    assert logits.grad is not None and not logits.grad.any()


@each_process
def test_corruption_follows_the_marginal_and_repeats(name: str) -> None:
    process, num = PROCESSES[name], 20_000
    times = torch.tensor(TIMES, dtype=torch.float64)
    for symbol in (0, 2):
        x0 = torch.full((len(TIMES), num), symbol)
        first, again = (process.corrupt(x0, times, torch.Generator().manual_seed(symbol)) for _ in range(2))
        assert torch.equal(first, again)
        for row, t in zip(first, TIMES, strict=True):
            share = torch.bincount(row, minlength=V).double() / num
            expected = transitions(process, t)[symbol]
            sigma = (expected * (1 - expected) / num).sqrt()
            assert ((share - expected).abs() <= 4 * sigma).all()
            assert not (share[expected == 0]).any()


@each_process
def test_the_ends_of_corruption_are_the_text_and_the_prior(name: str) -> None:
    process, x0 = PROCESSES[name], torch.arange(NUM_SYMBOLS).repeat(2, 400)
    xt = process.corrupt(x0, torch.tensor([0.0, 1.0]), torch.Generator().manual_seed(0))
    prior = process.prior_from(torch.rand(2000, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    assert torch.equal(xt[0], x0[0])
    expected = transitions(process, 1.0)[0]
    for drawn in (xt[1], prior):
        share = torch.bincount(drawn, minlength=V).double() / len(drawn)
        assert ((share - expected).abs() <= 4 * (expected * (1 - expected) / len(drawn)).sqrt()).all()


def duo(alpha: float, slope: float, x0: int, z: int, probs: np.ndarray) -> float:
    """Duo's integrand (arXiv 2506.10892, as its authors write it), for noise over all of the vocabulary."""
    num = len(probs)
    bar, true = num * alpha * probs + 1 - alpha, num * alpha * np.eye(num)[x0] + 1 - alpha
    c, same = (1 - alpha) / (num * alpha + 1 - alpha), x0 == z
    first = num * (1 / true[z] - 1 / bar[z])
    second = -(c if same else 1) * (np.log(bar).sum() - num * np.log(bar[z]))
    second -= 0 if same else num * alpha / (1 - alpha) * (np.log(bar[x0]) - np.log(bar[z]))
    second += ((num - 1) * c if same else -1 / c) * np.log(c)
    return float(slope / (num * alpha) * (first - second))


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=repr)
def test_the_uniform_bound_is_duo_s(schedule: Linear | Cosine) -> None:
    process = Uniform((0, 5), schedule)
    for t, x0, z in itertools.product(TIMES, range(5), range(5)):
        time = torch.tensor([t], dtype=torch.float64)
        alpha, slope = schedule.alpha(time).item(), schedule.alpha_prime(time).item()
        probs = RNG.dirichlet(np.ones(5))
        ours = process.nelbo(column(probs).log(), torch.tensor([[x0]]), torch.tensor([[z]]), time).item()
        assert ours == pytest.approx(duo(alpha, slope, x0, z, probs), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("process", [p for p in NOISY if isinstance(p, Hybrid)], ids=repr)
def test_the_hybrid_bound_is_gidd_s(process: Hybrid) -> None:
    """The three weights, Kullback-Leibler and Itakura-Saito divergence of arXiv 2503.04482."""
    for t in TIMES:
        check_gidd(process, t)


def check_gidd(process: Hybrid, t: float) -> None:
    odds = process.p_uniform / (1 - process.p_uniform)
    c = (4 * t * (1 - t)) ** (process.gamma / 2) * odds
    slope = process.gamma / 2 * (1 - 2 * t) / (t * (1 - t)) * c
    push, q, time = c + (1 - t) * slope, published(process, t), torch.tensor([t], dtype=torch.float64)
    for x0 in range(1, NUM_SYMBOLS):
        for z in range(1, V):
            weight = push / ((1 - t) * c)
            if z == MASK:
                weight = 1 / (t * (1 - t))
            elif z == x0:
                weight = push / N / ((1 - t) * (1 - t + c / N))
            probs = random_distribution()
            guess = probs @ q
            kl = sum(p * np.log(p / g) for p, g in zip(q[x0], guess, strict=True) if p)
            r = q[x0, z] / guess[z]
            expected = weight * (kl + r - np.log(r) - 1)
            tokens = torch.tensor([[x0]]), torch.tensor([[z]])
            assert process.weight(*tokens, time).item() == pytest.approx(weight, rel=1e-9)
            assert process.nelbo(column(probs).log(), *tokens, time).item() == pytest.approx(expected, rel=1e-7)


def test_dynamic_weights_are_two_one_and_little() -> None:
    process, t = Hybrid(NOISE, MASK, p_uniform=0.2), 0.3
    x0, xt = torch.tensor([[2, 2, 2]]), torch.tensor([[MASK, 1, 2]])
    logits, time = torch.randn(1, 3, V, generator=torch.Generator().manual_seed(0)), torch.tensor([t])
    ratio = process.dynamic_loss(logits, x0, xt, time) / process.divergence(logits, x0, xt, time)
    small = 2 * 0.2 / 0.8 / N * (t / (1 - t)) ** 0.5
    assert ratio[0].tolist() == pytest.approx([2.0, 1.0, small], rel=0.2)
    assert ratio[0, :2].tolist() == pytest.approx([2.0, 1.0], rel=1e-6)


def test_no_dynamic_weight_is_above_two() -> None:
    for gamma in (0.5, 2.0):
        check_dynamic_weight(Hybrid(NOISE, MASK, p_uniform=0.9, gamma=gamma))


def check_dynamic_weight(process: Hybrid) -> None:
    t = torch.linspace(0.001, 0.999, 50)
    x0, xt = torch.full((50, 3), 2), torch.tensor([[MASK, 1, 2]]).expand(50, -1)
    logits = torch.randn(50, 3, V, generator=torch.Generator().manual_seed(0))
    loss = process.dynamic_loss(logits, x0, xt, t)
    assert (loss <= 2.0 * process.divergence(logits, x0, xt, t) + 1e-12).all()
    assert (loss < process.nelbo(logits, x0, xt, t)).any()


def test_without_random_tokens_the_hybrid_is_absorbing() -> None:
    hybrid, absorbing = Hybrid(NOISE, MASK, p_uniform=1e-9), Absorbing(MASK)
    logits = torch.randn(40, 3, V, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[..., MASK] = -torch.inf
    generator = torch.Generator().manual_seed(1)
    x0 = torch.randint(1, NUM_SYMBOLS, (40, 3), generator=generator)
    t = torch.linspace(0.01, 0.99, 40, dtype=torch.float64)
    xt = absorbing.corrupt(x0, t, generator)
    for loss in ("nelbo", "cross_entropy"):
        ours, theirs = (getattr(p, loss)(logits, x0, xt, t) for p in (hybrid, absorbing))
        assert torch.allclose(ours, theirs, atol=1e-5)
    ours, theirs = (p.posterior(xt, logits.softmax(-1), 0.7, 0.4) for p in (hybrid, absorbing))
    assert torch.allclose(ours, theirs, atol=1e-6)


@each_process
def test_the_cross_entropy_is_that_of_bayes_rule(name: str) -> None:
    process = PROCESSES[name]
    for t, z in itertools.product(TIMES, range(V)):
        q, time, guess = transitions(process, t).numpy(), torch.tensor([t]), random_distribution()
        joint = guess * q[:, z]
        for x0 in np.flatnonzero(joint):
            ours = process.cross_entropy(column(guess).log(), torch.tensor([[x0]]), torch.tensor([[z]]), time).item()
            assert ours == pytest.approx(-np.log(joint[x0] / joint.sum()), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "dtype"), [("absorbing", torch.bfloat16), ("uniform", torch.float32), ("hybrid", torch.bfloat16)]
)
def test_gradients_are_finite_at_extreme_times_and_logits(name: str, dtype: torch.dtype) -> None:
    """With minus infinity at reserved ids, as a model has them."""
    process, generator = PROCESSES[name], torch.Generator().manual_seed(0)
    t = torch.tensor([1e-6, 1e-4, 0.3, 0.9999, 1 - 1e-6], dtype=torch.float64)
    x0 = torch.randint(1, NUM_SYMBOLS, (5, 64), generator=generator)
    kept, u = torch.rand((2, 5, 64), generator=generator, dtype=torch.float64)
    xt = torch.where(kept < 0.5, x0, process.prior_from(u))
    logits = (50 * torch.randn(5, 64, V, generator=generator)).to(dtype)
    logits[..., [0, MASK]] = -torch.inf
    losses = ["nelbo", "cross_entropy", *(["dynamic_loss"] if name == "hybrid" else [])]
    for loss in losses:
        leaf = logits.clone().requires_grad_()
        value = getattr(process, loss)(leaf, x0, xt, t)
        assert value.shape == x0.shape and value.dtype == torch.float64
        assert value.isfinite().all() and (value >= -1e-9).all()
        value.sum().backward()
        assert leaf.grad is not None and leaf.grad.isfinite().all() and leaf.grad.any()


@each_process
def test_gradients_agree_with_finite_differences(name: str) -> None:
    process, generator = PROCESSES[name], torch.Generator().manual_seed(0)
    x0, t = torch.randint(1, NUM_SYMBOLS, (3, 2), generator=generator), torch.tensor([0.2, 0.5, 0.8])
    xt = process.corrupt(x0, t, generator)
    logits = torch.randn(3, 2, V, generator=generator, dtype=torch.float64, requires_grad=True)
    for loss in (process.nelbo, process.cross_entropy):
        assert torch.autograd.gradcheck(lambda x, loss=loss: loss(x, x0, xt, t), (logits,))


def test_processes_are_compared_and_kept_by_value() -> None:
    assert Uniform((1, 5)) == Uniform((1, 5), Linear()) != Uniform((1, 4))
    assert len({Hybrid((1, 5), 0), Hybrid((1, 5), 0), Hybrid((1, 5), 0, 0.2)}) == 2
    assert {type(process) for process in PROCESSES.values()} == set(table.PROCESSES.values())
    assert [PROCESSES[name].needs_time for name in ("absorbing", "uniform", "hybrid")] == [False, True, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform((4, 4)), "noise_ids must be a run"),
        (lambda: Uniform((-1, 4)), "noise_ids must be a run"),
        (lambda: Hybrid((1, 5), 3), "mask 3 must lie outside"),
        (lambda: Hybrid((1, 5), 5, p_uniform=0.0), "p_uniform"),
        (lambda: Hybrid((1, 5), 5, p_uniform=1.0), "p_uniform"),
        (lambda: Hybrid((1, 5), 5, gamma=0.0), "gamma"),
        (lambda: Hybrid((1, 5), 5, gamma=2.5), "gamma"),
    ],
)
def test_a_wrong_fact_is_an_error_that_names_it(make: type[Process], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@each_process
def test_a_loss_at_the_ends_of_time_and_a_posterior_backwards_in_time_are_refused(name: str) -> None:
    tokens, logits = torch.tensor([[1], [1]]), torch.zeros(2, 1, V)
    for t in (0.0, 1.0, -0.5, float("nan")):
        with pytest.raises(InputError, match="strictly between 0 and 1"):
            PROCESSES[name].nelbo(logits, tokens, tokens, torch.tensor([0.5, t]))
    for t, s in ((0.5, 0.5), (0.2, 0.4), (1.2, 0.5), (0.5, -0.1)):
        with pytest.raises(InputError, match="earlier s"):
            PROCESSES[name].posterior(torch.tensor([[1]]), torch.ones(1, 1, V) / V, t, s)
