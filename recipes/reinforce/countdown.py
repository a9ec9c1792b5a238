"""Write tasks of Countdown: `python recipes/reinforce/countdown.py --out DIR`.

    DIR/held.jsonl    {"prompt": "3 5 7=22:", "completion": "3*5+7"}: never trained on
    DIR/train.jsonl   the same of other tasks
    DIR/few.jsonl     the first of these, whose completions a model may see
    DIR/orders.jsonl  the prompts of train.jsonl with their numbers in every order

Three numbers of 1 to 9 and a target of 1 to 99; the answer uses each number once. A task is held out with all orders of
its numbers. An answer is right if it is such an expression, whichever was written here.
"""

from __future__ import annotations

import argparse
import random
from itertools import combinations_with_replacement, permutations, product
from pathlib import Path

from daguerre.evals.results import write_lines

HELD, TRAIN, FEW, ORDERS = "held.jsonl", "train.jsonl", "few.jsonl", "orders.jsonl"
FORMS = ("{a}{o}{b}{p}{c}", "({a}{o}{b}){p}{c}", "{a}{o}({b}{p}{c})")
Task = tuple[tuple[int, ...], int]


def tasks() -> dict[Task, list[str]]:
    """All tasks (sorted numbers, target), each with its answers."""
    found: dict[Task, list[str]] = {}
    for numbers in combinations_with_replacement(range(1, 10), 3):
        for (a, b, c), o, p, form in product(sorted(set(permutations(numbers))), "+-*", "+-*", FORMS):
            answer = form.format(a=a, b=b, c=c, o=o, p=p)
            if 1 <= (value := eval(answer)) <= 99:
                found.setdefault((numbers, value), []).append(answer)
    return found


def rows(chosen: list[Task], answers: dict[Task, list[str]], rng: random.Random) -> list[dict[str, str]]:
    """Tasks as prompts, their numbers in random order, each with one of the shortest answers."""
    out = []
    for numbers, target in chosen:
        shortest = min(map(len, answers[numbers, target]))
        answer = rng.choice([each for each in answers[numbers, target] if len(each) == shortest])
        shown = " ".join(map(str, rng.sample(numbers, len(numbers))))
        out.append({"prompt": f"{shown}={target}:", "completion": answer})
    return out


def in_every_order(chosen: list[Task]) -> list[dict[str, str]]:
    """Prompts of tasks."""
    return [
        {"prompt": f"{' '.join(map(str, shown))}={target}:"}
        for numbers, target in chosen
        for shown in sorted(set(permutations(numbers)))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--held", type=int, default=500, help="tasks that are held out (%(default)s)")
    parser.add_argument("--few", type=int, default=400, help="tasks whose answers a model may see (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, answers = random.Random(options.seed), tasks()
    order = rng.sample(sorted(answers), len(answers))
    held, train = rows(order[: options.held], answers, rng), rows(order[options.held :], answers, rng)
    options.out.mkdir(parents=True, exist_ok=True)
    orders = in_every_order(order[options.held :])
    rng.shuffle(orders)
    for name, made in ((HELD, held), (TRAIN, train), (FEW, train[: options.few]), (ORDERS, orders)):
        write_lines(options.out / name, made)
    print(f"{len(train):,} tasks to train on and {len(held):,} held out in {options.out}")


if __name__ == "__main__":
    main()
