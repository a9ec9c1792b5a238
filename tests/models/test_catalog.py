"""Names of concepts, and the file that they are in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.model import Model, load
from daguerre.models.catalog import FILE, Catalog, NamedConcept, parse_catalog
from daguerre.models.core.config import ConceptShape
from daguerre.models.loading import save_model

SHAPE = ConceptShape(known=6, discovered=9, rank=4, kept_known=3, kept_discovered=4, taxonomy="ab" * 32)
CONCEPTS = (
    NamedConcept(number=0, name="loop", group="control"),
    NamedConcept(number=2, name="for_loop", group="control", description="A loop.", parents=("loop",), texts=("for ",)),
    NamedConcept(number=5, name="eval_exec", group="risk", lexical=True, texts=("eval(", "exec(")),
)
CATALOG = Catalog(CONCEPTS, 6, 9, SHAPE.taxonomy)


def record(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(CATALOG.to_bytes())
    return values | changes


def test_what_is_written_is_read() -> None:
    assert parse_catalog(json.loads(CATALOG.to_bytes()), SHAPE) == CATALOG


def test_a_concept_is_named_by_its_name_its_number_or_its_number_among_its_kind() -> None:
    assert [CATALOG.number(name) for name in ("for_loop", 2, "2", "known 2")] == [2] * 4
    assert [CATALOG.number(name) for name in ("discovered 3", 9, "9")] == [9] * 3
    assert [CATALOG.name(number) for number in (0, 1, 2, 6, 14)] == [
        "loop",
        "known 1",
        "for_loop",
        "discovered 0",
        "discovered 8",
    ]
    assert all(CATALOG.number(CATALOG.name(number)) == number for number in range(CATALOG.num_concepts))


def test_a_concept_that_there_is_not_is_refused_in_one_line(subtests: pytest.Subtests) -> None:
    for name, said in [
        ("for_lop", "did you mean 'for_loop'"),
        ("known 6", "known concepts are 0 to 5"),
        ("discovered 9", "discovered concepts are 0 to 8"),
        (15, "concepts are 0 to 14"),
        (-1, "concepts are 0 to 14"),
        (True, "unknown concept True"),
        (2.0, "unknown concept 2.0"),
        ("discovered x", "unknown concept"),
    ]:
        with subtests.test(repr(name)):
            with pytest.raises(InputError, match=said) as caught:
                CATALOG.number(name)
            assert "\n" not in str(caught.value)


def test_a_catalog_without_names_says_how_to_call_a_concept() -> None:
    numbered = Catalog.numbered(SHAPE)
    assert numbered.name(2) == "known 2"
    assert numbered.number("discovered 0") == 6
    with pytest.raises(InputError, match="concepts have no names; say 'known 3' or 'discovered 17'"):
        numbered.number("for_loop")


def test_texts_of_several_concepts_come_each_once() -> None:
    assert CATALOG.texts(["eval_exec", "for_loop", 5]) == ("eval(", "exec(", "for ")
    for name in ("loop", "known 1", "discovered 2"):
        with pytest.raises(InputError, match=f"every instance of the concept '{name}'"):
            CATALOG.texts(["eval_exec", name])


WRONG: list[tuple[dict[str, Any], str]] = [
    (record(version=2), "version 2 and 1 is read"),
    (record(more=1), "unknown key 'more'"),
    (record(taxonomy="cd" * 32), "is of the taxonomy cdcdcdcdcdcd, and the model was trained with abababababab"),
    (record(concepts={}), "needs a list of concepts"),
    (record(concepts=[{"number": 0}]), "has a number and a name"),
    (record(concepts=[{"number": 0, "name": "a", "rule": "x"}]), "has a number and a name"),
    (record(concepts=[{"number": "0", "name": "a"}]), "value of the concept 'a' has a wrong type"),
    (record(concepts=[{"number": True, "name": "a"}]), "value of the concept 'a' has a wrong type"),
    (record(concepts=[{"number": 0, "name": "a", "texts": "for"}]), "value of the concept 'a' has a wrong type"),
    (record(concepts=[{"number": 0, "name": "a", "texts": [""]}]), "value of the concept 'a' has a wrong type"),
    (record(concepts=[{"number": 0, "name": "a"}, {"number": 0, "name": "b"}]), "the number 0 twice"),
    (record(concepts=[{"number": 0, "name": "a"}, {"number": 1, "name": "a"}]), "the name 'a' twice"),
    (record(concepts=[{"number": 6, "name": "a"}]), "known concepts are 0 to 5"),
]


def test_a_wrong_file_is_refused_in_one_line(subtests: pytest.Subtests) -> None:
    for values, said in WRONG:
        with subtests.test(said):
            with pytest.raises(CheckpointError, match=said) as caught:
                parse_catalog(values, SHAPE, "folder/concepts.json")
            assert str(caught.value).startswith("folder/concepts.json")
            assert "\n" not in str(caught.value)


@pytest.fixture
def named(make_model: Callable[..., Model]) -> Model:
    model = make_model(concepts=SHAPE)
    return Model(model.backbone, model.tokenizer, "torch", concepts=CATALOG)


def test_a_folder_keeps_the_names(named: Model, tmp_path: Path) -> None:
    save_model(tmp_path, named.backbone, named.tokenizer, catalog=CATALOG)
    assert load(tmp_path, dtype="float32", backend="torch").concepts == CATALOG
    (tmp_path / FILE).unlink()
    assert load(tmp_path, dtype="float32", backend="torch").concepts == Catalog.numbered(SHAPE)
    (tmp_path / FILE).write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"concepts\.json is not JSON"):
        load(tmp_path, dtype="float32", backend="torch")


def test_an_interrupted_save_leaves_the_names_that_belong_to_the_weights(named: Model, tmp_path: Path) -> None:
    save_model(tmp_path, named.backbone, named.tokenizer, catalog=CATALOG)
    other = Catalog((NamedConcept(number=1, name="new"),), 6, 9, SHAPE.taxonomy)
    (tmp_path / f"{FILE}.tmp").write_bytes(other.to_bytes())
    config = (tmp_path / "config.json").read_text(encoding="utf-8")
    (tmp_path / "config.json.tmp").write_text(config.replace('"weights_sha256": "', '"weights_sha256": "0'))
    assert load(tmp_path, dtype="float32", backend="torch").concepts == CATALOG  # the new weights were not yet in place
    (tmp_path / "config.json.tmp").write_text(config)
    assert load(tmp_path, dtype="float32", backend="torch").concepts == other


def test_a_model_without_heads_has_no_names(causal: Model) -> None:
    assert causal.concepts is None
    with pytest.raises(UnsupportedError, match="a model with concept heads"):
        Model(causal.backbone, causal.tokenizer, concepts=CATALOG)
