"""The files of a LoRA adapter in PEFT's layout."""

from __future__ import annotations

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
