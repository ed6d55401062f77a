"""The sampler, on densities whose moments are known."""

import numpy as np
from isocompute.frontier.posterior.posterior import mode, sample, split_r_hat


def test_the_moments_of_a_normal_distribution_are_found() -> None:
    rng = np.random.default_rng(0)
    root = np.tril(rng.standard_normal((8, 8))) + 2 * np.eye(8)
    mean, inverse = np.arange(8.0), np.linalg.inv(root @ root.T)

    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        off = x - mean
        return -0.5 * ((off @ inverse) * off).sum(axis=1), -off @ inverse

    drawn = sample(density, np.zeros(8), np.ones(8, dtype=bool), chains=32, warm_up=40, kept=100, rng=rng)
    deviation = np.sqrt(np.diag(root @ root.T))
    assert split_r_hat(drawn.chains).max() < 1.1
    np.testing.assert_allclose((drawn.theta.mean(axis=0) - mean) / deviation, 0, atol=0.1)
    np.testing.assert_allclose(drawn.theta.std(axis=0) / deviation, 1, atol=0.1)


def test_a_distribution_with_long_tails_keeps_them() -> None:
    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -2.5 * np.log1p(x**2 / 4).sum(axis=1), -5 * x / (4 + x**2)

    rng = np.random.default_rng(1)
    drawn = sample(density, np.ones(3), np.ones(3, dtype=bool), chains=64, warm_up=60, kept=200, rng=rng)
    # Student-t with 4 degrees of freedom.
    np.testing.assert_allclose(
        np.quantile(drawn.theta, [0.025, 0.25, 0.5, 0.75, 0.975]), [-2.776, -0.741, 0, 0.741, 2.776], atol=0.15
    )


def test_the_mode_leaves_what_is_not_free() -> None:
    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -0.5 * ((x - 3) ** 2).sum(axis=1), 3 - x

    found = mode(density, np.zeros(2), np.array([True, False]))
    np.testing.assert_allclose(found, [3, 0], atol=1e-4)
