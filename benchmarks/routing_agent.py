"""A simulated agent: ten kinds of steps over real HTTP, backends that slow down, refuse and die unannounced.

    pip install 'daguerre[route,bench]'; pip install 'litellm[proxy]' in an environment of its own
    python benchmarks/routing_agent.py --litellm ENVIRONMENT/bin/litellm

`routing_world` says what happens; each policy has all of it, with new processes, one after the other:

    daguerre, steps named       `daguerre route`, each request with its step in the header x-route-step
    daguerre, steps classified  the same without the header
    all-strong, all-weak        one backend has all requests, without a proxy
    litellm latency, cost       LiteLLM's proxy with its latency-based or cost-based routing and two retries; a group of
                                models for each step, of the backends that are good enough, so it knows the quality, too
    ... one pool                the same with one group of all backends

A request met its promise where a complete answer of status 200 came within the step's SLO, counted from the time at
which the request was due; the share is of the requests for which the oracle found a backend that is good enough and in
time. Cost is of every request that a backend took, repeated and abandoned ones in full, over the oracle's cost for the
requests that it could serve. A request is below its floor where the backend that answered does not reach the quality of
its step though one that does could have answered in time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from routing_backends import (
    Asked,
    BackendPlan,
    HttpAnswer,
    ServerProcess,
    answer,
    backend,
    events,
    free_port,
    litellm,
    litellm_model,
    open_load,
    quantiles,
    router,
    serve,
    started,
)
from routing_world import BACKENDS, COMPRESSED, KINDS, RATE, STEPS, STRONG, WEAK, DrawnRequest, World, recorded, slo_of

from daguerre.evals.machine import machine_facts
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.view.charts import COLORS, GRAY, MARKERS, legend_of_figure, new_figure

OURS = ("daguerre, steps named", "daguerre, steps classified")
DIRECT = {"all-strong": STRONG, "all-weak": WEAK}
STRATEGIES = {"latency": "latency-based-routing", "cost": "cost-based-routing"}
PIECES = 8
HALF_LIFE, HEDGED = 60.0, 0.1
"""Of the router's file: seconds of the world (the default of 60), and the most requests that are asked twice."""
LEAST_SHARE, MOST_COST = 0.99, 1.1
"""The targets of the router: requests that met their promise, and cost beside the oracle's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", help="LiteLLM's program; without it, the other policies alone")
    parser.add_argument("--requests", type=int, default=1800, help="of each policy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", action="append", help="only these")
    parser.add_argument("--keep", type=Path, help="a folder for logs of decisions and all outcomes")
    parser.add_argument("--short", action="store_true", help="90 requests, without LiteLLM")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/routing-agent"))
    parser.add_argument("--backend", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.backend is not None:
        simulate(given.backend)
        return
    if given.short:
        given.requests, given.litellm = 90, None
    world, found = World(given.requests, given.seed), dict[str, list[dict[str, Any]]]()
    for policy in given.policy or policies(given.litellm is not None):
        with tempfile.TemporaryDirectory() as folder:
            found[policy] = run(policy, world, given, given.keep or Path(folder))
        if given.keep:
            (given.keep / f"{policy}.json").write_text(json.dumps(found[policy]))
        print(policy, json.dumps(scores(found[policy])), flush=True)
    report(given, world, found)


def policies(others: bool) -> list[str]:
    """All of them, in their order."""
    theirs = [f"litellm {name}{pool}" for pool in ("", ", one pool") for name in STRATEGIES]
    return [*OURS, *DIRECT, *(theirs if others else [])]


def simulate(said: dict[str, Any]) -> None:
    """A backend of the world. It notes each request that it takes."""
    world, name = World(said["num"], said["seed"]), said["name"]
    to = os.open(said["record"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def plan(body: dict[str, Any]) -> BackendPlan:
        one = world.requests[int(body["seed"])]
        if world.within(one.at, BACKENDS[name].refusing):
            return BackendPlan(status=503, pieces=[b'{"error":{"message":"overloaded","type":"server_error"}}'])
        os.write(to, f"{one.number}\n".encode())
        first, end = world.took(one, name)
        words = [f"word{number} " for number in range(PIECES)]
        if one.stream:
            pieces = events(words, one.into, one.out)
            return BackendPlan(delay=first, pieces=pieces, gap=(end - first) / (len(pieces) - 1), stream=True)
        return BackendPlan(delay=end, pieces=[answer("".join(words), one.into, one.out)])

    serve(plan, said["port"])


def run(policy: str, world: World, given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """What a policy made of each request of the world."""
    backends = dict[str, ServerProcess]()
    records = {name: folder / f"{name}.taken" for name in BACKENDS}
    for name in BACKENDS:
        records[name].unlink(missing_ok=True)
        more = {"num": world.num, "seed": world.seed, "record": str(records[name])}
        backends[name] = backend(__file__, name, folder, **more)
    front = _front(policy, given, backends, folder)
    with started(*backends.values(), *([front] if front else [])):
        port = front.port if front else backends[DIRECT[policy]].port
        answers = asyncio.run(drive(policy, world, port, backends))
    taken = defaultdict[int, list[str]](list)
    for name, record in records.items():
        for line in record.read_text().splitlines():
            taken[int(line)].append(name)
    return [outcome(world, one, *answers[one.number], taken[one.number]) for one in world.requests]


def _front(
    policy: str, given: argparse.Namespace, backends: dict[str, ServerProcess], folder: Path
) -> ServerProcess | None:
    """The proxy of a policy."""
    if policy in DIRECT:
        return None
    if policy in OURS:
        port, config = free_port(), folder / "route.toml"
        log = folder / f"{policy.replace(', ', '-').replace(' ', '-')}.jsonl"
        config.write_text(our_config(port, backends, log))
        return router(config, port, folder)
    return litellm(given.litellm, litellm_config(policy, backends), folder)


def our_config(port: int, backends: dict[str, ServerProcess], log: Path) -> str:
    """The router's file: what the world says of backends at the start, and nothing of what will go wrong."""
    lines = ["[server]", f"port = {port}", f'log = "{log}"']
    lines = ['overrides = ["slo_ms", "tags", "step"]', *lines]
    for name, it in BACKENDS.items():
        high = quantiles([end for _, end in recorded(name)], 0.95)[0] / COMPRESSED
        quality = ", ".join(f"{step} = {share}" for step, share in zip(STEPS, it.quality, strict=True))
        lines += ["[[backends]]", f'name = "{name}"', f'url = "http://127.0.0.1:{backends[name].port}/v1"']
        lines += [f'model = "{name}"', "timeout = 20", f"quality = {{ {quality} }}"]
        lines += [f"price = {{ input = {it.price[0]}, output = {it.price[1]} }}"]
        first, token = it.first / COMPRESSED, it.token / COMPRESSED
        lines += [f"latency = {{ first = {first}, first_p95 = {it.first * high:.2f}, token = {token:.4f}"]
        lines[-1] += f", token_p95 = {it.token * high:.4f} }}"
    lines += ["[measuring]", f"half_life = {HALF_LIFE / COMPRESSED}", "[hedge]", f"share = {HEDGED}"]
    for step, kind in KINDS.items():
        lines += [f"[steps.{step}]", f"quality = {kind.floor}", f"slo_ms = {slo_of(step) / COMPRESSED}"]
        lines += [f"tokens = {kind.tokens}"]
    return "\n".join(lines) + "\n"


def litellm_config(policy: str, backends: dict[str, ServerProcess]) -> dict[str, Any]:
    """LiteLLM's file: a group of models for each step, or one."""
    pool, models = policy.endswith("one pool"), list[dict[str, Any]]()
    for place, step in enumerate(STEPS):
        for name, it in BACKENDS.items():
            if place if pool else it.quality[place] < KINDS[step].floor:
                continue
            group = "auto" if pool else step
            models.append(litellm_model(group, name, backends[name].port, it.price, timeout=20))
    strategy = STRATEGIES[policy.split()[1].strip(",")]
    settings = {"routing_strategy": strategy, "num_retries": 2, "cooldown_time": 2, "allowed_fails": 3}
    return {"model_list": models, "router_settings": settings, "litellm_settings": {"telemetry": False}}


async def drive(
    policy: str, world: World, port: int, backends: dict[str, ServerProcess]
) -> dict[int, tuple[float, HttpAnswer]]:
    """When each request was due, and its answer; backends are killed and started again meanwhile."""
    gc.disable()
    start = time.perf_counter() + 0.5
    trouble = [asyncio.create_task(_die(world, start, name, backends[name])) for name in BACKENDS]
    found = await open_load(port, (_asked(policy, one) for one in world.requests), start, 30)
    for task in trouble:
        task.cancel()
    gc.enable()
    return {one.number: answered for one, answered in zip(world.requests, found, strict=True)}


def _asked(policy: str, one: DrawnRequest) -> Asked:
    """A request as a policy's client sends it."""
    body, headers = dict(one.body), {"x-request-id": f"agent-{one.number}"}
    if policy == OURS[0]:
        headers["x-route-step"] = one.step
    if policy.startswith("litellm") and not policy.endswith("one pool"):
        body["model"] = one.step
    return one.at, json.dumps(body).encode(), headers


async def _die(world: World, start: float, name: str, process: ServerProcess) -> None:
    """Kill a backend and start it again when the world says so."""
    begin, end = (share * world.seconds for share in BACKENDS[name].dead)
    if begin > world.seconds:
        return
    await asyncio.sleep(start + begin - time.perf_counter())
    process.kill()
    await asyncio.sleep(start + end - time.perf_counter())
    await asyncio.to_thread(process.start)


def outcome(world: World, one: DrawnRequest, due: float, got: HttpAnswer, taken: list[str]) -> dict[str, Any]:
    """What became of a request."""
    good = got.status == 200 and not got.broken
    if good and one.stream:
        good = got.body.rstrip().endswith(b"data: [DONE]")
    named = got.headers.get("x-route-backend") or (taken[-1] if taken else None)
    able = world.able(one)
    return {
        "number": one.number,
        "at": one.at,
        "step": one.step,
        "stream": one.stream,
        "backend": named if good else None,
        "status": got.status,
        "seconds": got.end - due,
        "late": not good or got.end - due > one.slo,
        "below": good and bool(able) and named is not None and not world.good(one, named),
        "cost": sum(world.cost(one, name) for name in taken),
        "taken": len(taken),
        "first": taken[0] if taken else None,
        "oracle": able[0] if able else None,
        "choice": len(able) > 1,
        "oracle_cost": world.cost(one, able[0]) if able else None,
        "named_step": got.headers.get("x-route-step"),
    }


def scores(outcomes: list[dict[str, Any]]) -> dict[str, float]:
    """The numbers of a policy."""
    could = [one for one in outcomes if one["oracle"]]
    served = [one["seconds"] for one in outcomes if one["backend"]]
    quality = [BACKENDS[one["backend"]].quality[STEPS.index(one["step"])] if one["backend"] else 0 for one in outcomes]
    chosen = [one for one in could if one["choice"]]
    median, high = quantiles([1000 * COMPRESSED * one for one in served], 0.5, 0.95)
    return {
        "could": len(could),
        "met": sum(not one["late"] for one in could) / len(could),
        "cost": sum(one["cost"] for one in could) / sum(one["oracle_cost"] for one in could),
        "cost_of_choice": sum(one["cost"] for one in chosen) / sum(one["oracle_cost"] for one in chosen),
        "below": sum(one["below"] for one in could) / len(could),
        "quality": sum(quality) / len(quality),
        "failed": sum(one["backend"] is None for one in outcomes) / len(outcomes),
        "repeated": sum(max(0, one["taken"] - 1) for one in outcomes) / len(outcomes),
        "p50": median,
        "p95": high,
    }


def page(world: World, found: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown."""
    header = "policy, in time, cost / oracle, where there was a choice, below the floor, quality, failed".split(", ")
    forms = {"met": ".2%", "cost": ".3f", "cost_of_choice": ".3f", "below": ".1%", "quality": ".3f"}
    forms |= {"failed": ".2%", "repeated": ".2%", "p50": ".0f", "p95": ".0f"}
    scored = {policy: scores(outcomes) for policy, outcomes in found.items()}
    rows = [[policy, *(f"{has[name]:{form}}" for name, form in forms.items())] for policy, has in scored.items()]
    could = sum(bool(world.able(one)) for one in world.requests)
    return (
        f"{world.num} requests, of which the oracle serves {could} well enough and in time; {RATE:g} a second, time "
        f"compressed {COMPRESSED:g} times, milliseconds of the world; seed {world.seed}.\n\n"
        f"{table([*header, 'taken twice', 'p50 ms', 'p95 ms'], rows)}\n"
    )


def report(given: argparse.Namespace, world: World, found: dict[str, list[dict[str, Any]]]) -> None:
    """Write the numbers, the table, and the picture."""
    value = {
        "machine": machine_facts(),
        "requests": world.num,
        "seed": world.seed,
        "compressed": COMPRESSED,
        "rate": RATE,
        "targets": {"met": LEAST_SHARE, "cost": MOST_COST},
        "scores": {policy: scores(outcomes) for policy, outcomes in found.items()},
        "late_by_step": {policy: _by_step(outcomes) for policy, outcomes in found.items()},
        "backends": {
            policy: dict(Counter(str(one["backend"]) for one in outcomes)) for policy, outcomes in found.items()
        },
    }
    publish(given.out, value, page(world, found), picture(world, found))


def _by_step(outcomes: list[dict[str, Any]]) -> dict[str, int]:
    """How many requests of each step were late though they need not have been."""
    return dict(Counter(one["step"] for one in outcomes if one["late"] and one["oracle"]))


ROWS = 8
"""Lines of words over the bands of trouble, one below the other."""


def picture(world: World, found: dict[str, list[dict[str, Any]]]) -> Any:
    """Promises met against cost, and promises broken over the run."""
    figure = new_figure(11, 4.2)
    left, right = figure.subplots(1, 2)
    for place, (policy, outcomes) in enumerate(found.items()):
        color, again = COLORS[place % len(COLORS)], place >= len(COLORS)  # a color twice: hollow, and dashed
        marker, fill, line = MARKERS[place % len(MARKERS)], "white" if again else color, "--" if again else "-"
        has = scores(outcomes)
        left.plot(has["cost"], 100 * has["met"], marker, color=color, markerfacecolor=fill, markersize=9, label=policy)
        late, total = [0], 0
        for one in outcomes:
            total += bool(one["late"] and one["oracle"])
            late.append(total)
        right.plot([0, *(one["at"] * COMPRESSED for one in outcomes)], late, line, color=color, linewidth=1.6)
    left.axhline(100 * LEAST_SHARE, color=GRAY, linewidth=0.8, linestyle="--")
    left.axvline(MOST_COST, color=GRAY, linewidth=0.8, linestyle="--")
    left.set_xscale("log")
    left.xaxis.set_major_formatter("{x:g}")
    left.xaxis.set_minor_formatter("")
    left.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["0.25", "0.5", "1", "2", "4", "8"])
    left.set_xlabel("cost beside the oracle's")
    left.set_title("requests in time, percent", loc="left", fontsize=11)
    troubles = [
        (*shares, f"{name} {sign}")
        for name, it in BACKENDS.items()
        for shares, sign in ((it.slow, "slow"), (it.refusing, "refuses"), (it.dead, "dead"))
        if shares[0] < 1
    ]
    for place, (begin, end, said) in enumerate(sorted(troubles)):
        at = world.seconds * COMPRESSED * begin
        right.axvspan(at, world.seconds * COMPRESSED * end, color=GRAY, alpha=0.12, linewidth=0)
        right.text(
            at, 1.0 - 0.035 * (place % ROWS), said, fontsize=6.5, va="top", transform=right.get_xaxis_transform()
        )
    right.set_yscale("symlog", linthresh=10)
    right.set_ylim(0, 10 * max(line.get_ydata()[-1] for line in right.lines))  # room for words above the lines
    right.yaxis.set_major_formatter("{x:g}")
    right.set_xlabel("seconds of the world")
    right.set_title("requests late that need not have been, so far", loc="left", fontsize=11, pad=10)
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    legend_of_figure(figure, left, 4, 8)
    return figure


if __name__ == "__main__":
    main()
