"""WeDLM: checkpoints in the publisher's layout, and logits against transformers over reordered texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends import BACKENDS, needs_compiler
from daguerre.canvas import Canvas
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample, Together, drive
from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.export import readme
from daguerre.models.families import find_family
from daguerre.models.families.base import Published
from daguerre.models.loading import load_folder
from driving import logits_of
from oracles.wedlm import (
    CASES,
    NEVER,
    load_all,
    made,
    oracle_of,
    probabilities,
    prompts,
)
from plans import make_plan
from published import MASK, NUM_TOKENS, SIZE

NUM = 37
"""New tokens: no multiple of a window."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return load_all(tmp_path_factory.mktemp("published"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_gives_the_logits_of_a_causal_model_over_the_reordered_text(
    backend: Any, loaded: dict[str, Model], subtests: pytest.Subtests
) -> None:
    """A completion, gaps with text after them, and gaps that are partly written, with masks in the text."""
    for name in CASES:
        with subtests.test(name):
            config, rng = loaded[name].config, np.random.default_rng(1)
            assert {fact: getattr(config, fact) for fact in CASES[name].facts} == CASES[name].facts
            assert {*config.unpredictable_ids} == NEVER
            denoiser = BackboneDenoiser(loaded[name].backbone, backend)
            drawn, surest = sorted({*range(SIZE)} - NEVER), []
            for gaps in (((9, 30),), ((5, 14),), ((3, 8), (12, 20)), ((0, 7),)):
                inside = np.isin(np.arange(30), [i for a, b in gaps for i in range(a, b)])
                tokens, opened = rng.integers(0, NUM_TOKENS, 30), inside & (rng.random(30) < 0.7)
                tokens[2] = MASK
                canvas = Canvas(tokens, opened, gaps, (gaps[0][0], gaps[-1][1]))
                expected = oracle_of(name).of(tokens, opened)
                got = logits_of(denoiser, canvas, np.flatnonzero(opened))
                assert np.abs(got[:, drawn] - expected[:, drawn]).max() < 1e-4
                surest.append(probabilities(expected).max(-1).mean())
            assert 0.3 < np.mean(surest) < 0.7


def test_the_publishers_mask_of_ones_is_the_plain_causal_mask() -> None:
    """Which the oracle has in full, so that no version reads other positions as other texts."""
    tokens, places = torch.arange(20, 32)[None], torch.tensor([[0, 1, 2, 5, 6, 9, 3, 4, 7, 8, 10, 11]])
    model = made("8B")
    bias = torch.full((12, 12), torch.finfo(torch.float32).min).triu(1)[None, None]
    with torch.inference_mode():
        plain, ones = (
            model(input_ids=tokens, position_ids=places, attention_mask=mask, use_cache=False).logits
            for mask in (bias, torch.ones_like(tokens))
        )
    assert (plain - ones).abs().max() < 1e-5


SLIDING: dict[str, Any] = {"mode": "block", "sliding": True, "block_size": 5, "policy": "entropy_threshold"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_changes_nothing_along_a_request(backend: Any, loaded: dict[str, Model]) -> None:
    """To the bit on the native backend: a completion and a gap, whose cached rows are discarded where a token was
    committed before others.
    """
    model = Model(loaded["8B"].backbone, loaded["8B"].tokenizer, backend)
    prompt, limit = prompts()[2], 0.0 if backend == "native" else 1e-4
    decode = Decode(temperature=1.0, entropy_threshold=2.5, **SLIDING)
    for result in (model.generate(prompt, 30, decode), model.infill(prompt, [70, 71, 72], 12, decode, min_tokens=12)):
        spans, shown = [step.span for step in result.trace.steps], [result.trace.canvas, *result.trace.replay()]
        canvases = [canvas.at(span) for canvas, span in zip(shown, spans, strict=False)]
        fast, slow = (model.denoiser.session(canvases[0], cache) for cache in ("auto", "none"))
        for canvas in canvases:
            asked = canvas.active_positions()
            a, b = (logits_of(model.denoiser, canvas, asked, session) for session in (fast, slow))
            known = np.isfinite(b)
            assert np.abs(a[known] - b[known]).max() <= limit
        assert fast.counts.reused_tokens == slow.counts.recomputed_tokens > 0
        assert fast.counts.recomputed_tokens == 0


@needs_compiler
def test_both_backends_write_the_same_tokens(loaded: dict[str, Model]) -> None:
    for name, model in loaded.items():
        native = Model(model.backbone, model.tokenizer, "native")
        for prompt in prompts():
            decode = Decode(entropy_threshold=1.0, position_penalty=0.02, **SLIDING)
            one, other = (each.generate(prompt, NUM, decode) for each in (model, native))
            assert [token.id for token in one.tokens] == [token.id for token in other.tokens], name


@needs_compiler
def test_requests_side_by_side_write_what_each_writes_alone(loaded: dict[str, Model]) -> None:
    """To the bit, with windows of other sizes, and with gaps."""
    model = Model(loaded["8B"].backbone, loaded["8B"].tokenizer, "native")

    def samples() -> list[Sample]:
        out = []
        for seed, prompt in enumerate([*prompts(), *prompts()]):
            decode = Decode(temperature=float(seed % 2), seed=seed, **SLIDING | {"block_size": 3 + seed})
            suffix = [70, 71] if seed > 2 else None
            if suffix:
                decode = Decode.of(decode, min_tokens=9)
            plan = make_plan(model.config, model.tokenizer, decode, prompt, suffix, 9 if suffix else NUM, False)
            out.append(Sample(model.denoiser, plan, 0, None))
        return out

    alone, side_by_side = samples(), samples()
    for sample in alone:
        for _ in drive(sample):
            pass
    together = Together(side_by_side[0].backend)
    for sample in side_by_side:
        together.add(sample)
    while len(together):
        together.step()
    for one, other in zip(alone, side_by_side, strict=True):
        a, b = ([(t.id, t.step, t.logprob) for t in sample.result().tokens] for sample in (one, other))
        assert a == b


def config(name: str = "8B", **changes: Any) -> dict[str, Any]:
    case = CASES[name]
    return {"architectures": [case.architecture], "model_type": case.model_type, **case.config, **changes}


def test_a_config_without_a_mask_has_that_of_its_engine() -> None:
    family = find_family({"model_type": "wedlm"})
    assert family.name == "wedlm"
    given = {key: value for key, value in config().items() if key != "mask_token_id"} | {"vocab_size": 151936}
    assert family.read(Published(config=given)).mask_id == 151665, "as its engine takes it"


def test_what_cannot_be_computed_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (changes, error, words) in enumerate(
        [
            ({"mlp_bias": True}, UnsupportedError, "mlp_bias"),
            (
                {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "layer_types": None},
                UnsupportedError,
                "sliding_window",
            ),
            ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, UnsupportedError, "dynamic"),
            ({"mask_token_id": 4000}, CheckpointError, "mask_token_id=4000"),
            ({"qk_norm": "yes"}, CheckpointError, "qk_norm must be true or false"),
        ]
    ):
        with subtests.test(**changes):
            (parent := tmp_path / str(number)).mkdir()
            with pytest.raises(error, match=words) as caught:
                load_folder(CASES["8B"].write(parent, **changes))
            assert "\n" not in str(caught.value)


def test_what_asks_about_tokens_in_sight_is_refused(loaded: dict[str, Model]) -> None:
    model = loaded["8B"]
    refused: list[tuple[dict[str, Any], str]] = [
        ({"revise": 1}, "leave_one_out"),
        ({"policy": "joint_threshold"}, "cannot edit any"),
        ({"draft": "x"}, "reads no draft"),
        ({"cache": "approximate_prefix"}, "whose cache is exact"),
        ({"mode": "ar"}, 'mode "ar" needs causal context'),
    ]
    for options, words in refused:
        with pytest.raises(UnsupportedError, match=words):
            model.generate([1, 2], 8, **options)
    again = model.generate(prompts()[2], 12, revise=1, revise_reading="leave_one_out", revise_threshold=0.3)
    assert again.usage.forwards > model.generate(prompts()[2], 12, sliding=False).usage.forwards
    with pytest.raises(InputError, match="sliding is not used with revise"):
        model.generate([1, 2], 8, revise=1, revise_reading="leave_one_out", sliding=True)


def test_an_export_says_in_which_order_transformers_needs_the_text(loaded: dict[str, Model]) -> None:
    assert "known tokens first, masks last" in readme(loaded["8B"].config, "Qwen3ForCausalLM")
