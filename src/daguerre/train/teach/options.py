"""The table [teacher] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from daguerre.train.keys import Section, key


@dataclass(frozen=True, kw_only=True)
class Teaching(Section, place="teacher."):
    """What a recipe says of a teacher: an autoregressive model that stays as it is. For each token that is learned it
    reads the text before it, whatever the student sees, and the loss of the token is

        kl KL(teacher || student) + data CE,

    the KL over the whole vocabulary. Tokens that are predicted with text behind them, as in gaps, have no teacher: CE.
    """

    model: str = key("the teacher, as --from has it; empty: the model at the start, as it is before [convert]", "")
    kl: float = key("weight of KL(teacher || model)", 1.0, low=0)
    data: float = key("weight of the data's cross-entropy beside it", 0.1, low=0)
    rows: int = key("tokens whose distributions are held at a time", 256, low=1)


@dataclass(frozen=True, kw_only=True)
class Rollouts(Section, place="rollouts."):
    """What a recipe says of answers that the student writes itself, block by block, to learn from its teacher there;
    how long they may be is said by each stage (`answer`).
    """

    threshold: float = key("probability from which the student commits a token", 0.9, above=0, high=1)
    temperature: float = key("temperature of its tokens", 1.0, low=0)
    updates: int = key("steps on the same answers, each in other states of their blocks", 1, low=1)
    clean: float = key("weight of the KL of next tokens beside that of masks", 0.5, low=0)
