"""Keys of other libraries, and what they are called here."""
