"""Drafts by rows behind a text of a frozen autoregressive model (`ModelConfig.draft_rows`): what they are computed
from, and which weights learn.

Behind random places of a text there are groups of rows, as in a verifying forward: those behind the clean row at
position a are at a+1 .. a+L, and see the clean rows up to a and the rows of their group before them. The k-th row
drafts the token at a+k+1: its hidden state has the distribution q_k, or with a draft head the state that the head
computes from it, the token at a+k and the state before, of which the first is that of the clean row.

Letters: R rows, G groups, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchCache, BatchLayout, Rows, run_batch
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.low_rank import LowRank
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.model_weights import OUTSIDE, ModelWeights, tensor_of
from daguerre.models.processor import native_dtype
from daguerre.train.corpus.chat_text import ChatText
from daguerre.train.drafts.loss import DepthDrafts, Frozen, StateRows
from daguerre.train.self_generated import compute_dtype


def backbone_with_rows(weights: ModelWeights, config: ModelConfig, seed: int, multiplier: float) -> Backbone:
    """The model, frozen but for what the config adds to it: fresh factors, whose product is multiplied by `multiplier`,
    and a vector for rows that draft, at first the mean of the embeddings that drafts consist of.
    """
    backbone, before = Backbone(config).initialize(seed), parameter_shapes(weights.config)
    for layer in (OUTSIDE, *range(config.num_layers)):
        name = "" if layer is None else f"layers.{layer}."
        for inner, array in weights.part(layer).items():
            with torch.no_grad():
                backbone.get_parameter(name + inner).copy_(tensor_of(array))
    for name, weight in backbone.named_parameters():
        weight.requires_grad_(name not in before)
    for module in backbone.modules():
        if isinstance(module, LowRank):
            module.scale = multiplier
    if backbone.draft_embedding is not None:
        some = list(config.draft_tokens) or config.ordinary_ids.tolist()
        with torch.no_grad():
            backbone.draft_embedding.weight.copy_(backbone.embedding.weight[some].mean(0, keepdim=True))
    return backbone


def learning(backbone: nn.Module) -> nn.Module:
    """A module that has the parameters of another one that learn, under their names, and nothing else."""
    out = nn.Module()
    for name, weight in backbone.named_parameters():
        if weight.requires_grad:
            *path, last = name.split(".")
            module = out
            for part in path:
                if part not in dict(module.named_children()):
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(last, weight)
    return out


@dataclass(frozen=True)
class Groups:
    """Groups of rows behind places of a text, the longest first: the numbers of the clean rows (G,) among those that
    predict its answer, and how many rows each has (G,).
    """

    place: Tensor
    length: Tensor

    @classmethod
    def drawn(cls, num: int, most: int, depth: int, kept: float, generator: torch.Generator | None) -> Groups:
        """At most `most` groups behind `num` rows, of at most `depth` rows; each row is followed by one more with the
        chance `kept`. Without a generator places are evenly spaced, and groups as long as possible.
        """
        if generator is None:
            place = torch.from_numpy(np.unique(np.linspace(0, num - 2, min(most, num - 1)).astype(np.int64)))
            goes_on = torch.ones(len(place), depth - 1)
        else:
            place = torch.randperm(num - 1, generator=generator)[:most]
            goes_on = (torch.rand(len(place), depth - 1, generator=generator) < kept).float()
        length = torch.minimum(1 + goes_on.cumprod(-1).sum(-1).long(), num - 1 - place)
        order = torch.argsort(length, descending=True, stable=True)
        return cls(place[order], length[order])


class RowDrafts:
    """Drafts of a frozen backbone whose factors learn; `groups` of them behind a text."""

    def __init__(self, backbone: Backbone, frozen: Frozen, groups: int) -> None:
        self.backbone, self._frozen, self._groups = backbone, frozen, groups

    def drafted(
        self,
        texts: Sequence[ChatText],
        rows: StateRows,
        depth: int,
        kept: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Iterator[DepthDrafts]:
        """The drafts of each depth; `rows`: those of the same texts, one after the other."""
        first, parts = 0, list[list[DepthDrafts]]()
        for text in texts:
            if len(text.new) > 1:
                groups = Groups.drawn(len(text.new), self._groups, depth, kept, generator)
                parts.append(list(self._of_text(text, groups, first, rows)))
            first += len(text.new)
        for k in range(depth):
            some = [part[k] for part in parts if len(part) > k]
            if not some:
                return
            yield DepthDrafts(*(torch.cat([getattr(one, each.name) for one in some]) for each in fields(DepthDrafts)))

    def _of_text(self, text: ChatText, groups: Groups, first: int, rows: StateRows) -> Iterator[DepthDrafts]:
        frozen, head, end = self._frozen, self.backbone.draft_head, groups.length.cumsum(0)
        hidden, state = self._hidden(text, groups), rows.hidden[first + groups.place]
        for k in range(1, int(groups.length[0]) + 1):
            num = int((groups.length >= k).sum())
            at, now = first + groups.place[:num], hidden[end[:num] - groups.length[:num] + k - 1]
            state = now if head is None else head(now, frozen.embedding[rows.token[at + k - 1]], state[:num])
            log_draft = F.log_softmax(state @ frozen.projection.T, dim=-1)
            yield DepthDrafts(at + k, state, log_draft, frozen.teacher(rows.hidden[at + k], rows.log_sum[at + k]))

    def _hidden(self, text: ChatText, groups: Groups) -> Tensor:
        """The hidden states of all rows of a text's groups, one group after the other, float32 (R, D)."""
        backbone, clean = self.backbone, torch.tensor([[*text.prompt, *text.new[:-1]]])
        place = (len(text.prompt) - 1 + groups.place).repeat_interleave(groups.length)
        number = torch.arange(len(groups.place)).repeat_interleave(groups.length)
        begin = (groups.length.cumsum(0) - groups.length).repeat_interleave(groups.length)
        position = place + 1 + torch.arange(len(place)) - begin
        tokens = torch.full_like(position, backbone.config.placeholder)  # in whose place they read a vector
        labels = Rows.make(position[None], span=number[None], horizon=place[None] + 1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=native_dtype() == torch.bfloat16):
            with torch.no_grad():
                cache = BatchCache(backbone.config, clean.shape[1], 1, compute_dtype(backbone), clean.device)
                run_batch(backbone, clean, BatchLayout.causal(clean.shape[1]), cache)
            layout = BatchLayout(labels, num_clean=0, in_order=True)
            return run_batch(backbone, tokens[None], layout, cache, drafting=True)[0].float()
