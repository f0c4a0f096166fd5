"""Updates: how a prepared rollout becomes optimiser steps."""
