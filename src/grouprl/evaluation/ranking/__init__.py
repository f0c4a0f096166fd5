"""Measures of scores on stored completions: RewardBench's rules, calibration, biases of length and style."""
