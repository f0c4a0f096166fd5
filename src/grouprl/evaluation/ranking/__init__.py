"""How well scores rank stored completions: RewardBench's rules, calibration, biases of length and style."""
