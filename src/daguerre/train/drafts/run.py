"""`daguerre train drafts --from MODEL`: drafts for a frozen autoregressive model, by a head, by rows behind the text,
or both, in a folder of a few megabytes.

Texts are those of `daguerre data self`, which may go on writing meanwhile: new ones are read first, at most half of a
step. What the model computes of a text is kept on the disk, so a head reads a text again at its own cost alone; rows
are computed through the model, and a text's clean rows with them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from daguerre.errors import DataError, InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.added_weights import fingerprint
from daguerre.models.bits import floats
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.draft_head import ACCEPTED, DraftHead
from daguerre.models.draft_files import save_draft_folder
from daguerre.models.loading import model_folder, open_source
from daguerre.train.checkpoint import CHECKPOINTS, find_checkpoint, load_checkpoint, save_checkpoint
from daguerre.train.corpus.chat_text import ChatText, read_chat_texts
from daguerre.train.drafts.loss import DepthDrafts, Frozen, StateRows, drafted, drafting_loss
from daguerre.train.drafts.options import DraftOptions
from daguerre.train.drafts.rows import RowDrafts, backbone_with_rows, learning
from daguerre.train.drafts.states import States, TextPlace
from daguerre.train.optim import Average, lr_factor
from daguerre.train.settings import keep_options
from daguerre.train.stopping import StopRequest, stopped_by_signals

DRAFTS, STATES, LOG = "drafts", "states", "progress.jsonl"
"""The folders of the head and of the states in that of a run, and its log."""
HELD = 20
"""One text in so many is held out."""
MOST_HELD, MOST_HELD_BY_ROWS = 60, 8
"""Held-out texts that are measured; those of rows are computed through the model."""
FEWEST = 40
"""Texts without which no run begins."""
LOOK = 50
"""Steps between two looks for texts that were written meanwhile."""
MINUTES = 5.0
"""Between two checkpoints."""
CLIP, WARMUP = 1.0, 0.005
"""The greatest norm of a gradient, and the share of the budget in which the rate rises. Muon would take as long for a
step as all else on a CPU."""
WANTED = 0.5, 0.45
"""What the first two drafts of greedy text should reach by the stop test: below, more data alone will not help."""


def frozen_of(model: Model, tokens: Sequence[int]) -> Frozen:
    """What the head reads of a model, float32."""
    held = model.denoiser.weights.outside(("embedding.weight", "output.weight"))
    ids, (embedding, projection) = (
        torch.tensor(tokens),
        (
            torch.from_numpy(floats(held[name]))
            for name in ("embedding.weight", "embedding.weight" if model.config.tied else "output.weight")
        ),
    )
    return Frozen(embedding, ids, projection[ids])


def draft_tokens(texts: Sequence[ChatText], config: ModelConfig, num: int) -> tuple[int, ...]:
    """The most frequent tokens of texts, at most `num`, ascending; those that no text has follow by their number, which
    in most vocabularies is an order of frequency.
    """
    count = np.bincount(np.concatenate([text.new for text in texts]), minlength=config.vocab_size)
    count[list(config.unpredictable_ids)] = -1
    order = np.lexsort((np.arange(config.vocab_size), -count))
    kept = order[: min(num, config.vocab_size - len(config.unpredictable_ids))]
    return tuple(np.sort(kept).tolist())


@dataclass
class DraftProgress:
    """How far a run is: steps, drafts that it has learned from, and seconds."""

    step: int = 0
    drafts: int = 0
    seconds: float = 0.0
    judged: bool = False


class DraftRun:
    """A run in a folder; `run` trains until the budget or the minutes are used up, or Ctrl-C."""

    def __init__(
        self,
        model: Model,
        files: Sequence[Path],
        data: Path,
        out: Path,
        options: DraftOptions,
        *,
        resume: bool = False,
        minutes: float | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        config = model.config
        if not config.can_draft or config.mask_id is not None or config.draft_head:
            raise UnsupportedError(
                "drafts are trained for an autoregressive model that has none yet, which this one is not"
            )
        checkpoint = find_checkpoint(out, resume)
        self.model, self.data, self.out, self.options, self._say = model, data, out, options, say
        self.name = files[0].name if len(files) == 1 else files[0].parent.name
        self._fingerprint = fingerprint(files)
        self.progress, self._minutes, self._began = DraftProgress(), minutes, time.monotonic()
        self._texts = read_chat_texts(data)
        if len(self._texts) < FEWEST:
            raise DataError(f"{data} has {len(self._texts)} texts: write {FEWEST} or more with `daguerre data self`")
        tensors, state = load_checkpoint(checkpoint) if checkpoint is not None else ({}, {})
        tokens = state.get("draft_tokens") or draft_tokens(self._texts, config, options.vocabulary)
        self.config = replace(config, **options.shape(), draft_tokens=tuple(tokens))
        self.frozen, self.states = frozen_of(model, tokens), States(out / STATES, config.width)
        self.head = make_head(self.config, options.seed) if self.config.draft_head else None
        self.by_rows = self._rows_of(model) if self.config.has_draft_rows else None
        self.trained = nn.Module() if self.by_rows is None else learning(self.by_rows.backbone)
        if self.head is not None:
            self.trained.draft_head = self.head
        groups = [
            {"params": [x for name, x in self.trained.named_parameters() if is_head(name) is head], "rate": rate}
            for head, rate in ((True, options.rate), (False, options.row_rate))
        ]
        groups = [group for group in groups if group["params"]]
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        self.average = Average(self.trained, 0.998)
        self._rng, self._generator = np.random.default_rng(options.seed), torch.Generator().manual_seed(options.seed)
        if checkpoint is not None:
            self._restore(tensors, state)

    def _rows_of(self, model: Model) -> RowDrafts:
        weights, options = model.denoiser.weights, self.options
        backbone = backbone_with_rows(weights, self.config, options.seed, options.multiplier)
        backbone.draft_head = self.head
        return RowDrafts(backbone, self.frozen, options.groups)

    def _restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self.trained.load_state_dict(tensors["head"])
        self.average.values, self.average.count = tensors["average"], state["averaged"]
        self.optimizer.load_state_dict(tensors["optimizer"])
        self._generator.set_state(tensors["generator"])
        self._rng.bit_generator.state = state["order"]
        self.progress = DraftProgress(**state["progress"])

    def run(self) -> Path:
        """Train; returns the folder of the head."""
        stop, last = StopRequest(), time.monotonic()
        with stopped_by_signals(stop):
            while self.progress.drafts < self.options.drafts and not stop.asked and not self._out_of_time():
                self._step()
                if time.monotonic() - last > 60 * MINUTES:
                    self.save()
                    last = time.monotonic()
        return self.save()

    def _out_of_time(self) -> bool:
        return self._minutes is not None and time.monotonic() - self._began > 60 * self._minutes

    def _step(self) -> None:
        began = time.monotonic()
        places, options = self._chosen(), self.options
        rows = self._rows(places)
        depths = list(self._drafted(places, rows, self._depth(), options.kept, self._generator))
        found = drafting_loss(depths, self.head, self.frozen, rows, self._generator)
        found.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained.parameters(), CLIP)
        factor = lr_factor(self.progress.drafts / self.options.drafts, WARMUP, self.options.decay)
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"] * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update(self.trained)
        self.progress.step += 1
        self.progress.drafts += found.num
        self.progress.seconds += time.monotonic() - began

    def _depth(self) -> int:
        """How long drafts are now: those by rows grow."""
        most, share = self.options.depth, self.progress.drafts / self.options.drafts
        if self.by_rows is None or share >= self.options.growth:
            return most
        return min(most, 2 + int((most - 1) * share / self.options.growth))

    def _drafted(
        self,
        places: Sequence[TextPlace],
        rows: StateRows,
        depth: int,
        kept: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Iterator[DepthDrafts]:
        if self.by_rows is None:
            assert self.head is not None
            return drafted(self.head, self.frozen, rows, depth, kept, generator)
        texts = {text.number: text for text in self._texts}
        return self.by_rows.drafted([texts[place.number] for place in places], rows, depth, kept, generator)

    def _rows(self, places: Sequence[TextPlace]) -> StateRows:
        return StateRows.of(self.states.read(places), [place.rows for place in places])

    def _chosen(self) -> list[TextPlace]:
        """The texts of a step: at most half of them are new, whose states are computed now."""
        num, new = self.options.texts, list[TextPlace]()
        if len(self.states.places) == len(self._texts) and self.progress.step % LOOK == 0:
            self._texts = read_chat_texts(self.data)
        while len(self.states.places) < len(self._texts) and len(new) < max(1, num // 2):
            place = self.states.add(self.model, self._texts[len(self.states.places)])
            if place.number % HELD:
                new.append(place)
        known = [place for place in self.states.places if place.number % HELD]
        return new + [known[index] for index in self._rng.integers(len(known), size=num - len(new))]

    @torch.no_grad()
    def measured(self) -> dict[str, Any]:
        """How often the drafts of held-out texts are accepted, by depth, each given that those before it are: greedy
        ones of greedy texts; at temperature 1 at most, by overlap.
        """
        now = {name: value.clone() for name, value in self.trained.state_dict().items()}
        self.trained.load_state_dict(self.average.values)
        most = MOST_HELD if self.by_rows is None else MOST_HELD_BY_ROWS
        held = [place for place in self.states.places if place.number % HELD == 0][-most:]
        greedy = self._accepted([place for place in held if not place.temperature])
        found = {"greedy": greedy[0], "sampled": self._accepted(held)[1], "held": len(held)}
        self.trained.load_state_dict(now)
        return found

    def _accepted(self, places: Sequence[TextPlace]) -> tuple[list[float], list[float]]:
        depth = self.options.depth
        right, tried, overlap, num = (np.zeros(depth) for _ in range(4))
        for place in places:
            rows = self._rows([place])
            reached = torch.ones(len(rows.token) + depth)
            for k, one in enumerate(self._drafted([place], rows, depth)):
                begin = one.row - k - 1
                hit = self.frozen.tokens[one.log_draft.argmax(-1)] == rows.top[one.row]
                tried[k] += float(reached[begin].sum())
                reached[begin] *= hit.float()
                right[k] += float(reached[begin].sum())
                overlap[k] += float(one.overlap().sum())
                num[k] += len(one.row)
        return (right / tried.clip(1)).round(4).tolist(), (overlap / num.clip(1)).round(4).tolist()

    def save(self) -> Path:
        """Measure, write a checkpoint and the head, and a line of the log."""
        progress, found = self.progress, self.measured()
        tensors = {
            "head": self.trained.state_dict(),
            "average": self.average.values,
            "optimizer": self.optimizer.state_dict(),
            "generator": self._generator.get_state(),
        }
        state = {
            "progress": asdict(progress),
            "averaged": self.average.count,
            "order": self._rng.bit_generator.state,
            "draft_tokens": list(self.config.draft_tokens),
        }
        save_checkpoint(self.out / CHECKPOINTS, progress.step, tensors, state)
        self._export(found)
        line = asdict(progress) | {"texts": len(self.states.places), "rows": self._num_rows()} | found
        with (self.out / LOG).open("a") as file:
            file.write(json.dumps(line) + "\n")
        speed = progress.drafts / max(progress.seconds, 1e-9)
        left = (self.options.drafts - progress.drafts) / max(speed, 1e-9) / 3600
        self._say(
            f"{progress.drafts:,} drafts, {speed:,.0f} a second, {left:.1f} hours to go; {len(self.states.places):,} "
            f"texts; accepted, greedy {found['greedy']}, at temperature 1 {found['sampled']}"
        )
        self._judge(found["greedy"])
        return self.out / DRAFTS

    def _num_rows(self) -> int:
        return sum(place.rows for place in self.states.places)

    def _judge(self, greedy: Sequence[float]) -> None:
        """Say once, after the set number of drafts, whether it is worth going on."""
        if self.progress.judged or not self.options.stop or self.progress.drafts < self.options.stop:
            return
        self.progress.judged = True
        if all(found >= wanted for found, wanted in zip(greedy, WANTED, strict=False)):
            self._say("the drafts are on their way: go on")
        else:
            self._say(
                f"the first two drafts are accepted {greedy[:2]} of the time and should be {list(WANTED)} by now: "
                "raise the rate, and the width of a head or the multiplier of rows; more text alone will not help"
            )

    def _export(self, found: Mapping[str, Any]) -> None:
        base = {"name": self.name, "sha256": self._fingerprint}
        shape = {
            **self.options.shape(),
            "draft_tokens": list(self.config.draft_tokens),
            "draft_acceptance": [found["greedy"], found["sampled"]],
        }
        trained = {
            "texts": len(self.states.places),
            "rows": self._num_rows(),
            "drafts": self.progress.drafts,
            "seconds": round(self.progress.seconds),
            "options": asdict(self.options),
        }
        scale = {
            name: self.options.multiplier if name.endswith("_draft.b.weight") else 1.0 for name in self.average.values
        }
        tensors = {name: value * scale[name] for name, value in self.average.values.items()}
        save_draft_folder(self.out / DRAFTS, tensors, base, shape, trained)


def is_head(name: str) -> bool:
    """Whether a parameter is one of a draft head."""
    return name.startswith("draft_head.")


def make_head(config: ModelConfig, seed: int) -> DraftHead:
    """A fresh draft head, which returns hidden states unchanged."""
    head, generator = DraftHead(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.up.weight.normal_(0, head.up.in_features**-0.5, generator=generator)
        head.down.weight.zero_()
        if head.confidence is not None:
            head.confidence.weight.zero_()
            head.confidence.bias.fill_(ACCEPTED)
    return head


def train_drafts(
    name: str,
    data: Path,
    out: Path,
    options: DraftOptions,
    *,
    resume: bool = False,
    minutes: float | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Train drafts for a model by its name; returns their folder."""
    from daguerre.model import load

    if not data.is_dir():
        raise InputError(f"there is no folder {data}: write texts with `daguerre data self --from {name} --out {data}`")
    files = open_source(model_folder(name)).weight_files()
    if not files:
        raise UnsupportedError(f"drafts are trained for a publisher's model, and {name} is none")
    model = load(name, drafts="none")
    run = DraftRun(model, files, data, out, options, resume=resume, minutes=minutes, say=say)
    keep_options(out, options)
    return run.run()
