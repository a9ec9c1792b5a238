"""Self-speculation: what a loop is, which texts are the same, acceptance by depth, and edits."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daguerre.decoding.drafters import Alignment
from daguerre.evals import acceptance, speculation
from daguerre.evals.acceptance import DEPTHS, GREEDY, HELD_OUT, distributions, measure_acceptance
from daguerre.evals.diffs import CONTEXT, FORCED, PASTED, SETTINGS, forced, make_edits, measure_edits
from daguerre.evals.drafts import DraftPrompt
from daguerre.evals.lines import make_examples
from daguerre.evals.speculation import DRAFTERS, EARLY, RUN, compare, compare_lines, loops
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.session import compute
from daguerre.sampling.logits import softmax
from daguerre.train.corpus.diffs import Hunk

OLD = "def area(width, height):\n    size = width * height\n    return size\n"
NEW = "def area(width, height):\n    size = width * height * 2\n    print(size)\n    return size\n"
SOURCE = "".join(f"def area_{i}(width, height):\n    return compute({i}, width * height)\n\n\n" for i in range(8))


def no_progress(done: int, total: int) -> None:
    """Shows nothing."""


def test_a_text_loops_where_a_run_of_tokens_occurs_twice() -> None:
    run = list(range(RUN))

    assert not loops([])
    assert not loops([*run, 99, *run[:-1]])
    assert loops([*run, 99, *run])
    assert loops([7] * (RUN + 1)), "occurrences may overlap"
    assert not loops([7] * RUN)
    assert not loops([*run, 99, *run], 2 * RUN)
    assert loops([*run, 99, *run], 2 * RUN + 1)


def prompts_of(model: Model, num: int) -> list[DraftPrompt]:
    ids = model.tokenizer.encode(SOURCE)
    return [DraftPrompt(number, (model.tokenizer.bos_id, *ids[number : number + 40])) for number in range(num)]


def test_every_drafter_writes_the_tokens_of_ar(causal: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [prompt.tokens[1:] for prompt in prompts_of(causal, 3)]

    found = compare(causal, prompts, 0.7, no_progress, new_tokens=24, drafters=DRAFTERS)

    assert [outcome.drafter for outcome in found] == list(DRAFTERS)
    assert all(outcome.identical == outcome.prompts == 3 for outcome in found)
    assert all(outcome.new_tokens == 24 and outcome.tokens_per_forward >= 1 for outcome in found)
    both, head, lookup = found
    assert head.lookup_drafted == lookup.head_drafted == 0 < head.head_drafted
    assert both.drafted == both.head_drafted + both.lookup_drafted
    texts = [causal.generate(ids, 24, mode="ar", temperature=0.7, seed=n, heal=False) for n, ids in enumerate(prompts)]
    ids = [[token.id for token in text.tokens] for text in texts]
    assert both.loops == sum(loops(text) for text in ids) / 3
    assert both.loops_early == sum(loops(text, EARLY) for text in ids) / 3

    same = speculation.KeptResult.of
    shifted = iter(range(100))
    monkeypatch.setattr(
        speculation.KeptResult, "of", lambda result: dataclasses.replace(same(result), ids=(next(shifted),))
    )
    (other,) = compare(causal, prompts, 0.7, no_progress, new_tokens=4)
    assert other.identical == 0


def test_next_lines_are_those_of_ar(causal: Model) -> None:
    document = Document("p", "1", "", "", hashlib.sha256(SOURCE.encode()).hexdigest(), SOURCE)

    outcome = compare_lines(causal, make_examples([document], 3), no_progress)

    assert outcome.identical == outcome.lines == 3
    assert outcome.tokens_per_forward > 0
    assert outcome.speedup > 0


def test_the_distributions_are_those_of_separate_forwards(drafting: Model) -> None:
    """p of a request of its own after each true token; q of a draft of one place, given the true tokens."""
    tokens = np.array(prompts_of(drafting, 1)[0].tokens)
    start = 20
    canvas = acceptance._canvas(tokens)

    p, q = distributions(drafting, drafting.denoiser.session(canvas), tokens, start)

    assert p.shape == q.shape == (DEPTHS, drafting.config.vocab_size)
    backend, session = drafting.denoiser.backend, drafting.denoiser.session(canvas)
    for depth in range(DEPTHS):
        at = canvas.at((start + 1 + depth, len(tokens)))
        alone = compute(session.verify(at, tokens[:0], 0), backend)
        assert np.allclose(p[depth], softmax(alone.logits)[0], atol=1e-5)
    behind = compute(session.verify(canvas.at((start, len(tokens))), tokens[:0], DEPTHS), backend)
    following = behind.following(0)
    for depth in range(DEPTHS):
        logits = compute(following.after(int(tokens[start + depth])), backend)
        assert logits is not None
        assert np.allclose(q[depth], softmax(logits[None])[0], atol=1e-5)
    assert not np.allclose(p, q, atol=1e-2)


def test_what_is_accepted_by_hand(causal: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """p and q are equal at depth 1, apart at 2, and overlap by half at 3."""
    half = np.array([[0.5, 0.5, 0.0]])
    p = np.concatenate([half, [[1.0, 0, 0]], [[0.6, 0.4, 0]], half])
    q = np.concatenate([half, [[0, 1.0, 0]], [[0.1, 0.4, 0.5]], half])
    monkeypatch.setattr(acceptance, "distributions", lambda *given: (p, q))
    monkeypatch.setattr(acceptance, "PLACES", 6)

    found = measure_acceptance(causal, prompts_of(causal, 2), no_progress)

    assert [(row.text, row.depth) for row in found] == [(t, d) for t in (HELD_OUT, GREEDY) for d in (1, 2, 3, 4)]
    held = found[:DEPTHS]
    assert [row.greedy for row in held] == [1, 0, 0, 1]
    assert [row.overlap for row in held] == pytest.approx([1, 0, 0.5, 1])
    assert [row.race for row in held][:2] == [1, 0]
    assert held[0].places == 6


def hunk(**changed: Any) -> Hunk:
    facts = {"package": "p", "version": "2", "old_version": "1", "license": "MIT", "file": "a.py"}
    texts = {"context": "import os\n\n\n", "old": OLD, "new": NEW}
    return Hunk(**(facts | texts | {"sha256": "", "old_sha256": ""} | changed))


def test_edits_are_written_in_every_setting(causal: Model) -> None:
    edits = make_edits(causal, [hunk(), hunk(context="x = 1\n" * 200), hunk(new=NEW + "\n")], 5)

    assert [edit.hunk.new for edit in edits] == [NEW, NEW + "\n"], "a hunk too long for the model is left out"
    written, forced_ones = measure_edits(causal, edits, no_progress)

    assert [(row.shown, row.mode, row.draft) for row in written] == list(SETTINGS)
    assert all(row.identical == row.edits == 2 for row in written)
    assert [row.draft_accepted is None for row in written] == [not draft for _, _, draft in SETTINGS]
    assert [(row.shown, row.draft, row.lookup) for row in forced_ones] == list(FORCED)
    pasted = {row.draft: row for row in forced_ones if row.shown == PASTED}
    assert pasted[True].tokens_per_forward > 1
    assert pasted[False].rows_per_forward > 1


def test_a_forced_edit_verifies_what_the_alignment_expects(causal: Model) -> None:
    (edit,) = make_edits(causal, [hunk()], 1)
    before = np.array([causal.tokenizer.bos_id, *edit.prompts[CONTEXT]])
    new, old = np.array(edit.new), np.array(edit.old)

    made = forced(causal, before, new, old, False)

    start, at, forwards, rows = 0, Alignment(old), 0, 0
    while start < len(new):
        draft = at.ahead(len(new) - start - 1)
        num = 1
        while num <= len(draft) and new[start + num - 1] == draft[num - 1]:
            num += 1
        at = at.after(new[: start + num], num)
        start, forwards, rows = start + num, forwards + 1, rows + len(draft) + 1
    assert forwards <= made.forwards < len(new), "the fewest are those that verify all that is expected"
    assert made.rows * forwards <= rows * made.forwards
    assert forced(causal, before, new, None, False).forwards == len(new)
    assert forced(causal, before, new, new, False).forwards < made.forwards


def test_the_figures_of_the_documents_have_a_row_for_every_bar() -> None:
    """docs/write_figures.py on rows that miss a bar by one thing each."""
    path = Path(__file__).parents[2] / "docs" / "write_figures.py"
    spec = importlib.util.spec_from_file_location("write_figures", path)
    assert spec is not None
    assert spec.loader is not None
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    speed = {"tokens_per_forward": 9.0, "speedup": 9.0, "loops": 0.5, "loops_early": 0.25, "prompts": 4, "identical": 4}
    way = {"greedy": 0.9, "race": 0.9}
    task: dict[str, Any] = {
        "outcomes": [speed | {"temperature": temperature} for temperature in (0.0, 0.7, 1.0)],
        "first": [speed | {"temperature": 0.0, "new_tokens": 16}],
        "lines": speed | {"lines": 4},
        "acceptance": [way | {"text": text, "depth": depth} for text in (GREEDY, HELD_OUT) for depth in (1, 2, 3, 4)],
        "edits": [speed | {"shown": CONTEXT, "mode": "speculative", "draft": True, "edits": 4}],
        "forced_edits": [speed | {"shown": PASTED, "draft": True, "lookup": True}],
    }

    rows = list(figures.speculation_bars(task))

    assert [verdict for *_, verdict in rows] == ["met"] * 8
    assert rows[0][1:3] == ("9.00; 9.00 (4 of 4 texts identical, 25% loop early, 50% in all)", "3.8; 2.4")
    assert rows[6][1:3] == ("0.90 0.90 0.90", "0.68 0.60 0.57")
    for part, number, worse in (
        ("outcomes", 0, {"identical": 3}),
        ("outcomes", 2, {"speedup": 1.3}),
        ("first", 0, {"tokens_per_forward": 2.8}),
        ("acceptance", 1, {"greedy": 0.68}),
        ("edits", 0, {"tokens_per_forward": 5.9}),
    ):
        changed = list(task[part])
        changed[number] = changed[number] | worse
        found = list(figures.speculation_bars(task | {part: changed}))
        assert [row[3] for row in found].count("**missed**") == 1
    assert not list(figures.speculation_bars({"outcomes": task["outcomes"]})), "a report older than these bars"
