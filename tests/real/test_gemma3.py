"""Gemma 3 270M, the base model: windows of 512 in five layers of six, beside transformers and llama.cpp."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from daguerre.engine.engine import Engine
from daguerre.model import Model
from daguerre.models.backends.native_backend import Quantization
from daguerre.models.forward import Forward, Layout, Logits
from daguerre.scoring.decisions import Choice
from real.conftest import FULL, some
from real.files import bring, bring_llama_cpp
from real.prompts import CHATS, CODES

TOKENS, LONG, WINDOW = 24, 1500, 512
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def path() -> Path:
    return bring("gemma3-270m")


@pytest.fixture(scope="module")
def oracle(path: Path) -> Any:
    """transformers' model, in float32, read from the same file."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def exact(path: Path) -> Model:
    """The model in float32."""
    return daguerre.load(path, dtype="float32")


def long_prompt(model: Model) -> list[int]:
    """A text of LONG tokens, of sentences that name things which come back at its end."""
    lines = [
        f"{number}. {question} The answer is in chapter {7 * number % 31}.\n" for number, question in enumerate(CHATS)
    ]
    ids = [*model.config.first, *model.tokenizer.encode("".join(lines * 3))]
    assert len(ids) > LONG
    return ids[:LONG]


def prompts_of(model: Model, num: int) -> list[list[int]]:
    """Ids of `num` texts to go on with, <bos> first."""
    texts = [*CODES[:6], *(f"Question: {question}\nAnswer:" for question in CHATS)][:num]
    return [[*model.config.first, *model.tokenizer.encode(text)] for text in texts]


def logits_of(model: Model, ids: list[int], rows: list[int]) -> np.ndarray:
    layout = Layout(np.arange(len(ids)), np.arange(1, len(ids) + 1, dtype=np.int32), len(ids))
    forward = Forward(np.array(ids), layout, None, np.array(rows, np.int32), Logits())
    (answer,) = model.denoiser.backend.forward([forward])
    assert answer.logits is not None
    return answer.logits


def theirs(oracle: Any, ids: list[int], rows: list[int]) -> np.ndarray:
    with torch.inference_mode():
        out: np.ndarray = oracle(torch.tensor([ids]), logits_to_keep=torch.tensor(rows)).logits[0].numpy()
    return out


def check_greedy(model: Model, ids: list[int], want: list[int], close: float) -> bool:
    """Our greedy text behind these ids is `want`, up to where two tokens are within `close`; whether they differ."""
    start = len(model.config.first)
    got = [token.id for token in model.generate(ids[start:], TOKENS, mode="ar", heal=False, stop_loops=False).tokens]
    differs = next((n for n, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), None)
    if differs is None:
        return False
    whole = [*ids, *got[:differs]]
    row = logits_of(model, whole, [len(whole) - 1])[0]
    assert abs(row[got[differs]] - row[want[differs]]) < close, "a near tie"
    return True


def test_the_windows_are_those_of_the_publisher(exact: Model) -> None:
    windows = exact.config.windows
    assert windows is not None and (windows.size, windows.rope_theta) == (WINDOW, 10_000)
    assert [layer for layer in range(18) if layer not in windows.layers] == [5, 11, 17]
    assert exact.family == "gemma3" and exact.config.rope_theta == 1_000_000


def test_logits_are_those_of_transformers(exact: Model, oracle: Any) -> None:
    """Within 1e-4 of the largest, also where windows end."""
    for ids, rows in (
        *((ids, list(range(len(ids)))) for ids in prompts_of(exact, some(8, 3))),
        (long_prompt(exact), [10, WINDOW - 1, WINDOW, WINDOW + 1, 1000, LONG - 1]),
    ):
        got, want = logits_of(exact, ids, rows), theirs(oracle, ids, rows)
        known = np.isfinite(got)
        assert known.mean() > 0.99 and np.abs(got - want)[known].max() < 1e-4 * np.abs(want).max()


def test_greedy_texts_are_those_of_transformers(exact: Model, oracle: Any, subtests: pytest.Subtests) -> None:
    for ids in [*prompts_of(exact, some(30, 4)), long_prompt(exact)]:
        with subtests.test(len(ids)):
            with torch.inference_mode():
                out = oracle.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False)[0, len(ids) :]
            check_greedy(exact, ids, out.tolist(), 1e-3)


@pytest.mark.skipif(not FULL, reason="make real runs it")
def test_greedy_texts_are_those_of_llama_cpp_where_no_two_tokens_are_close(exact: Model, path: Path) -> None:
    """It rounds what it multiplies to 8 bits, and so its logits differ by tenths."""
    asked = [*prompts_of(exact, 30), long_prompt(exact)]
    body = {"packages": str(bring_llama_cpp()), "model": str(path), "prompts": asked, "num": TOKENS, "texts": []}
    ran = subprocess.run(
        ["node", str(HERE / "llama.mjs")],
        input=json.dumps({**body, "context": 2048}),
        capture_output=True,
        text=True,
        check=True,
    )
    differ = [
        check_greedy(exact, ids, found["tokens"], 1.0)
        for ids, found in zip(asked, json.loads(ran.stdout)["written"], strict=True)
    ]
    assert sum(differ) < len(differ) / 2


@pytest.mark.parametrize(("quantize", "limit"), [("int8", 0.05), ("approximate_int4", 0.5)])
def test_fewer_bits_leave_it_a_model(exact: Model, path: Path, quantize: Quantization, limit: float) -> None:
    """Its norms' weights are of all magnitudes; multiplied into the matrices they took it 8 nats away. Measured on 375
    tokens: .021 and .19.
    """
    small, found = daguerre.load(path, dtype="float32", quantize=quantize), []
    for ids in [*prompts_of(exact, 8), long_prompt(exact)[:300]]:
        want, got = (torch.from_numpy(logits_of(model, ids, list(range(len(ids))))) for model in (exact, small))
        found.append(relative_entropies(want.log_softmax(-1), got.log_softmax(-1)))
    assert float(torch.cat(found).mean()) < limit


def relative_entropies(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """KL(want, got) in nats for each row of log-probabilities."""
    return torch.where(want > -torch.inf, want.exp() * (want - got), 0.0).sum(-1)


def test_every_way_of_decoding_agrees_behind_a_long_prompt(path: Path) -> None:
    model = daguerre.load(path)
    ids = long_prompt(model)[len(model.config.first) :]
    how: dict[str, Any] = {"heal": False, "stop_loops": False}
    want = model.generate(ids, TOKENS, mode="ar", **how)
    texts = [token.id for token in want.tokens]
    for more in ({"mode": "speculative"}, {"mode": "ar", "draft": want.text}, {"mode": "ar", "regex": r"(.|\n)*"}):
        assert [token.id for token in model.generate(ids, TOKENS, **how, **more).tokens] == texts, more
    with Engine(model) as engine:
        for _ in range(2):  # the second time from stored pages
            jobs = [engine.generate(ids[:-cut] if cut else ids, TOKENS, mode="ar", **how) for cut in (0, 3, 700)]
            assert [token.id for token in jobs[0].result(600).tokens] == texts
            for job, cut in zip(jobs[1:], (3, 700), strict=True):
                alone = model.generate(ids[:-cut], TOKENS, mode="ar", **how)
                assert [token.id for token in job.result(600).tokens] == [token.id for token in alone.tokens]


def test_what_is_asked_of_a_base_model_works(path: Path) -> None:
    model = daguerre.load(path)
    prompt = "The capital of France is"
    assert model.generate(prompt, 8, heal=False, mode="ar").text.startswith(" the capital of")
    assert model.generate(prompt, 4, choices=[" Paris", " Rome"]).text in (" Paris", " Rome")
    assert model.generate("I have ", 8, regex=r"\d+ cats").text.endswith("cats")
    assert json.loads(model.generate("JSON: ", 24, schema={"enum": ["red", "blue"]}).text) in ("red", "blue")
    assert model.nll("Paris is the capital of France.").value < model.nll("France the capital of is Paris.").value
    assert model.decide(prompt, [Choice(labels=[" Paris", " cheese"])])[0].answer == " Paris"
