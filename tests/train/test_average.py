"""`daguerre average`: weights of one beginning, added by their shares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conftest import tiny_config
from daguerre.errors import DataError, InputError
from daguerre.models.catalog import Catalog
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.shapes import ConceptShape
from daguerre.models.loading import load_folder, load_model, read_extra, save_model, weights_hash
from daguerre.train.average import average_models
from daguerre.train.bpe import train_bpe


def made(folder: Path, seed: int, texts: str = "ab", **shape: int) -> Path:
    """A model of random weights, and a vocabulary that depends on `texts`."""
    torch.manual_seed(seed)
    tokenizer = train_bpe([texts], 16 + 256 + 1)
    backbone = Backbone(tiny_config(tokenizer, **shape))
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter)
    return save_model(folder / str(seed), backbone, tokenizer)


def test_every_weight_is_the_sum_of_the_parts_by_their_shares(tmp_path: Path) -> None:
    folders, shares = [made(tmp_path, seed) for seed in range(3)], [0.5, 0.3, 0.2]
    out = average_models(list(zip(folders, shares, strict=True)), tmp_path / "mean")
    mean, tokenizer = load_model(out)
    states = [load_model(folder)[0].state_dict() for folder in folders]
    for name, tensor in mean.state_dict().items():
        exact = sum(share * state[name].double() for share, state in zip(shares, states, strict=True))
        assert torch.allclose(tensor.double(), exact, rtol=2**-8, atol=1e-6), name  # stored in bfloat16
        assert not torch.allclose(tensor, states[0][name], rtol=2**-8)
    assert tokenizer == load_model(folders[0])[1]
    assert read_extra(out)["average"] == [
        {"weights_sha256": weights_hash(folder), "share": share} for folder, share in zip(folders, shares, strict=True)
    ]


def test_shares_are_positive_of_two_or_more_and_add_up_to_1(tmp_path: Path) -> None:
    cases: list[tuple[float, ...]] = [(1.0,), (0.5, 0.6), (1.5, -0.5), (1.0, 0.0), (float("nan"), 0.5)]
    folder = made(tmp_path, 0)
    for shares in cases:
        with pytest.raises(InputError, match=r"two models|add up to 1"):
            average_models([(folder, share) for share in shares], tmp_path / "mean")
        assert not (tmp_path / "mean").exists()


def test_models_of_two_shapes_or_vocabularies_are_refused(tmp_path: Path) -> None:
    one, out = made(tmp_path, 0), tmp_path / "mean"
    wider, speaking = made(tmp_path, 1, mlp_width=32), made(tmp_path, 2, texts="cd")
    with pytest.raises(InputError, match="another mlp_width"):
        average_models([(one, 0.5), (wider, 0.5)], out)
    with pytest.raises(InputError, match="another vocabulary"):
        average_models([(one, 0.5), (speaking, 0.5)], out)


def test_the_tasks_of_all_parts_are_those_of_the_mean(tmp_path: Path) -> None:
    def saying(seed: int, **extra: list[str]) -> Path:
        backbone, tokenizer = load_model(made(tmp_path, seed))
        return save_model(tmp_path / f"saying {seed}", backbone, tokenizer, extra=dict(extra))

    both, one, none = saying(0, tasks=["apply", "rename"]), saying(1, tasks=["rename"]), saying(2)
    assert read_extra(average_models([(both, 0.5), (both, 0.5)], tmp_path / "a"))["tasks"] == ["apply", "rename"]
    assert read_extra(average_models([(both, 0.5), (one, 0.5)], tmp_path / "b"))["tasks"] == ["rename"]
    assert "tasks" not in read_extra(average_models([(both, 0.5), (none, 0.5)], tmp_path / "c"))
    assert "tasks" not in read_extra(average_models([(none, 0.5), (both, 0.5)], tmp_path / "d"))


def test_no_model_is_overwritten(tmp_path: Path) -> None:
    one, two = made(tmp_path, 0), made(tmp_path, 1)
    before = weights_hash(one)
    with pytest.raises(InputError, match="has a model already: choose another folder"):
        average_models([(one, 0.5), (two, 0.5)], one)
    assert weights_hash(one) == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    one, two = made(tmp_path, 0), made(tmp_path, 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write .*file.*give another --out"):
        average_models([(one, 0.5), (two, 0.5)], tmp_path / "file" / "mean")


def test_the_first_parts_concept_heads_stay_where_others_have_none(tmp_path: Path) -> None:
    plain = made(tmp_path, 0)
    backbone, tokenizer = load_model(plain)
    shape = ConceptShape(known=3, discovered=4, rank=2, kept_known=2, kept_discovered=2)
    with_heads = Backbone(replace(backbone.config, concepts=shape)).initialize(1)
    names = Catalog.numbered(shape)
    first = save_model(tmp_path / "heads", with_heads, tokenizer, catalog=names)
    mean = load_folder(average_models([(first, 0.75), (plain, 0.25)], tmp_path / "mean"))
    assert mean.concepts == names
    heads, other = load_model(first)[0].state_dict(), backbone.state_dict()
    for name, tensor in mean.backbone.state_dict().items():
        exact = heads[name] if name.startswith("concepts.") else 0.75 * heads[name] + 0.25 * other[name]
        assert torch.allclose(tensor, exact, rtol=2**-8, atol=1e-6), name
    with pytest.raises(InputError, match="name the model with heads first"):
        average_models([(plain, 0.5), (first, 0.5)], tmp_path / "no")
