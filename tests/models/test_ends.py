"""Where a text ends: at every token that a file names, and at those that are known to end one by their text."""

from __future__ import annotations

from daguerre.models.families.base import Published
from daguerre.models.families.reading import vocabulary


def test_all_that_files_name_and_all_that_is_known_ends_a_text() -> None:
    tokens = {"<|im_end|>": 5, "<|endoftext|>": 4, "<|fim_pad|>": 6, "<|other|>": 7, "</s>": 900}
    published = Published(config={"eos_token_id": 3}, generation={"eos_token_id": [3, 8]}, tokens=tokens, num_tokens=10)
    facts = vocabulary(published, 10)
    assert facts["eos_id"] == 3, "the first that is named"
    assert set(facts["end_ids"]) == {8, 5, 4, 6}, "</s> is no token of this model"
    assert not {3, *facts["end_ids"]} & set(facts["reserved_ids"]), "they are predicted"


def test_a_mask_or_a_token_that_is_never_predicted_ends_nothing() -> None:
    tokens = {"<|im_end|>": 5, "<|fim_pad|>": 6}
    facts = vocabulary(Published(config={"eos_token_id": 3}, tokens=tokens, num_tokens=10), 10, mask_id=6, never=[5])
    assert facts["end_ids"] == () and {5, 6} <= set(facts["reserved_ids"])
