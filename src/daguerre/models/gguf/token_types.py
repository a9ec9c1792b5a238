"""What kinds of tokens a GGUF file has: as it says, and as llama.cpp corrects it by texts that it knows.

Control and unknown tokens are special: they are read in a text where special tokens are, and have no bytes. Those that
a publisher defined are found in every text before it is split, as it is written.
"""

from __future__ import annotations

import numpy as np

from daguerre.models.gguf.header import Header
from daguerre.models.texts import Texts

TEXT, UNKNOWN, CONTROL, ADDED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens."""
ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>"),
    *("<end_of_utterance>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
)
"""Texts of control tokens that end something, whatever the file says of their type (llama.cpp's `special_eog_ids`)."""
ORDINARY_END, BESIDE = "</s>", ("<|tool_response>", "<|plamo:eos|>")
"""An end that is ordinary text beside one of these."""
FILLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "prefix": (
        ("fim_pre", "prefix"),
        (
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ),
    ),
    "suffix": (
        ("fim_suf", "suffix"),
        (
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ),
    ),
    "middle": (
        ("fim_mid", "middle"),
        (
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ),
    ),
    "pad": (("fim_pad",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    "repository": (("fim_rep",), ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")),
    "file": (("fim_sep",), ("<|file_sep|>",)),
}
"""Of fill-in-the-middle: names in keys, today and before, and texts of control tokens where no key names any."""


def corrected(header: Header, tokens: Texts, types: np.ndarray) -> np.ndarray:
    """The types of tokens, where the texts above are those of control tokens."""
    texts = {*ENDS}
    if tokens.find(*BESIDE):
        texts.remove(ORDINARY_END)
    for keys, known in FILLS.values():
        if not any(f"tokenizer.ggml.{key}_token_id" in header.metadata for key in keys):
            texts.update(known)
    out = types.copy()
    out[[*tokens.find(*texts).values()]] = CONTROL
    return out


def stripping(header: Header) -> bool:
    """Whether special tokens take the ASCII white space behind them, which llama.cpp does for models of this name."""
    name = (header.text("general.name") or "").lower()
    return "phi-3" in name or "phi3" in name


KEEPING = ("<unk>", "<s>", "<|endoftext|>")
"""Tokens of such models that do not."""
