"""OpenAI's /v1/embeddings, and vLLM's /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Any

import numpy as np
from fastapi import APIRouter, Request

from daguerre.cancellation import current_cancellation
from daguerre.http.errors import ApiError
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.embedding import checked_ids
from daguerre.server.answers import naming
from daguerre.server.logprobs import token_texts
from daguerre.server.models import Served
from daguerre.server.prompts import checked, make_prompt
from daguerre.server.protocol.chat import tool_json
from daguerre.server.protocol.embeddings import DetokenizeBody, EmbeddingBody, TokenizeBody

router = APIRouter()
MAX_TEXTS = 2048
"""OpenAI's bound."""


@router.post("/v1/embeddings", response_model=None)
async def embeddings(request: Request, body: EmbeddingBody) -> dict[str, Any]:
    """Embeddings of texts."""
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    vectors, num = await asyncio.to_thread(embed, served, body)
    data = [
        {"object": "embedding", "index": index, "embedding": _written(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": num, "total_tokens": num}
    return {"object": "list", "data": data, "model": served.name, "usage": usage}


def embed(served: Served, body: EmbeddingBody, cuts: bool = False) -> tuple[np.ndarray, int]:
    """The vectors, and how many tokens the texts have. cuts: a text is cut where the model's positions end."""
    model = served.engine.model
    room = model.config.max_positions - len(model.config.first) if cuts else None
    if not 0 < len(body.texts) <= MAX_TEXTS:
        raise ApiError(f"there must be 1 to {MAX_TEXTS} texts, not {len(body.texts)}", param="input")
    if body.dimensions is not None and body.dimensions > model.config.width:
        message = f"an embedding of this model has {model.config.width} dimensions, not {body.dimensions}"
        raise ApiError(message, param="dimensions")
    with served.engine.beside.taken(current_cancellation().owner):
        with naming(default="input"):
            texts = body.texts if room is None else [_cut(model.tokenizer, text, room) for text in body.texts]
            ids = [checked_ids(model.config, model.tokenizer, text) for text in texts]
        vectors = model.embed(ids)
    if body.dimensions is not None:
        vectors = vectors[:, : body.dimensions]
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return vectors, sum(map(len, ids))


def _cut(tokenizer: Tokenizer, text: str | list[int], room: int) -> list[int]:
    """The first tokens of a text. What has more bytes than so many tokens is not read to its end."""
    if isinstance(text, str):
        text = tokenizer.encode(text.encode()[: room * tokenizer.longest].decode(errors="ignore"))
    return text[:room]


def _written(vector: np.ndarray, encoding: str) -> list[float] | str:
    """A vector as numbers, or as the base64 of its little-endian float32."""
    if encoding == "float":
        numbers: list[float] = vector.tolist()
        return numbers
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


@router.post("/tokenize", response_model=None)
async def tokenize(request: Request, body: TokenizeBody) -> dict[str, Any]:
    """The tokens of a text, or of the prompt of a conversation."""
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    field = next(name for name in ("messages", "content", "prompt") if getattr(body, name) is not None)
    with naming(default=field):
        ids = await asyncio.to_thread(_tokens, served, body)
    if body.content is not None:
        return {"tokens": [_piece(served.model.tokenizer, token) for token in ids] if body.with_pieces else ids}
    texts = token_texts(served.model.tokenizer, ids) if body.return_token_strs else None
    most = served.model.config.max_positions
    return {"count": len(ids), "max_model_len": most, "tokens": ids, "token_strs": texts}


def _tokens(served: Served, body: TokenizeBody) -> list[int]:
    model = served.model
    text: Any = body.prompt if body.content is None else body.content
    if body.messages is not None:
        how = replace(body.template, special_tokens=body.parse_special)
        text = make_prompt(model, checked(body.messages), [tool_json(tool) for tool in body.tools], how).text
    parses = body.messages is None if body.parse_special is None else body.parse_special
    encode = model.tokenizer.encode if parses else model.tokenizer.encode_plain
    ids = encode(text) if isinstance(text, str) else list(text)
    return [*(model.config.first if body.begins else []), *ids]


def _piece(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    """A token as llama.cpp writes it."""
    own = tokenizer.token_bytes(token)
    try:
        return {"id": token, "piece": own.decode() if own else tokenizer.token_name(token)}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(own)}


@router.post("/detokenize", response_model=None)
async def detokenize(request: Request, body: DetokenizeBody) -> dict[str, str]:
    """The text of tokens."""
    served = await asyncio.to_thread(request.app.state.pool.get, body.model)
    with naming(default="tokens"):
        text = served.model.tokenizer.decode(body.tokens)
    return {"prompt": text, "content": text}
