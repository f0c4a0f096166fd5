"""Problems whose solutions are built step by step: tours, routes, selections, assignments and schedules."""

from grouprl.envs.construction.choices import Assignment, Knapsack
from grouprl.envs.construction.problem import Building, Instance, Problem, View
from grouprl.envs.construction.scheduling import JobShop
from grouprl.envs.construction.tours import Cvrp, Tsp
from grouprl.envs.construction.world import ConstructionWorld

PROBLEMS: dict[str, type[Problem]] = {each.name: each for each in (Tsp, Cvrp, Knapsack, Assignment, JobShop)}
"""The built-in problems by name."""

__all__ = [
    "PROBLEMS",
    "Assignment",
    "Building",
    "ConstructionWorld",
    "Cvrp",
    "Instance",
    "JobShop",
    "Knapsack",
    "Problem",
    "Tsp",
    "View",
]
