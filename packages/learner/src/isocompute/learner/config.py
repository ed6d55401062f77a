"""Settings of the learner and of a run, validated on creation, and published recipes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from .contract.settings import Count, Positive, Share, Whole, settings
from .errors import LearnerError

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]
"""Decay of a moment."""

ALL_LINEAR = "all-linear"


@settings(LearnerError)
class AdapterConfig:
    """LoRA (arXiv 2106.09685): W + (α/r)·B·A replaces each adapted weight W; only A and B are learnt.

    A has the shape ``(r, in)`` and starts uniform on ±1/√in, the same in every run. B has the shape ``(out, r)`` and
    starts at 0. There is no dropout. With ``compute.precision: bfloat16`` the base model is held in bfloat16; A, B,
    their gradients and their moments are in float32.

    α = 32 is the value of "LoRA Without Regret" (Thinking Machines, 2025). With it the best learning rate is about ten
    times that of full training, whatever the rank.
    """

    rank: Count = 32
    """Rank r of a weight's change."""
    alpha: Positive = 32.0
    """Scale α: a change is multiplied by α/r."""
    target_modules: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] = (ALL_LINEAR,)
    """Names of the linear layers to adapt, or the last parts of their names, such as ``q_proj``; ``all-linear`` means
    all but the output head."""


@settings(LearnerError)
class BatchConfig:
    """Which of the generated responses to learn from. The budget pays for all of them."""

    filter_zero_variance: bool = False
    """Leave groups with equal rewards out of the update and of its normaliser (cohort ``filtered``)."""
    trained_rollouts: Count | None = None
    """Responses per problem to learn from, n_train. The others (cohort ``filtered``) only improve the baseline
    (IsoCompute Playbook, Appendix G: n_est is ``rollouts_per_problem``). None: all."""
    drop_above: Annotated[float, Field(gt=0, le=1)] | None = None
    """No-positive resampling (ScaleRL): later passes leave out a problem once its pass rate over all its answers so far
    is at least this. None: no problem is dropped."""


ATTENDED = 4
"""Most tokens that attention sees in a micro-batch, as a multiple of ``micro_batch_tokens``."""


@settings(LearnerError)
class ComputeConfig:
    """How an update is computed: its memory and time. Except for rounding, this does not change what is learnt."""

    micro_batch_tokens: Count = 8192
    """Most tokens per forward and backward pass of a rank, prompts and padding included. Attention repeats a packed
    prompt before each of its responses, and may see four times as many. A single response may have more."""
    layout: Literal["auto", "packed", "padded"] = "auto"
    """``packed``: no padding, and each group's prompt once for all its responses. ``padded``: one row per response.
    ``auto``: packed if the model gives the same log-probabilities that way, and padded where a response exceeds a
    sliding window of the model."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of activations: ``float32``, or ``bfloat16`` with weights, gradients and moments in float32. With
    ``bfloat16`` the weights of a KL's reference are also bfloat16, so the KL of the unchanged base model is not exactly
    0."""
    float32_head: bool = False
    """Multiply hidden states and the head in float32 even if ``precision`` is lower (MiniMax-M1, arXiv 2506.13585,
    section 3.2; the recipe ``scalerl``). This is several times slower on a GPU. The sampler's head should then be in
    float32, too. Softmax, log-probabilities and the sum of the head's gradient are always in float32."""
    head_chunk_tokens: Count = 2048
    """Tokens whose logits are held at a time; the backward pass computes them again."""
    sharding: Literal["auto", "none"] = "auto"
    """``auto``: several ranks share one policy (FSDP2). Each holds and computes a part of its weights, gradients and
    moments, and of the weights of a KL's reference. ``none``: each rank has all of them, which takes more memory per
    rank and less time for a small model."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of layers and recompute the rest in the backward pass."""


ROUNDING = tuple(
    f"compute.{name}"
    for name in ("micro_batch_tokens", "layout", "head_chunk_tokens", "sharding", "gradient_checkpointing")
)
"""Settings that change the order of sums, and so the last digits, but nothing else of what is learnt."""

Surrogate = Literal["policy_gradient", "clip", "cispo", "gspo"]
Baseline = Literal["group", "batch", "gae"]
Scale = Literal["none", "group", "batch"]
Std = Literal["sample", "population"]
Aggregation = Literal["token", "sequence", "prompt", "constant"]
Estimator = Literal["k1", "k2", "k3"]
Level = Literal["none", "token", "sequence"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The components of a named algorithm; see ``ObjectiveConfig``."""

    surrogate: Surrogate
    clip_low: float | None
    clip_high: float | None
    baseline: Baseline
    scale: Scale
    aggregation: Aggregation


ALGORITHMS: Mapping[str, Algorithm] = {
    "grpo": Algorithm("clip", 0.2, 0.2, "group", "group", "token"),
    "dr_grpo": Algorithm("clip", 0.2, 0.2, "group", "none", "constant"),
    "ppo": Algorithm("clip", 0.2, 0.2, "gae", "batch", "token"),
    "cispo": Algorithm("cispo", None, 4.0, "group", "batch", "prompt"),
    "dapo": Algorithm("clip", 0.2, 0.28, "group", "group", "token"),
    "gspo": Algorithm("gspo", 3e-4, 4e-4, "group", "group", "sequence"),
}
"""The algorithms by name; docs/algorithms.md gives the source of each number."""


@settings(LearnerError)
class ObjectiveConfig:
    """The algorithm. Settings left at None take the algorithm's value (``ALGORITHMS``; see ``resolved``)."""

    algorithm: Literal["grpo", "dr_grpo", "ppo", "cispo", "dapo", "gspo"] = "grpo"
    """``grpo``, ``dr_grpo``, ``ppo``, ``cispo``, ``dapo`` or ``gspo``."""
    surrogate: Surrogate | None = None
    """The loss term of a token: ``policy_gradient`` (−A·log π), ``clip`` (PPO's clipped ratio), ``cispo`` (−A·log π
    weighted by the clipped ratio) or ``gspo`` (a clipped ratio per response)."""
    clip_low: Positive | None = None
    """The ratio π/π_old is clipped below at 1 − this; for ``cispo`` None means no bound."""
    clip_high: Positive | None = None
    """The ratio is clipped above at 1 + this."""
    baseline: Baseline | None = None
    """Baseline of the advantages: the mean of the response's ``group``, the mean of the ``batch``, or a critic's
    values, token by token (``gae``)."""
    scale: Scale | None = None
    """Divisor of the advantages: none (``none``), or the standard deviation over the ``group`` or over the
    ``batch``."""
    std: Std = "sample"
    """``sample`` standard deviation (n − 1, as in veRL and TRL) or ``population`` standard deviation (n). Their ratio
    √(n/(n−1)) depends on n."""
    aggregation: Aggregation | None = None
    """How tokens are averaged: over all tokens of the batch (``token``), within each response and then over responses
    (``sequence``), within each problem and then over problems (``prompt``), or as a sum divided by the number of
    responses times ``constant_length`` (``constant``)."""
    constant_length: Count | None = None
    """Length of every response for ``constant``: the longest that may be sampled."""
    updates_per_batch: Count = 1
    """Optimizer steps per batch; above 1 all but the first are off-policy."""
    epochs: Count = 1
    """Passes over a batch."""

    def __post_init__(self) -> None:
        surrogate = self.surrogate or ALGORITHMS[self.algorithm].surrogate
        if surrogate != "cispo" and self.clip_low is not None and self.clip_low >= 1:
            raise LearnerError(f"clip_low is {self.clip_low!r}; a ratio cannot be clipped at 0 or below")

    @property
    def resolved(self) -> ObjectiveConfig:
        """The same settings, with the algorithm's values in place of None."""
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
        """Return whether some updates use responses of an earlier policy."""
        return self.updates_per_batch * self.epochs > 1


@settings(LearnerError)
class KLConfig:
    """KL(policy ‖ base)."""

    coefficient: Weight = 0.0
    """Weight of the KL (``beta`` in TRL); 0 turns it off, and no reference model is loaded."""
    estimator: Estimator = "k3"
    """``k1`` (log-ratio), ``k2`` (half its square) or ``k3`` (Schulman's)."""
    place: Literal["loss", "reward"] = "loss"
    """``loss``: a term per token; ``reward``: subtracted from each response's reward."""
    mask_zero_variance: bool = False
    """Leave out responses whose group has equal rewards (IsoCompute Playbook, Figure 3)."""

    def __post_init__(self) -> None:
        if self.place == "reward" and self.mask_zero_variance:
            raise LearnerError(
                "mask_zero_variance needs place: loss, since a KL in the reward decides which groups have equal rewards"
            )

    @property
    def in_reward(self) -> bool:
        """Whether the KL is part of the reward and not of the loss."""
        return self.coefficient > 0 and self.place == "reward"


@settings(LearnerError)
class EntropyConfig:
    """The entropy of the policy's next-token distribution."""

    coefficient: Weight = 0.0
    """Weight of the bonus per token; 0 turns it off."""
    mask_zero_variance: bool = False
    """No bonus for responses whose group has equal rewards (IsoCompute Playbook, Figure 3)."""
    measured: bool = False
    """Measure the entropy even where it is not part of the loss, on the tokens that pass through the model."""


@settings(LearnerError)
class ImportanceConfig:
    """Truncated importance sampling (TIS): corrects for differences between sampler and learner."""

    level: Level = "token"
    """Weights per ``token``, per response (``sequence``), or ``none``."""
    cap: Positive = 2.0
    """Largest weight."""


@settings(LearnerError)
class CriticConfig:
    """The value head of PPO, on the policy's last hidden states; the sampler does not get it."""

    coefficient: Weight = 0.5
    """Weight of the value loss relative to the policy's, for the part of the head's gradient that passes into the
    policy. The head itself always has a weight of 1."""
    through_policy: bool = False
    """Let the value loss also change the policy's weights."""
    learning_rate: Positive = 1e-3
    """AdamW's learning rate for the head; it follows the policy's schedule."""
    discount: Share = 1.0
    """Discount γ of the returns."""
    gae_lambda: Share = 1.0
    """λ of generalised advantage estimation (arXiv 1506.02438)."""
    clip: Positive | None = 0.5
    """Largest change of a value in an off-policy update (PPO's value clipping); None: no bound."""


@settings(LearnerError)
class OptimizerConfig:
    """AdamW and its learning-rate schedule.

    A step is a batch that was learnt from: a batch whose groups are all filtered does not count.
    """

    beta1: Decay = 0.9
    """Decay of the first moment, β₁."""
    beta2: Decay = 0.999
    """Decay of the second moment, β₂."""
    epsilon: Positive = 1e-8
    """The ε in the denominator."""
    weight_decay: Weight = 0.0
    """Decoupled weight decay; 0 here, where PyTorch, veRL and the recipes have 0.01."""
    gradient_clip: Positive = 1.0
    """Largest norm of the complete gradient (``max_grad_norm`` in TRL, ``grad_clip`` in veRL)."""
    warmup_steps: Whole = 10
    """Steps over which the learning rate rises linearly to its peak."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule after the warm-up: ``constant``, or ``linear`` or ``cosine`` to 0 after ``decay_steps``."""
    decay_after: Whole = 0
    """Last step at the peak before the decay begins, or the last warm-up step if that is later. Up to this step, a run
    with a decay equals the run with a constant rate."""
    decay_steps: Whole = 0
    """Last step of the decay, counted from step 1 and greater than the warm-up; 0 without a decay. It is a separate
    setting, so that the learning rate never depends on the length of a run."""

    def __post_init__(self) -> None:
        for name in ("decay_steps", "decay_after"):
            if self.decay == "constant" and (value := getattr(self, name)):
                raise LearnerError(f"{name} is {value}, and a constant learning rate never falls: it must be 0")
        if self.decay != "constant" and self.decay_steps <= self.warmup_steps:
            raise LearnerError(
                f"decay_steps is {self.decay_steps}; a {self.decay} decay must end after the warm-up of "
                f"{self.warmup_steps} steps"
            )
        if self.decay != "constant" and self.decay_steps <= self.decay_after:
            raise LearnerError(
                f"decay_after is {self.decay_after}; a decay must begin before its last step, decay_steps, which is "
                f"{self.decay_steps}"
            )

    def factor_at(self, step: int) -> float:
        """Learning rate at a step, counted from 1, as a fraction of the peak.

        s/w in step s ≤ w = ``warmup_steps``; then 1 up to step d, the larger of w and ``decay_after``, and in all later
        steps if ``constant``; then 1 − x (``linear``) or (1 + cos πx)/2 (``cosine``) with
        x = min(1, (s − d)/(T + 1 − d)) and T = ``decay_steps``. So step d has the peak, step T is the last one that
        learns, and every later step has a rate of 0. For w = 2, T = 6 and ``linear``, steps 1 to 7 have 0.5, 1, 0.8,
        0.6, 0.4, 0.2, 0; with ``decay_after`` = 4 they have 0.5, 1, 1, 1, 0.67, 0.33, 0.
        """
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        peak = max(self.warmup_steps, self.decay_after)
        if self.decay == "constant" or step <= peak:
            return 1.0
        done = min(1.0, (step - peak) / (self.decay_steps + 1 - peak))
        return 1.0 - done if self.decay == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0


@settings(LearnerError)
class PipelineConfig:
    """Sampling in parallel with updates, with a bound on the age of the tokens (PipelineRL, arXiv 2509.19128).

    Groups are learnt from in the order of admission, since the order of completion would favour short responses. No
    token is more than ``lag`` versions older than the weights that it updates (ScaleRL's PipelineRL-k, arXiv
    2510.13786, section 3.1).
    """

    lag: Whole = 0
    """k: most versions by which a token may be older than the weights that it updates; 0 alternates sampling and
    updates."""
    mode: Literal["in_flight", "virtual", "constant"] = "in_flight"
    """``in_flight``: engines generate without pause, new weights enter between two decoding steps, and responses
    continue with their KV cache; no two runs are equal. ``virtual``: the same in one process on a virtual clock,
    reproducible. ``constant``: batch t is sampled entirely with version t − 1 − k (off-policy-k)."""
    update_time: Positive | None = None
    """For ``virtual``: duration of an update, in decoding steps; None: half of the longest response."""
    jitter: Weight = 0.0
    """For ``virtual``: standard deviation of the logarithm of an update's duration, drawn from the run's seed."""

    def __post_init__(self) -> None:
        if self.mode != "virtual" and (self.update_time is not None or self.jitter):
            raise LearnerError(f"mode is {self.mode!r}, which has no clock: update_time and jitter must be left out")


CHECKS = ("tolerance", "mean", "k3", "quantile")


@settings(LearnerError)
class SyncConfig:
    """Largest differences between log-probabilities that count as the same weights.

    If none is given (``sync: auto`` in a preset), they follow the types that sampler and learner compute in
    (``TOLERANCES``). If one is given, those left at None are off.
    """

    tolerance: Positive | None = None
    """Largest difference (nats) between the sampler's and the learner's log-probability of a token. Use it only for
    float32 on both sides: in 16 bits single tokens of a healthy sampler may differ by more than one nat."""
    mean: Positive | None = None
    """Largest mean |difference| (nats per token)."""
    k3: Positive | None = None
    """Largest estimate (k3) of KL(sampler ‖ learner) (nats per token)."""
    quantile: Positive | None = None
    """Largest 0.99 quantile of |difference| over tokens (nats)."""

    @property
    def given(self) -> list[str]:
        """Names of the tolerances that are set."""
        return [name for name in CHECKS if getattr(self, name) is not None]


Dtype = Literal["float32", "float16", "bfloat16"]
"""Types, from the finest to the coarsest."""
TOLERANCES: Mapping[Dtype, SyncConfig] = {
    "float32": SyncConfig(tolerance=1e-4),
    "float16": SyncConfig(mean=0.0075, k3=8e-5, quantile=0.05),
    "bfloat16": SyncConfig(mean=0.06, k3=0.005, quantile=0.4),
}
"""The tolerances of each type; of two types the coarser one's apply.

docs/learner.md has the measurements. The bfloat16 tolerances are a few times the values of healthy samplers. float16
has three more bits, so differences are an eighth of these and k3, which is quadratic, a 64th.
"""
LEAST = {"float32": 0.0, "float16": 7.5e-5, "bfloat16": 6e-4}
"""A mean difference (nats) that rounding alone exceeds, by type: tolerances below it stop every run."""


@settings(LearnerError)
class RunConfig:
    """One cell of a sweep: ``problems_per_batch`` × ``rollouts_per_problem``, one seed."""

    run_id: str = "run"
    """Hash of the run's configuration."""
    rollouts_per_problem: Count
    """Group size, n; 1 is allowed only if the advantage is not relative to the group (``check``)."""
    problems_per_batch: Count
    """Problems per batch, B_p."""
    seed: int = 0
    """Fixes the order of problems and every response's seed."""
    evaluate_every: Count | None = None
    """Nominal rollouts (step · B) between evaluations, a multiple of B = B_p · n. With ``evaluations_per_octave``, the
    interval between the first evaluations. None: no evaluation."""
    evaluations_per_octave: Count | None = None
    """Evaluations p per doubling of the rollouts, from p · ``evaluate_every`` on (see ``evaluated_at``); None: one at
    every multiple of ``evaluate_every``."""

    def __post_init__(self) -> None:
        if self.evaluate_every is not None and self.evaluate_every % self.batch_rollouts:
            raise LearnerError(
                f"evaluate_every is {self.evaluate_every} rollouts, which is not a multiple of the batch of "
                f"{self.batch_rollouts}: evaluations would not fall on a common grid"
            )

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n."""
        return self.problems_per_batch * self.rollouts_per_problem

    def evaluated_at(self, rollouts: int) -> bool:
        """Return whether to evaluate the policy after ``rollouts`` = step · B; independent of n and of any budget.

        With p = ``evaluations_per_octave`` the grid is the multiples k · ``evaluate_every`` for which 2^o divides k,
        o = max(0, ⌊log₂(k/p)⌋): k = 1, 2, 3, 4, 6, 8, 12, 16, … for p = 2. So from p · ``evaluate_every`` on,
        successive points are at most a factor of 1 + 1/p apart.
        """
        if self.evaluate_every is None:
            return False
        k, rest = divmod(rollouts, self.evaluate_every)
        if rest or self.evaluations_per_octave is None:
            return not rest
        octave = max(0, (k // self.evaluations_per_octave).bit_length() - 1)
        return k % (1 << octave) == 0

    def check(self, config: LearnerConfig) -> None:
        """Refuse a number of rollouts that the learner's settings cannot learn from."""
        n, trained = self.rollouts_per_problem, config.batch.trained_rollouts
        if n == 1 and config.objective.resolved.baseline == "group":
            raise LearnerError(
                f"rollouts_per_problem is 1, and the advantage of {config.objective.algorithm} is relative to its "
                "group: it must be 2 or more, or the baseline gae or batch"
            )
        masked = {
            "batch.filter_zero_variance": config.batch.filter_zero_variance,
            "kl.mask_zero_variance": config.kl.coefficient and config.kl.mask_zero_variance,
            "entropy.mask_zero_variance": config.entropy.coefficient and config.entropy.mask_zero_variance,
        }
        if n == 1 and any(masked.values()):
            raise LearnerError(
                f"rollouts_per_problem is 1, so that every group has equal rewards, and "
                f"{next(name for name, on in masked.items() if on)} is on: it must be off"
            )
        if trained is not None and trained > n:
            raise LearnerError(f"trained_rollouts is {trained}; it must be at most rollouts_per_problem, which is {n}")


@settings(LearnerError)
class LearnerConfig:
    """All settings of the learner."""

    learning_rate: Positive
    """AdamW's peak learning rate at this run's batch size."""
    temperature: Positive = 1.0
    """Sampling temperature, which the sampler's log-probabilities include."""
    sampler_dtype: Dtype = "float32"
    """Type of the sampler's weights: ``float32``, ``float16`` or ``bfloat16``."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """The objective to maximise."""
    kl: KLConfig = KLConfig()
    """KL(policy ‖ base)."""
    entropy: EntropyConfig = EntropyConfig()
    """The entropy bonus."""
    importance: ImportanceConfig = ImportanceConfig()
    """The correction for differences between sampler and learner."""
    critic: CriticConfig = CriticConfig()
    """The value head of ``ppo``."""
    adapter: AdapterConfig | None = None
    """A low-rank adapter (LoRA), learnt instead of the model's weights; None: the weights are learnt."""
    batch: BatchConfig = BatchConfig()
    """Which responses to learn from."""
    pipeline: PipelineConfig = PipelineConfig()
    """Whether engines sample while an update is computed, and how far ahead."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW and its schedule."""
    compute: ComputeConfig = ComputeConfig()
    """How an update is computed."""
    sync: SyncConfig = SyncConfig()
    """When the sampler counts as having the learner's weights."""

    def __post_init__(self) -> None:
        for name in self.sync.given:
            # Rounding alone exceeds it; k3 is about half the square of a difference.
            if getattr(self.sync, name) < LEAST[self.rounding] ** (2 if name == "k3" else 1):
                whose = "the sampler has" if self.rounding == self.sampler_dtype else "the learner computes in"
                raise LearnerError(
                    f"sync.{name} is {getattr(self.sync, name):g}, and {whose} {self.rounding}, whose rounding alone "
                    f"differs by more: it must be left out, so that sync follows the types, or both be in float32"
                )
        # Name missing settings now, and not in the first update.
        chosen = self.objective.resolved
        if chosen.surrogate == "policy_gradient" and {self.objective.clip_low, self.objective.clip_high} != {None}:
            raise LearnerError(
                "a bound of the ratio is set, and surrogate is 'policy_gradient', which clips nothing: it must be left "
                "out"
            )
        if self.batch.trained_rollouts is not None and chosen.baseline == "gae":
            raise LearnerError(
                "batch.trained_rollouts is set, and the baseline is a critic's, which the other responses do not "
                "sharpen: it must be left out"
            )

    @property
    def rounding(self) -> Dtype:
        """The coarser of the types in which the sampler and the learner compute."""
        return max(self.sampler_dtype, self.compute.precision, key=get_args(Dtype).index)

    @property
    def tolerances(self) -> SyncConfig:
        """The tolerances in force: the given ones, or those of the types."""
        return self.sync if self.sync.given else TOLERANCES[self.rounding]

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of update ``step``, counted from 1; see ``OptimizerConfig.factor_at``."""
        return self.learning_rate * self.optimizer.factor_at(step)

    @property
    def behaviour_is_old(self) -> bool:
        """Return whether π_old of a ratio is the policy that sampled each token and no longer exists, as with a lag."""
        return self.pipeline.lag > 0 and self.objective.resolved.surrogate != "policy_gradient"

    @property
    def measures_first(self) -> bool:
        """Return whether a batch passes through the model once before the update."""
        return self.measures_for_advantages or (self.objective.off_policy and not self.behaviour_is_old)

    @property
    def measures_for_advantages(self) -> bool:
        """Return whether advantages depend on measurements: on values, or on a KL in the reward."""
        return self.kl.in_reward or self.objective.resolved.baseline == "gae"


_ISOCOMPUTE: dict[str, Any] = {
    "objective": {"algorithm": "grpo", "updates_per_batch": 1, "epochs": 1},
    "importance": {"level": "token", "cap": 2.0},
    "batch": {"filter_zero_variance": False},
    "optimizer": {"weight_decay": 0.01, "warmup_steps": 10, "decay": "constant"},
}
RECIPES: dict[str, dict[str, Any]] = {
    "isocompute-easy": {
        **_ISOCOMPUTE,
        "kl": {"coefficient": 0.001, "estimator": "k3", "place": "loss", "mask_zero_variance": False},
        "entropy": {"coefficient": 0.001, "mask_zero_variance": False},
    },
    "isocompute-hard": {**_ISOCOMPUTE, "kl": {"coefficient": 0.0}, "entropy": {"coefficient": 0.0}},
    "scalerl": {
        "objective": {"algorithm": "cispo", "updates_per_batch": 1, "epochs": 1},
        "kl": {"coefficient": 0.0},
        "entropy": {"coefficient": 0.0},
        "importance": {"level": "token", "cap": 5.0},
        "batch": {"filter_zero_variance": True, "drop_above": 0.9},
        "optimizer": {"epsilon": 1e-15, "weight_decay": 0.01, "warmup_steps": 100, "decay": "constant"},
        "compute": {"float32_head": True},
        "pipeline": {"lag": 8},
    },
}
"""Settings by recipe name, in the groups of ``LearnerConfig``; docs/recipes/ gives their sources.

They contain neither the learning rate, which depends on model and batch size, nor the temperature, which is the
sampler's.
"""


def with_recipe(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in a recipe's values; the settings that name the recipe override it, also within a group.

    ``{"recipe": "isocompute-easy", "kl": {"coefficient": 0.01}}`` is the recipe with another weight of the KL.
    """
    given = {name: value for name, value in settings.items() if name != "recipe"}
    if "recipe" not in settings:
        return deepcopy(given)
    name = settings["recipe"]
    if not isinstance(name, str) or name not in RECIPES:
        raise LearnerError(f"recipe is {name!r}; it must be one of {', '.join(RECIPES)}")
    return _merged(RECIPES[name], given)


def _merged(base: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively; ``above`` wins."""
    merged = deepcopy(dict(base))
    for name, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], value) if both else deepcopy(value)
    return merged
