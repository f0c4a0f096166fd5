"""Language models as policies: loaded, templated, scored and described."""
