"""Training of a draft head for a frozen model: its loss, what it keeps on the disk, and its runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gguf")

import daguerre
from daguerre.canvas import Canvas
from daguerre.errors import DataError, InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.backbone_session import BackboneSession
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.low_rank import LowRank
from daguerre.models.core.parameters import num_parameters
from daguerre.models.draft_files import read_draft_folder
from daguerre.models.forward import DraftStep
from daguerre.models.session import compute
from daguerre.train.corpus.chat_text import TEXTS, ChatText
from daguerre.train.drafts.loss import StateRows, drafted, drafting_loss, reach_weights
from daguerre.train.drafts.options import DraftOptions
from daguerre.train.drafts.rows import Groups, RowDrafts, backbone_with_rows, learning
from daguerre.train.drafts.run import HELD, DraftRun, draft_tokens, frozen_of, make_head
from daguerre.train.drafts.states import States, TextPlace, record, states_of
from daguerre.train.settings import changed

FILE = Path(__file__).parents[2] / "data" / "gguf" / "llama-q4_k.gguf"
OPTIONS = DraftOptions(width=32, vocabulary=64, depth=3, texts=2, rate=2e-3, drafts=8000, stop=1000)


@pytest.fixture(scope="module")
def model() -> Model:
    return daguerre.load(FILE, drafts="none", dtype="float32")


@pytest.fixture(scope="module")
def texts() -> list[ChatText]:
    rng = np.random.default_rng(0)

    def ids(num: int) -> list[int]:
        return rng.integers(10, 300, num).tolist()

    return [ChatText(number, ids(6), ids(12 + number % 5), (0.0, 1.0)[number % 2]) for number in range(44)]


@pytest.fixture(scope="module")
def data(texts: list[ChatText], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    (folder / TEXTS).write_text("".join(json.dumps(asdict(text)) + "\n" for text in texts))
    return folder


@pytest.fixture
def start(model: Model, data: Path) -> Callable[..., DraftRun]:
    def make(out: Path, options: DraftOptions = OPTIONS, **more: Any) -> DraftRun:
        return DraftRun(model, [FILE], data, out, options, **{"say": lambda line: None} | more)

    return make


def test_states_are_those_of_the_rows_that_predict_an_answer(
    model: Model, texts: list[ChatText], tmp_path: Path
) -> None:
    text, kind = texts[3], record(model.config.width)
    rows = states_of(model, text, kind)

    assert rows["token"].tolist() == text.new
    (read,) = model.denoiser.backend.forward([DraftStep(rows["hidden"].astype(np.float32))])
    assert read.logits is not None
    assert np.allclose(np.log(np.exp(read.logits.astype(np.float64)).sum(-1)), rows["log_sum"], atol=0.02)
    alone = model.generate(text.prompt, 1, mode="ar", heal=False).trace.steps[0].decision.tokens
    assert rows["top"][:1].tolist() == alone.tolist()

    kept = States(tmp_path, model.config.width)
    places = [kept.add(model, text) for text in texts[2:5]]
    with (tmp_path / "rows.bin").open("ab") as file:
        file.write(b"half a record")
    again = States(tmp_path, model.config.width)
    assert again.places == places
    assert np.array_equal(again.read(places[1:2]), rows)
    (tmp_path / "rows.bin").write_bytes(b"")
    with pytest.raises(DataError, match="shorter"):
        States(tmp_path, model.config.width)


def test_drafts_are_those_of_the_head_one_by_one(model: Model, texts: list[ChatText]) -> None:
    tokens = tuple(range(20, 84))
    frozen, head = frozen_of(model, tokens), make_head(model_config(model, tokens), 1)
    torch.nn.init.normal_(head.down.weight, std=0.2)
    kind = record(model.config.width)
    parts = [states_of(model, text, kind) for text in texts[:2]]
    rows = StateRows.of(np.concatenate(parts), [len(part) for part in parts])

    made = {
        (k, int(one.row[index])): (one.state[index], one.log_draft[index], one.teacher[index])
        for k, one in enumerate(drafted(head, frozen, rows, 3), 1)
        for index in range(len(one.row))
    }
    num = 0
    for first, size in ((0, len(parts[0])), (len(parts[0]), len(parts[1]))):
        for at in range(first, first + size):
            state = rows.hidden[at][None]
            for k in range(1, 4):
                if at + k >= first + size:
                    break
                state = head(rows.hidden[at][None], frozen.embedding[rows.token[at + k - 1]][None], state)
                logits = state @ frozen.projection.T
                (found, log_draft, teacher), num = made[k, at + k], num + 1
                assert torch.allclose(found, state[0], atol=1e-4)
                assert torch.allclose(log_draft, logits.log_softmax(-1)[0], atol=1e-4)
                full = rows.hidden[at + k] @ frozen.projection.T - rows.log_sum[at + k]
                assert torch.allclose(teacher, full.exp(), atol=1e-5)
    assert num == len(made)


def model_config(model: Model, tokens: tuple[int, ...]) -> Any:
    return replace(model.config, draft_head=32, draft_tokens=tokens)


def test_a_draft_that_is_the_model_loses_only_what_the_draft_tokens_lack() -> None:
    """Where q = p the overlap is 1 and the loss its entropy's share; depths weigh by what depends on them."""
    assert reach_weights([1.0, 1.0, 1.0]) == [3.0, 2.0, 1.0]
    assert reach_weights([0.0, 0.0]) == [0.75, 0.25]


@pytest.mark.parametrize("kind", ["head", "rows", "both"])
def test_drafts_learn_the_models_own_distribution(
    kind: str, start: Callable[..., DraftRun], model: Model, tmp_path: Path
) -> None:
    said: list[str] = []
    run = start(tmp_path / "run", DraftOptions(**asdict(OPTIONS) | {"vocabulary": 256, "kind": kind}), say=said.append)
    for text in run._texts:
        run.states.add(run.model, text)
    learned = [place for place in run.states.places if place.number % HELD]
    before = accepted(run, learned)

    folder = run.run()

    after = json.loads((tmp_path / "run" / "progress.jsonl").read_text().splitlines()[-1])
    assert all(accepted(run, learned) > before + 0.03)
    assert after["drafts"] >= OPTIONS.drafts
    assert "hours to go" in said[0]
    assert any("go on" in line or "raise the rate" in line for line in said)
    found = read_draft_folder(folder)
    assert found.shape["draft_acceptance"] == [after["greedy"], after["sampled"]]
    drafting = daguerre.load(FILE, drafts=folder, dtype="float32")
    assert drafting.config.draft_head == (0 if kind == "rows" else 32)
    assert drafting.config.draft_rank == (0 if kind == "head" else run.options.rank)
    text = "def f(x):\n    return x"
    assert drafting.nll(text).value == model.nll(text).value


@pytest.mark.parametrize("kind", ["rows", "both"])
def test_rows_are_trained_as_a_verifying_forward_computes_them(
    kind: str, model: Model, texts: list[ChatText], tmp_path: Path
) -> None:
    tokens = tuple(range(20, 84))
    options = DraftOptions(kind=kind, width=32, matrices="qkv,out,gate_up,down", multiplier=2.0)
    config = replace(model.config, **options.shape(), draft_tokens=tokens)
    backbone = backbone_with_rows(model.denoiser.weights, config, 1, options.multiplier)
    for name, weight in learning(backbone).named_parameters():
        torch.nn.init.normal_(weight, std=0.2 if name.endswith("b.weight") else weight.shape[-1] ** -0.5)
    text = texts[3]
    part, frozen = states_of(model, text, record(model.config.width)), frozen_of(model, tokens)
    rows, by_rows = StateRows.of(part, [len(part)]), RowDrafts(backbone, frozen, 64)
    with torch.no_grad():
        made = list(by_rows.drafted([text], rows, 3))

    for module in backbone.modules():
        if isinstance(module, LowRank):
            module.b.weight.data *= module.scale
            module.scale = 1.0
    backend, num = TorchBackend(backbone), len(text.new)
    for k, one in enumerate(made, 1):
        assert sorted(one.row.tolist()) == list(range(k, num))
        for index, row in enumerate(one.row.tolist()):
            place = row - k
            given = text.prompt + text.new[:place]
            canvas = Canvas(
                tokens=np.array([*given, *text.new[place : place + 1], *[0] * 8]),
                open=np.arange(len(given) + 9) >= len(given),
                span=(len(given), len(given) + 9),
                gaps=((len(given), len(given) + 9),),
            )
            session = BackboneSession(config, backend.cache(len(canvas)))
            verified = compute(session.verify(canvas, np.zeros(0, np.int64), 3), backend)
            behind, logits = verified.following(0), None
            for step in range(k):
                logits = compute(behind.after(text.new[place + step]), backend)
            want = torch.from_numpy(logits)[list(tokens)].log_softmax(-1)
            near = 1e-3 if kind == "rows" else 0.2  # a head begins with a state that was computed with rounded numbers
            assert torch.allclose(one.log_draft[index], want, atol=near), (k, place)


@pytest.mark.parametrize("kind", ["head", "rows", "both"])
def test_drafts_of_a_model_of_135_million_weights_take_ten_megabytes_at_most(kind: str, model: Model) -> None:
    """The shape of SmolLM2-135M, and the options by default; the folder has two bytes a weight."""
    shape = {"width": 576, "num_layers": 30, "num_heads": 9, "num_kv_heads": 3, "head_width": 64, "mlp_width": 1536}
    before = replace(model.config, **shape)
    after = replace(before, **DraftOptions(kind=kind).shape())
    assert 1e6 < 2 * (num_parameters(after) - num_parameters(before)) < 10e6


def test_groups_are_of_random_lengths_and_end_with_the_text() -> None:
    generator = torch.Generator().manual_seed(0)
    groups = Groups.drawn(40, 30, 4, 0.5, generator)
    assert len(groups.place) == len(set(groups.place.tolist())) == 30
    assert groups.length.tolist() == sorted(groups.length.tolist(), reverse=True)
    assert (groups.place + groups.length).max() <= 39
    assert {1, 2, 3} <= {*groups.length.tolist()} <= {1, 2, 3, 4}
    whole = Groups.drawn(6, 30, 3, 1.0, None)
    assert sorted(zip(whole.place.tolist(), whole.length.tolist(), strict=True)) == [
        (0, 3),
        (1, 3),
        (2, 3),
        (3, 2),
        (4, 1),
    ]


def accepted(run: DraftRun, places: list[TextPlace]) -> np.ndarray:
    """By depth, at most, at temperature 1."""
    with torch.no_grad():
        return np.array(run._accepted(places)[1])


@pytest.mark.parametrize("kind", ["head", "both"])
def test_a_resumed_run_ends_with_the_same_weights(kind: str, start: Callable[..., DraftRun], tmp_path: Path) -> None:
    options = DraftOptions(**asdict(OPTIONS) | {"drafts": 400, "kind": kind})
    start(tmp_path / "whole", options).run()
    begun = start(tmp_path / "parts", options)
    for _ in range(3):
        begun._step()
    begun.save()
    with pytest.raises(InputError, match="--resume"):
        start(tmp_path / "parts", options)
    start(tmp_path / "parts", options, resume=True).run()

    whole, parts = (tmp_path / name / "drafts" / "drafts.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()


def test_draft_tokens_are_the_most_frequent_ones(model: Model) -> None:
    texts = [ChatText(0, [5], [9, 9, 7, 7, 7, 200], 0.0)]
    assert draft_tokens(texts, model.config, 2) == (7, 9)
    assert draft_tokens(texts, model.config, 5)[-1] == 200
    assert len(draft_tokens(texts, model.config, 10**6)) == model.config.vocab_size - len(
        model.config.unpredictable_ids
    )


def test_what_cannot_be_trained_is_refused(
    start: Callable[..., DraftRun], causal: Model, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match="autoregressive"):
        DraftRun(causal, [FILE], data, tmp_path / "a", OPTIONS)
    few = tmp_path / "few"
    few.mkdir()
    (few / TEXTS).write_text("")
    with pytest.raises(DataError, match="0 texts"):
        DraftRun(daguerre.load(FILE, drafts="none"), [FILE], few, tmp_path / "b", OPTIONS)
    with pytest.raises(InputError, match="width"):
        changed(DraftOptions(), ["wdith=3"])
    with pytest.raises(InputError, match="no number"):
        changed(DraftOptions(), ["width=many"])
    with pytest.raises(InputError, match="above 0"):
        changed(DraftOptions(), ["depth=0"])
    for wrong in ("kind=tail", "matrices=qkv,up"):
        with pytest.raises(InputError, match="unknown"):
            changed(DraftOptions(), [wrong])


def test_the_loss_has_a_gradient_for_the_head_alone(model: Model, texts: list[ChatText]) -> None:
    tokens = tuple(range(20, 84))
    frozen, head = frozen_of(model, tokens), make_head(model_config(model, tokens), 1)
    part = states_of(model, texts[0], record(model.config.width))
    rows, generator = StateRows.of(part, [len(part)]), torch.Generator().manual_seed(0)
    found = drafting_loss(list(drafted(head, frozen, rows, 3, 0.7, generator)), head, frozen, rows, generator)
    found.loss.backward()
    assert head.down.weight.grad is not None and head.down.weight.grad.abs().sum() > 0
    assert head.confidence is not None and head.confidence.weight.grad is not None
    assert not any(isinstance(value, torch.Tensor) and value.requires_grad for value in vars(frozen).values())
