"""Tool calls as the families of chat models write them, according to their published templates."""
