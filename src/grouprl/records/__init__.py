"""Records that packages exchange: examples, requests, tokens, rollouts, scores and scored samples."""
