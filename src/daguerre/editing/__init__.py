"""Edits by instruction, and changes that are merged into files: for every model with a chat template, or for none.

`rewriting` asks a model for a region of a text and reads the answer (`answers`) so that nothing else can change.
`changes` applies unified diffs and search-and-replace blocks, and `snippets` merges snippets that leave lines out,
where the text alone says what is meant.
"""
