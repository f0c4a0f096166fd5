"""The source of rows that a task needs."""
