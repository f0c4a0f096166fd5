"""Workers on a cluster: samplers, rewards and environments behind the same protocols as in one process."""
