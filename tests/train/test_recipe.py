"""Recipes are read strictly: what is wrong is named, with the nearest right name, and nothing is ignored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from daguerre.errors import InputError
from daguerre.models.core.config import ModelConfig, RopeScaling
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.objectives import Objective
from daguerre.train.recipe import Recipe, load_recipe, recipe_from_dict
from daguerre.train.shape import TrainedShape

MINIMAL = """
name = "tiny"
tokenizer = "2k"
steps = 3
[[stages]]
until = 1.0
length = 32
sequences = 2
micro_batches = 1
[mixture.only]
share = 1
layout = "blocks"
"""
SHIPPED = ("small", "full", "adapt")
SHAPE = "width = 32, num_layers = 1, num_heads = 4, num_kv_heads = 2, mlp_width = 48, max_positions = 64"


def load(tmp_path: Path, text: str = MINIMAL, overrides: Sequence[str] = ()) -> Recipe:
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return load_recipe(str(path), overrides)


def test_a_shipped_recipe_loads_by_name_and_comes_back_from_json() -> None:
    cases: list[str] = SHIPPED
    for name in cases:
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe_from_dict(json.loads(json.dumps(asdict(recipe)))) == recipe


def test_a_section_that_a_saved_recipe_does_not_have_can_be_set() -> None:
    saved = json.loads(json.dumps(asdict(load_recipe("adapt"))))
    assert saved["lora"] is None
    assert recipe_from_dict(saved, ["lora.rank=8"]) == load_recipe("adapt", ["lora.rank=8"])


def test_a_shipped_recipe_describes_a_model_that_holds_its_longest_window(tokenizer: Tokenizer) -> None:
    cases: list[str] = ["small", "full"]
    for name in cases:
        recipe = load_recipe(name)
        config = recipe.model_config(tokenizer)
        assert max(stage.length for stage in recipe.stages) <= config.max_positions
        assert (config.context, config.shift, config.null_id) == ("causal", True, tokenizer.null_id)


def test_a_recipe_names_every_part_of_a_model(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """All that a `ModelConfig` can be but the facts of its vocabulary, and what has keys of its own in a recipe."""
    facts = "qk_norm = false, head_width = 12, norm = 'layer', rope_scaling = {kind = 'linear', factor = 2}"
    config = load(tmp_path, f"model = {{{SHAPE}, {facts}}}\n{MINIMAL}").model_config(tokenizer)
    assert (config.qk_norm, config.head_width, config.norm) == (False, 12, "layer")
    assert config.rope_scaling == RopeScaling(kind="linear", factor=2.0)
    shape = {field.name for field in fields(TrainedShape)}
    facts_of_text = {"vocab_size", "mask_id", "eos_id", "bos_id", "pad_id", "null_id", "end_ids", "noise_ids"}
    facts_of_text |= {"reserved_ids", "expand_id", "fim", "ends_loops"}
    apart = {"draft_head", "draft_rank", "draft_matrices", "draft_acceptance", "masks_in_place", "concepts"}
    apart |= {"draft_tokens", "draft_rows", "draft_split"}
    assert {field.name for field in fields(ModelConfig)} - facts_of_text - apart == shape


def test_a_recipe_of_an_earlier_version_is_read_from_a_run_s_folder() -> None:
    """`attn_impl` was `backend`, and teacher "self" was "own"."""
    recipe = load_recipe("refine")
    values = json.loads(json.dumps(asdict(recipe)))
    values["backend"] = values.pop("attn_impl")
    for share in values["mixture"].values():
        share["teacher"] = {"self": "own"}.get(share["teacher"], share["teacher"])
    for name in set(values["model"]) - {"width", "num_layers", "num_heads", "num_kv_heads", "mlp_width"}:
        if name != "max_positions":
            del values["model"][name]
    assert "own" in {share["teacher"] for share in values["mixture"].values()}
    assert recipe_from_dict(values) == recipe


def test_defaults_are_those_of_the_classes(tmp_path: Path) -> None:
    recipe = load(tmp_path)
    assert recipe.optim.ema == 0.999
    assert recipe.mixture["only"].share == 1.0
    assert isinstance(recipe.mixture["only"].share, float)
    assert recipe.model is None
    assert (recipe.precision, recipe.attn_impl) == ("auto", "matmul")


def test_a_wrong_value_is_one_error_that_names_its_place(tmp_path: Path) -> None:
    cases: list[tuple[str, str]] = [
        ("stepz = 3", "unknown key 'stepz': did you mean 'steps'"),
        ("steps = 3.5", "steps must be int"),
        ("steps = true", "steps must be int"),
        ("seed = -1", "seed must be at least 0"),
        ("log_steps = 0", "log_steps must be at least 1"),
        ("precision = 'fp16'", "unknown precision 'fp16'"),
        ("attn_impl = 'flash'", "unknown attn_impl 'flash'"),
        ("backend = 'sdpa'", "unknown key 'backend'"),
        ("steps = 0", "needs a budget"),
        ("optim = 3", "optim must be a table"),
        ("optim = {muon_rl = 1.0}", "unknown key 'optim.muon_rl': did you mean 'optim.muon_lr'"),
        ("optim = {ema = 1.5}", "optim.ema must be at least 0 and at most 1, not 1.5"),
        ("optim = {clip = -1.0}", "clip must be at least 0"),
        ("model = {width = 8}", "num_layers"),
        (f"model = {{{SHAPE}, qk_nrm = true}}", "unknown key 'model.qk_nrm': did you mean 'model.qk_norm'"),
        (f"model = {{{SHAPE}, tied = 1}}", "model.tied must be bool"),
        (f"model = {{{SHAPE}, rope_scaling = {{kind = 'lin', factor = 2.0}}}}", "did you mean 'linear'"),
        (f"model = {{{SHAPE}, rope_scaling = {{kind = 'yarn', factor = 2.0}}}}", "original_positions"),
        (f"model = {{{SHAPE}, experts = {{num = 4, per_token = 2, width = 8}}}}", "cannot be trained from scratch"),
        (f"model = {{{SHAPE}, experts = {{num = 4, per_token = 5, width = 8}}}}", "lower per_token"),
        ("stages = 3", "stages must be a list"),
        ("stages = []", r"needs \[\[stages\]\]"),
        ("stages = [{until = 1.0, length = 4, sequences = 1, micro_batches = 1}]", "length must be at least"),
        ("stages = [{until = 0.5, length = 32, sequences = 1, micro_batches = 1}]", "until = 1.0"),
        ("mixture = {only = {share = 1.0, layout = 'block'}}", "unknown layout 'block': did you mean 'blocks'"),
        ("mixture = {only = {share = -1.0, layout = 'blocks'}}", "shares"),
        ("mixture = {only = {layout = 'blocks'}}", "mixture.only.*share"),
    ]
    for line, message in cases:
        key = line.split(" = ")[0]
        heads = {"stages": "[[stages]]", "mixture": "[mixture.only]"}
        kept, skipping = [], False
        for row in MINIMAL.strip().splitlines():
            if row.startswith("["):
                skipping = row == heads.get(key)
            if not skipping and row.split(" = ")[0] != key:
                kept.append(row)
        with pytest.raises(InputError, match=message) as caught:
            load(tmp_path, "\n".join([line, *kept]))
        assert "\n" not in str(caught.value)


def test_a_key_that_a_method_does_not_read_is_an_error_that_names_both() -> None:
    cases: list[tuple[str, str, str]] = [
        ("adapt", "stages.0.corruption=edit", "mixture does not read stages.0.corruption"),
        ("sft", "draft_head=8", "sft does not read draft_head"),
        ("distill", "sft.times=full", "distill does not read sft.times"),
        ("distill", "stages.0.corruption=edit", "distill does not read stages.0.corruption"),
        ("prefer", "anneal=0.5", "prefer does not read anneal"),
        ("prefer", "stages.0.block_size=4", "prefer does not read stages.0.block_size"),
        ("reinforce", "loaders=2", "reinforce does not read loaders"),
        ("reinforce", "mixture.text={share=1.0, layout='next_token'}", "reinforce does not read mixture"),
    ]
    for name, change, message in cases:
        with pytest.raises(InputError, match=f"recipe: {message}, a key of .*: leave out "):
            load_recipe(name, [change])


def test_a_number_out_of_its_range_is_an_error_with_the_range() -> None:
    cases: list[tuple[str, str, str]] = [
        ("prefer", "prefer.beta=0", "prefer.beta must be above 0, not 0.0"),
        ("prefer", "prefer.smoothing=0.5", "prefer.smoothing must be at least 0 and below 0.5, not 0.5"),
        ("prefer", "prefer.sft=nan", "prefer.sft must be at least 0, not nan"),
        ("reinforce", "reinforce.temperature=inf", "reinforce.temperature must be above 0 and finite, not inf"),
        ("distill", "distill.noise=[0.5]", "distill.noise must be 2 numbers, each above 0 and at most 1, not"),
        ("distill", "distill.window=[1.0, 0.5]", "distill.window must be 2 numbers, each at least 1, not"),
    ]
    for name, change, message in cases:
        with pytest.raises(InputError, match=f"recipe: {message}"):
            load_recipe(name, [change])


def test_stages_out_of_order_are_an_error(tmp_path: Path) -> None:
    recipe = load(tmp_path)
    for untils in ((1.0, 0.5), (0.5, 0.5, 1.0)):
        with pytest.raises(InputError, match="order of their `until`"):
            replace(recipe, stages=[replace(recipe.stages[0], until=until) for until in untils])


def test_the_stage_of_a_share_is_the_first_that_lasts_longer(tmp_path: Path) -> None:
    recipe = load(tmp_path)
    stages = [replace(recipe.stages[0], until=until) for until in (0.5, 1.0)]
    recipe = replace(recipe, stages=stages)
    assert [stages.index(recipe.stage(share)) for share in (0.0, 0.49, 0.5, 0.99, 1.0)] == [0, 0, 1, 1, 1]


def test_a_recipe_is_its_base_but_for_what_it_says(tmp_path: Path) -> None:
    text = 'base = "adapt"\nname = "mine"\n[optim]\nmuon_lr = 0.5\n[mixture.drafts]\nshare = 0.9\n'
    made, base = load(tmp_path, text, ["steps=7"]), load_recipe("adapt", ["steps=7"])
    drafts = replace(base.mixture["drafts"], share=0.9)
    optim, mixture = replace(base.optim, muon_lr=0.5), {**base.mixture, "drafts": drafts}
    assert made == replace(base, name="mine", optim=optim, mixture=mixture)
    for name, message in (("adap", "did you mean 'adapt'"), ("lora", "has a base itself"), (3, "unknown recipe '3'")):
        with pytest.raises(InputError, match=message):
            load(tmp_path, f"base = {name!r}")


def test_overrides_replace_single_values(tmp_path: Path) -> None:
    recipe = load(
        tmp_path,
        overrides=["steps=9", "optim.muon_lr=0.01", "stages.0.length=64", "name=bare", "mixture.only.times=full"],
    )
    assert (recipe.steps, recipe.optim.muon_lr, recipe.stages[0].length) == (9, 0.01, 64)
    assert (recipe.name, recipe.mixture["only"].times) == ("bare", "full")


def test_an_override_can_make_a_table(tmp_path: Path) -> None:
    more = ["mixture.two.share=0.5", "mixture.two.layout=canvas"]
    assert set(load(tmp_path, overrides=more).mixture) == {"only", "two"}


def test_a_wrong_override_is_an_error_that_names_it(tmp_path: Path) -> None:
    cases: list[tuple[str, str]] = [
        ("steps", "key=value"),
        ("=3", "key=value"),
        ("optim.rate=3", "unknown key 'optim.rate'"),
        ("stages.length=3", "by its number"),
        ("stages.1.length=3", "by its number, 0 to 0"),
        ("stages.0=3", "by its number and its key"),
        ("steps.more=3", "steps is a value"),
        ("steps.more.still=3", "steps is a value"),
        ("steps=many", "steps must be int"),
    ]
    for item, message in cases:
        with pytest.raises(InputError, match=message):
            load(tmp_path, overrides=[item])


def test_a_missing_recipe_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'small'"):
        load_recipe("smal")
    with pytest.raises(InputError, match="no recipe at"):
        load_recipe(str(tmp_path / "none.toml"))


def test_a_folder_that_is_called_like_a_recipe_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_recipe("small").name == "small"


def test_broken_toml_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not valid TOML"):
        load(tmp_path, "name = ")


def test_a_recipe_without_a_shape_needs_a_model_to_start_from(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="--from"):
        load(tmp_path).model_config(tokenizer)


def test_a_part_that_does_not_exist_is_an_error_with_the_nearest_name() -> None:
    for part, nearest in (("layout", "blocks"), ("times", "uniform"), ("weight", "clipped"), ("normalizer", "tokens")):
        values = {"layout": "blocks", part: nearest[:-1]}
        with pytest.raises(InputError, match=f"unknown {part}.*did you mean '{nearest}'"):
            Objective(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["next_token", "groups"])
def test_a_layout_that_only_a_shifted_model_has_is_an_error_without(layout: str) -> None:
    with pytest.raises(InputError, match="a shifted model"):
        Objective(layout=layout, shift=False)


def test_a_recipe_that_is_nested_without_end_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("x = " + "[" * 100_000)
    with pytest.raises(InputError, match=r"recipe deep\.toml is not valid TOML"):
        load_recipe(str(tmp_path / "deep.toml"))
