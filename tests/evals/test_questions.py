"""Questions about code: their answers are those of the source, and their gaps are where the source has them."""

from __future__ import annotations

from daguerre.evals.questions import CONTROL, KINDS, QuestionExample, make_questions
from daguerre.heldout import Document, load_frozen
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.decisions import YesNo

CODE = '''\
def first(alpha, beta=3) -> int:
    """Doc."""
    if alpha not in beta and alpha == 2:
        return alpha
    gamma = alpha + beta
    return gamma + alpha


def second(box):
    for each in box:
        first(each, box)
    return


def stub(box) -> str: ...


def numbers():
    yield 7


class Later:
    async def third(
        self, box
    ):
        return await box
'''


def document(text: str) -> Document:
    return Document("p", "1", "", "a", str(hash(text)), text)


def questions(kind: str, text: str = CODE, limit: int = 100) -> list[QuestionExample]:
    return make_questions([document(text)], kind, limit, 1024)


def right(each: QuestionExample) -> str:
    return list(each.question.texts.values())[each.truth]


def test_the_right_label_in_the_gap_gives_the_line_back() -> None:
    lines = CODE.split("\n")
    for kind in ("keyword", "operator", "name", "digit"):
        found = questions(kind)
        assert found, kind
        for each in found:
            line = each.question.before + right(each) + each.question.after
            assert line.rstrip("\n") == lines[each.line]
            assert each.state == "".join(f"{line}\n" for line in lines[: each.line])


def test_every_keyword_comparison_and_digit_is_asked_for() -> None:
    assert sorted(map(right, questions("operator"))) == ["==", "not in"]
    assert sorted(map(right, questions("digit"))) == ["2", "3", "7"]
    keywords = [right(each) for each in questions("keyword")]
    assert {word: keywords.count(word) for word in ("def", "return", "in", "not", "yield", "async", "await")} == {
        "def": 5, "return": 4, "in": 2, "not": 1, "yield": 1, "async": 1, "await": 1,
    }  # fmt: skip


def test_a_function_returns_a_value_or_not_and_does_not_say_so_in_its_header() -> None:
    found = {each.question.before.split("(")[0].split()[-1]: each for each in questions("returns")}

    assert {name: each.truth == 0 for name, each in found.items()} == {"first": True, "second": False, "third": True}
    assert found["first"].question.before == "def first(alpha, beta=3) ->"
    assert found["first"].question.after.startswith(':\n    """Doc."""\n    if alpha')
    assert found["third"].question.before == "    async def third(\n        self, box\n    ) ->"
    assert found["third"].question.after == ":\n        return await box\n"


def test_a_name_is_bound_in_the_text_shown_or_does_not_occur_in_it() -> None:
    found = questions("defined", CODE * 2 + "other = 1\n" * 30 + "final = 2\n")

    assert {each.truth for each in found} == {0, 1}
    for each in found:
        assert isinstance(each.question, YesNo)
        assert each.question.no == CONTROL
        assert (each.question.yes in each.state) == (each.truth == 0)


def test_names_to_choose_from_are_those_last_read() -> None:
    text = "a_1 = b_1 = c_1 = d_1 = 0\nprint(a_1, b_1, c_1)\nuse = d_1 + b_1\n"
    found = questions("name", text)

    (last,) = (each for each in found if each.line == 2 and each.question.before == "use = d_1 + ")
    assert list(last.question.texts) == ["d_1", "c_1", "b_1", "a_1"]
    assert right(last) == "b_1"


def test_questions_are_repeatable_spread_and_fit_the_model(tokenizer: Tokenizer) -> None:
    some = load_frozen()[:7]
    for kind in KINDS:
        found = make_questions(some, kind, 12, 256)
        assert found == make_questions(some[::-1], kind, 12, 256), kind
        assert make_questions(some, kind, 12, 256, seed=1) != found, kind
        assert len({each.document.sha256 for each in found}) >= 4, kind
        for each in found:
            for text in each.question.texts.values():
                whole = each.state + each.question.before + text + each.question.after
                assert len(tokenizer.encode(whole)) < 256


def test_what_is_not_python_has_no_question() -> None:
    for text in ("", "def (", "x = 1\r\n", "\x0cx == 1\n"):
        assert all(questions(kind, text) == [] for kind in KINDS)
