"""Answer a question about a folder of Python: embed its functions, retrieve some, and write JSON that cites them.

    python examples/rag.py "def read_lines(path):" --folder src
    python examples/rag.py "def read_lines(path):" --folder src --server http://127.0.0.1:8000

The answer is valid under a schema whose citations can only be the numbers of functions that were shown. The default
model was trained to write Python, not to compare texts or to answer: ask in code, and put another model here for more.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

MOST_LINES = 12
"""Lines of a function that are shown."""


@dataclass(frozen=True)
class Passage:
    """A function of a file: where it is, and its first lines."""

    place: str
    text: str


class Writer(Protocol):
    """What embeds texts, and continues a prompt under a schema."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings of length 1, one row for each text."""

    def write(self, prompt: str, schema: dict[str, Any]) -> str:
        """JSON that is valid under the schema."""


class Library:
    """The model in this process."""

    def __init__(self, name: str) -> None:
        import daguerre

        self._model = daguerre.load(name)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """See `Writer`."""
        return self._model.embed(texts)

    def write(self, prompt: str, schema: dict[str, Any]) -> str:
        """See `Writer`."""
        return self._model.generate(prompt, 96, schema=schema, heal=False).text


class Server:
    """The model of a running server."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url.rstrip("/"), name

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """See `Writer`."""
        answer = self._post("/v1/embeddings", {"input": list(texts), "encoding_format": "float"})
        return np.array([one["embedding"] for one in answer["data"]])

    def write(self, prompt: str, schema: dict[str, Any]) -> str:
        """See `Writer`."""
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 96, "response_format": form}
        answer = self._post("/v1/chat/completions", {**body, "temperature": 0})
        return answer["choices"][0]["message"]["content"]

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data, head = json.dumps({"model": self._name, **body}).encode(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self._url + path, data, head)) as answer:
            return json.load(answer)


def read_passages(folder: Path) -> list[Passage]:
    """The functions of all Python files below a folder."""
    out = []
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                end = min(node.end_lineno or node.lineno, node.lineno + MOST_LINES - 1)
                text = "\n".join(source.splitlines()[node.lineno - 1 : end])
                out.append(Passage(f"{path.relative_to(folder)}:{node.lineno}", text))
    return out


def retrieve(writer: Writer, question: str, passages: Sequence[Passage], num: int) -> list[Passage]:
    """The passages that are nearest to the question, the nearest first."""
    vectors = writer.embed([question, *(one.text for one in passages)])
    vectors = vectors - vectors[1:].mean(axis=0)  # what all code has in common says nothing
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    best = np.argsort(-(vectors[1:] @ vectors[0]), kind="stable")[:num]
    return [passages[place] for place in best]


def schema_of(num: int) -> dict[str, Any]:
    """The schema of an answer that may cite the passages 1 to num."""
    citations = {"type": "array", "items": {"enum": list(range(1, num + 1))}, "minItems": 1, "maxItems": num}
    fields = {"answer": {"type": "string", "minLength": 1, "maxLength": 60}, "citations": citations}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def answer_question(writer: Writer, question: str, passages: Sequence[Passage], num: int = 3) -> dict[str, Any]:
    """The answer, and the places that it cites."""
    found = retrieve(writer, question, passages, num)
    shown = "\n\n".join(f"# [{number}]\n{one.text}" for number, one in enumerate(found, 1))
    prompt = f"{shown}\n\n# What is like this, and which of the functions above is it?\n{question}\n\nanswer = "
    said = json.loads(writer.write(prompt, schema_of(len(found))))
    places = [found[number - 1].place for number in dict.fromkeys(said["citations"])]
    return {"question": question, "answer": said["answer"], "citations": places, "shown": [one.place for one in found]}


def main() -> None:
    """Read the folder, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--model", default="default")
    parser.add_argument("--server", help="the address of a running server; without one the model is loaded here")
    parser.add_argument("--num", type=int, default=3, help="functions to show")
    given = parser.parse_args()
    passages = read_passages(given.folder)
    if not passages:
        sys.exit(f"{given.folder} has no Python functions: name another --folder")
    writer = Server(given.server, given.model) if given.server else Library(given.model)
    print(json.dumps(answer_question(writer, given.question, passages, given.num), indent=1))


if __name__ == "__main__":
    main()
