"""GGUF, the container of llama.cpp: one file with metadata, a tokenizer and tensors, some of them quantized.

It is another container for the families of `daguerre.models.families`: `header` reads the file's index, `file` its
tensors, `facts` and `words` say what a publisher's folder would say in `config.json` and `tokenizer.json`, and `pieces`
names each tensor's place in a backbone. `writing` is the way back.
"""
