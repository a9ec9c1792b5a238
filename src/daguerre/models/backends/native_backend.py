"""The native backend: a batch of forwards as one call of C++, compiled for the local processor.

It is compiled once, in seconds, for all models, and kept on disk; it is never required. Every sum of a row is computed
in a fixed order, so a row has the same bits alone and in any batch, on any number of threads.

`quantize` rounds matrices to the block types of GGUF files (`models.rounded_weights`). Two former names are types of
this backend alone: with "int8" the matrices, and the rows that they are multiplied with, are 8-bit numbers, whose sums
are exact. With "approximate_int4" matrices are 4-bit numbers with a scale for every 32 inputs, and rows 8-bit numbers
with scales of their own; the vocabulary projection and the draft head are as with "int8".

Letters: R rows, A wanted rows, D width, H head width, V vocabulary.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from daguerre.errors import UnsupportedError
from daguerre.extras import has_pytorch
from daguerre.models.backends import library as interface
from daguerre.models.backends.disk import BITS, experts_file, say_where
from daguerre.models.backends.folding import LevelVector, Modulations
from daguerre.models.backends.gemma_packing import pack_gemma
from daguerre.models.backends.kept_weights import keep, kept_packing
from daguerre.models.backends.native_cache import LayeredNativeCache, NativeCache
from daguerre.models.backends.native_call import NativeCall, NativeEdit
from daguerre.models.backends.packing import pack
from daguerre.models.backends.panels import COLUMNS, Numbers, Packing, round_up
from daguerre.models.bits import NumberType
from daguerre.models.contention import CONTENTION, num_threads
from daguerre.models.forward import Answer, DraftStep, Forward, Head, KeyCache
from daguerre.models.gguf.rounding import NAMES
from daguerre.models.load_options import Place, Quantization
from daguerre.models.model_weights import ModelWeights, weights_of
from daguerre.models.processor import LEVELS, instruction_set
from daguerre.models.rounded_weights import RoundedWeights
from daguerre.models.row_times import RowTimes

if TYPE_CHECKING:
    from daguerre.models.core.backbone import Backbone

WAYS_OUT = (
    "install a C++ compiler (g++ or clang++) or a wheel of Daguerre with compiled libraries, or PyTorch: pip install "
    "'daguerre[torch]'"
)
"""Of an installation on which nothing can compute."""
LOG = logging.getLogger("daguerre")
NUMBERS: dict[Quantization, Numbers] = {"int8": "int8", "approximate_int4": "int4"}
"""Of former names: types of numbers of this backend alone."""
INSTEAD: dict[Quantization, Quantization] = {"int8": "q8_0", "approximate_int4": "q4_k"}
"""Of former names: those that take about the same memory and cost less quality."""


class NativeBackend:
    """A `Backend` on a CPU. Its answers equal those of `TorchBackend` up to rounding; approximately so with `quantize`.

    Holds a packed copy of the matrices and never changes it: safe to use from several threads, if each uses separate
    caches. UnsupportedError for a model it cannot run, and if a C++ compiler is needed and missing. experts: see
    `BackboneDenoiser`.
    """

    def __init__(
        self,
        model: ModelWeights | Backbone,
        quantize: Quantization | None = None,
        head: Head | None = None,
        experts: Place | None = None,
    ) -> None:
        weights = weights_of(model)
        if weights.cannot_pack is not None:
            raise UnsupportedError(f'backend "native" cannot run a model {weights.cannot_pack}: leave out backend')
        self._library = interface.library()
        config = self.config = weights.config
        self.weights, self.numbers = weights, weights.numbers
        self._answering = None if head is None else _answering(weights, head)
        self._edits = lru_cache(maxsize=64)(partial(NativeEdit, config))  # wrappers ask for the same ones again
        if quantize in NAMES:
            weights, quantize = RoundedWeights(weights, quantize), None
        bits = weights.stored_bits if quantize is None and config.gemma is None else None
        numbers: Numbers = NUMBERS[quantize] if quantize else "stored" if bits else weights.numbers
        file = experts_file(config, weights.num_parameters, bits or BITS[numbers], experts)
        there = None if file is not None else kept_packing(weights, numbers)
        self._packing = there or Packing(numbers, file)
        parts = weights.as_stored() if numbers == "stored" else weights
        self._model = pack(parts, self._packing) if config.gemma is None else pack_gemma(weights, self._packing)
        if there is None:
            keep(weights, numbers, self._packing)
        self._this = ctypes.byref(self._model)
        if self._packing.experts is not None:
            self._packing.experts.settle()
            say_where(self._packing.experts)
        adaptive = config.adaptive_width and config.time_input
        self._modulations = Modulations.of(weights) if adaptive else None
        self._level = LevelVector.of(weights) if config.time_input and not adaptive else None
        self.row_times = RowTimes() if config.can_draft and config.mask_id is None else None
        self._width, self._vocab = round_up(config.width, COLUMNS), round_up(config.vocab_size, COLUMNS)

    @property
    def block_types(self) -> tuple[str, ...]:
        """The types of blocks that are multiplied as a file has them, by ggml's names."""
        return tuple(sorted(self._packing.block_types))

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed weights, with those on the disk."""
        return self._packing.num_bytes

    def cache(self, capacity: int, *, int8: bool = False) -> KeyCache:
        """An empty cache for one request; see `Backend`."""
        kind = NativeCache if self.config.windows is None else LayeredNativeCache
        return kind(self.config, capacity, self.numbers, int8)

    def forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        """An answer to each request of the batch; see `Backend`."""
        forwards, answers = [one for one in batch if isinstance(one, Forward)], list[Answer]()
        if forwards:
            began = time.thread_time()
            call = NativeCall(self.config, self.level, self._edits, forwards, self._answering is not None)
            with CONTENTION.computing(call.threads, call.rows):
                failed = self._library.daguerre_forward(self._this, call.given, *call.made)
            if failed:
                raise _error(failed)
            for one in forwards:
                if one.cache is not None:
                    one.cache.commit(one.layout.num_clean)  # type: ignore[attr-defined]
            answers = call.answers()
            if self.row_times is not None:
                self.row_times.took(call.rows, sum(len(one.wanted) for one in forwards), time.thread_time() - began)
        if len(forwards) == len(batch) and self._answering is None:
            return answers
        left = iter(answers)
        return [self._finish(one, next(left)) if isinstance(one, Forward) else self._step(one) for one in batch]

    def _finish(self, forward: Forward, answer: Answer) -> Answer:
        """The answer itself, or, with another head, the answer computed from the hidden states that `answer` holds."""
        if self._answering is None:
            return answer
        assert answer.hidden is not None
        return self._answering.answer_of(forward, answer.hidden)

    def _step(self, ask: DraftStep) -> Answer:
        if self._answering is not None:
            return self._answering.step(ask)
        rows, num = self._fill(ask.rows), len(ask.rows)
        logits, threads = np.empty((num, self._vocab), dtype=np.float32), CONTENTION.threads(num_threads())
        edit = None
        if ask.edit is not None:
            edit = self._edits(ask.edit, num)
        change = None if edit is None else edit.address
        if ask.state is None or not self.config.draft_head:
            given = rows.ctypes.data, num, change
            failed = self._library.daguerre_logits(self._this, *given, logits.ctypes.data, threads)
            hidden = ask.rows
        else:
            state = self._fill(ask.state)
            step = rows.ctypes.data, ask.token, state.ctypes.data, change
            failed = self._library.daguerre_draft(self._this, *step, logits.ctypes.data, threads)
            hidden = rows[:, : self.config.width]
        if failed:
            raise _error(failed)
        said = hidden.astype(np.float32) if ask.explain else None
        return Answer(hidden=hidden, logits=logits[:, : self.config.vocab_size], evidence=said)

    def _fill(self, rows: np.ndarray) -> np.ndarray:
        """Rows of D numbers, padded to their stride."""
        return np.pad(rows.astype(np.float32), ((0, 0), (0, self._width - rows.shape[1])))

    def level(self, level: float) -> np.ndarray:
        """The vector that a noise level adds to every row, float32 (D,); or, one after the other, those that it gives
        to adaptive norms (`native/model.h`).
        """
        if self._modulations is not None:
            return np.concatenate([part.ravel() for part in self._modulations.at(level)])
        assert self._level is not None
        return self._level.at(level)


def _answering(weights: ModelWeights, head: Head) -> Any:
    """What makes answers of hidden states with another head: in PyTorch, as the head is."""
    from daguerre.models.backends.answering import Answering

    return Answering(weights.module(), head)


def _error(code: int) -> Exception:
    """MemoryError or IndexError, for a code of the library that is not 0."""
    return (MemoryError if code == 3 else IndexError)(interface.ERRORS[code])


def fastest_numbers() -> NumberType:
    """The type of weights that this backend is fastest in: bfloat16 from AVX2 on, since a forward of a few rows takes
    the time in which the weights are read (docs/speed.md); on other processors float32.
    """
    return "bfloat16" if instruction_set() in LEVELS else "float32"


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
    if has_pytorch():
        LOG.warning("%s; PyTorch computes instead, which is slower", reason)
