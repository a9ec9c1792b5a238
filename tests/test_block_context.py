"""Models with block context decode as their publishers' own loops do, token for token.

The loops are written here from their descriptions, without a cache; that of LLaDA2 is the one of the diffusers library.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from daguerre.model import Model
from daguerre.models.core.attention import sdpa
from daguerre.sampling.policies import JointThreshold

BLOCK = 8
Logits = Callable[[list[int]], Tensor]
"""Float32 logits (L, V) of a text whose rows see their own block and those before it."""


def block_logits(model: Model) -> Logits:
    """By the plain modules and a dense mask."""

    def logits(tokens: list[int]) -> Tensor:
        place = torch.arange(len(tokens)) // BLOCK
        mask = (place[:, None] >= place)[None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            query, keys, values = (x.transpose(0, 1)[None] for x in (q, k, v))
            return sdpa(query, keys, values, mask)[0].transpose(0, 1)

        with torch.inference_mode():
            hidden = model.backbone(torch.tensor(tokens), torch.arange(len(tokens)), attend)
            return model.backbone.logits(hidden)

    return logits


@pytest.fixture(scope="module")
def unshifted(make_model: Any) -> Model:
    return make_model(context="block", block_size=BLOCK, shift=False, bos_id=None, null_id=None)


@pytest.fixture(scope="module")
def shifted(make_model: Any) -> Model:
    return make_model(context="block", block_size=BLOCK, shift=True, anchor="clean", bos_id=None, null_id=None)


def prompts(model: Model) -> list[list[int]]:
    """Of less than a block, of one block, and of blocks and a part; the last with a literal mask token."""
    rng = np.random.default_rng(4)
    texts = [rng.integers(16, model.config.vocab_size, size=num).tolist() for num in (3, 8, 16, 21)]
    texts[-1][17] = model.config.mask_id
    return texts


def written(model: Model, prompt: list[int], num: int, backend: Any = None, **options: Any) -> list[int]:
    """The tokens at the positions after the prompt."""
    model = Model(model.backbone, model.tokenizer, backend)
    result = model.generate(
        prompt, num, mode="block", heal=False, end_of_text="plain", logit_bias=no_ends(model), **options
    )
    return [token.id for token in result.tokens]


def no_ends(model: Model) -> dict[int, float]:
    return dict.fromkeys(model.config.ends, -1e9)


def probabilities(model: Model, logits: Tensor) -> Tensor:
    logits = logits.clone()
    for token, bias in no_ends(model).items():
        logits[..., token] += bias
    return logits.double().softmax(-1)


def sdar(model: Model, prompt: list[int], num: int, threshold: float | None) -> list[int]:
    """SDAR's loop (arXiv 2510.06303): a block at a time, masks that are likely enough or the likeliest; without a
    threshold one in each step.
    """
    total = -(-(len(prompt) + num) // BLOCK) * BLOCK
    text = prompt + [model.config.mask_id] * (total - len(prompt))
    given = [place < len(prompt) for place in range(total)]
    logits = block_logits(model)
    for start in range(len(prompt) // BLOCK * BLOCK, total, BLOCK):
        left = [place for place in range(start, start + BLOCK) if not given[place]]
        while left:
            best = probabilities(model, logits(text[: start + BLOCK])).max(-1)
            order = sorted(left, key=lambda place: -float(best.values[place]))
            chosen = [place for place in order if threshold is not None and best.values[place] >= threshold]
            for place in chosen or order[:1]:
                text[place] = int(best.indices[place])
                left.remove(place)
    return text[len(prompt) : len(prompt) + num]


def test_blocks_are_denoised_as_sdar_does(subtests: pytest.Subtests, unshifted: Model) -> None:
    ways: dict[str, dict[str, Any]] = {"threshold": {"threshold": 0.4}, "confidence": {}}
    for (policy, options), prompt in product(ways.items(), prompts(unshifted)):
        num = 3 * BLOCK - len(prompt) % BLOCK
        want = sdar(unshifted, prompt, num, options.get("threshold"))
        for backend in ("torch", "native"):
            with subtests.test(policy, num_given=len(prompt), backend=backend):
                assert written(unshifted, prompt, num, backend, policy=policy, **options) == want


def test_the_last_block_is_whole_even_if_the_text_is_not(unshifted: Model) -> None:
    prompt = prompts(unshifted)[2]
    whole, part = (sdar(unshifted, prompt, num, 0.4) for num in (2 * BLOCK, BLOCK + 3))
    got = written(unshifted, prompt, BLOCK + 3, policy="confidence")

    assert part == whole[: BLOCK + 3]
    assert got[:BLOCK] == sdar(unshifted, prompt, BLOCK, None)


def fast_dllm(model: Model, prompt: list[int], num: int, threshold: float, size: int) -> list[int]:
    """Fast-dLLM v2's loop (arXiv 2509.26328): the last row of a finished block predicts the first token of the next;
    the parts of a block, of `size`, are filled one after the other.
    """
    mask, logits, text = model.config.mask_id, block_logits(model), list(prompt)
    end = len(prompt) + num
    while len(text) < end:
        start = len(text) // BLOCK * BLOCK
        if len(text) == start:
            text.append(int(probabilities(model, logits(text))[-1].argmax()))
        opened = [False] * (len(text) - start) + [True] * (start + BLOCK - len(text))
        text += [mask] * (start + BLOCK - len(text))
        for first in range(0, BLOCK, size):
            while left := [place for place in range(first, first + size) if opened[place]]:
                best = probabilities(model, logits(text))[start - 1 + np.array(left)].max(-1)
                likely = best.values >= threshold
                likely[best.values.argmax()] = True
                for place, token, chosen in zip(left, best.indices.tolist(), likely.tolist(), strict=True):
                    if chosen:
                        text[start + place], opened[place] = token, False
    return text[len(prompt) : end]


def test_parts_of_blocks_are_filled_as_fast_dllm_does(subtests: pytest.Subtests, shifted: Model) -> None:
    for size, prompt in product((BLOCK, 4, 2), prompts(shifted)):
        num = 3 * BLOCK - len(prompt) % BLOCK
        want = fast_dllm(shifted, prompt, num, 0.4, size)
        for backend in ("torch", "native"):
            with subtests.test(size=size, num_given=len(prompt), backend=backend):
                got = written(shifted, prompt, num, backend, policy="threshold", threshold=0.4, block_size=size)
                assert got == want


def test_a_clean_anchor_takes_no_forward_of_its_own(shifted: Model) -> None:
    """The forward that reads a finished block also predicts the next block's first token."""
    prompt = prompts(shifted)[1]
    usage = shifted.generate(prompt, 2 * BLOCK, mode="block", heal=False, threshold=0.0, end_of_text="never").usage

    assert usage.forwards == 4  # the first position and the rest, twice
    assert usage.recomputed_tokens == 0


class Causal(torch.nn.Module):
    """The model as diffusers' pipeline calls it."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._ends, self._logits = model.config.ends, block_logits(model)

    def forward(self, tokens: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
        assert bool(attention_mask.all())
        logits = torch.stack([self._logits(row.tolist()) for row in tokens])
        logits[..., self._ends] = -1e9
        return SimpleNamespace(logits=logits)


def test_tokens_are_edited_as_diffusers_does(subtests: pytest.Subtests, unshifted: Model) -> None:
    diffusers = pytest.importorskip("diffusers")
    scheduler = diffusers.BlockRefinementScheduler()
    pipeline = diffusers.LLaDA2Pipeline(model=Causal(unshifted), scheduler=scheduler)
    pipeline.set_progress_bar_config(disable=True)
    for threshold, edit_threshold in product((0.3, 0.8), (0.3, 0.6, 1.0)):
        with subtests.test(threshold=threshold, edit_threshold=edit_threshold):
            check_edits(pipeline, unshifted, threshold, edit_threshold)


def check_edits(pipeline: Any, unshifted: Model, threshold: float, edit_threshold: float) -> None:
    edited = 0
    for prompt in prompts(unshifted)[:3]:
        num = 3 * BLOCK - len(prompt) % BLOCK
        want = pipeline(
            input_ids=torch.tensor([prompt]),
            use_chat_template=False,
            gen_length=num,
            block_length=BLOCK,
            num_inference_steps=BLOCK + 1,  # with as many as positions it ends before it edits
            threshold=threshold,
            editing_threshold=edit_threshold,
            eos_early_stop=False,
            mask_token_id=unshifted.config.mask_id,
            eos_token_id=unshifted.config.eos_id,
            output_type="seq",
        ).sequences[0].tolist()  # fmt: skip
        options = {"policy": "joint_threshold", "threshold": threshold, "edit_threshold": edit_threshold}
        result = unshifted.generate(
            prompt, num, mode="block", heal=False, end_of_text="plain", logit_bias=no_ends(unshifted), **options
        )
        assert [token.id for token in result.tokens] == want
        assert result.usage.forwards <= num + 3 * JointThreshold.num_extra
        edited += sum(step.decision.replace.size for step in result.trace.steps)
    assert bool(edited) == (edit_threshold < 1)
