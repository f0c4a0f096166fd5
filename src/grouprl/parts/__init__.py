"""The parts that methods are composed of: pure functions on a Batch and log-probs."""
