"""Model-written Python, contained: no network, no files but its own, limited time, memory, processes and output."""
