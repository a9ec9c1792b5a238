"""The frozen held-out diffs keep the rules by which they were made."""

from __future__ import annotations

from daguerre.models.tokenizer import Tokenizer
from daguerre.train.corpus.diffs import load_diffs
from daguerre.train.corpus.sources import heldout_splits


def test_the_shipped_hunks_keep_the_rules(tokenizer: Tokenizer) -> None:
    hunks, splits = load_diffs(), heldout_splits()

    assert len(hunks) == len({(hunk.package, hunk.file, hunk.context, hunk.new) for hunk in hunks}) == 60
    assert len({(hunk.package, hunk.version, hunk.old_version) for hunk in hunks}) == 21
    for hunk in hunks:
        assert splits[hunk.package] == "test"
        assert hunk.old_version != hunk.version
        assert hunk.new.count("\n") >= 3
        for region in (hunk.old, hunk.new):
            assert 40 <= len(tokenizer.encode(region)) <= 250
        assert 0 < len(tokenizer.encode(hunk.context)) <= 300
        assert hunk.old != hunk.new
