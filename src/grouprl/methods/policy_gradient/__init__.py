"""Policy gradients that differ in their baseline, and learning from chosen completions."""
