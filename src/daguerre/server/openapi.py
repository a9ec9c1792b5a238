"""/openapi.json of a server: FastAPI's, with the errors, the streams and the shapes of the answers as they are."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI

from daguerre.http.openapi import (
    CALL,
    ERROR,
    EVENT,
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    an_object,
    describe_with,
    in_json,
    listed,
    maybe,
)

ERRORS = {
    400: "a value that cannot be honored; `param` names the field",
    401: "an API key that is not known",
    403: "a browser's page of another site, or a name in `Host` that is not this machine's",
    404: "a model, a request or a route that is not there",
    405: "a method that the route does not have",
    408: "the request, or its body on its way, took longer than the server allows",
    409: "the request is done, or not in a state for this",
    413: "a body, or a schema, that is too large",
    415: "a browser's body that is not application/json",
    422: "a request that is well formed and cannot be done",
    429: "the queue, or a limit of the key, is full; ask again after `Retry-After` seconds",
    500: "the server failed; its log says why",
    503: "the server is stopping, a model cannot be loaded, or too many bodies are on their way",
}
MESSAGES = "/v1/messages"
MESSAGE_ERROR = an_object({"type": {"const": "error"}, "error": an_object({"type": TEXT, "message": TEXT})})
USAGE = an_object({"prompt_tokens": WHOLE, "completion_tokens": WHOLE, "total_tokens": WHOLE})
CHAT_MESSAGE = an_object({"role": {"const": "assistant"}, "content": maybe(TEXT)}, tool_calls=maybe(listed(CALL)))
CHAT_CHOICE = an_object(
    {"index": WHOLE, "message": CHAT_MESSAGE, "finish_reason": {"enum": ["stop", "length", "tool_calls"]}},
)
TEXT_CHOICE = an_object({"index": WHOLE, "text": TEXT, "finish_reason": {"enum": ["stop", "length"]}})


OLLAMA = "/api/"
OLLAMA_ERROR = an_object({"error": TEXT})
OLLAMA_TIMES = {"total_duration": WHOLE, "load_duration": WHOLE}
OLLAMA_COUNTS = dict.fromkeys(("prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"), WHOLE)
OLLAMA_HEAD = {"model": TEXT, "created_at": TEXT, "done": {"type": "boolean"}}
OLLAMA_MESSAGE = an_object({"role": {"const": "assistant"}, "content": TEXT}, tool_calls=listed({}), thinking=TEXT)
OLLAMA_LIST = an_object({"models": listed(an_object({"name": TEXT, "model": TEXT, "size": WHOLE, "details": {}}))})
OLLAMA_ANSWERS: Mapping[str, Schema] = {
    "/api/chat": an_object({**OLLAMA_HEAD, "message": OLLAMA_MESSAGE}, **OLLAMA_TIMES, **OLLAMA_COUNTS),
    "/api/generate": an_object({**OLLAMA_HEAD, "response": TEXT}, **OLLAMA_TIMES, **OLLAMA_COUNTS),
    "/api/tags": OLLAMA_LIST,
    "/api/ps": OLLAMA_LIST,
    "/api/show": an_object({"details": {}, "model_info": {}, "capabilities": listed(TEXT)}),
    "/api/embed": an_object({"model": TEXT, "embeddings": listed(listed(NUMBER)), **OLLAMA_TIMES}),
    "/api/embeddings": an_object({"embedding": listed(NUMBER)}),
    "/api/pull": an_object({"status": TEXT}, total=WHOLE, completed=WHOLE),
    "/api/version": an_object({"version": TEXT}),
}
"""What the answers of Ollama's routes are at least; a stream of them has such an object a line, or an error."""


def an_answer(kind: str, choice: Schema) -> Schema:
    """The schema of a completion."""
    head = {"id": TEXT, "object": {"const": kind}, "created": WHOLE, "model": TEXT}
    return an_object({**head, "choices": listed(choice), "usage": USAGE})


ANSWERS: Mapping[str, Schema] = {
    "/v1/models": an_object({"object": {"const": "list"}, "data": listed(an_object({"id": TEXT, "object": TEXT}))}),
    "/v1/chat/completions": an_answer("chat.completion", CHAT_CHOICE),
    "/v1/completions": an_answer("text_completion", TEXT_CHOICE),
    "/v1/fim/completions": an_answer("text_completion", TEXT_CHOICE),
    "/v1/edit/completions": an_answer("chat.completion", CHAT_CHOICE),
    "/v1/apply/completions": an_answer("chat.completion", CHAT_CHOICE),
    "/v1/embeddings": an_object(
        {
            "object": {"const": "list"},
            "model": TEXT,
            "data": listed(an_object({"index": WHOLE, "embedding": {"anyOf": [listed(NUMBER), TEXT]}})),
            "usage": an_object({"prompt_tokens": WHOLE, "total_tokens": WHOLE}),
        }
    ),
    "/v1/responses": an_object({"id": TEXT, "object": {"const": "response"}, "status": TEXT, "output": listed({})}),
    "/v1/messages": an_object(
        {
            "id": TEXT,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "content": listed(an_object({"type": {"enum": ["text", "tool_use"]}})),
            "usage": an_object({"input_tokens": WHOLE, "output_tokens": WHOLE}),
        }
    ),
    "/v1/messages/count_tokens": an_object({"input_tokens": WHOLE}),
    "/v1/daguerre/candidates": an_object(
        {"position": WHOLE, "candidates": listed(an_object({"id": WHOLE, "text": TEXT, "probability": NUMBER}))}
    ),
    "/v1/daguerre/concepts": an_object(
        {
            "object": {"const": "daguerre.concepts"},
            "model": TEXT,
            "num_known": WHOLE,
            "num_discovered": WHOLE,
            "data": listed(an_object({"number": WHOLE, "name": TEXT, "group": TEXT, "description": TEXT})),
        }
    ),
    **OLLAMA_ANSWERS,
    "/health": an_object({"status": TEXT}),
    "/ready": an_object({"status": TEXT}),
    "/version": an_object({"version": TEXT}),
}
"""What the answers without a stream are at least."""
OTHER_ERRORS = {MESSAGES: MESSAGE_ERROR, OLLAMA: OLLAMA_ERROR}
STREAMS = ("/v1/daguerre/requests", "/v1/daguerre/requests/{key}")
"""Routes that stream without a field that asks for it, or with one that only turns it off."""


def describe(app: FastAPI) -> None:
    """Make an application describe itself as it is. Called once all routes are there."""
    describe_with(app, _change)


def _change(schema: Schema) -> None:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            _describe(path, method, operation, schema)
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's, which are never sent
        schema.get("components", {}).get("schemas", {}).pop(name, None)


def _describe(path: str, method: str, operation: Schema, schema: Schema) -> None:
    good = operation["responses"]["200"]
    if path == "/metrics":
        good["content"] = {"text/plain": {"schema": TEXT}}
    elif path in ANSWERS:
        good["content"] = {"application/json": {"schema": ANSWERS[path]}}
    if method != "delete" and (path in STREAMS or _may_stream(operation, schema)):
        lines = ("application/x-ndjson", ANSWERS.get(path, {}))
        kind, streamed = lines if path.startswith(OLLAMA) else ("text/event-stream", EVENT)
        good["content"][kind] = {"schema": streamed}
    if path == "/v1/daguerre/requests":
        operation["responses"]["202"] = {"description": "It was begun.", "content": in_json(an_object({"id": TEXT}))}
    error = next((error for place, error in OTHER_ERRORS.items() if path.startswith(place)), ERROR)
    unready = path in ("/health", "/ready")
    for status, meaning in ERRORS.items():
        body = ANSWERS[path] if unready and status == 503 else error
        operation["responses"][str(status)] = {"description": meaning.capitalize() + ".", "content": in_json(body)}


def _may_stream(operation: Schema, schema: Schema) -> bool:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    named = schema["components"]["schemas"].get(body.get("$ref", "").rpartition("/")[2], body)
    return "stream" in named.get("properties", {})
