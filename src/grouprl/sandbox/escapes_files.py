"""Ways to files outside the sandbox: the calls of Python, libraries and programs that read, list, make or change them.

Each line is (name, code). The code of `READING` returns bytes or text, which hold the secret if it succeeds.
"""
# ruff: noqa: E501  (a program is a line)

from __future__ import annotations

from grouprl.sandbox.attempts import Escape, attempt_of

READING = (
    ("os.open", "os.read(os.open(secret, os.O_RDONLY), 99)"),
    ("os.open for reading and writing", "os.read(os.open(secret, os.O_RDWR), 99)"),
    ("pathlib", "__import__('pathlib').Path(secret).read_bytes()"),
    ("io.FileIO", "__import__('io').FileIO(secret).read()"),
    ("codecs", "__import__('codecs').open(secret).read()"),
    ("mmap", "__import__('mmap').mmap(os.open(secret, 0), 0, prot=1)[:]"),
    ("relative to the root's descriptor", "os.read(os.open(secret[1:], 0, dir_fd=os.open('/', 0)), 99)"),
    ("after a change of folder", "(os.chdir(os.path.dirname(secret)), open('secret').read())[1]"),
    ("after fchdir", "(os.fchdir(os.open(os.path.dirname(secret), 0)), open('secret').read())[1]"),
    ("through the parent's folder of open files", "open(f\"/proc/{targets['process']}/root{secret}\").read()"),
    ("through its own root", "open('/proc/self/root' + secret).read()"),
    ("through a thread's root", "open('/proc/thread-self/root' + secret).read()"),
    ("through a link in a folder", "(os.mkdir('d'), os.symlink(secret, 'd/s'), open('d/s').read())[2]"),
    ("through a chain of links", "(os.symlink(secret, 'a'), os.symlink('a', 'b'), open('b').read())[2]"),
    ("through a link to the root", "(os.symlink('/', 'r'), open('r' + secret).read())[1]"),
    ("copied", "(__import__('shutil').copyfile(secret, 'c'), open('c').read())[1]"),
    ("copied with its times", "(__import__('shutil').copy2(secret, 'c'), open('c').read())[1]"),
    ("by sendfile", "(lambda o: (os.sendfile(o, os.open(secret, 0), 0, 6), os.pread(o, 9, 0))[1])"
     "(os.open('c', os.O_RDWR | os.O_CREAT))"),
    ("by linecache", "__import__('linecache').getline(secret, 1)"),
    ("by fileinput", "''.join(__import__('fileinput').input([secret]))"),
    ("by cat", "__import__('subprocess').check_output(['cat', secret])"),
    ("by a shell", "os.popen('cat ' + secret).read()"),
    ("by a shell's redirection", "__import__('subprocess').check_output('read x < ' + secret + '; echo $x', shell=True)"),
    ("by C's fopen", "(lambda c, b: (setattr(c.fopen, 'restype', __import__('ctypes').c_void_p), "
     "c.fgets(b, 99, __import__('ctypes').c_void_p(c.fopen(secret.encode(), b'r'))), b.value)[2])"
     "(__import__('ctypes').CDLL(None), __import__('ctypes').create_string_buffer(99))"),
    ("by C's open", "os.read(__import__('ctypes').CDLL(None).open(secret.encode(), 0), 99)"),
    ("tokenised", "__import__('tokenize').open(secret).read()"),
    ("as a configuration", "(lambda c: (c.read_string('[a]\\nb=' + open(secret).read()), c['a']['b'])[1])"
     "(__import__('configparser').ConfigParser())"),
    ("as a zip archive's source", "(__import__('zipfile').ZipFile('z', 'w').write(secret), open('z', 'rb').read())[1]"),
    ("as a tar archive's source", "(lambda t: (t.add(secret), t.close(), open('t', 'rb').read())[2])"
     "(__import__('tarfile').open('t', 'w'))"),
    ("by an asynchronous loop", "__import__('asyncio').run(__import__('asyncio').to_thread(lambda: open(secret).read()))"),
    ("in a thread", "__import__('concurrent.futures').futures.ThreadPoolExecutor().submit(lambda: open(secret).read())"
     ".result()"),
    ("by an opener", "open('x', opener=lambda *a: os.open(secret, 0)).read()"),
    ("by a path descriptor", "open(f\"/proc/self/fd/{os.open(secret, getattr(os, 'O_PATH', 1 << 21))}\").read()"),
    ("by a URL", "__import__('urllib.request').request.urlopen('file://' + secret).read()"),
)  # fmt: skip
LISTING = (
    ("os.listdir", "os.listdir(home)"),
    ("os.scandir", "[e.name for e in os.scandir(home)]"),
    ("os.walk", "next(os.walk(home))[1]"),
    ("glob", "[os.path.basename(p) for p in __import__('glob').glob(home + '/*')]"),
    ("pathlib's iterdir", "[p.name for p in __import__('pathlib').Path(home).iterdir()]"),
    ("ls", "__import__('subprocess').check_output(['ls', home]).decode().split()"),
    ("a descriptor", "os.listdir(os.open(home, os.O_RDONLY))"),
    ("its own root", "os.listdir('/proc/self/root' + home)"),
)
WRITING = (
    ("os.open", "os.open(outside, os.O_CREAT | os.O_WRONLY)"),
    ("append", "open(outside, 'a').write('x')"),
    ("exclusive", "open(outside, 'x').write('x')"),
    ("pathlib", "__import__('pathlib').Path(outside).touch()"),
    ("folder", "os.mkdir(outside)"),
    ("folders", "os.makedirs(outside + '/a/b')"),
    ("link", "os.symlink('x', outside); open(outside + '2', 'w'); os.remove(outside); os.rename(outside + '2', outside)"),
    ("hard link", "open('a', 'w').close(); os.link('a', outside)"),
    ("renaming", "open('a', 'w').close(); os.rename('a', outside)"),
    ("replacing", "open('a', 'w').close(); os.replace('a', outside)"),
    ("moving", "open('a', 'w').close(); __import__('shutil').move('a', outside)"),
    ("copying", "open('a', 'w').close(); __import__('shutil').copy('a', outside)"),
    ("pipe", "os.mkfifo(outside)"),
    ("socket", "__import__('socket').socket(1).bind(outside)"),
    ("database", "__import__('sqlite3').connect(outside).execute('create table t (a)')"),
    ("dbm", "__import__('dbm.dumb').dumb.open(outside[:-7] + 'outside', 'c').close(); open(outside, 'w')"),
    ("log", "__import__('logging').FileHandler(outside).close()"),
    ("touch", "__import__('subprocess').check_call(['touch', outside])"),
    ("shell", "assert os.system('echo x > ' + outside) == 0"),
    ("C's creat", "assert __import__('ctypes').CDLL(None).creat(outside.encode(), 0o600) >= 0"),
    ("descriptor of a folder", "os.open('outside', os.O_CREAT | os.O_WRONLY, dir_fd=os.open(os.path.dirname(outside), 0))"),
    ("link to a folder", "os.symlink(os.path.dirname(outside), 'd'); open('d/outside', 'w')"),
    ("dangling link", "os.symlink(outside, 'd'); open('d', 'w')"),
    ("its own root", "open('/proc/self/root' + outside, 'w')"),
    ("archive", "__import__('zipfile').ZipFile(outside, 'w').close()"),
    ("unpacking", "z = __import__('tarfile').open('t', 'w'); open('a', 'w').close(); z.add('a', outside); z.close(); "
     "__import__('tarfile').open('t').extractall('/', filter='fully_trusted')"),
)  # fmt: skip
CHANGING = (
    ("truncating", "open(victim, 'w')", "emptied"),
    ("ftruncate", "os.ftruncate(os.open(victim, os.O_RDWR), 0)", "emptied"),
    ("open with O_TRUNC", "os.open(victim, os.O_WRONLY | os.O_TRUNC)", "emptied"),
    ("C's truncate", "__import__('ctypes').CDLL(None).truncate(victim.encode(), __import__('ctypes').c_long(0))", "emptied"),
    ("copying nothing over", "open('a', 'w').close(); __import__('shutil').copyfile('a', victim)", "emptied"),
    ("replacing", "open('a', 'w').close(); os.replace('a', victim)", "emptied"),
    ("a shell", "os.system(': > ' + victim)", "emptied"),
    ("removing", "os.remove(victim)", "gone"),
    ("renaming away", "os.rename(victim, victim + '2')", "gone"),
    ("taking", "os.rename(victim, 'mine')", "gone"),
    ("rm", "os.system('rm -f ' + victim)", "gone"),
    ("pathlib's unlink", "__import__('pathlib').Path(victim).unlink()", "gone"),
    ("fchmod", "os.fchmod(os.open(victim, 0), 0o777)", "mode"),
    ("chmod of a shell", "os.system('chmod 777 ' + victim)", "mode"),
    ("chmod of an open folder", "os.chmod('victim', 0o777, dir_fd=os.open(os.path.dirname(victim), 0))", "mode"),
    ("times", "os.utime(victim, (0, 0))", "times"),
    ("times of a descriptor", "os.utime(os.open(victim, 0), (0, 0))", "times"),
    ("touch", "os.system('touch -d @0 ' + victim)", "times"),
    ("mapped memory", "m = __import__('mmap').mmap(os.open(victim, os.O_RDWR), 4); m[:] = b'xxxx'; m.flush()", "changed"),
    ("pwrite", "os.pwrite(os.open(victim, os.O_RDWR), b'xxxx', 0)", "changed"),
    ("appending", "open(victim, 'ab').write(b'x')", "changed"),
)  # fmt: skip


def _read(code: str) -> str:
    says = "got = got if isinstance(got, str) else bytes(got).decode(errors='replace')\nif 'secret' in got:"
    return f"secret = targets['secret']\ngot = {code}\n{says} print('ESCAPED')"


FILES: list[Escape] = [
    *(attempt_of(f"reading: {name}", "read a file outside", _read(code)) for name, code in READING),
    *(
        attempt_of(
            f"listing: {name}",
            "list the user's home",
            f"home = targets['home']\nif targets['bait'] in {code}: print('ESCAPED')",
        )
        for name, code in LISTING
    ),
    *(
        attempt_of(f"making: {name}", "make a file outside", f"outside = targets['outside']\n{code}", escaped="outside")
        for name, code in WRITING
    ),
    *(
        attempt_of(
            f"changing: {name}", "change a file outside", f"victim = targets['victim_file']\n{code}", escaped=mark
        )
        for name, code, mark in CHANGING
    ),
]
