"""What a server of vLLM imports, in an environment of its own; `grouprl_group` is read by the trainer as well."""
