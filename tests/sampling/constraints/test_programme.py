"""The programme against brute force: every text of the right length is listed, weighed, and compared."""

from __future__ import annotations

import gc
import weakref
from itertools import product

import numpy as np
import pytest

from daguerre.errors import InputError
from daguerre.sampling.constraints import compiled, weights
from daguerre.sampling.constraints.indices import NONE
from daguerre.sampling.constraints.programme import Programme, completions
from daguerre.sampling.constraints.reference.paths import SlowPaths
from daguerre.sampling.constraints.spans import CompiledPaths, span
from daguerre.sampling.constraints.tiles import TILE, Tiles
from daguerre.sampling.constraints.tokens import TokenAutomaton, useful
from daguerre.sampling.constraints.weights import weigh

MAX_STATES, MAX_CLASSES, MAX_TOKENS, MAX_LENGTH = 5, 4, 6, 6
NUM_AUTOMATA = 250


def random_automaton(rng: np.random.Generator) -> TokenAutomaton:
    """Deterministic, of any shape: loops, several ways to one end, tokens without a class."""
    num_states, num_classes = int(rng.integers(1, MAX_STATES + 1)), int(rng.integers(1, MAX_CLASSES + 1))
    vocab_size = int(rng.integers(num_classes, MAX_TOKENS + 1))
    class_of_token = np.concatenate(
        [np.arange(num_classes), rng.integers(NONE, num_classes, size=vocab_size - num_classes)]
    )
    delta = rng.integers(0, num_states, size=(num_states, num_classes))
    src, cls = np.nonzero(rng.random((num_states, num_classes)) < 0.6)
    accept = rng.random(num_states) < 0.5
    columns = (rng.permutation(class_of_token), src, delta[src, cls], cls)
    class_of_token, *edges = (column.astype(np.int32) for column in columns)
    try:
        automaton = useful(accept, class_of_token, (edges[0], edges[1], edges[2]), ())
    except InputError:
        return random_automaton(rng)
    return automaton if len(automaton.pairs) else random_automaton(rng)


def triple(edges: list[list[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(src, dst, cls)."""
    src, dst, cls = np.array(edges, dtype=np.int32)
    return src, dst, cls


def random_row(rng: np.random.Generator, automaton: TokenAutomaton) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(tokens, open, logp): pins anywhere, and open positions that nothing is known of at the right."""
    length = int(rng.integers(1, MAX_LENGTH + 1))
    usable = np.flatnonzero(automaton.class_of_token != NONE)
    tokens, is_open = rng.choice(usable, size=length), rng.random(length) < 0.7
    num_asked = int(rng.integers(0, is_open.sum() + 1))
    logits = rng.normal(size=(num_asked, automaton.vocab_size)) * 3
    logits[rng.random(logits.shape) < 0.05] = -np.inf
    with np.errstate(invalid="ignore"):
        logp = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return tokens, is_open, np.where(np.isnan(logp), -1.0, logp)


def listed(automaton: TokenAutomaton, tokens: np.ndarray, is_open: np.ndarray, state: int) -> set[tuple[int, ...]]:
    """Every row of the language with the fixed tokens."""
    choices = [range(automaton.vocab_size) if o else [int(t)] for t, o in zip(tokens, is_open, strict=True)]
    ends = ((row, automaton.walk(row, state)) for row in product(*choices))
    return {row for row, end in ends if end >= 0 and automaton.accept[end]}


def one_token(rows: set[tuple[int, ...]], i: int) -> bool:
    return len({row[i] for row in rows}) == 1


def law(rows: set[tuple[int, ...]], is_open: np.ndarray, logp: np.ndarray) -> dict[tuple[int, ...], float]:
    """The log-probability of each assignment to the asked positions that some row of the language has."""
    asked = np.flatnonzero(is_open)[: len(logp)]
    assignments = {tuple(row[i] for i in asked) for row in rows}
    logs = {a: float(sum(logp[i, t] for i, t in enumerate(a))) for a in assignments}
    return {a: log for a, log in logs.items() if log > -np.inf}


def test_the_programme_equals_brute_force_on_random_automata_with_pins_and_suffixes() -> None:
    rng = np.random.default_rng(1)
    seen = {"feasible": 0, "empty": 0, "pinned": 0, "suffix": 0, "forced": 0}
    for _ in range(NUM_AUTOMATA):
        automaton = random_automaton(rng)
        tokens, is_open, logp = random_row(rng, automaton)
        state = int(rng.integers(0, automaton.num_states))
        programme = Programme(automaton, tokens, is_open, state)
        rows = listed(automaton, tokens, is_open, state)
        logs = law(rows, is_open, logp)
        if rows:
            for num in (None, len(logp)):
                same = [(i, row[i]) for i in np.flatnonzero(is_open)[:num] for row in [min(rows)] if one_token(rows, i)]
                found = zip(*(column.tolist() for column in programme.forced(num)), strict=True)
                assert list(found) == same
                seen["forced"] += [i for i, _ in same] != np.flatnonzero(is_open)[: len(same)].tolist()
        else:
            for num in (None, len(logp)):
                with pytest.raises(InputError):
                    programme.forced(num)
        if not logs:
            seen["empty"] += 1
            for method in (programme.best, programme.marginals):
                with pytest.raises(InputError):
                    method(logp)
            continue
        seen["feasible"] += 1
        seen["pinned"] += not is_open.all()
        seen["suffix"] += len(logp) < is_open.sum()
        best = tuple(programme.best(logp).tolist())
        assert logs[best] == pytest.approx(max(logs.values()), abs=1e-12)
        weights = np.exp(np.array(list(logs.values())) - max(logs.values()))
        wanted = np.zeros(logp.shape)
        for assignment, weight in zip(logs, weights / weights.sum(), strict=True):
            wanted[range(len(assignment)), assignment] += weight
        found = programme.marginals(logp)
        np.testing.assert_allclose(found, wanted, atol=1e-9, rtol=0)
        drawn = programme.sample(logp, rng.random(len(logp)))
        assert tuple(drawn.tolist()) in logs
        np.testing.assert_allclose(
            programme.probabilities(logp, drawn), wanted[range(len(drawn)), drawn], atol=1e-9, rtol=0
        )
    assert seen.pop("forced") > 10 and min(seen.values()) > 25, seen


def test_below_a_floor_no_open_position_is_filled() -> None:
    rng = np.random.default_rng(3)
    seen = {"feasible": 0, "empty": 0, "cut": 0}
    while min(seen.values()) < 15:
        automaton = random_automaton(rng)
        free = np.flatnonzero(automaton.class_of_token == NONE)
        if not len(free):
            continue
        filler = int(free[0])
        automaton = automaton.with_filler(filler)
        tokens, is_open, logp = random_row(rng, automaton)
        floor = int(rng.integers(0, len(tokens) + 1))
        programme = Programme(automaton, tokens, is_open, 0, filler, floor)
        every = listed(automaton, tokens, is_open, 0)
        rows = {row for row in every if not any(is_open[i] and row[i] == filler for i in range(floor))}
        logs = law(rows, is_open, logp)
        seen["cut"] += bool(logs) and rows != every
        if rows:
            found = dict(zip(*(column.tolist() for column in programme.forced()), strict=True))
            assert found == {i: t for i, t in enumerate(min(rows)) if is_open[i] and {r[i] for r in rows} == {t}}
        if not logs:
            seen["empty"] += 1
            with pytest.raises(InputError):
                programme.best(logp)
            continue
        seen["feasible"] += 1
        assert logs[tuple(programme.best(logp).tolist())] == pytest.approx(max(logs.values()), abs=1e-12)
        assert tuple(programme.sample(logp, rng.random(len(logp))).tolist()) in logs


def test_tokens_that_are_taken_out_of_a_language_take_their_texts_with_them() -> None:
    rng = np.random.default_rng(4)
    emptied = 0
    for _ in range(100):
        automaton = random_automaton(rng)
        banned = np.flatnonzero(rng.random(automaton.vocab_size) < 0.4)
        everything = np.zeros(4, dtype=np.int64), np.ones(4, dtype=bool)
        wanted = {row for row in listed(automaton, *everything, 0) if not set(row) & set(banned.tolist())}
        try:
            left = automaton.without(banned.tolist())
        except InputError:
            emptied += 1
            assert not wanted
            continue
        assert listed(left, *everything, 0) == wanted
    assert 0 < emptied < 90


def test_sampled_frequencies_are_the_law_given_the_language() -> None:
    rng = np.random.default_rng(2)
    num_draws, num_checked = 800, 0
    while num_checked < 4:
        automaton = random_automaton(rng)
        tokens, is_open, logp = random_row(rng, automaton)
        logs = law(listed(automaton, tokens, is_open, 0), is_open, logp / 3)
        if not 8 <= len(logs) <= 60:
            continue
        num_checked += 1
        programme = Programme(automaton, tokens, is_open)
        draws = [tuple(programme.sample(logp / 3, u).tolist()) for u in rng.random((num_draws, len(logp)))]
        total = np.logaddexp.reduce(list(logs.values()))
        for assignment, log in logs.items():
            p = np.exp(log - total)
            if p * num_draws >= 10:  # where the count is nearly normal
                sigma = np.sqrt(p * (1 - p) / num_draws)
                assert abs(draws.count(assignment) / num_draws - p) <= 4 * sigma
        assert set(draws) <= set(logs)


def chain(text: list[int], vocab_size: int) -> TokenAutomaton:
    """The language of one text."""
    steps = np.arange(len(text), dtype=np.int32)
    accept = np.arange(len(text) + 1) == len(text)
    return TokenAutomaton.of_edges(
        accept, np.arange(vocab_size, dtype=np.int32), (steps, steps + 1, np.array(text, np.int32))
    )


def test_after_the_language_ends_only_the_filler_may_follow() -> None:
    automaton = TokenAutomaton.of_edges(
        np.array([False, False, True]), np.array([NONE, 0, 1, NONE]), triple([[0, 1], [1, 2], [0, 1]])
    )
    filled = automaton.with_filler(3)
    everything = np.ones(5, dtype=bool)

    programme = Programme(filled, np.zeros(5, dtype=np.int64), everything)

    assert programme.forced()[1].tolist() == [1, 2, 3, 3, 3]
    assert programme.best(np.zeros((5, 4))).tolist() == [1, 2, 3, 3, 3]
    with pytest.raises(InputError, match="part of the language"):
        automaton.with_filler(1)


def test_sums_of_weights_equal_sums_of_logarithms_and_the_reference_whatever_is_likely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    fast = 0
    for case in range(60):
        automaton = random_automaton(rng)
        logp = rng.normal(size=(40, automaton.vocab_size)) * (1, 30, 400)[case % 3]
        u = rng.random(40)
        row = automaton, np.zeros(40, dtype=np.int64), np.ones(40, dtype=bool)
        try:
            found = Programme(*row).weigh(logp, best=case < 30).paths
        except InputError:
            continue
        assert isinstance(found, CompiledPaths)
        fast += not found.is_exact
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "library", lambda: None)
            span.cache_clear()
            slow = Programme(*row).weigh(logp, best=case < 30).paths
            span.cache_clear()
        assert isinstance(slow, SlowPaths)
        in_logs = np.zeros_like(slow.shares())
        found.span.call("paths_shares", found.exact.pointer, in_logs.ctypes.data)
        for shares in (found.shares(), in_logs):
            np.testing.assert_allclose(shares, slow.shares(), atol=1e-9, rtol=0)
        assert np.array_equal(found.best(), slow.best())
        for fast_draw, slow_draw in zip(found.draw(u), slow.draw(u), strict=True):
            np.testing.assert_allclose(fast_draw, slow_draw, atol=1e-6)
    assert fast > 20


def test_weights_of_classes_equal_those_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for kind in (np.float32, np.float64):
        with subtests.test(kind.__name__):
            rng = np.random.default_rng(0)
            classes = rng.integers(NONE, 4, size=3000)
            classes[:4] = range(4)
            automaton = TokenAutomaton.of_edges(
                np.array([True]), classes.astype(np.int32), triple([[0] * 4, [0] * 4, [0, 1, 2, 3]])
            )
            logits = (rng.normal(size=(5, 3000)) * 8).astype(kind)
            logits[0, 100:] = -np.inf
            logits[3] = logits[3].round()  # many are equal
            temperatures = [1.0, 0.3]
            fast_each = weigh(logits, automaton, temperatures)
            with monkeypatch.context() as patch:
                patch.setattr(compiled, "library", lambda: None)
                slow_each = weigh(logits, automaton, temperatures)
            for fast, slow, temperature in zip(fast_each, slow_each, temperatures, strict=True):
                (alone,) = weigh(logits, automaton, [temperature])
                for name in ("top_A", "sum_AC", "total_A", "most_AC"):
                    np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=2e-6, atol=1e-30)
                    assert np.array_equal(getattr(fast, name), getattr(alone, name))
                factors = rng.normal(size=(5, 4)) - 9
                factors[2, 1] = -np.inf
                same_kept(fast.likeliest(factors, 0.3), slow.likeliest(factors, 0.3))
                us = rng.random(40)
                of_each = np.ones(160, dtype=np.int64), np.tile(range(4), 40), us.repeat(4)
                drawn = [weights.draw(*of_each) for weights in (fast, slow)]
                assert np.mean(np.equal(*drawn)) > 0.98  # sums in another order may round to the next token
                firsts = [[weights.first(np.full(5, cls))[1:].tolist() for cls in range(4)] for weights in (fast, slow)]
                assert firsts[0] == firsts[1]


def test_tiles_hold_each_token_once_in_its_class(subtests: pytest.Subtests) -> None:
    for size in (1, TILE, 3 * TILE + 5):
        with subtests.test(str(size)):
            classes = np.random.default_rng(2).integers(NONE, 6, size=size).astype(np.int32)
            classes[-1] = 6
            order = np.argsort(np.where(classes == NONE, 7, classes), kind="stable").astype(np.int32)
            first = np.concatenate([[0], np.cumsum(np.bincount(classes[classes != NONE], minlength=7))])
            tiles = Tiles.of(order, first)
            seen, begins = np.zeros(size, dtype=int), np.concatenate([[0], tiles.end[:-1]])
            for tile in range(-(-size // TILE)):
                for s in range(tiles.first[tile], tiles.first[tile + 1]):
                    tokens = tile * TILE + tiles.place[begins[s] : tiles.end[s]].astype(int)
                    seen[tokens] += 1
                    assert (classes[tokens] == (NONE if tiles.cls[s] == 7 else tiles.cls[s])).all()
                    number = tiles.segment[s]
                    assert tokens.tolist() == order[tiles.starts[number] : tiles.starts[number + 1]].tolist()
                    assert tiles.of_class[tiles.cls[s]] <= number < tiles.of_class[tiles.cls[s] + 1]
            assert (seen == 1).all()


def test_the_likeliest_tokens_are_those_of_the_slow_reference(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """With classes of unlike sizes, ties, likely tokens that the language forbids, much of a row cut off, and rows of
    which a sample of tokens says nothing, or too little; and whatever the number of threads.
    """
    for kind, share in product((np.float32, np.float64), (0.02, 0.5, 0.9, 0.999, 1 - 1e-7)):
        with subtests.test(kind.__name__, share=share):
            rng, num = np.random.default_rng(1), 12
            classes = rng.choice(7, size=40_000, p=[0.7, 0.2, 0.05, 0.03, 0.01, 0.009, 0.001]) - 1
            classes[:6] = range(6)
            automaton = TokenAutomaton.of_edges(
                np.array([True]), classes.astype(np.int32), triple([[0] * 6, [0] * 6, list(range(6))])
            )
            logits = (rng.normal(size=(num, 40_000)) * rng.uniform(0.2, 8, (num, 1))).astype(kind)
            logits[1, 300:] = -np.inf
            logits[3] = logits[3].round()  # many are equal
            logits[4] += 1000
            logits[5, classes == NONE] += 60  # the likeliest are forbidden
            logits[6] = 0.0
            sampled = np.arange(40_000) % 1024 < 16  # of native/likeliest.h
            logits[8, sampled] = -np.inf
            logits[9, sampled] -= 3
            shares = rng.dirichlet(np.full(6, 0.5), num)
            shares[7] = [0, 0, 1, 0, 0, 0]
            (fast,) = weigh(logits, automaton, [0.8])
            with np.errstate(divide="ignore"):
                factors = np.log(shares) - fast.all_AC  # so that classes have these shares
            factors[~np.isfinite(factors)] = -np.inf
            with monkeypatch.context() as patch:
                patch.setattr(compiled, "library", lambda: None)
                (slow,) = weigh(logits, automaton, [0.8])
            wanted = slow.likeliest(factors, share)
            assert np.isfinite(wanted.logp_AV).any(1).all()
            for threads in (1, 3):
                with monkeypatch.context() as patch:
                    patch.setattr(weights, "threads_for", lambda _, number=threads: number)
                    same_kept(fast.likeliest(factors, share), wanted)


def same_kept(fast: weights.Weights, slow: weights.Weights) -> None:
    """Whether the same tokens are left, with the same weights, and draws of them."""
    assert isinstance(fast, weights.NativeWeights)
    for i, row in enumerate(slow.logp_AV):
        assert np.array_equal(np.flatnonzero(row > -np.inf), fast.tokens(i))
    classes = fast.all_AC > -np.inf
    assert np.array_equal(classes, slow.all_AC > -np.inf)
    logs = [one.all_AC - np.maximum(one.all_AC.max(1, keepdims=True), -1e300) for one in (fast, slow)]
    np.testing.assert_allclose(logs[0][classes], logs[1][classes], atol=1e-5)
    np.testing.assert_allclose(fast.sum_AC, np.exp(fast.all_AC), rtol=1e-9)
    rows, of_rows = np.repeat(np.argwhere(classes), 3, axis=0).T
    drawn = [one.draw(rows, of_rows, np.tile((0.0, 0.31, 0.77), len(rows) // 3)) for one in (fast, slow)]
    assert not len(rows) or np.mean(np.equal(*drawn)) > 0.98  # sums in another order may round to the next token


def test_classes_drawn_and_sums_of_bundles_are_those_of_the_slow_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where u is 0 or nearly 1, and where a class has no weight."""
    rng, compared = np.random.default_rng(9), 0
    while compared < 60:
        pairs = random_automaton(rng).pairs
        values = rng.random((int(rng.integers(1, 11)), int(pairs.classes.max()) + 1)) * 10.0 ** rng.integers(-9, 9)
        values[:, rng.random(values.shape[1]) < 0.2] = 0.0
        sums = weights.sum_of_bundles(values, pairs)
        likely = np.flatnonzero(sums.min(0) > 0)
        if not len(likely):
            continue
        compared += 1
        bundles = rng.choice(likely, len(values))
        u = rng.choice([0.0, rng.random(), 1 - 2.0**-53], len(values))
        fast = weights.draw_classes(values, pairs, bundles, u)
        best = weights.best_of_bundles(values, pairs)
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "library", lambda: None)
            np.testing.assert_allclose(sums, weights.sum_of_bundles(values, pairs), rtol=1e-12)
            assert np.array_equal(best, weights.best_of_bundles(values, pairs))
            slow = weights.draw_classes(values, pairs, bundles, u)
        assert np.array_equal(fast[0], slow[0])
        np.testing.assert_allclose(fast[1], slow[1], atol=1e-9)
        assert (values[np.arange(len(values)), fast[0]] > 0).all()


def test_a_text_far_less_likely_than_what_the_language_forbids_is_found_and_weighed() -> None:
    # a*b+c with a fixed c behind: every a is likely, the last position takes a b all the same, at e^-900
    rare = TokenAutomaton.of_edges(
        np.array([False, False, True]),
        np.array([0, 1, 2]),
        triple([[0, 0, 1, 1], [0, 1, 1, 2], [0, 1, 1, 2]]),
    )
    logp = np.array([[0.0, -900.0, -900.0]] * 4)
    programme = Programme(rare, np.array([0, 0, 0, 0, 2]), np.array([1, 1, 1, 1, 0], dtype=bool))

    assert programme.best(logp).tolist() == [0, 0, 0, 1]
    np.testing.assert_allclose(programme.probabilities(logp, np.array([0, 0, 0, 1])), 1.0)
    assert programme.sample(logp.astype(np.float32), np.full(4, 0.5)).tolist() == [0, 0, 0, 1]


def test_classes_that_vanish_beside_the_likeliest_token_keep_their_weight() -> None:
    automaton = chain([1], 4)
    logp = np.array([[0.0, -200.0, -np.inf, -300.0]], dtype=np.float32)

    weights = weigh(logp, automaton, [0.5])[0]

    np.testing.assert_allclose(weights.all_AC, [[0.0, -400.0, -np.inf, -600.0]], rtol=1e-6)
    np.testing.assert_allclose(weights.total_A, [0.0], atol=1e-6)


def test_a_span_laid_out_once_serves_every_step_and_gives_what_a_new_row_gives() -> None:
    rng = np.random.default_rng(6)
    compared = 0
    while compared < 40:
        automaton = random_automaton(rng)
        tokens, is_open, logp = random_row(rng, automaton)
        begin = int(rng.integers(0, len(tokens)))
        state = automaton.walk(tokens[:begin])
        if state < 0 or not is_open[begin:].any():
            continue
        logp = logp[: is_open[begin:].sum()]
        whole = Programme(automaton, tokens, is_open, state, begin=begin)
        alone = Programme(automaton, tokens[begin:], is_open[begin:], state)
        try:
            wanted = alone.marginals(logp)
        except InputError:
            with pytest.raises(InputError):
                whole.marginals(logp)
            continue
        compared += 1
        np.testing.assert_array_equal(whole.marginals(logp), wanted)
        np.testing.assert_array_equal(whole.best(logp), alone.best(logp))


def test_what_cannot_fit_is_an_error_that_says_how_much_room_is_needed() -> None:
    programme = Programme(chain([1, 2, 3], 4), np.zeros(2, dtype=np.int64), np.ones(2, dtype=bool))

    for method in (programme.check, programme.forced, lambda: programme.best(np.zeros((2, 4)))):
        with pytest.raises(InputError, match="shortest text has 3 tokens"):
            method()


def test_a_fixed_token_outside_the_language_is_named() -> None:
    automaton = TokenAutomaton.of_edges(np.array([True]), np.array([NONE, 0]), triple([[0], [0], [0]]))

    with pytest.raises(InputError, match="token 0 fixed at position 1"):
        Programme(automaton, np.array([1, 0]), np.zeros(2, dtype=bool))


def test_banning_every_allowed_token_is_an_error_about_the_ban() -> None:
    programme = Programme(chain([1], 4), np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool))

    with pytest.raises(InputError, match="no token is left"):
        programme.best(np.array([[0.0, -np.inf, 0.0, 0.0]]))


def test_the_terminal_states_of_a_span_know_the_suffix_and_the_room_that_is_left() -> None:
    # the language a*b: an early b would leave a fixed b without a place
    loop = TokenAutomaton.of_edges(np.array([False, True]), np.array([0, 1]), triple([[0, 0], [0, 1], [0, 1]]))
    likes_b = np.log(np.array([[0.01, 0.99]] * 3))

    for tokens, is_open in (([0, 0, 0, 1], [1, 1, 1, 0]), ([0, 0, 0, 0, 0], [1, 1, 1, 1, 1])):
        programme = Programme(loop, np.array(tokens), np.array(is_open, dtype=bool))
        assert programme.best(likes_b).tolist() == [0, 0, 0]


def test_top_p_cuts_the_marginals_and_gives_way_where_nothing_would_be_left() -> None:
    # a text of two equal tokens, ab or ba: marginals .6 and .4 at both places
    either = TokenAutomaton.of_edges(
        np.array([False, False, False, True]),
        np.array([0, 1]),
        triple([[0, 0, 1, 2], [1, 2, 3, 3], [0, 1, 1, 0]]),
    )
    logp = np.log(np.array([[0.6, 0.4], [0.5, 0.5]]))
    programme = Programme(either, np.zeros(2, dtype=np.int64), np.ones(2, dtype=bool))
    draws = [programme.sample(logp, np.array([u, 0.5]), top_p=0.5).tolist() for u in (0.1, 0.9)]
    np.testing.assert_allclose(programme.marginals(logp)[0], [0.6, 0.4])
    assert draws == [[0, 1], [0, 1]]

    # xxa, xbx, cxx with weights that make x the likeliest token everywhere, which the language does not have
    edges = triple([[0, 0, 1, 2, 1, 3, 4], [1, 2, 3, 4, 4, 5, 5], [0, 3, 0, 0, 2, 1, 0]])
    one_each = TokenAutomaton.of_edges(np.arange(6) == 5, np.arange(4), edges)
    programme = Programme(one_each, np.zeros(3, dtype=np.int64), np.ones(3, dtype=bool))
    drawn = programme.sample(np.full((3, 4), -np.log(4)), np.array([0.3, 0.5, 0.7]), top_p=0.3)
    assert one_each.accepts(drawn.tolist())


def test_wrong_shapes_are_refused() -> None:
    programme = Programme(chain([1], 4), np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool))

    for shape in ((2, 4), (1, 3)):
        with pytest.raises(InputError, match="do not fit"):
            programme.best(np.zeros(shape))


def test_completions_that_are_kept_keep_no_automaton() -> None:
    """It may have a thousand times their bytes."""
    automaton = random_automaton(np.random.default_rng(1))
    completions(automaton, np.full(3, NONE, dtype=automaton.class_of_token.dtype).tobytes(), NONE, 0)
    held = weakref.ref(automaton)
    del automaton
    gc.collect()
    assert held() is None
