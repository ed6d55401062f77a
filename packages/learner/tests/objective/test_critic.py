import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.objective.loss import value_loss

VALUES = st.floats(-3, 3)


@given(VALUES, VALUES, VALUES)
def test_a_value_near_its_old_one_is_drawn_to_the_return(value: float, old: float, target: float) -> None:
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    loss = value_loss(values, torch.tensor([target], dtype=torch.float64), torch.tensor([old]), clip=10.0)
    loss.sum().backward()
    assert torch.equal(loss.detach(), 0.5 * (values.detach() - target) ** 2)
    assert torch.allclose(values.grad, values.detach() - target)


def test_a_value_that_moved_far_towards_its_return_has_no_gradient() -> None:
    values = torch.tensor([0.8, -0.8, 0.8], requires_grad=True)
    returns, old = torch.tensor([1.0, 1.0, 1.0]), torch.zeros(3)
    loss = value_loss(values, returns, old, clip=0.5)
    loss.sum().backward()
    # The first has come near by more than 0.5; the second has gone away, and is drawn back.
    assert loss.tolist()[0] == 0.5 * 0.5**2
    assert values.grad[0] == 0
    assert values.grad[1] == values[1] - 1
    without = value_loss(values.detach(), returns, old)
    assert torch.equal(without, value_loss(values.detach(), returns, clip=0.5))
    assert torch.equal(without, 0.5 * (values.detach() - returns) ** 2)
