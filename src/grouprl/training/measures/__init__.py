"""Measurements made in passing while a rollout is trained on."""
