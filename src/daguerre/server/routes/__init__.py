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

ROUTERS = (
    basic.router,
    chat.router,
    completions.router,
    concepts.router,
    playground.router,
    requests.router,
    responses.router,
    fim.router,
    edits.router,
    decisions.router,
    embeddings.router,
    models.router,
    messages.router,
    llama.router,
)
