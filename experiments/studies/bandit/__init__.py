"""One problem as a bandit, exact: how fast it is learnt with n rollouts per problem (docs/bandit.md)."""
