"""Mode "expand": gaps that grow and shrink, held to DreamOn's steps restated in `oracles.dreamon`."""

from __future__ import annotations

import json
from collections import Counter as Counts
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import main_path
from daguerre import load
from daguerre.canvas import Canvas
from daguerre.decoding.modes.windows import OPEN, Window, WindowSlot, difference
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.decoding.sample import Sample, Together
from daguerre.errors import CheckpointError, DaguerreError
from daguerre.model import Model
from daguerre.models.own_layout import OwnSource, save_model
from daguerre.models.tokenizer import byte_of_character
from daguerre.sampling.random import ORDER, TOKEN, Counter
from daguerre.trace import Trace
from oracles.dreamon import DreamOn, Filled
from oracles.published import Dream
from pairwise import covering
from plans import make_plan
from published import CASES, END, MASK, NUM_TOKENS, SIZE, START, TURN, logits_under, scatter

EXPAND, BEGIN = NUM_TOKENS, NUM_TOKENS + 1
PREFIX, MIDDLE, SUFFIX = "def area(w, h):\n    x = ", "\n    y = ", "\n    return x * y\n"
NEVER = (MASK, TURN, *range(BEGIN + 1, SIZE))
"""The mask, ends that delete nothing, and rows without a token. <bos> is a token like any other in Dream."""
SEED, SEEDS = 5, (0, 1, 4)
LENGTHS = {0: (16, 4), 1: (7, 1), 4: (12, 12)}
"""The most tokens of a gap, and how many it begins with, by seed."""
NAMES = {"maskgit_plus": "confidence", "topk_margin": "margin", "entropy": "entropy"}
LIKELIER = 12.0
"""Added to the two tokens' logits, about."""
PLAIN: dict[str, Any] = {"temperature": 0.0, "top_p": 1.0}


def ids_of(text: str) -> list[int]:
    """The tokens of a text: those of its bytes."""
    order = {byte: index for index, (_, byte) in enumerate(sorted(byte_of_character().items()))}
    return [order[byte] for byte in text.encode()]


@torch.no_grad()
def weights(seed: int) -> torch.nn.Module:
    """A random model that often expands and deletes: both tokens are likelier where hidden states are as usual."""
    model = scatter(CASES["dreamon"].model(), seed)
    before, after = ids_of(PREFIX), ids_of(SUFFIX)
    tokens = torch.tensor([[BEGIN, *before, *[MASK] * 8, *after, END]])
    rows = model.model(input_ids=tokens, attention_mask=torch.zeros(1, 1, *[tokens.shape[1]] * 2)).last_hidden_state[0]
    usual = rows[len(before) : len(before) + 8].mean(0)
    for token in (EXPAND, END):
        model.lm_head.weight[token] += LIKELIER * usual / usual.square().sum()
    return model


def write(parent: Path, model: torch.nn.Module) -> Path:
    """A checkpoint of DreamOn as it is published: with the token that expands, and <bos> that no tokenizer adds."""
    folder = CASES["dreamon"].write(parent, model)
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.add_special_tokens(["<|expand|>", "<|beginoftext|>"])
    assert inner.token_to_id("<|expand|>") == EXPAND
    inner.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bos_token": "<|beginoftext|>"}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return {seed: write(tmp_path_factory.mktemp(f"seed{seed}"), weights(seed)) for seed in SEEDS}


@pytest.fixture(scope="module")
def dreamons(folders: dict[int, Path]) -> dict[int, Model]:
    return {seed: load(folder, dtype="float32", backend="torch") for seed, folder in folders.items()}


@pytest.fixture(scope="module")
def dreamon(dreamons: dict[int, Model]) -> Model:
    return dreamons[1]


@cache
def oracle(seed: int) -> torch.nn.Module:
    return weights(seed)


def logits_of(seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Logits of the token at each position: those of the row before it."""

    def read(tokens: np.ndarray) -> np.ndarray:
        seen = torch.ones(len(tokens), len(tokens), dtype=torch.bool)
        rows = logits_under(oracle(seed), torch.from_numpy(tokens), seen).double().numpy()
        return np.concatenate([rows[:1], rows[:-1]])

    return read


class Shared:
    """Our random numbers."""

    def __init__(self, length: int) -> None:
        self._positions, self._rng = np.arange(length), Counter(SEED)

    def exponential(self, forward: int) -> np.ndarray:
        return self._rng.exponential(TOKEN, self._positions, forward, SIZE)

    def uniform(self, forward: int) -> np.ndarray:
        return self._rng.uniform(ORDER, self._positions, forward)


def filled(model: Model, seed: int, texts: list[str], most: int, ranks: Dream, **how: Any) -> Filled:
    """What the oracle fills between texts."""
    encode = model.tokenizer.encode
    segments = [[BEGIN, *encode(texts[0])], *(encode(text, begins=False) for text in texts[1:])]
    given = {"start": min(4, most), "budget": most, "never": NEVER} | how
    method = DreamOn(ranks=ranks, mask=MASK, expand=EXPAND, delete=END, end=END, most=most, **given)
    return method.fill(logits_of(seed), segments, Shared)


def windows(result: Result) -> list[list[list[int | None]]]:
    """After each forward, what each gap has to the left of its fillers; None at open positions."""
    out = []
    for step, canvas in zip(result.trace.steps, result.trace.replay(), strict=True):
        now = []
        for start, end in canvas.gaps:
            held = [None if canvas.open[at] else int(canvas.tokens[at]) for at in range(start, end)]
            while held and held[-1] == END:
                held.pop()
            now.append(held)
        if len(out) == step.step + 1:  # the event that fills short gaps has the step of the first forward
            out.pop()
        out.append(now)
    return out


def check(result: Result, want: Filled) -> None:
    """Each forward leaves the same tokens and open positions, and each token has the probability of its draw."""
    assert windows(result) == want.history
    assert result.usage.forwards == len(want.history)
    written = [token for text in want.texts for token in text if token != START]  # which has no bytes
    assert [token.id for token in result.tokens] == written
    assert not {EXPAND, END, MASK} & {token.id for token in result.tokens}


def test_the_models_are_about_as_sure_as_a_model_is(dreamon: Model) -> None:
    tokens = np.array([BEGIN, *dreamon.tokenizer.encode(PREFIX), *[MASK] * 12, END])
    for seed in SEEDS:
        logits = logits_of(seed)(tokens)
        best = (np.exp(logits - logits.max(-1, keepdims=True))).sum(-1) ** -1
        assert 0.3 < best[-13:].mean() < 0.8


def test_a_published_checkpoint_says_what_it_can(dreamon: Model, folders: dict[int, Path]) -> None:
    config = dreamon.config
    assert (config.expand_id, config.null_id, config.eos_id, config.bos_id) == (EXPAND, END, END, BEGIN)
    assert EXPAND in config.reserved_ids and EXPAND not in config.unpredictable_ids
    assert dreamon.family == "dreamon"
    kept = {"policy": "entropy", "rank_by": "drawn", "temperature": 0.2, "top_p": 0.9, "end_of_text": "plain"}
    assert dreamon.defaults == kept


def test_dreamon_takes_the_same_steps(subtests: pytest.Subtests, dreamons: dict[int, Model]) -> None:
    """The published `pad_eos_to_right` is our end_of_text="fill"."""
    expansions, deletions, blocked = Counts[str](), Counts[str](), Counts[str]()
    for case in covering({"ends": ["plain", "fill", "last", "never"], "alg": list(NAMES), "seed": SEEDS}):
        seed, alg, ends = case["seed"], case["alg"], case["ends"]
        model, (most, start) = dreamons[seed], LENGTHS[seed]
        how = {"to_right": ends == "fill", "last": ends == "last", "start": start}
        how |= {"never": (*NEVER, END)} if ends == "never" else {}
        want = filled(model, seed, [PREFIX, SUFFIX], most, Dream(steps=1, alg=alg), **how)
        options = {"policy": NAMES[alg], "end_of_text": ends, "start_tokens": start}
        with subtests.test(**case):
            check(model.infill(PREFIX, SUFFIX, most, **PLAIN, **options), want)
        expansions[ends] += want.expansions
        deletions[ends] += want.deletions
        blocked[ends] += want.blocked
    assert min(expansions.values()) >= 6 and min(blocked.values()) > 0
    assert deletions["plain"] > 1 and deletions["fill"] > 1 and deletions["never"] == 0


@pytest.mark.parametrize(
    ("drawn", "heat"),
    [({"temperature": 0.2, "top_p": 0.9}, 0.0), ({"temperature": 1.0}, 0.3), ({"temperature": 0.7, "top_k": 6}, 0.0)],
)
def test_dreamon_draws_the_same_tokens(dreamons: dict[int, Model], drawn: dict[str, Any], heat: float) -> None:
    """Its README's options come first; then `alg_temp`, and cuts."""
    changes = 0
    for seed, model in dreamons.items():
        want = filled(model, seed, [PREFIX, SUFFIX], 20, Dream(steps=1, alg_temp=heat, **drawn))
        options = {"top_p": 1.0, "rank_temperature": heat, "seed": SEED} | drawn
        check(model.infill(PREFIX, SUFFIX, 20, **options), want)
        changes += want.expansions * want.deletions
    assert changes


@pytest.mark.parametrize("texts", [["", SUFFIX], [PREFIX, ""], [PREFIX, MIDDLE, SUFFIX], ["", MIDDLE, ""]])
def test_gaps_are_anywhere_and_several_see_each_other(dreamons: dict[int, Model], texts: list[str]) -> None:
    changes = 0
    for seed, model in dreamons.items():
        start = 1 + seed % 3 * 5
        want = filled(model, seed, texts, 12, Dream(steps=1), start=start)
        mode = {} if texts[-1] or len(texts) > 2 else {"mode": "expand"}
        result = model.fill("<gap>".join(texts), 12, start_tokens=start, **PLAIN, **mode)
        check(result, want)
        pieces = zip(texts, result.texts, strict=False)
        assert result.text == "".join(a + b for a, b in pieces) + texts[-1]
        changes += want.expansions + want.deletions
    assert changes


def test_special_tokens_of_the_text_stay_where_they_are(dreamons: dict[int, Model]) -> None:
    texts = ["a <MASK>b<|endoftext|> <|expand|>", "<|expand|>c<|endoftext|><MASK>", "<MASK> d <|endoftext|>!"]
    for seed, model in dreamons.items():
        check(
            model.fill("<gap>".join(texts), 10, special_tokens=True, **PLAIN),
            filled(model, seed, texts, 10, Dream(steps=1)),
        )


def test_a_text_that_ends_in_eos_gets_no_second_one(dreamon: Model) -> None:
    alone, ended = (
        dreamon.infill(PREFIX, SUFFIX + end, 12, special_tokens=True, **PLAIN) for end in ("", "<|endoftext|>")
    )
    assert windows(alone) == windows(ended)


def test_the_native_backend_fills_the_same_gaps(folders: dict[int, Path], dreamons: dict[int, Model]) -> None:
    for seed, folder in folders.items():
        native = load(folder, dtype="float32", backend="native")
        for options in (PLAIN, {"seed": 3}, {"rank_by": "model", "temperature": 1.0, "threshold": 0.4}):
            if "threshold" in options:
                options = options | {"policy": "threshold"}
            results = [m.fill(f"{PREFIX}<gap>{MIDDLE}<gap>{SUFFIX}", 10, **options) for m in (native, dreamons[seed])]
            assert windows(results[0]) == windows(results[1])


def test_requests_side_by_side_have_the_tokens_of_each_alone(folders: dict[int, Path]) -> None:
    model = load(folders[1], dtype="float32", backend="native")
    asked = [(PREFIX, SUFFIX, 16), (PREFIX + "w", "", 9), ("", SUFFIX, 12), ("if x:\n ", "\n", 20)]
    samples, alone = [], []
    for before, after, most in asked:
        for temperature in (0.0, 0.8):
            how = Decode(mode="expand", policy="entropy", rank_by="model", temperature=temperature, seed=4)
            plan = make_plan(model.config, model.tokenizer, how, before, after, most, False)
            samples += [Sample(model.denoiser, plan, 0, None)]
            alone += [main_path.infill(model.denoiser, model.tokenizer, before, after, most, how, heal=False)]
    Together(model.denoiser.backend, samples).run()
    assert [windows(sample.result()) for sample in samples] == [windows(result) for result in alone]
    many = model.infill(PREFIX, SUFFIX, 16, temperature=1.0, seed=4, n=3)
    again = model.infill(PREFIX, SUFFIX, 16, temperature=1.0, seed=4, n=2)
    assert [one.text for one in many.choices[:2]] == [one.text for one in again.choices]
    assert len({one.text for one in many.choices}) > 1


def test_the_least_and_the_most_are_kept_and_forwards_are_bounded(dreamon: Model) -> None:
    grows, shrinks = {"logit_bias": {EXPAND: 50.0, END: -50.0}}, {"logit_bias": {END: 50.0}}
    for least, most, options, length in (
        *((0, 12, grows, 12), (0, 12, shrinks, 0), (5, 12, shrinks, 5), (3, 4, grows, 4), (1, 1, grows, 1)),
        *((12, 12, shrinks, 12), (0, 12, shrinks | {"end_of_text": "fill"}, 0), (2, 3, shrinks, 2)),
        *(
            (0, 9, {"logit_bias": {EXPAND: -50.0}, "end_of_text": "never"}, 4),
            (3, 12, shrinks | {"end_of_text": "fill"}, 3),
        ),
    ):
        how = {"min_tokens": least, "policy": "entropy", "mode": "expand"} | options
        result = dreamon.infill(PREFIX, SUFFIX, most, **PLAIN, **how)
        plan = make_plan(dreamon.config, dreamon.tokenizer, Decode(**how), PREFIX, SUFFIX, most, False)
        assert len(windows(result)[-1][0]) == length, options
        assert 0 < result.usage.forwards <= plan.max_forwards
        assert result.finish_reason == ("length" if length == most else "stop")


def test_a_gap_expands_as_often_as_it_may_have_tokens(scripted: Any, tokenizer: Any) -> None:
    """A model that doubles a position and takes it out again, for ever, ends when the budget is used up."""
    says = {15: 9.0, tokenizer.null_id: 8.0}
    denoiser = scripted(lambda canvas, position: says, context="full", shift=False, expand_id=15)
    result = main_path.infill(
        denoiser, tokenizer, "ab", "cd", 7, mode="expand", policy="confidence", end_of_text="plain"
    )
    lengths = []
    for canvas in result.trace.replay():
        start, end = canvas.gaps[0]
        lengths.append(int(canvas.open[start:end].sum()))
    assert lengths == [4, 5, 6, 7, *[6, 7] * 4, 6, 5, 4, 3, 2, 1, 0]
    assert result.text == "" and result.usage.forwards == 4 + 2 * 7


def test_a_trace_replays_and_a_stream_shows_only_what_stays(dreamons: dict[int, Model]) -> None:
    moved = 0
    for model, seed in product(dreamons.values(), (0, 1)):
        events = list(model.stream(PREFIX, 16, suffix=SUFFIX, seed=seed, temperature=0.0, policy="random"))
        *steps, last = events
        result = last.result
        assert result is not None
        replayed = list(Trace.from_json(result.trace.to_json()).replay())
        for event, canvas in zip(steps, replayed, strict=True):
            assert event.step is not None
            assert np.array_equal(event.step.canvas.tokens, canvas.tokens)
            assert np.array_equal(event.step.canvas.open, canvas.open)
            assert result.text.startswith(event.committed) and event.text.startswith(event.committed)
        assert all(b.committed.startswith(a.committed) for a, b in pairwise(events))
        assert steps[0].text == "░" * 4, "a draft ends where the fillers begin"
        moved += sum(len(step.decision.replace) for step in result.trace.steps)
    assert moved


def test_a_picture_is_drawn_of_a_gap_that_moves(dreamon: Model) -> None:
    pytest.importorskip("matplotlib")
    from daguerre.view.picture import figure_of

    result = dreamon.infill(PREFIX, SUFFIX, 12, **PLAIN)
    (mesh,) = figure_of(result, dreamon.tokenizer).axes[0].collections
    assert mesh.get_array().shape[0] == len(result.trace.steps) + 1


def test_a_token_keeps_its_probability_when_it_moves(dreamons: dict[int, Model]) -> None:
    """Probabilities are looked up by token in all decisions that wrote it: each is that of one draw."""
    moved = 0
    for model, seed in product(dreamons.values(), (0, 1)):
        result = model.infill(PREFIX, SUFFIX, 16, seed=seed, temperature=0.0, policy="random")
        first: dict[float, int] = {}
        for step in result.trace.steps[1:]:
            decision = step.decision
            for position, token, chance in zip(
                decision.positions.tolist(), decision.tokens.tolist(), decision.probabilities.tolist(), strict=True
            ):
                if token != END:
                    assert first.setdefault(chance, token) == token
                    moved += position in decision.replace
        for token in result.tokens:
            assert token.logprob is not None
            assert any(np.isclose(np.log(chance), token.logprob) for chance in first)
    assert moved


def test_a_stop_string_ends_the_gap(dreamons: dict[int, Model]) -> None:
    cut = 0
    for model in dreamons.values():
        whole = model.infill(PREFIX, SUFFIX, 16, **PLAIN).text
        if len(whole) > 3:
            stop = whole[2]
            result = model.infill(PREFIX, SUFFIX, 16, stop=stop, **PLAIN)
            assert (result.text, result.finish_reason) == (whole[: whole.index(stop)], "stop")
            cut += 1
    assert cut


def test_a_policy_may_commit_several_and_all_at_once(dreamons: dict[int, Model]) -> None:
    """With a threshold of 0 the first forward decides about every position."""
    seen = set[int]()
    for seed, model in dreamons.items():
        options: dict[str, Any] = {"policy": "threshold", "start_tokens": 8, "rank_by": "model", **PLAIN}
        result = model.infill(PREFIX, SUFFIX, 24, threshold=0.0, **options)
        before, after = model.tokenizer.encode(PREFIX), model.tokenizer.encode(SUFFIX, begins=False)
        logits = logits_of(seed)(np.array([BEGIN, *before, *[MASK] * 8, *after, END]))
        logits[:, list(NEVER)] = -np.inf
        want = list[int | None]()
        for token in logits[1 + len(before) :][:8].argmax(-1).tolist():
            seen.add(token)
            want += [None, None] if token == EXPAND else [] if token == END else [token]
        assert windows(result)[0] == [want]
        assert result.usage.forwards < model.infill(PREFIX, SUFFIX, 24, threshold=0.9, **options).usage.forwards
    assert {EXPAND, END} < seen


def test_guidance_and_a_scorer_see_what_the_model_sees(dreamon: Model) -> None:
    lengths = set()

    def scorer(canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
        lengths.add(len(canvas))
        assert canvas.open[positions].all() and canvas.tokens[-1] == END
        return np.zeros(1)

    plain = dreamon.infill(PREFIX, SUFFIX, 12, rank_by="model", **PLAIN)
    scored = dreamon.infill(PREFIX, SUFFIX, 12, rank_by="model", scorer=scorer, **PLAIN)
    assert windows(plain) == windows(scored) and len(lengths) > 1
    guided = dreamon.infill(PREFIX, SUFFIX, 12, guidance=2.0, negative="x", **PLAIN)
    assert guided.usage.forwards == 2 * len(guided.trace.steps[1:])
    assert guided.text != plain.text


def test_where_time_is_short_no_gap_grows_and_all_is_filled(scripted: Any, tokenizer: Any, monkeypatch: Any) -> None:
    now = 0.0
    monkeypatch.setattr("daguerre.decoding.denoise.time.perf_counter", lambda: now)

    def says(canvas: Canvas, position: int) -> dict[int, float]:
        nonlocal now
        now += 1.0
        return {15: 9.0, 40: 1.0}

    denoiser = scripted(says, context="full", shift=False, expand_id=15)
    free = main_path.infill(
        denoiser, tokenizer, "ab", "cd", 24, mode="expand", policy="confidence", end_of_text="plain"
    )
    result = main_path.infill(denoiser, tokenizer, "ab", "cd", 24, mode="expand", policy="confidence", timeout=60.0)
    assert len(free.tokens) == 24 > len(result.tokens) > 0
    assert result.finish_reason == "stop" and result.usage.deadline_forced
    assert result.usage.seconds <= 60.0


def test_only_mode_expand_draws_the_token_that_expands(dreamon: Model) -> None:
    most = {EXPAND: 100.0}
    for call, options in (
        *((dreamon.generate, {"mode": name}) for name in ("full", "block", "ancestral")),
        (dreamon.generate, {}),
    ):
        result = call(PREFIX, 8, logit_bias=most, **PLAIN, **options)
        assert EXPAND not in result.trace.canvas.tokens
        assert all(EXPAND not in step.decision.tokens for step in result.trace.steps)
    result = dreamon.infill(PREFIX, SUFFIX, 8, mode="full", logit_bias=most, search_length=True, **PLAIN)
    assert all(EXPAND not in step.decision.tokens for step in result.trace.steps)


def test_gaps_expand_by_default_and_completions_are_filled_whole(dreamon: Model) -> None:
    assert dreamon.infill(PREFIX, SUFFIX, 8).usage.mode == "expand"
    assert dreamon.fill(f"{PREFIX}<gap>{SUFFIX}", 8).usage.mode == "expand"
    assert dreamon.edit(PREFIX + SUFFIX, [(4, 8)]).usage.mode == "expand"
    assert dreamon.generate(PREFIX, 8).usage.mode == "full"
    assert dreamon.generate(PREFIX, 8, start_tokens=2).usage.mode == "expand"
    assert dreamon.infill(PREFIX, SUFFIX, 8, steps=3, policy="confidence").usage.mode == "full"
    assert dreamon.infill(PREFIX, SUFFIX, 8, block_size=4).usage.mode == "block"
    assert dreamon.infill(PREFIX, SUFFIX, 8, policy="chain").usage.mode == "full"
    result = dreamon.infill(PREFIX, SUFFIX, 8, regex="[a-c]{2,4}", policy="threshold", rank_by="model")
    assert result.usage.mode == "full" and set(result.text) <= set("abc")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"cache": "none", "mode": "expand"}, "cache is not used in mode 'expand'"),
    ({"steps": 3, "mode": "expand", "policy": "entropy"}, "steps is not used in mode 'expand'"),
    ({"revise": 1, "mode": "expand"}, "revise is not used in mode 'expand'"),
    ({"policy": "chain", "mode": "expand", "rank_by": "model"}, "policy 'chain' is not used in mode 'expand'"),
    ({"regex": "a", "mode": "expand", "rank_by": "model"}, 'mode "expand" cannot honor the option regex'),
    ({"start_tokens": 0}, "start_tokens must be a whole number from 1 up"),
    ({"start_tokens": 9}, "start_tokens=9 is not from min_tokens=0 to max_tokens=8"),
    ({"start_tokens": 2, "mode": "full"}, "start_tokens is not used in mode 'full'"),
    ({"draft": "abc"}, "takes no draft: leave out the draft"),
    ({"heal": True}, "heals no word: leave out heal"),
    ({"search_length": True, "mode": "expand"}, "cannot search a length first: leave out search_length"),
    ({"max_tokens": 105}, "leave no room for <eos> among 128 positions: shorten the text or ask for fewer tokens"),
]


def test_what_it_cannot_honor_is_refused_by_name(subtests: pytest.Subtests, dreamon: Model) -> None:
    for options, said in REFUSED:
        given = {"max_tokens": 8} | options
        if given["max_tokens"] == 105:
            given["max_tokens"] = 128 - 1 - len(dreamon.tokenizer.encode(PREFIX + SUFFIX))
        with subtests.test(str(options)):
            with pytest.raises(DaguerreError) as refused:
                dreamon.infill(PREFIX, SUFFIX, **given)
            assert said in str(refused.value) and "\n" not in str(refused.value)


def test_other_models_and_other_requests_are_refused(dreamon: Model, causal: Model, make_model: Any) -> None:
    with pytest.raises(DaguerreError, match=r'a token that expands a gap.*use mode "block"'):
        causal.infill("a", "b", 8, mode="expand")
    with pytest.raises(DaguerreError, match='guidance in mode "expand" is for one gap'):
        dreamon.fill("a<gap>b<gap>c", 8, guidance=2.0)
    with pytest.raises(DaguerreError, match='mode "expand" cannot be changed while it runs'):
        dreamon.start(PREFIX, 8, mode="expand")
    for facts in ({"context": "causal"}, {"context": "full", "null_id": None}, {"context": "full", "expand_id": 10**6}):
        with pytest.raises(CheckpointError, match="expand_id"):
            make_model(**({"expand_id": 15} | facts))


def test_a_model_folder_keeps_the_token(make_model: Any, tmp_path: Path) -> None:
    model = make_model(context="full", expand_id=15)
    save_model(tmp_path / "own", model.backbone, model.tokenizer, torch.float32)
    loaded = OwnSource(tmp_path / "own").load("float32")
    backbone, tokenizer = loaded.backbone, loaded.tokenizer
    assert backbone.config == model.config
    again = Model(backbone, tokenizer)
    results = [one.infill("ab", "cd", 12, temperature=1.0) for one in (model, again)]
    assert results[0].usage.mode == "expand" and windows(results[0]) == windows(results[1])
    assert results[0].text == results[1].text


def test_an_exported_model_says_what_is_left_out_and_draws_no_expansion(dreamon: Model, tmp_path: Path) -> None:
    from daguerre.models.export import export

    export(dreamon.backbone, dreamon.tokenizer, tmp_path / "out", torch.float32)
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert EXPAND in generation["suppress_tokens"] and END not in generation["suppress_tokens"]
    assert f"gaps that grow (token {EXPAND})" in (tmp_path / "out" / "README.md").read_text()


def test_the_command_line_fills_a_gap(
    folders: dict[int, Path], dreamon: Model, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from daguerre.cli import main

    asked = ["infill", PREFIX, SUFFIX, "--model", str(folders[1]), "--backend", "torch", "--dtype", "float32"]
    told = ["--max-tokens", "12", "--start-tokens", "3", "--temperature", "0", "--json"]
    monkeypatch.setattr("sys.argv", ["daguerre", *asked, *told])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    want = dreamon.infill(PREFIX, SUFFIX, 12, start_tokens=3, temperature=0.0)
    assert json.loads(capsys.readouterr().out)["text"] == want.text


def random_windows(rng: np.random.Generator, pool: list[WindowSlot]) -> Window:
    chosen = rng.integers(len(pool), size=rng.integers(0, 7))
    return Window((2, 8), tuple(pool[i] for i in chosen), 0, 6, 6)


def cases() -> Iterator[tuple[Window, Window]]:
    rng = np.random.default_rng(3)
    pool = [OPEN, *(WindowSlot(token, 0.1 * token, 0.5, np.array([token], dtype=np.float32)) for token in (1, 2, 3, 3))]
    for _ in range(300):
        yield random_windows(rng, pool), random_windows(rng, pool)


def test_the_difference_of_two_windows_turns_one_canvas_into_the_other() -> None:
    def canvas_of(window: Window) -> Canvas:
        held = [*window.slots, *[WindowSlot(9)] * (6 - len(window.slots))]
        tokens = np.array([7, 7, *(slot.token for slot in held), 7])
        return Canvas(tokens, np.array([False, False, *(slot is OPEN for slot in held), False]), ((2, 8),))

    for before, after in cases():
        decision, evidence = difference([before], [after], 9)
        now, want = canvas_of(before).apply(decision), canvas_of(after)
        assert np.array_equal(now.open, want.open)
        assert np.array_equal(now.tokens[~now.open], want.tokens[~want.open])
        if evidence is not None:
            known = decision.tokens != 9
            assert np.array_equal(evidence[known, 0], decision.tokens[known]) and np.isnan(evidence[~known]).all()
        assert difference([after], [after], 9)[0].positions.size == 0
