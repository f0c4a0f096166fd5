"""Methods that choose prompts, help the policy with them, or leave out or add rows."""
