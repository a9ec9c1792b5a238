"""How often a draft head's tokens are accepted on prompts that it has never seen, and what that brings.

    python benchmarks/drafts.py MODEL DRAFTS PROMPTS.jsonl --num 48 --new 128

PROMPTS are rows with `turns`, of which the first is asked (Spec-Bench's question.jsonl), or with a prompt. By depth:
the share of greedy drafts that are right where all before them are, in all of an answer, in its first 64 tokens, and up
to where it loops. Then tokens a forward, and processor time beside mode "ar" of the same model, run in turn, in one
thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import daguerre
from daguerre.models.core.draft_head import DraftHead
from daguerre.models.draft_files import WEIGHTS
from daguerre.models.shards import SafetensorsFile
from daguerre.train.corpus.chat_text import ChatText, cut
from daguerre.train.drafts.loss import StateRows, drafted
from daguerre.train.drafts.run import frozen_of
from daguerre.train.drafts.states import record, states_of

DEPTH, FIRST = 4, 64


def prompts_of(path: Path, num: int) -> list[str]:
    """The first turns of rows, evenly chosen."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    texts = [row["turns"][0] if "turns" in row else row["prompt"] for row in rows]
    return [texts[index] for index in np.linspace(0, len(texts) - 1, min(num, len(texts))).astype(int)]


def answer(model: daguerre.Model, prompt: list[int], new: int, **options: Any) -> tuple[list[int], Any, float]:
    """The tokens of an answer, its usage, and its processor time."""
    begun = time.process_time()
    result = model.generate(prompt, new, heal=False, stop_loops=False, **options)
    spent = time.process_time() - begun
    tokens = [token for step in result.trace.steps for token in step.decision.tokens.tolist()]
    return tokens, result.usage, spent


def by_depth(model: daguerre.Model, drafts: Path, texts: Sequence[ChatText]) -> list[float]:
    """The share of greedy drafts that are right, each given that those before it are."""
    frozen, head, kind = (
        frozen_of(model, model.config.draft_tokens),
        DraftHead(model.config),
        record(model.config.width),
    )
    stored = SafetensorsFile(drafts / WEIGHTS).tensors()
    head.load_state_dict(
        {name.removeprefix("draft_head."): torch.from_numpy(one.read("float32").copy()) for name, one in stored.items()}
    )
    right, tried = np.zeros(DEPTH), np.zeros(DEPTH)
    for text in texts:
        rows = StateRows.of(states_of(model, text, kind), [len(text.new)])
        reached = torch.ones(len(text.new))
        with torch.no_grad():
            for k, one in enumerate(drafted(head, frozen, rows, DEPTH)):
                begin = one.row - k - 1
                tried[k] += float(reached[begin].sum())
                reached[begin] *= (frozen.tokens[one.log_draft.argmax(-1)] == rows.top[one.row]).float()
                right[k] += float(reached[begin].sum())
    shares: list[float] = (right / tried.clip(1)).round(3).tolist()
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model"), parser.add_argument("drafts", type=Path), parser.add_argument("prompts", type=Path)
    parser.add_argument("--num", type=int, default=48)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.0, 1.0])
    parser.add_argument("--block-size", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = daguerre.load(given.model, drafts=given.drafts, threads=1)
    prompts = [model.chat_prompt([{"role": "user", "content": text}]) for text in prompts_of(given.prompts, given.num)]
    for temperature in given.temperatures:
        plain, texts = list[float](), list[ChatText]()
        found: dict[str, list[tuple[float, float]]] = {"head": [], "auto": [], "lookup": []}
        for number, prompt in enumerate(prompts):
            options = {"temperature": temperature, "seed": number}
            tokens, _, spent = answer(model, prompt, given.new, mode="ar", **options)
            plain.append(spent)
            texts.append(ChatText(number, prompt, tokens, temperature))
            for drafter, runs in found.items():
                how = {"mode": "speculative", "drafter": drafter, "block_size": given.block_size}
                same, usage, spent = answer(model, prompt, given.new, **how, **options)
                if same != tokens:
                    raise SystemExit(f"prompt {number}, {drafter}: another text than that of ar")
                runs.append((usage.tokens_per_forward, plain[-1] / spent))
        for drafter, runs in found.items():
            forwards, times = (median(column) for column in zip(*runs, strict=True))
            print(f"temperature {temperature:g}, {drafter}: {forwards:.2f} tokens a forward, {times:.2f} times ar")
        if not temperature:
            parts = {
                "all": texts,
                f"first {FIRST}": [ChatText(t.number, t.prompt, t.new[:FIRST], 0.0) for t in texts],
                "loop-free": [ChatText(t.number, t.prompt, cut(t.new, 0.0), 0.0) for t in texts],
            }
            for name, some in parts.items():
                print(f"greedy, {name}: accepted by depth {by_depth(model, given.drafts, some)}")


if __name__ == "__main__":
    main()
