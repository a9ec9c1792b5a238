"""Plans of one gap between two texts, for a model of which there is no more than a config."""

from __future__ import annotations

from daguerre.decoding.generate import plan_request
from daguerre.decoding.plan import Plan
from daguerre.decoding.request import Decode, Text, TokenRequest, encoded
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer


def make_plan(
    config: ModelConfig,
    tokenizer: Tokenizer,
    decode: Decode,
    prefix: Text,
    suffix: Text | None,
    max_tokens: int,
    heal: bool | None,
    draft: str | None = None,
) -> Plan:
    segments = encoded((prefix, "" if suffix is None else suffix), tokenizer, config)
    decode = decode.resolved(config, infilling=bool(segments[-1]))
    return plan_request(
        config, tokenizer, TokenRequest(decode, segments, [(decode.min_tokens, max_tokens)], heal, draft)
    )
