"""Drawing and training at the same time: a sampler in its own process, ahead of the trainer by a bounded staleness.

The trainer chooses the questions, says how many may be under way (`admission`) and takes the groups back in the order
in which they were asked (`ahead`). The sampler draws and scores them (`sampling`), with weights that reach it through
shared memory (`weights`); after each exchange of weights a canary tells whether both hold the same policy (`canary`).
"""
