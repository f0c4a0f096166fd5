"""Parts of this kind that one paper needs; what several share stands one folder up."""
