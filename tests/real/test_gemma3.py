"""Gemma 3 270M, the base model: windows of 512 in five layers of six, beside transformers and llama.cpp."""

from __future__ import annotations

import json
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from daguerre.engine.engine import Engine
from daguerre.model import Model
from daguerre.models.forward import Forward, Hidden, Layout, Logits
from daguerre.models.load_options import Quantization
from daguerre.scoring.decisions import Choice
from real.conftest import FULL, some
from real.files import bring, bring_llama_cpp
from real.prompts import CHATS, CODES

TOKENS, LONG, WINDOW = some(32, 16), 1500, 512
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
def reference(path: Path) -> Model:
    """The model in float32, on PyTorch."""
    return daguerre.load(path, dtype="float32", backend="torch")


@pytest.fixture(scope="module")
def exact(reference: Model) -> Model:
    """The same on the native backend."""
    facts = {"family": reference.family, "defaults": reference.defaults}
    return Model(reference.backbone, reference.tokenizer, backend="native", **facts)


@pytest.fixture(scope="module")
def plain(path: Path) -> Model:
    """The model as it is loaded without options."""
    return daguerre.load(path)


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


def written(oracle: Any, ids: list[int], ends: list[int]) -> list[int]:
    """TOKENS tokens that transformers writes greedily, none of them an end."""
    with torch.inference_mode():
        out = oracle.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False, suppress_tokens=ends)
    found: list[int] = out[0, len(ids) :].tolist()
    assert len(found) == TOKENS
    return found


def ties_in(model: Model, ids: list[int], want: list[int], close: Callable[[list[int]], float]) -> list[str]:
    """Our greedy text behind these ids is `want`, token for token, but for ties: where our likeliest token is another
    one, the logits of both are within `close` of the text so far, and the text goes on behind that of `want`. Returns
    what was found of each.
    """
    start, at, ties = len(model.config.first), 0, list[str]()
    while at < len(want):
        num = len(want) - at
        given = [*ids, *want[:at]][start:]
        result = model.generate(given, num, mode="ar", heal=False, stop_loops=False, min_tokens=num)
        got = [token.id for token in result.tokens]
        assert len(got) == num
        same = next((n for n, (one, other) in enumerate(zip(got, want[at:], strict=True)) if one != other), num)
        at += same + 1
        if same < num:
            text = [*ids, *want[: at - 1]]
            (row,), mine, theirs = logits_of(model, text, [len(text) - 1]), got[same], want[at - 1]
            apart, most = float(row[mine] - row[theirs]), close(text)
            assert 0 <= apart < most, f"token {at - 1}: {mine} and not {theirs}, whose logits are {apart} apart"
            ties.append(f"token {at - 1} is {mine} and not {theirs}: {apart:.2g} apart, {most:.2g} are rounding")
    return ties


def say(ties: dict[str, list[str]]) -> None:
    """A warning that names the ties: they are allowed, and seen."""
    if any(ties.values()):
        warnings.warn(f"ties: { ({name: found for name, found in ties.items() if found}) }", stacklevel=2)


def rounding(model: Model, oracle: Any, ids: list[int]) -> float:
    """How far apart two logits of the next token may be that are in another order for transformers: twice the largest
    difference of a logit, which is float32's rounding.
    """
    row, other = logits_of(model, ids, [len(ids) - 1])[0], theirs(oracle, ids, [len(ids) - 1])[0]
    differs = np.abs(row - other)[np.isfinite(row)].max()
    assert differs < 1e-4 * np.abs(other).max()
    return 2 * float(differs)


def test_transformers_has_the_numbers_of_the_file(path: Path, oracle: Any) -> None:
    """Those that the package gguf makes of its blocks; norms are stored with 1 added. CI looks at two layers."""
    import gguf

    state = oracle.state_dict()
    named = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    checked = 0
    for tensor in gguf.GGUFReader(path).tensors:
        block, _, name = tensor.name.removeprefix("blk.").removesuffix(".weight").partition(".")
        if not name and FULL:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[block]
        elif name and int(block) in (0, 5, *range(some(18, 0))):
            name = f"model.layers.{block}.{named[name]}"
        else:
            continue
        numbers = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        stored = state[f"{name}.weight"]
        same = torch.equal(stored, numbers)
        if "norm" in name:
            same = torch.equal(stored + 1, numbers) or torch.equal(stored, numbers - 1)
        assert same, name
        checked += 1
    assert checked == some(2 + 13 * 18, 13 * 2)


def test_the_windows_are_those_of_the_publisher(exact: Model) -> None:
    windows = exact.config.windows
    assert windows is not None and (windows.size, windows.rope_theta) == (WINDOW, 10_000)
    assert [layer for layer in range(18) if layer not in windows.layers] == [5, 11, 17]
    assert exact.family == "gemma3" and exact.config.rope_theta == 1_000_000


def test_logits_are_those_of_transformers(exact: Model, oracle: Any) -> None:
    """Within 1e-4 of the largest, also where windows end."""
    for ids, rows in (
        *((ids, list(range(len(ids)))) for ids in prompts_of(exact, some(8, 1))),
        (long_prompt(exact), [10, WINDOW - 1, WINDOW, WINDOW + 1, 1000, LONG - 1]),
    ):
        got, want = logits_of(exact, ids, rows), theirs(oracle, ids, rows)
        known = np.isfinite(got)
        assert known.mean() > 0.99 and np.abs(got - want)[known].max() < 1e-4 * np.abs(want).max()


@pytest.mark.skipif(not FULL, reason="make real runs it")
def test_the_long_prompt_shows_the_windows(exact: Model, oracle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them transformers computes other logits from the first row on that sees less than all."""
    ids, rows = long_prompt(exact), [WINDOW - 1, WINDOW + 50, LONG - 1]
    want = theirs(oracle, ids, rows)
    monkeypatch.setattr(oracle.config, "sliding_window", LONG)
    apart = np.abs(theirs(oracle, ids, rows) - want).max(1)
    assert apart[0] < 1e-4 * np.abs(want).max() and (apart[1:] > 0.1).all()


@pytest.mark.filterwarnings("default:ties")
def test_greedy_texts_are_those_of_transformers(exact: Model, oracle: Any, subtests: pytest.Subtests) -> None:
    ties = dict[str, list[str]]()
    for number, ids in enumerate(prompts_of(exact, some(30, 4))):
        with subtests.test(number=number):
            want = written(oracle, ids, exact.config.ends)
            ties[f"prompt {number}"] = ties_in(exact, ids, want, lambda text: rounding(exact, oracle, text))
    say(ties)


@pytest.mark.filterwarnings("default:ties")
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_the_greedy_text_behind_a_long_prompt_is_that_of_transformers(
    backend: str, request: pytest.FixtureRequest, oracle: Any
) -> None:
    model: Model = request.getfixturevalue("exact" if backend == "native" else "reference")
    ids = long_prompt(model)
    want = written(oracle, ids, model.config.ends)
    assert len(set(want)) > TOKENS / 4
    say({backend: ties_in(model, ids, want, lambda text: rounding(model, oracle, text))})


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
    ties = [
        ties_in(exact, ids, found["tokens"], lambda text: 1.0)
        for ids, found in zip(asked, json.loads(ran.stdout)["written"], strict=True)
    ]
    assert sum(map(bool, ties)) < len(ties) / 2


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


def test_every_way_of_decoding_agrees_behind_a_long_prompt(plain: Model) -> None:
    model = plain
    ids = long_prompt(model)[len(model.config.first) : some(LONG, WINDOW + 200)]
    how: dict[str, Any] = {"heal": False, "stop_loops": False}
    want = model.generate(ids, TOKENS, mode="ar", **how)
    texts = [token.id for token in want.tokens]
    for more in ({"mode": "speculative"}, {"mode": "ar", "draft": want.text}, {"mode": "ar", "regex": r"(.|\n)*"}):
        assert [token.id for token in model.generate(ids, TOKENS, **how, **more).tokens] == texts, more
    shorter = [ids[:-3], ids[:-700]]
    alone = [texts, *([token.id for token in model.generate(one, TOKENS, mode="ar", **how).tokens] for one in shorter)]
    with Engine(model) as engine:
        for _ in range(2):  # the second time from stored pages
            jobs = [engine.generate(one, TOKENS, mode="ar", **how) for one in (ids, *shorter)]
            assert [[token.id for token in job.result(600).tokens] for job in jobs] == alone


@pytest.mark.skipif(not FULL, reason="make real runs it")
def test_the_cache_of_8_000_tokens_has_the_keys_of_windows(plain: Model) -> None:
    """In bytes: 3 layers of all rows, and 15 of 640, in place of 18 of all."""
    backend, num, piece = plain.denoiser.backend, 8000, 500
    cache: Any = backend.cache(num + 64)
    ids = np.random.default_rng(0).choice(plain.config.ordinary_ids, num + 1)
    for start in [*range(0, num, piece), num]:
        rows = min(piece, num + 1 - start)
        end = np.arange(start + 1, start + rows + 1, dtype=np.int32)
        layout = Layout(np.arange(start, start + rows), end, rows)
        backend.forward([Forward(ids[start : start + rows], layout, cache, np.array([rows - 1], np.int32), Hidden())])
    a_row = 2 * 256 * 2  # a key and a value in bfloat16
    assert cache.num_bytes == a_row * (3 * 8064 + 15 * 640) < 0.24 * a_row * 18 * num


def test_what_is_asked_of_a_base_model_works(plain: Model) -> None:
    model = plain
    prompt = "The capital of France is"
    assert model.generate(prompt, 8, heal=False, mode="ar").text.startswith(" the capital of")
    assert model.generate(prompt, 4, choices=[" Paris", " Rome"]).text in (" Paris", " Rome")
    assert model.generate("I have ", 8, regex=r"\d+ cats").text.endswith("cats")
    assert json.loads(model.generate("JSON: ", 24, schema={"enum": ["red", "blue"]}).text) in ("red", "blue")
    assert model.nll("Paris is the capital of France.").value < model.nll("France the capital of is Paris.").value
    assert model.decide(prompt, [Choice(labels=[" Paris", " cheese"])])[0].answer == " Paris"
