"""Several policies as one."""
