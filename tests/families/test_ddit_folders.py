"""MDLM, BD3-LM, SEDD, Duo and their AR baseline from folders as publishers write them, through every operation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import daguerre
from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.tokenizer import byte_of_character
from oracles.ddit import published_config, published_weights
from published import write_tensors

NUM_TOKENS = 257
END, MASK = 256, 257
LENGTH = 48
NAMES = {"mdlm": "mdlm-owt", "bd3lm": "bd3lm-owt-block_size4", "ar": "ar-noeos-owt", "sedd": "sedd-small", "duo": "duo"}


def write(folder: Path, kind: str, **changes: Any) -> Path:
    """A checkpoint whose tokenizer, like that of GPT-2, has the bytes and the end of text."""
    folder = folder / NAMES[kind]
    folder.mkdir()
    sizes: dict[str, Any] = {"vocab_size": NUM_TOKENS + 1, "model_length": LENGTH}
    if kind == "sedd":
        sizes = {"tokens": NUM_TOKENS}
        sizes["model"] = published_config("sedd")["model"] | {"length": LENGTH}
    config = published_config(kind, **(sizes | changes))
    (folder / "config.json").write_text(json.dumps(config))
    tensors = published_weights(config) | {
        "backbone.rotary_emb.inv_freq" if kind != "sedd" else "rotary_emb.inv_freq": torch.ones(4)
    }
    if kind == "bd3lm":
        tensors |= {"sampling_eps_min": torch.tensor(1e-3), "sampling_eps_max": torch.tensor(1.0)}
    write_tensors(folder, tensors)
    vocabulary = {character: index for index, character in enumerate(sorted(byte_of_character()))}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_special_tokens(["<|endoftext|>"])
    assert inner.token_to_id("<|endoftext|>") == END and inner.get_vocab_size() == NUM_TOKENS
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"})
    )
    return folder


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    root = tmp_path_factory.mktemp("published")
    return {kind: daguerre.load(write(root, kind), dtype="float32") for kind in NAMES}


def test_a_published_folder_is_recognized_and_writes_as_its_publisher_does(
    loaded: dict[str, Model], subtests: pytest.Subtests
) -> None:
    for kind in NAMES:
        with subtests.test(kind):
            model = loaded[kind]
            assert model.family == {"ar": "ddit_ar"}.get(kind, kind)
            results = [model.generate("ab", 12, seed=seed) for seed in range(4)]
            assert len({result.text for result in results}) > 1
            again = model.generate("ab", 12, seed=0)
            assert again.text == results[0].text
            assert all(token.id < NUM_TOKENS for result in results for token in result.tokens)
            options = model.defaults
            assert model.generate("ab", 12, seed=1, **options).text == results[1].text
            assert model.generate("", 8, min_tokens=8).usage.completion_tokens == 8


def test_full_context_infills_and_keeps_what_is_given(loaded: dict[str, Model], subtests: pytest.Subtests) -> None:
    for kind in ["mdlm", "sedd", "duo"]:
        with subtests.test(kind):
            result = loaded[kind].infill("begin ", " end", 6, min_tokens=6)
            *_, canvas = result.trace.replay()
            tokens = canvas.tokens[~canvas.in_gap].tolist()
            encode = loaded[kind].tokenizer.encode
            assert tokens == [*loaded[kind].config.first, *encode("begin "), *encode(" end")]
            assert len(result.tokens) == 6


def test_masked_models_decode_under_any_policy(loaded: dict[str, Model], subtests: pytest.Subtests) -> None:
    for kind in ["mdlm", "sedd", "bd3lm"]:
        with subtests.test(kind):
            for policy in ("confidence", "threshold", "first_hitting", "random"):
                mode = "block" if kind == "bd3lm" else "full"
                text = loaded[kind].generate("ab", 8, min_tokens=8, mode=mode, policy=policy, temperature=0.5)
                assert len(text.tokens) == 8


def test_every_model_has_its_likelihood(loaded: dict[str, Model], subtests: pytest.Subtests) -> None:
    for kind in NAMES:
        with subtests.test(kind):
            scores = loaded[kind].nll("abcdefgh", kind="ar" if kind == "ar" else "elbo", samples=256)
            assert 0 < scores.stderr < 0.5 * scores.value or kind == "ar"
            assert scores.num_tokens == (8 if loaded[kind].config.first else 7)


def test_intermediate_noise_that_no_text_has_is_shown_all_the_same(loaded: dict[str, Model]) -> None:
    """Duo's noise draws the id after the tokenizer's last."""
    seen = set[int]()
    options: dict[str, Any] = {"mode": "ancestral", "steps": 4}
    for seed in range(12):
        *shown, last = loaded["duo"].stream("ab", 24, seed=seed, **options)
        assert last.result is not None
        seen |= {int(token) for canvas in last.result.trace.replay() for token in canvas.tokens}
        assert all(event.text is not None and event.committed == "" for event in shown)
        assert NUM_TOKENS not in [token.id for token in last.result.tokens]
    assert MASK in seen


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bd3lm", {"mode": "full"}, 'use mode "block"'),
    ("bd3lm", {"mode": "ancestral"}, "first_hitting"),
    ("ar", {"mode": "block"}, "trained without"),
    ("duo", {"mode": "block"}, 'use mode "ancestral"'),
    ("duo", {"mode": "ar"}, "ancestral"),
    ("mdlm", {"mode": "ar"}, 'use mode "block" or "full"'),
    ("mdlm", {"mode": "ancestral", "regex": "a+"}, "regex"),
]


def test_what_a_model_cannot_do_says_what_it_can(loaded: dict[str, Model], subtests: pytest.Subtests) -> None:
    for kind, options, message in REFUSED:
        with subtests.test(kind, **options), pytest.raises(UnsupportedError, match=message):
            loaded[kind].generate("ab", 8, **options)


def test_blocks_cannot_infill(loaded: dict[str, Model]) -> None:
    with pytest.raises(InputError):
        loaded["bd3lm"].infill("a", "b", 4, min_tokens=4)


def test_a_tensor_that_is_missing_or_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, "mdlm", n_blocks=2)
    config = json.loads((folder / "config.json").read_text()) | {"n_blocks": 3, "cond_dim": 13}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"blocks\.2\.(attn|norm|mlp|ada)") as caught:
        daguerre.load(folder)
    assert "sigma_map" in str(caught.value)
