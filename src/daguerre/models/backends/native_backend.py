"""The native backend: a batch of forwards as one call of C++, compiled for the local processor.

It is compiled once, in seconds, for all models, and kept on disk; it is never required. Every sum of a row is computed
in a fixed order, so a row has the same bits alone and in any batch, on any number of threads.

Two approximations, which `load` offers under the same names: with quantize="int8" the matrices, and the rows that they
are multiplied with, are 8-bit numbers, whose sums are exact. With "approximate_int4" matrices are 4-bit numbers with a
scale for every 32 inputs, and rows 8-bit numbers with scales of their own; the vocabulary projection and the draft head
are as with "int8".

Letters: R rows, A wanted rows, D width, H head width, V vocabulary.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Literal, get_args

import numpy as np
import torch

from daguerre.errors import UnsupportedError
from daguerre.models.backends import library as interface
from daguerre.models.backends.answering import Answering
from daguerre.models.backends.disk import Place, experts_file, say_where
from daguerre.models.backends.folding import Modulations
from daguerre.models.backends.gemma_packing import pack_gemma
from daguerre.models.backends.native_cache import LayeredNativeCache, NativeCache
from daguerre.models.backends.native_call import NativeCall, NativeEdit
from daguerre.models.backends.packing import pack
from daguerre.models.backends.panels import COLUMNS, TYPES, Numbers, Packing, round_up
from daguerre.models.contention import CONTENTION
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.gemma import GemmaBackbone
from daguerre.models.forward import Answer, DraftStep, Forward, Head, Hidden, KeyCache
from daguerre.models.processor import LEVELS, instruction_set

LOG = logging.getLogger("daguerre")
Quantization = Literal["int8", "approximate_int4"]
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)
NUMBERS: dict[Quantization, Numbers] = {"int8": "int8", "approximate_int4": "int4"}


class NativeBackend:
    """A `Backend` on a CPU. Its answers equal those of `TorchBackend` up to rounding; approximately so with `quantize`.

    Holds a packed copy of the matrices and never changes it: safe to use from several threads, if each uses separate
    caches. UnsupportedError for a model it cannot run, and if a C++ compiler is needed and missing. experts: see
    `BackboneDenoiser`.
    """

    def __init__(
        self,
        backbone: Backbone,
        quantize: Quantization | None = None,
        head: Head | None = None,
        experts: Place | None = None,
    ) -> None:
        reason = cannot_run(backbone)
        if reason:
            raise UnsupportedError(f'backend "native" cannot run a model {reason}: leave out backend')
        self._library = interface.library()
        self.config, self.backbone = backbone.config, backbone
        self.dtype = backbone.embedding.weight.dtype
        self._answering = None if head is None else Answering(backbone, head)
        self._edits = lru_cache(maxsize=64)(partial(NativeEdit, self.config))  # wrappers ask for the same ones again
        numbers = TYPES[self.dtype] if quantize is None else NUMBERS[quantize]
        self._packing = Packing(numbers, experts_file(self.config, backbone.num_parameters, numbers, experts))
        self._model = (
            pack_gemma(backbone, self._packing)
            if isinstance(backbone, GemmaBackbone)
            else pack(backbone, self._packing)
        )
        self._this = ctypes.byref(self._model)
        if self._packing.experts is not None:
            self._packing.experts.settle()
            say_where(self._packing.experts)
        adaptive = self.config.adaptive_width and self.config.time_input
        self._modulations = Modulations.of(backbone) if adaptive else None
        self._width, self._vocab = round_up(self.config.width, COLUMNS), round_up(self.config.vocab_size, COLUMNS)

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed weights, with those on the disk."""
        return self._packing.num_bytes

    def cache(self, capacity: int, *, int8: bool = False) -> KeyCache:
        """An empty cache for one request; see `Backend`."""
        kind = NativeCache if self.config.windows is None else LayeredNativeCache
        return kind(self.config, capacity, self.dtype, int8)

    def forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        """An answer to each request of the batch; see `Backend`."""
        forwards = [one for one in batch if isinstance(one, Forward)]
        answers = self._run(forwards) if forwards else []
        if len(forwards) == len(batch) and self._answering is None:
            return answers
        left = iter(answers)
        with torch.inference_mode():
            return [self._finish(one, next(left)) if isinstance(one, Forward) else self._step(one) for one in batch]

    def _finish(self, forward: Forward, answer: Answer) -> Answer:
        """The answer itself, or, with another head, the answer computed from the hidden states that `answer` holds."""
        if self._answering is None:
            return answer
        assert answer.hidden is not None
        hidden = torch.from_numpy(answer.hidden)
        hidden = hidden if isinstance(forward.ask, Hidden) else hidden.to(self.dtype)
        out = self._answering.answer(forward, hidden)
        out.conditioning = None if out.conditioning is None else out.conditioning.float().numpy()
        return out

    def _step(self, ask: DraftStep) -> Answer:
        if self._answering is not None:
            return self._answering.step(ask)
        rows, num = self._fill(ask.rows), len(ask.rows)
        logits, threads = np.empty((num, self._vocab), dtype=np.float32), CONTENTION.threads(torch.get_num_threads())
        edit = None
        if ask.edit is not None:
            edit = self._edits(ask.edit, num)
        change = None if edit is None else edit.address
        if ask.state is None or self.backbone.draft_head is None:
            given = rows.ctypes.data, num, change
            _check(self._library.daguerre_logits(self._this, *given, logits.ctypes.data, threads))
            hidden = ask.rows
        else:
            state = self._fill(ask.state)
            step = rows.ctypes.data, ask.token, state.ctypes.data, change
            _check(self._library.daguerre_draft(self._this, *step, logits.ctypes.data, threads))
            hidden = rows[:, : self.config.width]
        said = hidden.astype(np.float32) if ask.explain else None
        return Answer(hidden=hidden, logits=logits[:, : self.config.vocab_size], evidence=said)

    def _fill(self, rows: np.ndarray) -> np.ndarray:
        """Rows of D numbers, padded to their stride."""
        return np.pad(rows.astype(np.float32), ((0, 0), (0, self._width - rows.shape[1])))

    def _run(self, batch: Sequence[Forward]) -> list[Answer]:
        """One call of the library."""
        call = NativeCall(self.config, self.level, self._edits, batch, self._answering is not None)
        with CONTENTION.computing(call.threads, call.rows):
            _check(self._library.daguerre_forward(self._this, call.given, *call.made))
        for forward in batch:
            if forward.cache is not None:
                forward.cache.commit(forward.layout.num_clean)  # type: ignore[attr-defined]
        return call.answers()

    @torch.inference_mode()
    def level(self, level: float) -> np.ndarray:
        """The vector that a noise level adds to every row, float32 (D,); or, one after the other, those that it gives
        to adaptive norms (`native/model.h`).
        """
        if self._modulations is not None:
            return torch.cat([part.flatten() for part in self._modulations.at(level)]).numpy()
        assert self.backbone.time_input is not None
        out: np.ndarray = self.backbone.time_input(torch.tensor([level]))[0].float().numpy()
        return out


def _check(code: int) -> None:
    """MemoryError or IndexError for a code of the library that is not 0."""
    if code:
        raise (MemoryError if code == 3 else IndexError)(interface.ERRORS[code])


def cannot_run(backbone: Backbone) -> str | None:
    """Why this backbone cannot run on the native backend; None if it can, given a compiler."""
    weight = backbone.embedding.weight
    if weight.device.type != "cpu" and backbone.deferred is None:
        return f"on {weight.device.type}"
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return f"in {str(weight.dtype).removeprefix('torch.')}"
    return None


def can_run(backbone: Backbone) -> bool:
    """Whether this backbone can run on the native backend. Compiles the library; if that fails, logs the reason."""
    return not cannot_run(backbone) and can_compile()


def fastest_dtype() -> torch.dtype:
    """The type of weights that this backend is fastest in: bfloat16 from AVX2 on, since a forward of a few rows takes
    the time in which the weights are read (docs/speed.md); on other processors float32.
    """
    return torch.bfloat16 if instruction_set() in LEVELS else torch.float32


def can_compile() -> bool:
    """Whether the library is there or can be compiled, which this does. If not, logs the reason."""
    try:
        interface.library()
    except UnsupportedError as error:
        _say_once(str(error).removesuffix("leave out backend").rstrip("or ,:"))
        return False
    return True


@lru_cache
def _say_once(reason: str) -> None:
    LOG.warning("%s; PyTorch computes instead, which is slower", reason)
