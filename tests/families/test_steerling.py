"""Steerling: checkpoints in both of the publisher's dialects against a restatement, and what becomes of residuals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from backends import BACKENDS
from checkpoints import ours
from daguerre.canvas import Canvas
from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.families import FAMILIES, find_family
from daguerre.models.families.base import Published
from daguerre.models.loading import load_folder
from daguerre.models.published import describe
from daguerre.models.residual_modes import RESIDUAL_MODES, composed
from driving import logits_of
from oracles.steerling import CASES, CONCEPTS, CORE, FLAT, NESTED, Steerling, tensors, write
from published import END, MASK, NUM_TOKENS, ROWS, SIZE, seen_by, write_tensors

FACTS = {"context": "block", "block_size": 8, "shift": False, "mask_id": MASK, "bos_id": None, "eos_id": END}
KNOWN, FOUND = CONCEPTS["n_concepts"], CONCEPTS["n_unknown_concepts"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    root = tmp_path_factory.mktemp("published")
    folders = {name: write(root / str(i), config) for i, (name, config) in enumerate(CASES.items())}
    return {name: daguerre.load(folder, dtype="float32", backend="torch") for name, folder in folders.items()}


def tokens_of(seed: int = 0) -> np.ndarray:
    """A text with masks, which ends inside a block."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, NUM_TOKENS - 1, ROWS)
    return np.where(rng.random(ROWS) < 0.4, MASK, tokens)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_gives_the_logits_of_the_restatement(
    backend: str, loaded: dict[str, Model], subtests: pytest.Subtests
) -> None:
    for name in CASES:
        with subtests.test(name):
            config, oracle = loaded[name].config, Steerling(CASES[name])
            assert {fact: getattr(config, fact) for fact in FACTS} == FACTS
            assert (config.concepts is not None, config.clip_qkv) == (
                CASES[name]["interpretable"],
                CASES[name]["clip_qkv"],
            )
            assert {*config.unpredictable_ids} == {MASK, *range(NUM_TOKENS, SIZE)}
            tokens = tokens_of()
            expected = oracle.logits(oracle.hidden(tokens))
            got = ours(backend, loaded[name].backbone, tokens, seen_by(config)).numpy()
            drawn = [index for index in range(SIZE) if index not in config.unpredictable_ids]
            assert np.abs(got[:, drawn] - expected[:, drawn]).max() < 1e-4
            assert 0.3 < torch.from_numpy(expected).softmax(-1).amax(-1).mean() < 0.7


def test_each_of_its_differences_from_a_plain_model_is_in_the_logits(subtests: pytest.Subtests) -> None:
    """Else the comparison above would not see it."""
    for change in [{"clip_qkv": None}, {"norm_order": "pre"}, {"diff_block_size": 16}]:
        with subtests.test(**change):
            one, other = (Steerling(NESTED | changes).hidden(tokens_of()) for changes in ({}, change))
            assert np.abs(one - other).max() > 0.1


def test_hidden_states_are_sums_of_the_same_concepts_with_the_same_weights(
    loaded: dict[str, Model], subtests: pytest.Subtests
) -> None:
    for name in [name for name, config in CASES.items() if config["interpretable"]]:
        with subtests.test(name):
            oracle, heads = Steerling(CASES[name]), heads_of(loaded[name])
            hidden = oracle.hidden(tokens_of())
            parts = heads.decompose(torch.from_numpy(hidden).float())
            found = (parts.known_ids, parts.known_weights), (parts.discovered_ids - KNOWN, parts.discovered_weights)
            sums = []
            for (ids, weights), expected, vectors in zip(
                found, oracle.activations(hidden), oracle.vectors(), strict=True
            ):
                got = torch.zeros(expected.shape).scatter(1, ids, weights).numpy()
                assert np.abs(got - expected).max() < 1e-6
                assert ((got > 0) == (expected > 0)).all()
                sums.append(expected @ vectors)
            assert ids.shape[1] == 8 and parts.known_ids.shape[1] == CASES[name].get("topk_known_features", 4)
            assert np.abs(parts.known.numpy() - sums[0]).max() < 1e-5
            assert np.abs(parts.discovered.numpy() - sums[1]).max() < 1e-5
            assert np.abs(parts.residual.numpy() - (hidden - sums[0] - sums[1])).max() < 1e-5


def heads_of(model: Model) -> ConceptHeads:
    heads = model.backbone.concepts
    assert isinstance(heads, ConceptHeads)
    return heads


EDITS: list[tuple[dict[int, float], dict[int, float]]] = [
    ({}, {}),
    ({3: 1.0}, {}),
    ({3: 0.0, 30: 2.5}, {}),
    ({}, {5: 1.0, 77: -1.0}),
    ({36: 1.5}, {5: 0.0, 110: 3.0}),
]
"""New weights of known concepts, and of discovered ones, each counted from 0."""


def numbered(discovered: dict[int, float]) -> dict[int, float]:
    return {concept + KNOWN: weight for concept, weight in discovered.items()}


def test_the_published_code_drops_the_residual_for_known_concepts_and_computes_it_again_for_others(
    loaded: dict[str, Model], subtests: pytest.Subtests
) -> None:
    oracle, heads = Steerling(NESTED), heads_of(loaded["nested"])
    hidden = oracle.hidden(tokens_of())
    for known, discovered in EDITS:
        with subtests.test(known=known, discovered=discovered):
            expected = oracle.intervened(hidden, known, discovered)
            mode = "drop" if known else "recompute"
            got = composed(heads, torch.from_numpy(hidden).float(), known, numbered(discovered), mode)
            assert np.abs(got.numpy() - expected).max() < 1e-5


def test_a_kept_residual_is_that_of_the_state_before_the_edit(
    loaded: dict[str, Model], subtests: pytest.Subtests
) -> None:
    """The sums after the edit, and all that was neither a known nor a discovered concept before it."""
    oracle, heads = Steerling(NESTED), heads_of(loaded["nested"])
    hidden = oracle.hidden(tokens_of())
    for known, discovered in EDITS:
        with subtests.test(known=known, discovered=discovered):
            before = [
                weights @ vectors for weights, vectors in zip(oracle.activations(hidden), oracle.vectors(), strict=True)
            ]
            after = hidden - before[0] - before[1]
            for weights, vectors, edits in zip(
                oracle.activations(hidden), oracle.vectors(), (known, discovered), strict=True
            ):
                weights[:, list(edits)] = list(edits.values())
                after = after + weights @ vectors
            got = composed(heads, torch.from_numpy(hidden).float(), known, numbered(discovered))
            assert np.abs(got.numpy() - after).max() < 1e-5


def test_an_edit_of_discovered_concepts_does_nothing_in_the_published_code_and_what_it_says_here(
    loaded: dict[str, Model],
) -> None:
    oracle, model = Steerling(NESTED), loaded["nested"]
    hidden = oracle.hidden(tokens_of())
    edits = {5: 2.0, 77: -2.0}
    published = oracle.logits(oracle.intervened(hidden, {}, edits)) - oracle.logits(hidden)
    assert np.abs(published).max() < 1e-12, "the defect"
    h = torch.from_numpy(hidden).float()
    plain, again, fixed = (
        model.backbone.logits(state)[:, :MASK]
        for state in (h, *(composed(heads_of(model), h, {}, numbered(edits), mode) for mode in ("recompute", "keep")))
    )
    assert (again - plain).abs().max() < 1e-4
    weights, vectors = oracle.activations(hidden)[1], oracle.vectors()[1]
    change = sum((new - weights[:, [concept]]) * vectors[concept] for concept, new in edits.items())
    assert np.abs((fixed - plain).numpy() - oracle.logits(change)[:, :MASK]).max() < 1e-4
    assert np.abs(oracle.logits(change)[:, :MASK]).max(-1).min() > 0.5


def test_a_concept_that_is_not_kept_can_be_turned_on(loaded: dict[str, Model]) -> None:
    heads = heads_of(loaded["nested"])
    h = torch.from_numpy(Steerling(NESTED).hidden(tokens_of())).float()
    weights = heads.weights(h)
    for concept in (1, KNOWN + 2):
        off = weights[:, concept] == 0
        assert off.any()
        new = {concept: 0.7}
        pair = (new, {}) if concept < KNOWN else ({}, new)
        moved = composed(heads, h, *pair) - h
        expected = 0.7 * heads.vectors(torch.tensor([concept]))
        assert (moved[off] - expected).abs().max() < 1e-6


def test_without_an_edit_only_a_dropped_residual_changes_the_logits(loaded: dict[str, Model]) -> None:
    model = loaded["nested"]
    h = torch.from_numpy(Steerling(NESTED).hidden(tokens_of())).float()
    plain = model.backbone.logits(h)[:, :MASK]
    moved = {
        mode: float((model.backbone.logits(composed(heads_of(model), h, {}, {}, mode))[:, :MASK] - plain).abs().max())
        for mode in RESIDUAL_MODES
    }
    assert moved["keep"] == 0
    assert moved["recompute"] < 1e-4
    assert moved["drop"] > 1


def test_concepts_and_modes_that_do_not_exist_are_refused(loaded: dict[str, Model], subtests: pytest.Subtests) -> None:
    for known, discovered, mode, words in [
        ({KNOWN: 1.0}, {}, "keep", "there is no known concept 37: their numbers are 0 to 36"),
        ({-1: 1.0}, {}, "keep", "there is no known concept -1"),
        ({}, {KNOWN - 1: 1.0}, "keep", "there is no discovered concept 36: their numbers are 37 to 147"),
        ({}, {KNOWN + FOUND: 1.0}, "keep", "there is no discovered concept 148"),
        ({}, {}, "frozen", "unknown residual mode"),
    ]:
        with subtests.test(words):
            with pytest.raises(InputError, match=words) as caught:
                composed(heads_of(loaded["nested"]), torch.zeros(1, 64), known, discovered, mode)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_behind_a_prompt_of_whole_blocks_the_published_loop_writes_the_same_tokens(
    backend: Any, loaded: dict[str, Model], subtests: pytest.Subtests
) -> None:
    """At temperature 0, without its penalty for repetition, and without ends of text, which it never draws. Elsewhere
    its blocks lie across those that the model sees in, and ours do not.
    """
    for name in ["nested", "nested, no QK-norm, sharp clip", "flat, no heads"]:
        with subtests.test(name):
            one = loaded[name]
            model = Model(one.backbone, one.tokenizer, backend, family=one.family, defaults=one.defaults)
            oracle, never = Steerling(CASES[name]), [*model.config.unpredictable_ids, *model.config.ends]
            rng, same = np.random.default_rng(5), []
            for length in (16, 8, 13):
                prompt = rng.integers(0, 256, length).tolist()
                result = model.generate(prompt, 24, end_of_text="never")
                same.append([token.id for token in result.tokens] == oracle.written(prompt, 24, never))
            assert same == [True, True, False]
            assert result.usage.forwards == 24


@pytest.mark.parametrize("backend", BACKENDS)
def test_finished_blocks_are_cached_exactly(backend: Any, loaded: dict[str, Model]) -> None:
    model, limit = loaded["nested"], 0.0 if backend == "native" else 1e-4
    denoiser = BackboneDenoiser(model.backbone, backend)
    result = Model(model.backbone, model.tokenizer, backend, family="steerling").generate([1, 2, 3], 30, mode="block")
    shown, spans = [result.trace.canvas, *result.trace.replay()], [step.span for step in result.trace.steps]
    canvases: list[Canvas] = [canvas.at(span) for canvas, span in zip(shown, spans, strict=False)]
    fast, slow = (denoiser.session(canvases[0], cache) for cache in ("auto", "none"))
    for canvas in canvases:
        asked = canvas.active_positions()
        a, b = (logits_of(denoiser, canvas, asked, session) for session in (fast, slow))
        known = np.isfinite(b)
        assert np.abs(a[known] - b[known]).max() <= limit
    assert fast.counts.reused_tokens == slow.counts.recomputed_tokens > 0


PUBLIC = CORE | {
    "n_layers": 32,
    "n_head": 32,
    "n_embd": 4096,
    "n_kv_heads": 4,
    "block_size": 4096,
    "diff_block_size": 64,
    "clip_qkv": 10.0,
    "mlp_ratio": 4,
    "vocab_size": 100281,
    "pad_token_id": 100277,
    "bos_token_id": 100278,
    "eos_token_id": 100257,
    "mask_token_id": 100280,
}
PUBLIC_CONCEPTS = CONCEPTS | {
    "n_concepts": 33732,
    "n_unknown_concepts": 101196,
    "concept_dim": 4096,
    "factorize_rank": 256,
    "topk_known": 32,
    "topk_known_features": 32,
    "unknown_topk": 128,
}
DIALECTS = {"nested": PUBLIC | {"concept": PUBLIC_CONCEPTS}, "flat": PUBLIC | PUBLIC_CONCEPTS}
INSTRUCT = {"vocab_size": 100284, "eot_id": 100283}


def test_the_public_model_has_as_many_parameters_as_its_publisher_prints(subtests: pytest.Subtests) -> None:
    for dialect in DIALECTS:
        for changes, num in [({}, 8_391_778_304), (INSTRUCT, 8_391_778_304 + 3 * 4096)]:
            with subtests.test(dialect, num=num):
                config = FAMILIES["steerling"].read(Published(config=DIALECTS[dialect] | changes))
                with torch.device("meta"):
                    backbone = Backbone(config)
                assert backbone.num_parameters == num
                assert (config.block_size, config.clip_qkv, config.norm_placement, config.head_width) == (
                    64,
                    10.0,
                    "post",
                    128,
                )
                shape = config.concepts
                assert shape is not None
                assert (shape.known, shape.discovered, shape.rank) == (33732, 101196, 256)
                assert (shape.kept_known, shape.kept_discovered, shape.spare_known, shape.spare_discovered) == (
                    32,
                    128,
                    12,
                    4,
                )
                assert config.ends == ([100257, 100283] if changes else [100257])
                assert {100277, 100280, 100258, 100276} <= {*config.unpredictable_ids}
                assert not {100256, 100257, 100278, 100279} & {*config.unpredictable_ids}


def test_pieces_cover_every_weight_exactly_once(loaded: dict[str, Model], subtests: pytest.Subtests) -> None:
    for name in CASES:
        with subtests.test(name):
            covered = {target: np.zeros(part.shape, int) for target, part in loaded[name].backbone.state_dict().items()}
            for piece in FAMILIES["steerling"].pieces(loaded[name].config):
                if not piece.copy:
                    covered[piece.target][piece.index] += 1
            assert all((count == 1).all() for count in covered.values())


def test_what_a_config_leaves_out_is_as_in_the_publishers_code() -> None:
    sizes = ("n_layers", "n_head", "n_embd", "vocab_size", "interpretable")
    short = {key: PUBLIC[key] for key in sizes} | {"model_type": "causal_diffusion"}
    short["concept"] = {"n_concepts": 33732, "n_unknown_concepts": 101196}
    read = find_family(short).read
    assert read(Published(config=short)) == read(Published(config=DIALECTS["nested"] | {"pad_token_id": None}))


def test_a_projection_that_is_stored_twice_must_be_the_embedding(tmp_path: Path) -> None:
    folder, name = write(tmp_path, FLAT, shards=1), "transformer.lm_head.weight"
    stored = {key: torch.from_numpy(weight).float() for key, weight in tensors(FLAT).items()}
    stored[name] = stored["transformer.tok_emb.weight"].clone()
    write_tensors(folder, stored)
    assert load_folder(folder).backbone.config.tied
    stored[name][7] += 1
    write_tensors(folder, stored)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is stored and differs"):
        load_folder(folder)


REFUSED: list[tuple[dict[str, Any], Any, str]] = [
    ({"use_bias": True}, UnsupportedError, "use_bias=True"),
    ({"use_rms_norm": False}, UnsupportedError, "use_rms_norm=False"),
    ({"use_rope": False}, UnsupportedError, "use_rope=False"),
    ({"mlp_type": "standard"}, UnsupportedError, "mlp_type='standard'"),
    ({"norm_order": "sandwich"}, UnsupportedError, "norm_order='sandwich'"),
    ({"use_attention_known": True}, UnsupportedError, "use_attention_known=True"),
    ({"use_attention_unknown": True}, UnsupportedError, "use_attention_unknown=True"),
    ({"use_unknown": False}, UnsupportedError, "use_unknown=False"),
    ({"factorize_unknown": False}, UnsupportedError, "factorize_unknown=False"),
    ({"apply_topk_to_unknown": False}, UnsupportedError, "apply_topk_to_unknown=False"),
    ({"use_epsilon_correction": False}, UnsupportedError, "use_epsilon_correction=False"),
    ({"topk_on_logits": True}, UnsupportedError, "topk_on_logits=True"),
    ({"topk_known": None}, UnsupportedError, "topk_known=null"),
    ({"unknown_topk": None}, UnsupportedError, "unknown_topk=null"),
    ({"concept_dim": 32}, UnsupportedError, "concept_dim=32"),
    ({"n_unknown_concepts": None}, CheckpointError, "no n_unknown_concepts"),
    ({"clip_qkv": -1.0}, CheckpointError, "clip_qkv must be a number above 0"),
    ({"interpretable": "yes"}, CheckpointError, "interpretable must be true or false"),
    ({"concept": 3}, CheckpointError, "concept must be a section"),
    ({"mask_token_id": 4000}, CheckpointError, "mask_token_id=4000"),
    ({"n_concepts": 60}, CheckpointError, r"known_head.concept_embedding.weight \(48, 64\), not \(64, 64\)"),
    ({"interpretable": False}, CheckpointError, "not expected: known_head"),
]


def test_what_cannot_be_computed_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (changes, error, words) in enumerate(REFUSED):
        with subtests.test(**changes):
            (parent := tmp_path / str(number)).mkdir()
            folder = write(parent, FLAT)
            (folder / "config.json").write_text(json.dumps(FLAT | changes))
            with pytest.raises(error, match=words) as caught:
                load_folder(folder)
            assert "\n" not in str(caught.value)


def test_what_is_refused_in_the_section_of_the_concepts_is_refused_there_too(tmp_path: Path) -> None:
    changed = NESTED | {"concept": NESTED["concept"] | {"use_attention_known": True}}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    with pytest.raises(UnsupportedError, match="use_attention_known=True"):
        describe(tmp_path)


def test_clipping_belongs_to_plain_cores_and_to_numbers_above_zero() -> None:
    values: dict[str, Any] = {"vocab_size": 20, "width": 8, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}
    values |= {"mlp_width": 8, "max_positions": 8, "pad_id": 0, "bos_id": 1, "eos_id": 2, "mask_id": 3}
    assert ModelConfig(**values).clip_qkv is None
    assert ModelConfig.from_dict(ModelConfig(**values, clip_qkv=2.0).to_dict()).clip_qkv == 2.0
    with pytest.raises(CheckpointError, match="clip_qkv"):
        ModelConfig(**values, clip_qkv=0.0)
