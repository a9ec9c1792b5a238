"""LLaDA's decoding, and Fast-dLLM's of LLaDA, token for token: restated in `oracles.published`, and by dlmserve."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import main_path
from daguerre.canvas import Canvas
from daguerre.decoding.result import Result
from daguerre.model import Model
from daguerre.models.forward import Logits
from daguerre.sampling.random import ORDER, TOKEN, Counter
from driving import compute
from oracles.full_context import FullContext
from oracles.published import Decoded, LLaDA, fast_dllm, probabilities
from pairwise import covering

END, NUM, BLOCK, SEED = 300, 16, 8, 3
LENGTHS = (1, 7, 18)


@pytest.fixture(scope="module")
def model(make_model: Any, tokenizer: Any) -> Model:
    """As LLaDA is: no shift, no <bos>, two ends of text, and nothing reserved but the mask."""
    made: Model = make_model(
        context="full", shift=False, bos_id=None, null_id=None, end_ids=(END,), reserved_ids=(tokenizer.mask_id,)
    )
    return Model(made.backbone, made.tokenizer, "torch")


def prompts(model: Model, mask: bool = True) -> list[list[int]]:
    """Token ids; with `mask` one of them has a literal mask, which is text like any other."""
    rng = np.random.default_rng(5)
    out = [rng.choice(model.config.ordinary_ids, length).tolist() for length in LENGTHS]
    if mask:
        out[1][2] = model.config.mask_id
    return out


def masked(model: Model, prompt: list[int]) -> np.ndarray:
    return np.array([*prompt, *[model.config.mask_id] * NUM], dtype=np.int64)


def ours(model: Model, prompt: list[int], **options: Any) -> Result:
    given = {"mode": "block", "block_size": BLOCK, "heal": False, "end_of_text": "plain", "seed": SEED} | options
    return main_path.generate(model.denoiser, model.tokenizer, prompt, NUM, **given)


def check(result: Result, want: Decoded, ends: tuple[int, ...]) -> int:
    """Each forward commits the same positions, and they have the same tokens, up to where the text has ended; returns
    how many positions were committed.
    """
    *_, canvas = result.trace.replay()
    commits = [step.decision.positions.tolist() for step in result.trace.steps]
    assert commits == want.commits[: len(commits)]
    done = ~canvas.open
    assert np.array_equal(canvas.tokens[done], want.tokens[done])
    if len(commits) < len(want.commits):
        assert set(canvas.filled(canvas.gaps[0]).tolist()) & set(ends), "it ends early only behind an end of text"
    return int(done[canvas.in_gap].sum())


class Shared:
    """Our random numbers; with guidance a step takes two forwards, and is numbered by the first."""

    def __init__(self, model: Model, length: int, each: int = 1) -> None:
        self._model, self._positions, self._each, self._rng = model, np.arange(length), each, Counter(SEED)

    def exponential(self, forward: int) -> np.ndarray:
        vocabulary = self._model.config.vocab_size
        return self._rng.exponential(TOKEN, self._positions, self._each * forward, vocabulary)

    def uniform(self, forward: int) -> np.ndarray:
        """Larger is first, as in the policy."""
        return self._rng.uniform(ORDER, self._positions, self._each * forward)


def test_the_oracle_has_the_logits_of_the_model_which_is_about_as_sure_as_a_model_is(model: Model) -> None:
    oracle, surest = FullContext(model.backbone), []
    for prompt in prompts(model):
        tokens = masked(model, prompt)
        canvas = Canvas.lay_out([prompt, []], [NUM], model.config.placeholder).at((len(prompt), len(tokens)))
        session = model.denoiser.session(canvas)
        answer = compute(session.ask(canvas, canvas.active_positions(), Logits()), model.denoiser.backend)
        want = oracle.of(tokens)[len(prompt) :]
        known = np.isfinite(want)
        assert answer.logits is not None
        assert np.array_equal(known, np.isfinite(answer.logits))
        assert np.allclose(answer.logits[known], want[known], atol=1e-4)
        surest.append(probabilities(want).max(-1).mean())
    assert 0.3 < np.mean(surest) < 0.7


PUBLISHED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"steps": 8}, {"policy": "confidence"}),
    ({"steps": 3}, {"policy": "confidence", "steps": 3}),
    ({"steps": 5, "block_length": NUM}, {"policy": "confidence", "steps": 5, "block_size": NUM}),
    ({"steps": 4, "block_length": 7}, {"policy": "confidence", "steps": 4, "block_size": 7}),
    ({"steps": 3, "remasking": "random"}, {"policy": "random", "steps": 3}),
    ({"steps": 3, "cfg_scale": 1.5}, {"policy": "confidence", "steps": 3, "guidance": 2.5}),
    ({"steps": 3, "temperature": 0.7}, {"policy": "confidence", "steps": 3, "temperature": 0.7}),
    ({"steps": 4, "temperature": 1.0, "remasking": "random"}, {"policy": "random", "steps": 4, "temperature": 1.0}),
    (
        {"steps": 2, "temperature": 0.5, "cfg_scale": 0.5},
        {"policy": "confidence", "steps": 2, "temperature": 0.5, "guidance": 1.5},
    ),
]


def test_llada_commits_the_same_tokens_in_the_same_order(model: Model, subtests: pytest.Subtests) -> None:
    for published, options in PUBLISHED:
        with subtests.test(**options):
            oracle, num = FullContext(model.backbone), 0
            assert model.config.mask_id is not None
            each = 2 if "guidance" in options else 1
            how = LLaDA(**({"block_length": BLOCK} | published), mask_id=model.config.mask_id)
            for prompt in prompts(model):
                canvas = masked(model, prompt)
                want = how.decode(oracle.of, canvas, len(prompt), Shared(model, len(canvas), each))
                num += check(ours(model, prompt, **options), want, (model.config.eos_id, END))
            assert num > 2 * NUM


def test_ends_of_text_are_plain_or_come_last_or_never_as_in_llada(model: Model, subtests: pytest.Subtests) -> None:
    """Both ends are likely nearly everywhere. "last": those that wait are committed once a step has no others."""
    config, ends = model.config, (model.config.eos_id, END)
    assert config.mask_id is not None
    bias = {config.eos_id: 9.0, END: 8.0}
    oracle, num_ends, rules = (
        FullContext(model.backbone, bias),
        dict[tuple[Any, ...], int](),
        ("plain", "last", "never"),
    )
    hows = [(8, 8), (3, 8), (7, NUM)]
    for rule, (steps, block), prompt in product(rules, hows, prompts(model)):
        with subtests.test(rule, steps=steps, block=block, length=len(prompt)):
            never, last = (ends if rule == one else () for one in ("never", "last"))
            how = LLaDA(mask_id=config.mask_id, block_length=block, steps=steps, never=never, last=last)
            options = {"policy": "confidence", "steps": steps, "end_of_text": rule, "logit_bias": bias}
            want = how.decode(oracle.of, masked(model, prompt), len(prompt))
            check(ours(model, prompt, block_size=block, **options), want, ends)
            key, num = (rule, steps, block), int(np.isin(want.tokens[-NUM:], ends).sum())
            num_ends[key] = num_ends.get(key, 0) + num
    assert len(num_ends) == 9 and all((num == 0) == (key[0] == "never") for key, num in num_ends.items()), num_ends


FAST: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"threshold": 0.9}, {"threshold": 0.9}),
    ({"threshold": 0.4}, {"threshold": 0.4}),
    ({"factor": 1.0}, {"policy": "factor", "factor": 1.0}),
    ({"factor": 1.6}, {"policy": "factor", "factor": 1.6}),
    ({"factor": 0.2}, {"policy": "factor", "factor": 0.2}),
]


def test_fast_dllm_commits_the_same_tokens_in_the_same_order(model: Model, subtests: pytest.Subtests) -> None:
    oracle, together = FullContext(model.backbone), {number: list[int]() for number in range(len(FAST))}
    cases = covering({"block": [BLOCK, NUM], "how": [*together], "prompt": prompts(model)})
    for block, number, prompt in map(dict.values, cases):
        published, options = FAST[number]
        with subtests.test(block=block, length=len(prompt), **published):
            want = fast_dllm(oracle.of, masked(model, prompt), len(prompt), block, **published)
            check(ours(model, prompt, block_size=block, **options), want, (model.config.eos_id, END))
            together[number].append(len(want.commits))
    assert all(2 * len(nums) <= sum(nums) < len(nums) * NUM for nums in together.values()), together


# ---- dlmserve -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dlmserve() -> ModuleType:
    """Its step engine, without its server: the package itself imports what only the server needs. It pins older
    versions of what we need, so it is installed by itself: pip install --no-deps dlmserve.
    """
    spec = importlib.util.find_spec("dlmserve")
    if spec is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("needs dlmserve and transformers")
    package = ModuleType("dlmserve")
    package.__path__ = list(spec.submodule_search_locations or ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "dlmserve", package)
        return importlib.import_module("dlmserve.denoise_loop")


def served(dlmserve: ModuleType, model: Model, prompts: list[list[int]], steps: int, block: int) -> list[list[int]]:
    """What its engine makes of requests that it steps together, each with its prompt."""
    oracle, how = FullContext(model.backbone), dlmserve.SamplingParams(steps, NUM, block)
    states = [dlmserve.init_state(torch.tensor([prompt]), how, model.config.mask_id) for prompt in prompts]
    while not states[0].done:
        dlmserve.step_batch(oracle, states, model.config.mask_id, model.config.pad_id)
    return [state.seq[0].tolist() for state in states]


def test_dlmserve_has_the_same_tokens(dlmserve: ModuleType, model: Model, subtests: pytest.Subtests) -> None:
    for steps, block in [(8, 8), (3, 8), (6, NUM)]:
        with subtests.test(steps=steps, block=block):
            steps_in_all = steps * (NUM // block)
            for prompt, want in zip(
                prompts(model, mask=False),
                served(dlmserve, model, prompts(model, mask=False), steps_in_all, block),
                strict=True,
            ):
                *_, canvas = ours(model, prompt, policy="confidence", steps=steps, block_size=block).trace.replay()
                done = ~canvas.open
                assert canvas.tokens[done].tolist() == np.array(want)[done].tolist()
                assert done.sum() > len(prompt) + NUM // 2


def test_a_mask_in_the_prompt_stays_as_it_is_but_dlmserve_writes_over_it(dlmserve: ModuleType, model: Model) -> None:
    prompt = prompts(model)[1]
    assert model.config.mask_id is not None
    prompt[2] = prompt[5] = model.config.mask_id
    (want,) = served(dlmserve, model, [prompt], NUM, BLOCK)
    assert want[: len(prompt)] != prompt
    *_, canvas = ours(model, prompt, policy="confidence").trace.replay()
    assert canvas.tokens[: len(prompt)].tolist() == prompt
    assert not canvas.open[: len(prompt)].any()
