"""DiffusionGemma as transformers has it, in tiny random models, and random numbers that both can be given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daguerre.models.core.backbone import Backbone
from daguerre.models.families.base import Published
from daguerre.models.families.gemma import FAMILY
from daguerre.models.model_weights import FileWeights
from daguerre.models.published_weights import fit
from daguerre.models.shards import find_tensors
from daguerre.sampling.random import NOISE, TOKEN, Counter

VOCABULARY, CANVAS, WINDOW, BOS, EOS = 2048, 8, 16, 1, 2
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "sliding_window": WINDOW,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 20,
    "max_position_embeddings": 256,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 60.0,
    "eos_token_id": EOS,
    "bos_token_id": BOS,
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"num_key_value_heads": 2, "head_dim": 8}


def theirs(seed: int = 0, branches: float = 1.0, **sizes: Any) -> Any:
    """A random model of transformers. Its mean top probability is about one half, and its self-conditioning is damped:
    otherwise the rounding of one step would be everything a few steps later. With weak branches it predicts what it
    reads, so canvases come to rest.
    """
    library = pytest.importorskip("transformers")
    text = library.DiffusionGemmaTextConfig(**{**SIZES, **sizes})
    config = library.DiffusionGemmaConfig(text_config=text, vision_config=VISION, canvas_length=CANVAS)
    model, random = library.DiffusionGemmaForBlockDiffusion(config).eval(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.normal_(1, 0.3, generator=random)
            elif "embed_tokens" in name or "lm_head" in name:
                weight.normal_(0, 1, generator=random)
            else:
                weight.normal_(0, weight.shape[-1] ** -0.5, generator=random)
            if name.endswith("self_conditioning.down_proj.weight"):
                weight.mul_(0.3)
            if name.endswith("q_norm.weight"):  # scores are not scaled
                weight.mul_(0.5)
            if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
                weight.mul_(branches)
        for name, number in model.named_buffers():
            if name.endswith("layer_scalar"):
                number.uniform_(0.5, 1.5, generator=random)
    return model


def ours(model: Any, folder: Path) -> Backbone:
    """The same model, from files that transformers writes."""
    model.save_pretrained(folder)
    config = FAMILY.read(Published(config=json.loads((folder / "config.json").read_text()), bos_id=BOS))
    stored = find_tensors(folder)
    return FileWeights(config, "float32", fit(FAMILY, config, stored, folder), stored).module()


class SamplerNumbers:
    """The random numbers of our sampler, in the order in which transformers asks for its own, for one request."""

    def __init__(self, seed: int, num_given: int, patch: pytest.MonkeyPatch) -> None:
        self._rng, self._start, self.forwards = Counter(seed, 0), num_given - CANVAS, 0
        self._drawn = False
        patch.setattr(torch, "randint", self._noise)
        patch.setattr(torch, "multinomial", self._tokens)
        patch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)  # imports for seconds

    def _uniform(self, purpose: int) -> np.ndarray:
        return self._rng.uniform(purpose, self._start + np.arange(CANVAS), self.forwards)

    def _noise(self, low: int, high: int, size: tuple[int, ...], device: Any) -> torch.Tensor:
        """Noise that no draw precedes is that of a new canvas."""
        assert (low, high, size) == (0, VOCABULARY, (1, CANVAS))
        self._start += 0 if self._drawn else CANVAS
        self._drawn = False
        return torch.from_numpy((self._uniform(NOISE) * VOCABULARY).astype(np.int64))[None]

    def _tokens(self, probs: torch.Tensor, num_samples: int) -> torch.Tensor:
        assert num_samples == 1
        total, u = probs.double().cumsum(-1), torch.from_numpy(self._uniform(TOKEN))[:, None]
        self.forwards, self._drawn = self.forwards + 1, True
        return (total <= u * total[:, -1:]).sum(-1, keepdim=True)
