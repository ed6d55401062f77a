"""One problem as a bandit with a softmax policy: the learner's gradient and its progress, exact (docs/bandit.md)."""
