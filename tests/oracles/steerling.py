"""Steerling restated from its description in NumPy, float64: tiny random checkpoints in the publisher's layout, what
they compute, what an intervention does, and how the published loop writes.

Compared with the publisher's code (github.com/guidelabs/steerling, version 0.2.0, float32 on a CPU), which is no part
of the tests, with the weights of every one of CASES loaded there: logits of up to 20 differ by 2.4e-5 at most, weights
of concepts by 3.1e-7, sums and composed states by 5.6e-6, and states after interventions by 4.2e-6. The numbers of kept
concepts and the written tokens, behind prompts that end with a block and inside one, are equal.

Letters: L positions, D width, V vocabulary, K kept concepts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checkpoints import END, MASK, NUM_TOKENS, SIZE, TURN, write_tensors, write_tokenizer

CORE: dict[str, Any] = {
    "n_layers": 3,
    "n_head": 4,
    "n_embd": 64,
    "n_kv_heads": 2,
    "block_size": 256,
    "diff_block_size": 8,
    "use_rms_norm": True,
    "norm_eps": 1e-5,
    "norm_order": "post",
    "use_qk_norm": True,
    "use_rope": True,
    "rope_base": 500_000.0,
    "rope_full_precision": True,
    "clip_qkv": 2.0,
    "mlp_type": "swiglu",
    "activation": "gelu",
    "mlp_ratio": 3,
    "intermediate_size": None,
    "use_bias": False,
    "weight_sharing": True,
    "interpretable": True,
    "vocab_size": SIZE,
    "pad_token_id": NUM_TOKENS,
    "bos_token_id": NUM_TOKENS + 1,
    "eos_token_id": END,
    "endofchunk_token_id": NUM_TOKENS + 2,
    "mask_token_id": MASK,
}
"""Of both dialects."""
CONCEPTS: dict[str, Any] = {
    "n_concepts": 37,
    "n_unknown_concepts": 111,
    "concept_dim": 64,
    "use_attention_known": False,
    "use_attention_unknown": False,
    "topk_known": 4,
    "topk_known_features": 4,
    "unknown_topk": 8,
    "use_unknown": True,
    "apply_topk_to_unknown": True,
    "topk_on_logits": False,
    "factorize_unknown": True,
    "factorize_rank": 16,
    "use_epsilon_correction": True,
    "pad_multiple": 16,
    "store_unknown_weights": False,
    "inject_layer": 16,
    "inject_alpha": 1.0,
}
NESTED = CORE | {"model_type": "causal_diffusion", "concept": CONCEPTS | {"max_concepts": 16, "block_size": 32}}
HUB = {"architectures": ["SteerlingForCausalLM"], "model_type": "steerling", "torch_dtype": "bfloat16"}
FLAT = CORE | CONCEPTS | HUB | {"concept_block_size": 32, "eot_id": TURN}
CASES: dict[str, dict[str, Any]] = {
    "nested": NESTED,
    "flat": FLAT,
    "flat, norms first, more features": FLAT | {"norm_order": "pre", "topk_known_features": 6},
    "nested, no QK-norm, sharp clip": NESTED | {"use_qk_norm": False, "clip_qkv": 0.5},
    "nested, no clip, all heads, own projection": NESTED
    | {"clip_qkv": None, "n_kv_heads": None, "weight_sharing": False, "intermediate_size": 80},
    "nested, no heads": {key: value for key, value in NESTED.items() if key != "concept"} | {"interpretable": False},
    "flat, no heads": FLAT | {"interpretable": False},
}
"""config.json of each."""


def concepts_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The keys of the concept heads; None for a model without them."""
    return config.get("concept", config) if config["interpretable"] else None


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor that the publisher stores."""
    width, heads = config["n_embd"], config["n_head"]
    head, inner = width // heads, config["intermediate_size"] or config["mlp_ratio"] * width
    rows = (heads + 2 * (config["n_kv_heads"] or heads)) * head
    out: dict[str, tuple[int, ...]] = {"tok_emb": (config["vocab_size"], width), "ln_f": (width,)}
    if not config["weight_sharing"]:
        out["lm_head"] = out["tok_emb"]
    for layer in range(config["n_layers"]):
        parts = {"ln_1": (width,), "ln_2": (width,), "attn.c_attn": (rows, width), "attn.c_proj": (width, width)}
        parts |= {"mlp.c_fc": (2 * inner, width), "mlp.c_proj": (width, inner)}
        parts |= {"attn.q_norm": (head,), "attn.k_norm": (head,)} if config["use_qk_norm"] else {}
        out |= {f"blocks.{layer}.{name}": shape for name, shape in parts.items()}
    given = concepts_of(config)
    if given is None:
        return {f"{name}.weight": shape for name, shape in out.items()}
    known, found = (-(-given[key] // 16) * 16 for key in ("n_concepts", "n_unknown_concepts"))
    rank, out = given["factorize_rank"], {f"transformer.{name}": shape for name, shape in out.items()}
    out |= dict.fromkeys(("known_head.concept_embedding", "known_head.concept_predictor"), (known, width))
    out |= dict.fromkeys(("unknown_head.embedding_coef", "unknown_head.predictor_up"), (found, rank))
    out |= {"unknown_head.embedding_basis": (width, rank), "unknown_head.predictor_down": (rank, width)}
    return {f"{name}.weight": shape for name, shape in out.items()}


def tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights under which the mean top probability is about one half, and products of attention are clipped."""
    rng, out = np.random.default_rng(seed), {}
    for name, shape in shapes(config).items():
        noise = rng.standard_normal(shape)
        if len(shape) < 2:
            out[name] = 1 + 0.3 * noise
        elif "tok_emb" in name or "lm_head" in name:
            out[name] = 0.5 * noise
        else:
            out[name] = noise * (4.0 if "c_attn" in name else 2.0) * shape[-1] ** -0.5
    return {name: weight.astype(np.float32).astype(np.float64) for name, weight in out.items()}


def write(folder: Path, config: Mapping[str, Any], shards: int = 2, **changes: Any) -> Path:
    """A checkpoint in the publisher's layout, with the weights of `config`; `changes` are of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    write_tokenizer(folder)
    stored = {name: torch.from_numpy(weight).float() for name, weight in tensors(config).items()}
    write_tensors(folder, stored, shards)
    return folder


class Steerling:
    """What a config and its weights compute."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config, self.heads, self.weights = config, concepts_of(config), tensors(config)
        self.own = {name.removeprefix("transformer."): weight for name, weight in self.weights.items()}

    def _normed(self, x: np.ndarray, name: str) -> np.ndarray:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return np.asarray(self.own[f"{name}.weight"] * x / np.sqrt(mean + self.config["norm_eps"]))

    def hidden(self, tokens: np.ndarray) -> np.ndarray:
        """Hidden states (L, D) of tokens (L,) behind the last norm."""
        x = self.own["tok_emb.weight"][tokens]
        for layer in range(self.config["n_layers"]):
            for norm, branch in (("ln_1", self._attention), ("ln_2", self._mlp)):
                here = f"blocks.{layer}."
                if self.config["norm_order"] == "pre":
                    x = x + branch(self._normed(x, here + norm), here)
                else:
                    x = x + self._normed(branch(x, here), here + norm)
        return self._normed(x, "ln_f")

    def _attention(self, x: np.ndarray, here: str) -> np.ndarray:
        num, num_kv = self.config["n_head"], self.config["n_kv_heads"] or self.config["n_head"]
        rows = x @ self.own[f"{here}attn.c_attn.weight"].T
        if self.config["clip_qkv"] is not None:
            rows = np.clip(rows, -self.config["clip_qkv"], self.config["clip_qkv"])
        heads = rows.reshape(len(x), num + 2 * num_kv, -1)
        places = np.arange(len(x))
        sees = places[:, None] // self.config["diff_block_size"] >= places // self.config["diff_block_size"]
        out = []
        for head in range(num):
            kv = num + head // (num // num_kv)
            query, key, value = heads[:, head], heads[:, kv], heads[:, kv + num_kv]
            if self.config["use_qk_norm"]:
                query, key = self._normed(query, f"{here}attn.q_norm"), self._normed(key, f"{here}attn.k_norm")
            scores = self._turned(query) @ self._turned(key).T / np.sqrt(query.shape[-1])
            chances = np.where(sees, np.exp(scores - scores.max()), 0.0)
            out.append(chances / chances.sum(-1, keepdims=True) @ value)
        return np.asarray(np.concatenate(out, axis=-1) @ self.own[f"{here}attn.c_proj.weight"].T)

    def _turned(self, head: np.ndarray) -> np.ndarray:
        """Each pair of numbers, half a head apart, turned as one complex number."""
        half = head.shape[-1] // 2
        turns = self.config["rope_base"] ** -(np.arange(half) / half)
        pairs = (head[:, :half] + 1j * head[:, half:]) * np.exp(1j * np.arange(len(head))[:, None] * turns)
        return np.concatenate([pairs.real, pairs.imag], axis=-1)

    def _mlp(self, x: np.ndarray, here: str) -> np.ndarray:
        values, gates = np.split(x @ self.own[f"{here}mlp.c_fc.weight"].T, 2, axis=-1)
        return np.asarray((gates / (1 + np.exp(-gates)) * values) @ self.own[f"{here}mlp.c_proj.weight"].T)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits (L, V) of hidden states (L, D)."""
        name = "tok_emb" if self.config["weight_sharing"] else "lm_head"
        return np.asarray(hidden @ self.own[f"{name}.weight"].T)

    def vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """The vectors of all known concepts, (N, D), and of all discovered ones, (M, D)."""
        assert self.heads is not None
        found = self.own["unknown_head.embedding_coef.weight"] @ self.own["unknown_head.embedding_basis.weight"].T
        return (
            self.own["known_head.concept_embedding.weight"][: self.heads["n_concepts"]],
            found[: self.heads["n_unknown_concepts"]],
        )

    def activations(self, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The weights of known concepts, (L, N), and of discovered ones, (L, M): 0 for those that are not kept."""
        assert self.heads is not None
        up, down = (self.own[f"unknown_head.predictor_{name}.weight"] for name in ("up", "down"))
        known = hidden @ self.own["known_head.concept_predictor.weight"][: self.heads["n_concepts"]].T
        found = hidden @ (up[: self.heads["n_unknown_concepts"]] @ down).T
        return kept(known, self.heads["topk_known_features"]), kept(found, self.heads["unknown_topk"])

    def intervened(self, hidden: np.ndarray, known: Mapping[int, float], discovered: Mapping[int, float]) -> np.ndarray:
        """What is projected in place of hidden states (L, D) in the published code, where concepts of either kind, each
        counted from 0, have other weights: with a known one among them no residual; else the one that is left after the
        edited sums.
        """
        sums = []
        for weight, vector, edits in zip(self.activations(hidden), self.vectors(), (known, discovered), strict=True):
            weight[:, list(edits)] = list(edits.values())
            sums.append(weight @ vector)
        left = 0.0 if known else hidden - sums[0] - sums[1]
        return np.asarray(sums[0] + (sums[1] + left))

    def written(self, prompt: list[int], num: int, never: list[int]) -> list[int]:
        """The tokens that the published loop writes behind a prompt at temperature 0 without its penalty: blocks of
        masks that begin where the prompt ends, in which each step takes the likeliest token of the surest position. The
        masks of later blocks are there, and every step computes everything.
        """
        tokens, size = np.array([*prompt, *[MASK] * num]), self.config["diff_block_size"]
        for start in range(len(prompt), len(tokens), size):
            for _ in range(size):
                logits = self.logits(self.hidden(tokens))[start : start + size]
                logits[:, never] = -np.inf
                chances = np.exp(logits - logits.max(-1, keepdims=True))
                surest = (chances / chances.sum(-1, keepdims=True)).max(-1)
                place = np.where(tokens[start : start + size] == MASK, surest, -1.0).argmax()
                tokens[start + place] = logits[place].argmax()
        return [int(token) for token in tokens[len(prompt) :]]


def kept(logits: np.ndarray, num: int) -> np.ndarray:
    """Weights of which all but the `num` largest of a row are 0."""
    out = 1 / (1 + np.exp(-np.clip(logits, -15, 15)))
    out[out < np.sort(out, axis=-1)[:, -num][:, None]] = 0.0
    return np.asarray(out)
