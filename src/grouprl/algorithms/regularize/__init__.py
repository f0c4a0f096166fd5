"""Parts of kind `regularize`: they add losses to the policy loss."""
