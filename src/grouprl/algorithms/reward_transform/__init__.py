"""Parts of kind `reward_transform`: they change rewards."""
