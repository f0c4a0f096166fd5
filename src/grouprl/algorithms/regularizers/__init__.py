"""Regularisers: extra token losses beside the policy loss."""
