"""Requests over every mode, policy and operation, as data: what each asks of which model.

The default model answers most of them. Tiny random models answer the rest, one for each context and noise process.
"""

from __future__ import annotations

from typing import Any

from conftest import GEMMA

TINY: dict[str, dict[str, Any]] = {
    "causal": {"context": "causal"},
    "causal_drafting": {"context": "causal", "draft_head": 24},
    "causal_unshifted": {"context": "causal", "shift": False},
    "full": {"context": "full"},
    "full_unshifted": {"context": "full", "shift": False},
    "full_without_null": {"context": "full", "null_id": None},
    "block": {"context": "block", "shift": False, "block_size": 8},
    "uniform": {"process": "uniform", "context": "full", "shift": False, "time_input": True, "null_id": None},
    "hybrid": {"process": "hybrid", "context": "full", "shift": False, "time_input": True, "null_id": None},
    "timed": {"process": "absorbing", "context": "full", "shift": False, "time_input": True, "null_id": None},
    "gemma": GEMMA,
}
"""Facts of the tiny models by name."""

PROMPTS = (
    "def area(width, height):\n    return ",
    "import os\nimport sys\n\n\ndef main(argv):\n    ",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        ",
    "def read_lines(path):\n    with open(path) as file:\n        ",
    "for name, value in sorted(options.items()):\n    pri",
    "try:\n    import json\nexcept ImportError:\n    ",
)
GAPS = (
    ("def area(w, h):\n    return ", "\n\n\ndef volume(w, h, d):\n    return w * h * d\n"),
    ("import os\n\n\ndef size(path):\n    return ", ".st_size\n"),
    ("    def __init__(self, name, value):\n        self.name = ", "\n        self.value = value\n"),
    ("if x is None:\n    ", "\nelse:\n    return x\n"),
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["a", "b"]}
STATIC = ("confidence", "entropy", "margin", "random", "first_hitting")
SAMPLED = {"temperature": 1.0, "seed": 3}

Case = dict[str, Any]


def case(model: str, call: str, *args: Any, **options: Any) -> Case:
    """One request: `call` names a method of `Model`."""
    return {"model": model, "call": call, "args": list(args), "options": options}


def cases() -> list[Case]:
    """All requests, in a fixed order."""
    return [*completions(), *infillings(), *operations(), *shaped(), *tiny(), *scores(), *renoised()]


def completions() -> list[Case]:
    out = []
    for prompt in PROMPTS:
        out += [
            case("default", "generate", prompt, 32, mode="ar"),
            case("default", "generate", prompt, 24, mode="ar", temperature=0.8, top_p=0.9, seed=1),
            case("default", "generate", prompt, 24, mode="ar", temperature=1.0, top_k=20, seed=2),
            case("default", "generate", prompt, 32, mode="speculative"),
            case("default", "generate", prompt, 24, mode="speculative", block_size=6, temperature=1.0, seed=4),
            case("default", "generate", prompt, 24, mode="block", block_size=8),
            case("default", "generate", prompt, 24, mode="block", block_size=4, policy="chain", threshold=0.5),
            case("default", "generate", prompt, 16, mode="full", threshold=0.6),
        ]
    first, second, third = PROMPTS[:3]
    for policy in ("threshold", "chain", "factor", "entropy_bounded", *STATIC):
        out.append(case("default", "generate", first, 16, mode="block", block_size=8, policy=policy))
        out.append(case("default", "generate", second, 16, mode="block", block_size=16, policy=policy, **SAMPLED))
    for policy in STATIC:
        out.append(case("default", "generate", third, 16, mode="block", block_size=16, policy=policy, steps=5))
    for mode in ("ar", "block", "speculative"):
        for more in (
            {"stop": ["\n\n", "return"]},
            {"min_tokens": 24, "logit_bias": {"200": -3.0, "300": 2.0}},
            {"n": 2, "temperature": 0.9, "seed": 8},
            {"guidance": 1.5},
            {"guidance": 1.3, "negative": "class A:\n    pass\n", "guidance_schedule": "cosine"},
            {"cache": "none"},
            {"cache": "approximate_int8"},
            {"heal": False},
        ):
            out.append(case("default", "generate", second, 24, mode=mode, **more))
    for draft in ("w * h\n\n\ndef perimeter(w, h):\n    return 2 * (w + h)\n", "width * height\n"):
        for mode in ("ar", "speculative", "block"):
            out.append(case("default", "generate", first, 32, mode=mode, draft=draft))
            out.append(case("default", "generate", first, 24, mode=mode, draft=draft, **SAMPLED))
    for reading in ("unmasked", "leave_one_out"):
        out.append(
            case(
                "default",
                "generate",
                third,
                24,
                mode="block",
                revise=2,
                revise_reading=reading,
                revise_threshold=0.4,
                threshold=0.3,
            )
        )
    return out


def infillings() -> list[Case]:
    out = []
    for prefix, suffix in GAPS:
        out += [
            case("default", "infill", prefix, suffix, 12, mode="block"),
            case("default", "infill", prefix, suffix, 8, mode="block", min_tokens=8, policy="confidence", steps=4),
            case("default", "infill", prefix, suffix, 12, mode="block", temperature=0.8, seed=2),
            case("default", "infill", prefix, suffix, 12, mode="block", block_size=4, policy="chain", threshold=0.6),
            case("default", "infill", prefix, suffix, 12, mode="full", policy="entropy_bounded"),
            case("default", "infill", prefix, suffix, 12, mode="beam", min_tokens=1, num_beams=4),
            case("default", "infill", prefix, suffix, 8, mode="block", search_length=True),
            case("default", "infill", prefix, suffix, 8, mode="block", guidance=1.4, heal=False),
            case("default", "infill", prefix, suffix, 12, mode="block", draft="w * h", threshold=0.5),
        ]
    prefix, suffix = GAPS[0]
    out.append(
        case(
            "default",
            "infill",
            prefix,
            suffix,
            12,
            mode="beam",
            no_repeat_context_lines=True,
            num_beams=8,
            min_tokens=2,
        )
    )
    out.append(case("default", "infill", prefix, suffix, 12, mode="beam", num_beams=8, stop="\n"))
    return out


def operations() -> list[Case]:
    text = "def area(w, h):\n    return w * h\n\n\ndef perimeter(w, h):\n    return 2 * (w + h)\n"
    return [
        case("default", "fill", "def {}(a, b):\n    return {}\n", 6, mode="block"),
        case("default", "fill", "def {}(a, b):\n    return {}\n", [4, 8], mode="block", temperature=1.0, seed=5),
        case("default", "fill", "x = {}\ny = {}\nz = {}\n", 4, mode="full", policy="margin"),
        case("default", "edit", text, lines=[[2, 2]], mode="block"),
        case("default", "edit", text, lines=[[2, 2], [6, 6]], mode="block", max_tokens=10),
        case("default", "edit", text, pattern="2 \\* .*", mode="block", strength=0.5, seed=7),
        case("default", "edit", text, spans=[[27, 32]], mode="beam", max_tokens=8, min_tokens=1, num_beams=4),
        case("default", "edit", text, lines=[[6, 6]], mode="block", temperature=0.7, seed=6, threshold=0.5),
    ]


def shaped() -> list[Case]:
    out = []
    for mode in ("ar", "block"):
        for options in (
            {"regex": "[a-z_]+\\([0-9]{1,3}\\)"},
            {"schema": SCHEMA},
            {"choices": ["width * height", "width + height", "0"]},
            {"keywords": ["height"], "ending": "\n"},
            {"forbidden": ["return", "self"]},
        ):
            out.append(case("default", "generate", PROMPTS[0], 24, mode=mode, **options))
            out.append(case("default", "generate", PROMPTS[0], 24, mode=mode, **options, **SAMPLED))
    out.append(case("default", "infill", *GAPS[0], 12, mode="block", regex="[a-z]+ [*+] [a-z]+"))
    out.append(case("default", "infill", *GAPS[2], 10, mode="full", choices=["name", "value", "None"], **SAMPLED))
    return out


def tiny() -> list[Case]:
    prompt, long = PROMPTS[0], PROMPTS[0] * 4
    out = []
    for name in ("causal", "causal_unshifted", "full", "full_unshifted", "block"):
        policies = ("threshold", "chain", "factor", "entropy_bounded", *STATIC)
        out += [case(name, "generate", prompt, 20, mode="block", policy=policy) for policy in policies]
        out.append(case(name, "generate", long, 20, mode="block", threshold=0.5, **SAMPLED))
        out.append(case(name, "generate", long, 20, mode="block", threshold=0.5, cache="none"))
        if name != "block":
            out.append(case(name, "generate", prompt, 20, mode="full", threshold=0.4))
            out.append(case(name, "infill", prompt, " * h\n", 10, mode="block", threshold=0.4))
            out.append(case(name, "fill", "def {}(a):\n    return {}\n", [4, 6], mode="block", **SAMPLED))
    for name in ("causal", "causal_drafting"):
        for more in ({}, SAMPLED):
            out.append(case(name, "generate", prompt, 24, mode="ar", **more))
            out.append(case(name, "generate", prompt, 24, mode="speculative", block_size=4, **more))
    out.append(case("full_without_null", "infill", prompt, " * h\n", 9, mode="block"))
    for name in ("uniform", "hybrid", "timed"):
        out.append(case(name, "generate", prompt, 12, mode="ancestral", steps=5, seed=3))
        out.append(case(name, "generate", prompt, 12, mode="ancestral", steps=6, **SAMPLED))
        out.append(case(name, "infill", prompt, "\n", 6, mode="ancestral", min_tokens=6, steps=4, temperature=0.7))
    return out


def scores() -> list[Case]:
    """Likelihoods and decisions: numbers, not tokens."""
    text = "def area(w, h):\n    return w * h\n"
    out = [case("default", "nll", text, kind="ar")]
    for layout in (4, 16, "full"):
        out.append(case("default", "nll", text, kind="elbo", layout=layout, samples=16, seed=1))
        out.append(case("default", "nll", text, kind="chain", layout=layout, order="random", seed=2))
    contexts, questions = (
        ("causal_unshifted", "full", "full_unshifted", "block"),
        [["yes_no"], ["return", "if", "self"], [0, 20]],
    )
    out += [case(name, "nll", text, kind="elbo", samples=8) for name in (*contexts, "uniform", "hybrid", "timed")]
    return out + [case(name, "decide", "def f(a, b):", questions) for name in ("default", *contexts)]


def renoised() -> list[Case]:
    """Canvases that become random again, of several lengths behind prompts within the window and beyond it."""
    hot, cold = {"t_max": 0.8, "t_min": 0.4}, {"t_max": 0.01, "t_min": 0.01}
    return [
        case("gemma", "generate", prompt, num, mode="renoise", steps=steps, seed=seed, **options)
        for seed, (prompt, num, steps) in enumerate(((PROMPTS[0], 12, 4), ("", 6, 3), (PROMPTS[3] * 3, 20, 3)))
        for options in (hot, cold, {**hot, "cache": "none"}, {**cold, "n": 2})
    ]


def answer(model: Any, asked: Case) -> Any:
    """What a model gives to a request, as JSON: each sample's tokens, the forward that committed each, its text and how
    it ended, and how many forwards it took; of scores the numbers.
    """
    call, args, options = asked["call"], asked["args"], dict(asked["options"])
    if call == "nll":
        score = model.nll(*args, **options)
        return [score.value, score.stderr]
    if call == "decide":
        return decided(model, *args)
    if "logit_bias" in options:  # JSON has no whole numbers as keys
        options["logit_bias"] = {int(token): bias for token, bias in options["logit_bias"].items()}
    for name in ("lines", "spans"):
        if name in options:
            options[name] = [tuple(pair) for pair in options[name]]
    if call in ("generate", "infill") and options.get("mode") in (None, "ar", "speculative"):
        options.setdefault("stop_loops", False)  # likewise
    if call == "fill":
        options["mark"] = "{}"  # the default of when these were recorded
    result = getattr(model, call)(*args, **options)
    return [
        {
            "ids": [token.id for token in sample.tokens],
            "steps": [token.step for token in sample.tokens],
            "text": sample.text,
            "finish_reason": sample.finish_reason,
            "forwards": sample.usage.forwards,
        }
        for sample in result.choices
    ]


def decided(model: Any, state: str, questions: list[Any]) -> list[list[float]]:
    """The probabilities of each question's labels."""
    from daguerre.scoring.decisions import Choice, Score, YesNo

    asked: list[Any] = []
    for one in questions:
        if one == ["yes_no"]:
            asked.append(YesNo(before="\n    return ", after="\n", yes="True", no="False"))
        elif isinstance(one[0], str):
            asked.append(Choice(before="\n    ", after=" a\n", labels=one))
        else:
            asked.append(Score(before="\n    return a + ", after="\n", low=one[0], high=one[1]))
    return [list(found.probabilities.values()) for found in model.decide(state, asked)]
