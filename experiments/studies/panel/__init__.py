"""The panel: a study of what the IsoCompute Playbook claims, pinned before it ran (plan.md)."""
