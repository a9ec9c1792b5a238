"""The table [distill] of a recipe: how a model learns to decode in fewer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from daguerre.train.keys import Section, key

METHODS = ("sdtt", "trajectories", "on_policy")
STATIC = ("margin", "confidence", "entropy", "random")
POLICIES = (*STATIC, "threshold")
GOALS = ("data", "teacher")
_pair = partial(key, num=2)
"""What the curriculum has at first, and at last."""


@dataclass(frozen=True, kw_only=True)
class Distill(Section, place="distill."):
    """What a recipe says of distillation.

    Answers are decoded as `policy` has it, in each text or block on its own: "threshold" commits what has that
    probability or more, and the likeliest; the others commit as many a step as make `steps` of them in all, in the
    order of `daguerre.sampling.policies`. At `temperature` 0 a token is the most likely one.

    sdtt          masked tokens learn, by KL, what the teacher says of each when it commits it in its next `skip` steps,
                  or in the last of them (Self-Distillation Through Time, arXiv 2410.21035); states are the data's, with
                  a share of masks uniform on (0, 1]
    trajectories  the teacher decodes each answer once; in a state of that decoding the student learns, by
                  cross-entropy, what the teacher commits in its next steps, `window` of them (d3LLM's
                  pseudo-trajectories, arXiv 2601.07568). Over the share `curriculum` of the run the share of steps that
                  are still to come, uniform from 0, grows up to `noise`'s second number from its first, and the window
                  likewise. `certainty` weighs the entropy of what is right already
    on_policy     the student decodes each answer `rollouts` times and commits each token with probability p^sharpness,
                  p that of the likeliest; the gradient is that of the mean of 1 / steps over answers that are right
                  (Seed Diffusion, arXiv 2508.02193), by REINFORCE, less `kl` times the KL to the teacher

    The teacher is the model that the run starts from; with `rounds` above 1 it is the averaged student of the round
    before, and in sdtt a static policy then has half the steps. The states of a trajectory share the cost of decoding
    it.
    """

    method: str = key("what the student learns", "sdtt", names=METHODS)
    policy: str = key("policy that decodes", "threshold", names=POLICIES)
    threshold: float = key("probability from which policy threshold commits a token", 0.9, above=0, high=1)
    steps: int = key("forwards of an answer by other policies; in on_policy, at most", 32, low=1)
    temperature: float = key("temperature of the teacher's tokens; 0: the most likely", 0.0, low=0)
    rounds: int = key("rounds; from the second on, the averaged student is the teacher", 1, low=1)
    skip: int = key("teacher's steps that the student learns to do in one; sdtt", 2, low=1)
    noise: Sequence[float] = _pair(
        "greatest share of a trajectory's steps to come, at first and last", (1.0, 1.0), above=0, high=1
    )
    window: Sequence[float] = _pair(
        "steps of a trajectory learned from one state, at first and at last", (1.0, 2.0), low=1
    )
    curriculum: float = key("share of the run over which noise and window grow", 0.5, above=0, high=1)
    states: int = key("states of each trajectory that are learned", 1, low=1)
    certainty: float = key("weight of the entropy of right tokens; trajectories", 0.0, low=0)
    only_right: bool = key("leaves out trajectories other than the data's answers", False)
    rollouts: int = key("rollouts of each answer; on_policy", 4, low=2)
    sharpness: float = key("k: rollouts commit a token with probability p^k", 8.0, above=0)
    kl: float = key("weight of the KL to the teacher; on_policy", 0.1, low=0)
    goal: str = key("whose answer is right; on_policy", "data", names=GOALS)
    clean: float = key("weight of the KL to the teacher's next tokens, where clean rows predict them", 1.0, low=0)

    def between(self, pair: Sequence[float], share: float) -> float:
        """What a curriculum has at this share of the run."""
        done = min(1.0, share / self.curriculum)
        return pair[0] + done * (pair[1] - pair[0])
