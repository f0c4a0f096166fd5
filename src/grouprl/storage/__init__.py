"""The run folder: records, checkpoints and locks."""
