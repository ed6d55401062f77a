"""Who can reach what a stage starts: a local Ray head, its workers and their engines."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVER = """
import json
import os
import subprocess
import sys
from pathlib import Path
import psutil
import yaml
from experiments.tiny import model as tiny_model
from experiments.running import models
from experiments.running.opening import workers
from experiments.settings import load

raw = yaml.safe_load(Path(sys.argv[1]).read_text())
raw["smoke"]["resources"] = {"workers": 1, "sampler": sys.argv[2]}
Path("params.yaml").write_text(yaml.safe_dump(raw))
preset = load(Path("params.yaml"), "smoke")
config = tiny_model.ChainsModelConfig(hidden=32, layers=1, steps=2, batch=16, max_terms=3)
tiny_model.train(config, Path("model"), progress=lambda step, loss: None)
with workers(preset, {models.content_hash(Path("model")): "model"}):
    import ray

    me = psutil.Process()
    listening = [
        [process.name(), place.laddr.ip]
        for process in [me, *me.children(recursive=True)]
        for place in process.net_connections(kind="inet")
        if place.status == "LISTEN"
    ]
    join = f"import ray; ray.init(address={ray.get_runtime_context().gcs_address!r}, log_to_driver=False)"
    joining = {}
    for name, kept in (("without", lambda key: not key.startswith("RAY_AUTH")), ("with", lambda key: True)):
        told = {key: value for key, value in os.environ.items() if kept(key)}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        joining[name] = subprocess.Popen([sys.executable, "-c", join], env=told, **quiet)
    joined = {name: process.wait() for name, process in joining.items()}
    print(json.dumps({"listening": listening, "joined": joined}))
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What a stage's process and all below it listen on, and whether others joined its cluster."""
    folder = tmp_path_factory.mktemp("doors")
    # Of its own, so that no cluster of this machine is joined, and short, since sockets are in it.
    place = Path(tempfile.mkdtemp(prefix="ray"))
    kept = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "ISOCOMPUTE_SESSION")}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(ROOT / "params.yaml"), "vllm"], cwd=folder, capture_output=True, text=True,
        env={**kept, "PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(place)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    shutil.rmtree(place, ignore_errors=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_nothing_listens_on_an_address_that_others_reach(opened: dict[str, object]) -> None:
    listening = opened["listening"]
    assert isinstance(listening, list)
    assert len(listening) > 3
    assert [place for place in listening if place[1] not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == []


def test_a_client_without_the_token_is_refused(opened: dict[str, object]) -> None:
    joined = opened["joined"]
    assert isinstance(joined, dict)
    assert joined["without"] != 0
    assert joined["with"] == 0
