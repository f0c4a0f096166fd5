"""Methods with a critic or another model trained beside the policy."""
