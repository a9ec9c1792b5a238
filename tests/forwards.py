"""Forwards of every kind, each a function of its number, and the answers that they should get: by the logits of one
backend and the NumPy reference of draws.

Letters: R rows of a forward, A those that are wanted, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from daguerre.models.forward import (
    Answer,
    Ask,
    Backend,
    Cycle,
    DraftStep,
    Draws,
    Forward,
    Hidden,
    Layout,
    Logits,
    LogProbs,
    Rules,
    SequentialDraws,
    acceptance_of,
    num_agreed,
)
from daguerre.sampling.logits import SamplingParams, biased, log_softmax, propose
from daguerre.sampling.random import Counter
from daguerre.sampling.rules import Forbidden

NUM_KINDS = 24
"""Six kinds of asks times four layouts: numbers that differ by it have the same kind."""
PASTS = (0, 1, 63, 64, 130)
NONE = np.zeros(0, dtype=np.int64)
SAMPLING: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.8},
    {"temperature": 0.8, "min_p": 0.1},
    {"temperature": 1.0, "top_p": 0.95, "min_p": 0.05},
)


def tokens_of(backend: Backend, number: int, size: int) -> np.ndarray:
    """Random ordinary tokens."""
    return np.random.default_rng(number).choice(backend.config.ordinary_ids, size)


def causal_layout(past: int, num: int) -> Layout:
    """Clean rows behind `past` cached ones, each of which sees all before it."""
    end = np.arange(past + 1, past + num + 1, dtype=np.int32)
    return Layout(np.arange(past, past + num), end, num)


def filled_cache(backend: Backend, number: int, num: int, int8: bool = False) -> Any:
    """A cache of `num` clean rows of random tokens."""
    cache = backend.cache(backend.config.max_positions, int8=int8)
    if num:
        last = np.array([num - 1], dtype=np.int32)
        tokens = tokens_of(backend, number, num)
        backend.forward([Forward(tokens, causal_layout(0, num), cache, last, Hidden())])
    return cache


def rules_of(number: int, vocabulary: np.ndarray) -> Rules:
    """Rules of draws: every way to cut, with and without bias, bans and a position at which little is allowed."""
    one, two, three, four = vocabulary[[3, 9, 21, 33]].tolist()
    return Rules(
        **SAMPLING[number % len(SAMPLING)],
        logit_bias={one: 1.5, two: -np.inf} if number % 2 else {},
        bans=np.array([[three, 0, 10**9], [four, 2, 70]]),
        rng=Counter(2**63 + number, number % 3),
        purpose=1,
        step=number % 4,
        **({"allowed_at": 67, "allowed": vocabulary[[5, 6, 7]].astype(np.int32)} if number % 3 == 0 else {}),
    )


def make(backend: Backend, number: int, **changes: Any) -> Forward:
    """The forward of a number, with a cache of the backend's, filled. `changes` replace its fields."""
    rng, config = np.random.default_rng(number), backend.config
    past = int(rng.choice(PASTS))
    if config.context == "full":
        num, cache, level = int(rng.integers(3, 20)), None, float(rng.random()) if config.time_input else None
        layout = Layout(np.arange(num), np.full(num, num, dtype=np.int32), 0)
    else:
        cache, level = filled_cache(backend, number, past), None
        if past == 0 and number % 2:
            cache = None
        layout = _verification(past) if number % 6 == 5 else _layout(number // 6 % 4, past, rng)
    num = len(layout.position)
    wanted = np.arange(num, dtype=np.int32)
    ask: Ask = _ask(number, wanted, layout, config.ordinary_ids, rng)
    if isinstance(ask, Hidden | Logits):  # in any order, and some twice
        wanted = rng.integers(0, num, num).astype(np.int32)
    forward = Forward(tokens_of(backend, number + 1000, num), layout, cache, wanted, ask, level)
    return replace(forward, **changes)


def _layout(kind: int, past: int, rng: np.random.Generator) -> Layout:
    num = int(rng.integers(4, 20))
    clean = (num, num // 3, num // 4, num // 2)[kind]
    layout = causal_layout(past, num)
    layout.num_clean = clean
    layout.end[clean:] = past + num
    if kind == 2:  # noisy rows see a run, and some keys behind it
        few = min(past, 3)
        layout.end[clean:], layout.begin = past - few, np.full(num, few, dtype=np.int32)
        layout.begin[:clean] = 0
        mask = rng.random((num, few + num)) < 0.5
        mask[:clean] = False
        layout.mask = (
            mask | (np.arange(few + num) == few + np.arange(num)[:, None]) & (np.arange(num) >= clean)[:, None]
        )
    if kind == 3:  # clean rows are blind to what is cached
        layout.begin = np.where(np.arange(num) < clean, past, 0).astype(np.int32)
    return layout


def _verification(past: int) -> Layout:
    """Three clean rows, and two masked ones behind each of them, which see up to it."""
    place = np.repeat(np.arange(3), 2)
    mask = np.zeros((9, 9), dtype=bool)
    mask[3:] = np.concatenate([np.arange(3) <= place[:, None], place[:, None] == place], axis=1)
    position = np.concatenate([np.arange(past, past + 3), past + 1 + place + np.tile([0, 1], 3)])
    end = np.concatenate([np.arange(past + 1, past + 4), np.full(6, past)]).astype(np.int32)
    return Layout(position, end, 3, None, mask)


def _ask(number: int, wanted: np.ndarray, layout: Layout, vocabulary: np.ndarray, rng: np.random.Generator) -> Ask:
    rules, positions = rules_of(number, vocabulary), layout.position[0] + 1 + np.arange(len(wanted))
    kinds: tuple[Callable[[], Ask], ...] = (
        Hidden,
        Logits,
        lambda: LogProbs(rng.choice(vocabulary, len(wanted))),
        lambda: Draws(rules, positions, entropy=number % 4 == 3, num_best=number % 3),
        lambda: SequentialDraws(rules, positions, 0.05),
        lambda: Cycle(rules, positions[:3], rng.choice(vocabulary, 2), np.array([0, 2, 4, 6], dtype=np.int32), 0.01),
    )
    made = kinds[number % 6]()
    return SequentialDraws(rules, positions, 0.05) if isinstance(made, Cycle) and layout.mask is None else made


def same_bits(one: Answer, other: Answer) -> bool:
    """Whether every number of two answers is the same."""
    pairs = ((getattr(one, f.name), getattr(other, f.name)) for f in fields(Answer))
    return all((x is None and y is None) or np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in pairs)


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of finite numbers, as a share of the largest of `other`; infinite ones are the same."""
    known = np.isfinite(other)
    assert one.shape == other.shape and np.array_equal(np.isfinite(one), known)
    return float(np.abs(one[known] - other[known]).max() / np.abs(other[known]).max()) if known.any() else 0.0


class Expected:
    """The answer to a forward by NumPy, from the reference's hidden states and logits.

    sure   whether every draw would be the same if the logits were changed a little, which another order of sums does
    """

    def __init__(self, reference: Backend, number: int) -> None:
        self.forward, self._reference, self.sure = make(reference, number), reference, True
        ask = self.forward.ask
        self.logits = self._computed(Logits()).logits
        assert self.logits is not None
        if isinstance(ask, Hidden | Logits):
            self.answer = self._computed(ask)
        elif isinstance(ask, LogProbs):
            self.answer = Answer(log_probs=log_softmax(self.logits)[np.arange(len(ask.tokens)), ask.tokens])
        elif isinstance(ask, Draws):
            self.answer = self._draws(self.logits, ask.rules, ask.positions, ask.entropy, ask.num_best)
        else:
            self.answer = self._cycle(ask) if isinstance(ask, Cycle) else self._draw_sequentially(ask)

    def _computed(self, ask: Ask) -> Answer:
        cache = self.forward.cache
        past = 0 if cache is None else cache.length
        (answer,) = self._reference.forward([replace(self.forward, ask=ask)])
        if cache is not None:
            cache.truncate(past)
        return answer

    def _draws(
        self,
        logits: np.ndarray,
        rules: Rules,
        positions: np.ndarray,
        entropy: bool = False,
        num_best: int = 0,
    ) -> Answer:
        answer, shaken = drawn(logits, rules, positions, entropy, num_best), np.random.default_rng(0)
        assert answer.tokens is not None
        for _ in range(4):
            near = logits * (1 + 1e-4 * shaken.standard_normal(logits.shape)).astype(np.float32)
            self.sure &= np.array_equal(drawn(near, rules, positions).tokens, answer.tokens)
        return answer

    def _steps(
        self,
        rules: Rules,
        positions: np.ndarray,
        rows: np.ndarray,
        token: int,
        state: np.ndarray | None,
    ) -> Any:
        """Tokens, probabilities and states over rows, each drawn given the one before it."""
        for place, position in enumerate(positions[: len(rows)]):
            (step,) = self._reference.forward([DraftStep(rows[place : place + 1], token, state)])
            assert step.logits is not None
            made, state = self._draws(step.logits, rules, np.array([position])), step.hidden
            assert made.tokens is not None and made.probabilities is not None
            token = int(made.tokens[0])
            yield token, float(made.probabilities[0]), state

    def _draw_sequentially(self, ask: SequentialDraws) -> Answer:
        rows = self._computed(Hidden()).hidden
        assert rows is not None
        tokens, probabilities = list[int](), list[float]()
        for token, probability, _ in self._steps(ask.rules, ask.positions, rows, 0, None):
            tokens.append(token)
            probabilities.append(probability)
            self.sure &= abs(probability - ask.threshold) > 1e-4
            if len(tokens) > 1 and probability < ask.threshold:
                break
        return Answer(tokens=np.array(tokens), probabilities=np.array(probabilities))

    def _cycle(self, ask: Cycle) -> Answer:
        rows, num = self._computed(Hidden()).hidden, len(ask.draft) + 1
        assert rows is not None and self.logits is not None
        answer = self._draws(self.logits[:num], ask.rules, ask.positions)
        assert answer.tokens is not None
        last = num_agreed(answer.tokens, ask.draft)
        behind, place = rows[num:][ask.groups[last] : ask.groups[last + 1]], int(ask.positions[last]) + 1
        product, draft, acceptance = 1.0, list[int](), list[float]()
        positions, before = place + np.arange(len(behind)), rows[last : last + 1]
        steps = self._steps(ask.rules, positions, behind, int(answer.tokens[last]), before)
        for token, probability, state in steps:
            chance = self._acceptance(state, probability, ask.rules.temperature)
            product *= chance
            self.sure &= abs(product - ask.worth) > 1e-4
            if product < ask.worth:
                break
            draft.append(token)
            acceptance.append(chance)
        return replace(answer, draft=np.array(draft, dtype=np.int64), acceptance=np.array(acceptance))

    def _acceptance(self, state: np.ndarray, probability: float, temperature: float) -> float:
        """By the weights of the draft head, on the state (1, D) divided by its root mean square."""
        head = self._reference.backbone.draft_head
        if head is None or head.confidence is None:
            return acceptance_of(probability, temperature)
        weight, bias = head.confidence.weight.float().numpy(), head.confidence.bias.float().numpy()
        unit = state[0] / np.sqrt((state[0] ** 2).mean())
        cold, warm = weight[:, :-1] @ unit + weight[:, -1] * np.log(probability) + bias
        share = min(temperature, 1.0)
        return float(1 / (1 + np.exp(-((1 - share) * cold + share * warm))))

    def check(self, answer: Answer, limit: float) -> None:
        """The same tokens, where they are sure; numbers within `limit` of the largest. Not the drafts of a draft head,
        which the native backend computes in 8-bit numbers.
        """
        want, free = self.answer, {"best_tokens"}
        if self._reference.backbone.draft_head is not None:
            free |= {"draft", "acceptance"}
        for name in ("hidden", "logits", "log_probs"):
            given, other = getattr(answer, name), getattr(want, name)
            assert (given is None) == (other is None), name
            assert given is None or difference(given, other) <= limit, name
        if not self.sure or want.tokens is None:
            return
        for name in ("tokens", "draft", "best_tokens"):
            given, other = getattr(answer, name), getattr(want, name)
            assert (given is None) == (other is None), name
            assert given is None or name in free or np.array_equal(given, other), name
        for name in ("probabilities", "entropies", "best_probabilities", "acceptance"):
            given, other = getattr(answer, name), getattr(want, name)
            assert (given is None) == (other is None), name
            if name not in free:
                assert given is None or np.abs(given - other).max(initial=0.0) <= 100 * limit, name


def drawn(logits: np.ndarray, rules: Rules, positions: np.ndarray, entropy: bool = False, num_best: int = 0) -> Answer:
    """Draws by `sampling.logits`. InputError where no token is left."""
    params = SamplingParams(rules.temperature, rules.top_p, rules.top_k, rules.logit_bias, rules.min_p)
    own = biased(logits.copy(), params)
    only = () if rules.allowed is None else tuple(rules.allowed.tolist())
    Forbidden(tuple(map(tuple, rules.bans.tolist())), rules.allowed_at, only).apply(positions, own)
    keys = rules.purpose, positions, rules.step
    noise = None if rules.rng is None else rules.rng.exponential(*keys, own.shape[-1])
    made = propose(positions, own, params, noise, entropy=entropy, num_best=num_best)
    best = np.argsort(-own, axis=-1, kind="stable")[:, :num_best] if num_best else None
    return Answer(None, None, None, made.tokens, made.probabilities, made.entropies, best, made.best)


def logits_of(backend: Backend, first: int = 0) -> np.ndarray:
    """Finite logits of all rows of six requests, those from number `first` on."""
    out = []
    for number in range(first, first + 6):
        forward = make(backend, number)
        wanted = np.arange(len(forward.tokens), dtype=np.int32)
        (answer,) = backend.forward([replace(forward, ask=Logits(), wanted=wanted)])
        assert answer.logits is not None
        out.append(answer.logits[np.isfinite(answer.logits)])
    return np.concatenate(out)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """The root mean square of a difference over that of what is wanted."""
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))
