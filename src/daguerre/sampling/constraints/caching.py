"""A cache of automata and of what is computed from them, that is limited by bytes and not by their number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def cached(
    max_bytes: int, size: Callable[[T], int], place: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: what the function returned is kept by its positional arguments, the ones used last, as long as all
    together have at most `max_bytes`; `size`: the bytes of one. Errors are not kept. Safe to use from any thread.

    place   where the function is called; who had to wait for it looks again at what is kept
    """

    def of(function: Callable[P, T]) -> Callable[P, T]:
        held, lock, total = OrderedDict[tuple[Hashable, ...], T](), Lock(), 0

        @wraps(function)
        def found(*args: P.args, **kwargs: P.kwargs) -> T:
            assert not kwargs
            if (kept := look(args)) is not None:
                return kept
            with place():
                kept = look(args)
                return keep(args, function(*args, **kwargs)) if kept is None else kept

        def look(args: tuple[Any, ...]) -> T | None:
            with lock:
                if args in held:
                    held.move_to_end(args)
                return held.get(args)

        def keep(args: tuple[Any, ...], made: T) -> T:
            nonlocal total
            with lock:
                if args not in held:
                    held[args], total = made, total + size(made)
                while total > max_bytes and held:
                    total -= size(held.popitem(last=False)[1])
            return made

        def clear() -> None:
            nonlocal total
            with lock:
                held.clear()
                total = 0

        found.cache_clear = clear  # type: ignore[attr-defined]
        return found

    return of
