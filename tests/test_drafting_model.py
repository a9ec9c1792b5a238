"""A second model drafts: the text is that of mode "ar", whatever it drafts, and it drafts where that saves time."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
import made_tokenizers
from backends import BACKENDS
from conftest import random_backbone, tiny_config
from daguerre.canvas import Canvas
from daguerre.decoding.drafters import NO_DRAFT, Drafted
from daguerre.decoding.modes.beside import Beside
from daguerre.decoding.pins import Pin
from daguerre.decoding.result import Result
from daguerre.engine.engine import Engine
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.drafting_model import MOST, DraftingModel, ForwardTimes, curve_of, shared_tokens
from daguerre.models.forward import Cycle, Draws, Rules
from daguerre.models.loading import save_model
from daguerre.models.session import compute
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.random import TOKEN, Counter

PROMPTS = ["import os\n", "def area(w, h):\n    return w", "x = impo", "class A:\n    def f(self):\n        se"]
LAWS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 5, "logit_bias": {20: 3.0, 21: float("-inf")}},
    {"temperature": 0.7, "repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 3},
    {"temperature": 1.0, "regex": "[a-e]{3,20}(, [a-e]{2,5})*;"},
    {"schema": {"type": "object", "properties": {"a": {"enum": ["red", "green"]}}, "required": ["a"]}},
    {"pins": [Pin("ab", at=(1, 8))]},
    {"min_tokens": 6, "stop": ["e"]},
    {"draft": "self.x = 1\n"},
    {"guidance": 2.0},
    {"cache": "none"},
]


def perturbed(backbone: Any, noise: float, seed: int = 1) -> Any:
    """A backbone that is often of one mind with another."""
    out, rng = copy.deepcopy(backbone), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in out.parameters():
            weight.mul_(1 + noise * torch.randn(weight.shape, generator=rng))
    return out


def pair(model: Model, second: Any, backend: Any = None, other: Tokenizer | None = None) -> Model:
    """A model, and a second one that drafts for it."""
    out = Model(model.backbone, model.tokenizer, backend)
    own = Model(second, other or model.tokenizer, backend).denoiser.fixed()
    out.denoiser.drafting = DraftingModel(out.config, out.tokenizer, own.backend, other or out.tokenizer)
    return out


def facts(result: Result) -> list[tuple[list[int], str, str]]:
    return [([token.id for token in one.tokens], one.text, one.finish_reason) for one in result.choices]


@pytest.mark.parametrize("backend", BACKENDS)
def test_texts_are_those_of_ar_whatever_the_second_model_drafts(
    subtests: pytest.Subtests, make_model: Callable[..., Model], backend: Any
) -> None:
    plain = make_model(mask_id=None, null_id=None)
    model, accepted = pair(plain, perturbed(plain.backbone, 0.05), backend), [0, 0]
    for number, law in enumerate(LAWS):
        prompt, options = PROMPTS[number % len(PROMPTS)], {"seed": number, **law}
        with subtests.test(law=law):
            want = model.generate(prompt, 24, mode="ar", **options)
            for drafter, size in (("second", (None, 3)[number % 2]), ("auto", None)):
                got = model.generate(prompt, 24, mode="speculative", drafter=drafter, block_size=size, **options)
                assert facts(got) == facts(want)
                assert got.usage.forwards <= want.usage.forwards + got.usage.drafted
            accepted[0] += got.usage.head_accepted
            (*_, last) = model.stream(prompt, 24, mode="speculative", drafter="second", **options)
            assert last.result is not None
            assert facts(last.result) == facts(want)
            usage = last.result.usage
            accepted = [accepted[0] + usage.head_accepted, accepted[1] + usage.head_drafted]
    assert 0 < accepted[0] < accepted[1]


def test_the_second_model_saves_forwards_and_is_asked_for_by_name(make_model: Callable[..., Model]) -> None:
    plain = make_model(mask_id=None)
    model = pair(plain, plain.backbone)
    ar, got, alone = (
        model.generate(PROMPTS[0], 40, temperature=1.0, **how)
        for how in ({"mode": "ar"}, {"drafter": "second"}, {"drafter": "lookup"})
    )
    assert got.text == ar.text == alone.text
    assert got.usage.head_accepted == got.usage.head_drafted > 0, "the same model, with the same random numbers"
    assert 3 * got.usage.forwards < ar.usage.forwards
    assert not alone.usage.head_drafted
    with pytest.raises(InputError, match="second model"):
        plain.generate(PROMPTS[0], 8, mode="speculative", drafter="second")


@pytest.mark.parametrize("share", [False, True])
def test_many_requests_share_steps_and_stored_prefixes(make_model: Callable[..., Model], share: bool) -> None:
    plain = make_model(mask_id=None)
    model = pair(plain, perturbed(plain.backbone, 0.05))
    long = "".join(f"name_{number} = {number}\n" for number in range(12))
    asked: list[dict[str, Any]] = [
        {"temperature": (0.0, 0.7, 1.0)[number % 3], "seed": number, "drafter": ("second", "auto")[number % 2]}
        for number in range(8)
    ]
    asked[3]["n"], asked[5]["regex"] = 2, "[a-e]{3,20};"
    want = [model.generate(long, 24, mode="ar", **one | {"drafter": "auto"}) for one in asked]
    with Engine(model, share_prefixes=share, cache_rows=4096) as engine:
        for _ in range(2):  # the second time all prompts are stored
            jobs = [engine.generate(long, 24, mode="speculative", **one) for one in asked]
            got = [job.result() for job in jobs]
            assert [facts(one) for one in got] == [facts(one) for one in want]
            assert sum(one.usage.head_accepted for one in got)
        stats = engine.stats()
    assert stats.prefix_found > 0


def test_a_task_that_gave_way_computes_both_models_again(make_model: Callable[..., Model]) -> None:
    plain = make_model(mask_id=None)
    model = pair(plain, perturbed(plain.backbone, 0.05))
    want = [model.generate(prompt, 60, mode="ar", seed=number) for number, prompt in enumerate(PROMPTS)]
    with Engine(model, cache_rows=64 * 5, store_prefixes=False) as engine:
        jobs = [
            engine.generate(prompt, 60, mode="speculative", drafter="second", seed=number)
            for number, prompt in enumerate(PROMPTS)
        ]
        assert [facts(job.result()) for job in jobs] == [facts(one) for one in want]
        assert engine.stats().preemptions


def test_the_cache_of_the_second_model_goes_back_with_the_text(make_model: Callable[..., Model]) -> None:
    """Beside a session that begins anew for every question."""
    plain = make_model(mask_id=None)
    model = pair(plain, perturbed(plain.backbone, 0.05))
    drafting, rng = model.denoiser.drafting, np.random.default_rng(0)
    assert drafting is not None
    backend, held = drafting.beside(model.denoiser.backend), None
    text = rng.integers(20, 200, 40)
    for _ in range(30):
        text[rng.integers(5, 40) :] = rng.integers(20, 200)
        start = int(rng.integers(6, 40))
        opened = np.arange(len(text)) >= start
        canvas = Canvas(text, opened, ((start, len(text)),), (start, start + 1))
        held = held or drafting.session(canvas)
        rules = Rules(temperature=1.0, rng=Counter(3), purpose=TOKEN)
        asked = [
            compute(session.ask(canvas, np.array([start]), Draws(rules, np.array([start]))), backend)
            for session in (held, drafting.session(canvas))
        ]
        first, second = (answer.tokens for answer in asked)
        assert first is not None and second is not None
        assert first.tolist() == second.tolist()
        assert held.missing(canvas, start) == 0


# ---- vocabularies ----------------------------------------------------------------------------------------------------


def with_added(*texts: str) -> Any:
    values = made_tokenizers.trained()
    values["added_tokens"] = made_tokenizers.entries(len(values["model"]["vocab"]))
    for text in texts:
        last = values["added_tokens"][-1]
        values["added_tokens"].append({**last, "id": last["id"] + 1, "content": text, "special": text != "<|c|>"})
    return made_tokenizers.PublishedTokenizer(json.dumps(values), made_tokenizers.config())


def test_tokens_that_one_has_alone_are_never_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = with_added("<|a|>", "<|b|>", "<|c|>"), with_added("<|a|>", "<|x|>")
    num = ours.vocab_size
    shared = shared_tokens(ours, other, num + 5, other.vocab_size + 9)
    assert shared.tolist() == [True] * (num - 2) + [False] * (other.vocab_size + 9 - (num - 2))
    ids = {"pad_id": num - 7, "eos_id": num - 9, "bos_id": None, "mask_id": None, "null_id": None}
    config = tiny_config(Tokenizer.default(), **ids, vocab_size=num + 5)
    backbone = random_backbone(config)
    second = random_backbone(tiny_config(Tokenizer.default(), **ids, vocab_size=other.vocab_size + 9))
    with torch.no_grad():
        for part in (backbone, second):  # both would write what the other one has not
            part.embedding.weight[num - 2 :] *= 1.5
        second.embedding.weight[: num - 2] = backbone.embedding.weight[: num - 2]
    ours, other = ours.sized(config.vocab_size), other.sized(second.config.vocab_size)
    model = pair(Model(backbone, ours), second, other=other)
    assert model.denoiser.drafting is not None
    both, verified = model.denoiser.drafting.beside(model.denoiser.backend), set[int]()
    forward = both.forward

    def recorded(batch: Any) -> Any:
        for one in batch:
            verified.update(one.ask.draft.tolist() if isinstance(getattr(one, "ask", None), Cycle) else [])
        return forward(batch)

    monkeypatch.setattr(both, "forward", recorded)
    written, drafted = set[int](), 0
    for seed in range(4):
        for law in ({}, {"regex": "[a-z <|>]+"}, {"logit_bias": {num - 1: 60.0, num + 3: 1.0}}):
            options: dict[str, Any] = {"temperature": 1.0, "seed": seed, "heal": False, **law}
            prompt = [5, num - 1, 17, num - 2]
            want = model.generate(prompt, 16, mode="ar", **options)
            got = model.generate(prompt, 16, mode="speculative", drafter="second", **options)
            assert facts(got) == facts(want)
            written |= {token.id for token in got.tokens}
            drafted += got.usage.head_drafted
    assert drafted
    assert verified
    assert shared[list(verified)].all()
    assert not shared[list(written)].all()


def test_another_vocabulary_is_refused(make_model: Callable[..., Model]) -> None:
    with pytest.raises(InputError, match="same vocabulary: token 16"):
        shared_tokens(Tokenizer.default("2k"), made_tokenizers.byte_level(), 2048, 2048)
    full, causal = make_model(context="full"), make_model()
    for model, second in ((full, causal), (causal, full)):
        with pytest.raises(UnsupportedError, match="full context"):
            pair(model, second.backbone)


def test_load_takes_a_second_model(tmp_path: Path, make_model: Callable[..., Model]) -> None:
    ours, second = make_model(num_layers=3), make_model(seed=4)
    for name, one in (("ours", ours), ("second", second)):
        save_model(tmp_path / name, one.backbone, one.tokenizer)
    model = daguerre.load(tmp_path / "ours", drafts=tmp_path / "second")
    alone = daguerre.load(tmp_path / "ours")
    assert model.denoiser.num_bytes == alone.denoiser.num_bytes + daguerre.load(tmp_path / "second").denoiser.num_bytes
    want, got = (one.generate("x = ", 24, mode="speculative", temperature=0.8) for one in (alone, model))
    assert got.text == want.text


# ---- when it drafts --------------------------------------------------------------------------------------------------


def times(*rows: float) -> ForwardTimes:
    out = ForwardTimes()
    for num, seconds in enumerate(rows, 1):
        out.took(num, seconds)
    out.took(100, 20 * rows[0], prompt=True)
    return out


class Short:
    """A session that has read all but two rows."""

    def __init__(self, model: ForwardTimes, second: ForwardTimes, late: int = 2) -> None:
        self.config, self.late = tiny_config(Tokenizer.default()), late
        self.model = type("Times", (), {"times": (model, second), "acceptance": 0.8})

    def missing(self, canvas: Canvas, start: int) -> int:
        return self.late


def beside(model: ForwardTimes, second: ForwardTimes, crowd: int = 1, late: int = 2) -> Beside:
    session: Any = Short(model, second, late)
    out = Beside(session, session, 0.0, 8, False)
    out._look(crowd)
    return out


def canvas_of(num: int) -> Canvas:
    return Canvas.lay_out([[1, 2, 3]], [num], 0).at((3, 3 + num))


def test_it_reads_the_prompt_of_a_text_that_goes_on() -> None:
    made, canvas = beside(times(1.0, 1.02), times(0.4, 0.4), late=120), canvas_of(100)
    assert not made.worth(canvas, 1.0, 50)
    assert made.worth(canvas.at((43, 103)), 1.0, 50)


def test_it_drafts_where_rows_are_cheap_and_its_own_are() -> None:
    cheap, dear = (1.0, 1.1, 1.2, 1.3), (1.0, 1.9, 2.8, 3.7)
    canvas = canvas_of(100)
    assert beside(times(*cheap), times(0.1, 0.1)).worth(canvas, 1.0, 50)
    assert not beside(times(*cheap), times(0.1, 0.1)).worth(canvas, 2.9, 50), "what is looked up is faster"
    assert not beside(times(*cheap), times(0.9, 0.9)).worth(canvas, 1.0, 50)
    assert not beside(times(*dear), times(0.1, 0.1)).worth(canvas, 1.0, 50)
    assert not beside(times(*cheap), times(0.1, 0.1), late=400).worth(canvas, 1.0, 50), "it would read so much first"
    crowded = times(*(1.0 + 0.2 * rows for rows in range(32)))
    assert beside(crowded, times(0.1, 0.1), 1).worth(canvas, 1.0, 50)
    assert not beside(crowded, times(*(0.1 * rows for rows in range(1, 17))), 16).worth(canvas, 1.0, 50)


def test_a_draft_ends_where_it_is_unsure_or_was_wrong() -> None:
    made = beside(times(1.0, 1.05, 1.3, 1.5, 1.7), times(0.2, 0.2))
    assert made.worth(canvas_of(100), 1.0, 50)
    assert made.goes_on([], 8)
    assert made.goes_on([0.99], 8)
    assert not made.goes_on([0.3], 8)
    assert not made.goes_on([0.99], 1)
    for _ in range(40):
        made.count(Drafted.of(np.arange(2), [0.9, 0.9], "second"), 0)
    assert not made.worth(canvas_of(100), 1.0, 50)


def test_the_best_draft_is_that_of_the_most_tokens_in_its_time() -> None:
    made, rng = beside(times(1.0, 1.02, 1.8, 2.3, 2.7), times(0.2, 0.2)), np.random.default_rng(0)
    for _ in range(200):
        drafts = [Drafted.of(np.arange(4), np.sort(rng.uniform(0.3, 1, 4))[::-1].tolist()) for _ in range(2)]
        speeds = {
            (number, num): sum(draft.reached[: num + 1]) / made._costs[num]
            for number, draft in enumerate(drafts)
            for num in range(1, 4)
        }
        (number, num), most = max(speeds.items(), key=lambda one: one[1])
        draft, speed = made._best(drafts, 3)
        if most > 1:
            assert len(draft) == num
            assert draft.reached == drafts[number].reached[: num + 1]
        assert speed == pytest.approx(max(most, 1.0))
    assert made._best([NO_DRAFT], 3) == (NO_DRAFT, 1.0)


def test_times_go_through_what_was_measured() -> None:
    curve = curve_of({1: 2.0, 3: 5.0, 2: 6.0, 5: 10.0})
    assert curve[[0, 1, 2, 3, 4, 5, 7]] == pytest.approx([0.0, 2.0, 6.0, 6.0, 8.0, 10.0, 14.0])
    assert len(curve) == MOST + 1
    flat = times(1.0)
    for seconds in (9.0, 1.0, 9.0, 1.0, 1.0):
        flat.took(1, seconds)
    assert flat.curve()[1] == 1.0, "the median of the last"
