"""``nox -s redteam``: every attack through every verifier, in each of the ways that a sandbox is set up.

    python packages/rollout/tests/scoring/redteam.py [--ways root] [--verifiers runs] [--attacks PART-OF-NAME]

It prints what an attack broke and what was taken over the limits, and ends with exit code 1 when an attack broke
anything: memory and time included, from 256 MiB or half a second on.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from scoring.attacks import ATTACKS, Attack  # noqa: E402
from scoring.meter import VARIABLE, Meter, grouped  # noqa: E402
from scoring.plain_user import USER, open_to_all, refuse_namespaces  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a sandbox is set up.

    Attributes:
        user: The user; 0 for root.
        open: Whether all may read the interpreter, without which bubblewrap is not used.
        namespaces: Whether the kernel gives any.
        without: Layers left out.
        wanted: What the layer ``files`` must be for programs; empty where it may be anything.
    """

    user: int = 0
    open: bool = True
    namespaces: bool = True
    without: tuple[str, ...] = ()
    wanted: str = ""


WAYS = {
    "root, Landlock": Way(open=False, without=("bubblewrap",), wanted="Landlock"),
    "root, bubblewrap": Way(wanted="bubblewrap"),
    "plain user": Way(user=USER),
    "plain user, no namespaces": Way(user=USER, namespaces=False, wanted="Landlock"),
    "open interpreter": Way(without=("bubblewrap",), wanted="Landlock"),
    "no Landlock": Way(without=("bubblewrap", "landlock"), wanted="mounts"),
}
TEXTS = {
    "exact": "3/4",
    "exact|regex:(?s).+": "3/4",
    r"exact|regex:^((a+)+)\s*$": "a",
    "math": "3/4",
    "math|boxed": "3/4",
    "math|last_line": "3/4",
}
PROGRAMS = ("executes", "starts", "runs")
TASKS = ("tasks", "executing tasks")
LIMITS = {"seconds": 0.5, "wall_factor": 6.0, "memory_bytes": 2**29, "workers": 1}
Found = list[tuple[str, str, str, int, float]]
"""Verifier, attack, what was broken (empty where nothing was), and MiB and seconds over the limits."""


def main() -> int:
    """Run the ways one after another and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--verifiers", nargs="*", default=[*TEXTS, *TASKS, *PROGRAMS])
    parser.add_argument("--attacks", default="", help="only those whose kind or name matches this pattern")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    attacks = [a for a in ATTACKS if re.search(chosen.attacks, f"{a.kind}: {a.name}")]
    if chosen.inside:
        campaign(chosen.inside, chosen.verifiers, attacks)
        return 0
    broken = False
    for way in chosen.ways:
        broken |= show(way, run(way, chosen.verifiers, chosen.attacks), len(attacks))
    return int(broken)


def run(way: str, verifiers: list[str], part: str) -> Found | str:
    """Run a way in a process of its own; return what was found, or why it was not run."""
    root, wanted = os.getuid() == 0, WAYS[way]
    if wanted.user == 0 and not root:
        return "not run: this process is not root"
    with tempfile.TemporaryDirectory(prefix="isocompute-redteam-") as folder:
        Path(folder).chmod(0o755)
        command = [sys.executable, str(HERE / "redteam.py")]
        extra: dict[str, object] = {}
        variables = dict(os.environ)
        work = Path(folder) / "work"
        work.mkdir()
        if root and wanted.open:
            command[:2], added = open_to_all(Path(folder), HERE)
            variables |= added
        if root and wanted.user:
            extra = {"user": USER, "group": USER, "extra_groups": []}
            os.chown(work, USER, USER)
        command += ["--inside", way, "--attacks", part, "--verifiers", *verifiers]
        variables["TMPDIR"] = variables["HOME"] = str(work)
        with grouped() as group:
            variables[VARIABLE] = group
            done = subprocess.run(command, cwd=work, env=variables, stdout=subprocess.PIPE, text=True, **extra)  # type: ignore[call-overload]
    lines = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 4]
    if done.returncode:
        # An attack that ends the engine's process is what this is to find.
        lines.append(["", "", f"the engine's process ended with {done.returncode}", "0", "0"])
    return [(verifier, attack, what, int(mib), float(seconds)) for verifier, attack, what, mib, seconds in lines]


def campaign(way: str, verifiers: list[str], attacks: list[Attack]) -> None:
    """Put attacks through verifiers in this process, which is the engine; print each as it ends."""
    if not WAYS[way].namespaces:
        refuse_namespaces()
    from isocompute.rollout.scoring.sandbox.process import ScoringConfig
    from isocompute.rollout.scoring.scorer import Scorer
    from scoring.outside import Outside
    from scoring.siege import MODULE, besiege

    folder = Path(tempfile.mkdtemp())
    (folder / "modules").mkdir()
    module = folder / "modules" / "own_verifiers.py"
    module.write_text(MODULE)
    # As where somebody works: the rule, the problems and a checkout in one folder, which is the engine's, too.
    sys.path.insert(0, str(module.parent))
    os.chdir(module.parent)
    # Where nothing separates the processes of a user, all of them are only shot at under a user id of our own.
    own = os.getuid() in {0, USER} or WAYS[way].namespaces
    limits = {"memory_bytes": int(LIMITS["memory_bytes"]), "seconds": float(LIMITS["seconds"])}
    outside = Outside(module, **limits, everyone=-1 if own else 0)  # type: ignore[arg-type]
    config = ScoringConfig(**LIMITS, without=WAYS[way].without)  # type: ignore[arg-type]
    scorer, meter = Scorer(config), Meter()
    try:
        layers = scorer._pool("runs")._put(lambda process: process.started()).result()
        print(way, layers, sep=" | ", file=sys.stderr)
        if WAYS[way].wanted not in layers["files"]:
            print("runs", "", f"files are {layers['files']!r}, not {WAYS[way].wanted}", 0, 0, sep="\t", flush=True)
        for name, target in targets(verifiers):
            # What is only compared or parsed takes all attacks in one batch.
            for group in [[a] for a in attacks] if name in PROGRAMS else [attacks]:
                alone = name in PROGRAMS
                broken = besiege(scorer, target, group, outside, meter if alone else None)
                label = group[0].name if alone else ""
                over = (meter.over.bytes >> 20, f"{meter.over.seconds:.2f}") if alone else (0, 0)
                print(
                    way, name, label or f"{len(group)} attacks", *broken or ["held"], *over, sep=" | ", file=sys.stderr
                )
                for what in broken or [""]:
                    print(name, label, " ".join(what.split()), *over, sep="\t", flush=True)
                if broken:
                    scorer.close()
                    scorer = Scorer(config)
    finally:
        scorer.close()
        outside.close()


def targets(verifiers: list[str]) -> list[tuple[str, "Target"]]:  # noqa: F821
    """The verifiers' problems; each task of reasoning-gym is one."""
    import reasoning_gym
    from isocompute.rollout.scoring.rules import EXECUTING, REFUSED
    from scoring.siege import program_targets, task_target, text_target

    found = [(name, text_target(name, answer)) for name, answer in TEXTS.items() if name in verifiers]
    for task in sorted(set(reasoning_gym.factory.DATASETS) - set(REFUSED)):
        if ("executing tasks" if task in EXECUTING else "tasks") in verifiers:
            found.append((f"reasoning_gym:{task}", task_target(task)))
    return found + [(name, target) for name, target in program_targets().items() if name in verifiers]


def show(way: str, found: Found | str, attacks: int) -> bool:
    """Print what was found in a way; say whether anything was broken."""
    if isinstance(found, str):
        print(f"\n{way}: {found}")
        return False
    print(f"\n{way}: {len({v for v, *_ in found})} verifiers; over the limits of {'':32} MiB  seconds")
    for verifier, name, _, mib, seconds in sorted({each for each in found if each[3] >= 16 or each[4] >= 0.1}):
        print(f"{verifier:14} {name:44} {mib:3}  {seconds:.2f}")
    broken = [line for line in found if line[2]]
    for verifier, name, what, *_ in broken:
        print(f"BROKE {way} | {verifier} | {name} | {what}")
    most = {"mib_over": max(each[3] for each in found), "seconds_over": max(each[4] for each in found)} if found else {}
    print(json.dumps({"way": way, "attacks": attacks, "broken": len(broken), **most}))
    return bool(broken) or not found


if __name__ == "__main__":
    sys.exit(main())
