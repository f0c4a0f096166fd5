"""Objectives: the loss of one token, from its log-prob and its advantage."""
