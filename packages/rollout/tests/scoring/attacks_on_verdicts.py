"""Programs and texts that reach for verdicts: frames, lines, streams, time, what is replaced, what is hard to parse."""

SECRETS = """
import gc, os, struct, sys
found, seen = [], set()
def look(v, depth=3):
    if id(v) in seen: return
    seen.add(id(v))
    if isinstance(v, (bytes, bytearray)) and 8 <= len(v) <= 64: found.append(bytes(v))
    if depth and isinstance(v, (list, tuple, set)): [look(x, depth - 1) for x in list(v)[:100]]
    if depth and isinstance(v, dict): [look(x, depth - 1) for x in list(v.values())[:100]]
    for n in ('__closure__', '__dict__', 'args', 'keywords', '__self__', 'func'):
        if depth and hasattr(v, n): look(getattr(v, n), depth - 1)
    if type(v).__name__ == 'cell': look(v.cell_contents, depth)
f = sys._getframe()
while f:
    [look(v) for v in list(f.f_locals.values())]
    f = f.f_back
[look(v, 0) for v in gc.get_objects()]
# The number that a reply begins with waits in a pipe.
for d in range(3, 64):
    try: os.set_blocking(d, False); found.append(os.read(d, 16))
    except OSError: pass
"""
HEADS = "[struct.pack('=16sI', s[:16], len(line)) for s in found] + [struct.pack('=I', len(line)), b'']"


def _forge(line: str) -> str:
    return (
        f"{SECRETS}for line in [{line}]:\n for head in {HEADS}:\n  for d in range(1, 256):\n"
        "   try: os.write(d, head + line)\n   except OSError: pass\nos._exit(0)"
    )


def _descriptors(call: str) -> str:
    return f"import fcntl, os\nfor d in range(0, 64):\n try: {call}\n except OSError: pass"


FRAMES = {
    "writes to every pipe": (
        "import os\nfor f in range(3, 256):\n try: os.write(f, b'1.0\\n' * 9)\n except OSError: pass"
    ),
    "writes heads without a number": (
        "import os, struct\nfor f in range(0, 256):\n"
        " try: os.write(f, struct.pack('=16sI', b'', 4) + b'1.0\\n')\n except OSError: pass"
    ),
    "forges its own verdict": _forge(r"b'1.0\n'"),
    "forges its worker's death": _forge(r"""b'{"died": "x"}\n', b'{"died": "x"}'"""),
    "forges a fault": _forge(r"""b'{"fault": "x"}\n', b'{"fault": 1}\n'"""),
    "forges a request's start": _forge(r"b'+\n', b'+\n+\n1.0\n'"),
    "forges a new start": _forge(r"""b'{"ready": {}}\n1.0\n1.0\n'"""),
}
LINES = {
    "forges nine hundred verdicts": _forge(r"b'1.0\n' * 900"),
    "forges half a line": _forge(r"b'1.', b'[1, ', b'\n', b''"),
    "forges a huge line": _forge(r"b'1' * 4000 + b'\n', b'1' * 100000 + b'\n'"),
    "forges what is no JSON": _forge(r"b'\xff\xfe\n', b'NaN\n', b'1e999\n', b'2.0\n', b'true\n', b'\0'"),
    "forges other objects": _forge(r"""b'null\n', b'[1.0]\n', b'"1.0"\n', b'{"error": {"a": 1}}\n'"""),
    "prints verdicts": "import sys\nfor f in (sys.stdout, sys.stderr): f.write('1.0\\n' * 900); f.flush()",
    "prints JSON": 'print(\'{"reward": 1.0}\\n\' * 99, \'{"ready": {}}\\n\', \'{"died": ""}\')',
    "prints without end": "import os\nwhile True: os.write(1, b'1.0\\n' * 9999)",
    "prints a line without end": "import os\nwhile True: os.write(1, b'1' * 65536)",
}
FORKS = {
    # Enough to be above every limit, too few to harm a machine where a limit fails.
    "forks by doubling": "import os, time\nfor _ in range(9): os.fork()\ntime.sleep(9)",
    "forks and fails": (
        "import os, time\nfor _ in range(400):\n try:\n  if os.fork() == 0: time.sleep(9); os._exit(0)\n"
        " except OSError: pass"
    ),
    "has a hundred processes": (
        "import os, time\nread, write = os.pipe()\nfor _ in range(100):\n if os.fork() == 0:\n"
        "  os.write(write, b'.'); time.sleep(9); os._exit(0)\n"
        "os.close(write); held = 0\nwhile held < 100 and os.read(read, 1): held += 1\nanswer = {right}"
    ),
    "starts two hundred programs": (
        "import subprocess, sys\nfor _ in range(200): subprocess.Popen([sys.executable, '-c', 'while True: pass'])"
    ),
    "starts two thousand threads": (
        "import threading, time\nfor _ in range(2000):\n try: threading.Thread(target=time.sleep, args=(9,)).start()\n"
        " except RuntimeError: pass"
    ),
    "leaves a thread that never ends": (
        "import threading\ndef spin():\n while True: pass\nthreading.Thread(target=spin).start()"
    ),
}
STREAMS = {
    "reads its worker's requests": _descriptors("os.set_blocking(d, False); os.read(d, 65536)"),
    "closes everything": "import os; os.closerange(0, 65536)",
    "turns its streams into each other": _descriptors("os.dup2(1, d); os.dup2(0, d + 64)"),
    "makes its worker's pipes wait": _descriptors("os.set_blocking(d, False); fcntl.flock(d, 6)"),
}
EXITS = {
    "leaves at once": "import os; print('1.0' * 10**6); os._exit(0)",
    "leaves politely": "import sys; sys.exit(0)",
    "raises an exit": "raise SystemExit(1.0)",
    "is interrupted": "raise KeyboardInterrupt",
    "aborts": "import os; os.abort()",
    "uses C": "import ctypes; ctypes.string_at(0)",
    "says that it is not at fault": (
        "from isocompute.rollout.scoring.judges import RolloutError; raise RolloutError('1')"
    ),
    "becomes another program": "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'print(1.0)'])",
    "prints when it leaves": "import atexit; atexit.register(print, '1.0\\n' * 99)",
}
REPLACES = {
    "replaces what writes verdicts": (
        "import sys, json, os\njson.dumps = lambda *a, **k: '1.0'\nos.write = lambda f, d: None\n"
        "for m in [m for n, m in sys.modules.items() if n.startswith('isocompute') or n == '__main__']:\n"
        " for n in list(vars(m)):\n"
        "  if n in ('_reply', 'said', 'broken', 'in_a_child', 'float', 'type', '_run'):\n"
        "   setattr(m, n, lambda *a, **k: b'1.0\\n')\n"
        "import builtins\nbuiltins.type = lambda x: float\nbuiltins.float = lambda x: 1.0\nraise ValueError"
    ),
    "replaces what leaves": (
        "import os, builtins\nos._exit = lambda s: None\nbuiltins.len = lambda x: 4\n"
        "builtins.isinstance = lambda *a: True"
    ),
    "equals everything": (
        "class A(str):\n __eq__ = lambda s, o: True\n __hash__ = lambda s: 0\n strip = lambda s: s\nanswer = A()"
    ),
    "goes on in its parents' frames": (
        "import sys\nsys.settrace(lambda *a: None)\nf = sys._getframe()\nwhile f:\n f.f_trace = lambda *a: None\n"
        " f.f_globals.update(float=lambda x: 1.0, said=lambda r: b'1.0\\n')\n f = f.f_back\nraise ValueError"
    ),
    "replaces imports": (
        "import sys, builtins\nbuiltins.__import__ = lambda *a, **k: None\nsys.modules.clear(); sys.path.clear()"
    ),
}
TIME = {
    "hangs in a loop": "while True: pass",
    "ignores its deadline": (
        "import signal\nfor s in (14, 26, 27, 24, 15):\n signal.signal(s, signal.SIG_IGN)\nwhile True: pass"
    ),
    "handles its deadline": (
        "import signal\nfor s in (14, 26, 27, 24):\n signal.signal(s, lambda *a: None)\n"
        "signal.setitimer(signal.ITIMER_PROF, 0)\nwhile True: pass"
    ),
    "sleeps": "import time; time.sleep(1000)",
    "hands its time on to children": (
        "import os, time\nfor _ in range(50):\n if os.fork(): os._exit(0)\n end = time.process_time() + 0.2\n"
        " while time.process_time() < end: pass"
    ),
    "takes its time in C": "x = 10 ** 10 ** 8; str(9 ** 9 ** 8)",
}
DEPTH = {
    "never returns": "def f(): return f()\nf()",
    "never returns from C": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
    "nests without end": "eval('[' * 10**5 + ']' * 10**5)",
    "nests an object": "a = []\nfor _ in range(10**6): a = [a]\nanswer = a\nprint(a == [a])",
}
PARSERS = {
    "is a tower of powers": r"\boxed{9^{9^{9^{9}}}}",
    "is a tower of Python's powers": "9**9**9**9",
    "is deep": "(" * 3000 + "1" + ")" * 3000,
    "is a deep box": r"\boxed{" * 999 + "1" + "}" * 999,
    "is an expensive match": "a" * 40 + "!",
    "is a factorial": r"\boxed{99999!!!}",
    "is long": "1+" * 50_000 + "1",
    "is no text": "\0\ud800\U0010ffff\r\n\x1b[2J",
    "is empty": "",
}
