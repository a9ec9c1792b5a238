"""What caches of sliding layers let go of, and that nothing is ever computed from keys that are gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends import needs_compiler
from conftest import MakeModel
from daguerre.engine.engine import Engine
from daguerre.engine.pieces import rows_of
from daguerre.engine.prefixes import PAGE, Prefixes
from daguerre.model import Model
from daguerre.models.backbone_session import BackboneSession
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.native_cache import LayeredNativeCache
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.forward import Forward, Hidden, Logits
from daguerre.models.rows import Tree
from forwards import causal_layout, difference, tokens_of
from models.test_windows import EVERY, GEMMA, WINDOW

pytestmark = needs_compiler
LENGTH = 360
ALL = np.arange(LENGTH)


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Model:
    """Two of three layers slide; a window of 7 in pages of 64."""
    return make_model(max_positions=500, **GEMMA)


@pytest.fixture(scope="module")
def backend(model: Model) -> NativeBackend:
    return NativeBackend(model.backbone)


def forward_of(backend: Any, cache: Any, start: int, num: int) -> Forward:
    """All logits of `num` rows of a fixed text behind its first `start`, which are cached."""
    given, wanted = tokens_of(backend, 3, 400)[start : start + num], np.arange(num, dtype=np.int32)
    return Forward(given, causal_layout(start, num), cache, wanted, Logits())


def logits_of(backend: Any, cache: Any, start: int, num: int) -> np.ndarray:
    (answer,) = backend.forward([forward_of(backend, cache, start, num)])
    assert answer.logits is not None
    return answer.logits


def filled(backend: Any, num: int, piece: int = 50) -> Any:
    """A cache of so many rows, computed piece by piece."""
    cache = backend.cache(500)
    for start in range(0, num, piece):
        logits_of(backend, cache, start, min(piece, num - start))
    return cache


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("facts", [GEMMA, EVERY], ids=["gemma", "every"])
def test_what_no_row_sees_is_let_go_and_no_bit_differs(make_model: MakeModel, facts: Any, int8: bool) -> None:
    backbone = make_model(max_positions=500, **facts).backbone
    native, reference = NativeBackend(backbone), TorchBackend(backbone)
    cache: Any = native.cache(500, int8=int8)
    one = logits_of(native, None if not int8 else native.cache(500, int8=True), 0, LENGTH)
    want = logits_of(reference, reference.cache(500, int8=int8), 0, LENGTH)
    start, size = 0, 0
    for num in (70, 1, 63, 20, 7, 1, 100, 1, 1, 60, 36):
        got = logits_of(native, cache, start, num)
        assert np.array_equal(got, one[start : start + num])
        assert difference(got, want[start : start + num]) < (1e-5 if not int8 else 1e-2)
        seen = max(0, start - PAGE + 1 - WINDOW) // PAGE * PAGE  # by rows behind `start`, and behind a page before it
        assert cache.kept_from == seen and cache.length == start + num
        start, size = start + num, max(size, cache.num_bytes)
    sliding = cache._parts[0]
    pages = [page is not None for page in sliding._pages]
    assert pages == [False] * 3 + [True] * 3 and sliding.num_bytes == sum(sliding._sizes) * 3
    assert all(part.num_bytes == sum(part._sizes) * 6 for number, part in cache._parts.items() if number)
    cache.free()
    assert (cache.length, cache.kept_from, cache.num_bytes) == (0, 0, 0)


def test_what_the_last_forward_added_can_be_taken_back_and_a_page_before_it(backend: NativeBackend) -> None:
    """A draft of 9 that is rejected after any of its tokens, wherever pages and windows end."""
    whole = logits_of(backend, None, 0, LENGTH)
    for start in (63, 64, 70, 134, 135, 191, 198, 250):
        for back in (9, 8, 1, 0, -PAGE):
            cache = filled(backend, start)
            logits_of(backend, cache, start, 9)
            cache.truncate(kept := max(0, start + back))
            assert cache.length == kept
            assert np.array_equal(logits_of(backend, cache, kept, 12), whole[kept : kept + 12]), (start, back)


def test_a_cache_that_goes_back_further_is_empty(backend: NativeBackend) -> None:
    cache, whole = filled(backend, 300), logits_of(backend, None, 0, LENGTH)
    first = cache.kept_from + WINDOW - 1
    assert cache.reaches(first) and not cache.reaches(first - 1)
    cache.truncate(first - 1)
    assert (cache.length, cache.kept_from) == (0, 0)
    assert np.array_equal(logits_of(backend, cache, 0, 80), whole[:80])
    assert {part.length for part in cache._parts.values()} == {80}
    assert TorchBackend(backend.weights.module()).cache(9).reaches(0)


def test_keys_that_are_gone_are_an_error_and_not_read(backend: NativeBackend) -> None:
    cache = filled(backend, 300)
    forward = forward_of(backend, cache, 300, 5)
    forward.layout.num_clean, forward.layout.position = 0, np.arange(100, 105)
    forward.layout.mask, forward.layout.end[:] = np.eye(5, dtype=bool), 100
    with pytest.raises(IndexError, match="let go"):
        backend.forward([forward])
    assert cache.length == 300


def test_requests_of_a_batch_have_let_go_of_different_rows(backend: NativeBackend) -> None:
    lengths = (0, 10, 64, 150, 199, 256, 340)
    whole, caches = logits_of(backend, None, 0, LENGTH), [filled(backend, num) for num in lengths]
    assert len({cache.kept_from for cache in caches}) > 3
    for step in range(3):
        at = [num + 6 * step for num in lengths]
        answers = backend.forward([forward_of(backend, *one, 6) for one in zip(caches, at, strict=True)])
        for answer, start in zip(answers, at, strict=True):
            assert answer.logits is not None and np.array_equal(answer.logits, whole[start : start + 6])


def test_a_session_asks_again_about_any_part_of_its_text(model: Model, backend: NativeBackend) -> None:
    """Also behind a beginning whose keys are gone while the rest stays, as decisions do."""
    given, tree = tokens_of(backend, 3, 400), Tree.of([[305, 306, 307], [305, 306, 309, 309], [308]])[0]
    session = BackboneSession(backend.config, backend.cache(500))

    def answer(asking: Any) -> Any:
        forwards = next(asking)
        while True:
            try:
                forwards = asking.send(backend.forward(forwards))
            except StopIteration as done:
                return done.value

    wanted = np.arange(len(tree.tokens))
    for num in (300, 301, 302, 200, 302, 80, 290, 70):
        fresh = BackboneSession(backend.config, None)
        for name in ("tree_log_probs", "tree_logits"):
            got, want = (answer(getattr(one, name)(given[:num], tree, wanted)) for one in (session, fresh))
            if name == "tree_logits":
                got, want = got.logits, want.logits
            assert np.isfinite(want).any() and np.array_equal(got, want), (num, name)


def stored_of(backend: NativeBackend, prefixes: Prefixes, num: int, piece: int = 50) -> Any:
    """Computes a text of so many rows behind what is stored of it, and stores it; returns the cache."""
    cache = backend.cache(500)
    rows = rows_of(forward_of(backend, cache, 0, num), num)
    keys, found = prefixes.fill(cache, rows, "")
    for start in range(cache.length, num, piece):
        logits_of(backend, cache, start, min(piece, num - start))
    assert cache.length == num
    prefixes.release([*keys, *prefixes.store(cache, rows, "", 100)])
    assert np.array_equal(logits_of(backend, cache, num, 5), logits_of(backend, None, 0, num + 5)[num:])
    return found


def test_a_stored_prefix_is_offered_only_where_the_window_before_its_end_is_there(backend: NativeBackend) -> None:
    prefixes = Prefixes()
    assert stored_of(backend, prefixes, 330) == 0
    assert len(prefixes) == 6  # the first three without their sliding layers, and the rows after 320
    found = [stored_of(backend, prefixes, num) for num in (330, 150, 150, 340, 200)]
    prefixes.drop(3)
    found.append(stored_of(backend, prefixes, 340))
    assert found == [
        *(328, 0),  # all but the last two; rows behind 128 and 144 see sliding keys that are gone
        *(144, 328, 200),  # but now they were stored again; and the last ends within a page that has them
        256,  # the ends go first, and with them what the rest is good for
    ]


def test_a_short_prefix_is_found_also_after_long_texts_that_begin_with_it(backend: NativeBackend) -> None:
    """The first page of these has no sliding layers any more."""
    prefixes = Prefixes()
    assert [stored_of(backend, prefixes, num) for num in (40, 330, 40)] == [0, 40, 40]


def test_requests_of_an_engine_reuse_what_is_there_and_their_texts_are_those_alone(model: Model) -> None:
    lines = "".join(f"x{number} = {number * 7 % 13}\n" for number in range(60))
    ids = model.tokenizer.encode(lines)[:300]
    other = model.tokenizer.encode("import os\n" * 40)
    prompts = [ids, [*ids, *other[:40]], [*ids[:150], *other[:120]], ids[:150], [*ids[:150], *other[:20]], ids[:280]]
    how: dict[str, Any] = {"mode": "ar", "heal": False, "stop_loops": False, "min_tokens": 20}
    alone = [[token.id for token in model.generate(one, 20, cache="none", **how).tokens] for one in prompts]
    found = []
    with Engine(model, max_rows=64) as engine:
        for one, want in zip(prompts, alone, strict=True):
            job = engine.generate(one, 20, **how)
            assert [token.id for token in job.result(60).tokens] == want
            found.append(job.cached_tokens)
        together = [engine.generate(one, 20, **how) for one in prompts]
        assert [[token.id for token in job.result(60).tokens] for job in together] == alone
    assert found == [0, 296, 144, 144, 168, 280]


def test_speculation_that_is_wrong_again_and_again_writes_the_same_text(model: Model) -> None:
    """Drafts that are taken back over the ends of pages and windows, at lengths from 110 on."""
    prompt = model.tokenizer.encode("x = 1\ny = 2\nfor x in range(10):\n    x = x + y\n" * 5)[:110]
    how: dict[str, Any] = {"heal": False, "stop_loops": False, "min_tokens": 120}
    plain = model.generate(prompt, 120, mode="ar", cache="none", **how)
    want = [token.id for token in plain.tokens]
    wrong = [token if number % 11 else (token + 1) % 500 + 300 for number, token in enumerate(want)]
    for more in ({"mode": "ar"}, {"mode": "speculative"}, {"mode": "ar", "draft": model.tokenizer.decode(wrong)}):
        result = model.generate(prompt, 120, **how, **more)
        assert [token.id for token in result.tokens] == want, more
    assert isinstance(model.denoiser.backend.cache(9), LayeredNativeCache)


def test_a_filled_cache_of_a_long_text_is_that_of_its_windows(make_model: MakeModel) -> None:
    """8,000 rows in pieces of 500, five layers of six sliding by 512, as Gemma 3's: bytes against all of them."""
    from daguerre.models.core.config import Windows

    windows = Windows(size=512, layers=tuple(layer for layer in range(12) if layer % 6 != 5))
    facts = {
        **GEMMA,
        "windows": windows,
        "num_layers": 12,
        "width": 16,
        "num_heads": 1,
        "num_kv_heads": 1,
        "mlp_width": 16,
    }
    backend = NativeBackend(make_model(max_positions=8064, **facts).backbone)
    tokens, cache = tokens_of(backend, 3, 8000), backend.cache(8064)
    for start in range(0, 8000, 500):
        layout, last = causal_layout(start, 500), np.array([499], np.int32)
        backend.forward([Forward(tokens[start : start + 500], layout, cache, last, Hidden())])
    sliding, others = cache._parts.values()  # type: ignore[attr-defined]
    assert others.num_bytes == sum(others._sizes) * 125
    assert sliding.num_bytes == sum(sliding._sizes) * 17
