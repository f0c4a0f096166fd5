"""The data model: batches and levels (tensors only, nothing of text or models), and the errors that all packages
raise."""
