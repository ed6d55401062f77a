"""What a sync must bring, by names and shapes."""

from typing import Any

import pytest
from isocompute.rollout import RolloutError
from isocompute.rollout.samplers.weights import Manifest, check_tied, checked, manifest, manifest_of

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def test_tensors_are_those_that_the_model_saves(tiny: Any, tied_tiny: Any, tmp_path: Any) -> None:
    for one, tied in ((tiny, {}), (tied_tiny, {HEAD: EMBEDDING})):
        whole = one.save(tmp_path, seed=0)
        found = manifest(str(one.folder))
        assert dict(found.shapes) == {name: tuple(tensor.shape) for name, tensor in whole.state_dict().items()}
        assert found.tied == tied
        assert found.elements == sum(parameter.numel() for parameter in whole.parameters())


def test_tied_tensors_are_found_whatever_transformers_calls_them(tied_tiny: Any, tmp_path: Any) -> None:
    whole = tied_tiny.save(tmp_path, seed=0)
    # Not there before transformers 5.
    whole.all_tied_weights_keys = {}
    assert manifest_of(whole).tied == {HEAD: EMBEDDING}


def test_a_tied_tensor_may_be_left_out_and_no_other() -> None:
    torch = pytest.importorskip("torch")
    wanted = Manifest(shapes={EMBEDDING: (4, 2), "norm": (2,), HEAD: (4, 2)}, tied={HEAD: EMBEDDING})
    norm, table = torch.zeros(2), torch.zeros(4, 2)
    for given in ([(EMBEDDING, table), ("norm", norm)], [(EMBEDDING, table), ("norm", norm), (HEAD, table)]):
        assert list(checked(given, wanted)) == given
    with pytest.raises(RolloutError, match=f"lacks the tensor {EMBEDDING}$"):
        list(checked([(HEAD, table), ("norm", norm)], wanted))
    with pytest.raises(RolloutError, match=f"the tensor {HEAD} as"):
        list(checked([(EMBEDDING, table), ("norm", norm), (HEAD, torch.zeros(4, 3))], wanted))


def test_values_of_tied_tensors_are_compared() -> None:
    torch = pytest.importorskip("torch")
    one = torch.arange(4.0)
    for same in (one, one.clone(), one.view(4)):
        check_tied({HEAD: EMBEDDING}, {HEAD: same, EMBEDDING: one})
    with pytest.raises(RolloutError, match=f"{HEAD} and {EMBEDDING} with different values"):
        check_tied({HEAD: EMBEDDING}, {HEAD: one + 1, EMBEDDING: one})
