"""What llama.cpp makes of a GGUF file, through llama-cpp-python."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

POSITIONS = 128


class LlamaCpp:
    """A model of llama.cpp, as a context, with an adapter if one is given."""

    def __init__(self, path: Path, lora: Path | None = None) -> None:
        import llama_cpp

        self.api: Any = llama_cpp
        self._log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.use_extra_bufts = False
        self.model: Any = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        assert self.model, f"llama.cpp cannot read {path}"
        self.vocab: Any = llama_cpp.llama_model_get_vocab(self.model)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = POSITIONS
        options.n_threads = options.n_threads_batch = 1
        options.type_k = options.type_v = 0  # float32
        options.flash_attn_type = 0
        self.context: Any = llama_cpp.llama_init_from_model(self.model, options)
        if lora is not None:
            adapter = llama_cpp.llama_adapter_lora_init(self.model, str(lora).encode())
            assert adapter, f"llama.cpp cannot read {lora}"
            both = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter), (ctypes.c_float * 1)(1.0)
            assert llama_cpp.llama_set_adapters_lora(self.context, both[0], 1, both[1]) == 0

    def __enter__(self) -> LlamaCpp:
        return self

    def __exit__(self, *_: object) -> None:
        self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits (R, V) of all tokens, computed together from an empty memory."""
        api, num = self.api, len(tokens)
        memory = api.llama_get_memory(self.context)
        if memory:
            api.llama_memory_clear(memory, True)
        batch = api.llama_batch_init(num, 0, 1)
        batch.n_tokens = num
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        assert api.llama_decode(self.context, batch) == 0
        size = api.llama_vocab_n_tokens(self.vocab)
        rows = [np.ctypeslib.as_array(api.llama_get_logits_ith(self.context, i), (size,)).copy() for i in range(num)]
        api.llama_batch_free(batch)
        return np.stack(rows)

    def greedy(self, prompt: Sequence[int], num: int) -> list[int]:
        """The likeliest token after a prompt, so many times, but for those that the file suppresses."""
        count = ctypes.c_int32(0)
        never = self.api.llama_vocab_get_suppress_tokens(self.vocab, ctypes.byref(count))
        banned = [never[i] for i in range(count.value)]
        tokens = [*prompt]
        for _ in range(num):
            row = self.logits(tokens)[-1]
            row[banned] = -np.inf
            tokens.append(int(row.argmax()))
        return tokens[len(prompt) :]

    def ids(self, text: str) -> list[int]:
        """The ids of a text, special tokens read, without <bos>."""
        raw = text.encode()
        room = (self.api.llama_token * (len(raw) + 8))()
        num = self.api.llama_tokenize(self.vocab, raw, len(raw), room, len(room), False, True)
        assert num >= 0
        return list(room[:num])
