"""The data model: batches, levels, rollouts and their records; tensors only, nothing of text or models."""
