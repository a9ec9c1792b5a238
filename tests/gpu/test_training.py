"""Every kind of training on a device: its losses beside those of the CPU, and a run that is stopped and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from answers import some_pairs, write_rows
from conftest import tiny_config
from daguerre.model import Model, load
from daguerre.models.core.config import Experts
from daguerre.models.loading import save_model
from daguerre.train import run
from daguerre.train.trainer import Trainer
from distributed_run import leave_out
from preferences import some_preferences
from train.conftest import corpus  # noqa: F401
from training_runs import rows

pytestmark = pytest.mark.gpu
STEPS = 6
COMMON = (f"steps={STEPS}", "minutes=0", "checkpoint_steps=2", "stages.0.length=64", "stages.0.sequences=4")
COMMON += ("stages.0.micro_batches=1", "optim.warmup=0", "optim.decay=0")
FULL: dict[str, Any] = {"context": "full", "shift": False}
BLOCK: dict[str, Any] = {"context": "block", "shift": False, "block_size": 8}
UNIFORM: dict[str, Any] = {**FULL, "process": "uniform", "mask_id": None, "null_id": None, "time_input": True}
EXPERTS: dict[str, Any] = {"experts": Experts(num=6, per_token=2, width=24, shared_width=16)}
REWARD = "def short(prompt, answer):\n    return -len(answer)\n"
ROLLOUTS = ("stages.0.sequences=8", "reinforce.group=4", "reinforce.length=5", "stages.0.length=32")


@dataclass(frozen=True)
class Kind:
    """A kind of training: a recipe with changes, for a model of these facts, on data of a kind; `near`: how far losses
    may be from the CPU's in float32, as a share of its largest; None where what is learned from is drawn on the device.
    """

    recipe: str
    data: str = "corpus"
    sets: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    near: float | None = 2e-2
    falls: bool = False


def mixed(*layouts: str, **more: Any) -> tuple[str, ...]:
    """Objectives of these layouts, with equal shares."""
    given = "".join(f", {name} = {json.dumps(value)}" for name, value in more.items())
    parts = (f'{{share = 1.0, layout = "{layout}"{given}}}' for layout in layouts)
    return ("mixture={" + ", ".join(f"{name} = {part}" for name, part in zip(layouts, parts, strict=True)) + "}",)


KINDS = {
    "mixture": Kind("adapt", falls=True),
    "sdpa": Kind("adapt", sets=('attn_impl="sdpa"', "checkpoint_layers=true"), falls=True),
    "own text": Kind("adapt", sets=mixed("drafts", times="full", teacher="self")),
    "block": Kind("adapt", sets=mixed("bd3"), facts=BLOCK),
    "full": Kind("adapt", sets=mixed("full"), facts=FULL),
    "uniform": Kind("adapt", sets=mixed("full"), facts=UNIFORM),
    "experts": Kind("adapt", facts=EXPERTS),
    "parts": Kind("adapt", sets=('train=["layers.1", "norms"]',)),
    "lora": Kind("lora", sets=("lora.rank=4",), falls=True),
    "draft": Kind("draft", sets=("draft_head=24",)),
    "verified": Kind("verified", sets=("draft_head=24", "draft_rank=4"), near=None),
    "trajectory": Kind("trajectory", sets=("draft_head=24", "draft_rank=4"), near=None),
    "heads": Kind("heads", sets=("concepts.rank=8", "stages=[{length = 64, sequences = 2}]")),
    "concepts": Kind("concepts", sets=("concepts.rank=8", "stages=[{length = 64, sequences = 2}]")),
    "sft": Kind("sft", "pairs", falls=True),
    "sft, full": Kind("sft", "pairs", facts=FULL),
    "sft, block, packed": Kind("sft", "pairs", ("sft.packing=true",), facts=BLOCK),
    "sft, kept": Kind("sft", "pairs", ("sft.keep=4.0",)),
    "convert": Kind("convert", "texts", ("anneal=0.8",)),
    "prefer": Kind("prefer", "preferences"),
    "prefer, full": Kind("prefer", "preferences", facts=FULL),
    "prefer, lora": Kind("prefer", "preferences", ("lora.rank=4",)),
    "reinforce": Kind("reinforce", "prompts", ROLLOUTS),
    "reinforce, coupled": Kind("reinforce", "prompts", (*ROLLOUTS, "reinforce.estimate=coupled"), FULL),
    "reinforce, traced": Kind("reinforce", "prompts", (*ROLLOUTS, "reinforce.estimate=traced"), BLOCK),
    "sdtt": Kind("distill", "pairs", ("distill.rounds=2",), near=None),
    "trajectories": Kind("distill", "pairs", ("distill.method=trajectories", "distill.states=2"), FULL, near=None),
    "on_policy": Kind("distill", "pairs", ("distill.method=on_policy", "distill.steps=3"), BLOCK, near=None),
}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what every run does and few tests look at."""
    leave_out(monkeypatch)


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> dict[str, Path]:  # noqa: F811
    """What is trained on, by kind."""
    folder, pairs = tmp_path_factory.mktemp("rows"), some_pairs(40)
    (folder / "mine.py").write_text(REWARD)
    texts = [{"text": row["prompt"] + row["completion"]} for row in pairs]
    made = {"pairs": pairs, "texts": texts, "preferences": some_preferences(30)}
    made["prompts"] = [{"prompt": f"x{number} = "} for number in range(20)]
    files = {name: write_rows(folder / f"{name}.jsonl", some) for name, some in made.items()}
    return {"corpus": corpus, **files, "reward": folder / "mine.py"}


@pytest.fixture
def train(make_model: Any, sources: dict[str, Path], tmp_path: Path) -> Callable[..., list[float]]:
    """train(kind, device, name, *sets): the losses of a run in the folder of that name."""

    def losses(kind: Kind, device: str, name: str, *sets: str, **options: Any) -> list[float]:
        start = tmp_path / "start"
        if not start.exists():
            model: Model = make_model(max_positions=128, **kind.facts)
            save_model(start, model.backbone, model.tokenizer)
        more = [f"reinforce.reward={sources['reward']}:short"] if kind.recipe == "reinforce" else []
        given: dict[str, Any] = {"start_from": str(start), "data": sources[kind.data]} | options
        given["data"] = given["data"] and ([given["data"]] if kind.data != "corpus" else given["data"])
        changes = [*COMMON, f"eval_steps={STEPS}", *kind.sets, *more, *sets]
        run.run_training(kind.recipe, overrides=changes, out=tmp_path / name, device=device, quiet=True, **given)
        return [float(row["loss"]) for row in rows(tmp_path / name)]

    return losses


class Stopped(Trainer):
    """A run that is asked to stop after three steps."""

    def _after_step(self) -> None:
        super()._after_step()
        self.stop_asked = self.progress.step >= 3


def far(got: list[float], want: list[float]) -> float:
    """The largest difference, as a share of the largest of `want`, or of a tenth where all are near 0."""
    return float(np.abs(np.array(got) - want).max() / max(np.abs(want).max(), 0.1))


@pytest.mark.parametrize("name", KINDS)
def test_a_run_has_the_losses_of_the_cpu_and_is_resumed(
    train: Any, tmp_path: Path, device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32; in bfloat16 they are near, and the model that is written decodes on the CPU. Matrices are updated in
    the type that a device multiplies natively, so losses after the first differ more.
    """
    kind = KINDS[name]
    there = train(kind, device, "there", "precision=float32")
    half = train(kind, device, "half", "precision=bf16")
    assert len(there) == len(half) == STEPS and np.isfinite([*there, *half]).all()
    if kind.near is not None:
        here = train(kind, "cpu", "here", "precision=float32")
        assert far(there[:1], here[:1]) < 1e-4
        assert far(there, here) < kind.near
        assert far(half[:1], there[:1]) < 0.1
    assert not kind.falls or (there[-1] < there[0] and half[-1] < half[0])
    with monkeypatch.context() as patch:
        patch.setattr(run, "Trainer", Stopped)
        assert len(train(kind, device, "parts", "precision=float32")) == 3
    resumed = train(kind, device, "parts", "precision=float32", start_from=None, data=None, resume=True)
    assert far(resumed, there) < 1e-2
    for made in ("there", "half"):
        (folder,) = [path for path in (tmp_path / made / "model", tmp_path / made / "adapter") if path.exists()]
        if folder.name == "model":
            assert load(folder, dtype="float32", backend="torch").generate("x = ", 4).text is not None


def test_the_configs_of_these_runs_are_of_every_context_and_noise(tokenizer: Any) -> None:
    configs = [tiny_config(tokenizer, **kind.facts) for kind in KINDS.values()]
    assert {config.context for config in configs} == {"causal", "block", "full"}
    assert {config.process for config in configs} == {"absorbing", "uniform"}
