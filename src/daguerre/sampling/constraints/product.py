"""The intersection of two languages over the same tokens.

Letters: Q states, C classes, E edges.
"""

from __future__ import annotations

import numpy as np

from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.indices import DEAD, NONE, ranges
from daguerre.sampling.constraints.tokens import TokenAutomaton, useful


def table(automaton: TokenAutomaton) -> np.ndarray:
    """The transitions (Q, C) of an automaton, DEAD where there is none."""
    delta_QC = np.full((automaton.num_states, automaton.num_classes), DEAD, dtype=np.int64)
    edges = automaton.edges
    delta_QC[edges.src, edges.cls] = edges.dst
    return delta_QC


def intersect_tokens(a: TokenAutomaton, b: TokenAutomaton, budget: Budget) -> TokenAutomaton:
    """The texts of both; `b`, of which a table of states and classes is made, is the small one. InputError when there
    are none, or the budget is spent.

    Pairs of states are followed level by level. A class of the product is a pair of classes, so each edge of `a` is
    written out first, once for every class of `b` that has tokens in common with its class.
    """
    both = (a.class_of_token != NONE) & (b.class_of_token != NONE)
    codes = a.class_of_token[both].astype(np.int64) * b.num_classes + b.class_of_token[both]
    joint, number_of = np.unique(codes, return_inverse=True)
    class_of_token = np.full(a.vocab_size, NONE, dtype=np.int32)
    class_of_token[both] = number_of
    meets = np.searchsorted(joint // max(1, b.num_classes), np.arange(a.num_classes + 1))
    budget.hold(8 * b.num_states * b.num_classes)
    edges, delta_QC = a.edges, table(b)
    counts = meets[edges.cls + 1] - meets[edges.cls]
    budget.edges(int(counts.sum()))
    joint_E, dst_E = ranges(meets[edges.cls], meets[edges.cls + 1]), np.repeat(edges.dst, counts)
    first = np.concatenate([[0], np.cumsum(counts)])[edges.first]

    number = {0: 0}
    pairs, found = [np.zeros(1, dtype=np.int64)], []
    num_edges = 0
    while len(pairs[-1]):
        left, right = np.divmod(pairs[-1], b.num_states)
        at = ranges(first[left], first[left + 1])
        source = np.repeat(np.arange(len(left)), first[left + 1] - first[left])
        to_b = delta_QC[right[source], joint[joint_E[at]] % max(1, b.num_classes)]
        live = to_b != DEAD
        codes, where = np.unique(dst_E[at][live] * np.int64(b.num_states) + to_b[live], return_inverse=True)
        begun = len(number) - len(left)
        known = np.array([number.setdefault(code, len(number)) for code in codes.tolist()], dtype=np.int64)
        found.append((begun + source[live], known[where], joint_E[at][live]))
        pairs.append(codes[known >= begun + len(left)])
        num_edges += len(where)
        budget.states(len(number))
        budget.edges(num_edges)
    left, right = np.divmod(np.concatenate(pairs), b.num_states)
    src, dst, cls = (np.concatenate(part).astype(np.int32) for part in zip(*found, strict=True))
    accept = a.accept[left] & b.accept[right]
    return useful(accept, class_of_token, (src, dst, cls), a.ignored + b.ignored)
