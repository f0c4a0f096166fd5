"""The run folder: records, checkpoints, locks."""
