"""Quality against steps: prompts, what is measured of a text, and that forwards are what was asked."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from daguerre.errors import DataError, UnsupportedError
from daguerre.evals.frozen import Document
from daguerre.evals.lines import parse
from daguerre.evals.steps import (
    CANVAS_TOKENS,
    Way,
    make_prompts,
    parses_by_half,
    text_quality,
    unigram_entropy,
    ways,
    write,
)
from daguerre.likelihood import score_tokens
from daguerre.model import Model
from daguerre.sampling.decode import Decode

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


@pytest.mark.parametrize(
    ("context", "layouts", "num"),
    [("causal", {"canvas", "block", "ar", "truth"}, 30), ("full", {"canvas", "block", "truth"}, 26)],
)
def test_ways_are_those_of_the_context(models: dict[str, Model], context: str, layouts: set[str], num: int) -> None:
    found = ways(models[context].config)

    assert {way.layout for way in found} == layouts
    assert len({way.name for way in found}) == len(found) == num


def test_a_block_model_writes_its_own_blocks(models: dict[str, Model]) -> None:
    found = ways(models["block"].config)

    assert {(way.layout, way.length) for way in found} == {("block", 8), ("truth", 8)}
    assert {way.steps for way in found} == {2, 4, 8, None}


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_texts_have_their_length_their_forwards_and_their_likelihood(
    causal: Model, documents: list[Document], heat: float
) -> None:
    prompts = make_prompts(documents, causal.tokenizer, causal.config, 2)
    chosen = [
        Way("canvas", 24, Decode(mode="full", policy="confidence", steps=4, temperature=heat)),
        Way("ar", 24, Decode(mode="ar", temperature=heat)),
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

    (truth,) = write(causal, [Way("truth", 24, None)], 0, prompt)

    ids = [causal.tokenizer.bos_id, *causal.tokenizer.encode(prompt.text + prompt.following)]
    start = next(n for n in range(len(ids)) if len(causal.tokenizer.decode(ids[: n + 1])) > len(prompt.text))
    by_token = score_tokens(causal.backbone, ids[: start + 24]).by_token
    assert prompt.text + truth.text == causal.tokenizer.decode(ids[: start + 24])
    assert truth.nats == pytest.approx(by_token[-24:].mean())
    assert truth.forwards == 0


def test_entropy_by_hand() -> None:
    assert unigram_entropy(np.array([5, 5, 5, 5])) == 0.0
    assert unigram_entropy(np.array([5, 6, 7, 8])) == pytest.approx(np.log(4))
    assert unigram_entropy(np.array([5, 5, 6, 7])) == pytest.approx(1.5 * np.log(2))


@pytest.mark.parametrize(
    ("text", "parses"),
    [
        ("    return 1\nx = 2\n", True),
        ("    return 1\nx = (\n", True),
        ("    return 1\nx = (\ny = [\n", False),
        ("x = 1\n", False),
        ("    return (\n1)\n", True),
    ],
)
def test_half_of_the_lines_must_be_python_behind_the_prompt(text: str, parses: bool) -> None:
    prompt = "def f():\n"
    assert parse(prompt) is None
    assert parses_by_half(prompt, text) == parses


def test_figures_are_means_over_prompts(
    monkeypatch: pytest.MonkeyPatch, causal: Model, documents: list[Document]
) -> None:
    chosen = [Way("canvas", 8, Decode(mode="full", policy="confidence", steps=2)), Way("truth", 8, None)]
    monkeypatch.setattr("daguerre.evals.steps.ways", lambda config: chosen)
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
