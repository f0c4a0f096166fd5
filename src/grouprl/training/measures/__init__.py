"""What is measured in passing while a rollout is trained on."""
