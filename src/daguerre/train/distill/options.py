"""The table [distill] of a recipe: how a model learns to decode in fewer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from daguerre.errors import InputError, unknown
from daguerre.train.stage import at_least

METHODS = ("sdtt", "trajectories", "on_policy")
STATIC = ("margin", "confidence", "entropy", "random")
POLICIES = (*STATIC, "threshold")
GOALS = ("data", "teacher")


@dataclass(frozen=True, kw_only=True)
class Distill:
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
    before, and in sdtt a static policy then has half the steps. `states` is how many states of a trajectory are
    learned, which share the cost of decoding it. With `only_right` trajectories other than the data's answers are left
    out; `goal` is the answer that is right in on_policy. `clean` weighs the KL to the teacher of next tokens in
    answers, where clean rows predict them.
    """

    method: str = "sdtt"
    policy: str = "threshold"
    threshold: float = 0.9
    steps: int = 32
    temperature: float = 0.0
    rounds: int = 1
    skip: int = 2
    noise: Sequence[float] = (1.0, 1.0)
    window: Sequence[float] = (1.0, 2.0)
    curriculum: float = 0.5
    states: int = 1
    certainty: float = 0.0
    only_right: bool = False
    rollouts: int = 4
    sharpness: float = 8.0
    kl: float = 0.1
    goal: str = "data"
    clean: float = 1.0

    def __post_init__(self) -> None:
        for kind, name, table in (
            ("distill.method", self.method, METHODS),
            ("distill.policy", self.policy, POLICIES),
            ("distill.goal", self.goal, GOALS),
        ):
            if name not in table:
                raise unknown(kind, name, table)
        at_least(1, self, "rounds", "skip", "steps", "states")
        at_least(2, self, "rollouts")
        at_least(0, self, "temperature", "certainty", "kl", "clean")
        if not 0 < self.threshold <= 1:
            raise InputError(f"recipe: distill.threshold is a probability, not {self.threshold}")
        if not (self.sharpness > 0 and 0 < self.curriculum <= 1):
            raise InputError("recipe: distill.sharpness is above 0, and distill.curriculum a share of the run above 0")
        if len(self.noise) != 2 or not all(0 < share <= 1 for share in self.noise):
            raise InputError(f"recipe: distill.noise is two shares of the steps, first and last, not {self.noise}")
        if len(self.window) != 2 or not all(num >= 1 for num in self.window):
            raise InputError(f"recipe: distill.window is two numbers of steps, first and last, not {self.window}")

    def between(self, pair: Sequence[float], share: float) -> float:
        """What a curriculum has at this share of the run."""
        done = min(1.0, share / self.curriculum)
        return pair[0] + done * (pair[1] - pair[0])
