"""Workers that a cluster places: samplers, rewards and environments behind the protocols of one process."""
