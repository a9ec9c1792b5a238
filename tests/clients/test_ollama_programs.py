"""Programs that reach a model by Ollama's API alone: the command `llm` with its plugin, and LangChain's classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from pydantic import BaseModel

from served import Served

COLD = ("-o", "temperature", "0", "-o", "num_predict", "24")


@pytest.fixture
def llm(served: Served, tmp_path: Path) -> Callable[..., str]:
    """llm(*words): what the command prints."""
    known = os.environ | {"OLLAMA_HOST": served.url, "LLM_USER_PATH": str(tmp_path)}

    def run(*words: str) -> str:
        command = [str(Path(sys.executable).with_name("llm")), *words]
        done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_command_llm_finds_the_models_and_asks_them(llm: Callable[..., str], model: str) -> None:
    assert f"ollama/{model}:latest" in llm("models", "list")
    streamed = llm("-m", f"ollama/{model}", "def area(width, height):", *COLD)
    assert streamed.strip() and streamed == llm(
        "-m", f"ollama/{model}", "def area(width, height):", "--no-stream", *COLD
    )
    assert llm("-c", "and a volume", *COLD).strip()


def test_the_command_llm_gets_what_a_schema_says(llm: Callable[..., str], model: str) -> None:
    number = {"n": {"enum": [1, 22]}}
    schema = json.dumps({"type": "object", "properties": number, "required": ["n"], "additionalProperties": False})
    answer = llm("-m", f"ollama/{model}", "--schema", schema, "a number", *COLD)
    assert json.loads(answer)["n"] in (1, 22)


def test_the_command_llm_embeds(llm: Callable[..., str], model: str) -> None:
    assert len(json.loads(llm("embed", "-m", f"ollama/{model}", "-c", "a = 1"))) > 100


def test_langchain_chats_streams_and_counts(served: Served, model: str) -> None:
    chat = ChatOllama(
        model=model, base_url=served.url, temperature=0, num_predict=16, num_ctx=512, validate_model_on_init=True
    )
    whole = chat.invoke("def area(width, height):")
    assert "".join(str(part.content) for part in chat.stream("def area(width, height):")) == whole.content
    assert whole.usage_metadata is not None and 0 < whole.usage_metadata["output_tokens"] <= 16


def test_langchain_gets_an_object_and_embeds_and_completes(served: Served, model: str) -> None:
    class Number(BaseModel):
        n: int

    where = {"model": model, "base_url": served.url}
    structured = ChatOllama(**where, temperature=0, num_predict=120).with_structured_output(
        Number, method="json_schema"
    )
    assert isinstance(structured.invoke("a number"), Number)
    assert OllamaLLM(**where, temperature=0, num_predict=8).invoke("def f(")
    first, second = OllamaEmbeddings(**where).embed_documents(["a = 1", "b = 2"])
    assert len(first) == len(second) and first != second
