"""The sandbox as a runtime: the protocol, what it contains, and what it does not keep."""

from grouprl.runtimes import SandboxRuntime
from grouprl.testing import check_runtime


def test_it_is_a_runtime():
    check_runtime(SandboxRuntime)
