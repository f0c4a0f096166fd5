"""The interfaces between packages: policies, environments, sources of data, samplers, exchanges of weights.

Everything may import this module; it imports nothing heavy and knows no engine, no tokenizer and no text: token ids,
action numbers and vectors are all *actions*, and a method only ever sees their log-probs. Only data crosses an
interface: a `Request` says what is to be sampled, `Samples` say what was, and neither holds a function. So the local
decoder, a server in another process and a policy that is not a language model implement the same names.
`grouprl.testing` holds any implementation to what is written here.
"""

from grouprl.protocols.data import PromptSource, PromptTask, RowSource, SampleSource
from grouprl.protocols.environments import (
    ActionSpace,
    ArraySpace,
    Box,
    DictSpace,
    Discrete,
    Environment,
    GroupScored,
    Image,
    MultiDiscrete,
    Space,
    Spaces,
)
from grouprl.protocols.policies import (
    ComparablePolicy,
    DistributedOptimizer,
    DistributedPolicy,
    FinalInputs,
    FollowingScorer,
    GroupInfluence,
    NumberedActions,
    Policy,
    PolicyInputs,
    Scorer,
    Trainable,
    distributed,
    has_memory,
)
from grouprl.protocols.sampling import (
    NO_VERSION,
    Engine,
    EntropyScaling,
    Grammar,
    Request,
    RunEngine,
    RunSampler,
    Sampler,
    Samples,
    SamplingSession,
    WeightSync,
)

__all__ = [
    "NO_VERSION",
    "ActionSpace",
    "ArraySpace",
    "Box",
    "ComparablePolicy",
    "DictSpace",
    "Discrete",
    "DistributedOptimizer",
    "DistributedPolicy",
    "Engine",
    "EntropyScaling",
    "Environment",
    "FinalInputs",
    "FollowingScorer",
    "Grammar",
    "GroupInfluence",
    "GroupScored",
    "Image",
    "MultiDiscrete",
    "NumberedActions",
    "Policy",
    "PolicyInputs",
    "PromptSource",
    "PromptTask",
    "Request",
    "RowSource",
    "RunEngine",
    "RunSampler",
    "SampleSource",
    "Sampler",
    "Samples",
    "SamplingSession",
    "Scorer",
    "Space",
    "Spaces",
    "Trainable",
    "WeightSync",
    "distributed",
    "has_memory",
]
