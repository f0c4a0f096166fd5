"""Tasks from the user's files, programs, tools and environments, and from other libraries."""
