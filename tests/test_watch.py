"""Steps that a caller is told of, and the frames that `--watch` draws of them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import daguerre
from daguerre.decoding.result import OPEN, StreamEvent
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.view.watch import FULL_STEPS, STEP_SECONDS, RequestWatch


@pytest.fixture(scope="module")
def model() -> Model:
    return daguerre.load(dtype="float32")


TEXT = "def area(w, h):\n    return <gap>\n\n\ndef border(w, h):\n    return <gap>\n"


def test_every_call_tells_of_its_steps(model: Model) -> None:
    before, after = "def area(w, h):\n    return ", "\n"
    for call in (
        lambda **how: model.generate("import os\n", 8, **how),
        lambda **how: model.infill(before, after, 6, mode="block", **how),
        lambda **how: model.infill(before, after, 6, **how),
        lambda **how: model.fill(TEXT, 5, **how),
        lambda **how: model.edit("x = 1\ny = 2\n", lines=[(2, 2)], **how),
    ):
        events: list[StreamEvent] = []
        result = call(on_step=events.append)
        assert result.text == call().text
        assert events[-1].result is result
        assert [event.step is None for event in events] == [*[False] * (len(events) - 1), True]
        assert len(events) - 1 == len(result.trace.steps)
    with pytest.raises(InputError, match="leave out n"):
        model.generate("x", 4, n=2, temperature=1.0, on_step=events.append)


def test_frames_have_the_whole_text_and_fit_the_terminal(model: Model) -> None:
    console = Console(file=io.StringIO(), width=30, height=6, force_terminal=True)
    pauses: list[float] = []
    watch, frames = RequestWatch(model, console, pause=pauses.append), list[str]()

    def step(event: StreamEvent) -> None:
        if event.step is not None:
            frames.append(watch.frame(event).plain)
        watch(event)

    with watch:
        result = model.fill(TEXT, 5, on_step=step)
    assert len(frames) == len(pauses) == len(result.trace.steps)
    for frame in frames:
        *lines, status = frame.split("\n")
        assert len(lines) <= 3
        assert all(len(line) <= 30 for line in lines)
        assert "tokens" in status
    assert any(OPEN in frame for frame in frames)
    assert "return" in frames[-1] and result.texts[-1].split("\n")[0] in frames[-1]
    assert pauses == [STEP_SECONDS] * len(pauses)


def test_long_runs_are_shown_faster(model: Model) -> None:
    pauses: list[float] = []
    console = Console(file=io.StringIO(), force_terminal=True)
    with RequestWatch(model, console, pause=pauses.append) as watch:
        model.generate("import os\n", 90, mode="ar", stop_loops=False, on_step=watch)
    assert pauses[0] == STEP_SECONDS > pauses[-1] == pytest.approx(STEP_SECONDS * FULL_STEPS / len(pauses))
    for rate, seconds in ((4.0, 0.25), (0.0, 0.0)):
        pauses.clear()
        with RequestWatch(model, console, rate, pause=pauses.append) as watch:
            model.generate("import os\n", 4, on_step=watch)
        assert set(pauses) == {seconds}
