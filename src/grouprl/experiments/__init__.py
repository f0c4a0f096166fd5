"""The laboratory: fair and resumable comparisons of methods, stored by content."""
