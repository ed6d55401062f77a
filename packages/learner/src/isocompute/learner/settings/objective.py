"""What is maximised: the algorithm and its parts, the regularisers, the correction for the sampler, the critic."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from ..errors import LearnerError
from .checks import is_number, not_negative, one_of, positive, share, truth, whole

SURROGATES = ("policy_gradient", "clip", "cispo", "gspo")
BASELINES = ("group", "batch", "gae")
SCALES = ("none", "group", "batch")
STDS = ("sample", "population")
AGGREGATIONS = ("token", "sequence", "prompt", "constant")
KL_ESTIMATORS = ("k1", "k2", "k3")
KL_PLACES = ("loss", "reward")
LEVELS = ("none", "token", "sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """The parts that a named algorithm is made of; see ``ObjectiveConfig``."""

    surrogate: str
    clip_low: float | None
    clip_high: float | None
    baseline: str
    scale: str
    aggregation: str


ALGORITHMS: dict[str, Algorithm] = {
    name: Algorithm(
        surrogate=surrogate, clip_low=low, clip_high=high, baseline=baseline, scale=scale, aggregation=aggregation
    )
    for name, surrogate, low, high, baseline, scale, aggregation in (
        ("grpo", "clip", 0.2, 0.2, "group", "group", "token"),
        ("dr_grpo", "clip", 0.2, 0.2, "group", "none", "constant"),
        ("ppo", "clip", 0.2, 0.2, "gae", "batch", "token"),
        ("cispo", "cispo", None, 4.0, "group", "batch", "prompt"),
        ("dapo", "clip", 0.2, 0.28, "group", "group", "token"),
        ("gspo", "gspo", 3e-4, 4e-4, "group", "group", "sequence"),
    )
}
"""The algorithms by name; docs/algorithms.md has the source of each number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveConfig:
    """The algorithm. Every other setting that is None is the algorithm's own (``ALGORITHMS``; see ``resolved``).

    Attributes:
        algorithm: ``grpo``, ``dr_grpo``, ``ppo``, ``cispo``, ``dapo`` or ``gspo``.
        surrogate: What the gradient is of, token by token: ``policy_gradient`` (−A·log π), ``clip`` (PPO's clipped
            ratio), ``cispo`` (−A·log π weighted by the clipped ratio) or ``gspo`` (a clipped ratio per response).
        clip_low: The ratio π/π_old is clipped below at 1 − this; for ``cispo`` None is no bound.
        clip_high: The ratio is clipped above at 1 + this.
        baseline: What a response's advantage is relative to: the mean of its ``group``, of the whole ``batch``, or a
            critic's values, token by token (``gae``).
        scale: What advantages are divided by: nothing (``none``), or the standard deviation over the ``group`` or
            over the ``batch``.
        std: The ``sample`` standard deviation (n − 1, as veRL and TRL do) or the ``population`` one (n). Their ratio
            √(n/(n−1)) depends on n.
        aggregation: How tokens are averaged: over all tokens of the batch (``token``), within each response and then
            over responses (``sequence``), within each problem and then over problems (``prompt``), or as a sum
            divided by the responses times ``constant_length`` (``constant``).
        constant_length: Tokens that a response counts as with ``constant``: the longest that may be sampled.
        updates_per_batch: Optimizer steps that a batch is split into; above 1 all but the first are off-policy.
        epochs: Passes over a batch.

    Raises:
        LearnerError: A value is out of its range, or values contradict each other.
    """

    algorithm: str = "grpo"
    surrogate: str | None = None
    clip_low: float | None = None
    clip_high: float | None = None
    baseline: str | None = None
    scale: str | None = None
    std: str = "sample"
    aggregation: str | None = None
    constant_length: int | None = None
    updates_per_batch: int = 1
    epochs: int = 1

    def __post_init__(self) -> None:
        one_of(self, "algorithm", tuple(ALGORITHMS))
        for name, choices in (
            ("surrogate", SURROGATES), ("baseline", BASELINES), ("scale", SCALES), ("aggregation", AGGREGATIONS),
        ):  # fmt: skip
            if getattr(self, name) is not None:
                one_of(self, name, choices)
        one_of(self, "std", STDS)
        positive(self, *(name for name in ("clip_low", "clip_high") if getattr(self, name) is not None))
        surrogate = self.surrogate or ALGORITHMS[self.algorithm].surrogate
        if surrogate != "cispo" and self.clip_low is not None and self.clip_low >= 1:
            raise LearnerError(f"clip_low is {self.clip_low!r}; a ratio cannot be clipped at 0 or below")
        whole(self, "updates_per_batch", "epochs", least=1)
        if self.constant_length is not None:
            whole(self, "constant_length", least=1)

    @property
    def resolved(self) -> ObjectiveConfig:
        """The same with the algorithm's own values in place of None.

        Raises:
            LearnerError: ``constant_length`` is needed and missing, or the scale is a group's and the baseline is not.
        """
        own = asdict(ALGORITHMS[self.algorithm])
        given = {name: value for name in own if (value := getattr(self, name)) is not None}
        whole_of = replace(self, **own | given)
        if whole_of.aggregation == "constant" and whole_of.constant_length is None:
            raise LearnerError(
                "aggregation is 'constant', which needs constant_length: the most tokens that a response may have"
            )
        if whole_of.scale == "group" and whole_of.baseline != "group":
            raise LearnerError(
                f"scale is 'group' and baseline {whole_of.baseline!r}; without a group's mean it must be 'none' or "
                "'batch', since a group of equal rewards would be divided by 0"
            )
        return whole_of

    @property
    def off_policy(self) -> bool:
        """Whether some updates use responses of an earlier policy."""
        return self.updates_per_batch * self.epochs > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KLConfig:
    """KL(policy ‖ base).

    Attributes:
        coefficient: Its weight (``beta`` in TRL); 0 turns it off, and then no reference model is loaded.
        estimator: ``k1`` (log-ratio), ``k2`` (half its square) or ``k3`` (Schulman's).
        place: ``loss``, as a term for each token, or ``reward``, subtracted from each response's reward.
        mask_zero_variance: Leave out responses whose group has equal rewards (IsoCompute Playbook, Figure 3).

    Raises:
        LearnerError: A value is out of its range.
    """

    coefficient: float = 0.0
    estimator: str = "k3"
    place: str = "loss"
    mask_zero_variance: bool = False

    def __post_init__(self) -> None:
        not_negative(self, "coefficient")
        one_of(self, "estimator", KL_ESTIMATORS)
        one_of(self, "place", KL_PLACES)
        truth(self, "mask_zero_variance")
        if self.place == "reward" and self.mask_zero_variance:
            raise LearnerError(
                "mask_zero_variance needs place: loss, since a KL in the reward decides which groups have equal rewards"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyConfig:
    """The entropy of the policy's next-token distribution.

    Attributes:
        coefficient: Weight of the bonus per token; 0 turns it off.
        mask_zero_variance: No bonus for responses whose group has equal rewards (IsoCompute Playbook, Figure 3).
        measured: Measure it where it is no part of the loss, too, on the tokens that pass through the model.

    Raises:
        LearnerError: A value is out of its range.
    """

    coefficient: float = 0.0
    mask_zero_variance: bool = False
    measured: bool = False

    def __post_init__(self) -> None:
        not_negative(self, "coefficient")
        truth(self, "mask_zero_variance", "measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceConfig:
    """Truncated importance sampling (TIS): the correction for a sampler that is not quite the learner.

    Attributes:
        level: Weights per ``token``, per response (``sequence``), or ``none``.
        cap: Largest weight.

    Raises:
        LearnerError: A value is out of its range.
    """

    level: str = "token"
    cap: float = 2.0

    def __post_init__(self) -> None:
        one_of(self, "level", LEVELS)
        positive(self, "cap")


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticConfig:
    """The value head of PPO, on the policy's last hidden states; no part of what the sampler is given.

    Attributes:
        coefficient: Weight of the value loss beside the policy's, where the head's gradient passes into the policy;
            the head itself always has a weight of 1.
        through_policy: Let the value loss change the policy's own weights, too.
        learning_rate: AdamW's learning rate of the head; it follows the policy's schedule.
        discount: γ of the returns.
        gae_lambda: λ of generalised advantage estimation (arXiv 1506.02438).
        clip: Largest change of a value in an off-policy update (PPO's value clipping); None is no bound.

    Raises:
        LearnerError: A value is out of its range.
    """

    coefficient: float = 0.5
    through_policy: bool = False
    learning_rate: float = 1e-3
    discount: float = 1.0
    gae_lambda: float = 1.0
    clip: float | None = 0.5

    def __post_init__(self) -> None:
        positive(self, "learning_rate")
        not_negative(self, "coefficient")
        share(self, "discount", "gae_lambda")
        truth(self, "through_policy")
        if self.clip is not None and not (is_number(self.clip) and self.clip > 0):
            raise LearnerError(f"clip is {self.clip!r}; it must be a positive number, or null")
