"""Language models as policies: loading, chat templates, scoring and statistics."""
