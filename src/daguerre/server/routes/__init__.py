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
    playground,
    requests,
    responses,
)

FIRST = (basic, chat, completions, playground, requests, responses)
ROUTERS = tuple(one.router for one in (*FIRST, edits, decisions, embeddings, models, messages, llama))
