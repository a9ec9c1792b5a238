"""The routes, one file for each surface."""

from daguerre.server.routes import (
    basic,
    chat,
    completions,
    concepts,
    decisions,
    edits,
    embeddings,
    fim,
    llama,
    messages,
    models,
    playground,
    requests,
    responses,
)

FIRST = (basic, chat, completions, concepts, playground, requests, responses)
ROUTERS = tuple(one.router for one in (*FIRST, fim, edits, decisions, embeddings, models, messages, llama))
