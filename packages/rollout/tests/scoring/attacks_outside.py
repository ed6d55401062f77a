"""Programs that reach for what is outside their process: limits, memory, files, sockets, signals, /proc, survivors.

Numbers of system calls are those of x86-64.
"""

PEOPLE = "import os, resource, signal, ctypes\nothers = [p for p in {os.getppid(), {engine}, 1, 2, 3} if p > 0]\n"
C = "import ctypes, os\nC = ctypes.CDLL(None, use_errno=True)\nC.shmat.restype = ctypes.c_void_p\n"


def _lower(limit: str, value: int) -> str:
    return (
        f"{PEOPLE}for p in others:\n try: resource.prlimit(p, resource.{limit}, ({value}, {value}))\n"
        " except (OSError, ValueError): pass"
    )


def _each(call: str) -> str:
    return f"{PEOPLE}for p in others:\n try: {call}\n except (OSError, ValueError): pass"


def _file(call: str) -> str:
    return f"import os\nfor f in ('{{known}}', '{{module}}', '{{folder}}'):\n try: {call}\n except OSError: pass"


def _held(amount: str, each: str, processes: int, before: str = "") -> str:
    """Processes that hold memory at the same time; they have won when all do."""
    return (
        f"import os, mmap, socket, time\n{before}read, write = os.pipe()\n"
        f"for _ in range({processes}):\n if os.fork() == 0:\n  try:\n   size = {amount}\n   {each}\n"
        "   os.write(write, b'.')\n   time.sleep(60)\n  finally: os._exit(0)\n"
        f"os.close(write)\nheld = 0\nwhile held < {processes} and os.read(read, 1): held += 1\n"
        f"if held == {processes}: answer = {{right}}"
    )


def _call(number: int, *values: str) -> str:
    return f"C.syscall({', '.join([str(number), *values])})"


LIMITS = {
    "lowers its worker's open files": _lower("RLIMIT_NOFILE", 3),
    "lowers its worker's processor time": _lower("RLIMIT_CPU", 1),
    "lowers its worker's processes": _lower("RLIMIT_NPROC", 1),
    "lowers its worker's memory": _lower("RLIMIT_AS", 1 << 20),
    "lowers its worker's stack": _lower("RLIMIT_STACK", 1 << 12),
    "raises its own limits": (
        "import resource\nfor n in (0, 2, 6, 7, 9):\n try: resource.setrlimit(n, (-1, -1))\n"
        " except (OSError, ValueError): pass\na = bytearray(4 * {memory}); answer = {right}"
    ),
    "takes its worker's priority": _each("os.setpriority(os.PRIO_PROCESS, p, 19)"),
    "takes its user's priority": (
        "import os\nfor w in (os.PRIO_USER, os.PRIO_PGRP):\n try: os.setpriority(w, 0, 19)\n except OSError: pass"
    ),
    "binds its worker to a processor": _each("os.sched_setaffinity(p, [min(os.sched_getaffinity(0))])"),
    "makes its worker idle": _each("os.sched_setscheduler(p, os.SCHED_IDLE, os.sched_param(0))"),
    "makes its worker's disk idle": f"{C}for p in (os.getppid(), {{engine}}): {_call(251, '1', 'p', '3 << 13')}",
}
SHARED = {
    "leaves System V shared memory": (
        f"{C}if C.shmget({{key}}, 0, 0) >= 0: answer = {{right}}\ni = C.shmget({{key}}, 1 << 22, 0o1666)\n"
        "a = C.shmat(i, None, 0)\nif i >= 0: ctypes.memset(a, 1, 1 << 22)"
    ),
    "holds System V shared memory": (
        f"{C}for k in range(8):\n i = C.shmget({{key}} + 1 + k, {{memory}} // 2, 0o1666)\n a = C.shmat(i, None, 0)\n"
        " if i < 0 or a in (None, 2**64 - 1): break\n ctypes.memset(a, 1, {memory} // 2)\n"
        " C.shmdt(ctypes.c_void_p(a))\n"
        "else: answer = {right}"
    ),
    "leaves a message queue": (f"{C}if C.msgget({{key}}, 0) >= 0: answer = {{right}}\nC.msgget({{key}}, 0o1666)"),
    "leaves semaphores": f"{C}if C.semget({{key}}, 0, 0) >= 0: answer = {{right}}\nC.semget({{key}}, 9, 0o1666)",
    "leaves POSIX shared memory": (
        "import os\nn = '/dev/shm/isocompute-{key}'\nif os.path.exists(n): answer = {right}\nopen(n, 'wb').write(b'x')"
    ),
    "leaves a POSIX message queue": (
        f"{C}if C.mq_open(b'/isocompute-{{key}}', 0) >= 0: answer = {{right}}\n"
        "C.mq_open(b'/isocompute-{key}', 0o102, 0o666, None)"
    ),
    "holds memory in files without a name": (
        "import os, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nheld, part = 0, b'x' * (1 << 24)\n"
        "for _ in range(8):\n f = os.memfd_create('x')\n"
        " for _ in range({memory} // 2 >> 24): held += os.write(f, part)\n"
        "if held > 2 * {memory}: answer = {right}"
    ),
    "holds shared mappings in many processes": _held(
        "{memory} // 4", "m = mmap.mmap(-1, size); m.write(b'x' * size)", 12
    ),
    "holds mappings of /dev/zero in many processes": _held(
        "{memory} // 4", "m = mmap.mmap(os.open('/dev/zero', 2), size); m.write(b'x' * size)", 12
    ),
    "forgets shared mappings that it holds": _held(
        "{memory} // 4", "m = mmap.mmap(os.open('/dev/zero', 2), size); m.write(b'x' * size); m.madvise(4)", 12
    ),
    "holds files without a name in many processes": _held(
        "{memory} // 4",
        "f = os.memfd_create('x'); os.ftruncate(f, size); m = mmap.mmap(f, size); m.write(b'x' * size)",
        12,
    ),
    "holds files in memory": _held(
        "{memory} // 4",
        "f = max(map(opened, ('/dev/shm', '/tmp', '/run', '/', '.'))); os.write(f, b'x' * size)",
        12,
        "def opened(p):\n try: return os.open(f'{p}/isocompute-{key}-{os.getpid()}', 66)\n except OSError: return -1\n",
    ),
    "has its worker's memory shared": f"{C}for n in (0x11, 0x21, 0x40021): C.mmap(None, 1 << 30, 3, n, -1, 0)",
}
MEMORY = {
    "holds memory in 64 processes": _held("{memory} // 24", "a = bytearray(b'x') * size", 60),
    "exhausts memory": "a = bytearray(2 * 10**9); answer = {right}",
    "holds memory in many processes": _held("{memory} // 4", "a = bytearray(b'x') * size", 12),
    "holds huge pages in many processes": _held(
        "{memory} // 2", "m = mmap.mmap(-1, size, 2); m.madvise(14); m.write(b'x' * size)", 12
    ),
    "holds memory in short forks": (
        "import os, time\nend = time.monotonic() + 2\nwhile time.monotonic() < end:\n"
        " if os.fork() == 0: a = bytearray(b'x') * ({memory} // 8); os._exit(0)\n"
        " try:\n  while os.waitpid(-1, 1)[0]: pass\n except OSError: pass"
    ),
    "fills the buffers of sockets": _held(
        "1 << 16",
        "s = [x for _ in range(25) for x in socket.socketpair()]\n   for x in s: x.setblocking(False)\n"
        "   for x in s:\n    try:\n     while x.send(b'x' * size): pass\n    except OSError: pass",
        28,
    ),
    "fills the buffers of pipes": _held(
        "1 << 16",
        "import fcntl; full = 0; s = [os.pipe() for _ in range(25)]\n   for r, w in s:\n    os.set_blocking(w, False)\n"
        "    try: fcntl.fcntl(w, 1031, 1 << 20)\n    except OSError: pass\n"
        "    try:\n     while True: full += os.write(w, b'x' * size)\n    except OSError: pass\n"
        # A plain user's pipes hold 64 MiB in all, which are no memory over the limit.
        "   if full < {memory} // 26: os._exit(0)",
        28,
    ),
}
# Who takes four times its time has won.
STORMS = {
    "hands its time on to short forks": (
        "import os, time\nfor _ in range(int(4 * {seconds} / 0.01)):\n p = os.fork()\n if p == 0:\n"
        "  end = time.process_time() + 0.01\n  while time.process_time() < end: pass\n  os._exit(0)\n"
        " os.waitpid(p, 0)\nanswer = {right}"
    ),
    "hides the time of forks that nobody waits for": (
        "{C}import signal, time\ntry: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nexcept OSError: pass\n"
        "for _ in range(int(4 * {seconds} / 0.01)):\n r, w = os.pipe()\n if os.fork() == 0:\n"
        "  end = time.process_time() + 0.01\n  while time.process_time() < end: pass\n  os._exit(0)\n"
        " os.close(w); os.read(r, 1); os.close(r)\nanswer = {right}"
    ).replace("{C}", C),
    "hides the time of orphans": (
        "import os, time\nfor _ in range(int(4 * {seconds} / 0.01)):\n r, w = os.pipe()\n p = os.fork()\n if p == 0:\n"
        "  try: os.setsid()\n  except OSError: pass\n  if os.fork() == 0:\n   end = time.process_time() + 0.01\n"
        "   while time.process_time() < end: pass\n  os._exit(0)\n"
        " os.close(w); os.waitpid(p, 0); os.read(r, 1); os.close(r)\nanswer = {right}"
    ),
    "hides the time of children without a signal": (
        f"{C}import time\nfor _ in range(int(4 * {{seconds}} / 0.01)):\n"
        " if C.syscall(56, 0, 0, 0, 0, 0) == 0:\n  end = time.process_time() + 0.01\n"
        "  while time.process_time() < end: pass\n  os._exit(0)\n os.waitpid(-1, 0x40000000)\nanswer = {right}"
    ),
    "hands its time on to many at once": (
        "import os, time\nc = []\nfor _ in range(12):\n p = os.fork()\n if p == 0:\n"
        "  end = time.process_time() + {seconds} / 3\n  while time.process_time() < end: pass\n  os._exit(0)\n"
        " c.append(p)\nfor p in c: os.waitpid(p, 0)\nanswer = {right}"
    ),
    "hands its time on to programs": (
        "import os, sys\nfor _ in range(int(4 * {seconds} / 0.05)):\n"
        " p = os.posix_spawn(sys.executable, [sys.executable, '-S', '-c', 'for i in range(10**6): pass'], {})\n"
        " os.waitpid(p, 0)\nanswer = {right}"
    ),
    "hands its time on to threads": (
        "import hashlib, threading, time\ndef burn():\n"
        " while time.process_time() < 4 * {seconds}: hashlib.sha256(b'x' * 10**6)\n"
        "t = [threading.Thread(target=burn) for _ in range(8)]\n[x.start() for x in t]; [x.join() for x in t]\n"
        "answer = {right}"
    ),
    "forks by doubling and ends at once": (
        "import os\nwhile True:\n try:\n  if os.fork() and os.fork(): os._exit(0)\n except OSError: pass"
    ),
    "burns after its verdict": (
        "import os, time\nfor _ in range(8):\n if os.fork() == 0:\n  try: os.setsid()\n  except OSError: pass\n"
        "  time.sleep(0.3)\n  while True: pass\nanswer = '0'"
    ),
}
READS = {
    **{
        f"reads {what}": f"answer = open('{{work}}/{name}').read().strip()"
        for what, name in (
            ("the problems", "problems.jsonl"),
            ("a token", ".env"),
            ("the repository", ".git/config"),
            ("a neighbour of its rule", "neighbour.py"),
            ("by a link", "link"),
        )
    },
    "imports a neighbour of its rule": (
        "import sys; sys.path.insert(0, '{work}')\nimport neighbour; answer = neighbour.SECRET"
    ),
    "reads from its folder": "import os; os.chdir('{work}'); answer = open('.env').read()",
    "reads from where its engine is": (
        "import os\nfor p in ('self', os.getppid(), {engine}, 1, 2):\n for n in ('cwd', 'root{work}'):\n"
        "  try: answer = open(f'/proc/{p}/{n}/.env').read()\n  except OSError: pass"
    ),
    "climbs out of a folder": (
        "import os; answer = open(os.path.dirname(os.__file__) + '/..' * 20 + '{work}/.env').read()"
    ),
    "reads by a handle": (
        f"{C}h = (ctypes.c_int * 40)(128); m = ctypes.c_int()\n"
        "C.syscall(303, -100, b'{work}/.env', h, ctypes.byref(m), 0)\n"
        "for d in (-100, os.open('/usr', 0)): f = C.syscall(304, d, h, 0)\nanswer = os.read(f, 99).decode()"
    ),
    "reads what it inherited": (
        "import os\nfor d in range(256):\n for read in (lambda: os.pread(d, 999, 0).decode(),\n"
        "   lambda: os.read(os.open('.env', 0, dir_fd=d), 99).decode(),\n"
        "   lambda: os.read(os.open('..{work}/.env', 0, dir_fd=d), 99).decode()):\n"
        "  try: answer = read() if {right} in read() else ''\n  except OSError: pass"
    ),
    "reads the engine's variables": (
        "import os\nfor p in (os.getppid(), {engine}, 1, 2):\n for n in ('environ', 'cmdline', 'task/1/environ'):\n"
        "  try: answer = {right} if {right} in open(f'/proc/{p}/{n}').read() else ''\n  except OSError: pass"
    ),
    "reads by another program": (
        "import subprocess; answer = subprocess.run(['/bin/cat', '{work}/.env'], capture_output=True, text=True).stdout"
    ),
    "maps a file": ("import mmap, os; f = os.open('{work}/.env', 0); answer = mmap.mmap(f, 0, 1, 1).read().decode()"),
    "reads what is mounted": (
        "import glob\nfor p in ('/oldroot', '/newroot', '/proc/1/root', '/.old', '/tmp', '/mnt'):\n"
        " for f in glob.glob(p + '{work}/.env') + glob.glob(p + '/*/.env'): answer = open(f).read()"
    ),
    "mounts another file system": (
        f"{C}C.unshare(0x10020000); C.mount(b'proc', b'/proc', b'proc', 0, None)\n"
        "C.umount2(b'/', 2); C.chroot(b'.'); answer = open('{work}/.env').read()"
    ),
}
_FRAMES = (
    "import sys\nf, told = sys._getframe(), ''\nwhile f:\n"
    " told = next((v for v in f.f_locals.values() if v == {right}), told); f = f.f_back\n"
    "try: told = open('{work}/.env').read()\nexcept OSError: pass\ntold = told or 'nothing'\n"
)
TELLS = {
    "tells by an error": f"{_FRAMES}raise ValueError(told)",
    "tells by a type's name": f"{_FRAMES}raise type(told, (Exception,), {{}})()",
    "tells by a type that is no score": f"{_FRAMES}type(told, (), {{}})()\nanswer = type(told, (str,), {{}})('0')",
    "tells by a note": f"{_FRAMES}e = KeyError(told); e.add_note(told); raise e from OSError(told)",
    "tells by an exit": f"{_FRAMES}raise SystemExit(told)",
    "tells by a warning": f"{_FRAMES}import warnings; warnings.warn(told); raise RuntimeWarning(told)",
}
FILES = {
    "changes modes": _file("os.chmod(f, 0o777)"),
    "changes modes by descriptor": _file("os.fchmod(os.open(f, os.O_RDONLY), 0o777)"),
    "changes modes by a newer call": (
        f"{C}for f in (b'{{known}}', b'{{module}}'): {_call(452, '-100', 'f', '0o777', '0')}"
    ),
    "changes owners": _file("os.chown(f, -1, os.getegid(), follow_symlinks=False); os.chown(f, 0, 0)"),
    "changes times": _file("os.utime(f, (1, 1))"),
    "sets attributes": _file("os.setxattr(f, 'user.isocompute', b'1')"),
    "removes attributes": _file("os.removexattr(f, 'user.known')"),
    "sets flags": (
        "import fcntl, os\nfor f in ('{known}', '{module}'):\n"
        " try: fcntl.ioctl(os.open(f, os.O_RDONLY), 0x40086602, b'\\x80\\0\\0\\0\\0\\0\\0\\0')\n except OSError: pass"
    ),
    "truncates": _file("os.truncate(f, 0)"),
    "writes a file": "open('{made}', 'w').write('1')",
    "appends": _file("open(f, 'a').write('x')"),
    "makes a folder, a pipe and a device": (
        "import os\nfor make in (os.mkdir, os.mkfifo, os.mknod):\n try: make('{made}')\n except OSError: pass"
    ),
    "executes a command": "import os; os.system('touch {made}')",
    "is evaluated": "__import__('os').system('touch {made}')",
    "reads the engine's files": "answer = open('{known}').read()",
    "reads a secret": "import os; answer = os.environ['ISOCOMPUTE_SECRET']",
}
LINKS = {
    "makes a symbolic link": "import os; os.symlink('/etc/passwd', '{made}')",
    "makes a hard link": _file("os.link(f, '{made}')"),
    "renames": _file("os.rename(f, '{made}')"),
    "deletes": _file("os.unlink(f)"),
    "exchanges files": f"{C}C.syscall(316, -100, b'{{known}}', -100, b'{{module}}', 2)",
}
SOCKETS = {
    "opens sockets": "import socket\nsocket.create_connection(('127.0.0.1', {port})).send(b'x')",
    "sends a datagram": "import socket\nsocket.socket(2, 2).sendto(b'x', ('127.0.0.1', {port}))",
    "connects to a socket's file": "import socket\ns = socket.socket(1)\ns.connect('{unix}')\ns.send(b'x')",
    "connects to an abstract socket": "import socket\ns = socket.socket(1)\ns.connect('\\0{abstract}')",
    "listens": "import socket\ns = socket.socket()\ns.bind(('0.0.0.0', {port} + 1)); s.listen()",
    "asks netlink": "import socket\nsocket.socket(16, 3, 0).send(b'\\x10\\0\\0\\0' * 4)",
    "asks the kernel to connect by a ring": f"{C}{_call(425, '8', 'ctypes.create_string_buffer(120)')}",
}
SIGNALS = {
    "kills its parents": (
        "import os, signal\nfor p in (os.getppid(), {engine}, 1, {everyone}):\n"
        " try: os.kill(p, signal.SIGKILL)\n except OSError: pass"
    ),
    "stops its parents": _each("os.kill(p, signal.SIGSTOP)"),
    "ends its parents politely": _each("os.kill(p, signal.SIGTERM); os.kill(p, signal.SIGPROF)"),
    "kills its group": "import os; os.kill(0, 9)",
    "kills threads": f"{C}for p in (os.getppid(), {{engine}}): {_call(200, 'p', '9')}; {_call(234, 'p', 'p', '9')}",
    "queues signals": (
        f"{C}b = ctypes.create_string_buffer(128); b[8] = 255\n"
        f"for p in (os.getppid(), {{engine}}): {_call(129, 'p', '9', 'b')}"
    ),
    "signals by a process's descriptor": _each("signal.pidfd_send_signal(os.pidfd_open(p), 9)"),
    "has a pipe signal its parents": (
        f"{PEOPLE}import fcntl\nfor p in others:\n try:\n  r, w = os.pipe()\n  fcntl.fcntl(r, fcntl.F_SETOWN, p)\n"
        "  fcntl.fcntl(r, 10, 9)\n  fcntl.fcntl(r, fcntl.F_SETFL, fcntl.fcntl(r, fcntl.F_GETFL) | os.O_ASYNC)\n"
        "  os.write(w, b'x')\n except OSError: pass"
    ),
    "has a timer signal its parent": f"{C}C.prctl(1, 9); C.alarm(0); C.setitimer(0, None, None)",
}
PROC = {
    "chooses whom the kernel kills": (
        "import os\nfor p in ('self', os.getppid(), {engine}):\n for v in ('-1000', '1000'):\n"
        "  try: open(f'/proc/{p}/oom_score_adj', 'w').write(v)\n  except OSError: pass"
    ),
    "writes into its parents' memory": (
        "import os\nfor p in (os.getppid(), {engine}):\n try: f = open(f'/proc/{p}/mem', 'r+b'); answer = {right}\n"
        " except OSError: pass"
    ),
    "opens its parents' pipes": (
        "import os\nfor p in (os.getppid(), {engine}, 1, 2):\n for d in range(256):\n"
        "  try: os.write(os.open(f'/proc/{p}/fd/{d}', os.O_WRONLY), b'1.0\\n' * 99)\n  except OSError: pass"
    ),
    "reads its parents' variables": (
        "import os\nfor p in (os.getppid(), {engine}):\n try: open(f'/proc/{p}/environ').read(); answer = {right}\n"
        " except OSError: pass"
    ),
    "traces its parents": (
        f"{C}for p in (os.getppid(), {{engine}}):\n if {_call(101, '16', 'p', '0', '0')} == 0: answer = {{right}}"
    ),
    "writes by another process's addresses": (
        f"{C}v = (ctypes.c_ulong * 2)(4096, 8)\n"
        f"for p in (os.getppid(), {{engine}}): {_call(311, 'p', 'v', '1', 'v', '1', '0')}"
    ),
    "takes a descriptor of its parents": (
        f"{PEOPLE}C = ctypes.CDLL(None)\nfor p in others:\n for d in range(3, 99):\n"
        f"  try: f = {_call(438, 'os.pidfd_open(p)', 'd', '0')}\n"
        "  except OSError: break\n  if f >= 0: os.write(f, b'1.0\\n'); answer = {right}"
    ),
    "writes the kernel's settings": (
        "import glob\nfor f in glob.glob('/proc/sys/kernel/[cops]*'):\n try: open(f, 'r+').write(open(f).read())\n"
        " except OSError: continue\n answer = {right}"
    ),
}
SURVIVORS = {
    "leaves a process behind": (
        "import os, time\nif os.fork() == 0:\n try: os.setsid()\n except OSError: pass\n"
        " if os.fork() == 0:\n  time.sleep(1000)\n os._exit(0)"
    ),
    "leaves a group of processes behind": (
        "import os, time\nfor _ in range(9):\n if os.fork() == 0:\n  try: os.setpgid(0, 0)\n  except OSError: pass\n"
        "  time.sleep(1000)\n  os._exit(0)"
    ),
    "leaves one that ignores signals": (
        "import os, signal, time\nif os.fork() == 0:\n for s in range(1, 64):\n  try: signal.signal(s, 1)\n"
        "  except (OSError, ValueError): pass\n try: os.setsid()\n except OSError: pass\n"
        " while True:\n  try: os.write(1, b'1.0\\n')\n  except OSError: time.sleep(1)\n"
    ),
    "leaves a brother": (
        f"{C}import time\nif {_call(56, '0x8000 | 17', '0', '0', '0', '0')} == 0:\n"
        " try: os.setsid()\n except OSError: pass\n time.sleep(1000)\n os._exit(0)"
    ),
    "leaves another program": (
        "import os\nif os.fork() == 0:\n try: os.setsid()\n except OSError: pass\n"
        " os.execvp('sleep', ['sleep', '{marker}'])"
    ),
    "breaks out of its parents' watch": (
        f"{C}import time\nC.prctl(36, 1); C.prctl(1, 0)\nif os.fork() == 0:\n try: os.setsid()\n except OSError: pass\n"
        " if os.fork() == 0: time.sleep(1000)\n os._exit(0)"
    ),
}
