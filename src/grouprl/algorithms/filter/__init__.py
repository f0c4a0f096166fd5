"""Parts of kind `filter`: they take rows or tokens out of the loss or of group statistics."""
