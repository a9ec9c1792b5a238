"""The options of loading, one declaration each, of which `daguerre.load`, commands and docs/options.md are made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from daguerre.kinds import SWITCH, Call, OneOf, PathName, Words, option
from daguerre.models.scaling import Extension, Scaling
from daguerre.models.threads import Threads

BackendName = Literal["native", "torch"]
Quantization = Literal[
    "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k_m", "q4_k", "q4_1", "q4_0", "int8", "approximate_int4"
]
Place = Literal["memory", "disk"]
DEFAULT_MODEL = "default"
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The arguments of `daguerre.load`."""

    name: str | os.PathLike[str] = option(
        DEFAULT_MODEL,
        PathName(),
        """A name (`daguerre models` lists them), a folder or a GGUF file. `default` and `concepts` are in the package;
        concepts has concept heads. A folder is one that a training run writes, or a publisher's; a GGUF file is
        llama.cpp's. A short name, hf:OWNER/REPO:TYPE for a GGUF file of a hub, or owner/repository for a folder of it,
        is downloaded once (docs/names.md). `daguerre.models.families.FAMILIES` lists what is supported.""",
        common=True,
    )
    device: str = option("cpu", Words(empty=False), "cpu, cuda or another of PyTorch's devices.")
    dtype: str = option(
        "auto",
        OneOf(known=("auto", *DTYPES)),
        "float32, bfloat16, or auto: the faster one here (`models.denoiser.auto_numbers`), mostly bfloat16.",
    )
    backend: BackendName | None = option(
        None,
        OneOf(known=get_args(BackendName), none=True),
        """What computes: native or torch; by default native on a CPU where it can be compiled, else torch. native is
        C++ that is compiled for this processor on first use, in seconds, and kept in the cache's folder
        (`daguerre.files.cache_folder`); torch runs the plain modules, on any device.""",
    )
    quantize: Quantization | None = option(
        None,
        OneOf(known=get_args(Quantization), none=True),
        """A block type of GGUF files that matrices are rounded to, for less memory and more speed: q8_0 (8.5 bits a
        weight), q6_k (6.6), q5_k (5.5), q5_1 (6), q5_0 (5.5), q4_k_m (4.9), q4_k (4.5), q4_1 (5) or q4_0 (4.5); native
        backend only. None: as they are stored, so that the native backend multiplies the blocks of a GGUF file. int8
        and approximate_int4 are former names, which go in the next release.""",
        common=True,
    )
    experts: Place | None = option(
        None,
        OneOf(known=get_args(Place), none=True),
        """Where the packed experts of a mixture are: in memory, or on the disk, in the cache's folder, of which memory
        holds what it can. None: on the disk if they do not fit in free memory. Native backend only.""",
    )
    threads: int | Literal["auto"] | None = option(
        None,
        Threads(none=True),
        """How many PyTorch uses on the CPU from now on, in the whole process; auto times a few numbers on this model
        and takes the best; None changes nothing. The native backend uses fewer while other processes want the
        processors.""",
    )
    revision: str | None = option(
        None, Words(empty=False, none=True), "Of a name on a hub: a branch, tag or commit; by default the main branch."
    )
    family: str | None = option(
        None,
        Words(empty=False, none=True),
        "What a published model is, where its files do not say it; see `daguerre models --families`.",
    )
    adapter: str | os.PathLike[str] | None = option(
        None, PathName(none=True), "A LoRA adapter in PEFT's layout, to be merged: a folder, or a name on a hub."
    )
    drafts: str | os.PathLike[str] | None = option(
        None,
        PathName(none=True),
        """What drafts for mode speculative of an autoregressive model: a folder of `daguerre train drafts`, a smaller
        model of the same vocabulary, named as models are, or none. By default the folder beside the model that has its
        name and `.drafts`. It changes no text, only the time.""",
    )
    concepts: str | os.PathLike[str] | None = option(
        None,
        PathName(none=True),
        """The concept heads of a published model, which explain and steer it (docs/concepts.md): a folder of `daguerre
        train heads`, or none. By default the folder beside the model that has its name and `.concepts`. They change no
        text by themselves.""",
    )
    drafts_quantize: Quantization | None = option(
        None, OneOf(known=get_args(Quantization), none=True), "quantize of the second model; None: as of the model."
    )
    tokenizer: str | os.PathLike[str] | None = option(
        None, PathName(none=True), "A tokenizer in place of a published model's own: a folder, or a name on a hub."
    )
    rope_scaling: str | Mapping[str, Any] | Extension | None = option(
        None,
        Scaling(none=True),
        """More positions than the model was trained on: yarn:4 for four times as many; also linear, ntk, llama3, none
        (as they are), or the JSON of transformers' `rope_scaling` (`daguerre.models.scaling`).""",
    )
    tensor_parallel: bool = option(
        False,
        SWITCH,
        """The processes that torchrun started share every layer (`daguerre.models.tensor_parallel`); each must ask the
        same, and gets the whole answer. On GPUs each takes its own, and cuda is the device; torch backend only.""",
    )
    progress: Callable[[int, int], None] | None = option(
        None, Call(none=True), "Called with the bytes of a published model that were read, and all of them."
    )
