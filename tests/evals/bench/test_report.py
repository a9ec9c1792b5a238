"""What a report of `daguerre bench` says: its bars, tables and pictures, over made-up figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench_report import CROWD, MACHINE, REPORT
from daguerre.evals.bench.bars import bars, best_block, ratios
from daguerre.evals.bench.pictures import draw
from daguerre.evals.bench.report import markdown, write
from daguerre.evals.bench.rows import crossing
from drawn import faults

PRODUCTS = "32-row forward, times its bare packed products"
FLOAT32 = "random weights, native float32: times as fast as PyTorch's float32 modules, 1 to 32 rows"
BEST = "best setting against ar, next-line completion, accuracy no lower"


def found(report: dict[str, Any], threads: str = "1") -> dict[str, tuple[str, bool]]:
    return {name: (figure, met) for name, of, figure, _, met in bars(report) if of == threads}


def on(instruction_set: str, name: str) -> dict[str, Any]:
    """One part of the report, measured with another instruction set."""
    return {name: REPORT[name] | {"machine": MACHINE | {"instruction_set": instruction_set}}}


def test_bars_are_met_and_missed_as_the_figures_say() -> None:
    one = found(REPORT)

    assert one[PRODUCTS] == ("1.25", True)
    assert one[FLOAT32] == ("0.90, the lowest, at 32", False)
    assert one[FLOAT32.replace("float32", "int8", 1)] == ("2.00, the lowest, at 8", True)
    assert one["ar against llama.cpp F32"] == ("1.20 end to end, 0.88 after the first tokens", False)
    assert one["default: ar bfloat16 against llama.cpp BF16"][1]
    assert one["block 16 against transformers"][1]
    assert one["block 8 int8 against LLaDA loop"][0].startswith("26.67 end to end")
    assert not any("Q8_0" in name for name in one if "1.7b" not in name)
    assert one["self-speculation against ar, 128 new tokens"] == ("1.50, 100% of the text identical", True)
    assert one[BEST] == ("1.60 (block 8, threshold 0.5)", True)
    assert one["cost of a token, context 512 to 4,096, 2 KV heads, ar"] == ("2.00", False)
    assert [met for name, (_, met) in found(REPORT, "2").items() if "infill" in name] == [True, False]


def test_bars_follow_the_instruction_set_in_use() -> None:
    gain, eight = "default, ar: 16 requests at once, times the tokens a second of one", "8 rows, times one row"

    assert found(REPORT)[gain] == ("4.00 end to end, 4.50 after the first tokens", True)
    assert not found(on("amx", "batch"))[gain][1]
    assert found(on("avx2", "rows"))[f"random weights, native int8: {eight}"] == ("2.50", False)
    assert not any(eight in name for name in found(on("avx512", "rows")))


def test_the_driver_has_bars_of_its_own() -> None:
    one = found(REPORT)

    assert one["default, ar: one request by `Together`, longer than by `drive`"] == ("+2.0%", True)
    assert one["default, block 8: one request by `Together`, longer than by `drive`"] == ("+4.0%", False)
    assert one["default, ar: Python for a step of one request"] == ("0.100 ms", True)
    assert "default, block 8: Python for a step of one request" not in one
    assert not one["default, block 8: 16 requests at once, times the tokens a second of one"][1]


def test_a_ratio_is_the_median_of_those_of_the_rounds() -> None:
    def side(*rates: float) -> dict[str, Any]:
        return {"rounds": {"tokens_per_second": rates, "decode_tokens_per_second": rates[::-1]}}

    assert ratios(side(1, 8, 6), side(1, 2, 3)) == (2, 2)
    assert best_block({"block 8": {"tokens_per_second": 1}, "block 8 int8": {"tokens_per_second": 2}}) == "block 8"
    assert best_block({"ar": {}}, int8=True) is None


def test_a_report_reads_as_tables(tmp_path: Path) -> None:
    text = markdown(REPORT)

    assert "| block 16 | 900 | 1000 | 50 | 1.00 |" in text
    assert "| native float32 | 4.00 | 8.00 | 20.00 |" in text
    assert "| llama.cpp F32 | 5.00 |  |  |" in text
    assert "| default, ar | 100 | 400 | 4.00 | 4.50 | +2.0% | +10.0% | 2.00 | 0.100 | 0.020 | yes |" in text
    assert "P, 2 cores, instruction set avx2, native type float32" in text
    assert "Not measured: diffusers: gone" in text
    assert "**missed**" in text
    assert "not idle" not in text
    assert "not idle: 50% of its time" in markdown({"peers": REPORT["peers"] | {"busy": 0.5}})
    lesser = REPORT["infill"] | {"machine": MACHINE | {"best_instruction_set": "amx"}}
    assert "instruction set avx2 of amx, chosen by DAGUERRE_ISA" in markdown({"infill": lesser})
    write(REPORT, tmp_path / "speed.json")
    assert (tmp_path / "speed.md").read_text() == text


def test_families_are_a_line_each_and_have_bars_by_the_processor() -> None:
    text, one = markdown({"families": REPORT["families"]}), found(REPORT)

    assert "| qwen3-1.7b | 1 | int8 | 0.10 | 15.0 | 15.0 | 22.5 | 30.0 | 25% | ar | 1.00 | 53.3 | 53.3 | " in text
    assert "| block 8 | 2.50 | 170.7 | 53.3 | 28.6 (Q8_0) | 1.80 | 1.38 |" in text
    assert "llama.cpp was not measured: install it" in text
    blocks = "sdar-1.7b, block 8 int8, answer tokens/s against llama.cpp's ar Q8_0"
    assert one["qwen3-1.7b, ar int8, answer tokens/s against llama.cpp's ar Q8_0"] == (
        "1.80 end to end, 1.38 a token alone", True
    )  # fmt: skip
    assert blocks not in one  # of AVX2
    assert found(on("avx512", "families"))[blocks] == ("1.80", True)
    assert not found(on("amx", "families"))[blocks][1]
    assert not any("bfloat16" in name for name in one if name.startswith("qwen3"))


def test_time_of_all_layers_is_extrapolated_from_two_shapes() -> None:
    text, one = markdown({"families": REPORT["families"]}), found(REPORT)

    # 1.5 s with 2 layers and 3 with 6: 1.5 + 30 * 0.375; llama.cpp 16 steps: 4 + 30 * 2
    assert "| exact, approximate_int4 | 1 | 2: 1.50, 6: 3.00 | 12.8 (32) | 160.6 | 5.02 | 5.02 |" in text
    assert "| llama.cpp, Q4_0 | 1 | 2: 4.00, 6: 12.00 | 64.0 (32) | 32.0 | 1.00 |  |" in text
    name = "llada-8b, exact approximate_int4, all layers extrapolated, against llama.cpp's whole canvas"
    assert one[name] == ("5.02", True)
    less = {"1": REPORT["families"]["threads"]["1"] | {"shapes": {}}}
    assert "LLaDA" not in markdown({"families": REPORT["families"] | {"threads": less}})


def test_the_picture_of_families_can_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    faulty: list[str] = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: faulty.extend(faults(figure)))
    drawn = draw({"families": REPORT["families"]}, tmp_path / "families-x.json")
    one = REPORT["families"]["threads"]["1"]
    deep = {name: shape for name, shape in one["shapes"].items() if shape["deep"]}
    draw({"families": REPORT["families"] | {"threads": {"1": one | {"shapes": deep}}}}, tmp_path / "families-y.json")

    assert [path.name for path in drawn] == ["families-x.png"]
    assert faulty == []


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = draw(REPORT, tmp_path / "speed.json")

    assert [path.name for path in drawn] == [f"speed-{name}.png" for name in ("peers", "modes", "rows", "families")]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_lines_cross_where_batches_make_rows_dear() -> None:
    assert crossing(CROWD, 1.0) == 0.0
    assert crossing(CROWD, 100.0) is None
    gain_at_4, gain_at_8 = 4 * 2.4 / 10, 4 * 2.8 / 18
    assert gain_at_8 < gain_at_4 < 1
    place = crossing(CROWD, 4.0)
    assert place is not None
    assert 2 < place < 4
