"""Modules that a server of vLLM imports in its own environment; the trainer imports `grouprl_group` as well."""
