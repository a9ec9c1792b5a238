"""WeDLM by transformers: Qwen2 or Qwen3 over known tokens first and masks last; and how it is decoded, restated from
its paper (arXiv 2512.22737) and the descriptions of its engine and of its generation without a cache.

Letters: L positions, V vocabulary, M masks.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import torch

import daguerre
from daguerre.model import Model
from oracles.published import Decoded, probabilities
from published import MASK, NUM_TOKENS, QWEN2, QWEN3, SIZE, SPECIALS, Case

WEDLM = {"architecture": "WeDLMForCausalLM", "model_type": "wedlm", "family": "wedlm"}
FACTS = {"context": "reordered", "shift": False, "mask_id": MASK, "out_bias": False}
CASES = {
    "8B": Case(
        core="qwen3",
        config=QWEN3 | {"qk_norm": True, "mask_token_id": MASK, "layer_types": ["full_attention"] * 2},
        core_config=QWEN3,
        facts=FACTS | {"qkv_bias": False, "qk_norm": True, "head_width": 12},
        shards=2,
        **WEDLM,
    ),
    "7B": Case(
        core="qwen2",
        config=QWEN2 | {"attention_bias": True, "qk_norm": False, "mask_token_id": MASK, "head_dim": None},
        core_config=QWEN2,
        facts=FACTS | {"qkv_bias": True, "qk_norm": False, "head_width": 8},
        **WEDLM,
    ),
    "7B, tied, keys left out": Case(
        core="qwen2",
        config=QWEN2 | {"tie_word_embeddings": True},
        core_config=QWEN2 | {"tie_word_embeddings": True},
        tokenizer={"mask_token": SPECIALS[-1]},
        without=("lm_head",),
        facts=FACTS | {"qkv_bias": True, "qk_norm": False, "tied": True},
        **WEDLM,
    ),
}
NEVER = {MASK, *range(NUM_TOKENS, SIZE)}


class Reordered:
    """A causal model of transformers, which is given known tokens first and masks last, at their own positions.

    never  tokens that are not predicted
    """

    def __init__(self, model: torch.nn.Module, mask: int, never: Iterable[int] = ()) -> None:
        self._model, self._mask, self._never = model, mask, sorted(never)

    def of(self, tokens: np.ndarray, opened: np.ndarray) -> np.ndarray:
        """Logits (M, V) of the positions that are open, bool (L,), of a canvas (L,)."""
        places = np.concatenate([np.flatnonzero(~opened), np.flatnonzero(opened)])
        shown = np.where(opened, self._mask, tokens)[places]
        bias = torch.full((len(places), len(places)), torch.finfo(torch.float32).min).triu(1)
        with torch.inference_mode():
            out = self._model(
                input_ids=torch.from_numpy(shown)[None],
                position_ids=torch.from_numpy(places)[None],
                attention_mask=bias[None, None],
                use_cache=False,
            )
        logits = out.logits[0, int((~opened).sum()) :].double().numpy()
        logits[:, self._never] = -np.inf
        return np.asarray(logits)


def in_blocks(model: Reordered, canvas: np.ndarray, start: int, size: int, threshold: float) -> Decoded:
    """Blocks of `size` masks after the text, one after the other, of which nothing later is there. A step takes the
    tokens of probability `threshold` or more, or the likeliest.
    """
    out = Decoded.begin(canvas, start)
    for first in range(start, len(canvas), size):
        end = min(first + size, len(canvas))
        while out.open[first:end].any():
            masks = np.flatnonzero(out.open[:end])
            chances = probabilities(model.of(out.tokens[:end], out.open[:end]))
            surest = chances.max(-1)
            fill(out, masks, chances.argmax(-1), (surest >= threshold) if (surest >= threshold).any() else surest)
    return out


def in_window(
    model: Reordered,
    canvas: np.ndarray,
    start: int,
    size: int,
    threshold: float,
    penalty: float,
    ends: Iterable[int] = (),
    after: int = 0,
) -> Decoded:
    """A window that begins at the first mask: finished tokens at its front leave it, and as many masks enter at its
    end, up to the canvas' last `after` tokens, which are known. A step takes the tokens whose entropy and penalty are
    below the threshold, or the one for which they are least. It ends behind an end of text that nothing is open before.
    """
    out = Decoded.begin(canvas, start)
    out.open[len(canvas) - after :] = False
    while out.open.any():
        first = int(np.flatnonzero(out.open)[0])
        if np.isin(out.tokens[start:first], list(ends)).any():
            break
        masks = first + np.flatnonzero(out.open[first : first + size])
        chances = probabilities(model.of(out.tokens, out.open)[: len(masks)])  # those behind are seen by none of these
        cost = entropies(chances) + penalty * (masks - first)
        fill(out, masks, chances.argmax(-1), (cost < threshold) if (cost < threshold).any() else -cost)
    return out


def entropies(chances: np.ndarray) -> np.ndarray:
    """In nats, of probabilities (M, V)."""
    return -np.asarray((chances * np.log(np.where(chances > 0, chances, 1.0))).sum(-1))


def fill(out: Decoded, masks: np.ndarray, tokens: np.ndarray, chosen: np.ndarray) -> None:
    """Commit the masks that are chosen, bool (M,), or the one of the highest rank, (M,)."""
    if chosen.dtype != bool:
        chosen = np.arange(len(masks)) == chosen.argmax()
    made = out.tokens.copy()
    made[masks] = tokens
    out.commit(masks[chosen], made)


@cache
def made(name: str) -> torch.nn.Module:
    """The model of transformers of a case."""
    return CASES[name].model()


@cache
def oracle_of(name: str) -> Reordered:
    return Reordered(made(name), MASK, NEVER)


def load_all(parent: Path) -> dict[str, Model]:
    """The model of each case, from a folder in the publisher's layout."""
    folders = {name: case.write(parent / str(number), made(name)) for number, (name, case) in enumerate(CASES.items())}
    return {name: daguerre.load(folder, dtype="float32", backend="torch") for name, folder in folders.items()}


def prompts() -> list[list[int]]:
    """Token ids, of which one is a literal mask, which is text like any other."""
    rng = np.random.default_rng(11)
    out = [rng.integers(0, 256, length).tolist() for length in (1, 6, 19)]
    out[1][2] = MASK
    return out


def masked(prompt: list[int], num: int, after: list[int] | None = None) -> np.ndarray:
    """A prompt, `num` masks and what follows them."""
    return np.array([*prompt, *[MASK] * num, *(after or [])], dtype=np.int64)
