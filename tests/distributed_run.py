"""One process of several that train together: `torchrun distributed_run.py SETTINGS.json`, with the keys of `main`.
`together` starts them without torchrun, from a process that has imported PyTorch, in a fifth of the time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch


def main(settings: dict[str, Any]) -> None:
    """Train. "answers": on a file of them in place of a corpus; "kill": after that step the last process is killed, as
    by a full memory; "stop": it stops there.
    """
    from daguerre.train.recipe import recipe_from_dict
    from daguerre.train.run import DATA, CopiedAnswers
    from daguerre.train.trainer import Trainer

    torch.set_num_threads(1)
    leave_out(pytest.MonkeyPatch())
    out, rank = Path(settings["out"]), int(os.environ.get("RANK", "0"))
    path, recipe = Path(settings["corpus"]), recipe_from_dict(settings["recipe"])
    made = Trainer(
        recipe,
        out,
        CopiedAnswers([path], out / DATA, recipe.stages[0].length, 0.1) if settings.get("answers") else path,
        start_from=settings.get("start"),
        resume=settings.get("resume", False),
        quiet=True,
    )
    after = made._after_step
    if settings.get("stop"):

        def stopped() -> None:
            after()
            made.stop_asked = made.progress.step >= settings["stop"]

        made._after_step = stopped  # type: ignore[method-assign]
    if settings.get("kill"):

        def killed() -> None:
            after()
            if made.progress.step == settings["kill"] and rank == int(os.environ["WORLD_SIZE"]) - 1:
                os.kill(os.getpid(), signal.SIGKILL)

        made._after_step = killed  # type: ignore[method-assign]
    losses: list[float] = []
    told = made.reporter.step

    def noted(row: dict[str, Any], share: float) -> None:
        losses.append(row["loss"])
        (made.devices.folder(out) / "losses.json").write_text(json.dumps(losses))
        told(row, share)

    made.reporter.step = noted  # type: ignore[method-assign]
    made.run()


def leave_out(patch: pytest.MonkeyPatch) -> None:
    """Runs draw no pictures, write nothing for TensorBoard, and are measured on few held-out windows."""
    from daguerre.train import evaluation, report

    patch.setattr(report, "draw_curves", lambda run: run)
    patch.setattr(report, "_tensorboard", lambda *rest: None)
    patch.setattr(evaluation, "PROMPTS", 4)
    patch.setattr(evaluation, "VAL_MICRO_BATCHES", 2)


def processes() -> Any:
    """multiprocessing, whose processes begin as copies of one that has imported what trains."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.tensor", "daguerre.train.trainer"])
    return context


def preload(patch: pytest.MonkeyPatch) -> None:
    """Processes that would be spawned, which takes seconds each, begin as copies of one that has imported PyTorch."""
    made = processes()

    def get_context(method: str) -> Any:
        assert method == "spawn"
        return made

    patch.setattr(multiprocessing, "get_context", get_context)


def together(num: int, run: Callable[..., None], *args: Any) -> None:
    """Call a function in `num` processes, with the environment that torchrun gives them."""
    context = processes()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [context.Process(target=_one, args=(rank, num, port, run, args)) for rank in range(num)]
    for each in started:
        each.start()
    for each in started:
        each.join(240)
    codes = [each.exitcode for each in started]
    for each in started:
        each.kill()
    assert codes == [0] * num, codes


def _one(rank: int, processes: int, port: int, run: Callable[..., None], args: tuple[Any, ...]) -> None:
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ |= {name: str(value) for name, value in values.items()}
    run(*args)


def settings_of(recipe: Any, out: Path, corpus: Path, **more: Any) -> dict[str, Any]:
    return {"recipe": asdict(replace(recipe)), "out": str(out), "corpus": str(corpus), **more}


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
