"""Part "real" of `daguerre bench` with a made GGUF file, alone and beside a made-up llama.cpp, and its table."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import daguerre
from bench_report import REPORT
from daguerre.errors import InputError
from daguerre.evals.bench import real, real_report, run
from daguerre.evals.bench.report import markdown
from daguerre.heldout import load_frozen
from daguerre.scoring.likelihood import score_tokens

FILE = Path(__file__).parents[2] / "data" / "gguf" / "llama-q4_k.gguf"
SIZES = {"PROMPT": 24, "NEW": 3, "CONTEXT": 8, "CROWD_PROMPT": 4, "CROWD_NEW": 3, "WINDOW": 32, "WINDOWS": 2}
SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

if "--version" in sys.argv:
    print("version: 1 (made up)\\nbuilt with words")
    sys.exit()

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        open({log!r}, "a").write(json.dumps(asked) + "\\n")
        self.send_response(200)
        self.end_headers()
        for number in range(asked["n_predict"]):
            sum(range(400_000))
            event = json.dumps({{"content": "x", "tokens": [number]}})
            self.wfile.write(b"data: " + event.encode() + b"\\n\\n")
        self.wfile.write(b'data: {{"content": "", "stop": true}}\\n\\n')

    def log_message(self, *arguments):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
PERPLEXITY = """#!{python}
print("Final estimate: PPL = 2.0000 +/- 0.1")
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> run.BenchOptions:
    """What is measured of the made file; the programs of PATH are those of tmp_path / "bin" alone."""
    for name, value in SIZES.items():
        monkeypatch.setattr(real, name, value)
    monkeypatch.setattr(run, "busy_share", lambda: 0.0)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return run.BenchOptions(model=str(FILE), rounds=2, threads=(1,))


def program(folder: Path, name: str, content: str) -> None:
    path = folder / "bin" / name
    path.write_text(content)
    path.chmod(0o755)


def test_a_file_is_measured_where_there_is_no_llama_cpp(small: run.BenchOptions) -> None:
    report = run.bench(["real"], small)
    found, page = report["real"]["threads"]["1"], markdown(report)

    assert "llama.cpp was not measured: there is no llama.cpp here: put llama-server" in page
    assert found["file"]["name"] == report["real"]["settings"]["model"] == FILE.name
    assert found["file"]["read"] < found["file"]["bytes"]
    (ours,) = found["sides"].values()
    assert len(ours["rounds"]) == 2 and all(len(one["tokens"]) == SIZES["NEW"] + 1 for one in ours["rounds"])
    assert 0 < ours["pss_before"] < ours["pss"]
    config = daguerre.load(FILE).config
    heads = sum(heads * width for heads, width in config.key_shapes)
    assert ours["keys"] >= 2 * heads * (SIZES["PROMPT"] + SIZES["NEW"]) * 2
    assert found["bits"]["nats"][real.FLOAT32] == pytest.approx(exact_nats(found["bits"]["bytes"]), rel=1e-5)
    assert found["bits"]["nats"][real.OURS] == pytest.approx(found["bits"]["nats"][real.FLOAT32], rel=2e-3)


def exact_nats(num_bytes: int) -> float:
    """Nats of the second halves of the windows, in float32."""
    model = daguerre.load(FILE, backend="torch", dtype="float32")
    ids = model.tokenizer.encode(load_frozen()[0].text[:4000])
    assert not model.config.first
    length, scored, total = SIZES["WINDOW"], list[int](), 0.0
    for start in range(0, SIZES["WINDOWS"] * length, length):
        window = ids[start : start + length]
        total += score_tokens(model.denoiser.backend, window, given=length // 2 + 1).value
        scored += window[length // 2 + 1 :]
    assert num_bytes == sum(len(model.tokenizer.token_bytes(token)) for token in scored)
    return total


def test_llama_cpp_of_the_path_is_measured_beside_it(small: run.BenchOptions, tmp_path: Path) -> None:
    log = str(tmp_path / "asked")
    program(tmp_path, "llama-server", SERVER.format(python=sys.executable, log=log))
    program(tmp_path, "llama-perplexity", PERPLEXITY.format(python=sys.executable))
    report = run.bench(["real"], small)
    found = report["real"]["threads"]["1"]
    figures = real_report.Real(found)

    peer = found["sides"][real.LLAMA]
    assert peer["load"]["release"] == "llama-server 1 (made up), built with words"
    assert [one["tokens"] for one in peer["rounds"]] == [[0, 1, 2, 3]] * 2
    assert all(one["prompt"] > 0 and one["token"] > 0 for one in peer["rounds"])
    scored = SIZES["WINDOWS"] * (SIZES["WINDOW"] // 2 - 1)
    assert figures.bits(real.LLAMA) == pytest.approx(scored / found["bits"]["bytes"])
    asked = Path(log).read_text().splitlines()
    assert len(asked) == 3 and asked[0] == asked[2] and '"cache_prompt": false' in asked[0]
    assert "beside `ar`" in markdown(report)


def test_what_cannot_be_measured_is_refused_before_anything_is(small: run.BenchOptions, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"give --model FILE\.gguf"):
        run.bench(["real"], run.BenchOptions(threads=(1,)))
    with pytest.raises(InputError, match="npm install --prefix"):
        run.bench(["real"], run.BenchOptions(model=str(FILE), llama_cpp=str(tmp_path), threads=(1,)))


def figures(**changed: Any) -> real_report.Real:
    found = copy.deepcopy(REPORT["real"]["threads"]["1"])
    found["bits"]["nats"] |= changed
    return real_report.Real(found)


def test_figures_are_medians_of_the_ratios_of_rounds() -> None:
    one = figures()

    assert one.times(real_report.token) == pytest.approx(np.median([20 / 10, 20 / 12, 90 / 11]))
    assert one.times(real_report.in_blocks, real_report.token) == pytest.approx(20 / 4.5)
    assert one.eight == pytest.approx(1.6) and one.crowd("behind") == pytest.approx(4.0)
    assert one.reading == pytest.approx(0.8) and one.memory == pytest.approx(1.1)


@pytest.mark.parametrize(("theirs", "met"), [(100.5, False), (101.0, True)])
def test_bits_may_be_a_little_more_than_exact_ones_or_as_many_as_llama_cpps(theirs: float, met: bool) -> None:
    report = copy.deepcopy(REPORT)
    for found in report["real"]["threads"].values():
        found["bits"]["nats"] |= {"float32": 100.0, "Daguerre": 101.0, "llama.cpp": theirs}
    bars = {name: met for name, threads, _, _, met in real_report.real_bars(report["real"]) if threads == "1"}

    assert bars["a.gguf: bits per byte, times float32's"] is met
    assert bars["a.gguf: memory without keys and values, times the file"]
    assert bars["a.gguf: blocks of 8 forced to 4 a forward, times llama.cpp's `ar`"]
