"""What passes between the rooms: examples, requests, tokens, rollouts, scores and scored samples."""
