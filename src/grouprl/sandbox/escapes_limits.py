"""Ways past limits of time, memory, output, files and system calls."""
# ruff: noqa: E501  (a program is a line)

from __future__ import annotations

from grouprl.sandbox.attempts import TIGHT, Escape, attempt_of, ended, printed
from grouprl.sandbox.level import LevelName

SHORT = TIGHT.model_copy(update={"seconds": 0.2})

WAITING = (
    ("select", "import select; select.select([], [], [], 0.5)"),
    ("poll", "import select; select.poll().poll(500)"),
    ("a lock", "import threading; threading.Lock().acquire() and threading.Event().wait(0.5)"),
    ("a condition", "import threading\nc = threading.Condition()\nwith c: c.wait(0.5)"),
    ("a queue", "import queue\ntry: queue.Queue().get(timeout=0.5)\nexcept queue.Empty: pass"),
    ("asyncio", "import asyncio; asyncio.run(asyncio.sleep(0.5))"),
    ("its own pipe", "import threading\nr, w = os.pipe()\nthreading.Timer(0.5, os.write, (w, b'x')).start()\nos.read(r, 1)"),
    ("a thread", "import threading, time; threading.Thread(target=time.sleep, args=(0.5,)).start()"),
    ("its end", "import atexit, time; atexit.register(time.sleep, 0.5)"),
    ("its own signal", "import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)\nsignal.setitimer(0, 0.5)\nsignal.pause()"),
    ("deaf threads", "import threading, time, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\n"
     "[threading.Thread(target=time.sleep, args=(0.5,)).start() for _ in range(3)]"),
    ("exceptions", "import time\nwhile time.monotonic() and not (vars().setdefault('n', 0) > 4):\n"
     "    try: time.sleep(0.1); n += 1\n    except BaseException: pass"),
    ("finally", "import time\ntry: raise SystemExit(0)\nfinally: time.sleep(0.5)"),
    ("deletion", "import time\nclass A:\n    def __del__(self): time.sleep(0.5)\na = A()\ndel a"),
    ("C's sleep", "import ctypes; ctypes.CDLL(None).usleep(500000)"),
    ("sigwait", "import signal\nsignal.pthread_sigmask(0, [14])\nsignal.setitimer(0, 0.5)\nsignal.sigwait([14])"),
)  # fmt: skip
HOLDING = (
    ("a list", "held = [0] * (40 << 20)"),
    ("a text", "held = 'x' * (300 << 20)"),
    ("a dictionary", "held = dict.fromkeys(range(4 << 20))"),
    ("a number", "held = 1 << (8 * 300 << 20)"),
    ("an array", "import array; held = array.array('b', bytes(1)) * (300 << 20)"),
    ("many small ones", "held = [bytearray(b'x') * (1 << 20) for _ in range(300)]"),
    ("C's malloc", "import ctypes\nc = ctypes.CDLL(None)\nc.malloc.restype = ctypes.c_void_p\n"
     "assert c.malloc(ctypes.c_size_t(300 << 20))"),
    ("a mapped file", "import mmap\nheld = mmap.mmap(-1, 300 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)"),
    ("a range", "held = list(range(12 << 20))"),
)  # fmt: skip
PRINTING = (
    ("os.write", "for _ in range(4000): os.write(1, b'x' * 999)"),
    ("one write", "os.write(1, b'x' * (4 << 20))"),
    ("a copy of the descriptor", "n = os.dup(1)\nfor _ in range(4000): os.write(n, b'x' * 999)"),
    ("a new file", "out = open('/proc/self/fd/1', 'w') if os.path.exists('/proc/self/fd/1') else sys.stdout\n"
     "for _ in range(4000): out.write('x' * 999)"),
    ("binary", "for _ in range(4000): sys.stdout.buffer.write(bytes(999))"),
    ("threads", "import threading\nrun = lambda: [os.write(1, b'x' * 999) for _ in range(1000)]\n"
     "[threading.Thread(target=run).start() for _ in range(4)]"),
    ("its end", "import atexit; atexit.register(lambda: [os.write(1, b'x' * 999) for _ in range(4000)])"),
    ("an exception", "raise ValueError('x' * (4 << 20))"),
    ("an exit", "sys.exit('x' * (4 << 20))"),
)  # fmt: skip
KEEP = "import time\ntime.sleep(0.5)\nprint('ESCAPED')"
STORING: tuple[tuple[str, str, LevelName], ...] = (
    ("at the end of a file", "file = open('f', 'wb')\nfile.seek(64 << 20)\nfile.write(b'x')\nfile.flush()", "rlimits"),
    ("by truncating up", "open('f', 'wb').truncate(64 << 20)", "rlimits"),
    ("by fallocate", "os.posix_fallocate(os.open('f', os.O_CREAT | os.O_RDWR), 0, 64 << 20)", "rlimits"),
    ("by copying", "open('f', 'wb').write(b'x' * (4 << 20))\nfor n in range(9):\n"
     "    __import__('shutil').copy('f', f'g{n}')", "landlock"),
    ("in nested folders", "for n in range(10):\n    os.mkdir('d')\n    os.chdir('d')\n    open('f', 'wb').write(b'x' * (4 << 20))",
     "landlock"),
    ("in removed files", "held = []\nfor n in range(10):\n    held.append(open('f', 'wb'))\n    held[-1].write(b'x' * (4 << 20))\n"
     "    held[-1].flush()\n    os.remove('f')", "landlock"),
    ("in files without a name", "for n in range(10):\n    os.write(os.open('.', getattr(os, 'O_TMPFILE', 0) | os.O_RDWR), b'x' * (4 << 20))",
     "landlock"),
    ("in the temporary folder", "import tempfile\nheld = []\nfor n in range(10):\n    held.append(tempfile.TemporaryFile())\n"
     "    held[-1].write(b'x' * (4 << 20))\n    held[-1].flush()", "landlock"),
    ("in names", "for n in range(1500): open(f'{n}', 'w').close()", "landlock"),
    ("in folders", "for n in range(1500): os.mkdir(f'{n}')", "landlock"),
    ("in links", "for n in range(1500): os.symlink('x', f'{n}')", "landlock"),
    ("in open files", "held = [os.open('f', os.O_CREAT | os.O_RDWR) for _ in range(200)]", "rlimits"),
)  # fmt: skip
KERNEL = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
ASKING = (
    ("a user namespace with mounts", "assert libc.unshare(0x10020000) == 0"),
    ("a user namespace with a network", "assert libc.unshare(0x50000000) == 0"),
    ("a user namespace with processes", "assert libc.unshare(0x30000000) == 0"),
    ("a user namespace by clone", "import signal\npid = libc.syscall({'x86_64': 56}.get(os.uname().machine, 220), "
     "0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nassert pid > 0"),
    ("a secret memory file", "assert libc.syscall({'x86_64': 319}.get(os.uname().machine, 279), b'x', 0) >= 0"),
    ("shared memory", "assert libc.shmget(0, 1 << 20, 0o1600) >= 0"),
    ("a message queue", "assert libc.msgget(0, 0o1600) >= 0"),
    ("a semaphore", "assert libc.semget(0, 1, 0o1600) >= 0"),
)  # fmt: skip

LIMITED: list[Escape] = [
    *(
        attempt_of(f"outlasting: {name}", "outlast the clock", f"{code}\n", "rlimits", ended, SHORT)
        for name, code in WAITING
    ),
    *(attempt_of(f"holding: {name}", "use 300 MB", f"{code}\nprint('ESCAPED')", "rlimits") for name, code in HOLDING),
    *(attempt_of(f"printing: {name}", "print without end", code, "rlimits", printed) for name, code in PRINTING),
    *(
        attempt_of(f"storing: {name}", "take more room on disk", f"{code}\n{KEEP}", needs)
        for name, code, needs in STORING
    ),
    *(
        attempt_of(f"asking: {name}", "get more from the kernel", f"{KERNEL}{code}\nprint('ESCAPED')")
        for name, code in ASKING
    ),
]
