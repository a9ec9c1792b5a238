"""Score entropy (SEDD, arXiv 2310.16834), and the scores of a model that predicts x_0.

A score is s(y) = p_t(x with y at a position) / p_t(x), for each token y. A model of x_0 has the scores

    s(y) = q_t(y given x_theta) / q_t(x_t given x_theta),

and with these the score entropy of a process is its `nelbo`, at every text and time: SEDD with the absorbing matrix is
MDLM, with the uniform one Duo. So a model of scores is trained and scored through its x_0 form; this file is the
definition that the closed forms are compared with.

Letters: B sequences, L positions, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.noise.process import Process
from oracles.forward_process import jump_rate, marginal


def log_scores(process: Process, logits_BLV: Tensor, xt_BL: Tensor, t_B: Tensor) -> Tensor:
    """log s(y) of a model of x_0, float64 (B, L, V); minus infinity where x_t cannot have come from y.

    `logits` give no mass to the mask.
    """
    log_q = marginal(process, logits_BLV.double().softmax(-1), t_B).log()
    return log_q - log_q.gather(-1, xt_BL[..., None])


def score_entropy(process: Process, log_scores_BLV: Tensor, x0_BL: Tensor, xt_BL: Tensor, t_B: Tensor) -> Tensor:
    """jump_t(z) sum_{y != z} [s(y) - r(y) log s(y) + r(y) (log r(y) - 1)], nats a token, float64 (B, L).

    z = x_t and r(y) = q_t(y given x_0) / q_t(z given x_0), the score of the text itself.
    """
    clean = F.one_hot(x0_BL, log_scores_BLV.shape[-1]).double()
    ratio = marginal(process, clean, t_B)
    ratio = ratio / ratio.gather(-1, xt_BL[..., None])
    wanted = log_scores_BLV.double().masked_fill(ratio == 0, 0.0)
    terms = log_scores_BLV.double().exp() - ratio * wanted + torch.xlogy(ratio, ratio) - ratio
    rate = jump_rate(process, xt_BL, t_B)
    staying = terms.gather(-1, xt_BL[..., None])[..., 0]
    return torch.where(rate > 0, rate * (terms.sum(-1) - staying), 0.0)
