"""The sections of a configuration: what can be set, the defaults, and what it means."""

from grouprl.config.sections.model import Lora, Model, Tiny, Warmup
from grouprl.config.sections.processes import Acting, Placing, Run
from grouprl.config.sections.scoring import Judge, Reward, ScoringModels
from grouprl.config.sections.section import Section
from grouprl.config.sections.servers import Servers, Sglang, Vllm
from grouprl.config.sections.step import BatchPlan, Data, Eval, Optim, Sampling

__all__ = [
    "Acting",
    "BatchPlan",
    "Data",
    "Eval",
    "Judge",
    "Lora",
    "Model",
    "Optim",
    "Placing",
    "Reward",
    "Run",
    "Sampling",
    "ScoringModels",
    "Section",
    "Servers",
    "Sglang",
    "Tiny",
    "Vllm",
    "Warmup",
]
