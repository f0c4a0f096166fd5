"""Tasks of the user's own and of other libraries: files, programs, tools, environments."""
