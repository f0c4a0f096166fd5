"""Gates: tokens and completions that leave the policy loss because of where the policy is now."""
