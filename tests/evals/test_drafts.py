"""Drafts: prompts from the middle of documents, and errors that take the prompts of a document together."""

from __future__ import annotations

import numpy as np
import pytest

from daguerre.errors import DataError
from daguerre.evals import drafts
from daguerre.evals.drafts import DRAFT_TOKENS, PROMPT_TOKENS, DraftPrompt, make_prompts, measure_drafts
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.monitor import draft_match


def document(num: int, name: str = "a") -> Document:
    return Document("p", "1", "", name, "", "".join(f"{name}_{i} = {i}\n" for i in range(num)))


def test_prompts_begin_in_the_middle_and_go_outward_without_overlap(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(document(200).text)
    size = PROMPT_TOKENS - 1

    prompts = make_prompts([document(200)], tokenizer, 100)

    starts = [start_of(prompt, ids) for prompt in prompts]
    assert starts[0] == len(ids) // 2
    assert len(starts) > 4
    away = [abs(start - starts[0]) for start in starts]
    assert away == sorted(away)
    assert (np.diff(sorted(starts)) == size).all()
    assert min(starts) < size
    assert max(starts) > len(ids) - 2 * size
    assert all(prompt.tokens[0] == tokenizer.bos_id for prompt in prompts)


def start_of(prompt: DraftPrompt, ids: list[int]) -> int:
    body = list(prompt.tokens[1:])
    (start,) = (i for i in range(len(ids) - len(body) + 1) if ids[i : i + len(body)] == body)
    return start


def test_every_document_has_a_prompt_before_one_has_two(tokenizer: Tokenizer) -> None:
    texts = [document(200), document(5), document(90, "b"), document(300, "c")]
    for limit, expected in ((3, [0, 2, 3]), (5, [0, 0, 2, 3, 3]), (2, [0, 3])):
        prompts = make_prompts(texts, tokenizer, limit)
        assert sorted(prompt.document for prompt in prompts) == expected
        assert len(set(prompts)) == limit
    with pytest.raises(DataError, match="no document has 256 tokens"):
        make_prompts([document(5)], tokenizer, 8)


def test_the_figures_are_those_of_all_prompts_together(causal: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    prompts = make_prompts([document(200), document(100, "b")], causal.tokenizer, 5)
    match, accepted = draft_match(causal.backbone, torch.tensor([p.tokens for p in prompts]), DRAFT_TOKENS)
    monkeypatch.setattr(drafts, "AT_ONCE", 2)
    steps: list[tuple[str, int, int]] = []

    figures = measure_drafts(causal.backbone, prompts, lambda *step: steps.append(step))

    assert figures.match_by_position == pytest.approx(match.tolist())
    assert figures.accepted_a_cycle == pytest.approx(accepted)
    assert (figures.prompts, figures.documents) == (5, 2)
    assert steps == [("", 0, 5), ("", 2, 5), ("", 4, 5), ("", 5, 5)]


def test_errors_take_the_prompts_of_one_document_together(causal: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    equal = np.zeros((4, DRAFT_TOKENS), dtype=bool)
    equal[:2, :3] = True
    equal[2, 1] = True
    monkeypatch.setattr("daguerre.train.monitor.draft_equals", lambda *rest: equal)
    tokens = (0, 1)

    apart = measure_drafts(causal.backbone, [DraftPrompt(i, tokens) for i in range(4)])
    together = measure_drafts(causal.backbone, [DraftPrompt(i // 2, tokens) for i in range(4)])
    lone = measure_drafts(causal.backbone, [DraftPrompt(0, tokens)] * 4)

    assert apart.match_by_position[:4] == (0.5, 0.75, 0.5, 0.0)
    assert apart.accepted_by_position[:4] == (0.5, 0.5, 0.5, 0.0)
    assert apart.accepted_a_cycle == pytest.approx((4 + 4 + 1 + 1) / 4)
    assert apart.match_stderr[0] == pytest.approx(0.5 / 3**0.5)
    assert together.match_stderr[0] == pytest.approx(0.5)
    assert apart.accepted_stderr == pytest.approx(1.5 / 3**0.5)
    assert lone.accepted_stderr is None
    assert lone.match_stderr == (None,) * DRAFT_TOKENS
