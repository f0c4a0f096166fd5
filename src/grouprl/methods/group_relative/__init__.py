"""GRPO and its nearest kin: a group baseline, other scales and denominators."""
