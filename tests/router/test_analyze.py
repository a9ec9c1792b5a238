"""What a log shows: a log that a reader can count, a slow restatement, logs of the router itself, and the command."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from daguerre.errors import DataError, InputError
from daguerre.router.analyze import analyze
from daguerre.router.commands import analyze as command
from daguerre.router.config import Config
from daguerre.router.counterfactual import Measure, logged_of
from daguerre.router.log import read_shadows, replay
from daguerre.router.rows import read_rows
from made_logs import Made, answered, decided, draw, shadow, write
from router.test_proxy import SAY, ask, routed
from routing import backend, config, request
from scripted_backends import Scripted

EXPLORE = {"share": 0.4}
CHEAP, DEAR = {"input": 1.0, "output": 4.0}, {"input": 10.0, "output": 40.0}
BOTH = config(
    backend("cheap", price=CHEAP, quality={"default": 0.7}),
    backend("dear", price=DEAR, quality={"default": 0.9}),
    explore=EXPLORE,
    steps={"plan": {"slo_ms": 200}, "facts": {"quality": 0}},
)
STRICT = config(
    backend("cheap", price=CHEAP, quality={"default": 0.7}),
    backend("dear", price=DEAR, quality={"default": 0.9}),
    steps={"plan": {"slo_ms": 200}, "facts": {"quality": 0.8}},
)
TRUTH = {"cheap": {"plan": 0.8, "facts": 0.3}, "dear": {"plan": 0.9, "facts": 0.9}}


def right(name: str, step: str) -> float:
    return TRUTH[name][step]


def counted() -> Made:
    """A log of seven requests: answered, retried, fallen back, hedged, failed, refused, left, from the cache."""
    out = Made()
    for number in range(8):
        line, _ = decided(number, request(stream=number < 4, input_tokens=100, output_tokens=10), BOTH)
        out.append(line)
    out[0] = answered(out[0], "cheap", 100.0, 0.001, grade=1.0)
    out[1] = answered(out[1], "cheap", 300.0, 0.002, grade=0.5)
    out[1]["attempts"].insert(0, {"backend": "cheap", "begun_ms": 0.1, "error": "status", "status": 500})
    out[2] = answered(out[2], "dear", 150.0, 0.004)
    out[2]["attempts"].insert(0, {"backend": "cheap", "begun_ms": 0.1, "error": "timeout", "status": None})
    out[3] = answered(out[3], "dear", 50.0, 0.004)
    out[3]["attempts"][-1]["hedge"] = True
    out[3]["attempts"].insert(0, {"backend": "cheap", "begun_ms": 0.1})
    failed = {"backend": "cheap", "begun_ms": 0.1, "error": "status", "message": "500", "status": 500}
    out[4] |= {"attempts": [failed, failed], "status": 502, "ms": 20.0}
    out[5] |= {"attempts": [{"backend": "cheap", "begun_ms": 0.1, "status": 422, "ms": 3.0}], "status": 422, "ms": 3.0}
    out[6] |= {"attempts": [{"backend": "cheap", "begun_ms": 0.1}], "status": 499, "ms": 3.0}
    out[7] |= {"attempts": [], "status": 200, "ms": 1.0, "cost": 0.0, "cache": "hit"}
    return out


def test_every_number_of_a_small_log_is_what_a_reader_counts(tmp_path: Path) -> None:
    found = analyze(write(tmp_path / "log.jsonl", BOTH, counted()))
    all_ = found.overall
    assert (all_.num, all_.answered, all_.failed, all_.refused, all_.left) == (8, 5, 1, 1, 1)
    assert (all_.retries, all_.fallbacks, all_.hedges) == (2, 1, 1)
    assert all_.cache == {"hit": 1, "near": 0, "miss": 0} and all_.hits is not None and all_.hits.value == 1.0
    assert all_.paid == pytest.approx(0.011) and (all_.input, all_.output) == (400, 40)
    assert all_.cost is not None and all_.cost.value == pytest.approx(0.011 / 5)
    assert all_.quality is not None and (all_.quality.value, all_.quality.num) == (0.75, 2)
    assert all_.within is not None and (all_.within.value, all_.within.num) == (pytest.approx(4 / 6), 6)
    assert all_.burn is not None and all_.burn.value == pytest.approx((2 / 6) / 0.05)
    assert all_.whole_p50 is not None and all_.whole_p50.value == 100.0
    assert all_.first_p50 is not None and (all_.first_p50.value, all_.first_p50.num) == (62.5, 4)
    cheap, dear = found.backends["cheap"], found.backends["dear"]
    assert (cheap.attempts, dear.attempts) == (9, 2) and cheap.answers.num == 2 and dear.answers.num == 2
    assert cheap.failures is not None and cheap.failures.value == pytest.approx(4 / 9)
    assert dear.whole_p50 is not None and dear.whole_p50.value == pytest.approx((149 + 49) / 2)
    by_name = {each.backend: each for each in found.baselines}
    each_cheap, each_dear = (100 * 1 + 10 * 4) / 1e6, (100 * 10 + 10 * 40) / 1e6
    assert by_name["cheap"].paid == pytest.approx(4 * each_cheap) and by_name["cheap"].num == 4
    assert by_name["dear"].saving.value == pytest.approx((4 * each_dear - 0.011) / (4 * each_dear))
    assert sum(each.num for each in found.spans) == 8 and found.other is None


def test_a_random_log_is_what_a_slow_restatement_says(tmp_path: Path) -> None:
    lines = draw(BOTH, 300, right, lambda name, step: {"cheap": 80.0, "dear": 300.0}[name], shadows=0.3)
    found = analyze(write(tmp_path / "log.jsonl", BOTH, lines))
    whole = [line for line in lines if "decision" in line]
    for step in ("plan", "facts"):
        some = [line for line in whole if line["decision"]["step"] == step]
        group = found.steps[step]
        assert group.num == len(some)
        assert group.paid == pytest.approx(sum(line["cost"] for line in some))
        assert group.quality is not None and group.whole_p95 is not None
        assert group.quality.value == pytest.approx(statistics.fmean(line["grade"] for line in some))
        cuts = statistics.quantiles([line["ms"] for line in some], n=20, method="inclusive")
        assert group.whole_p95.value == pytest.approx(cuts[-1])
        low, high = group.whole_p95.low, group.whole_p95.high
        assert low is not None and high is not None and low < cuts[-1] < high
    plan = [line["ms"] <= 200 for line in whole if line["decision"]["step"] == "plan"]
    assert found.overall.within is not None and found.overall.within.value == pytest.approx(statistics.fmean(plan))
    assert found.steps["facts"].within is None and found.steps["facts"].burn is None
    for name, group in found.backends.items():
        assert group.answers.num == sum(line["attempts"][0]["backend"] == name for line in whole)
    assert found.shadows.num == len(lines) - len(whole)


def test_the_value_of_another_configuration_holds_the_truth(tmp_path: Path) -> None:
    lines = draw(BOTH, 1500, right, lambda name, step: {"cheap": 80.0, "dear": 300.0}[name], seed=2, shadows=0.2)
    found = analyze(write(tmp_path / "log.jsonl", BOTH, lines), STRICT).other
    assert found is not None and found.refused == 0
    facts = sum(line["decision"]["step"] == "facts" for line in lines if "decision" in line) / 1500
    truth = facts * 0.9 + (1 - facts) * 0.8
    assert found.overall.unsupported == 0
    assert found.overall.changed == pytest.approx(facts * 0.8 + (1 - facts) * 0.2, abs=1e-4)
    assert found.overall.target == pytest.approx({"cheap": 1 - facts, "dear": facts}, abs=1e-4)
    for each in (*found.quality.estimates.values(), found.both_known):
        assert each is not None and each.low is not None and each.high is not None
        assert each.low <= truth <= each.high and each.high - each.low < 0.2
    own = sum(line["grade"] for line in lines if "grade" in line and "decision" in line) / 1500
    assert found.quality.gain is not None and found.quality.gain.value == pytest.approx(truth - own, abs=0.06)
    assert found.cost is not None
    expected = facts * (100 * 10 + 10 * 40) / 1e6 + (1 - facts) * (100 * 1 + 10 * 4) / 1e6
    assert found.cost.value == pytest.approx(expected, rel=1e-5)
    assert found.within is not None and set(found.by_step) == {"plan", "facts"}
    late = found.within.estimates["dr"]
    assert late.low is not None and late.high is not None and late.low <= 0.967 <= late.high
    assert len(found.quantiles) == 2 and found.quantiles[0].value < found.quantiles[1].value


def test_the_logs_own_configuration_is_worth_what_the_log_shows(tmp_path: Path) -> None:
    found = analyze(write(tmp_path / "log.jsonl", BOTH, draw(BOTH, 200, right)), BOTH)
    other, own = found.other, found.overall
    assert other is not None and own.quality is not None and own.cost is not None and other.cost is not None
    assert other.overall.changed == 0 and other.overall.unsupported == 0 and other.quality.ess == pytest.approx(200)
    assert other.quality.estimates["ips"].value == pytest.approx(own.quality.value)
    assert other.quality.estimates["snips"].value == pytest.approx(own.quality.value)


def without_exploration(**more: Any) -> Config:
    plain = [backend(name, price=price) for name, price in (("cheap", CHEAP), ("dear", DEAR))]
    return config(plain[0] | more, plain[1])


def test_what_the_log_never_did_has_no_support_and_no_number(tmp_path: Path) -> None:
    only = without_exploration()
    path = write(tmp_path / "log.jsonl", only, draw(only, 200, right))
    dear = config(backend("dear", price=DEAR))
    found = analyze(path, dear).other
    assert found is not None and found.overall.unsupported == 1.0 and not found.quality.estimates
    assert found.quality.why is not None and found.quality.why.startswith("no support: ")
    assert not found.quantiles and not found.ms.estimates and found.quality.gain is None
    assert found.cost is not None and found.cost.value == pytest.approx((100 * 10 + 10 * 40) / 1e6)


@pytest.mark.parametrize(
    "more", [{"model": "new"}, {"url": "http://127.0.0.1:2/v1"}, {"body": {"daguerre": {"mode": "ar"}}}]
)
def test_another_model_by_the_same_name_has_no_support(tmp_path: Path, more: dict[str, Any]) -> None:
    only = without_exploration()
    path = write(tmp_path / "log.jsonl", only, draw(only, 100, right))
    same, changed = (
        analyze(path, without_exploration(most_in_flight=9)).other,
        analyze(path, without_exploration(**more)).other,
    )
    assert same is not None and same.quality.estimates and same.overall.unsupported == 0
    assert changed is not None and not changed.quality.estimates and changed.overall.unsupported == 1.0
    assert any("goes by the name of cheap" in note for note in changed.notes)
    assert not any("goes by the name of" in note for note in same.notes)


def test_requests_that_the_other_configuration_cannot_serve_are_counted_apart(tmp_path: Path) -> None:
    lines = draw(BOTH, 100, right)
    short = config(backend("cheap", price=CHEAP, context=50))
    found = analyze(write(tmp_path / "log.jsonl", BOTH, lines), short).other
    assert found is not None and found.refused == 100 and found.overall.num == 0 and not found.quality.estimates


def test_what_a_baseline_cannot_serve_costs_what_it_did(tmp_path: Path) -> None:
    small = config(backend("small", context=60, price=CHEAP), backend("large", price=DEAR))
    lines = []
    for number, tokens in enumerate((10, 100, 100)):
        line, decision = decided(number, request(input_tokens=tokens, output_tokens=10), small)
        assert decision.backend == ("small" if tokens == 10 else "large")
        lines.append(answered(line, decision.backend, 9.0, 0.5))
    found = {each.backend: each for each in analyze(write(tmp_path / "log.jsonl", small, lines)).baselines}
    assert found["small"].others == pytest.approx(2 / 3) and found["large"].others == 0
    assert found["small"].paid == pytest.approx(1.0 + (100 * 1 + 10 * 4) / 1e6)
    assert found["large"].paid == pytest.approx(3 * (100 * 10 + 10 * 40) / 1e6)


def test_the_model_of_quality_begins_at_what_was_predicted_and_learns_from_shadows(tmp_path: Path) -> None:
    three = config(*(backend(name, price={"request": place / 100}, quality={"default": 0.6})
                     for place, name in enumerate(("a", "b", "c"))))  # fmt: skip
    lines = draw(three, 200, lambda name, step: {"a": 0.6, "b": 0.0, "c": 1.0}[name], shadows=1.0)
    rows = read_rows(write(tmp_path / "log.jsonl", three, lines), three)
    grade = Measure(rows.requests["grade"], bounded=True, graded=True)
    model = logged_of(rows, rows.answered, grade).model.mean(0)
    assert model[0] == pytest.approx(0.6, abs=0.1) and model[1] < 0.1
    assert model[2] == pytest.approx(0.6 + (model[0] + model[1]) / 2 - 0.6, abs=0.06)
    plain = Measure(rows.requests["grade"], bounded=True)
    assert logged_of(rows, rows.answered, plain).model.mean(0)[1] > 0.4


def test_what_the_cache_answered_is_no_decision_to_value(tmp_path: Path) -> None:
    lines = draw(BOTH, 100, right)
    hits = [line | {"cache": "hit", "attempts": [], "cost": 0.0} for line in draw(BOTH, 40, right, seed=1)]
    missed = [line | {"cache": "miss"} for line in lines]
    found = analyze(write(tmp_path / "log.jsonl", BOTH, missed + hits), STRICT)
    assert found.overall.num == 140 and found.overall.hits is not None and found.overall.hits.value == 40 / 140
    assert found.other is not None and found.other.overall.num == 100


def test_what_was_never_graded_must_have_support_too(tmp_path: Path) -> None:
    """Plans are graded, and the other configuration does with them what the log does; facts go where none went."""
    logged = config(backend("cheap", price=CHEAP), backend("dear", price=DEAR))
    other = config(backend("cheap", price=CHEAP, quality={"facts": 0.1}), backend("dear", price=DEAR),
                   steps={"facts": {"quality": 0.4}})  # fmt: skip
    lines = draw(logged, 200, right)
    for line in lines:
        if line["decision"]["step"] == "facts":
            del line["grade"]
    found = analyze(write(tmp_path / "log.jsonl", logged, lines), other).other
    assert found is not None and not found.quality.estimates and found.quality.gain is None
    assert found.quality.why is not None and f"{found.overall.unsupported:.1%}" in found.quality.why
    assert found.by_step["plan"].estimates and found.steps["facts"].unsupported == 1.0


def test_the_routers_own_log_with_exploration_is_valued(tmp_path: Path) -> None:
    with routed(Scripted(), Scripted(), explore={"share": 1.0}, steps={"plan": {"slo_ms": 5000}}) as (url, log):
        for number in range(80):
            assert ask(url, SAY | {"max_tokens": 10 + number}).status_code == 200
        lines = log.of_requests(80)
    for line in lines:
        line["grade"] = {"a": 0.0, "b": 1.0}[line["decision"]["backend"]]
        log.append(shadow(line["id"], "b", 1.0, line["grade"], 0.01))
    path = log.write(tmp_path / "log.jsonl")
    again = replay(path)
    assert (again.decisions, again.differing, again.cut_off) == (80, (), 0)
    used = Config.model_validate(log[0]["value"])
    other = Config.model_validate(log[0]["value"] | {"backends": log[0]["value"]["backends"][1:], "explore": {}})
    found = analyze(path, other)
    share = sum(line["decision"]["backend"] == "b" for line in lines) / 80
    assert found.overall.quality is not None and found.overall.quality.value == pytest.approx(share)
    assert found.overall.num == found.overall.answered == 80 and found.configs == [used.sha256]
    assert found.other is not None and found.other.quality.ess == pytest.approx(80 * share)
    assert found.other.quality.estimates["snips"].value == 1.0
    assert found.other.quality.estimates["ips"].value == pytest.approx(share / 0.5)
    assert found.other.both_known is not None and found.other.both_known.value == 1.0
    assert {each.main for each in found.shadows.pairs} == {"a"}


def test_shadows_are_read_wherever_they_stand_and_never_decided_again(tmp_path: Path) -> None:
    line, _ = decided(0, request(), BOTH)
    lines = [shadow("r0", "dear", 1.0, 0.0, None), answered(line, "cheap", 9.0, 0.1, body={"text": '"shadow_of"'})]
    path = write(tmp_path / "log.jsonl", BOTH, lines)
    with path.open("a") as file:
        file.write('{"shadow_of": "r0", "back\n')
    assert replay(path).decisions == 1 and replay(path).cut_off == 1
    (only,) = read_shadows(path)["r0"]
    assert (only.backend, only.exact, only.grade, only.main_grade, only.cost) == ("dear", False, 1.0, 0.0, None)
    found = analyze(path)
    assert found.overall.quality is not None and found.overall.quality.value == 0.0 and found.cut_off == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"decision": {"config": "?"}}', "line 2 of .* is no line of a router's log: KeyError"),
        ("no json}", "line 2 of .* is no JSON"),
        ("[1]", "line 2 of .* is no line of a router's log"),
        ("7", "line 2 of .* is no line of a router's log"),
    ],
)
def test_a_file_that_no_router_has_written_is_one_error_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path / "log.jsonl", BOTH, [])
    path.write_text(path.read_text() + text + "\n")
    with pytest.raises(DataError, match=said):
        replay(path)
    with pytest.raises(DataError, match=said):
        analyze(path)


@pytest.mark.parametrize("more", [{}, {"backend": "a", "ms": "soon"}])
def test_a_shadow_that_no_router_has_written_is_an_error_of_analysis(tmp_path: Path, more: dict[str, Any]) -> None:
    path = write(tmp_path / "log.jsonl", BOTH, [{"shadow_of": "r1"} | more])
    with pytest.raises(DataError, match=r"line 2 of .* is no line of a router's log: (Key|Value)Error"):
        analyze(path)


@pytest.mark.parametrize("field", ["features", "decision", "attempts", "status", "time"])
def test_a_line_that_lacks_what_analysis_needs_is_one_error_with_its_line(tmp_path: Path, field: str) -> None:
    lines = counted()
    del lines[3][field]
    with pytest.raises(DataError, match=r"line 5 of .* is no line of a router's log"):
        analyze(write(tmp_path / "log.jsonl", BOTH, lines))


def test_a_propensity_that_is_not_the_configurations_is_an_error(tmp_path: Path) -> None:
    lines = counted()
    lines[0]["decision"]["propensity"] = 0.5
    path = write(tmp_path / "log.jsonl", BOTH, lines)
    with pytest.raises(DataError, match=r"line 2 .* daguerre route replay"):
        analyze(path, STRICT)


def test_a_log_without_a_request_has_no_numbers(tmp_path: Path) -> None:
    found = analyze(write(tmp_path / "log.jsonl", BOTH, []), STRICT)
    assert found.overall.num == 0 and found.overall.cost is None and found.overall.within is None
    assert found.other is not None and found.other.cost is None and found.other.quality.why is not None


app = typer.Typer()
app.command()(command)


def test_the_command_prints_tables_json_and_a_page(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", BOTH, draw(BOTH, 120, right, shadows=0.5))
    other = tmp_path / "other.toml"
    other.write_text(
        '[[backends]]\nname = "dear"\nurl = "http://127.0.0.1:1/v1"\nmodel = "dear"\nprice = { output = 2.0 }\n'
    )
    run = CliRunner()
    shown = run.invoke(app, [str(path), "--config", str(other), "--html", str(tmp_path / "page.html")])
    assert shown.exit_code == 0, shown.output
    for title in ("Summary", "By step", "By backend", "Saved", "Regret", "Another configuration"):
        assert title in shown.output
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    said = json.loads(run.invoke(app, [str(path), "--json"]).output)
    assert said["overall"]["num"] == 120 and said["other"] is None
    assert set(said["overall"]["cost"]) == {"value", "low", "high", "num", "by"}


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", BOTH, counted())
    with pytest.raises(InputError, match="cannot write"):
        command(path, html=tmp_path / "none" / "page.html")
    with pytest.raises(DataError, match="cannot read"):
        command(tmp_path / "none.jsonl")
