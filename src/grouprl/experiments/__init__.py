"""The laboratory: comparisons of methods that are fair, resumable, and kept by content."""
