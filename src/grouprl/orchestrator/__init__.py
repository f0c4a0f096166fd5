"""Who requests what, and when."""
