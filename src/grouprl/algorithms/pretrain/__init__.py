"""Parts of kind `pretrain`: they act once, before the first step."""
