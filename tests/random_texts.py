"""Random texts of an automaton."""

from __future__ import annotations

import random
from collections.abc import Iterator

from daguerre.sampling.constraints.dfa import Dfa


def random_texts(dfa: Dfa, count: int) -> Iterator[str]:
    """Texts of the language: random walks that turn to the nearest end when they get long."""
    rng, sets, table = random.Random(0), {}, dfa.table
    distance = {state: 0 for state in range(len(dfa)) if table.accept[state]}
    while len(distance) < len(dfa):
        for state in set(range(len(dfa))) - distance.keys():
            ends = [distance[target] for _, target in table.arcs[state] if target in distance]
            distance |= {state: 1 + min(ends)} if ends else {}
    for _ in range(count):
        state, text = 0, bytearray()
        while not (table.accept[state] and (len(text) > 40 or not table.arcs[state] or rng.random() < 0.3)):
            arcs = table.arcs[state]
            if len(text) > 40:
                arcs = [min(arcs, key=lambda arc: distance[arc[1]])]
            chosen, state = rng.choice(arcs)
            if chosen not in sets:
                sets[chosen] = [byte for byte in range(256) if chosen >> byte & 1]
            text.append(rng.choice(sets[chosen]))
        yield text.decode()
