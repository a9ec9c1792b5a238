"""The processes of `daguerre.noise.process` as a sampler takes them: in NumPy, by PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from daguerre.noise.reverse import Reverse


class Undone:
    """A process, or its remasking, undone; what `noise.reverse` is compared with."""

    def __init__(self, process: Any) -> None:
        self._process, self.mask_id = process, process.mask_id

    def prior_from(self, u: np.ndarray) -> np.ndarray:
        made: np.ndarray = self._process.prior_from(torch.from_numpy(u)).numpy()
        return made

    def posterior(self, xt_BL: np.ndarray, probs_BLV: np.ndarray, t: float, s: float) -> np.ndarray:
        probs = torch.from_numpy(np.asarray(probs_BLV, np.float64))
        made: np.ndarray = self._process.posterior(torch.from_numpy(xt_BL), probs, t, s).double().numpy()
        return made


def undone(process: Any) -> Reverse:
    """A process of PyTorch as a sampler takes it."""
    return Undone(process)
