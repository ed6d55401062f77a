"""A low-rank adapter that is learnt in place of the model's own weights."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import LearnerError
from .checks import positive, whole

ALL_LINEAR = "all-linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """LoRA (arXiv 2106.09685): W + (α/r)·B·A in place of each adapted weight W, of which only A and B are learnt.

    At first A, of the shape ``(r, in)``, is uniform on ±1/√in and the same in every run, and B, of the shape
    ``(out, r)``, is 0: the policy is the base model. There is no dropout, with which it would not be the sampler's.
    With ``compute.precision: bfloat16`` the base model is held in bfloat16; A, B, their gradients and their moments
    are in float32. Embeddings, norms, biases and the output head stay as they are.

    α = 32 is that of "LoRA Without Regret" (Thinking Machines, 2025), by which the best learning rate is about ten
    times that of full training, whatever the rank.

    Attributes:
        rank: r, the rank of the change of a weight.
        alpha: α; a change is multiplied by α/r.
        target_modules: Names of the linear layers that are adapted, or their last parts, such as ``q_proj``;
            ``all-linear`` names all but the output head.

    Raises:
        LearnerError: A value is out of its range.
    """

    rank: int = 32
    alpha: float = 32.0
    target_modules: tuple[str, ...] = (ALL_LINEAR,)

    def __post_init__(self) -> None:
        whole(self, "rank", least=1)
        positive(self, "alpha")
        given = self.target_modules
        if not isinstance(given, tuple) or not given or not all(isinstance(name, str) and name for name in given):
            raise LearnerError(
                f"target_modules is {given!r}; it must be a list of names of linear layers, such as [q_proj, v_proj] "
                f"or [{ALL_LINEAR}]"
            )
