"""References of other weights than the policy's."""
