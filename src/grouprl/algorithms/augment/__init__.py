"""Parts of kind `augment`: they add or replace rows once completions are scored."""
