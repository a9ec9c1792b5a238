"""Mode "renoise": the texts of transformers' DiffusionGemma, and the contracts that every mode keeps."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from backends import BACKENDS, needs_compiler
from conftest import GEMMA
from daguerre.decoding.modes.renoise import STEPS
from daguerre.decoding.pins import Pin
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result, committed_text
from daguerre.decoding.sample import Sample, Together
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.forward import Refinement
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.random import NOISE, Counter
from driving import Recording
from oracles.gemma import BOS, CANVAS, EOS, VOCABULARY, SamplerNumbers, ours, theirs
from plans import make_plan

PROMPT = "x = 1\nimpo"
STEPS_12: dict[str, Any] = {"steps": 12}
SURE: dict[str, Any] = {"steps": 12, "t_max": 0.3, "t_min": 0.1, "gamma": 2.0, "max_entropy": 0.3}
SETTINGS: list[tuple[float, dict[str, Any]]] = [(1.0, STEPS_12), (0.35, SURE), (0.25, {})]
"""How strong the model's branches are, and options; with weak ones some canvases are done early."""


@cache
def pair(branches: float = 1.0, end: int = EOS) -> tuple[Any, Backbone]:
    """A model of transformers whose texts end with this token, and the same as ours."""
    model = theirs(1, branches, eos_token_id=end)
    with TemporaryDirectory() as folder:
        return model, ours(model, Path(folder))


@cache
def own(backend: Any, branches: float = 1.0, end: int = EOS) -> Model:
    return Model(pair(branches, end)[1], Tokenizer.default("2k"), backend)


def prompts() -> list[list[int]]:
    """Token ids, also special ones: of <pad>, <bos>, <eos>, <mask> and <null>."""
    random = np.random.default_rng(0)
    made = [random.integers(0, VOCABULARY, num).tolist() for num in (4, 20, 45)]
    return [made[0], [*made[1], 0, 1, 2, 3, 4], made[2]]


def expected(
    branches: float, prompt: list[int], seed: int, num_canvases: int, end: int = EOS, **given: Any
) -> tuple[list[int], int]:
    """The text of transformers, padded after its end, and how many forwards it took."""
    return computed(branches, tuple(prompt), seed, num_canvases, end, tuple(given.items()))


@cache
def computed(
    branches: float,
    prompt: tuple[int, ...],
    seed: int,
    num_canvases: int,
    end: int,
    settings: tuple[tuple[str, Any], ...],
) -> tuple[list[int], int]:
    """The same, once for both backends."""
    model, given = pair(branches, end)[0], dict(settings)
    library = pytest.importorskip("transformers.models.diffusion_gemma.generation_diffusion_gemma")
    names = {"steps": "max_denoising_steps", "max_entropy": "confidence_threshold"}
    options = {names.get(name, name): value for name, value in given.items() if name != "gamma"}
    options["sampler_config"] = library.EntropyBoundSamplerConfig(given.get("gamma", 0.1))
    ids = [BOS, *prompt]
    with pytest.MonkeyPatch.context() as patch:
        numbers = SamplerNumbers(seed, len(ids), patch)
        out = model.generate(
            torch.tensor([ids]), max_new_tokens=num_canvases * CANVAS, eos_token_id=[end], pad_token_id=0, **options
        )
    return out.sequences[0, len(ids) :].tolist(), numbers.forwards


def written(result: Result) -> list[int]:
    *_, last = result.trace.replay()
    start, end = last.gaps[0]
    return last.tokens[start:end].tolist()


CASES = [pytest.param("torch", *setting) for setting in SETTINGS]
CASES += [pytest.param("native", *setting, marks=needs_compiler) for setting in ((1.0, {"steps": 4}), *SETTINGS[1:])]
"""With strong branches rounding grows threefold a step, and the native backend adds in another order."""


@pytest.mark.parametrize(("backend", "branches", "options"), CASES)
def test_texts_are_those_of_transformers(backend: Any, branches: float, options: dict[str, Any]) -> None:
    forwards, chances = list[int](), list[float]()
    num = 3 if options else 2
    for seed, prompt in enumerate(prompts() if options else prompts()[:2]):
        want, num_forwards = expected(branches, prompt, seed, num, **options)
        result = own(backend, branches).generate(prompt, num * CANVAS, seed=seed, mode="renoise", **options)
        assert written(result) == want
        assert result.usage.forwards == num_forwards
        forwards.append(num_forwards)
        chances += [np.exp(token.logprob or 0.0) for token in result.tokens]
    most = num * options.get("steps", STEPS)
    assert {*forwards} == {most} if branches == 1 else max(forwards) < most
    assert branches < 1 or 0.4 < np.mean(chances) < 0.6


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_text_ends_where_that_of_transformers_does(backend: Any) -> None:
    prompt = prompts()[1]
    first, _ = expected(1.0, prompt, 5, 3, **STEPS_12)
    place = next(at for at in range(CANVAS + 2, 2 * CANVAS) if first[at] not in first[:at])
    end = first[place]
    want, num_forwards = expected(1.0, prompt, 5, 3, end, **STEPS_12)
    assert want == first[: place + 1] + [0] * (2 * CANVAS - place - 1)
    result = own(backend, 1.0, end).generate(prompt, 3 * CANVAS, seed=5, mode="renoise", **STEPS_12)
    assert [token.id for token in result.tokens] == want[:place]
    assert result.finish_reason == "stop"
    assert result.usage.forwards == num_forwards == 24


def test_a_budget_that_ends_within_a_canvas_cuts_its_text() -> None:
    """The canvas itself is whole: its first tokens are those of a longer budget."""
    model, prompt = own(None), prompts()[1]
    whole = written(model.generate(prompt, 2 * CANVAS, mode="renoise", steps=5))
    for num in (1, 5, CANVAS, CANVAS + 3):
        assert written(model.generate(prompt, num, mode="renoise", steps=5)) == whole[:num]


@needs_compiler
@pytest.mark.parametrize("heat", [1e-3, 0.5, 1.0])
def test_both_backends_write_the_same_texts(heat: float) -> None:
    """With hardly any chance, and with much; over several canvases and the window of sliding layers."""
    texts = []
    for backend in ("native", "torch"):
        options = {"steps": 4, "t_max": heat, "t_min": heat, "max_entropy": 0.0}
        made = [own(backend).generate(prompt, 4 * CANVAS, seed=3, mode="renoise", **options) for prompt in prompts()]
        texts.append([(written(one), one.usage.forwards) for one in made])
    assert texts[0] == texts[1]
    assert {num for _, num in texts[0]} == {16}


@pytest.fixture(scope="module", params=BACKENDS)
def gemma(request: Any, make_model: Any) -> Model:
    made: Model = make_model(**GEMMA)
    return Model(made.backbone, made.tokenizer, request.param)


def run(model: Model, prompt: str = PROMPT, num: int = 15, **options: Any) -> Result:
    return model.generate(prompt, num, **{"steps": 6, "mode": "renoise", **options})


def test_the_mode_is_chosen_for_the_model(gemma: Model) -> None:
    result = gemma.generate(PROMPT, 2)
    assert result.usage.mode == "renoise"
    assert result.usage.forwards <= STEPS


def test_a_text_does_not_depend_on_its_neighbors_or_its_cache(gemma: Model) -> None:
    asked = [("x", 4, 1), (PROMPT, 15, 2), ("def area(w, h):\n    return " * 3, 9, 3), ("", 12, 4)]
    alone = [written(run(gemma, prompt, num, seed=seed)) for prompt, num, seed in asked]
    samples = []
    for prompt, num, seed in asked:
        decode = Decode(mode="renoise", steps=6, seed=seed)
        plan = make_plan(gemma.config, gemma.tokenizer, decode, prompt, None, num, None)
        samples.append(Sample(gemma.denoiser, plan, 0, None))
    Together(gemma.denoiser.backend, samples).run()
    assert [written(sample.result()) for sample in samples] == alone
    assert [written(run(gemma, prompt, num, seed=seed, cache="none")) for prompt, num, seed in asked] == alone


def test_samples_are_keyed_by_seed_and_number(gemma: Model) -> None:
    few, many = (run(gemma, n=n, seed=8).choices for n in (2, 3))
    assert [written(one) for one in few] == [written(one) for one in many[:2]]
    assert len({tuple(written(one)) for one in many}) == 3
    assert written(run(gemma, seed=9)) != written(few[0]) == written(run(gemma, seed=8))


def test_a_canvas_begins_with_noise_of_its_positions(gemma: Model) -> None:
    result = run(gemma, num=20, seed=4, steps=3)
    start, ordinary = result.trace.canvas.gaps[0][0], gemma.config.ordinary_ids
    noise = [step for step in result.trace.steps if not step.decision.confidence.any()]
    assert [step.span for step in noise] == [(start + at, start + min(at + 6, 20)) for at in (0, 6, 12, 18)]
    for number, step in enumerate(noise):
        u = Counter(4, 0).uniform(NOISE, step.decision.positions, 3 * number)
        assert np.array_equal(step.decision.tokens, ordinary[(u * len(ordinary)).astype(int)])


def test_a_trace_replays_and_a_stream_only_grows(gemma: Model) -> None:
    events = list(gemma.stream(PROMPT, 20, mode="renoise", steps=4, seed=2))
    result = events[-1].result
    assert result is not None
    *_, last = result.trace.replay()
    steps = [event.step for event in events if event.step is not None]
    assert np.array_equal(last.tokens, steps[-1].canvas.tokens)
    texts = [event.committed for event in events]
    assert all(after.startswith(before) for before, after in zip(texts, texts[1:], strict=False))
    assert result.text == texts[-1]
    assert len({*texts}) == 5  # nothing, and a canvas more each time
    replaced = [step.decision.replace.size for step in steps]
    assert all(replaced[at] == 0 for at in range(0, 20, 5)) and sum(replaced) > 40
    plan = make_plan(gemma.config, gemma.tokenizer, Decode(mode="renoise"), PROMPT, None, 20, None)
    assert not committed_text(plan, steps[2].canvas)


def test_every_forward_is_bounded_and_no_row_is_computed_twice(gemma: Model) -> None:
    for num, steps in ((1, 3), (6, 1), (20, 7)):
        usage = run(gemma, num=num, steps=steps).usage
        assert usage.forwards <= -(-num // 6) * steps
        assert usage.recomputed_tokens == 0
        assert usage.query_tokens == 6 * usage.forwards
    sizes = run(gemma, num=12, block_size=4, steps=2).usage
    assert (sizes.forwards, sizes.query_tokens) == (6, 24)


def test_pins_stay_and_are_seen(gemma: Model) -> None:
    free = run(gemma, seed=3)
    result = run(gemma, seed=3, pins=[Pin("(", at=2), Pin(")", at=-1)])
    (two,), (last,) = (gemma.tokenizer.encode(text) for text in "()")
    assert written(result)[2] == two and written(result)[14] == last
    assert written(result)[:2] != written(free)[:2] or written(result)[3:6] != written(free)[3:6]
    changed = {int(position) for step in result.trace.steps for position in step.decision.positions}
    start = result.trace.canvas.gaps[0][0]
    assert changed == {start + at for at in range(15) if at not in (2, 14)}
    whole = run(gemma, num=6, pins=[Pin(gemma.tokenizer.encode("a = 1\n" * 6)[:6], at=0)])
    assert whole.usage.forwards == 0


def test_pinned_tokens_are_in_every_forward(gemma: Model) -> None:
    recording = Recording(gemma.denoiser.backend)
    decode = Decode(mode="renoise", steps=4, pins=[Pin("(", at=2)])
    plan = make_plan(gemma.config, gemma.tokenizer, decode, PROMPT, None, 6, None)
    sample = Sample(gemma.denoiser, plan, 0, None)
    Together(recording, [sample]).run()
    (pinned,) = gemma.tokenizer.encode("(")
    forwards = [one for batch in recording.batches for one in batch]
    assert len(forwards) == 4
    for number, one in enumerate(forwards):
        assert one.tokens[-6:][2] == pinned
        assert isinstance(one.ask, Refinement) and one.ask.rules.step == number
        assert one.ask.rules.temperature == pytest.approx(0.4 + 0.4 * (4 - number) / 4)
        assert (one.conditioning is None) == (number == 0)


def test_special_tokens_of_a_prompt_stay_as_they_are(gemma: Model) -> None:
    for prompt in ([0, 1, 2, 3, 4, 15, 70], [2] * 9):
        result = gemma.generate(prompt, 6, mode="renoise", steps=3)
        *_, last = result.trace.replay()
        assert last.tokens[1 : 1 + len(prompt)].tolist() == prompt
        assert result.usage.completion_tokens > 0
    assert written(gemma.generate([3] * 9, 6, steps=3, mode="renoise")) != written(result)


def test_bans_bias_and_least_lengths_hold(gemma: Model) -> None:
    end = gemma.config.eos_id
    never = run(gemma, num=12, min_tokens=12, logit_bias={end: 50.0})
    assert len(never.tokens) == 12 and end not in written(never)
    assert run(gemma, num=12, logit_bias={end: 50.0}).text == ""
    later = run(gemma, num=12, min_tokens=8, logit_bias={end: 50.0})
    assert len(later.tokens) == 8 and later.finish_reason == "stop"
    word = gemma.tokenizer.encode("a")[0]
    assert set(written(run(gemma, logit_bias={word: 90.0}))) == {word}
    everything = dict.fromkeys(range(VOCABULARY), -np.inf)
    with pytest.raises(InputError, match="no token is left"):
        run(gemma, logit_bias=everything)


def test_a_stop_string_ends_a_text_after_its_canvas(gemma: Model) -> None:
    free = run(gemma, num=24)
    stop = free.text[2:4]
    cut = run(gemma, num=24, stop=stop)
    assert cut.text == free.text[: free.text.index(stop)]
    assert cut.usage.forwards <= 6


def test_a_late_text_gets_what_is_likeliest_now(gemma: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(10_000))
    monkeypatch.setattr("daguerre.decoding.denoise.time.perf_counter", lambda: float(next(seconds)))
    result = run(gemma, num=24, timeout=40.0)
    assert result.finish_reason == "timeout"
    assert 6 < result.usage.forwards < 12
    assert len(result.tokens) == 12
    *_, last = result.trace.replay()
    assert last.open.sum() == 24 - len(result.tokens)
    assert all(token.logprob is not None and token.logprob > -30 for token in result.tokens)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0.7}, "temperature is not used in mode 'renoise'"),
    ({"top_p": 0.9}, "top_p is not used in mode 'renoise'"),
    ({"guidance": 2.0}, "guidance is not used in mode 'renoise'"),
    ({"policy": "random"}, "policy is not used in mode 'renoise'"),
    ({"revise": 1}, "revise is not used in mode 'renoise'"),
    ({"regex": "a*"}, 'mode "renoise" cannot honor the option regex'),
    ({"keywords": "a"}, 'mode "renoise" cannot honor the option keywords'),
    ({"pins": [Pin("a", at=(0, 5))]}, 'mode "renoise" cannot honor the option pins'),
    ({"pins": [Pin("a", at=1)], "ending": "a"}, 'mode "renoise" cannot honor the option ending'),
    ({"heal": True}, "heals no word"),
    ({"draft": "a"}, "takes no draft"),
    ({"t_max": 0.2}, "t_max=0.2 and t_min=0.4"),
    ({"t_min": 0.0}, "t_min must be a number above 0, not 0"),
    ({"t_max": "hot"}, "t_max must be a number"),
    ({"gamma": -1.0}, "gamma must be"),
    ({"max_entropy": -1.0}, "max_entropy"),
    ({"cache": "approximate_prefix"}, "for full context"),
]


def test_what_it_cannot_honor_is_refused(subtests: pytest.Subtests, gemma: Model) -> None:
    for options, message in REFUSED:
        with subtests.test(str(options)):
            with pytest.raises(InputError, match=message) as caught:
                run(gemma, **options)
            assert "\n" not in str(caught.value)


def test_other_operations_are_refused(gemma: Model, causal: Model) -> None:
    with pytest.raises(UnsupportedError, match="cannot infill"):
        gemma.infill("a", "b", 6)
    with pytest.raises(UnsupportedError, match="cannot infill"):
        gemma.fill("a <gap> b", 6)
    with pytest.raises(UnsupportedError, match="renoise"):
        gemma.start("a", 6)
    for mode in ("ar", "block", "full", "speculative", "beam", "ancestral"):
        with pytest.raises(InputError, match="use mode"):
            gemma.generate("a", 6, mode=mode)
    for kind in ("ar", "elbo", "chain"):
        with pytest.raises(UnsupportedError, match="told no noise level"):
            gemma.nll("x = 1\n", kind=kind)
    with pytest.raises(UnsupportedError, match="such as DiffusionGemma"):
        causal.generate("a", 6, mode="renoise")
    with pytest.raises(InputError, match="t_max is not used in mode 'block'"):
        causal.generate("a", 6, mode="block", t_max=0.9)


def test_8_bit_keys_give_a_text(gemma: Model) -> None:
    assert run(gemma, num=20, cache="approximate_int8").usage.completion_tokens > 0
