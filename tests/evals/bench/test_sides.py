"""Every side of a benchmark, in this process, at a tiny shape: what it writes, and in how many forwards."""

from __future__ import annotations

import dataclasses
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

from bench_shape import TINY
from conftest import MakeModel
from daguerre.errors import DaguerreError, InputError, MissingExtra, UnsupportedError
from daguerre.evals.bench.job import FORCED, BenchJob, BenchShape, prompts, random_model, remarks
from daguerre.evals.bench.llada import llada_loop
from daguerre.evals.bench.peers import LlamaCpp, tiles_run, write_gguf
from daguerre.evals.bench.rounds import agreement, run_rounds, summary
from daguerre.evals.bench.sides import OURS, SIDES, make, see_all, sides_for
from daguerre.evals.bench.worker import versions
from daguerre.models.core.config import Experts
from daguerre.models.loading import save_model

NEW = TINY.new_tokens
JOB = BenchJob(side="ar", threads=1, shape=TINY)
PACKAGE_OF = {"transformers": "transformers", "diffusers": "diffusers", "llama.cpp": "llama_cpp"}
IN_PARALLEL = ("block 8 int8", "block 16 torch", "full", "LLaDA loop", "diffusers")
ONE_BY_ONE = ("ar bfloat16", "transformers", "llama.cpp F32")


@pytest.mark.filterwarnings("ignore")  # of other people's packages
@pytest.mark.parametrize("name", [*ONE_BY_ONE, *IN_PARALLEL])
def test_a_side_writes_as_many_tokens_as_are_requested(name: str) -> None:
    pytest.importorskip(PACKAGE_OF.get(name.split()[0], "torch"))
    job = dataclasses.replace(JOB, side=name)

    timing = make(job)(prompts(job)[0])

    assert len(timing.tokens) == NEW
    assert all(0 <= token < TINY.vocab_size for token in timing.tokens)
    assert 0 < timing.first_seconds <= timing.seconds
    assert 1 <= timing.first_tokens <= FORCED
    assert timing.forwards == (NEW if name in ONE_BY_ONE else NEW // FORCED)


def test_the_sides_of_a_job_are_measured_once_each() -> None:
    plain, bf16 = (sides_for(dataclasses.replace(JOB, dtype=dtype)) for dtype in ("float32", "bfloat16"))

    assert set(plain) ^ set(bf16) == {"ar float32", "ar bfloat16"}
    assert "ar bfloat16" in plain
    assert {"block 8", "block 16 torch"} <= set(plain)
    assert not any("32" in name or "64" in name for name in plain if name.startswith("block"))
    assert not {"transformers", "LLaDA loop"} & set(sides_for(dataclasses.replace(JOB, model="default")))


def test_speculation_and_ar_write_the_same() -> None:
    prompt = prompts(JOB)[0]
    one, other = (make(dataclasses.replace(JOB, side=side))(prompt) for side in ("ar", "speculative"))

    assert one.tokens == other.tokens


def test_rows_include_those_of_finished_blocks() -> None:
    timing = make(dataclasses.replace(JOB, side="block 8"))(prompts(JOB)[0])

    prefill, finished, opened = TINY.prompt_tokens - 1, 8, 2 * 8 * (8 // FORCED)
    assert timing.rows == prefill + finished + opened


def test_a_side_that_fails_is_named_and_the_others_go_on() -> None:
    found = run_rounds(JOB, ["ar", "nothing"], 1, lambda what, done, total: None)

    assert set(found["sides"]) == {"ar"}
    assert "unknown side 'nothing'" in found["failed"]["nothing"]
    assert found["sides"]["ar"]["tokens_as_ar"] == 1
    assert found["sides"]["ar"]["forwards"] == NEW
    assert found["versions"]["torch"] == torch.__version__


def test_agreement_is_the_share_before_the_first_difference() -> None:
    run = make(JOB)
    timing = run(prompts(JOB)[0])
    other = dataclasses.replace(timing, tokens=(*timing.tokens[:4], -1, *timing.tokens[5:]))

    assert agreement([timing, timing], [timing, other]) == (1 + 4 / NEW) / 2
    assert summary([timing])["tokens_per_second"] == NEW / timing.seconds


def test_the_loop_of_llada_writes_what_mode_full_does(make_model: MakeModel) -> None:
    model = make_model(seed=3, context="full", shift=False)
    config, backbone = model.config, model.backbone
    prompt = torch.tensor([config.bos_id, *range(100, 130)])

    def logits_of(tokens: torch.Tensor) -> torch.Tensor:
        logits = backbone.logits(backbone(tokens, torch.arange(tokens.shape[1])[None], see_all))
        logits[..., config.ends] = -torch.inf  # as min_tokens does
        return logits

    ends: list[int] = []
    tokens = llada_loop(logits_of, prompt, 24, 7, 24, config.mask_id, lambda: ends.append(1))
    ours = model.generate(prompt[1:].tolist(), 24, mode="full", policy="confidence", steps=7, min_tokens=24, heal=False)

    assert tokens[len(prompt) :].tolist() == [token.id for token in ours.tokens]
    assert len(ends) == 7
    assert len(set(tokens[len(prompt) :].tolist())) > 4


def test_llada_fills_its_blocks_from_left_to_right() -> None:
    seen: list[list[int]] = []

    def logits_of(tokens: torch.Tensor) -> torch.Tensor:
        seen.append((tokens[0] == 3).nonzero()[:, 0].tolist())
        return torch.nn.functional.one_hot(torch.full_like(tokens, 9), 16).float() * (1 + torch.arange(10)[:, None])

    tokens = llada_loop(logits_of, torch.tensor([1, 3]), 8, 4, 4, 3, lambda: None)

    assert tokens.tolist() == [1, 3, *[9] * 8]  # the prompt's own mask token stays
    assert seen == [
        [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 6, 7, 8, 9], [1, 6, 7, 8, 9], [1, 6, 7],
    ]  # fmt: skip


def test_a_shape_needs_a_vocabulary_of_the_package() -> None:
    with pytest.raises(InputError, match="2048 or 8192"):
        dataclasses.replace(TINY, vocab_size=1000)


def test_a_job_survives_its_way_to_another_process() -> None:
    assert BenchJob.of(JOB.json()) == JOB
    assert isinstance(BenchJob.of(JOB.json()).shape, BenchShape)


def test_a_gguf_holds_the_weights_of_the_backbone(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    backbone = random_model(TINY, "float32").backbone
    write_gguf(backbone, tmp_path / "m.gguf", "F32")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}

    assert len(tensors) == 2 + TINY.num_layers * 11
    assert np.array_equal(tensors["token_embd.weight"].data, backbone.embedding.weight.numpy())
    query = backbone.layers[1].attention.qkv.weight[: TINY.width]  # type: ignore[union-attr, index]
    assert np.array_equal(tensors["blk.1.attn_q.weight"].data, query.numpy())


def test_a_model_that_llama_cpp_cannot_express_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    experts = Experts(num=4, per_token=2, width=16, normalized=True)
    for facts, reason in (
        ({"context": "full"}, "full context"),
        ({"tied": False, "norm": "layer"}, "norm='layer'"),
        ({"experts": experts, "qk_norm": False}, "qk_norm=False beside experts"),
        ({"experts": experts, "qk_norm_scope": "all"}, "qk_norm_scope='all'"),
    ):
        with pytest.raises(UnsupportedError, match=rf"llama\.cpp .* with .*{reason}:"):
            write_gguf(make_model(**facts).backbone, tmp_path / "m.gguf", "F32")


def test_llama_cpp_writes_our_greedy_tokens(make_model: MakeModel, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    model = make_model(seed=1)
    write_gguf(model.backbone, tmp_path / "m.gguf", "F32")
    prompt = [model.config.bos_id, *range(200, 220)]
    steps = LlamaCpp(tmp_path / "m.gguf", 1, 64).generate(prompt)
    ours = model.generate(prompt[1:], 24, mode="ar", min_tokens=24, heal=False)
    reserved = model.config.reserved_ids
    theirs = [next(steps) for _ in range(24)]

    assert len(set(theirs)) > 4
    assert not set(theirs) & set(reserved)
    assert theirs == [token.id for token in ours.tokens]


def test_llama_cpp_runs_without_tiles_where_a_trial_fails_and_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(remarks, "llama-cpp-python", "")
    monkeypatch.setattr(metadata, "version", lambda name: "1.0")
    for supported, runs in ((False, True), (True, False)):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda supported=supported: supported)
        assert tiles_run(tmp_path / "none.gguf", 64) == runs
        assert versions()["llama-cpp-python"].startswith("1.0 (its build fails") == (not runs)


def test_a_peer_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "diffusers", "llama_cpp", "gguf"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    for name in set(SIDES) - set(OURS) - {"LLaDA loop"}:
        with pytest.raises(MissingExtra, match=r"daguerre\[bench\]"):
            make(dataclasses.replace(JOB, side=name))


def test_a_given_model_runs_on_held_out_prompts(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    save_model(tmp_path / "m", model.backbone, model.tokenizer)
    job = dataclasses.replace(JOB, model=str(tmp_path / "m"))

    texts = prompts(job)
    timing = make(job)(texts[0])

    assert {len(text) for text in texts} == {TINY.prompt_tokens}
    assert len(timing.tokens) == NEW
    with pytest.raises(DaguerreError):
        make(dataclasses.replace(job, model="nowhere"))
