"""Reward models of several users: a few judgements of a user before the prompt tell whose taste counts."""
