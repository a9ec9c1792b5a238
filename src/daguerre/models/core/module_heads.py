"""The modules of concept heads and of the vocabulary projection, asked with NumPy's arrays: the reference for
`models.heads.ArrayHeads`, and for models on any device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.models.heads import Heads, KeptConcepts


class ModuleHeads(Heads):
    """The heads of a backbone, as its weights are when it is asked."""

    def __init__(self, backbone: Backbone) -> None:
        self.config, self._backbone = backbone.config, backbone

    @property
    def _heads(self) -> ConceptHeads:
        assert self._backbone.concepts is not None
        return self._backbone.concepts

    @torch.inference_mode()
    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits of all concepts; see `Heads`."""
        h = self._given(hidden)
        return _array(torch.cat([self._heads.known_logits(h), self._heads.discovered_logits(h)], dim=-1))

    @torch.inference_mode()
    def known_logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits of known concepts; see `Heads`."""
        return _array(self._heads.known_logits(self._given(hidden)))

    @torch.inference_mode()
    def read_logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits of known concepts of tokens that were read; see `Heads`."""
        return _array(self._heads.read_logits(self._given(hidden)))

    @torch.inference_mode()
    def weights(self, hidden: np.ndarray) -> np.ndarray:
        """Weights of all concepts; see `Heads`."""
        return _array(self._heads.weights(self._given(hidden)))

    @torch.inference_mode()
    def kept(self, hidden: np.ndarray) -> KeptConcepts:
        """Hidden states as sums; see `Heads`."""
        found = self._heads.decompose(self._given(hidden))
        concepts = torch.cat([found.known_ids, found.discovered_ids], dim=-1)
        weights = torch.cat([found.known_weights, found.discovered_weights], dim=-1)
        return KeptConcepts(_array(concepts), _array(weights), _array(found.residual))

    @torch.inference_mode()
    def vectors(self, concepts: np.ndarray) -> np.ndarray:
        """The vectors of concepts; see `Heads`."""
        return _array(self._heads.vectors(self._given(concepts).long()))

    @torch.inference_mode()
    def sums(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums of vectors; see `Heads`."""
        given, num = self._given(weights).float(), self.shape.known
        return _array(self._heads.known_sum(given[:num])), _array(self._heads.discovered_sum(given[num:]))

    @torch.inference_mode()
    def effects(self, tokens: np.ndarray, concepts: np.ndarray) -> np.ndarray:
        """What concepts do for tokens; see `Heads`."""
        heads, rows = self._heads, self._backbone.projection[self._given(tokens)].float()
        known, coefficients = heads.known_embedding.weight, heads.discovered_coefficients.weight
        inner = rows @ heads.discovered_basis.weight.float()
        of_known = rows @ known[: self.shape.known].float().T
        every = torch.cat([of_known, inner @ coefficients[: self.shape.discovered].float().T], dim=-1)
        return _array(every.gather(1, self._given(concepts)))

    @torch.inference_mode()
    def promoted(self, vectors: np.ndarray) -> np.ndarray:
        """What vectors promote; see `Heads`."""
        return _array(self._backbone.promoted(self._given(vectors)))

    @torch.inference_mode()
    def rows(self, tokens: np.ndarray) -> np.ndarray:
        """Rows of the projection; see `Heads`."""
        return _array(self._backbone.projection[self._given(tokens)].float())

    @torch.inference_mode()
    def bias(self, tokens: np.ndarray) -> np.ndarray:
        """Biases of the projection; see `Heads`."""
        output = self._backbone.output
        if output is None or output.bias is None:
            return np.zeros(len(tokens), np.float32)
        return _array(output.bias[self._given(tokens)].float())

    def _given(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(self._backbone.embedding.weight.device)


def _array(x: Tensor) -> np.ndarray:
    out: np.ndarray = x.cpu().numpy()
    return out
