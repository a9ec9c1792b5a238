"""Recipes are read strictly: what is wrong is named, with the nearest right name, and nothing is ignored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.recipe import Recipe, load_recipe, recipe_from_dict

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


def load(tmp_path: Path, text: str = MINIMAL, overrides: Sequence[str] = ()) -> Recipe:
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return load_recipe(str(path), overrides)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_loads_by_name_and_comes_back_from_json(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe_from_dict(json.loads(json.dumps(asdict(recipe)))) == recipe


@pytest.mark.parametrize("name", ["small", "full"])
def test_a_shipped_recipe_describes_a_model_that_holds_its_longest_window(name: str, tokenizer: Tokenizer) -> None:
    recipe = load_recipe(name)
    config = recipe.model_config(tokenizer)
    assert max(stage.length for stage in recipe.stages) <= config.max_positions
    assert (config.context, config.shift, config.null_id) == ("causal", True, tokenizer.null_id)


def test_defaults_are_those_of_the_classes(tmp_path: Path) -> None:
    recipe = load(tmp_path)
    assert recipe.optim.ema == 0.999
    assert recipe.mixture["only"].share == 1.0
    assert isinstance(recipe.mixture["only"].share, float)
    assert recipe.model is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stepz = 3", "unknown key 'stepz': did you mean 'steps'"),
        ("steps = 3.5", "steps must be int"),
        ("steps = true", "steps must be int"),
        ("seed = -1", "seed must be at least 0"),
        ("log_steps = 0", "log_steps must be at least 1"),
        ("precision = 'fp16'", "unknown precision 'fp16'"),
        ("backend = 'flash'", "unknown attention backend 'flash'"),
        ("steps = 0", "needs a budget"),
        ("optim = 3", "optim must be a table"),
        ("optim = {muon_rl = 1.0}", "unknown key 'optim.muon_rl': did you mean 'optim.muon_lr'"),
        ("optim = {ema = 1.5}", "optim.ema is a share"),
        ("optim = {clip = -1.0}", "clip must be at least 0"),
        ("model = {width = 8}", "num_layers"),
        ("stages = 3", "stages must be a list"),
        ("stages = []", r"needs \[\[stages\]\]"),
        ("stages = [{until = 1.0, length = 4, sequences = 1, micro_batches = 1}]", "length must be at least"),
        ("stages = [{until = 0.5, length = 32, sequences = 1, micro_batches = 1}]", "until = 1.0"),
        ("mixture = {only = {share = 1.0, layout = 'block'}}", "unknown layout 'block': did you mean 'blocks'"),
        ("mixture = {only = {share = -1.0, layout = 'blocks'}}", "shares"),
        ("mixture = {only = {layout = 'blocks'}}", "mixture.only.*share"),
    ],
)
def test_a_wrong_value_is_one_error_that_names_its_place(tmp_path: Path, line: str, message: str) -> None:
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


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("steps", "key=value"),
        ("=3", "key=value"),
        ("optim.rate=3", "unknown key 'optim.rate'"),
        ("stages.length=3", "by its number"),
        ("stages.1.length=3", "by its number, 0 to 0"),
        ("stages.0=3", "by its number and its key"),
        ("steps.more=3", "steps is a value"),
        ("steps.more.still=3", "steps is a value"),
        ("steps=many", "steps must be int"),
    ],
)
def test_a_wrong_override_is_an_error_that_names_it(tmp_path: Path, item: str, message: str) -> None:
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
