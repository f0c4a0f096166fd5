"""What a run would take on a cluster: memory, time, placement, and where it stops scaling."""
