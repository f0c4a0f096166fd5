"""Token weights and masks: detached factors of the policy loss."""
