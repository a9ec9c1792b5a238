"""A joint distribution of two positions, small enough to sum over all texts and all their corruptions.

Symbols 0 to 4 make up the text; 0 stands for the end of text, which noise never draws; 5 is the mask. Letters: L = 2
positions, V = 6 tokens, X texts, Z corrupted texts.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from daguerre.noise.process import Absorbing, Hybrid, Process, Uniform
from oracles.forward_process import marginal

L, V, MASK, NOISE = 2, 6, 5, (1, 5)
NUM_SYMBOLS = 5
PROCESSES: dict[str, Process] = {
    "absorbing": Absorbing(MASK),
    "uniform": Uniform(NOISE),
    "hybrid": Hybrid(NOISE, MASK, p_uniform=0.2),
}
TEXTS = torch.tensor(list(itertools.product(range(NUM_SYMBOLS), repeat=L)))
NOISY = torch.tensor(list(itertools.product(range(V), repeat=L)))
JOINT = torch.zeros(V, V, dtype=torch.float64)
JOINT[:NUM_SYMBOLS, :NUM_SYMBOLS] = torch.from_numpy(
    np.random.default_rng(3).dirichlet(np.full(NUM_SYMBOLS**L, 0.4)).reshape(NUM_SYMBOLS, NUM_SYMBOLS)
)
ENTROPY = -float(torch.xlogy(JOINT, JOINT).sum())


def transitions(process: Process, t: float) -> Tensor:
    """q(x_t = column given x_0 = row), (V, V)."""
    clean = torch.eye(V, dtype=torch.float64)
    return marginal(process, clean[:, None], torch.full((V,), t, dtype=torch.float64))[:, 0]


def exact_denoiser(process: Process, tokens_BL: Tensor, t: float) -> Tensor:
    """p(x_0(i) given x_t without its position i) of the joint distribution, (B, L, V); even where x_t cannot occur."""
    q = transitions(process, t)
    seen_BLV = q[:, tokens_BL].permute(1, 2, 0)
    first, second = seen_BLV[:, 1] @ JOINT.T, seen_BLV[:, 0] @ JOINT
    probs = torch.stack([first, second], 1)
    total = probs.sum(-1, keepdim=True)
    even = torch.zeros(V, dtype=torch.float64)
    even[:NUM_SYMBOLS] = 1 / NUM_SYMBOLS
    return torch.where(total > 0, probs / total, even)


def marginal_of(process: Process, t: float) -> Tensor:
    """q(x_t given x_0), (X, Z)."""
    q = transitions(process, t)
    return q[TEXTS[:, None, 0], NOISY[None, :, 0]] * q[TEXTS[:, None, 1], NOISY[None, :, 1]]
