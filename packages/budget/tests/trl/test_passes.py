from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget.trl import Passes

few = st.integers(1, 6)


@given(accumulation=few, every=few, batches=few, resumed=st.integers(0, 20), epochs=st.integers(1, 4))
def test_generations_and_their_shares_are_those_of_the_trainers_loop(accumulation, every, batches, resumed, epochs):
    epoch_passes = batches * every
    epoch_steps = -(-epoch_passes // accumulation)
    passes = Passes(accumulation=accumulation, every=every, epoch_passes=epoch_passes, epoch_steps=epoch_steps)
    # The loop of Trainer._run_epoch from a checkpoint on, with the condition of GRPOTrainer._prepare_inputs.
    done, filled, expected, loop = 0, False, [], []
    for step in range(resumed, resumed + epochs * epoch_steps):
        place = step % epoch_steps
        of_step = min(accumulation, epoch_passes - place * accumulation)
        assert passes.of_step(place) == of_step
        expected.append(passes.generations(place, done=done, filled=filled))
        for _ in range(of_step):
            if done % every == 0 or not filled:
                loop.append({})
                filled = True
            loop[-1][step] = loop[-1].get(step, 0) + 1
            done += 1
    predicted = [(resumed + k, shares) for k, made in enumerate(expected) for shares in made]
    # The last one is used beyond the end of the loop.
    assert len(predicted) == len(loop)
    for (step, shares), used in zip(predicted[:-1], loop[:-1], strict=True):
        assert dict(enumerate(shares, step)) == used
        assert sum(shares) == every
    step, shares = predicted[-1]
    assert sum(shares) == every
    assert all(share >= loop[-1].get(step + k, 0) for k, share in enumerate(shares))
