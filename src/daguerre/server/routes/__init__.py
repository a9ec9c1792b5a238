"""The routes, one file for each surface."""

from daguerre.server.routes import (
    basic,
    chat,
    completions,
    decisions,
    edits,
    embeddings,
    llama,
    messages,
    models,
    ollama,
    ollama_models,
    playground,
    requests,
    responses,
)

FIRST = (basic, chat, completions, playground, requests, responses)
LAST = (edits, decisions, embeddings, models, messages, llama, ollama, ollama_models)
ROUTERS = (playground.front, *(one.router for one in (*FIRST, *LAST)))
