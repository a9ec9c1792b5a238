"""Other engines at the same shape. For an engine that is not installed, an error says how to install it.

All have random weights, or for llama.cpp those of a given model, in the job's type unless the name says otherwise, and
write greedily. Each is timed from token ids to token ids: no text is encoded or decoded.
"""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.errors import DataError, MissingExtra, UnsupportedError
from daguerre.evals.bench.job import FORCED, BenchJob, Runner, Timing, model_of, random_config, remarks, torch_dtype
from daguerre.models.core.backbone import Backbone
from daguerre.models.gguf import writing

DIFFUSERS_BLOCK = 32
DIFFUSERS_OPTIONS: dict[str, Any] = {
    "use_chat_template": False,
    "temperature": 0.0,
    "sampling_method": "greedy",
    "threshold": 2.0,  # above every probability, so that the schedule alone commits
    "editing_threshold": None,
    "eos_early_stop": False,
    "output_type": "seq",
}
LLAMA_TYPES = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}
"""What llama.cpp calls the types that Daguerre's native backend multiplies."""


class Ticks:
    """Seconds since it was made, noted whenever tokens arrive; a `streamer` as transformers has it."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.at: list[float] = []

    def put(self, tokens: Any) -> None:
        self.at.append(time.perf_counter() - self.started)

    def end(self) -> None:
        """Nothing is left to note."""


def _llama(job: BenchJob) -> Any:
    """Llama of transformers at the job's shape, with an output matrix beside its embedding: 34M parameters at the
    yardstick's shape.
    """
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        raise MissingExtra("transformers", "bench") from None
    shape = job.shape
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.width,
        intermediate_size=shape.mlp_width,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=2 * (shape.prompt_tokens + shape.new_tokens),
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config).to(torch_dtype(job.dtype)).eval()


def transformers(job: BenchJob) -> Runner:
    """`generate` of transformers, with its cache."""
    model, new = _llama(job), job.shape.new_tokens

    @torch.inference_mode()
    def run(prompt: Sequence[int]) -> Timing:
        ids = torch.tensor([prompt])
        ticks = Ticks()
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            use_cache=True,
            min_new_tokens=new,
            max_new_tokens=new,
            streamer=ticks,
        )
        seconds = time.perf_counter() - ticks.started
        return Timing(  # the streamer gets the prompt first
            seconds=seconds,
            first_seconds=ticks.at[1],
            first_tokens=1,
            tokens=tuple(out[0, len(prompt) :].tolist()),
            forwards=new,
        )

    return run


def diffusers(job: BenchJob) -> Runner:
    """`LLaDA2Pipeline` of diffusers, FORCED tokens a forward in blocks of DIFFUSERS_BLOCK: it has no cache."""
    try:
        from diffusers import BlockRefinementScheduler, LLaDA2Pipeline
    except ImportError:
        raise MissingExtra("diffusers", "bench") from None
    model, new = _llama(job), job.shape.new_tokens
    model.config.use_cache = False
    pipe = LLaDA2Pipeline(model=model, scheduler=BlockRefinementScheduler())
    pipe.set_progress_bar_config(disable=True)
    mask, block = random_config(job.shape).mask_id, min(DIFFUSERS_BLOCK, new)
    sizes = {"gen_length": new, "block_length": block, "num_inference_steps": block // FORCED, "mask_token_id": mask}

    def run(prompt: Sequence[int]) -> Timing:
        ids = torch.tensor([prompt])
        ticks = Ticks()

        def step_done(pipe: Any, step: int, timestep: int, tensors: Any) -> Any:
            ticks.put(None)
            return tensors

        out = pipe(input_ids=ids, callback_on_step_end=step_done, **sizes, **DIFFUSERS_OPTIONS)
        seconds = time.perf_counter() - ticks.started
        tokens = tuple(out.sequences[0].tolist())
        return Timing(
            seconds=seconds,
            first_seconds=ticks.at[0],
            first_tokens=FORCED,
            tokens=tokens[-new:],
            forwards=len(ticks.at),
        )

    return run


def llama_cpp(dtype: str, job: BenchJob) -> Runner:
    """llama.cpp through the bindings of `llama-cpp-python`, one token a call, with llama.cpp's greedy sampler.

    Random weights are of architecture "llama" (no QK-norm, as in published models), a model's weights of "qwen3".
    """
    engine = LlamaCpp.of(job, dtype)
    new = job.shape.new_tokens

    def run(prompt: Sequence[int]) -> Timing:
        started = time.perf_counter()
        steps = engine.generate(prompt)
        tokens = [next(steps)]
        first = time.perf_counter() - started
        tokens += [next(steps) for _ in range(new - 1)]
        seconds = time.perf_counter() - started
        return Timing(
            seconds=seconds, first_seconds=first, first_tokens=1, tokens=tuple(tokens), forwards=new,
            rows=len(prompt) + new - 1,
        )  # fmt: skip

    return run


def write_gguf(backbone: Backbone, path: Path, dtype: str, qk_norm: bool = True) -> None:
    """Write the weights for llama.cpp, with matrices in `dtype`, such as "BF16", and norms in float32. There is no
    vocabulary: ids in, ids out. qk_norm: False leaves it out, for random weights whose values do not matter.

    UnsupportedError for a backbone without causal context, and one that llama.cpp has no architecture for; MissingExtra
    without the `gguf` package.
    """
    try:
        writing.package()
    except MissingExtra:
        raise MissingExtra("gguf", "bench") from None
    if backbone.config.context != "causal":
        raise UnsupportedError(f"llama.cpp writes no text with {backbone.config.context} context: leave it out")
    if not qk_norm:
        weights = backbone.state_dict()
        plain = Backbone(replace(backbone.config, qk_norm=False, draft_head=0, draft_rank=0))
        plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
        backbone = plain
    writing.write_gguf(backbone, None, path, dtype.lower())


@cache
def llama_api() -> Any:
    """The bindings, silent. The callback lives as long as the process: llama.cpp calls it whenever it has to say
    something.
    """
    try:
        import llama_cpp
    except ImportError:
        raise MissingExtra("llama-cpp-python", "bench") from None
    api: Any = llama_cpp
    api.daguerre_silence = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(api.daguerre_silence, ctypes.c_void_p(0))
    api.llama_backend_init()
    return api


def tiles_run(path: Path, positions: int) -> bool:
    """Whether llama.cpp can multiply this file's matrices on AMX's tiles; True on a processor without AMX. Another
    process tries it, since a build by g++ 12 ends the process there (GCC bug 114098), unless it was compiled as in
    `make bench`.
    """
    if not torch.cpu._is_amx_tile_supported():
        return True
    trial = [sys.executable, "-c", TRIAL, str(path), str(positions)]
    works = subprocess.run(trial, check=False, capture_output=True).returncode == 0
    if not works:
        remarks["llama-cpp-python"] = " (its build fails on AMX's tiles: it ran without them)"
    return works


TRIAL = """
import sys
import llama_cpp as api
model = api.llama_model_load_from_file(sys.argv[1].encode(), api.llama_model_default_params())
options = api.llama_context_default_params()
options.n_ctx = int(sys.argv[2])
context = api.llama_init_from_model(model, options)
num = min(32, options.n_ctx)
tokens = (api.llama_token * num)()  # which the batch points to, and does not keep
sys.exit(api.llama_decode(context, api.llama_batch_get_one(tokens, num)))
"""


class LlamaCpp:
    """One model and one context of llama.cpp. On a processor with AMX it computes in threads of its own: it sets up a
    thread's tiles once, and does not notice when another engine of the process changes them.
    """

    def __init__(self, path: Path, threads: int, positions: int) -> None:
        api = self._api = llama_api()
        self._thread = ThreadPoolExecutor(1) if torch.cpu._is_amx_tile_supported() else None
        self._batch: Any = None
        options = api.llama_model_default_params()
        options.use_extra_bufts = tiles_run(path, positions)
        self._model = api.llama_model_load_from_file(str(path).encode(), options)
        if not self._model:
            raise DataError(f"llama.cpp cannot read {path.name}: this build of it lacks the architecture")
        options = api.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = positions
        options.n_threads = options.n_threads_batch = threads
        self._context = api.llama_init_from_model(self._model, options)
        self._sampler = api.llama_sampler_init_greedy()

    @classmethod
    def of(cls, job: BenchJob, dtype: str) -> LlamaCpp:
        """The job's model, from a file that is gone once it is read."""
        backbone = model_of(job, "float32").backbone
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_gguf(backbone, path, dtype, qk_norm=job.model is not None)
            return cls(path, job.threads, job.shape.prompt_tokens + job.shape.new_tokens)

    def generate(self, prompt: Sequence[int]) -> Iterator[int]:
        """Greedy tokens, without an end."""
        api = self._api
        self._forget(0)
        self._decode(prompt)
        while True:
            token = api.llama_sampler_sample(self._sampler, self._context, -1)
            yield token
            self._decode([token])

    def one_row(self, prompt: Sequence[int]) -> Callable[[], None]:
        """A function that runs one token behind a cached prompt, and forgets it before the next call."""
        self._forget(0)
        self._decode(prompt)

        def step() -> None:
            self._forget(len(prompt))
            self._decode(prompt[-1:])
            self._api.llama_synchronize(self._context)

        return step

    def whole_canvas(self, tokens: Sequence[int]) -> Callable[[], None]:
        """What computes the logits of all of a canvas, every row of which sees every other, from nothing, as a step of
        llama.cpp's diffusion example does.
        """
        api, num = self._api, len(tokens)
        api.llama_set_causal_attn(self._context, False)
        batch = self._batch = api.llama_batch_init(num, 0, 1)
        batch.n_tokens = num
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0

        def step() -> None:
            if memory := api.llama_get_memory(self._context):
                api.llama_memory_clear(memory, True)
            self._compute(batch, num)
            api.llama_synchronize(self._context)

        return step

    def canvas_logits(self, row: int, size: int) -> np.ndarray:
        """The logits (V,) of a row of the last canvas."""
        out: np.ndarray = np.ctypeslib.as_array(self._api.llama_get_logits_ith(self._context, row), (size,)).copy()
        return out

    def _forget(self, position: int) -> None:
        """Drop keys and values from this position on."""
        memory = self._api.llama_get_memory(self._context)
        self._api.llama_memory_seq_rm(memory, -1, position, -1)

    def _decode(self, tokens: Sequence[int]) -> None:
        api = self._api
        row = (api.llama_token * len(tokens))(*tokens)
        self._compute(api.llama_batch_get_one(row, len(tokens)), len(tokens))

    def _compute(self, batch: Any, num: int) -> None:
        decode = self._api.llama_decode
        if self._thread is None:
            status = decode(self._context, batch)
        else:
            status = self._thread.submit(decode, self._context, batch).result()
        if status:
            raise DataError(f"llama.cpp could not run {num} tokens (status {status})")

    def close(self) -> None:
        """Free its memory, and end its thread."""
        if self._thread is not None:
            self._thread.shutdown()
        with contextlib.suppress(AttributeError):
            if self._batch is not None:
                self._api.llama_batch_free(self._batch)
            self._api.llama_free(self._context)
            self._api.llama_model_free(self._model)
