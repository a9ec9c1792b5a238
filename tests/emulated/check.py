"""Whether the native backend of a wheel with compiled libraries computes what PyTorch does, on the machine at hand.

`run.sh` runs it under an emulator. Arguments: features of the processor, by Linux's names, in place of those in
/proc/cpuinfo, which under an emulator is the host's.
"""

from __future__ import annotations

import platform
import sys

from daguerre import load
from daguerre.models import prebuilt, processor
from daguerre.models.backends import library

TEXT, PROMPT = "import os\n\n\ndef main():\n    return os.getcwd()\n", "def fib(n):\n    if n"
NEAR = {None: 0.001, "int8": 0.02, "approximate_int4": 0.15}
"""How far the nats of a token may be from PyTorch's in float32, by how weights are rounded."""


def main(features: list[str]) -> None:
    processor.cpu_flags = lambda: frozenset(features)  # type: ignore[assignment]
    level = processor.instruction_set()
    for source in prebuilt.SOURCES:
        found = library.places(source, processor.compiler_flags())
        assert found == [prebuilt.path_of(source, level)]
        assert found[0].is_file(), found
    reference = load(backend="torch", dtype="float32")
    right = reference.nll(TEXT, kind="ar").value
    caches = ("auto", "approximate_int8")
    text, rounded = (reference.generate(PROMPT, max_tokens=12, cache=cache).text for cache in caches)
    tokens = len(reference.tokenizer.encode(TEXT))
    for quantize, near in NEAR.items():
        model = load(backend="native", dtype="float32", quantize=quantize)
        off = abs(model.nll(TEXT, kind="ar").value - right) / tokens
        sys.stdout.write(f"{platform.machine()} {level} {quantize or 'float32'}: {off:.5f} nats a token from PyTorch\n")
        sys.stdout.flush()
        assert off < near
        assert quantize == "approximate_int4" or model.generate(PROMPT, max_tokens=12).text == text
        if quantize is None:
            assert model.generate(PROMPT, max_tokens=12, cache="approximate_int8").text == rounded
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert model.generate("x = ", max_tokens=24, schema=schema, mode="ar").finish_reason == "stop"


if __name__ == "__main__":
    main(sys.argv[1:])
