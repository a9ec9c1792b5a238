"""Mode "beam": of all that may stand in a gap, what makes the whole text most likely."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
import main_path
from backends import NATIVE
from daguerre.canvas import Canvas
from daguerre.decoding.denoise import Deadline, Run
from daguerre.decoding.modes import beam
from daguerre.decoding.modes.lines import ContextLines, Edge
from daguerre.decoding.plan import Plan
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.decoding.sampler import TokenSampler
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.models.denoiser import BackboneDenoiser, CacheMode
from daguerre.models.load_options import BackendName
from daguerre.models.rows import Tree
from daguerre.models.session import compute
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.random import Counter
from driving import logits_of
from plans import make_plan

PREFIX, SUFFIX = "def f(a, b):\n    return a", " * b\n\n\nprint(f(1, 2))\n"
PATHS = [[], [40, 50, 60], [40], [40, 51], [70, 71, 72, 73, 74], [40, 50, 61]]


def next_logprobs(model: Model, tokens: list[int]) -> np.ndarray:
    """Float64 log-probabilities (T, V) behind each token of a text, by one forward of the backbone itself."""
    with torch.inference_mode():
        hidden = run_batch(model.backbone, torch.tensor([tokens]), BatchLayout.causal(len(tokens)))
        return model.backbone.logits(hidden)[0].double().log_softmax(-1).numpy()


def with_bias(logprobs: np.ndarray, bias: dict[int, float]) -> np.ndarray:
    out = logprobs.copy()
    for token, added in bias.items():
        out[token] += added
    return out - np.logaddexp.reduce(out)


def run_of(model: Model, plan: Plan) -> Run:
    """What the mode runs with, to call its parts one by one."""
    session = model.denoiser.session(plan.canvas)
    return Run(plan, session, TokenSampler(plan.decode.sampling, Counter(0)), Deadline(None), session.counts)


# ---- trees ---------------------------------------------------------------------------------------------------------


def ends_of(nodes: list[list[int]]) -> np.ndarray:
    return np.array([path[-1] if path else -1 for path in nodes])


def test_a_tree_has_a_beginning_that_paths_share_once() -> None:
    tree, nodes = Tree.of([[5, 6], [], [5, 7, 5], [5], [7]])
    assert tree.tokens.tolist() == [5, 6, 7, 5, 7]
    assert tree.parents.tolist() == [-1, 0, 0, 2, -1]
    assert nodes == [[0, 1], [], [0, 2, 3], [0], [4]]
    assert tree.depth.tolist() == [0, 1, 1, 2, 0]
    seen = [np.flatnonzero(row).tolist() for row in tree.ancestors]
    assert seen == [[0], [0, 1], [0, 2], [0, 2, 3], [4]]


@pytest.mark.parametrize(
    ("backend", "cache", "dtype"),
    [
        pytest.param("native", "auto", torch.float32, marks=NATIVE.marks),
        pytest.param("native", "none", torch.bfloat16, marks=NATIVE.marks),
        ("torch", "none", torch.float32),
        ("torch", "auto", torch.bfloat16),
    ],
)
def test_a_node_of_a_tree_has_the_distribution_of_its_path_alone(
    make_model: Any, backend: BackendName, cache: CacheMode, dtype: torch.dtype
) -> None:
    model = make_model()
    backbone = model.backbone.to(dtype)
    given = np.array([model.tokenizer.bos_id, *model.tokenizer.encode(PREFIX)])
    canvas = Canvas.lay_out([given.tolist()], [8], model.config.mask_id)
    denoiser = BackboneDenoiser(backbone, backend)
    session = denoiser.session(canvas, cache)
    shared, nodes = Tree.of(PATHS)
    apart = Tree(np.array([40, 50, 40, 50, 60]), np.array([-1, 0, -1, 2, 3]))
    tolerance = 2e-4 if dtype == torch.float32 else 0.3
    for tree, wanted, paths in (
        (shared, ends_of(nodes), PATHS),
        (apart, np.array([4, 1, -1, 2]), [[40, 50, 60], [40, 50], [], [40]]),
    ):
        got = compute(session.tree_logits(given, tree, wanted), denoiser.backend).logits
        for row, path in zip(got, paths, strict=True):
            want = next_logprobs(model, [*given.tolist(), *path])[-1]
            logprobs = torch.from_numpy(row).double().log_softmax(-1).numpy()
            seen = np.isfinite(want)
            assert np.array_equal(np.isfinite(logprobs), seen)
            assert np.abs(np.exp(logprobs[seen]) - np.exp(want[seen])).max() < tolerance


def test_a_tree_leaves_the_cache_as_it_was(causal: Model) -> None:
    """What a session answers after a tree, or about another text, is what a fresh one answers."""
    given = np.array([causal.tokenizer.bos_id, *causal.tokenizer.encode(PREFIX)])
    canvas = Canvas.lay_out([given.tolist()], [8], causal.config.mask_id)
    tree, nodes = Tree.of(PATHS)
    denoiser = causal.denoiser
    used = denoiser.session(canvas)

    def behind(session: Any, text: np.ndarray) -> np.ndarray:
        return compute(session.tree_logits(text, tree, ends_of(nodes)), denoiser.backend).logits

    first = behind(used, given)
    other = np.array([*given[:-2], 90, 91])
    assert np.allclose(behind(used, other), behind(denoiser.session(canvas), other), atol=1e-4)
    assert np.allclose(behind(used, given), first, atol=1e-4)
    span = (len(given), len(given) + 4)
    want = logits_of(denoiser, canvas.at(span), np.arange(*span))
    assert np.allclose(logits_of(denoiser, canvas.at(span), np.arange(*span), used), want, atol=1e-4)


# ---- the search ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "least", "most"), [(" * b", 0, 3), (SUFFIX, 1, 2), (SUFFIX, 3, 3)])
def test_a_beam_as_wide_as_all_texts_finds_the_best_of_them(
    make_model: Any, suffix: str, least: int, most: int
) -> None:
    """Against an enumeration of every text of up to three tokens, each scored by a forward of its own."""
    for seed in range(4):
        model = make_model(seed)
        t = model.tokenizer
        words = [t.encode(word)[0] for word in (" + b", " and", "[0]")]
        bias = {token: -math.inf for token in range(t.vocab_size) if token not in words} | {words[1]: 0.5}
        before, after = [t.bos_id, *t.encode(PREFIX)], t.encode(suffix)
        scores: dict[tuple[int, ...], float] = {}
        for num in range(least, most + 1):
            for path in itertools.product(words, repeat=num):
                logprobs = next_logprobs(model, [*before, *path, *after])[len(before) - 1 :]
                of_path = sum(with_bias(logprobs[i], bias)[token] for i, token in enumerate(path))
                scores[path] = of_path + sum(logprobs[num + i][token] for i, token in enumerate(after))
        best = max(scores, key=lambda path: scores[path])
        decode = Decode(mode="beam", num_beams=64, min_tokens=least, logit_bias=bias)
        result = model.infill(PREFIX, suffix, most, decode, heal=False)
        assert tuple(token.id for token in result.tokens) == best
        assert result.usage.forwards <= most + 1 + 64
        plan = make_plan(model.config, t, decode, PREFIX, suffix, most, False)
        run, backend = run_of(model, plan), model.denoiser.backend
        found = compute(beam.beam_search(run, Edge.of(plan)), backend)
        rescored = compute(beam.rescore(run, np.array(before), found, np.array(after)), backend)
        assert {one.hypothesis.tokens: pytest.approx(one.score, abs=1e-2) for one in rescored} == scores


def test_hypotheses_are_rescored_by_the_beginning_of_the_suffix_alone(
    causal: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(suffix: str) -> str:
        return causal.infill(PREFIX, suffix, 4, mode="beam", num_beams=8, min_tokens=4).text

    monkeypatch.setattr(beam, "SUFFIX_TOKENS", 1)
    first, *_ = causal.tokenizer.encode(SUFFIX)
    by_one = text(SUFFIX)
    assert by_one == text(causal.tokenizer.decode([first]))
    monkeypatch.setattr(beam, "SUFFIX_TOKENS", len(causal.tokenizer.encode(SUFFIX)))
    assert text(SUFFIX) != by_one
    assert text(SUFFIX) == text(SUFFIX + "import os\n" * 5)


REPEATED = (
    ("a = 1\n", "    a = 1", "\nb = 2\n", True),  # but for its indentation, a line that stands around
    ("a = 1\n", "b = 2", "\nb = 2\n", True),
    ("a = 1\n", "a = 12", "\nb = 2\n", False),
    ("a = 1\na =", " 1", "\nb = 2\n", True),  # the rest of a line
    ("a = 1\n", "a", " = 1\nb = 2\n", True),
    ("a = 1\na =", " 1", " + 1\n", False),
    ("a = 1\n", "a = 1\nb = 2", "\nb = 2\n", True),
    ("a = 1\n", "a = 1\nc = 3", "\nb = 2\n", False),  # one line is new
    ("a = 1\n", " \n", "\n\n", True),  # nothing but blanks
    ("a", " = ∑", "1", False),
)


def test_a_text_repeats_its_context_if_every_line_that_it_makes_is_there_already() -> None:
    for before, written, behind, repeated in REPEATED:
        lines = ContextLines.of(before.encode(), behind.encode())
        assert lines.repeated(written.encode()) == repeated, (before, written, behind)


def test_only_texts_that_repeat_their_context_are_left_out(make_model: Any) -> None:
    """A beam as wide as all texts of one or two words, of which one makes a line that is there already."""
    model = make_model(0)
    t = model.tokenizer
    words = [t.encode(word)[0] for word in (" + b", " and", "[0]")]
    bias = {token: -math.inf for token in range(t.vocab_size) if token not in words}
    shown = f"    return a{t.decode(words[1:2])} * b\n"
    found = {}
    for without in (False, True):
        decode = Decode(mode="beam", num_beams=64, min_tokens=1, logit_bias=bias, no_repeat_context_lines=without)
        plan = make_plan(model.config, t, decode, shown + PREFIX, SUFFIX, 2, False)
        texts = compute(beam.beam_search(run_of(model, plan), Edge.of(plan)), model.denoiser.backend)
        found[without] = {one.hypothesis.tokens: one.score for one in texts}
    assert len(found[False]) == 12
    assert found[True] == {path: value for path, value in found[False].items() if path != (words[1],)}
    assert len(found[True]) == 11


def test_a_healed_word_counts_as_part_of_its_line(scripted: Any, tokenizer: Tokenizer) -> None:
    prefix, suffix = "import os\nimpo", " os\n"
    denoiser = scripted(writes(tokenizer, "rt", prefix, suffix))
    options: dict[str, Any] = {"mode": "beam", "num_beams": 4}
    usual, new = (
        main_path.infill(denoiser, tokenizer, prefix, suffix, 12, **options, no_repeat_context_lines=without)
        for without in (False, True)
    )
    assert usual.text == "rt" != new.text


def test_a_narrow_beam_is_greedy(causal: Model) -> None:
    greedy = causal.generate(PREFIX, 5, mode="ar", heal=False, min_tokens=5)
    result = causal.infill(PREFIX, SUFFIX, 5, mode="beam", num_beams=1, heal=False, min_tokens=5)
    assert result.text == greedy.text
    assert [token.logprob for token in result.tokens] == pytest.approx([t.logprob for t in greedy.tokens], abs=1e-3)


def test_the_default_model_finds_a_line_that_denoising_does_not() -> None:
    model = daguerre.load("default")
    prefix = "class Point:\n    def __init__(self, x, y):\n        self.x = x\n"
    suffix = '\n\n    def __repr__(self):\n        return f"Point({self.x}, {self.y})"\n'
    result = model.infill(prefix, suffix, mode="beam", stop="\n", min_tokens=1)
    assert result.text.strip() == "self.y = y"
    assert result.finish_reason == "stop"


# ---- what it promises ------------------------------------------------------------------------------------------------


def writes(tokenizer: Tokenizer, text: str, prefix: str, suffix: str) -> Any:
    """Says the tokens of one whole text, wherever it stands; elsewhere one word and another."""
    whole = tokenizer.encode(prefix + text + suffix)
    (word,) = tokenizer.encode("a")

    def says(canvas: Canvas, position: int) -> dict[int, float]:
        shown = b"".join(tokenizer.token_bytes(token) for token in canvas.tokens[1:position].tolist())
        built = b""
        for token in whole:
            if built == shown:
                return {token: 9.0, word: 4.0}
            built += tokenizer.token_bytes(token)
        return {word: 5.0, word + 1: 4.5}

    return says


def test_a_cut_word_is_healed_within_the_search(scripted: Any, tokenizer: Tokenizer) -> None:
    for prefix, text, suffix in (
        ("impo", "rt", " os\n"),
        ("def f(x):\n", "    return x", "\n\nf(1)\n"),
        ("x = ", "compute(1, 2)", "\ny = 3\n"),
        ("x = 1", "", "\ny = 3\n"),
    ):
        denoiser = scripted(writes(tokenizer, text, prefix, suffix))
        result = main_path.infill(denoiser, tokenizer, prefix, suffix, 12, mode="beam", num_beams=4)
        assert result.text == text
        assert result.finish_reason == "stop"
        assert len(result.trace.steps) == 1


def test_what_is_written_has_no_stop_string_and_as_many_tokens_as_asked(causal: Model) -> None:
    free = causal.infill(PREFIX, SUFFIX, 6, mode="beam", num_beams=6, min_tokens=6, heal=False)
    cut = free.text[1:3]
    result = causal.infill(PREFIX, SUFFIX, 6, mode="beam", num_beams=6, min_tokens=6, heal=False, stop=cut)
    assert free.usage.completion_tokens == result.usage.completion_tokens == 6
    assert cut in free.text
    assert cut not in result.text


def results(model: Model) -> list[Result]:
    return [
        model.infill(PREFIX, SUFFIX, 8, mode="beam", num_beams=5),
        model.edit("x = 1\nvalue = cab;\n", [(8, 18)], mode="beam", num_beams=5),
        model.fill("x = <gap>\ny = 2\n", 6, mode="beam", num_beams=5),
    ]


def test_the_rest_of_the_text_stays_and_the_trace_replays(causal: Model) -> None:
    infilled, edited, filled = results(causal)
    assert edited.text.startswith("x = 1\nva") and edited.text.endswith("\n")
    assert filled.text.startswith("x = ") and filled.text.endswith("\ny = 2\n")
    for result in (infilled, edited, filled):
        *_, last = result.trace.replay()
        assert not last.open.any()
        assert all(token.logprob is not None and token.logprob <= 0 for token in result.tokens)
    assert [one.text for one in results(causal)] == [infilled.text, edited.text, filled.text]


def test_a_stream_ends_with_the_same_text(causal: Model) -> None:
    *events, last = causal.stream(PREFIX, 8, suffix=SUFFIX, mode="beam", num_beams=5)
    assert len(events) == 1
    assert last.text == causal.infill(PREFIX, SUFFIX, 8, mode="beam", num_beams=5).text


def test_a_timeout_takes_what_was_found_so_far(slow: Any, tokenizer: Tokenizer) -> None:
    options: dict[str, Any] = {"mode": "beam", "num_beams": 4, "heal": False}
    result = main_path.infill(slow, tokenizer, "x", "a" * 8, 20, timeout=7.5, **options)
    assert result.usage.forwards <= 8
    assert (result.finish_reason, set(result.text)) in (("stop", {"a"}), ("stop", set()))
    late = main_path.infill(slow, tokenizer, "x", "a", 20, timeout=7.5, min_tokens=20, **options)
    assert (late.finish_reason, late.text) == ("timeout", "")


def test_hypotheses_are_rescored_all_or_none(causal: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam, "ROWS", 1)  # one of them a forward
    decode = Decode(mode="beam", num_beams=3)
    plan = make_plan(causal.config, causal.tokenizer, decode, PREFIX, SUFFIX, 3, False)
    run, before = run_of(causal, plan), plan.canvas.tokens[: plan.gaps[0].start]
    backend, suffix = causal.denoiser.backend, np.array(causal.tokenizer.encode(SUFFIX))
    found = compute(beam.beam_search(run, Edge.of(plan)), backend)
    assert len(found) == 3
    for forwards in range(4):
        late = iter([False] * forwards + [True] * 3)
        monkeypatch.setattr(run.deadline, "late", lambda late=late: next(late))
        assert (compute(beam.rescore(run, before, found, suffix), backend) == found) == (forwards < 3)


def test_what_a_beam_cannot_do_is_named(causal: Model, models: dict[str, Model]) -> None:
    with pytest.raises(InputError, match="give a suffix"):
        causal.generate("x", 8, mode="beam")
    with pytest.raises(InputError, match="give a suffix"):
        causal.infill("x", "", 8, mode="beam")
    with pytest.raises(UnsupportedError, match="these are 2"):
        causal.fill("x = <gap>\ny = <gap>\n", 8, mode="beam")
    with pytest.raises(UnsupportedError, match="leave out the draft"):
        causal.infill("x", "y", 8, mode="beam", draft="z")
    with pytest.raises(UnsupportedError, match="leave out search_length"):
        causal.infill("x", "y", 8, mode="beam", search_length=True)
    with pytest.raises(UnsupportedError, match="leave out strength"):
        causal.edit("x = 1\n", [(0, 5)], strength=0.5, mode="beam")
    with pytest.raises(UnsupportedError, match='mode "beam" cannot be changed'):
        causal.start("x", 8, suffix="y", mode="beam")
    needs, blind = 'mode "beam" needs causal context and a shift', "a model with block context cannot infill"
    for name, says in (("full", needs), ("causal_unshifted", needs), ("full_unshifted", needs), ("block", blind)):
        with pytest.raises(UnsupportedError, match=says):
            models[name].infill("x", "y", 8, mode="beam")
    bias = dict.fromkeys(range(16, 2048), -math.inf)
    with pytest.raises(InputError, match="no text of the gap is left: loosen logit_bias"):
        causal.infill("x", "y", 8, mode="beam", heal=False, min_tokens=8, logit_bias=bias)
