"""Ways to the network and to other processes: connecting, listening, inspecting, signalling, and outliving the run."""
# ruff: noqa: E501  (a program is a line)

from __future__ import annotations

from grouprl.sandbox.attempts import Escape, attempt_of

SOCKET = "import socket\ntcp = targets['tcp']\n"
TALKING = (
    ("connect", "socket.socket().connect(('127.0.0.1', tcp))"),
    ("connect_ex", "assert socket.socket().connect_ex(('127.0.0.1', tcp)) == 0"),
    ("by name", "socket.create_connection(('localhost', tcp), 3)"),
    ("to all addresses", "socket.socket().connect(('0.0.0.0', tcp))"),
    ("by IPv6's form of IPv4", "socket.socket(socket.AF_INET6).connect(('::ffff:127.0.0.1', tcp))"),
    ("without waiting", "s = socket.socket(); s.setblocking(False); assert s.connect_ex(('127.0.0.1', tcp)) in (0, 115)"),
    ("asyncio", "import asyncio\nasyncio.run(asyncio.open_connection('127.0.0.1', tcp))"),
    ("telnet of a shell", "import subprocess\n"
     "subprocess.check_call(['bash', '-c', f'exec 3<>/dev/tcp/127.0.0.1/{tcp}'])"),
    ("C's socket", "import ctypes\nassert ctypes.CDLL(None).socket(2, 1, 0) >= 0"),
    ("listening", "s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname(), 3)\n"
     "assert open('/proc/net/tcp').read().count(f'{tcp:04X}')"),
    ("binding a datagram", "s = socket.socket(2, 2); s.bind(('127.0.0.1', 0)); s.connect(('127.0.0.1', targets['udp']))\n"
     "s.send(b'x')\nassert '%04X' % targets['udp'] in open('/proc/net/udp').read()"),
    ("multiprocessing", "from multiprocessing.connection import Client\nimport threading\n"
     "threading.Thread(target=Client, args=(('127.0.0.1', tcp),), daemon=True).start()\nimport time; time.sleep(0.2)\n"
     "assert f'0100007F:{tcp:04X} 01' in open('/proc/net/tcp').read()"),
    ("unix by a link", "os.symlink(targets['unix'], 'u'); socket.socket(1).connect('u')"),
    ("unix by a folder", "os.chdir(os.path.dirname(targets['unix'])); socket.socket(1).connect('unix')"),
    ("unix by C", "s = socket.socket(1); s.settimeout(3); s.connect(targets['unix']); s.send(b'x')"),
    ("netlink", "socket.socket(16, 3, 15).bind((0, 0))"),
    ("interfaces' names", "assert socket.if_nameindex()\nassert len(open('/proc/net/tcp').readlines()) > 1"),
    ("connections of others", "assert f'{tcp:04X}' in open('/proc/net/tcp').read()"),
    ("abstract sockets of others", "assert targets['mark'] in open('/proc/net/unix').read()"),
)  # fmt: skip
NETWORK: list[Escape] = [
    attempt_of(f"network: {name}", "reach the network", f"{SOCKET}{code}\nprint('ESCAPED')") for name, code in TALKING
]

VICTIM = "import ctypes, signal, subprocess\nlibc = ctypes.CDLL(None, use_errno=True)\npid = targets['process']\n"
LOOKING = (
    ("its existence", "os.kill(pid, 0)"),
    ("its command", "assert b'sleep' in open(f'/proc/{pid}/cmdline', 'rb').read()"),
    ("its name", "assert 'sleep' in open(f'/proc/{pid}/comm').read()"),
    ("its status", "assert 'sleep' in open(f'/proc/{pid}/status').read()"),
    ("its memory map", "assert open(f'/proc/{pid}/maps').read()"),
    ("its open files", "assert os.listdir(f'/proc/{pid}/fd')"),
    ("its folder", "assert targets['bait'] in os.readlink(f'/proc/{pid}/cwd')"),
    ("its program", "assert 'sleep' in os.readlink(f'/proc/{pid}/exe') or 'coreutils' in os.readlink(f'/proc/{pid}/exe')"),
    ("its folder entered", "os.chdir(f'/proc/{pid}/cwd'); assert open('secret').read() == 'secret'"),
    ("its environment by a shell", "assert targets['variable'].encode() in "
     "subprocess.check_output(['cat', f'/proc/{pid}/environ'])"),
    ("the list of processes", "assert str(pid) in os.listdir('/proc')"),
    ("its standard input", "open(f'/proc/{pid}/fd/0').close()"),
    ("a descriptor of it", "os.pidfd_open(pid)"),
    ("a list by ps", "assert str(pid) in os.popen('ls /proc').read().split()"),
    ("its memory read by a call", """
class Piece(ctypes.Structure): _fields_ = (('base', ctypes.c_void_p), ('size', ctypes.c_size_t))
place = int(open(f'/proc/{pid}/maps').read().split('-')[0], 16)
held = ctypes.create_string_buffer(8)
mine, theirs = Piece(ctypes.addressof(held), 8), Piece(place, 8)
assert libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) == 8"""),
    ("tracing by seizing", "assert libc.ptrace(0x4206, pid, None, None) == 0"),
)  # fmt: skip
ACTING = (
    ("terminating", "os.kill(pid, signal.SIGTERM)", "killed"),
    ("killing its group", "os.killpg(pid, 9)", "killed"),
    ("killing by a descriptor", "signal.pidfd_send_signal(os.pidfd_open(pid), 9)", "killed"),
    ("killing by C", "libc.kill(pid, 9)", "killed"),
    ("killing by number of the call", "libc.syscall({'x86_64': 62}.get(os.uname().machine, 129), pid, 9)", "killed"),
    ("killing by a shell", "os.system(f'kill -9 {pid}')", "killed"),
    ("killing a thread", "libc.syscall({'x86_64': 234}.get(os.uname().machine, 131), pid, pid, 9)", "killed"),
    ("stopping", "os.kill(pid, signal.SIGSTOP)", "stopped"),
    ("slowing down", "os.setpriority(0, pid, 19)", "niced"),
    ("slowing a group down", "os.setpriority(1, pid, 19)", "niced"),
    ("slowing down by renice", "libc.setpriority(0, pid, 19)", "niced"),
)
NAMED = "ctypes.CDLL(None).prctl(15, targets['mark'].encode(), 0, 0, 0)\nfor n in range(3): os.close(n)\ntime.sleep(20)"
LEAVING = (
    ("a child", "if not os.fork():\n    {}\n    os._exit(0)"),
    ("a child of its own session", "if not os.fork():\n    os.setsid()\n    {}\n    os._exit(0)"),
    ("a child of its own group", "if not os.fork():\n    os.setpgid(0, 0)\n    {}\n    os._exit(0)"),
    ("a child deaf to signals", "if not os.fork():\n    import signal\n    for s in range(1, 32):\n        try: signal.signal(s, 1)\n"
     "        except (OSError, ValueError): pass\n    os.setsid()\n    {}\n    os._exit(0)"),
    ("a grandchild's grandchild", "if not os.fork():\n    for _ in range(4):\n        os.setsid() if os.getpid() != os.getsid(0) else 0\n"
     "        if os.fork(): os._exit(0)\n    {}\n    os._exit(0)"),
    ("a child at its end", "import atexit\ndef late():\n    if not ctypes.CDLL(None).fork():\n        os.setsid()\n        {}\n        os._exit(0)\natexit.register(late)"),
)  # fmt: skip


def _left(code: str) -> str:
    """Put the body of a leftover process into `code`, at the indentation of its placeholder."""
    before = code.partition("{}")[0]
    indent = before.rpartition("\n")[2]
    return "import ctypes, time\n" + code.format(NAMED.replace("\n", "\n" + indent)) + "\ntime.sleep(0.3)"


PROCESSES: list[Escape] = [
    *(
        attempt_of(f"looking: {name}", "look into another process", f"{VICTIM}{code}\nprint('ESCAPED')")
        for name, code in LOOKING
    ),
    *(
        attempt_of(f"acting: {name}", "act on another process", VICTIM + code, escaped=mark)
        for name, code, mark in ACTING
    ),
    *(
        attempt_of(f"leaving: {name}", "leave a process behind", _left(code), escaped="process")
        for name, code in LEAVING
    ),
]
