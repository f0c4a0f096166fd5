"""Ratios, clips, gates and penalties that keep an update near the old policy."""
