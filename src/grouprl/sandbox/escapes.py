"""Ways out of a sandbox, tried one by one: a test of this package, and a self-check of the current machine.

Every attempt is a program. It reads its targets (`Baits.targets`) from its standard input and either prints ESCAPED on
success or leaves a mark outside that is found afterwards. All are harmless even if they succeed, so that they can be
shown to succeed without a sandbox.
"""

from __future__ import annotations

from grouprl.sandbox.attempts import ESCAPED, ROOMY, TIGHT, Check, Escape, attempt_of, ended, printed, says_so
from grouprl.sandbox.escapes_files import FILES
from grouprl.sandbox.escapes_limits import LIMITED
from grouprl.sandbox.escapes_processes import NETWORK, PROCESSES
from grouprl.sandbox.level import LevelName
from grouprl.sandbox.program_outcome import Limits

ESCAPES: list[Escape] = []


def _add(
    name: str,
    aim: str,
    code: str,
    needs: LevelName = "landlock",
    escaped: Check | str = says_so,
    limits: Limits = ROOMY,
) -> None:
    ESCAPES.append(attempt_of(name, aim, code, needs, escaped, limits))


_add(
    "fork bomb",
    "have fifty processes at a time",
    """
alive = []
try:
    for _ in range(50):
        child = os.fork()
        if not child:
            import time; time.sleep(60)
        alive.append(child)
    print("ESCAPED")
finally:
    for child in alive:
        os.kill(child, 9)
""",
)
_add(
    "thread bomb",
    "have three hundred threads at a time",
    """
import threading
stop = threading.Event()
threads = [threading.Thread(target=stop.wait, daemon=True) for _ in range(300)]
for thread in threads:
    thread.start()
stop.set()
print("ESCAPED")
""",
    "rlimits",
)
_add("memory bomb", "use 300 MB", "held = bytearray(b'x') * (300 << 20)\nprint('ESCAPED')", "rlimits")
_add(
    "memory beside the heap",
    "use 300 MB of shared pages",
    "import mmap\nheld = mmap.mmap(-1, 300 << 20)\nheld.write(b'x' * (300 << 20))\nprint('ESCAPED')",
    "rlimits",
)
_add("memory in a file", "use memory that no limit counts", "os.memfd_create('x')\nprint('ESCAPED')")
_add("endless output", "print without end", "for _ in range(4000):\n    print('x' * 999)", "rlimits", printed)
_add(
    "a million lines of errors",
    "print without end to the standard error",
    "for _ in range(1000):\n    sys.stderr.write('error\\n' * 1000)",
    "rlimits",
    printed,
)
_add(
    "huge file",
    "write a file of 64 MB",
    "with open('huge', 'wb') as file:\n    file.write(b'x' * (64 << 20))\nos.remove('huge')\nprint('ESCAPED')",
    "rlimits",
)
_add(
    "many files",
    "write 40 MB into ten files",
    "for n in range(10):\n    open(f'f{n}', 'wb').write(b'x' * (4 << 20))\n"
    "import time; time.sleep(0.5)\nprint('ESCAPED')",
    "landlock",
)
_add("sleeping", "outlast the clock", "import time; time.sleep(1)", "rlimits", ended, TIGHT)
_add(
    "computing",
    "use more processor time than allowed",
    "import time\nwhile time.process_time() < 2.2: pass",
    "rlimits",
    ended,
    TIGHT.model_copy(update={"cpu": 1, "seconds": 20}),
)
_add(
    "deaf to signals",
    "outlast the clock by ignoring signals",
    """
import signal, time
for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        pass
time.sleep(1)
""",
    "rlimits",
    ended,
    TIGHT,
)
_add(
    "closed output",
    "outlast the clock unheard",
    "import time\nfor n in range(64):\n    try: os.close(n)\n    except OSError: pass\ntime.sleep(1)",
    "rlimits",
    ended,
    TIGHT,
)
_add(
    "leftover process",
    "leave a process behind",
    """
import ctypes, time
if not os.fork():
    os.setsid()
    if not os.fork():
        ctypes.CDLL(None).prctl(15, targets["mark"].encode(), 0, 0, 0)
        for n in range(3): os.close(n)
        time.sleep(20)
        os._exit(0)
    os._exit(0)
os.wait()
time.sleep(0.3)
""",
    escaped="process",
)
_add(
    "leftover files",
    "leave files in shared folders",
    """
for folder in ("/tmp", "/var/tmp", "/dev/shm"):
    try: open(f"{folder}/{targets['mark']}", "w").close()
    except OSError: pass
""",
    escaped="shared",
)
_add(
    "tcp",
    "connect to a server of this machine",
    "import socket\nsocket.create_connection(('127.0.0.1', targets['tcp']), 3)\nprint('ESCAPED')",
)
_add(
    "udp",
    "send a name query, as DNS does",
    "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'ask', ('127.0.0.1', targets['udp']))",
    escaped="udp",
)
_add(
    "unix socket",
    "connect to a server by its file",
    "import socket\nsocket.socket(socket.AF_UNIX).connect(targets['unix'])\nprint('ESCAPED')",
)
_add(
    "abstract socket",
    "connect to a server by its name",
    "import socket\nsocket.socket(socket.AF_UNIX).connect(chr(0) + targets['mark'])\nprint('ESCAPED')",
)
_add("interfaces", "ask the kernel about the network", "import socket\nsocket.socket(16, 3, 0)\nprint('ESCAPED')")
_add(
    "its own environment",
    "read a secret variable",
    "if targets['variable'] in os.environ: print('ESCAPED')",
    "rlimits",
)
_add(
    "another's environment",
    "read a secret variable of another process",
    "if targets['variable'].encode() in open(f\"/proc/{targets['parent']}/environ\", 'rb').read(): print('ESCAPED')",
)
_add("foreign file", "read a file outside", "if open(targets['secret']).read() == 'secret': print('ESCAPED')")
_add("the package", "read the trainer's code", "if 'def ' in open(targets['package']).read(): print('ESCAPED')")
_add(
    "home",
    "list the user's home, where keys are",
    "if targets['bait'] in os.listdir(targets['home']): print('ESCAPED')",
)
_add("accounts", "read the list of users", "open('/etc/passwd').read()\nprint('ESCAPED')")
_add("sizes", "ask for the size of a file outside", "os.stat(targets['secret'])\nprint('ESCAPED')", "namespaces")
_add("writing outside", "make a file outside", "open(targets['outside'], 'w').close()", escaped="outside")
_add("emptying", "empty a file outside", "os.truncate(targets['victim_file'], 0)", escaped="emptied")
_add(
    "permissions", "change the permissions of a file outside", "os.chmod(targets['victim_file'], 0o777)", escaped="mode"
)
_add(
    "symbolic link",
    "read a file through a link",
    "os.symlink(targets['secret'], 's')\nopen('s').read()\nprint('ESCAPED')",
)
_add("hard link", "take a file in by a link", "os.link(targets['secret'], 'h')\nprint('ESCAPED')")
_add(
    "way up", "leave the folder by its parents", f"open('../' * 20 + targets['secret'][1:]).read()\nprint('{ESCAPED}')"
)
_add("signal", "kill another process", "os.kill(targets['process'], 9)", escaped="killed")
_add(
    "tracing",
    "attach to another process",
    """
import ctypes
if ctypes.CDLL(None).ptrace(16, targets["process"], None, None) == 0:
    os.waitpid(targets["process"], 0x40000000)
    ctypes.CDLL(None).ptrace(17, targets["process"], None, None)
    print("ESCAPED")
""",
)
_add(
    "memory of others",
    "open another process's memory",
    "open(f\"/proc/{targets['process']}/mem\", 'rb').close()\nprint('ESCAPED')",
)
_add(
    "limits of others",
    "change another process's limits",
    "import resource\nresource.prlimit(targets['process'], resource.RLIMIT_CORE, (0, 0))\nprint('ESCAPED')",
)
_add("priority of others", "slow another process down", "os.setpriority(0, targets['process'], 19)\nprint('ESCAPED')")
_add(
    "new namespaces",
    "gain rights in a user namespace",
    "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) == 0: print('ESCAPED')",
)
_add(
    "higher limits",
    "raise its own limits",
    "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40))\nprint('ESCAPED')",
)
ESCAPES += [*FILES, *NETWORK, *PROCESSES, *LIMITED]
