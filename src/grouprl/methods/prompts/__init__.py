"""Which prompts are chosen, what help they get, which rows are left out or added."""
