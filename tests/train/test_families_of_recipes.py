"""The table of docs/training.md that says which recipe trains which family, held to what the code refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.build import make_backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.families import FAMILIES
from daguerre.models.families.base import Published
from daguerre.models.readers import FAMILY_KEY
from daguerre.models.tokenizer import Tokenizer
from daguerre.train import start
from daguerre.train.convert import CONVERSIONS, Convert, converted
from daguerre.train.methods import method_of
from daguerre.train.recipe import load_recipe
from daguerre.train.sft.method import FineTuning
from models.test_hostile_folders import configs
from oracles.ddit import published_config
from published import END, MASK, SIZE

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
DDIT = {
    **{name: published_config(name, vocab_size=SIZE) for name in ("mdlm", "bd3lm", "duo")},
    "ddit_ar": published_config("ar", vocab_size=SIZE),
    "sedd": published_config("sedd", tokens=SIZE - 1),
}
REASONS = {
    "reordered context": "reordered context",
    "other noise": "other noise|told no noise level|told no time|noised by other tokens",
    "no masks": "from left to right alone",
    "not autoregressive": "only an autoregressive model is converted",
    "no layout": "no published layout is",
}
"""What a refusal says, by the word that the table has for it."""


def table() -> dict[str, dict[str, str]]:
    """What the page says, by family and recipe."""
    section = PAGE.read_text().partition("\n## Recipes and families\n")[2].partition("\n## ")[0]
    head, _, *lines = re.findall(r"^\|.*$", section, flags=re.M)
    recipes, found = cells(head)[1:], dict[str, dict[str, str]]()
    for line in lines:
        names, *said = cells(line)
        found |= {name: dict(zip(recipes, said, strict=True)) for name in re.findall("`(.+?)`", names)}
    return found


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def config_of(name: str) -> ModelConfig:
    """A small model's, as the family reads it."""
    tokens = {"<MASK>": MASK}
    values = {"eos_token_id": END, **DDIT.get(name, configs()[name])}
    return FAMILIES[name].read(Published(config=values, tokenizer={"mask_token": "<MASK>"}, tokens=tokens))


def check(recipe: str, family: str, config: ModelConfig, folder: Path) -> None:
    """An error where a recipe refuses the family."""
    if recipe == "convert":
        kind = {"architectures": [*FAMILIES[family].architectures[:1]], "model_type": FAMILIES[family].model_types[0]}
        (folder / "config.json").write_text(json.dumps(configs()[family] | kind | {FAMILY_KEY: family}))
        model, errors = make_backbone(config), list[UnsupportedError]()
        for to in CONVERSIONS:
            try:
                converted(model, Tokenizer.default("2k"), Convert(to=to), folder)
            except UnsupportedError as error:
                errors.append(error)
        if len(errors) == len(CONVERSIONS):
            raise errors[0]
        return
    options = ["stages.0.length=16"]
    if recipe == "reinforce":
        estimate = "left_to_right" if config.context == "causal" else "coupled"
        options += [f"reinforce.estimate={estimate}", "reinforce.reward=mine.py:right"]
    made = load_recipe(recipe, options)
    start.check_trainable(config, made)
    method = method_of(made)
    method.check(config)
    if isinstance(method, FineTuning):
        method.answer_loss(config, family)


def test_the_table_has_every_family_and_recipe() -> None:
    said = table()
    assert sorted(said) == sorted(FAMILIES)
    assert {*said["llama"]} == {"sft", "prefer", "reinforce", "convert", "distill"}


def test_a_recipe_refuses_a_family_for_the_reason_of_the_table_and_no_other(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for family, wanted in table().items():
        with subtests.test(family):
            config, found = config_of(family), dict[str, str]()
            for recipe in wanted:
                try:
                    check(recipe, family, config, tmp_path)
                    found[recipe] = "yes"
                except (InputError, UnsupportedError) as error:
                    reasons = (word for word, said in REASONS.items() if re.search(said, str(error)))
                    found[recipe] = next(reasons, str(error))
            assert found == wanted
