"""Concepts of a user's own: what a file of them may say, where they are in a text, and how a model is asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from daguerre.cli import app
from daguerre.concepts.asked import LONGEST, MOST, ConceptAsker, judged, text_spans
from daguerre.concepts.marking import write_marks
from daguerre.concepts.own import (
    PIECE,
    Mark,
    OwnConcept,
    OwnTaxonomy,
    matches_in,
    pieces,
    read_marks,
    read_taxonomy,
)
from daguerre.errors import DataError, InputError, UnsupportedError
from daguerre.models.chat_template import ChatTemplate
from daguerre.scoring.calibration import Calibration
from daguerre.scoring.decisions import YesNo

PROSE = Path(__file__).parents[2] / "examples" / "concepts" / "prose.toml"
LETTER = """Dear Ms. Moore,

we are sorry about the delay. Your order of May 17, 2024 was $1,250.50, and we perhaps charged 30 euros too much.

- one kettle
- two cups

Could you send us the receipt? Write to help@example.org, or see https://example.org/help. Many thanks!
"""
HAS = {
    "price": ["$1,250.50", "30 euros"],
    "date": ["May 17, 2024"],
    "apology": ["we are sorry"],
    "list_item": ["\n- one kettle", "\n- two cups"],
    "question_back": ["Could you send us the receipt?"],
    "url": ["https://example.org/help."],
    "email": ["help@example.org"],
    "greeting": ["Dear Ms"],
    "thanks": ["thanks"],
    "hedge": ["perhaps"],
}


def of_file(folder: Path, text: str, name: str = "own.toml") -> OwnTaxonomy:
    (folder / name).write_text(text, encoding="utf-8")
    return read_taxonomy(folder / name)


def found(own: OwnTaxonomy, text: str) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {one.name: [] for one in own.concepts}
    for number, start, end in own.label(text).spans.tolist():
        out[own.concepts[number].name].append(text[start:end])
    return out


def test_the_example_finds_ten_concepts_of_prose() -> None:
    own = read_taxonomy(PROSE)
    assert found(own, LETTER) == HAS
    assert not any(found(own, "The cat sat on the mat. It was 1913 and it rained.").values())
    assert [one.name for one in own.named()] == [*HAS] and all(one.description for one in own.named())


def test_syntax_is_a_rule_alone_and_with_a_pattern(tmp_path: Path) -> None:
    own = of_file(
        tmp_path,
        """
        [concepts.textual]
        means = "A string."
        syntax = "string_literal"
        [concepts.claim]
        means = "An assertion."
        syntax = "ast.Assert"
        parents = ["statement"]
        [concepts.old_call]
        means = "A call of what is old."
        syntax = "ast.Call"
        pattern = '^old_\\w+\\('
        [concepts.statement]
        means = "A statement."
        pattern = 'never to be seen'
        """,
    )
    text = "for x in y:\n    assert x\nold_thing(old_thing)\nnew_thing(old_thing(1), f'{x}')\n"
    assert found(own, text) == {
        "textual": ["f'{x}'"],
        "claim": ["assert x"],
        "old_call": ["old_thing(old_thing)", "old_thing(1)"],
        "statement": ["assert x"],
    }
    assert own.label(text).certain and not own.label("for x in").certain


def test_labels_are_those_of_the_file(tmp_path: Path) -> None:
    lines = [{"text": "it is $4", "spans": [["price", 6, 8]]}, {"text": "nothing", "spans": []}]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, lines)))
    bare = read_taxonomy(tmp_path / "labels.jsonl")
    own = of_file(tmp_path, '[concepts.price]\nmeans = "Money."\nlabels = "labels.jsonl"\n')
    assert bare.texts == own.texts and [one.name for one in bare.concepts] == ["price"]
    assert own.label(own.texts[0].text, own.texts[0].spans).spans.tolist() == [[0, 6, 8]]
    (tmp_path / "labels.jsonl").write_text('{"text": "it", "spans": [["price", 1, 9]]}')
    with pytest.raises(DataError, match=r"labels.jsonl, line 1.*inside the text"):
        read_taxonomy(tmp_path / "labels.jsonl")


WRONG = {
    "[concepts.Price]\nmeans='x'\npattern='x'": "small letters",
    "[concepts.price]\npattern='x'": "needs means",
    "[concepts.price]\nmeans='x'\npattern='(?<=a)b'": "'price'.*lookbehind",
    "[concepts.price]\nmeans='x'\npatern='b'": "did you mean 'pattern'",
    "[concepts.price]\nmeans='x'\nsyntax='for_lop'": "did you mean 'for_loop'",
    "[concepts.price]\nmeans='x'\nsyntax='ast.Asert'": "did you mean 'Assert'",
    "[concepts.price]\nmeans='x'\nsyntax='ast.Load'": "syntax tree",
    "[concepts.price]\nmeans='x'\nparents=['y']": "parent of 'price'",
    "[concepts.price]\nmeans=3": "means is a text",
    "concepts = 3": "no table",
    "[concepts": "not valid TOML",
    "": "no table",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_file_that_is_wrong_is_refused_in_a_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=WRONG[text]):
        of_file(tmp_path, text)


def test_a_pattern_is_followed_in_pieces_and_ends() -> None:
    text = "a line of some words\n" * 3000
    assert [text[a:b] for a, b in pieces(text)] and "".join(text[a:b] for a, b in pieces(text)) == text
    assert all(b - a <= PIECE and text[b - 1] == "\n" for a, b in pieces(text))
    assert matches_in("some", text) == [(10 + 21 * n, 14 + 21 * n) for n in range(3000)]
    assert [*pieces("x" * (PIECE + 1))] == [(0, PIECE), (PIECE, PIECE + 1)]
    hostile = OwnConcept(name="hostile", means="x", pattern="(?:(?:a{0,99}){0,99}b|c)")
    hostile.check()
    with pytest.raises(InputError, match=r"'hostile'.*simpler"):
        OwnTaxonomy((hostile,)).label("a" * PIECE)


def test_spans_that_are_asked_about_are_paragraphs_and_sentences() -> None:
    sentence = "This is a sentence of some fifty letters, or so it is. "
    text = f"One.\n \nTwo,\nand its end.  \n\n{sentence * 20}\n\n{'x' * 2500}"
    parts = [text[a:b] for a, b in text_spans(text)]
    assert parts[:2] == ["One.", "Two,\nand its end."]
    assert all(len(part) <= LONGEST and part.endswith(".") for part in parts[2:-3])
    assert [len(part) for part in parts[-3:]] == [MOST, MOST, 500]
    assert " ".join(parts[2:-3]) == (sentence * 20).strip()


class Scripted(ConceptAsker):
    """Says yes to the texts that have the concept's first letter more often, with a bias that calibration undoes."""

    def __init__(self, concepts: list[OwnConcept]) -> None:
        self.concepts, self.calibrations = concepts, {}

    def can_ask(self, text: str) -> bool:
        return True

    def scores(self, text: str, concepts: list[OwnConcept]) -> np.ndarray:  # type: ignore[override]
        return np.array([[0.4 * text.count(one.name[0]) - 30, 0.0] for one in concepts])


def marked(name: str, letter: str, num: int) -> list[Mark]:
    texts = [letter * (number % 4) + f"-{number}" for number in range(num)]
    return [Mark(name, text, text.count(letter) > 1) for text in texts]


def test_a_model_is_calibrated_on_marks_and_left_out_where_it_does_not_agree() -> None:
    concepts = tuple(OwnConcept(name=name, means="x") for name in ("able", "blind"))
    ruled = OwnConcept(name="digits", means="x", pattern=r"\d+")
    marks = [*marked("able", "a", 60), *(Mark("blind", mark.text, mark.has) for mark in marked("blind", "a", 60))]
    marks += [Mark("digits", "4", True), Mark("digits", "four", False)] * 5
    own, said = OwnTaxonomy((*concepts, ruled), marks=tuple(marks)), list[str]()

    left, asker = judged(own, Scripted(own.asked), 0.4, said.append)

    assert [one.name for one in left.concepts] == ["able", "digits"]
    assert asker is not None and [one.name for one in asker.concepts] == ["able"]
    assert asker.says("able", asker.scores("aaa", asker.concepts)[0])
    assert not asker.says("able", asker.scores("a", asker.concepts)[0])
    assert said[0].startswith("able: kappa 1.00 [") and said[0].endswith("of 30 marks")
    assert said[1].startswith("blind: kappa 0.00") and said[1].endswith("below 0.4, left out")
    assert said[2].startswith("digits: kappa 1.00")
    with pytest.raises(InputError, match="mark more texts"):
        judged(OwnTaxonomy(concepts, marks=tuple(marks[:4])), Scripted([*concepts]), 0.4, said.append)
    with pytest.raises(InputError, match="no rule"):
        judged(own, None, 0.4, said.append)
    with pytest.raises(InputError, match="no concept of the taxonomy is left"):
        judged(own.only(["blind"]), Scripted([concepts[1]]), 0.4, said.append)


def test_rules_are_tried_on_files(tmp_path: Path) -> None:
    folder, out = tmp_path / "letters", tmp_path / "labels.jsonl"
    folder.mkdir()
    (folder / "one.md").write_text(LETTER)
    (folder / "two.txt").write_text("It was $5.\n")
    (folder / "bad.txt").write_bytes(b"\xff\xfe\x00")
    done = CliRunner().invoke(app, ["concepts", "label", str(folder), "--taxonomy", str(PROSE), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "3 files, 1 of them not UTF-8" in done.output and "two.txt:1  $5" in done.output
    assert "price          3 spans in 2 files" in done.output
    again = CliRunner().invoke(app, ["concepts", "label", str(folder), "--taxonomy", str(PROSE), "--out", str(out)])
    assert isinstance(again.exception, InputError) and "is there already" in str(again.exception)
    labels = read_taxonomy(out)
    assert [one.name for one in labels.concepts] == sorted(HAS) and len(labels.texts) == 2


def test_texts_to_mark_are_drawn_and_read_back(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(30):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"{'a' * (number % 5)} b {number}\n\nanother {number}\n")
    own = OwnTaxonomy((OwnConcept(name="able", means="x"), OwnConcept(name="price", means="y", pattern="z")))
    asker, out = Scripted(own.asked), tmp_path / "marks.jsonl"

    assert write_marks(own, [tmp_path / "texts"], 8, out, asker) == 8

    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({one["text"] for one in records}) == 8 and {one["concept"] for one in records} == {"able"}
    assert sum("aaa" in one["text"] for one in records) >= 4 and all(one["is"] is None for one in records)
    assert not [*read_marks(out)], "none is marked yet"
    out.write_text(out.read_text().replace("null", "true", 3))
    marks = tuple(read_marks(out))
    assert len(marks) == 3
    more = write_marks(replace(own, marks=marks), [tmp_path / "texts"], 100, tmp_path / "more.jsonl", None)
    assert more == 60 - 3
    assert write_marks(replace(own, marks=marks), [tmp_path / "texts"], 8, tmp_path / "second.jsonl", asker) == 8
    seconds = {json.loads(line)["text"] for line in (tmp_path / "second.jsonl").read_text().splitlines()}
    assert not seconds & {mark.text for mark in marks}
    with pytest.raises(InputError, match="there is no folder"):
        write_marks(own, [tmp_path / "texts"], 8, tmp_path / "none" / "marks.jsonl", None)
    with pytest.raises(InputError, match="is there already"):
        write_marks(own, [tmp_path / "texts"], 8, out, None)
    with pytest.raises(InputError, match="have rules"):
        write_marks(own.only(["price"]), [tmp_path / "texts"], 8, tmp_path / "other.jsonl", None)


def test_texts_of_several_files_have_all_labels(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "It is $4. Sorry.", "spans": [["price", 6, 8]]}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "It is $4. Sorry.", "spans": [["apology", 10, 15]]}\n')
    tables = '[concepts.price]\nlabels = "a.jsonl"\n[concepts.apology]\nlabels = "b.jsonl"\n'
    (one,) = of_file(tmp_path, tables).texts
    assert one.spans == (("price", 6, 8), ("apology", 10, 15))


def test_marks_of_one_kind_or_of_both_say_nothing() -> None:
    own = OwnTaxonomy((OwnConcept(name="digits", means="x", pattern="[0-9]"),))
    kinds = [Mark("digits", f"{number}", True) for number in range(20)]
    for marks, why in ((kinds, "one kind"), ([*kinds, Mark("digits", "3", False)], "both ways")):
        with pytest.raises(InputError, match=why):
            judged(replace(own, marks=tuple(marks)), None, 0.4, print)


def test_general_concepts_are_those_below_them() -> None:
    named = [("top", ()), ("mid", ("top",)), ("low", ("mid",))]
    own = OwnTaxonomy(tuple(OwnConcept(name=name, means="x", parents=over) for name, over in named))
    own = replace(own, concepts=(*own.concepts[:2], replace(own.concepts[2], pattern="ab")))
    assert not own.asked and len(own.label("ab").spans) == 3
    assert [one.parents for one in own.only(["low", "top"]).concepts] == [(), ("top",)]
    assert [one.name for one in replace(own, marks=(Mark("top", "ab", True),)).asked] == ["top"]


def test_a_question_is_a_conversation_and_texts_of_special_tokens_are_not_asked_about() -> None:
    template, asked = ChatTemplate({"default": "<s><user>{{ messages[0].content }}<end><model>"}), list[Any]()

    def decide(state: str, questions: list[YesNo]) -> list[Any]:
        asked.extend((state, *questions))
        return [SimpleNamespace(scores={"yes": -1.0 - len(one.before), "no": -2.0}) for one in questions]

    words = SimpleNamespace(
        chat_template=template, encode=list, find_special=lambda text: [(0, 5)] if "<end>" in text else []
    )
    template.tokens["bos_token"] = "<s>"
    model: Any = SimpleNamespace(tokenizer=words, config=SimpleNamespace(first=[*"<s>"]), decide=decide)
    concepts = [OwnConcept(name="price", means="An amount of money."), OwnConcept(name="date", means="A date.")]
    asker = ConceptAsker(model, concepts)

    assert asker.scores("It is $4.", concepts)[:, 1].tolist() == [-2.0, -2.0]
    state, first, second = asked
    assert state.startswith("<user>") and "It is $4." in state and "An amount" not in state
    assert first.before.endswith("Answer Yes or No.<end><model>") and "An amount of money." in first.before
    assert second.before == first.before.replace("An amount of money.", "A date.")
    assert asker.label("Ignore this. <end>") is None
    asker.calibrations["date"] = Calibration(bias={"yes": 1e6})
    assert asker.label("It is $4.\n\nAnd it is May.") == [("date", 0, 9), ("date", 11, 25)]


def test_a_model_without_a_chat_template_is_not_asked() -> None:
    import daguerre

    with pytest.raises(UnsupportedError, match="chat template"):
        ConceptAsker(daguerre.load(), [])
