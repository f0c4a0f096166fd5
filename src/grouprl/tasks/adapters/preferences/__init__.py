"""Tasks of stored preferences: pairs, labels, rankings, steps, and pairs as questions to a judge."""
