"""Problems whose solutions are built step by step: tours, routes, selections, assignments and schedules."""

from grouprl.envs.construction.allocation import TaskAllocation
from grouprl.envs.construction.choices import Assignment, KnapsackProblem
from grouprl.envs.construction.problem import Building, ConstructionProblem, Instance, View
from grouprl.envs.construction.scheduling import JobShop
from grouprl.envs.construction.tours import Cvrp, Tsp
from grouprl.envs.construction.world import ConstructionWorld

PROBLEMS: dict[str, type[ConstructionProblem]] = {
    each.name: each for each in (Tsp, Cvrp, KnapsackProblem, Assignment, JobShop, TaskAllocation)
}
"""The built-in problems by name."""

__all__ = [
    "PROBLEMS",
    "Assignment",
    "Building",
    "ConstructionProblem",
    "ConstructionWorld",
    "Cvrp",
    "Instance",
    "JobShop",
    "KnapsackProblem",
    "TaskAllocation",
    "Tsp",
    "View",
]
