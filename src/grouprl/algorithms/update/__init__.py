"""Parts of kind `update`: they turn a prepared rollout into optimiser steps."""
