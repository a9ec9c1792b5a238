"""Quality against steps: prompts, what is measured of a text, and that steps are as many forwards."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from daguerre.decoding.request import Decode
from daguerre.errors import DataError, UnsupportedError
from daguerre.evals.lines import parse
from daguerre.evals.steps import (
    CANVAS_TOKENS,
    Setting,
    make_prompts,
    parses_by_half,
    settings,
    text_quality,
    unigram_entropy,
    write,
)
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.scoring.likelihood import score_tokens

SOURCE = "".join(
    f"@cached\ndef area_{i}(width, height):\n    total = {i}\n    return compute(total, width * height)\n\n\n"
    for i in range(12)
)


def document(text: str) -> Document:
    return Document("p", "1", "", "a.py", hashlib.sha256(text.encode()).hexdigest(), text)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return [document(SOURCE), document(SOURCE.replace("area", "border"))]


def test_a_prompt_is_whole_lines_from_a_statement_on(causal: Model, documents: list[Document]) -> None:
    prompts = make_prompts(documents, causal.tokenizer, causal.config, 6)

    assert len(prompts) == 6
    assert len({prompt.document.sha256 for prompt in prompts[:2]}) == 2
    for prompt in prompts:
        assert prompt.text + prompt.following in prompt.document.text
        assert prompt.text.startswith("@cached\n")
        assert prompt.text.endswith("\n")
        assert 32 <= len(causal.tokenizer.encode(prompt.text)) <= 126
        assert len(causal.tokenizer.encode(prompt.following)) > CANVAS_TOKENS


def test_a_prompt_that_cannot_be_is_refused(make_model, documents: list[Document]) -> None:
    small = make_model(max_positions=128)
    with pytest.raises(UnsupportedError, match="'steps' needs 162 positions and the model has 128"):
        make_prompts(documents, small.tokenizer, small.config, 1)
    large = make_model()
    for text in ("x = 1\n", "not ( python\n" * 100, SOURCE.replace("\n", "\r\n")):
        with pytest.raises(DataError, match="tokens of Python"):
            make_prompts([document(text)], large.tokenizer, large.config, 1)


def test_settings_are_those_of_the_context(models: dict[str, Model]) -> None:
    for context, num, layouts in (
        ("causal", 30, {"canvas", "block", "ar", "truth"}),
        ("full", 26, {"canvas", "block", "truth"}),
        ("block", 7, {"block", "truth"}),
    ):
        found = settings(models[context].config)
        assert {setting.layout for setting in found} == layouts
        assert len({setting.name for setting in found}) == len(found) == num
    assert {(setting.layout, setting.length) for setting in found} == {("block", 8), ("truth", 8)}
    assert {setting.steps for setting in found} == {2, 4, 8, None}


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_texts_have_their_length_their_forwards_and_their_likelihood(
    causal: Model, documents: list[Document], heat: float
) -> None:
    prompts = make_prompts(documents, causal.tokenizer, causal.config, 2)
    chosen = [
        Setting("canvas", 24, Decode(mode="full", policy="confidence", steps=4, temperature=heat)),
        Setting("ar", 24, Decode(mode="ar", temperature=heat)),
    ]
    for prompt in prompts:
        canvas, ar = write(causal, chosen, 0, prompt)
        again, other = write(causal, chosen[:1], 0, prompt)[0], write(causal, chosen[:1], 1, prompt)[0]
        healing = ar.forwards - 24
        assert healing in (0, 1)
        assert 4 <= canvas.forwards <= 4 + 1
        assert again.text == canvas.text
        assert (other.text == canvas.text) == (heat == 0.0)
        assert canvas.nats is not None and ar.nats is not None
        assert ar.nats < canvas.nats or heat, "greedy text is the likelier"


def test_the_nats_of_a_text_are_those_of_its_tokens(causal: Model, documents: list[Document]) -> None:
    (prompt,) = make_prompts(documents, causal.tokenizer, causal.config, 1)

    (truth,) = write(causal, [Setting("truth", 24, None)], 0, prompt)

    ids = [causal.tokenizer.bos_id, *causal.tokenizer.encode(prompt.text + prompt.following)]
    start = next(n for n in range(len(ids)) if len(causal.tokenizer.decode(ids[: n + 1])) > len(prompt.text))
    by_token = score_tokens(causal.denoiser.backend, ids[: start + 24]).by_token
    assert prompt.text + truth.text == causal.tokenizer.decode(ids[: start + 24])
    assert truth.nats == pytest.approx(by_token[-24:].mean())
    assert truth.forwards == 0


def test_entropy_by_hand() -> None:
    assert unigram_entropy(np.array([5, 5, 5, 5])) == 0.0
    assert unigram_entropy(np.array([5, 6, 7, 8])) == pytest.approx(np.log(4))
    assert unigram_entropy(np.array([5, 5, 6, 7])) == pytest.approx(1.5 * np.log(2))


def test_half_of_the_lines_must_be_python_behind_the_prompt() -> None:
    prompt = "def f():\n"
    parses = {
        "    return 1\nx = 2\n": True,
        "    return 1\nx = (\n": True,
        "    return 1\nx = (\ny = [\n": False,
        "x = 1\n": False,
        "    return (\n1)\n": True,
    }

    assert parse(prompt) is None
    assert {text: parses_by_half(prompt, text) for text in parses} == parses


def test_figures_are_means_over_prompts(
    monkeypatch: pytest.MonkeyPatch, causal: Model, documents: list[Document]
) -> None:
    chosen = [Setting("canvas", 8, Decode(mode="full", policy="confidence", steps=2)), Setting("truth", 8, None)]
    monkeypatch.setattr("daguerre.evals.steps.settings", lambda config: chosen)
    prompts = make_prompts(documents, causal.tokenizer, causal.config, 2)

    (canvas, truth), examples = text_quality(causal, prompts)

    each = [write(causal, chosen, 0, prompt) for prompt in prompts]
    assert canvas.nats == pytest.approx(np.mean([found[0].nats for found in each]))
    assert truth.entropy == pytest.approx(np.mean([found[1].entropy for found in each]))
    spread = abs(each[0][1].entropy - each[1][1].entropy) / 2
    assert truth.entropy_stderr == pytest.approx(spread)
    assert examples[0] == {
        "canvas, tokens 8, steps 2, temperature 0": each[0][0].text,
        "truth, tokens 8": each[0][1].text,
    }
    assert (canvas.num, truth.steps, truth.temperature) == (2, None, None)
