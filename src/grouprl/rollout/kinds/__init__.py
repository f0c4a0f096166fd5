"""Which source of rows a task needs."""
