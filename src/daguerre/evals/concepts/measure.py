"""All parts together: what is measured of a concept model, from which texts, and with what beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daguerre.concepts.taxonomy import taxonomy
from daguerre.errors import DataError, UnsupportedError, no_concept_heads, unknown
from daguerre.evals.bits import evenly
from daguerre.evals.concepts.alignment import measure_alignment
from daguerre.evals.concepts.bars import bars
from daguerre.evals.concepts.cases import ConceptCase, Labeled, cases_of, labeled, read_cases
from daguerre.evals.concepts.detection import Detection, measure_detection
from daguerre.evals.concepts.injection import asked_concepts, measure_injection
from daguerre.evals.concepts.partial_results import PartialResults
from daguerre.evals.concepts.shares import measure_shares
from daguerre.evals.concepts.stability import measure_stability
from daguerre.evals.concepts.suppression import forbidden_concepts, measure_suppression
from daguerre.evals.concepts.tampering import NEEDED, measure_audit
from daguerre.evals.concepts.writing import labeled_texts, writer
from daguerre.evals.options import EvalLimits, EvalOptions
from daguerre.evals.workers import Progress
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.core.config import ModelConfig
from daguerre.train.shards import Shard

PARTS = ("detection", "shares", "suppression", "injection", "alignment", "stability", "audit")
PER_FILE = 8
"""Training cases of a file, at most."""
SHARE_CASES, SHARE_WINDOWS, STABILITY_CASES = 2000, 200, 300


@dataclass(frozen=True, eq=False, kw_only=True)
class ConceptModel:
    """What is measured, and what beside it.

    plain   the model without heads: its hidden states are a control, and its bits per byte a reference; or None
    twin    the same training with another seed; None: stability is not measured
    corpus  a folder of token shards: training text, for controls and alignment, and more held-out text, for prompts
    """

    model: Model
    documents: Sequence[Document]
    options: EvalOptions
    plain: Model | None
    twin: Model | None

    @property
    def corpus(self) -> Path | None:
        return self.options.corpus

    @property
    def seed(self) -> int:
        return self.options.seed

    @property
    def limits(self) -> EvalLimits:
        return self.options.limits

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of PARTS that are measured."""
        return PARTS if self.options.parts is None else tuple(self.options.parts)

    def check(self) -> None:
        """UnsupportedError for a model without the heads of this taxonomy, or of another kind than is measured."""
        for part in self.parts:
            if part not in PARTS:
                raise unknown("part", part, PARTS)
        check_heads(self.model)
        if self.twin is not None:
            check_heads(self.twin)
        if self.plain is not None and not _alike(self.plain, self.model):
            raise UnsupportedError("the plain model has another tokenizer or context: its states are no control")
        if self.corpus is None and "alignment" in self.parts and len(self.parts) == 1:
            raise DataError("alignment needs training text: pass a corpus")
        if self.twin is None and self.parts == ("stability",):
            raise DataError("stability needs a training with another seed: pass a twin")

    @cached_property
    def texts(self) -> list[Labeled]:
        """The held-out files that parse."""
        return list(labeled(enumerate(each.text for each in self.documents), self.model.tokenizer))

    @cached_property
    def cases(self) -> list[ConceptCase]:
        """Held-out cases, evenly spread. DataError where no file has one."""
        found = [case for text in self.texts for case in cases_of(text, _first(self.model.config), self.seed)]
        if not found:
            raise DataError("no document that parses has 64 tokens: give longer files")
        return [found[place] for place in evenly(len(found), min(self.limits.concept_spans, len(found)))]

    @cached_property
    def training(self) -> list[ConceptCase]:
        """Cases of training text: of files in a random order, at most PER_FILE of each."""
        out = list[ConceptCase]()
        if self.corpus is None:
            return out
        shard = Shard.open(self.corpus, "train", self.model.tokenizer.sha256)
        order = np.random.default_rng(self.seed).permutation(shard.num_documents).tolist()
        for text in labeled(_texts_of(shard, order, self.model), self.model.tokenizer):
            found = cases_of(text, _first(self.model.config), self.seed)
            chosen = np.random.default_rng((self.seed, text.file)).permutation(len(found))[:PER_FILE]
            out += [found[place] for place in np.sort(chosen)]
            if len(out) >= self.limits.control_spans:
                break
        return out[: self.limits.control_spans]

    @cached_property
    def prompts(self) -> list[Any]:
        """Texts that prompts come from: held-out ones, those of the corpus's test split included."""
        texts = [each.text for each in self.documents]
        if self.corpus is not None:
            shard = Shard.open(self.corpus, "test", self.model.tokenizer.sha256)
            texts += [text for _, text in _texts_of(shard, range(shard.num_documents), self.model)]
        return labeled_texts(texts)


def check_heads(model: Model) -> None:
    """UnsupportedError unless a model has concept heads of this taxonomy, and a clean stream to forecast from."""
    heads, known = model.backbone.concepts, taxonomy()
    if heads is None:
        raise no_concept_heads()
    if heads.shape.known != known.num_ids or not heads.shape.taxonomy:
        raise UnsupportedError("the model's concepts are not those of daguerre's taxonomy: their labels are not known")
    if not model.config.can_draft:
        raise UnsupportedError("concepts are measured of models with causal context and a shift")


def measure_concepts(what: ConceptModel, progress: Progress) -> dict[str, Any]:
    """The section "concepts" of a report: PARTS that can be measured, bars, and what was left out and why."""
    what.check()
    kept, write = PartialResults(what.options.keep, _facts(what)), writer(what.model)
    seed, limits = what.seed, what.limits
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "detection": lambda: measure_detection(
            Detection(what.model, what.cases, what.training, what.plain, seed), kept, progress
        ),
        "shares": lambda: _shares(what, kept, progress),
        "suppression": lambda: measure_suppression(
            what.prompts, forbidden_concepts(), write, limits.generations, kept, progress, seed
        ),
        "injection": lambda: measure_injection(
            what.prompts, asked_concepts(), write, limits.injections, kept, progress, seed
        ),
        "alignment": lambda: kept.figures("alignment", lambda: _alignment(what)),
        "stability": lambda: kept.figures("stability", lambda: _stability(what, progress)),
        "audit": lambda: kept.figures("audit", lambda: _audit(what, progress)),
    }
    left_out = _left_out(what)
    out = {name: makers[name]() for name in PARTS if name in what.parts and name not in left_out}
    return {
        "taxonomy": taxonomy().sha256,
        "model_taxonomy": what.model.config.concepts.taxonomy if what.model.config.concepts else "",
        "bars": bars(out),
        **out,
        "left_out": left_out,
    }


def _left_out(what: ConceptModel) -> dict[str, str]:
    """Parts that cannot be measured, and why."""
    out = dict[str, str]()
    if what.corpus is None:
        out |= {"controls": "there is no training text: pass a corpus", "alignment": "it needs training text"}
    elif what.plain is None:
        out["linear probes"] = "there is no plain model"
    if not (what.model.concepts and what.model.concepts.by_name):
        out |= dict.fromkeys(("suppression", "injection"), "the model's folder has no names of concepts, concepts.json")
    if what.twin is None:
        out["stability"] = "there is no training with another seed: pass a twin"
    if not all(map(find_spec, NEEDED)):
        out["audit"] = "it needs more packages: pip install 'daguerre[audit]'"
    of_part = {"controls": "detection", "linear probes": "detection"}
    return {name: reason for name, reason in out.items() if of_part.get(name, name) in what.parts}


def _shares(what: ConceptModel, kept: PartialResults, progress: Progress) -> dict[str, Any]:
    cases = [what.cases[place] for place in evenly(len(what.cases), min(SHARE_CASES, len(what.cases)))]
    windows = min(SHARE_WINDOWS, max(4, what.limits.concept_spans // 20))
    return measure_shares(what.model, what.plain, cases, what.documents, windows, kept, progress, what.seed)


def _alignment(what: ConceptModel) -> dict[str, Any]:
    texts = list({case.text.file: case.text for case in what.training}.values())
    return measure_alignment(what.model.backbone, texts, lambda token: what.model.tokenizer.decode([token]))


def _stability(what: ConceptModel, progress: Progress) -> dict[str, Any]:
    assert what.twin is not None
    heads, other = what.model.backbone.concepts, what.twin.backbone.concepts
    assert heads is not None and other is not None
    cases = [what.cases[place] for place in evenly(len(what.cases), min(STABILITY_CASES, len(what.cases)))]
    ours, theirs = (_states(model, cases, progress) for model in (what.model, what.twin))
    return measure_stability(heads, other, ours, theirs, what.seed)


def _audit(what: ConceptModel, progress: Progress) -> dict[str, Any]:
    changes = max(1, what.limits.generations // 2)
    return measure_audit(what.model, [each.text for each in what.documents], changes, progress, what.seed)


def _states(model: Model, cases: Sequence[ConceptCase], progress: Progress) -> Tensor:
    """All scored rows of some cases, float32 (A, D)."""
    out = list[np.ndarray]()
    read_cases(
        model.config,
        model.denoiser.backend,
        cases,
        lambda _, __, found: out.extend(found),
        lambda done, total: progress("stability", done, total),
    )
    return torch.from_numpy(np.concatenate(out))


def _texts_of(shard: Shard, order: Sequence[int], model: Model) -> Iterator[tuple[int, str]]:
    """Documents of a shard as texts, with their numbers."""
    for number in order:
        ids = [token for token in shard.document(number).tolist() if token not in model.tokenizer.special_ids]
        yield number, model.tokenizer.decode(ids)


def _first(config: ModelConfig) -> int:
    """Where the first span of a file may begin."""
    return int(config.shift and not config.first)


def _alike(one: Model, other: Model) -> bool:
    """Whether two models read the same rows of the same tokens."""
    same = all(getattr(one.config, name) == getattr(other.config, name) for name in ("context", "shift", "first"))
    return same and one.tokenizer.sha256 == other.tokenizer.sha256


def _facts(what: ConceptModel) -> dict[str, Any]:
    """What kept parts depend on."""
    texts, limits = hashlib.sha256("".join(each.sha256 for each in what.documents).encode()), what.limits
    amounts = {"cases": limits.concept_spans, "training": limits.control_spans}
    return {
        "model": digest(what.model),
        "plain": None if what.plain is None else digest(what.plain),
        "twin": None if what.twin is None else digest(what.twin),
        "corpus": None if what.corpus is None else str(what.corpus.resolve()),
        "texts": texts.hexdigest(),
        "taxonomy": taxonomy().sha256,
        "amounts": amounts | {"generations": limits.generations, "injections": limits.injections},
        "seed": what.seed,
    }


def digest(model: Model) -> str:
    """SHA-256 of a model's weights."""
    out = hashlib.sha256()
    for name, weight in sorted(model.backbone.state_dict().items()):
        out.update(name.encode())
        out.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return out.hexdigest()
